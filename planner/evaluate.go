package planner

import "math"

// Evaluation is a [Decision] in numbers alone: no texts, no pointers, nothing on the heap. Fields of the same name mean the same.
type Evaluation struct {
	// Prices holds one price a mode, from [ModeRedirect] to [ModeBackground] in that order.
	Prices                      [5]Price
	Split                       Split // hybrid's
	Winner, RunnerUp            Mode
	RankedByP95, Held           bool
	MarginSeconds, MarginRatio  float64
	Confidence                  float64
	DeadlineMissed, Unconfirmed bool

	lead float64 // when the first block of a tail lands at the earliest, as far as that is known
}

// Price returns the price of mode m; the zero price for [ModeNone] and unknown modes.
func (e *Evaluation) Price(m Mode) Price {
	if m < ModeRedirect || int(m) > len(e.Prices) {
		return Price{}
	}
	return e.Prices[m-1]
}

func (e *Evaluation) at(m Mode) *Price { return &e.Prices[m-1] }

// Evaluate decides as [Decide] does and allocates nothing where the inputs are valid. Errors: those of Decide.
func Evaluate(r Request, m Model, c Compute, l Link) (Evaluation, error) {
	if err := check(&r, &m, &c, &l); err != nil {
		return Evaluation{}, err
	}
	var e Evaluation
	e.evaluate(&r, &m, &c, &l)
	return e, nil
}

// evaluate decides on valid inputs. e is zero before.
func (e *Evaluation) evaluate(r *Request, m *Model, c *Compute, l *Link) {
	*e.at(ModeRedirect) = priceRedirect(r, l)
	*e.at(ModeFetch) = priceFetch(r, m, l)
	*e.at(ModeRecompute) = priceRecompute(r, m, c)
	*e.at(ModeHybrid), e.Split = priceHybrid(r, m, c, l, e.at(ModeFetch), e.at(ModeRecompute))
	*e.at(ModeBackground) = Price{Mode: ModeBackground, Refusal: RefusalNotBuilt}
	e.lead = r.roundTrips()*l.RTT.Seconds() + l.FixedSeconds + e.at(ModeFetch).Terms[atEgressQueue]
	e.Unconfirmed = e.at(ModeHybrid).Eligible && !l.measured()
	e.refuseUncertain(r)
	e.refuseUnrequested(r)
	e.refuseIdleRecompute()
	e.refuseLate(r, l)
	e.choose(r)
}

// refuseUncertain leaves fetch out where hybrid can be chosen and fetch may well take longer than recompute. On a link that was
// not measured its spread is unknown, so that nothing speaks for it.
func (e *Evaluation) refuseUncertain(r *Request) {
	fetch, recompute := e.at(ModeFetch), e.at(ModeRecompute)
	if r.Only != ModeNone || !e.at(ModeHybrid).Eligible || !fetch.Eligible {
		return
	}
	if e.Unconfirmed || !fetch.spreadKnown() || max(fetch.Seconds, fetch.P95Seconds) >= recompute.Seconds {
		fetch.refuse(RefusalUncertain)
	}
}

// refuseUnrequested leaves only the mode that was asked for.
func (e *Evaluation) refuseUnrequested(r *Request) {
	for i := range e.Prices {
		if p := &e.Prices[i]; r.Only != ModeNone && p.Mode != r.Only && p.Eligible {
			p.refuse(RefusalNotRequested)
		}
	}
}

// refuseIdleRecompute leaves a session that is already there to fetch, which then only hands it over.
func (e *Evaluation) refuseIdleRecompute() {
	fetch := e.at(ModeFetch)
	if recompute := e.at(ModeRecompute); recompute.Eligible && fetch.Eligible && fetch.Bytes == 0 {
		recompute.refuse(RefusalNothingToDo)
	}
}

// lateness is by how much p misses the deadline, 0 if it keeps it or there is none.
func (p *Price) lateness(r *Request, l *Link) float64 {
	if r.Deadline <= 0 {
		return 0
	}
	ready := p.Seconds
	if p.Mode == ModeRedirect { // the session is warm already: its first turn pays one detour
		detour, _ := r.Redirect.detour(l)
		ready = detour.Seconds()
	}
	return max(0, ready-r.Deadline.Seconds())
}

// refuseLate refuses what misses the deadline, or marks everything when nothing keeps it.
func (e *Evaluation) refuseLate(r *Request, l *Link) {
	kept := false
	for i := range e.Prices {
		kept = kept || e.Prices[i].Eligible && e.Prices[i].lateness(r, l) == 0
	}
	for i := range e.Prices {
		switch p := &e.Prices[i]; {
		case !p.Eligible || p.lateness(r, l) == 0:
		case kept:
			p.refuse(RefusalDeadline)
		default:
			e.DeadlineMissed = true
		}
	}
}

// rank is what p is ranked by.
func (e *Evaluation) rank(p *Price, r *Request) float64 {
	kappa := r.kappa()
	switch {
	case !e.RankedByP95 || p.P95Seconds <= p.Seconds:
		return p.Seconds
	case kappa == 1:
		return p.P95Seconds
	}
	return p.Seconds + kappa*(p.P95Seconds-p.Seconds)
}

// preference orders modes that rank equal, the first first: what moves nothing is the safer choice, and hybrid safer than fetch. On
// a link that was not measured hybrid comes before recompute, which is what it is priced at, if its tail can land in time at all.
func (e *Evaluation) preference(m Mode) int {
	switch m {
	case ModeHybrid:
		if e.Unconfirmed && e.lead < e.at(ModeRecompute).Seconds {
			return 0
		}
		return 3
	case ModeRecompute:
		return 1
	case ModeRedirect:
		return 2
	case ModeFetch:
		return 4
	case ModeNone, ModeBackground:
	}
	return 5
}

// choose ranks the eligible modes and fills in the winner and the margin.
func (e *Evaluation) choose(r *Request) {
	known := true
	for i := range e.Prices {
		if p := &e.Prices[i]; p.Eligible {
			e.RankedByP95 = e.RankedByP95 || p.SigmaSeconds > 0
			known = known && p.spreadKnown()
		}
	}
	e.RankedByP95 = e.RankedByP95 && known
	first, second := e.best(r, nil), (*Price)(nil)
	if first == nil {
		return
	}
	second = e.best(r, first)
	if previous := r.Previous; previous != ModeNone && previous != first.Mode && e.at(previous).Eligible {
		before := e.at(previous)
		gain := e.rank(before, r) - e.rank(first, r)
		if gain <= max(leastGain*e.rank(before, r), math.Hypot(before.SigmaSeconds, first.SigmaSeconds)) {
			e.Held, first, second = true, before, first
		}
	}
	e.Winner = first.Mode
	if second == nil {
		return
	}
	e.RunnerUp = second.Mode
	e.MarginSeconds = e.rank(second, r) - e.rank(first, r)
	if most := max(e.rank(first, r), e.rank(second, r)); most > 0 {
		e.MarginRatio = e.MarginSeconds / most
	}
	e.Confidence = e.confidence(first, second)
}

// leastGain is the share that another mode must be faster by to replace the one chosen before.
const leastGain = 0.1

// best is the eligible mode that ranks first, but for one; nil when there is none.
func (e *Evaluation) best(r *Request, but *Price) *Price {
	var best *Price
	for i := range e.Prices {
		p := &e.Prices[i]
		if !p.Eligible || p == but {
			continue
		}
		if best == nil || e.rank(p, r) < e.rank(best, r) || e.rank(p, r) == e.rank(best, r) && e.preference(p.Mode) < e.preference(best.Mode) {
			best = p
		}
	}
	return best
}

// confidence is the probability that a is no slower than b; 0 where a spread is not known.
func (e *Evaluation) confidence(a, b *Price) float64 {
	end := func(p *Price) bool { return p.Mode == ModeRecompute || p.Mode == ModeFetch }
	switch {
	case a.Mode == ModeHybrid && end(b): // whatever the two ends take: hybrid is bounded by both
		return 1
	case !a.spreadKnown() || !b.spreadKnown():
		return 0
	case a.Mode == ModeRecompute && b.Mode == ModeHybrid: // as fast where no block lands before the front is done
		return normal(e.lead-a.Seconds, a.SigmaSeconds, relative(e.at(ModeFetch))*e.lead)
	case a.Mode == ModeFetch && b.Mode == ModeHybrid: // as fast where all land before prefill could start
		t := &e.at(ModeRecompute).Terms
		start := t[atComputeQueue] + t[atComputeFixed]
		return normal(start-a.Seconds, a.SigmaSeconds, relative(e.at(ModeRecompute))*start)
	}
	return normal(b.Seconds-a.Seconds, a.SigmaSeconds, b.SigmaSeconds)
}

// relative is the spread of p over its seconds.
func relative(p *Price) float64 {
	if p.Seconds == 0 {
		return 0
	}
	return p.SigmaSeconds / p.Seconds
}

// normal is the probability that a normal deviate of that mean is at least 0, its deviation that of two independent ones added.
func normal(mean, sigma1, sigma2 float64) float64 {
	sigma := math.Hypot(sigma1, sigma2)
	if sigma == 0 {
		if mean >= 0 {
			return 1
		}
		return 0
	}
	return math.Erfc(-mean/(sigma*math.Sqrt2)) / 2
}
