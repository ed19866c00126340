package planner

import "fmt"

// Decision is the answer to a [Request].
type Decision struct {
	// Modes holds one plan a mode, from [ModeRedirect] to [ModeBackground] in that order. The caller owns it.
	Modes []ModePlan
	// Winner is the eligible mode that ranks first: with the fewest seconds, or the least P50 + κ·(P95−P50) if RankedByP95. Of equals
	// it is recompute before redirect before hybrid before fetch, since what moves nothing is the safer choice; hybrid comes first
	// if Unconfirmed. [ModeNone] when no mode is eligible; Reason says why.
	Winner Mode
	// RunnerUp is the next eligible mode, or the one that Held kept from winning; [ModeNone] when there is no other; the margins are 0 then.
	RunnerUp Mode
	// RankedByP95 says that the spread of every eligible mode is known, so that they are ranked by P50 + κ·(P95−P50), κ being
	// Request.Kappa (redirect, which has no spread, by its seconds). Otherwise by their expected seconds: what is not known is not taken for small.
	RankedByP95 bool
	// Held says that Request.Previous stays the winner although RunnerUp ranks before it: by no more than 10 % of it, or than one
	// standard deviation of the difference of the two.
	Held bool
	// MarginSeconds is by how much the winner is faster than the runner-up in what they are ranked by, 0 or more; negative if Held.
	MarginSeconds float64
	// MarginRatio is MarginSeconds over the same of the slower of the two, from 0 (equal) to 1, negative if Held; 0 when both take no time.
	MarginRatio float64
	// Confidence is the probability that the winner is no slower than the runner-up, 0 to 1, the spreads taken for independent
	// normal ones. Hybrid is never slower than recompute and fetch, so it is 1 there. 0: not known, or there is no runner-up.
	Confidence float64
	// DeadlineMissed says that the winner is expected to miss the deadline, as is every other eligible mode.
	DeadlineMissed bool
	// Unconfirmed says that hybrid can be chosen and no goodput was measured, or one too long ago.
	Unconfirmed bool
	// LinkSource says where the goodput comes from: "measured 3s ago", "prior: configured 1 Gbps, not measured" or
	// "unknown: ...".
	LinkSource string
	// Reason is one sentence for people.
	Reason string
}

// Plan returns the plan of mode m; ok is false for [ModeNone] and unknown modes.
func (d Decision) Plan(m Mode) (p ModePlan, ok bool) {
	for _, p := range d.Modes {
		if p.Mode == m {
			return p, true
		}
	}
	return ModePlan{}, false
}

// Decide prices every mode and chooses the eligible one with the fewest expected seconds, or with the least P50 + κ·(P95−P50)
// where the spread of all of them is known. A mode is eligible when its
// inputs are known, the caller allows it, the engine can run it, and it keeps the deadline, unless every mode misses it. When no bytes are
// missing and fetch is eligible, recompute is not: what is left is the hand-over. Where hybrid is eligible, fetch is only if 19 of 20
// fetches take less than recompute is expected to. Errors: one [InputError] a fault,
// joined; unknown inputs are no errors but refusals of the modes that need them.
//
// [Evaluate] gives the same in numbers alone.
func Decide(r Request, m Model, c Compute, l Link) (Decision, error) {
	e, err := Evaluate(r, m, c, l)
	if err != nil {
		return Decision{}, err
	}
	return describe(&e, &r, &m, &c, &l), nil
}

// describe is e in words.
func describe(e *Evaluation, r *Request, m *Model, c *Compute, l *Link) Decision {
	d := Decision{
		Winner: e.Winner, RunnerUp: e.RunnerUp, RankedByP95: e.RankedByP95, Held: e.Held, MarginSeconds: e.MarginSeconds,
		MarginRatio: e.MarginRatio, Confidence: e.Confidence, DeadlineMissed: e.DeadlineMissed, Unconfirmed: e.Unconfirmed,
		LinkSource: l.source(), Modes: make([]ModePlan, 0, len(e.Prices)),
	}
	for i := range e.Prices {
		p := &e.Prices[i]
		var out ModePlan
		switch p.Mode {
		case ModeRedirect:
			out = describeRedirect(p, r, l)
		case ModeFetch:
			out = describeFetch(p, r, m, l)
		case ModeRecompute:
			out = describeRecompute(p, r, m, c)
		case ModeHybrid:
			out = describeHybrid(p, e.Split, r, m, c, l)
		case ModeNone, ModeBackground:
			out = p.plan()
			out.Reason = fmt.Sprintf("%v is not planned", p.Mode)
		}
		if s := e.because(p, r, l); s != "" {
			out.Reason = s
		}
		d.Modes = append(d.Modes, out)
	}
	d.Reason = d.reason(r.Only)
	return d
}

// because says what the comparison of modes did to p; empty for nothing.
func (e *Evaluation) because(p *Price, r *Request, l *Link) string {
	late := p.lateness(r, l)
	switch {
	case p.Refusal == RefusalNotRequested:
		return fmt.Sprintf("%v was asked for", r.Only)
	case p.Refusal == RefusalNothingToDo && p.Mode == ModeRecompute:
		return "every whole block is at the destination"
	case p.Refusal == RefusalDeadline:
		return fmt.Sprintf("misses the deadline of %v by %.4g s", r.Deadline, late)
	case p.Eligible && late > 0:
		return fmt.Sprintf("misses the deadline of %v by %.4g s, as every eligible mode does", r.Deadline, late)
	case p.Refusal == RefusalUncertain && e.Unconfirmed:
		return "the link was not measured, and hybrid is bounded"
	case p.Refusal == RefusalUncertain && !p.spreadKnown():
		return "how far fetches of this link scatter is unknown, and hybrid is bounded"
	case p.Refusal == RefusalUncertain:
		return fmt.Sprintf("one in twenty takes %.4g s or more, recompute %.4g s, and hybrid is bounded", max(p.Seconds, p.P95Seconds), e.at(ModeRecompute).Seconds)
	}
	return ""
}

// reason is one sentence on what was chosen.
func (d *Decision) reason(only Mode) string {
	if d.Winner == ModeNone {
		out := "no mode is eligible"
		for _, p := range d.Modes {
			if p.Mode == only || (only == ModeNone && p.Refusal != RefusalNotBuilt && p.Refusal != RefusalUnsupported) {
				out += fmt.Sprintf("; %v: %s", p.Mode, p.Reason)
			}
		}
		return out
	}
	first, _ := d.Plan(d.Winner)
	if d.RunnerUp == ModeNone {
		return fmt.Sprintf("%v takes %s and is the only eligible mode", first.Mode, first.took())
	}
	second, _ := d.Plan(d.RunnerUp)
	out := fmt.Sprintf("%v takes %s, %v %s", first.Mode, first.took(), second.Mode, second.took())
	switch {
	case d.Held:
		out += ", too little better for a change"
	case d.Unconfirmed && d.Winner == ModeHybrid:
		out += "; the link was not measured, and hybrid is bounded by recompute"
	}
	return out
}
