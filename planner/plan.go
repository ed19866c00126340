package planner

import "fmt"

// Mode is a way to make a session warm where it is wanted. The zero value, [ModeNone], is no mode.
type Mode int

// The modes, in the order of Decision.Modes.
const (
	ModeNone       Mode = iota // no mode: nothing is eligible; in Request.Only: choose
	ModeRedirect               // nothing moves: requests go on to the source region
	ModeFetch                  // every missing block moves
	ModeRecompute              // nothing moves: the destination prefills again
	ModeHybrid                 // prefill from the front, fetch from the back; refused with [RefusalNotBuilt]
	ModeBackground             // the source serves while pages move; refused with [RefusalNotBuilt]
)

var modeNames = [...]string{"none", "redirect", "fetch", "recompute", "hybrid", "background"}

// String is the mode's lower-case name.
func (m Mode) String() string {
	if m < 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("mode(%d)", int(m))
	}
	return modeNames[m]
}

// ParseMode is the inverse of String; "" and "auto" are [ModeNone]. Anything else is an [InputError].
func ParseMode(s string) (Mode, error) {
	if s == "" || s == "auto" {
		return ModeNone, nil
	}
	for i, name := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return ModeNone, &InputError{
		Field: "mode", Value: fmt.Sprintf("%q", s),
		Allowed: "auto, redirect, fetch, recompute, hybrid or background", Fix: "use auto to let the planner choose",
	}
}

// Refusal says why a mode is not eligible. The zero value is [RefusalNone].
type Refusal int

// The refusals.
const (
	RefusalNone         Refusal = iota // eligible
	RefusalNotBuilt                    // the planner does not plan this mode
	RefusalMissingInput                // a figure is unknown; not priced, but for redirect without its expected turns
	RefusalInvalidInput                // an input is not valid; the plan is not priced ([Decide] returns the error instead)
	RefusalUnstable                    // a queue has no steady state; the plan is not priced
	RefusalNotAllowed                  // the caller has not allowed it
	RefusalUnavailable                 // the destination cannot prefill
	RefusalDeadline                    // it would miss the deadline while another mode would not
	RefusalNotRequested                // the caller asked for another mode
	RefusalNothingToDo                 // everything is already at the destination
)

var refusalNames = [...]string{
	"none", "not_built", "missing_input", "invalid_input", "unstable", "not_allowed", "unavailable", "deadline",
	"not_requested", "nothing_to_do",
}

// String is the refusal's name in snake case.
func (r Refusal) String() string {
	if r < 0 || int(r) >= len(refusalNames) {
		return fmt.Sprintf("refusal(%d)", int(r))
	}
	return refusalNames[r]
}

// Names of terms. Recompute has compute_queue, fixed, prefill_linear and prefill_attention; fetch has egress_queue,
// fetch_queue, rtt, fixed, ramp and bytes; redirect has detour.
const (
	TermComputeQueue     = "compute_queue"
	TermFixed            = "fixed"
	TermPrefillLinear    = "prefill_linear"
	TermPrefillAttention = "prefill_attention"
	TermEgressQueue      = "egress_queue"
	TermFetchQueue       = "fetch_queue"
	TermRTT              = "rtt"
	TermRamp             = "ramp"
	TermBytes            = "bytes"
	TermDetour           = "detour"
)

// Term is one addend of a plan's time.
type Term struct {
	Name    string  // one of the Term constants
	Seconds float64 // finite, 0 or more
	Note    string  // how it came about ("3 x 70ms"), or what is not known about it
}

// ModePlan is the price of one mode.
type ModePlan struct {
	Mode Mode
	// Priced says that Seconds and Terms hold a price. Without it Seconds is 0 and means nothing.
	Priced bool
	// Seconds is the expected time until the session is warm: the terms added in order, bit for bit.
	Seconds float64
	// SigmaSeconds is the standard deviation of Seconds, and P95Seconds what it stays below in 19 of 20 cases: Seconds +
	// 1.645·SigmaSeconds, of a normal distribution. Both are 0 where the spread is not known, and in redirect, which has none.
	SigmaSeconds float64
	P95Seconds   float64
	// Terms holds every addend of the mode, those of 0 seconds too. The caller owns it.
	Terms []Term
	// Eligible says that the mode may be chosen. An eligible plan is priced.
	Eligible bool
	// Refusal and Reason say why it is not eligible: RefusalNone and "" if it is, except that an eligible plan that
	// misses a deadline which no mode can keep says so in Reason.
	Refusal Refusal
	Reason  string
	// Bytes is what moves over the link.
	Bytes Bytes
	// Tokens is what the destination prefills: all tokens not present in recompute, those after the last whole block in
	// fetch (not priced there), none in redirect.
	Tokens int64
}

// Term returns the seconds of the term with that name, 0 and false if the plan has none.
func (p ModePlan) Term(name string) (seconds float64, ok bool) {
	for _, t := range p.Terms {
		if t.Name == name {
			return t.Seconds, true
		}
	}
	return 0, false
}

// priced fills in the sum and makes p eligible.
func (p ModePlan) priced(terms ...Term) ModePlan {
	p.Terms, p.Priced, p.Eligible = terms, true, true
	for _, t := range terms {
		p.Seconds += t.Seconds
	}
	return p
}

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// spread sets the deviation of a priced plan; relative is over its seconds, 0 if not known.
func (p ModePlan) spread(relative float64) ModePlan {
	if relative > 0 {
		p.SigmaSeconds = relative * p.Seconds
		p.P95Seconds = p.Seconds + z95*p.SigmaSeconds
	}
	return p
}

// spreadKnown says that p can be ranked by what it takes in bad cases: redirect has no spread to know.
func (p ModePlan) spreadKnown() bool {
	return p.Mode == ModeRedirect || p.SigmaSeconds > 0 || p.Seconds == 0
}

// refused makes p not eligible. What is priced stays shown.
func (p ModePlan) refused(why Refusal, format string, args ...any) ModePlan {
	p.Eligible, p.Refusal, p.Reason = false, why, fmt.Sprintf(format, args...)
	return p
}

// missing refuses p for unknown inputs.
func (p ModePlan) missing(fields []string) ModePlan {
	list := ""
	for i, f := range fields {
		if i > 0 {
			list += ", "
		}
		list += f
	}
	return p.refused(RefusalMissingInput, "unknown: %s", list)
}
