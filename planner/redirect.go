package planner

import (
	"errors"
	"fmt"
	"time"
)

// RedirectCost prices leaving the session at its source: every turn still expected pays the detour,
// ExpectedTurns·DeltaRTT. It is eligible only with Redirect.Allowed and a given ExpectedTurns; otherwise it is priced for
// what is known (one turn) and refused.
//
// It does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func RedirectCost(r Request, l Link) ModePlan {
	if err := errors.Join(r.Validate(), l.Validate()); err != nil {
		return invalid(ModeRedirect, err)
	}
	p := priceRedirect(&r, &l)
	return describeRedirect(&p, &r, &l)
}

// priceRedirect prices valid inputs.
func priceRedirect(r *Request, l *Link) Price {
	p := Price{Mode: ModeRedirect}
	detour, ok := r.Redirect.detour(l)
	if !ok {
		p.refuse(RefusalMissingInput)
		return p
	}
	p.price(r.Redirect.turns() * detour.Seconds())
	switch {
	case !r.Redirect.Allowed:
		p.refuse(RefusalNotAllowed)
	case r.Redirect.ExpectedTurns == 0:
		p.refuse(RefusalMissingInput)
	}
	return p
}

// describeRedirect is p in words.
func describeRedirect(p *Price, r *Request, l *Link) ModePlan {
	detour, _ := r.Redirect.detour(l)
	of := ""
	if r.Redirect.ExpectedTurns == 0 {
		of = ", turns left unknown"
	}
	out := p.plan(fmt.Sprintf("%g turn(s) x %v%s", r.Redirect.turns(), detour, of))
	switch {
	case p.Refusal == RefusalNotAllowed:
		out.Reason = "the caller has not allowed redirect"
	case p.Refusal == RefusalMissingInput && p.Priced:
		out.Reason = "unknown: Request.Redirect.ExpectedTurns; priced for one turn"
	case p.Refusal == RefusalMissingInput:
		out.Reason = unknown([]string{"Request.Redirect.DeltaRTT (or Link.RTT)"})
	}
	return out
}

// turns is how many are priced.
func (d Redirect) turns() float64 {
	if d.ExpectedTurns == 0 {
		return 1
	}
	return d.ExpectedTurns
}

// detour is what one turn pays; ok is false if it is unknown.
func (d Redirect) detour(l *Link) (t time.Duration, ok bool) {
	if d.DeltaRTT != 0 {
		return max(0, d.DeltaRTT), true
	}
	return l.RTT, l.RTT > 0
}
