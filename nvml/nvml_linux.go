//go:build cgo

package nvml

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// fn is a function of the library, by its unversioned name.
type fn string

// The functions that are called. Calling one that the library lacks ends the process (the dynamic linker, not a panic), so
// each is looked up before anything is called.
const (
	fnInit            fn = "nvmlInit"
	fnShutdown        fn = "nvmlShutdown"
	fnDriverVersion   fn = "nvmlSystemGetDriverVersion"
	fnLibraryVersion  fn = "nvmlSystemGetNVMLVersion"
	fnCount           fn = "nvmlDeviceGetCount"
	fnHandle          fn = "nvmlDeviceGetHandleByIndex"
	fnUUID            fn = "nvmlDeviceGetUUID"
	fnName            fn = "nvmlDeviceGetName"
	fnPCI             fn = "nvmlDeviceGetPciInfo"
	fnUtilization     fn = "nvmlDeviceGetUtilizationRates"
	fnMemory          fn = "nvmlDeviceGetMemoryInfo"
	fnMemoryV2        fn = "nvmlDeviceGetMemoryInfo_v2"
	fnThroughput      fn = "nvmlDeviceGetPcieThroughput"
	fnReplays         fn = "nvmlDeviceGetPcieReplayCounter"
	fnPower           fn = "nvmlDeviceGetPowerUsage"
	fnPowerLimit      fn = "nvmlDeviceGetEnforcedPowerLimit"
	fnTemperature     fn = "nvmlDeviceGetTemperature"
	fnTemperatureV    fn = "nvmlDeviceGetTemperatureV"
	fnClock           fn = "nvmlDeviceGetClockInfo"
	fnClockMax        fn = "nvmlDeviceGetMaxClockInfo"
	fnEventReasons    fn = "nvmlDeviceGetCurrentClocksEventReasons"
	fnThrottleReasons fn = "nvmlDeviceGetCurrentClocksThrottleReasons"
	fnECC             fn = "nvmlDeviceGetTotalEccErrors"
	fnRows            fn = "nvmlDeviceGetRemappedRows"
	fnRetired         fn = "nvmlDeviceGetRetiredPages"
	fnProcesses       fn = "nvmlDeviceGetComputeRunningProcesses"
	fnMIGMode         fn = "nvmlDeviceGetMigMode"
	fnMIGMax          fn = "nvmlDeviceGetMaxMigDeviceCount"
	fnMIGHandle       fn = "nvmlDeviceGetMigDeviceHandleByIndex"
	fnGPUInstance     fn = "nvmlDeviceGetGpuInstanceId"
	fnComputeInstance fn = "nvmlDeviceGetComputeInstanceId"
	fnAttributes      fn = "nvmlDeviceGetAttributes"
	fnEventTypes      fn = "nvmlDeviceGetSupportedEventTypes"
	fnRegister        fn = "nvmlDeviceRegisterEvents"
	fnSetCreate       fn = "nvmlEventSetCreate"
	fnSetFree         fn = "nvmlEventSetFree"
	fnSetWait         fn = "nvmlEventSetWait"
)

// symbols lists the functions and, of each, the symbols of which one is enough: the binding calls the newest one that the
// library has, and the plain one where it has none.
func symbols() map[fn][]string {
	m := map[fn][]string{
		fnInit:       {"nvmlInit_v2", "nvmlInit"},
		fnCount:      {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		fnHandle:     {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
		fnPCI:        {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
		fnProcesses:  {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"},
		fnAttributes: {"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"},
		fnSetWait:    {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
	}
	for _, f := range []fn{
		fnShutdown, fnDriverVersion, fnLibraryVersion, fnUUID, fnName, fnUtilization, fnMemory, fnMemoryV2, fnThroughput,
		fnReplays, fnPower, fnPowerLimit, fnTemperature, fnTemperatureV, fnClock, fnClockMax, fnEventReasons,
		fnThrottleReasons, fnECC, fnRows, fnRetired, fnMIGMode, fnMIGMax, fnMIGHandle, fnGPUInstance, fnComputeInstance,
		fnEventTypes, fnRegister, fnSetCreate, fnSetFree,
	} {
		m[f] = []string{string(f)}
	}
	return m
}

// binding is a loaded library: what it has is known, nothing of it has been called.
type binding struct {
	path string
	lib  nvml.Interface
	has  map[fn]bool
}

// process holds the one library that this process has loaded. It is state of the package because it is state of the
// process: the linker resolves each function once, so a second library would not be called, and unloading the first would
// leave its addresses behind.
var process struct {
	sync.Mutex
	bound *binding
}

// bind loads the library, once for the process, and looks up its functions. It calls none of them.
func bind(path string) (*binding, *failure) {
	process.Lock()
	defer process.Unlock()
	if b := process.bound; b != nil {
		if b.path != path {
			return nil, &failure{CauseFailed, fmt.Sprintf("Library is %q, and this process has already loaded %q: use one for all samplers", path, b.path)}
		}
		return b, nil
	}
	handle := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL|dl.RTLD_NODELETE)
	if err := handle.Open(); err != nil {
		return nil, &failure{CauseNoLibrary, fmt.Sprintf("%v: install the driver's libraries, or give the container the GPU (the utility capability)", err)}
	}
	b := &binding{path: path, has: make(map[fn]bool)}
	for f, names := range symbols() {
		for _, name := range names {
			b.has[f] = b.has[f] || handle.Lookup(name) == nil
		}
	}
	for _, f := range []fn{fnInit, fnShutdown, fnCount, fnHandle} {
		if !b.has[f] {
			return nil, &failure{CauseNoSymbol, fmt.Sprintf("%s has no %s: it is not the library of a driver", path, f)}
		}
	}
	b.lib = nvml.New(nvml.WithLibraryPath(path))
	process.bound = b
	return b, nil
}

// nvmlDriver is the driver of builds with the binding. Its fields belong to the sampler's goroutine, except current.
type nvmlDriver struct {
	path    string
	current atomic.Pointer[inCall]

	// From start to stop.
	*binding
	version, library string
	events           nvml.EventSet // nil: none
	noEvents         failure       // why events is nil
	registered       int           // devices whose events are in the set
	devices          []*device     // by index, as far as they have been seen

	gone *failure // set by a call that says that the driver went away

	// For the sampler's life: whole GPUs that have been seen, by order of appearance, at most maxGPUs.
	seen []GPU
	// The same, by key: the last Xid, and who was lost in its last pass. A GPU that comes back from being lost, and every
	// GPU when the driver went away, was reset, and begins anew; initialising the library again for another's sake does not
	// clear a GPU's record.
	xids    map[string]Xid
	wasLost map[string]bool
}

// device is one whole GPU, from start to stop.
type device struct {
	GPU    // identity only
	handle nvml.Device
	lost   *failure // in this pass; nil: it answers
	xid    Reading[Xid]
}

// key names the GPU, also after the library was initialised again.
func (dev *device) key() string { return cmp.Or(dev.UUID, fmt.Sprintf("index %d", dev.Index)) }

// inCall is a call in progress.
type inCall struct {
	f     fn
	index int // of the GPU; -1: none in particular
}

// newDriver returns the driver of this build; it has loaded nothing yet.
func newDriver(path string) (driver, *failure) {
	return &nvmlDriver{path: path, xids: map[string]Xid{}, wasLost: map[string]bool{}}, nil
}

func (d *nvmlDriver) busy() string {
	c := d.current.Load()
	switch {
	case c == nil:
		return ""
	case c.index < 0:
		return string(c.f)
	}
	return fmt.Sprintf("%s of GPU %d", c.f, c.index)
}

// call marks a call as in progress while do runs.
func (d *nvmlDriver) call(f fn, index int, do func() nvml.Return) nvml.Return {
	d.current.Store(&inCall{f, index})
	ret := do()
	d.current.Store(nil)
	return ret
}

func (d *nvmlDriver) start() *failure {
	b, f := bind(d.path)
	if f != nil {
		return f
	}
	d.binding, d.gone, d.devices, d.registered = b, nil, nil, 0
	if ret := d.call(fnInit, -1, func() nvml.Return { return d.lib.Init() }); ret != nvml.SUCCESS {
		return &failure{causeOf(ret), fmt.Sprintf("%s: %s%s", fnInit, retText(ret), retFix(ret))}
	}
	d.version = d.text(fnDriverVersion, d.lib.SystemGetDriverVersion)
	d.library = d.text(fnLibraryVersion, d.lib.SystemGetNVMLVersion)
	d.openEvents()
	return nil
}

// text is a text that the driver may or may not have: "" for none.
func (d *nvmlDriver) text(f fn, get func() (string, nvml.Return)) string {
	if !d.has[f] {
		return ""
	}
	var text string
	ret := d.call(f, -1, func() (ret nvml.Return) { text, ret = get(); return ret })
	if ret != nvml.SUCCESS {
		return ""
	}
	return text
}

func (d *nvmlDriver) stop() {
	if d.events != nil {
		_ = d.call(fnSetFree, -1, func() nvml.Return { return d.lib.EventSetFree(d.events) })
		d.events = nil
	}
	// A driver that went away may refuse; the next start initialises again whatever this says.
	_ = d.call(fnShutdown, -1, func() nvml.Return { return d.lib.Shutdown() })
}

// openEvents makes the set in which the driver queues Xid events.
func (d *nvmlDriver) openEvents() {
	d.events = nil
	for _, f := range []fn{fnSetCreate, fnSetFree, fnSetWait, fnEventTypes, fnRegister} {
		if !d.has[f] {
			d.noEvents = failure{CauseNoSymbol, string(f) + " is not in this library"}
			return
		}
	}
	var set nvml.EventSet
	ret := d.call(fnSetCreate, -1, func() (ret nvml.Return) { set, ret = d.lib.EventSetCreate(); return ret })
	if ret != nvml.SUCCESS {
		d.noEvents = failure{causeOf(ret), fmt.Sprintf("%s: %s", fnSetCreate, retText(ret))}
		return
	}
	d.events = set
}

// maxEvents bounds the events that one pass takes; the rest waits in the driver for the next.
const maxEvents = 256

// drain takes the queued Xid events, without waiting.
func (d *nvmlDriver) drain() {
	if d.events == nil || d.registered == 0 {
		return
	}
	for range maxEvents {
		var event nvml.EventData
		ret := d.call(fnSetWait, -1, func() (ret nvml.Return) { event, ret = d.events.Wait(0); return ret })
		switch ret {
		case nvml.SUCCESS:
			d.xid(event)
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
			for _, dev := range d.devices {
				dev.xid = Missing[Xid](causeOf(ret), fmt.Sprintf("%s: %s", fnSetWait, retText(ret)))
			}
			return
		case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
			d.note(nil, fnSetWait, ret)
			return
		default: // a time-out: none left; or a GPU that is lost, which its own calls will say
			return
		}
	}
}

// xid books one event on the GPU that it names.
func (d *nvmlDriver) xid(event nvml.EventData) {
	if event.EventType&nvml.EventTypeXidCriticalError == 0 || event.Device == nil {
		return
	}
	var uuid string
	for _, dev := range d.devices {
		match := dev.handle == event.Device
		if !match {
			if uuid == "" && d.has[fnUUID] {
				_ = d.call(fnUUID, -1, func() (ret nvml.Return) { uuid, ret = event.Device.GetUUID(); return ret })
			}
			match = uuid != "" && uuid == dev.UUID
		}
		if match {
			last := Xid{Code: event.EventData, At: time.Now(), Count: d.xids[dev.key()].Count + 1}
			dev.xid, d.xids[dev.key()] = Available(last), last
			return
		}
	}
}

// register asks for a GPU's Xid events.
func (d *nvmlDriver) register(dev *device) {
	if d.events == nil {
		dev.xid = Missing[Xid](d.noEvents.cause, d.noEvents.reason)
		return
	}
	types := ask(d, dev, fnEventTypes, dev.handle.GetSupportedEventTypes, Available)
	mask, ok := types.Get()
	switch {
	case !ok:
		dev.xid = missingAs[Xid](types)
		return
	case mask&nvml.EventTypeXidCriticalError == 0:
		dev.xid = Missing[Xid](CauseNotSupported, "this GPU reports no Xid events")
		return
	}
	dev.xid = ask(d, dev, fnRegister, func() (struct{}, nvml.Return) {
		return struct{}{}, dev.handle.RegisterEvents(nvml.EventTypeXidCriticalError, d.events)
	}, func(struct{}) Reading[Xid] { d.registered++; return Available(d.xids[dev.key()]) })
}
