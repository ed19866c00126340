package planner

import "fmt"

// Law is how a wait follows from a queue's utilization. The zero value is [LawMM1].
type Law int

// The laws. In all of them arrivals are a Poisson process at one server.
const (
	LawMM1 Law = iota // first come, first served, exponential service: the base model's
	LawMG1            // first come, first served, any service: Pollaczek and Khinchine's
	LawPS             // processor sharing, any service: all that is there is served at once, in equal parts
)

// Queue is work that cannot be seen; what can is exact and goes into Compute.QueueSeconds or Link.EgressBacklog instead. When
// both are given they add.
type Queue struct {
	Law Law
	// ServiceRate is μ, in requests a second: above 0 but in LawPS, which does not look at it.
	ServiceRate float64
	// Utilization is ρ, arrival rate over service rate, from 0. At 1 or above the queue grows without end: Wait has no
	// answer and the mode that waits in this queue is refused with [RefusalUnstable].
	Utilization float64
	// SCV is C², the squared coefficient of variation of the service time, in LawMG1; others do not look at it. Zero: every
	// service takes as long (M/D/1, half of what M/M/1 has); 1 is exponential.
	SCV float64
}

// Wait returns the mean time in seconds that an arrival which needs service seconds alone takes longer for the queue:
//
//	LawMM1  ρ/(μ(1−ρ))
//	LawMG1  ρ(1+C²)/(2μ(1−ρ))
//	LawPS   service·ρ/(1−ρ)
//
// ok is false when the queue has no steady state (ρ ≥ 1) or q or service is not valid. Source: Kleinrock, "Queueing Systems",
// volume 1, equations 3.27 and 5.113; volume 2, section 4.4.
func (q Queue) Wait(service float64) (seconds float64, ok bool) {
	if !q.valid() || q.Utilization >= 1 || !(service >= 0 && service <= maxService) {
		return 0, false
	}
	load := q.Utilization / (1 - q.Utilization)
	switch q.Law {
	case LawMM1:
		return load / q.ServiceRate, true
	case LawMG1:
		return load * (1 + q.SCV) / (2 * q.ServiceRate), true
	case LawPS:
		return load * service, true
	}
	return 0, false
}

// wait is Wait of a queue that need not be there.
func (q *Queue) wait(service float64) (seconds float64, stable bool) {
	if q == nil {
		return 0, true
	}
	return q.Wait(service)
}

// stretch is by how much longer a transfer of any size takes because others share the server: 1 but in LawPS. q is stable or nil.
func (q *Queue) stretch() float64 {
	if q == nil || q.Law != LawPS {
		return 1
	}
	return 1 / (1 - q.Utilization)
}

// note is how a wait came about, for people; empty for no queue.
func (q *Queue) note() string {
	if q == nil {
		return ""
	}
	switch q.Law {
	case LawMG1:
		return fmt.Sprintf("; M/G/1 (C2 %.4g) at %.4g of %.4g/s", q.SCV, q.Utilization, q.ServiceRate)
	case LawPS:
		return fmt.Sprintf("; processor sharing at %.4g", q.Utilization)
	case LawMM1:
	}
	return fmt.Sprintf("; M/M/1 at %.4g of %.4g/s", q.Utilization, q.ServiceRate)
}

const (
	minServiceRate, maxServiceRate = 1e-9, 1e12
	maxService                     = 1e300
	maxSCV                         = 1e6
)

// valid says what validate finds no fault in.
func (q Queue) valid() bool {
	return q.Law >= LawMM1 && q.Law <= LawPS && (q.Law == LawPS || q.ServiceRate >= minServiceRate && q.ServiceRate <= maxServiceRate) &&
		q.Utilization >= 0 && q.Utilization <= maxCount && (q.Law != LawMG1 || q.SCV >= 0 && q.SCV <= maxSCV)
}

// validate adds the faults of a queue that need not be there.
func (q *Queue) validate(f *faults, field string) {
	if q == nil || q.valid() {
		return
	}
	f.integer(field+".Law", int64(q.Law), int64(LawMM1), int64(LawPS), "use one of the Law constants")
	if q.Law != LawPS {
		f.required(field+".ServiceRate", q.ServiceRate, minServiceRate, maxServiceRate, "give the service rate in requests a second, or leave the queue out")
	}
	f.float(field+".Utilization", q.Utilization, 0, maxCount, "give arrival rate over service rate, 0.72 for 72 %")
	if q.Law == LawMG1 {
		f.float(field+".SCV", q.SCV, 0, maxSCV, "give the squared coefficient of variation of the service time, 1 for exponential")
	}
}

// MM1 is the M/M/1 queue of the base model: Poisson arrivals, exponential service, one server.
type MM1 struct {
	// ServiceRate is μ, in requests a second. Above 0; zero makes the queue unknown, which is refused.
	ServiceRate float64
	// Utilization is ρ, arrival rate over service rate, from 0. At 1 or above the queue grows without end and Wait has no answer.
	Utilization float64
}

// Wait returns the mean time in seconds that an arrival waits before its service starts, ρ/(μ(1−ρ)). ok is false when
// the queue has no steady state (ρ ≥ 1) or q is not valid.
func (q MM1) Wait() (seconds float64, ok bool) {
	return Queue{ServiceRate: q.ServiceRate, Utilization: q.Utilization}.Wait(0)
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
	if f.join() != nil || !stable || !(Queue{ServiceRate: fetchRate}).valid() {
		return 0, false
	}
	gap := recompute + wait - fetch
	if gap < 0 {
		return 0, false
	}
	x := gap * fetchRate // ρ/(1−ρ)
	return x / (1 + x), true
}
