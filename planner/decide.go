package planner

import (
	"cmp"
	"fmt"
	"slices"
)

// Decision is the answer to a [Request].
type Decision struct {
	// Modes holds one plan a mode, from [ModeRedirect] to [ModeBackground] in that order. The caller owns it.
	Modes []ModePlan
	// Winner is the eligible mode with the fewest seconds, by P95 if RankedByP95; of equals recompute before redirect before fetch, since what
	// moves nothing is the safer choice. [ModeNone] when no mode is eligible; Reason says why.
	Winner Mode
	// RunnerUp is the next eligible mode, [ModeNone] when there is no other; the margins are 0 then.
	RunnerUp Mode
	// RankedByP95 says that the spread of every eligible mode is known, so that they are ranked by P50 + κ·(P95−P50) with κ = 1
	// (redirect, which has no spread, by its seconds). Otherwise by their expected seconds: what is not known is not taken for small.
	RankedByP95 bool
	// MarginSeconds is by how much the winner is faster than the runner-up in what they are ranked by, 0 or more.
	MarginSeconds float64
	// MarginRatio is MarginSeconds over the same of the runner-up, from 0 (equal) to 1; 0 when both take no time.
	MarginRatio float64
	// DeadlineMissed says that the winner is expected to miss the deadline, as is every other eligible mode.
	DeadlineMissed bool
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

// Decide prices every mode and chooses the eligible one with the fewest expected seconds, or with the fewest at P95 where the
// spread of all of them is known. A mode is eligible when its
// inputs are known, the caller allows it, and it keeps the deadline, unless every mode misses it. When no bytes are
// missing and fetch is eligible, recompute is not: what is left is the hand-over. Errors: one [InputError] a fault,
// joined; unknown inputs are no errors but refusals of the modes that need them.
func Decide(r Request, m Model, c Compute, l Link) (Decision, error) {
	if err := validate(r, m, c, l); err != nil {
		return Decision{}, err
	}
	d := Decision{LinkSource: l.source(), Modes: []ModePlan{
		RedirectCost(r, l),
		Fetch(r, m, l),
		Recompute(r, m, c),
		ModePlan{Mode: ModeHybrid}.refused(RefusalNotBuilt, "hybrid is not planned"),
		ModePlan{Mode: ModeBackground}.refused(RefusalNotBuilt, "background is not planned"),
	}}
	d.refuseUnrequested(r)
	d.refuseIdleRecompute()
	d.refuseLate(r, l)
	d.choose(r.Only)
	return d, nil
}

// refuseUnrequested leaves only the mode that was asked for.
func (d *Decision) refuseUnrequested(r Request) {
	for i, p := range d.Modes {
		if r.Only != ModeNone && p.Mode != r.Only && p.Eligible {
			d.Modes[i] = p.refused(RefusalNotRequested, "%v was asked for", r.Only)
		}
	}
}

// refuseIdleRecompute leaves a session that is already there to fetch, which then only hands it over.
func (d *Decision) refuseIdleRecompute() {
	fetch, _ := d.Plan(ModeFetch)
	for i, p := range d.Modes {
		if p.Mode == ModeRecompute && p.Eligible && fetch.Eligible && fetch.Bytes == 0 {
			d.Modes[i] = p.refused(RefusalNothingToDo, "every whole block is at the destination")
		}
	}
}

// refuseLate refuses what misses the deadline, or marks everything when nothing keeps it.
func (d *Decision) refuseLate(r Request, l Link) {
	if r.Deadline <= 0 {
		return
	}
	limit, kept := r.Deadline.Seconds(), false
	late := make([]float64, len(d.Modes)) // seconds past the deadline, 0 if kept
	for i, p := range d.Modes {
		ready := p.Seconds
		if p.Mode == ModeRedirect { // the session is warm already: its first turn pays one detour
			detour, _ := r.Redirect.detour(l)
			ready = detour.Seconds()
		}
		late[i] = max(0, ready-limit)
		kept = kept || (p.Eligible && late[i] == 0)
	}
	for i, p := range d.Modes {
		switch {
		case !p.Eligible || late[i] == 0:
		case kept:
			d.Modes[i] = p.refused(RefusalDeadline, "misses the deadline of %v by %.4g s", r.Deadline, late[i])
		default:
			d.DeadlineMissed = true
			d.Modes[i].Reason = fmt.Sprintf("misses the deadline of %v by %.4g s, as every eligible mode does", r.Deadline, late[i])
		}
	}
}

// choose ranks the eligible modes and fills in the winner, the margin and the reason.
func (d *Decision) choose(only Mode) {
	var ranked []ModePlan
	for _, p := range d.Modes {
		if p.Eligible {
			ranked = append(ranked, p)
		}
	}
	d.RankedByP95 = slices.ContainsFunc(ranked, func(p ModePlan) bool { return p.SigmaSeconds > 0 }) &&
		!slices.ContainsFunc(ranked, func(p ModePlan) bool { return !p.spreadKnown() })
	rank := func(p ModePlan) float64 {
		if d.RankedByP95 {
			return max(p.Seconds, p.P95Seconds)
		}
		return p.Seconds
	}
	preference := func(m Mode) int { return slices.Index([]Mode{ModeRecompute, ModeRedirect, ModeFetch}, m) }
	slices.SortStableFunc(ranked, func(a, b ModePlan) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(preference(a.Mode), preference(b.Mode)))
	})
	if len(ranked) == 0 {
		d.Reason = "no mode is eligible"
		for _, p := range d.Modes {
			if p.Mode == only || (only == ModeNone && p.Refusal != RefusalNotBuilt) {
				d.Reason += fmt.Sprintf("; %v: %s", p.Mode, p.Reason)
			}
		}
		return
	}
	first := ranked[0]
	d.Winner = first.Mode
	if len(ranked) == 1 {
		d.Reason = fmt.Sprintf("%v takes %s and is the only eligible mode", first.Mode, first.took())
		return
	}
	second := ranked[1]
	d.RunnerUp = second.Mode
	d.MarginSeconds = rank(second) - rank(first)
	if rank(second) > 0 {
		d.MarginRatio = d.MarginSeconds / rank(second)
	}
	d.Reason = fmt.Sprintf("%v takes %s, %v %s", first.Mode, first.took(), second.Mode, second.took())
}

// took is the plan's time for people.
func (p ModePlan) took() string {
	if p.P95Seconds > 0 {
		return fmt.Sprintf("%.4g s (P95 %.4g s)", p.Seconds, p.P95Seconds)
	}
	return fmt.Sprintf("%.4g s", p.Seconds)
}
