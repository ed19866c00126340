package planner

import (
	"fmt"
	"time"
)

// RedirectCost prices leaving the session at its source: every turn still expected pays the detour,
// ExpectedTurns·DeltaRTT. It is eligible only with Redirect.Allowed and a given ExpectedTurns; otherwise it is priced for
// what is known (one turn) and refused.
//
// It does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func RedirectCost(r Request, l Link) ModePlan {
	p := ModePlan{Mode: ModeRedirect}
	if err := validate(r, l); err != nil {
		return p.refused(RefusalInvalidInput, "%v", err)
	}
	detour, ok := r.Redirect.detour(l)
	if !ok {
		return p.missing([]string{"Request.Redirect.DeltaRTT (or Link.RTT)"})
	}
	turns, of := r.Redirect.ExpectedTurns, ""
	if turns == 0 {
		turns, of = 1, ", turns left unknown"
	}
	p = p.priced(Term{
		Name: TermDetour, Seconds: turns * detour.Seconds(),
		Note: fmt.Sprintf("%g turn(s) x %v%s", turns, detour, of),
	})
	switch {
	case !r.Redirect.Allowed:
		return p.refused(RefusalNotAllowed, "the caller has not allowed redirect")
	case r.Redirect.ExpectedTurns == 0:
		return p.refused(RefusalMissingInput, "unknown: Request.Redirect.ExpectedTurns; priced for one turn")
	}
	return p
}

// detour is what one turn pays; ok is false if it is unknown.
func (d Redirect) detour(l Link) (t time.Duration, ok bool) {
	if d.DeltaRTT != 0 {
		return max(0, d.DeltaRTT), true
	}
	return l.RTT, l.RTT > 0
}
