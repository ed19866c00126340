package planner

import (
	"fmt"
	"time"
)

// Request is the session to be made warm, and what its caller wants.
type Request struct {
	// PrefixTokens is N, the tokens of the session, 0 to 2³⁰.
	PrefixTokens int64
	// PresentTokens is the length of the contiguous prefix that the destination already holds, 0 to PrefixTokens.
	PresentTokens int64
	// MissingBytes is what fetch has to move. Zero: whole missing blocks × their bytes, from the token counts and the
	// model. Negative: nothing.
	MissingBytes Bytes
	// RoundTrips is n_rtt, how many round trips a fetch takes besides its bytes. Zero: [DefaultRoundTrips]; negative:
	// none. The base model has 1.
	RoundTrips float64
	// Deadline is the time by which the session must be warm. Zero or negative: none.
	Deadline time.Duration
	// Redirect is what the caller says about serving from the source.
	Redirect Redirect
	// Only asks for one mode; all others are refused. [ModeNone]: choose.
	Only Mode
	// Hybrid says that the destination's engine can run [ModeHybrid]: it claims blocks before it prefills them, and reads a tail
	// that lands meanwhile. Without it hybrid is priced and refused. With it a fetch that may well take longer than recompute is
	// refused ([RefusalUncertain]), and a link that was not measured means hybrid.
	Hybrid bool
	// Previous is the mode that was chosen before for the same session, and is left only for a clear gain: see
	// [Decision.Held]. [ModeNone]: none was.
	Previous Mode
	// Kappa is κ in P50 + κ·(P95−P50), by which modes are ranked where spreads are known. Zero: 1; negative: 0, expected seconds
	// alone.
	Kappa float64
}

// Redirect holds the inputs of [ModeRedirect].
type Redirect struct {
	// Allowed says that the caller can send requests to the source region. Without it redirect is priced and refused.
	Allowed bool
	// ExpectedTurns is E[turns left]. Zero: unknown; redirect is priced for one turn and refused.
	ExpectedTurns float64
	// DeltaRTT is what a turn pays for being served by the source. Zero: Link.RTT, the detour between the two regions;
	// negative: nothing.
	DeltaRTT time.Duration
}

// Validate joins one [InputError] a fault, nil when there is none.
func (r Request) Validate() error {
	var f faults
	f.integer("Request.PrefixTokens", r.PrefixTokens, 0, maxTokens, "give the session's tokens")
	f.integer("Request.PresentTokens", r.PresentTokens, 0, maxTokens, "give the tokens that the destination holds")
	if r.PresentTokens > r.PrefixTokens {
		f.add("Request.PresentTokens", fmt.Sprint(r.PresentTokens), fmt.Sprintf("at most PrefixTokens (%d)", r.PrefixTokens),
			"count only tokens of this session's prefix")
	}
	f.integer("Request.MissingBytes", int64(r.MissingBytes), -maxBytes, maxBytes, "give bytes, 0 to derive them, or a negative number for none")
	f.finite("Request.RoundTrips", r.RoundTrips, maxCount, "give a number of round trips, 0 for the default, or a negative number for none")
	f.float("Request.Redirect.ExpectedTurns", r.Redirect.ExpectedTurns, 1e-6, maxSeconds, "give the turns expected, or 0 if unknown")
	f.integer("Request.Only", int64(r.Only), int64(ModeNone), int64(ModeBackground), "use one of the Mode constants")
	f.integer("Request.Previous", int64(r.Previous), int64(ModeNone), int64(ModeBackground), "use one of the Mode constants")
	f.finite("Request.Kappa", r.Kappa, maxSpread, "give κ, 0 for 1, or a negative number for none")
	return f.join()
}

// wire is what fetch moves and the tail tokens it leaves; missing names an unknown input.
func (r *Request) wire(m *Model) (b Bytes, tail int64, missing string) {
	block := int64(max(m.BlockTokens, 1))
	whole := r.whole(m)
	tail = r.PrefixTokens - whole
	switch {
	case r.MissingBytes > 0:
		return r.MissingBytes, tail, ""
	case r.MissingBytes < 0:
		return 0, tail, ""
	}
	blocks := (whole - r.PresentTokens/block*block) / block
	if blocks > 0 && m.BytesPerToken == 0 {
		return 0, tail, "Model.BytesPerToken (or Request.MissingBytes)"
	}
	return Bytes(blocks*block) * m.BytesPerToken, tail, ""
}

// whole is the tokens of the prefix's whole blocks.
func (r *Request) whole(m *Model) int64 {
	return r.PrefixTokens - r.PrefixTokens%int64(max(m.BlockTokens, 1))
}

// kappa is Kappa with its default.
func (r *Request) kappa() float64 {
	if r.Kappa == 0 {
		return 1
	}
	return max(0, r.Kappa)
}

// roundTrips is RoundTrips with its default.
func (r *Request) roundTrips() float64 {
	if r.RoundTrips == 0 {
		return DefaultRoundTrips
	}
	return max(0, r.RoundTrips)
}
