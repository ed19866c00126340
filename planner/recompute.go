package planner

import (
	"errors"
	"fmt"
)

// Recompute prices prefilling tokens [i, j) again at the destination, i being Request.PresentTokens and j
// Request.PrefixTokens:
//
//	q_c + t0 + [2·P·(j−i) + 2·L·Hq·d·(j²−i²)] / (PeakFLOPS·MFU)
//
// The second addend in brackets is causal attention (QKᵀ and AV; 4·L·Hq·d·p for the token at position p, summed). It
// does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func Recompute(r Request, m Model, c Compute) ModePlan {
	if err := errors.Join(r.Validate(), m.Validate(), c.Validate()); err != nil {
		return invalid(ModeRecompute, err)
	}
	p := priceRecompute(&r, &m, &c)
	return describeRecompute(&p, &r, &m, &c)
}

// priceRecompute prices valid inputs.
func priceRecompute(r *Request, m *Model, c *Compute) Price {
	p := Price{Mode: ModeRecompute, Tokens: r.PrefixTokens - r.PresentTokens}
	linear, quadratic, known := c.prefill(m)
	if !known {
		p.refuse(RefusalMissingInput)
		return p
	}
	i, j := float64(r.PresentTokens), float64(r.PrefixTokens)
	// (j−i)(j+i) rather than j²−i²: no cancellation, so that 0 tokens cost exactly 0.
	linear, attention := linear*(j-i), quadratic*((j-i)*(j+i))
	wait, stable := c.Queue.wait(c.FixedSeconds + linear + attention)
	if !stable {
		p.refuse(RefusalUnstable)
		return p
	}
	p.price(c.QueueSeconds+wait, c.FixedSeconds, linear, attention)
	p.spread(c.spread())
	if c.PrefillUnavailable {
		p.refuse(RefusalUnavailable)
	}
	return p
}

// describeRecompute is p in words.
func describeRecompute(p *Price, r *Request, m *Model, c *Compute) ModePlan {
	linear, attention := prefillNotes(p.Tokens, r.PresentTokens, m, c)
	out := p.plan(backlogNote(c.QueueKnown, c.QueueSeconds > 0)+c.Queue.note(), "constant cost of a prefill", linear, attention)
	switch p.Refusal { //nolint:exhaustive // those that pricing gives
	case RefusalMissingInput:
		out.Reason = unknown(c.missing(m))
	case RefusalUnstable:
		out.Reason = unstable("Compute.Queue", c.Queue)
	case RefusalUnavailable:
		out.Reason = "the destination cannot prefill"
	}
	return out
}

// prefillNotes say how the prefill of so many tokens from a position on came about.
func prefillNotes(tokens, from int64, m *Model, c *Compute) (linear, attention string) {
	source := ""
	if c.Source != "" {
		source = ", " + c.Source
	}
	perToken, _, known := c.prefill(m)
	if !known {
		return "", ""
	}
	if c.measured() {
		linear = fmt.Sprintf("%d tokens x %.5g us (measured%s)", tokens, 1e6*perToken, source)
		switch {
		case c.SecondsPerTokenSquared == 0:
			return linear, "within the measured time a token"
		case m.AttentionOff:
			return linear, "off"
		}
		return linear, fmt.Sprintf("positions %d to %d, measured", from, from+tokens)
	}
	if c.SecondsPerToken > 0 {
		source += fmt.Sprintf("; the measurement of %v ago is too old", c.Age)
	}
	linear = fmt.Sprintf("%d tokens x %.5g us (2P at %.3g FLOP/s%s)", tokens, 1e6*perToken, c.flops(), source)
	if m.AttentionOff {
		return linear, "off"
	}
	return linear, fmt.Sprintf("positions %d to %d", from, from+tokens)
}

func backlogNote(known, some bool) string {
	if known || some {
		return "visible backlog"
	}
	return "backlog unknown, not counted"
}

func unstable(field string, q *Queue) string {
	return fmt.Sprintf("%s has no steady state: utilization %g is not below 1", field, q.Utilization)
}
