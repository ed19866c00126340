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
	ModeHybrid                 // prefill from the front, fetch from the back, until they meet
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
	RefusalUnsupported                 // the engine cannot run it
	RefusalUncertain                   // it may take longer than recompute, and hybrid does not
)

var refusalNames = [...]string{
	"none", "not_built", "missing_input", "invalid_input", "unstable", "not_allowed", "unavailable", "deadline",
	"not_requested", "nothing_to_do", "unsupported", "uncertain",
}

// String is the refusal's name in snake case.
func (r Refusal) String() string {
	if r < 0 || int(r) >= len(refusalNames) {
		return fmt.Sprintf("refusal(%d)", int(r))
	}
	return refusalNames[r]
}

// Names of terms. Recompute has compute_queue, fixed, prefill_linear and prefill_attention; fetch has egress_queue,
// fetch_queue, rtt, fixed, ramp, bytes and, where pages are coded, codec; redirect has detour. Hybrid has those of recompute for its front, and tail_wait.
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
	TermCodec            = "codec"
	TermDetour           = "detour"
	TermTailWait         = "tail_wait"
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
	// Hybrid is not normally distributed: its P95 is computed, and its sigma is what a normal distribution of that P95 has.
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
	// fetch (not priced there), none in redirect, the front in hybrid.
	Tokens int64
	// Split is where the two ends of hybrid are expected to meet; zero in other modes.
	Split Split
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

// invalid is the plan of a mode whose inputs cannot be used.
func invalid(m Mode, err error) ModePlan {
	return ModePlan{Mode: m, Refusal: RefusalInvalidInput, Reason: err.Error()}
}

// unknown says which inputs are missing.
func unknown(fields []string) string {
	list, separator := "unknown: ", ""
	for _, f := range fields {
		list += separator + f
		separator = ", "
	}
	return list
}

// took is the plan's time for people.
func (p ModePlan) took() string {
	if p.P95Seconds > 0 {
		return fmt.Sprintf("%.4g s (P95 %.4g s)", p.Seconds, p.P95Seconds)
	}
	return fmt.Sprintf("%.4g s", p.Seconds)
}
