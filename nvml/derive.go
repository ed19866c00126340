package nvml

import (
	"fmt"
	"time"
)

// ClockScale is the share of its highest SM clock at which a GPU works while something holds its clocks down, 0 < share <= 1,
// and 1 when nothing does. Prefill is bound by arithmetic, so its speed goes with this clock: a speed that was calibrated
// at scale s0 is to be multiplied by scale/s0 (long prefills run at the power limit, so s0 is often below 1).
//
// It is missing when the clocks or their reasons are, or when the GPU idles while something other than idleness limits it:
// an idle clock does not tell what the limit will be under load. For a MIG instance ask its parent.
func ClockScale(g GPU) Reading[float64] {
	reasons, ok := g.Clocks.Throttling.Get()
	if !ok {
		return missingAs[float64](g.Clocks.Throttling)
	}
	if !reasons.Slows() {
		return Available(1.0)
	}
	if reasons&ThrottleIdle != 0 {
		return Missing[float64](CauseNoData, "the GPU idles: its clock does not show what it would be under load")
	}
	clock, ok := g.Clocks.SM.Get()
	if !ok {
		return missingAs[float64](g.Clocks.SM)
	}
	most, ok := g.Clocks.SMMax.Get()
	switch {
	case !ok:
		return missingAs[float64](g.Clocks.SMMax)
	case clock == 0 || most == 0:
		return Missing[float64](CauseInvalid, fmt.Sprintf("the driver says an SM clock of %d of %d Hz", clock, most))
	}
	return Available(min(1, float64(clock)/float64(most)))
}

// MemoryVeto reports whether a GPU, or a MIG instance, has no room for need more bytes: true forbids the plan, false says
// nothing for it. need is what will be allocated on the device beyond what its engine holds already: an engine takes its KV
// pool when it starts, so that blocks that land in the pool need nothing. It is missing when the free memory is.
func MemoryVeto(g GPU, need uint64) Reading[bool] {
	free, ok := g.Memory.Free.Get()
	if !ok {
		return missingAs[bool](g.Memory.Free)
	}
	return Available(free < need)
}

// SpreadFactor is by how much the spread of a predicted compute time is to be widened for what else runs on the GPU: 1 when
// idle, rising with utilization to 2 when some kernel always runs. It is a choice and no measurement: utilization says that
// something runs and not how much of the GPU is left, so it widens the spread and never moves the mean. Missing when the
// utilization is; for a MIG instance ask its parent.
func SpreadFactor(g GPU) Reading[float64] {
	busy, ok := g.Utilization.GPU.Get()
	if !ok {
		return missingAs[float64](g.Utilization.GPU)
	}
	return Available(1 + min(1, max(0, busy)))
}

// Fresh returns the GPUs of a snapshot that is available and at most maxAge old, else nil: old readings are unknown, not
// zero. The snapshot keeps its ownership of them.
func (s Snapshot) Fresh(maxAge time.Duration) []GPU {
	if s.State != StateAvailable || s.Age > maxAge {
		return nil
	}
	return s.GPUs
}
