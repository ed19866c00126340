package planner

// MM1 is the M/M/1 queue of the base model: Poisson arrivals, exponential service, one server. It stands for work that
// cannot be seen; a visible backlog is exact and goes into Compute.QueueSeconds or Link.EgressBacklog instead. When both
// are given they add.
type MM1 struct {
	// ServiceRate is μ, in requests a second. Above 0; zero makes the queue unknown, which is refused.
	ServiceRate float64
	// Utilization is ρ, arrival rate over service rate, from 0. At 1 or above the queue grows without end: Wait has no
	// answer and the mode that waits in this queue is refused with [RefusalUnstable].
	Utilization float64
}

// Wait returns the mean time in seconds that an arrival waits before its service starts, ρ/(μ(1−ρ)). ok is false when
// the queue has no steady state (ρ ≥ 1) or q is not valid.
func (q MM1) Wait() (seconds float64, ok bool) {
	if q.validate("MM1") != nil || q.Utilization >= 1 {
		return 0, false
	}
	return q.Utilization / (q.ServiceRate * (1 - q.Utilization)), true
}

func (q MM1) validate(field string) error {
	var f faults
	const lo, hi = 1e-9, 1e12
	f.float(field+".ServiceRate", q.ServiceRate, lo, hi, "give the service rate in requests a second")
	if q.ServiceRate == 0 {
		f.add(field+".ServiceRate", "0", "above 0", "give the service rate in requests a second, or leave the queue out")
	}
	f.float(field+".Utilization", q.Utilization, 0, maxCount, "give arrival rate over service rate, 0.72 for 72 %")
	return f.join()
}

// CrossoverUtilization returns the utilization of the fetch queue at which fetching takes exactly as long as
// recomputing: fetch + Wq(ρ, fetchRate) = recompute + the compute queue's wait. recompute and fetch are service times in
// seconds without any wait; fetchRate is the fetch queue's μ in requests a second. ok is false when fetch is slower even
// with an empty queue, when the compute queue has no steady state, or when an input is not a usable number.
//
// Source: the base model's utilization preset ([UtilizationPreset]).
func CrossoverUtilization(recompute, fetch float64, compute MM1, fetchRate float64) (rho float64, ok bool) {
	var f faults
	f.float("recompute", recompute, 0, maxSeconds, "")
	f.float("fetch", fetch, 0, maxSeconds, "")
	wait, stable := compute.Wait()
	if f.join() != nil || !stable || (MM1{ServiceRate: fetchRate}).validate("fetch") != nil {
		return 0, false
	}
	gap := recompute + wait - fetch
	if gap < 0 {
		return 0, false
	}
	x := gap * fetchRate // ρ/(1−ρ)
	return x / (1 + x), true
}
