//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const scenarioHidden = "hidden symbols"

// scenarios run in processes of their own.
var scenarios = map[string]func(*testing.T, *stub){
	"values":                 scenarioValues,
	"mig":                    scenarioMIG,
	"no gpu":                 scenarioNoGPU,
	"errors of single calls": scenarioErrors,
	"lost":                   scenarioLost,
	"vanished":               scenarioVanished,
	"initialising fails":     scenarioInit,
	"restart":                scenarioRestart,
	"hang":                   scenarioHang,
	"hang while opening":     scenarioHangInit,
	"xid":                    scenarioXid,
	"no events":              scenarioNoEvents,
	"implausible":            scenarioImplausible,
	"not a library":          scenarioNotALibrary,
	"many samplers":          scenarioMany,
	scenarioHidden:           scenarioMissing,
}

// twoGPUs differ: the second is older, and knows less.
func twoGPUs() map[string]int64 {
	return map[string]int64{
		"gpus": 2, "driver": 95,
		"utilization.0": 97, "memory_utilization.0": 41, "utilization.1": 0, "memory_utilization.1": 100,
		"total.0": 150 << 30, "used.0": 100 << 30, "free.0": 49 << 30, "reserved.0": 1 << 30,
		"total.1": 16 << 30, "used.1": 3 << 30, "free.1": 12 << 30, "reserved.1": 1 << 30,
		"nvmlDeviceGetMemoryInfo_v2.1": 25, // argument version mismatch: the struct of version 2 is unknown
		"pcie_tx.0":                    1500, "pcie_rx.0": 25_000_000, "replays.0": 3,
		"nvmlDeviceGetPcieThroughput.1": 3,
		"power.0":                       612_345, "power_limit.0": 700_000, "power.1": 20_500, "nvmlDeviceGetEnforcedPowerLimit.1": 4,
		"temperature.0": 71, "nvmlDeviceGetTemperatureV.1": 13, "old_temperature.1": 35,
		"sm.0": 1500, "sm_max.0": 2000, "mem.0": 2619, "mem_max.0": 3201, "sm.1": 345, "sm_max.1": 1590, "mem.1": 405, "mem_max.1": 5001,
		"reasons.0": 4 | 0x20 | 1<<40, "nvmlDeviceGetCurrentClocksEventReasons.1": 13, "old_reasons.1": 1,
		"corrected.0": 12, "uncorrected.0": 0, "nvmlDeviceGetTotalEccErrors.1": 3,
		"rows_corrected.0": 2, "rows_uncorrected.0": 1, "nvmlDeviceGetRemappedRows.1": 3, "retired_single.1": 3, "retired_double.1": 2,
		"processes.0": 3, "processes.1": 0, "mig.0": 0,
	}
}

func wantTwoGPUs() []GPU {
	const mib = 1 << 30
	instance := func(g *GPU) {
		why := "only MIG instances, or GPUs in MIG mode, have it"
		g.MIG.Instances = Missing[int](CauseNotSupported, why)
		g.MIG.GPUInstance, g.MIG.ComputeInstance, g.MIG.Multiprocessors = g.MIG.Instances, g.MIG.Instances, g.MIG.Instances
	}
	a := GPU{
		Index: 0, UUID: "GPU-0", Name: "Stub 0", BusID: "00000000:10:00.0", State: StateAvailable,
		Utilization: Utilization{GPU: Available(0.97), Memory: Available(0.41)},
		Memory:      Memory{Total: Available[uint64](150 * mib), Used: Available[uint64](100 * mib), Free: Available[uint64](49 * mib), Reserved: Available[uint64](mib)},
		PCIe:        PCIe{Transmit: Available(1.5e6), Receive: Available(25e9), Replays: Available[uint64](3)},
		Power:       Power{Draw: Available(612.345), Limit: Available(700.0)},
		Clocks:      Clocks{SM: Available[uint64](1.5e9), SMMax: Available[uint64](2e9), Memory: Available[uint64](2.619e9), MemoryMax: Available[uint64](3.201e9), Throttling: Available(ThrottleSoftwarePower | ThrottleSoftwareThermal | ThrottleOther)},
		Temperature: Available(71.0),
		Health: Health{
			Corrected: Available[uint64](12), Uncorrected: Available[uint64](0), LastXid: Available(Xid{}),
			Rows: Available(Rows{Corrected: 2, Uncorrected: 1}), Retired: Missing[uint64](CauseNotSupported, "this GPU remaps rows"),
		},
		MIG: MIG{Enabled: Available(false)},
		Processes: Available([]Process{
			{98, Available[uint64](3000)}, {99, Missing[uint64](CauseNoData, "the driver does not tell it here")}, {100, Available[uint64](1000)},
		}),
	}
	none := func(f fn) Reading[uint64] {
		return Missing[uint64](CauseNotSupported, string(f)+": not supported (code 3)")
	}
	b := GPU{
		Index: 1, UUID: "GPU-1", Name: "Stub 1", BusID: "00000000:11:00.0", State: StateAvailable,
		Utilization: Utilization{GPU: Available(0.0), Memory: Available(1.0)},
		Memory: Memory{
			Total: Available[uint64](16 * mib), Used: Available[uint64](4 * mib), Free: Available[uint64](12 * mib),
			Reserved: Missing[uint64](CauseVersionMismatch, "nvmlDeviceGetMemoryInfo_v2: the driver does not know this version of the struct (code 25)"),
		},
		PCIe:        PCIe{Transmit: missingAs[float64](none(fnThroughput)), Receive: missingAs[float64](none(fnThroughput)), Replays: Available[uint64](0)},
		Power:       Power{Draw: Available(20.5), Limit: Missing[float64](CauseNoPermission, "nvmlDeviceGetEnforcedPowerLimit: no permission (code 4)")},
		Clocks:      Clocks{SM: Available[uint64](345e6), SMMax: Available[uint64](1.59e9), Memory: Available[uint64](405e6), MemoryMax: Available[uint64](5.001e9), Throttling: Available(ThrottleIdle)},
		Temperature: Available(35.0),
		Health:      Health{Corrected: none(fnECC), Uncorrected: none(fnECC), LastXid: Available(Xid{}), Rows: missingAs[Rows](none(fnRows)), Retired: Available[uint64](5)},
		MIG:         MIG{Enabled: missingAs[bool](none(fnMIGMode))},
		Processes:   Available([]Process{}),
	}
	instance(&a)
	instance(&b)
	return []GPU{a, b}
}

// loose compares floats to 1 part in 10^12: they come from whole milliwatts and percent.
var loose = cmpopts.EquateApprox(1e-12, 0)

func scenarioValues(t *testing.T, s *stub) {
	s.set(t, twoGPUs())
	sampler := s.open(t)
	snap := mustSample(t, sampler)
	if diff := cmp.Diff(wantTwoGPUs(), snap.GPUs, all, loose); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if got, want := snap.String(), "available: 2 GPU(s), driver 580.95"; got != want || snap.Library != "13.580.1" {
		t.Errorf("%q, library %q, want %q", got, snap.Library, want)
	}
	for i, want := range []float64{0.75, 1} {
		if got, ok := ClockScale(snap.GPUs[i]).Get(); !ok || got != want {
			t.Errorf("clock scale of %d: %v, %v", i, got, ok)
		}
	}
	s.set(t, map[string]int64{"power.0": 1000})
	until(t, sampler, "sampled again", func(snap Snapshot) bool { v, _ := snap.GPUs[0].Power.Draw.Get(); return v == 1 })
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
	if in, out := s.calls(t, "nvmlInit_v2"), s.calls(t, "nvmlShutdown"); in != 1 || out != 1 {
		t.Errorf("%d times initialised, %d times shut down", in, out)
	}
	if n := s.calls(t, "nvmlDeviceGetTemperature"); n == 0 {
		t.Error("the old temperature call was not used for the old GPU")
	}
}

func scenarioMIG(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 2, "mig.0": 2, "total": 80 << 30, "used": 40 << 30, "free": 39 << 30, "reserved": 1 << 30, "processes": 1, "nvmlDeviceGetUtilizationRates.0": 3})
	sampler := s.open(t)
	defer sampler.Close()
	snap := mustSample(t, sampler)
	if got, want := snap.String(), "available: 2 GPU(s), 2 MIG instance(s), driver 580.1"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	parent, a, b, other := snap.GPUs[0], snap.GPUs[1], snap.GPUs[2], snap.GPUs[3]
	if on, _ := parent.MIG.Enabled.Get(); !on || parent.IsInstance() || other.IsInstance() || other.Index != 1 {
		t.Errorf("parent %+v, other %+v", parent.MIG, other)
	}
	if n, ok := parent.MIG.Instances.Get(); !ok || n != 2 {
		t.Errorf("instances: %v", parent.MIG.Instances)
	}
	if parent.Utilization.GPU.Cause() != CauseNotSupported {
		t.Errorf("utilization of a GPU in MIG mode: %v", parent.Utilization.GPU)
	}
	for i, g := range []GPU{a, b} {
		id, _ := g.MIG.GPUInstance.Get()
		total, _ := g.Memory.Total.Get()
		list, _ := g.Processes.Get()
		sms, _ := g.MIG.Multiprocessors.Get()
		if g.Parent != "GPU-0" || g.UUID != fmt.Sprintf("MIG-0-%d", i+1) || g.Index != 0 || id != 11+i || total != 10<<30 || len(list) != 1 || sms != 16 || g.State != StateAvailable {
			t.Errorf("instance %d: %+v", i, g)
		}
		if got := g.Temperature; got.Cause() != CauseNotSupported || got.Reason() != "read it from the parent GPU" {
			t.Errorf("temperature of an instance: %v", got)
		}
	}
	// An instance that goes and one that cannot be read.
	s.set(t, map[string]int64{"mig.0": 1})
	until(t, sampler, "one instance", func(s Snapshot) bool { return len(s.GPUs) == 3 })
	s.set(t, map[string]int64{"nvmlDeviceGetMigDeviceHandleByIndex": 4})
	snap = until(t, sampler, "no permission", func(s Snapshot) bool { return len(s.GPUs) == 2 })
	if got := snap.GPUs[0].MIG.Instances; got.Cause() != CauseNoPermission {
		t.Errorf("instances that may not be read: %v", got)
	}
	s.unset(t, "nvmlDeviceGetMigDeviceHandleByIndex")
	s.set(t, map[string]int64{"mig_max": 1_000_000})
	snap = until(t, sampler, "out of bounds", func(s Snapshot) bool { return s.GPUs[0].MIG.Instances.Cause() == CauseInvalid })
	if len(snap.GPUs) != 2 {
		t.Errorf("%d entries", len(snap.GPUs))
	}
}

func scenarioNoGPU(t *testing.T, s *stub) {
	sampler := s.open(t)
	defer sampler.Close()
	snap := mustSample(t, sampler)
	if snap.State != StateAvailable || len(snap.GPUs) != 0 || snap.String() != "available: 0 GPU(s), driver 580.1" {
		t.Errorf("%+v", snap)
	}
}

// Each call about a GPU fails alone: its readings say why, and all others stay.
func scenarioErrors(t *testing.T, s *stub) {
	base := map[string]int64{"gpus": 1, "mig": 0, "sm": 1, "sm_max": 1}
	s.set(t, base)
	sampler := s.open(t)
	defer sampler.Close()
	codes := map[int64]Cause{3: CauseNotSupported, 4: CauseNoPermission, 17: CauseNoPermission, 27: CauseNoData, 18: CauseVersionMismatch, 2: CauseFailed, 999: CauseFailed, 12345: CauseFailed, -7: CauseFailed}
	for f, get := range readings() {
		for code, want := range codes {
			s.set(t, map[string]int64{string(symbolOf(f)): code})
			snap := until(t, sampler, fmt.Sprintf("%s with code %d", f, code), func(snap Snapshot) bool {
				return available(snap) && len(snap.GPUs) == 1 && (get(snap.GPUs[0]) == want || fallsBack(f, code))
			})
			g := snap.GPUs[0]
			if g.State != StateAvailable {
				t.Errorf("%s with code %d: GPU is %v", f, code, g.State)
			}
			s.unset(t, string(symbolOf(f)))
		}
		until(t, sampler, "well again after "+string(f), func(snap Snapshot) bool { return get(snap.GPUs[0]) == CauseNone })
	}
}

// fallsBack reports whether an older call has the value when f fails with that code.
func fallsBack(f fn, code int64) bool {
	return (f == fnTemperatureV || f == fnMemoryV2 || f == fnEventReasons) && (code == 3 || code == 18)
}

// symbolOf is the symbol of f that the whole stub makes the binding call.
func symbolOf(f fn) string { return symbols()[f][0] }

// readings says which reading hangs on which function, by its cause.
func readings() map[fn]func(GPU) Cause {
	return map[fn]func(GPU) Cause{
		fnUtilization:  func(g GPU) Cause { return g.Utilization.GPU.Cause() },
		fnThroughput:   func(g GPU) Cause { return g.PCIe.Receive.Cause() },
		fnReplays:      func(g GPU) Cause { return g.PCIe.Replays.Cause() },
		fnPower:        func(g GPU) Cause { return g.Power.Draw.Cause() },
		fnPowerLimit:   func(g GPU) Cause { return g.Power.Limit.Cause() },
		fnTemperatureV: func(g GPU) Cause { return g.Temperature.Cause() },
		fnMemoryV2:     func(g GPU) Cause { return g.Memory.Free.Cause() },
		fnClock:        func(g GPU) Cause { return g.Clocks.SM.Cause() },
		fnClockMax:     func(g GPU) Cause { return g.Clocks.MemoryMax.Cause() },
		fnEventReasons: func(g GPU) Cause { return g.Clocks.Throttling.Cause() },
		fnECC:          func(g GPU) Cause { return g.Health.Uncorrected.Cause() },
		fnRows:         func(g GPU) Cause { return g.Health.Rows.Cause() },
		fnMIGMode:      func(g GPU) Cause { return g.MIG.Enabled.Cause() },
		fnProcesses:    func(g GPU) Cause { return g.Processes.Cause() },
	}
}

func scenarioLost(t *testing.T, s *stub) {
	s.set(t, twoGPUs())
	sampler := s.open(t)
	defer sampler.Close()
	for _, tc := range []struct {
		call  string
		code  int64
		cause Cause
		state State
	}{
		{"nvmlDeviceGetPowerUsage.1", 15, CauseLost, StateLost},
		{"nvmlDeviceGetComputeRunningProcesses_v3.1", 15, CauseLost, StateLost},
		{"nvmlDeviceGetUtilizationRates.1", 16, CauseResetRequired, StateLost},
		{"nvmlDeviceGetHandleByIndex_v2.1", 15, CauseLost, StateLost},
		{"nvmlDeviceGetHandleByIndex_v2.1", 4, CauseNoPermission, StateUnavailable},
		{"nvmlDeviceGetHandleByIndex_v2.1", 999, CauseFailed, StateUnavailable},
	} {
		s.set(t, map[string]int64{tc.call: tc.code})
		snap := until(t, sampler, tc.call, func(snap Snapshot) bool {
			return available(snap) && snap.GPUs[1].State == tc.state && snap.GPUs[1].Cause == tc.cause
		})
		g := snap.GPUs[1]
		for _, cause := range []Cause{g.Utilization.GPU.Cause(), g.Power.Draw.Cause(), g.Memory.Total.Cause(), g.Processes.Cause(), g.MIG.Enabled.Cause()} {
			if cause != tc.cause {
				t.Errorf("%s: a reading's cause is %v, want %v", tc.call, cause, tc.cause)
			}
		}
		if snap.GPUs[0].State != StateAvailable {
			t.Errorf("%s: the other GPU is %v", tc.call, snap.GPUs[0].State)
		}
		s.unset(t, tc.call)
		snap = until(t, sampler, "found again", func(snap Snapshot) bool {
			return available(snap) && len(snap.GPUs) == 2 && snap.GPUs[1].State == StateAvailable
		})
		if diff := cmp.Diff(wantTwoGPUs(), snap.GPUs, all, loose); diff != "" {
			t.Errorf("%s, found again (-want +got):\n%s", tc.call, diff)
		}
	}
}

// The driver lists one GPU less: the one that is gone is lost, under its identity, also after it was initialised again.
func scenarioVanished(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 2})
	sampler := s.open(t)
	defer sampler.Close()
	// GPU 0 goes, and the other takes its index.
	s.set(t, map[string]int64{"gpus": 1, "uuid.0": 1, "down": 1})
	until(t, sampler, "down", func(s Snapshot) bool { return !available(s) })
	s.unset(t, "down")
	until(t, sampler, "lost", func(s Snapshot) bool {
		return len(s.GPUs) == 2 && s.GPUs[0].UUID == "GPU-1" && s.GPUs[0].State == StateAvailable && s.GPUs[1].UUID == "GPU-0" && s.GPUs[1].State == StateLost && s.GPUs[1].Name == "Stub 0"
	})
	inits := s.calls(t, "nvmlInit_v2")
	until(t, sampler, "looked for", func(Snapshot) bool { return s.calls(t, "nvmlInit_v2") > inits+1 })
	s.unset(t, "uuid.0")
	s.set(t, map[string]int64{"gpus": 2})
	until(t, sampler, "back", func(s Snapshot) bool {
		return len(s.GPUs) == 2 && s.GPUs[0].UUID == "GPU-0" && s.GPUs[0].State == StateAvailable && s.GPUs[1].State == StateAvailable
	})
}

func scenarioInit(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 1, "nvmlInit_v2": 9})
	sampler := s.open(t)
	for _, tc := range []struct {
		code  int64
		cause Cause
		fix   string
	}{
		{9, CauseNoDriver, "modprobe nvidia"},
		{4, CauseNoPermission, "/dev/nvidiactl"},
		{18, CauseVersionMismatch, "restart this process"},
		{12, CauseNoLibrary, "nvmlInit"},
		{28, CauseLost, "no GPU was found"},
		{999, CauseFailed, "unknown error (code 999)"},
		{77, CauseFailed, "error (code 77)"},
	} {
		s.set(t, map[string]int64{"nvmlInit_v2": tc.code})
		snap := until(t, sampler, tc.cause.String(), func(snap Snapshot) bool {
			return snap.State == StateUnavailable && snap.Cause == tc.cause && strings.Contains(snap.Reason, tc.fix)
		})
		if len(snap.GPUs) != 0 || snap.Driver != "" {
			t.Errorf("%+v", snap)
		}
	}
	for _, call := range s.log(t) {
		if call != "nvmlInit_v2" {
			t.Errorf("%s was called and the library was not initialised", call)
		}
	}
	s.unset(t, "nvmlInit_v2")
	until(t, sampler, "available", available)
	// Counting the GPUs fails: that is of the driver as a whole.
	for code, cause := range map[int64]Cause{1: CauseNoDriver, 4: CauseNoPermission, 999: CauseFailed} {
		s.set(t, map[string]int64{"nvmlDeviceGetCount_v2": code})
		until(t, sampler, cause.String(), func(snap Snapshot) bool { return snap.State == StateUnavailable && snap.Cause == cause })
	}
	s.unset(t, "nvmlDeviceGetCount_v2")
	// So is a driver that goes away in the middle of a pass.
	for _, call := range []string{"nvmlDeviceGetPowerUsage", "nvmlEventSetWait_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMigMode"} {
		for _, code := range []int64{1, 9} {
			until(t, sampler, "available", available)
			s.set(t, map[string]int64{call: code})
			snap := until(t, sampler, call+" fails", func(snap Snapshot) bool { return snap.State == StateUnavailable && snap.Cause == CauseNoDriver })
			if !strings.HasPrefix(call, snap.Reason[:strings.IndexByte(snap.Reason, ':')]) || len(snap.GPUs) != 0 {
				t.Errorf("%s: %+v", call, snap)
			}
			s.unset(t, call)
		}
	}
	s.set(t, map[string]int64{"gpus": 1 << 20})
	until(t, sampler, "too many", func(snap Snapshot) bool { return snap.Cause == CauseInvalid })
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
}

func scenarioRestart(t *testing.T, s *stub) {
	s.set(t, twoGPUs())
	sampler := s.open(t)
	for range 3 {
		s.set(t, map[string]int64{"down": 1})
		snap := until(t, sampler, "down", func(snap Snapshot) bool { return snap.State == StateUnavailable })
		if snap.Cause != CauseNoDriver || snap.Reason == "" || len(snap.GPUs) != 0 {
			t.Errorf("%+v", snap)
		}
		s.unset(t, "down")
		snap = until(t, sampler, "up", available)
		if diff := cmp.Diff(wantTwoGPUs(), snap.GPUs, all, loose); diff != "" {
			t.Errorf("after a restart (-want +got):\n%s", diff)
		}
	}
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
	if n := s.calls(t, "nvmlInit_v2"); n < 4 {
		t.Errorf("%d times initialised", n)
	}
}

func scenarioHang(t *testing.T, s *stub) {
	s.set(t, twoGPUs())
	cfg := s.config()
	cfg.Timeout = 50 * time.Millisecond
	sampler, err := OpenWith(cfg)
	if err != nil {
		t.Fatal(err)
	}
	until(t, sampler, "available", available)
	s.set(t, map[string]int64{"hang.nvmlDeviceGetUtilizationRates.1": 1})
	snap := until(t, sampler, "hung", func(snap Snapshot) bool { return snap.State == StateHung })
	if snap.Cause != CauseHung || !strings.Contains(snap.Reason, "nvmlDeviceGetUtilizationRates of GPU 1 has not returned") {
		t.Errorf("%+v", snap)
	}
	if len(snap.GPUs) != 2 || snap.GPUs[0].UUID != "GPU-0" || snap.GPUs[0].Power.Draw.Cause() != CauseHung || snap.Age <= 0 {
		t.Errorf("hung GPUs: %+v", snap.GPUs)
	}
	for range 1000 { // the call hangs until all of them have returned
		_ = mustSample(t, sampler)
	}
	threads, _ := os.ReadDir("/proc/self/task")
	until(t, sampler, "older", func(snap Snapshot) bool { return snap.Age > 300*time.Millisecond })
	more, _ := os.ReadDir("/proc/self/task")
	if n := s.calls(t, "HANG"); n != 1 || len(more) > len(threads)+4 {
		t.Errorf("%d calls hang, want 1; threads %d, then %d", n, len(threads), len(more))
	}
	s.unset(t, "hang.nvmlDeviceGetUtilizationRates.1")
	snap = until(t, sampler, "available again", available)
	if diff := cmp.Diff(wantTwoGPUs(), snap.GPUs, all, loose); diff != "" {
		t.Errorf("after the call returned (-want +got):\n%s", diff)
	}
	s.set(t, map[string]int64{"hang.nvmlDeviceGetPowerUsage.0": 1})
	until(t, sampler, "hung again", func(snap Snapshot) bool { return snap.State == StateHung })
	if err := sampler.Close(); !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), "nvmlDeviceGetPowerUsage of GPU 0") {
		t.Errorf("close: %v", err)
	}
	if _, err := sampler.Sample(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func scenarioHangInit(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 1, "hang.nvmlInit_v2": 1})
	at := time.Now()
	cfg := s.config()
	cfg.Timeout = 50 * time.Millisecond
	sampler, err := OpenWith(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(at); took < openWait || took > openWait+20*time.Second {
		t.Errorf("Open took %v", took)
	}
	if snap := mustSample(t, sampler); snap.State != StateHung || !strings.Contains(snap.Reason, "nvmlInit") {
		t.Errorf("%+v", snap)
	}
	s.unset(t, "hang.nvmlInit_v2")
	until(t, sampler, "available", available)
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
}

func scenarioXid(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 2})
	sampler := s.open(t)
	defer sampler.Close()
	last := func(snap Snapshot, gpu int) Xid { x, _ := snap.GPUs[gpu].Health.LastXid.Get(); return x }
	snap := mustSample(t, sampler)
	if x, ok := snap.GPUs[1].Health.LastXid.Get(); !ok || x != (Xid{}) {
		t.Errorf("before any event: %v, %v", x, ok)
	}
	began := time.Now()
	s.set(t, map[string]int64{"event_gpu": 1, "event_code": 31, "events": 3})
	snap = until(t, sampler, "three events", func(snap Snapshot) bool { return last(snap, 1).Count == 3 })
	if x := last(snap, 1); x.Code != 31 || x.At.Before(began) || snap.GPUs[1].State != StateAvailable || last(snap, 0) != (Xid{}) {
		t.Errorf("a program's fault: %+v, %v; the other: %+v", x, snap.GPUs[1].State, last(snap, 0))
	}
	s.set(t, map[string]int64{"event_gpu": 0, "event_code": 79, "events": 4})
	snap = until(t, sampler, "a hardware fault", func(snap Snapshot) bool { return last(snap, 0).Code == 79 })
	if g := snap.GPUs[0]; g.State != StateDegraded || !strings.Contains(g.Reason, "Xid 79") || snap.GPUs[1].State != StateAvailable {
		t.Errorf("%v %q, the other %v", g.State, g.Reason, snap.GPUs[1].State)
	}
	s.set(t, map[string]int64{"nvmlDeviceGetPowerUsage.0": 15})
	snap = until(t, sampler, "lost", func(snap Snapshot) bool { return snap.GPUs[0].State == StateLost })
	if got, want := snap.GPUs[0].Reason, "nvmlDeviceGetPowerUsage: the GPU is lost (code 15); its last Xid was 79"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// The library is initialised again for it. It begins anew, and the record of the other stays.
	inits := s.calls(t, "nvmlInit_v2")
	until(t, sampler, "looked for", func(Snapshot) bool { return s.calls(t, "nvmlInit_v2") > inits+1 })
	s.unset(t, "nvmlDeviceGetPowerUsage.0")
	snap = until(t, sampler, "well again", func(snap Snapshot) bool { return snap.GPUs[0].State == StateAvailable })
	if last(snap, 0) != (Xid{}) || last(snap, 1).Count != 3 || last(snap, 1).Code != 31 {
		t.Errorf("after a reset: %+v; the other: %+v", last(snap, 0), last(snap, 1))
	}
	// Events of other types do not count; more than one pass takes come with the next.
	s.set(t, map[string]int64{"event_type": 16, "events": 5})
	s.set(t, map[string]int64{"event_type": 8, "event_gpu": 1, "event_code": 43, "events": 5 + 2*maxEvents})
	snap = until(t, sampler, "many events", func(snap Snapshot) bool { return last(snap, 1).Count >= 3+2*maxEvents })
	if x := last(snap, 1); x.Code != 43 || x.Count > 4+2*maxEvents {
		t.Errorf("%+v", x)
	}
	s.set(t, map[string]int64{"down": 1, "events": 0}) // what was not delivered is forgotten, as by a driver
	until(t, sampler, "down", func(snap Snapshot) bool { return snap.State == StateUnavailable })
	s.unset(t, "down")
	snap = until(t, sampler, "up", available)
	if x, ok := snap.GPUs[1].Health.LastXid.Get(); !ok || x != (Xid{}) {
		t.Errorf("after a restart of the driver: %+v, %v", x, ok)
	}
}

func scenarioNoEvents(t *testing.T, s *stub) {
	for _, tc := range []struct {
		call  string
		code  int64
		cause Cause
	}{
		{"nvmlEventSetCreate", 3, CauseNotSupported},
		{"nvmlDeviceGetSupportedEventTypes", 3, CauseNotSupported},
		{"event_types", 0x17, CauseNotSupported},
		{"nvmlDeviceRegisterEvents", 4, CauseNoPermission},
		{"nvmlEventSetWait_v2", 3, CauseNotSupported},
	} {
		s.set(t, map[string]int64{"gpus": 1, tc.call: tc.code})
		sampler := s.open(t)
		snap := until(t, sampler, tc.call, func(snap Snapshot) bool { return snap.GPUs[0].Health.LastXid.Cause() == tc.cause })
		if g := snap.GPUs[0]; g.State != StateAvailable || g.Power.Draw.State() != StateAvailable {
			t.Errorf("%s: %+v", tc.call, g)
		}
		if err := sampler.Close(); err != nil {
			t.Error(err)
		}
		s.unset(t, tc.call)
	}
}

func scenarioImplausible(t *testing.T, s *stub) {
	s.set(t, map[string]int64{
		"gpus": 2, "utilization.0": 101, "memory_utilization.0": 1<<32 - 1, "used.0": 2 << 30, "power.0": 1<<32 - 1,
		"sm.0": 1<<32 - 1, "replays.0": 7,
	})
	sampler := s.open(t)
	defer sampler.Close()
	snap := mustSample(t, sampler)
	g := snap.GPUs[0]
	got := []Cause{g.Utilization.GPU.Cause(), g.Utilization.Memory.Cause(), g.Memory.Total.Cause(), g.Memory.Used.Cause(), g.Power.Draw.Cause(), g.Clocks.SM.Cause(), g.PCIe.Replays.Cause()}
	want := []Cause{CauseInvalid, CauseInvalid, CauseInvalid, CauseInvalid, CauseNoData, CauseNoData, CauseNone}
	if !slices.Equal(got, want) {
		t.Errorf("causes %v, want %v", got, want)
	}
	// A library that says there are more processes than it was given room for: the binding panics, and nothing else does.
	s.set(t, map[string]int64{"processes_lie.1": 1})
	snap = until(t, sampler, "a panic of the binding", func(snap Snapshot) bool { return snap.State == StateUnavailable })
	if snap.Cause != CauseFailed || !strings.Contains(snap.Reason, "the binding panicked") {
		t.Errorf("%+v", snap)
	}
	s.unset(t, "processes_lie.1")
	until(t, sampler, "available", available)
}

func scenarioNotALibrary(t *testing.T, s *stub) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, dir, filepath.Join(dir, "absent.so"), "libkvferry-absent.so"} {
		sampler, err := OpenWith(Config{Library: path})
		if err != nil {
			t.Fatal(err)
		}
		if snap := mustSample(t, sampler); snap.State != StateUnavailable || snap.Cause != CauseNoLibrary || !strings.Contains(snap.Reason, filepath.Base(path)) {
			t.Errorf("%s: %+v", path, snap)
		}
		if err := sampler.Close(); err != nil {
			t.Error(err)
		}
	}
	// A library of something else: no function of it may be called.
	sampler, err := OpenWith(Config{Library: "libc.so.6"})
	if err != nil {
		t.Fatal(err)
	}
	if snap := mustSample(t, sampler); snap.Cause != CauseNoSymbol || !strings.Contains(snap.Reason, "libc.so.6 has no nvml") {
		t.Errorf("%+v", snap)
	}
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
	// What failed does not stand in the way of what works, and a second one is refused.
	sampler = s.open(t)
	defer sampler.Close()
	until(t, sampler, "available", available)
	second, err := OpenWith(Config{Library: text})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if snap := mustSample(t, second); snap.Cause != CauseFailed || !strings.Contains(snap.Reason, "already loaded") {
		t.Errorf("%+v", snap)
	}
}

func scenarioMany(t *testing.T, s *stub) {
	s.set(t, twoGPUs())
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 3 {
				sampler, err := OpenWith(s.config())
				if err != nil {
					t.Error(err)
					return
				}
				snap, err := sampler.Sample(t.Context())
				if err != nil || snap.State != StateAvailable || !cmp.Equal(wantTwoGPUs(), snap.GPUs, all, loose) {
					t.Errorf("sampler %d: %v, %v", i, snap, err)
				}
				if err := sampler.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if in, out := s.calls(t, "nvmlInit_v2"), s.calls(t, "nvmlShutdown"); in != 18 || out != 18 {
		t.Errorf("%d times initialised, %d times shut down", in, out)
	}
}

// scenarioMissing runs with a library that lacks symbols. That the process is there at the end is the test; and what hangs
// on an absent function says so.
func scenarioMissing(t *testing.T, s *stub) {
	s.set(t, map[string]int64{"gpus": 2, "mig.0": 1, "events": 1, "event_code": 31, "old_temperature": 50, "temperature": 50})
	absent := map[fn]bool{}
	for f, names := range symbols() {
		absent[f] = !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(s.hidden, n) })
	}
	sampler := s.open(t)
	snap := mustSample(t, sampler)
	for _, f := range []fn{fnInit, fnShutdown, fnCount, fnHandle} {
		if absent[f] {
			if snap.State != StateUnavailable || snap.Cause != CauseNoSymbol || !strings.Contains(snap.Reason, string(f)) {
				t.Errorf("%+v", snap)
			}
			if log := s.log(t); len(log) > 0 {
				t.Errorf("called: %v", log)
			}
			if err := sampler.Close(); err != nil {
				t.Error(err)
			}
			return
		}
	}
	whole := slices.DeleteFunc(slices.Clone(snap.GPUs), GPU.IsInstance)
	if snap.State != StateAvailable || len(whole) != 2 {
		t.Fatalf("%+v", snap)
	}
	older := map[fn]fn{fnTemperatureV: fnTemperature, fnMemoryV2: fnMemory, fnEventReasons: fnThrottleReasons}
	for f, get := range readings() {
		want := CauseNone
		if o, ok := older[f]; absent[f] && (!ok || absent[o]) {
			want = CauseNoSymbol
		}
		if got := get(snap.GPUs[0]); got != want && f != fnMIGMode {
			t.Errorf("%s: cause %v, want %v", f, got, want)
		}
	}
	// Two passes and a drained event later everything has been called.
	taken := snap.Taken
	until(t, sampler, "sampled again", func(snap Snapshot) bool { return available(snap) && snap.Taken.After(taken) })
	if err := sampler.Close(); err != nil {
		t.Error(err)
	}
	if absent[fnUUID] != (snap.GPUs[0].UUID == "") || absent[fnDriverVersion] != (snap.Driver == "") {
		t.Errorf("UUID %q, driver %q", snap.GPUs[0].UUID, snap.Driver)
	}
}
