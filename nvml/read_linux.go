//go:build cgo

package nvml

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Bounds on what the driver says there is.
const (
	maxGPUs      = 1024
	maxInstances = 64
	maxProcesses = 1024
)

// read makes one pass.
func (d *nvmlDriver) read() (Snapshot, *failure) {
	snap, f := d.pass()
	if f != nil && f.cause == CauseNoDriver {
		clear(d.xids)
		clear(d.wasLost)
	}
	return snap, f
}

func (d *nvmlDriver) pass() (Snapshot, *failure) {
	var count int
	ret := d.call(fnCount, -1, func() (ret nvml.Return) { count, ret = d.lib.DeviceGetCount(); return ret })
	if ret != nvml.SUCCESS {
		return Snapshot{}, &failure{causeOf(ret), fmt.Sprintf("%s: %s", fnCount, retText(ret))}
	}
	if count < 0 || count > maxGPUs {
		return Snapshot{}, &failure{CauseInvalid, fmt.Sprintf("%s: %d GPUs, which is out of 0 to %d", fnCount, count, maxGPUs)}
	}
	d.drain()
	snap := Snapshot{State: StateAvailable, Driver: d.version, Library: d.library}
	for i := range count {
		snap.GPUs = append(snap.GPUs, d.readGPU(i)...)
		if d.gone != nil {
			return Snapshot{}, d.gone
		}
	}
	d.remember(&snap)
	return snap, nil
}

// remember appends the GPUs that were seen and are not there, and notes those that are.
func (d *nvmlDriver) remember(snap *Snapshot) {
	present := make(map[string]bool)
	for _, g := range snap.GPUs {
		if g.UUID == "" || g.IsInstance() {
			continue
		}
		present[g.UUID] = true
		if !slices.ContainsFunc(d.seen, func(s GPU) bool { return s.UUID == g.UUID }) && len(d.seen) < maxGPUs {
			d.seen = append(d.seen, GPU{Index: g.Index, UUID: g.UUID, Name: g.Name, BusID: g.BusID})
		}
	}
	for _, s := range d.seen {
		if !present[s.UUID] {
			snap.GPUs = append(snap.GPUs, s.bare(StateLost, CauseLost, "the driver does not list it any more"))
		}
	}
}

// note books what a failed call says about its GPU or the whole driver.
func (d *nvmlDriver) note(dev *device, f fn, ret nvml.Return) {
	cause := causeOf(ret)
	switch {
	case cause == CauseNoDriver:
		d.gone = &failure{cause, fmt.Sprintf("%s: %s", f, retText(ret))}
	case dev != nil && (cause == CauseLost || cause == CauseResetRequired):
		dev.lost = &failure{cause, fmt.Sprintf("%s: %s", f, retText(ret))}
	}
}

// ask makes one call about a GPU and turns the answer into a reading. Nothing is asked of a GPU or a driver that this pass
// has found lost.
func ask[V, T any](d *nvmlDriver, dev *device, f fn, get func() (V, nvml.Return), convert func(V) Reading[T]) Reading[T] {
	if lost := cmp.Or(d.gone, dev.lost); lost != nil {
		return Missing[T](lost.cause, lost.reason)
	}
	if !d.has[f] {
		return Missing[T](CauseNoSymbol, string(f)+" is not in this library")
	}
	var v V
	ret := d.call(f, dev.Index, func() (ret nvml.Return) { v, ret = get(); return ret })
	if ret != nvml.SUCCESS {
		d.note(dev, f, ret)
		return Missing[T](causeOf(ret), fmt.Sprintf("%s: %s", f, retText(ret)))
	}
	return convert(v)
}

// outdated reports whether a reading is missing because the library or the driver does not have this version of a call, so
// that an older one may have the value.
func outdated[T any](r Reading[T]) bool {
	switch r.Cause() {
	case CauseNoSymbol, CauseVersionMismatch, CauseNotSupported:
		return true
	}
	return false
}

// scaled converts whole driver units, such as milliwatts, to a float of the unit that the reading is in.
func scaled(unit float64) func(uint32) Reading[float64] {
	return func(v uint32) Reading[float64] {
		if v == math.MaxUint32 { // NVML_VALUE_NOT_AVAILABLE
			return Missing[float64](CauseNoData, "the driver has no value")
		}
		return Available(float64(v) * unit)
	}
}

// share converts percent.
func share(percent uint32) Reading[float64] {
	if percent > 100 {
		return Missing[float64](CauseInvalid, fmt.Sprintf("the driver says %d %%", percent))
	}
	return Available(float64(percent) / 100)
}

// hertz converts MHz.
func hertz(mhz uint32) Reading[uint64] {
	if mhz == math.MaxUint32 {
		return Missing[uint64](CauseNoData, "the driver has no value")
	}
	return Available(uint64(mhz) * 1_000_000)
}

// at returns the device of that index; nil and its entry when the driver does not give its handle.
func (d *nvmlDriver) at(i int) (*device, GPU) {
	for len(d.devices) <= i {
		d.devices = append(d.devices, &device{GPU: GPU{Index: len(d.devices)}})
	}
	dev := d.devices[i]
	dev.lost = nil
	handle := ask(d, dev, fnHandle, func() (nvml.Device, nvml.Return) { return d.lib.DeviceGetHandleByIndex(i) }, Available)
	h, ok := handle.Get()
	if !ok {
		if dev.lost != nil {
			return nil, d.lostNow(dev)
		}
		return nil, dev.bare(StateUnavailable, handle.Cause(), handle.Reason())
	}
	first := dev.handle == nil
	dev.handle = h
	if dev.UUID == "" {
		dev.UUID, _ = ask(d, dev, fnUUID, h.GetUUID, Available).Get()
	}
	if dev.Name == "" {
		dev.Name, _ = ask(d, dev, fnName, h.GetName, Available).Get()
	}
	if dev.BusID == "" {
		dev.BusID, _ = ask(d, dev, fnPCI, h.GetPciInfo, func(p nvml.PciInfo) Reading[string] { return Available(cString(p.BusId[:])) }).Get()
	}
	if first {
		d.register(dev)
	}
	return dev, GPU{}
}

func cString(chars []int8) string {
	var text []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return string(text)
}

// readGPU reads one GPU and its instances.
func (d *nvmlDriver) readGPU(i int) []GPU {
	dev, absent := d.at(i)
	if dev == nil {
		return []GPU{absent}
	}
	h := dev.handle
	g := GPU{Index: i, UUID: dev.UUID, Name: dev.Name, BusID: dev.BusID}
	g.Utilization = d.utilization(dev)
	g.Memory = d.memory(dev, h)
	throughput := func(counter nvml.PcieUtilCounter) Reading[float64] {
		return ask(d, dev, fnThroughput, func() (uint32, nvml.Return) { return h.GetPcieThroughput(counter) }, scaled(1000))
	}
	g.PCIe.Receive, g.PCIe.Transmit = throughput(nvml.PCIE_UTIL_RX_BYTES), throughput(nvml.PCIE_UTIL_TX_BYTES)
	g.PCIe.Replays = ask(d, dev, fnReplays, h.GetPcieReplayCounter, natural)
	g.Power.Draw = ask(d, dev, fnPower, h.GetPowerUsage, scaled(1e-3))
	g.Power.Limit = ask(d, dev, fnPowerLimit, h.GetEnforcedPowerLimit, scaled(1e-3))
	g.Temperature = d.temperature(dev)
	g.Clocks = d.clocks(dev)
	g.Health = d.health(dev)
	g.Processes = d.processes(dev, h)
	instances := d.instances(dev, &g)
	if dev.lost != nil {
		return []GPU{d.lostNow(dev)}
	}
	if d.wasLost[dev.key()] {
		delete(d.wasLost, dev.key())
		delete(d.xids, dev.key())
		if _, ok := dev.xid.Get(); ok {
			dev.xid = Available(Xid{})
		}
		g.Health.LastXid = dev.xid
	}
	g.judge()
	g.eachReading(func(fill func(Cause, string)) {
		fill(CauseNotSupported, "only MIG instances, or GPUs in MIG mode, have it")
	})
	return append([]GPU{g}, instances...)
}

func natural(n int) Reading[uint64] {
	if n < 0 {
		return Missing[uint64](CauseInvalid, fmt.Sprintf("the driver says %d", n))
	}
	return Available(uint64(n))
}

// lostNow is the entry of a GPU that this pass has found lost: what was read before is dropped.
func (d *nvmlDriver) lostNow(dev *device) GPU {
	d.wasLost[dev.key()] = true
	reason := dev.lost.reason
	if xid, ok := dev.xid.Get(); ok && xid.Code != 0 {
		reason += fmt.Sprintf("; its last Xid was %d", xid.Code)
	}
	return dev.bare(StateLost, dev.lost.cause, reason)
}

func (d *nvmlDriver) utilization(dev *device) Utilization {
	both := ask(d, dev, fnUtilization, dev.handle.GetUtilizationRates, Available)
	u, ok := both.Get()
	if !ok {
		return Utilization{GPU: missingAs[float64](both), Memory: missingAs[float64](both)}
	}
	return Utilization{GPU: share(u.Gpu), Memory: share(u.Memory)}
}

// memory reads version 2 of the struct, and version 1 where there is no other. h is dev's or an instance's of it.
func (d *nvmlDriver) memory(dev *device, h nvml.Device) Memory {
	v2 := ask(d, dev, fnMemoryV2, h.GetMemoryInfo_v2, func(m nvml.Memory_v2) Reading[nvml.Memory_v2] {
		if m.Used > m.Total || m.Free > m.Total || m.Reserved > m.Total {
			return Missing[nvml.Memory_v2](CauseInvalid, fmt.Sprintf("the driver says total %d, used %d, free %d, reserved %d bytes", m.Total, m.Used, m.Free, m.Reserved))
		}
		return Available(m)
	})
	if m, ok := v2.Get(); ok {
		return Memory{Total: Available(m.Total), Used: Available(m.Used), Free: Available(m.Free), Reserved: Available(m.Reserved)}
	}
	none := missingAs[uint64](v2)
	if !outdated(v2) {
		return Memory{none, none, none, none}
	}
	v1 := ask(d, dev, fnMemory, h.GetMemoryInfo, func(m nvml.Memory) Reading[nvml.Memory] {
		if m.Used > m.Total || m.Free > m.Total {
			return Missing[nvml.Memory](CauseInvalid, fmt.Sprintf("the driver says total %d, used %d, free %d bytes", m.Total, m.Used, m.Free))
		}
		return Available(m)
	})
	m, ok := v1.Get()
	if !ok {
		first := missingAs[uint64](v1)
		return Memory{first, first, first, none}
	}
	return Memory{Total: Available(m.Total), Used: Available(m.Used), Free: Available(m.Free), Reserved: none}
}

// temperature reads with the call of NVML 13, and with the one that it replaces where there is no other.
func (d *nvmlDriver) temperature(dev *device) Reading[float64] {
	r := ask(d, dev, fnTemperatureV, dev.handle.GetTemperatureV().V1, func(t nvml.Temperature) Reading[float64] { return Available(float64(t.Temperature)) })
	if !outdated(r) {
		return r
	}
	return ask(d, dev, fnTemperature, func() (uint32, nvml.Return) { return dev.handle.GetTemperature(nvml.TEMPERATURE_GPU) },
		func(t uint32) Reading[float64] { return Available(float64(int32(t))) })
}

func (d *nvmlDriver) clocks(dev *device) Clocks {
	now := func(t nvml.ClockType) Reading[uint64] {
		return ask(d, dev, fnClock, func() (uint32, nvml.Return) { return dev.handle.GetClockInfo(t) }, hertz)
	}
	most := func(t nvml.ClockType) Reading[uint64] {
		return ask(d, dev, fnClockMax, func() (uint32, nvml.Return) { return dev.handle.GetMaxClockInfo(t) }, hertz)
	}
	c := Clocks{SM: now(nvml.CLOCK_SM), SMMax: most(nvml.CLOCK_SM), Memory: now(nvml.CLOCK_MEM), MemoryMax: most(nvml.CLOCK_MEM)}
	reasons := func(mask uint64) Reading[Throttle] { return Available(throttleOf(mask)) }
	c.Throttling = ask(d, dev, fnEventReasons, dev.handle.GetCurrentClocksEventReasons, reasons)
	if outdated(c.Throttling) {
		c.Throttling = ask(d, dev, fnThrottleReasons, dev.handle.GetCurrentClocksThrottleReasons, reasons)
	}
	return c
}

func (d *nvmlDriver) health(dev *device) Health {
	h := dev.handle
	ecc := func(kind nvml.MemoryErrorType) Reading[uint64] {
		return ask(d, dev, fnECC, func() (uint64, nvml.Return) { return h.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) }, Available)
	}
	health := Health{Corrected: ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED), Uncorrected: ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED), LastXid: dev.xid}
	health.Rows = ask(d, dev, fnRows, func() (r Rows, ret nvml.Return) {
		corrected, uncorrected, pending, failed, ret := h.GetRemappedRows()
		return Rows{Corrected: uint64(uint32(corrected)), Uncorrected: uint64(uint32(uncorrected)), Pending: pending, Failed: failed}, ret
	}, Available)
	if _, ok := health.Rows.Get(); ok {
		health.Retired = Missing[uint64](CauseNotSupported, "this GPU remaps rows")
		return health
	}
	var pages uint64
	for _, cause := range []nvml.PageRetirementCause{nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR} {
		r := ask(d, dev, fnRetired, func() ([]uint64, nvml.Return) { return h.GetRetiredPages(cause) },
			func(addresses []uint64) Reading[uint64] { return Available(uint64(len(addresses))) })
		n, ok := r.Get()
		if !ok {
			health.Retired = r
			return health
		}
		pages += n
	}
	health.Retired = Available(pages)
	return health
}

// processes lists who holds memory. h is dev's or an instance's of it.
func (d *nvmlDriver) processes(dev *device, h nvml.Device) Reading[[]Process] {
	return ask(d, dev, fnProcesses, h.GetComputeRunningProcesses, func(infos []nvml.ProcessInfo) Reading[[]Process] {
		list := make([]Process, 0, min(len(infos), maxProcesses))
		for _, p := range infos[:min(len(infos), maxProcesses)] {
			memory := Available(p.UsedGpuMemory)
			if p.UsedGpuMemory == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				memory = Missing[uint64](CauseNoData, "the driver does not tell it here")
			}
			list = append(list, Process{PID: p.Pid, Memory: memory})
		}
		slices.SortFunc(list, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
		return Available(list)
	})
}
