package planner

import "fmt"

// Recompute prices prefilling tokens [i, j) again at the destination, i being Request.PresentTokens and j
// Request.PrefixTokens:
//
//	q_c + t0 + [2·P·(j−i) + 2·L·Hq·d·(j²−i²)] / (PeakFLOPS·MFU)
//
// The second addend in brackets is causal attention (QKᵀ and AV; 4·L·Hq·d·p for the token at position p, summed). It
// does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func Recompute(r Request, m Model, c Compute) ModePlan {
	p := ModePlan{Mode: ModeRecompute}
	if err := validate(r, m, c); err != nil {
		return p.refused(RefusalInvalidInput, "%v", err)
	}
	p.Tokens = r.PrefixTokens - r.PresentTokens
	linear, attention, missing := prefillTerms(r, m, c)
	if missing != nil {
		return p.missing(missing)
	}
	queue, stable := queueTerm(TermComputeQueue, c.QueueSeconds, backlogNote(c.QueueKnown, c.QueueSeconds > 0), c.Queue)
	if !stable {
		return p.refused(RefusalUnstable, "Compute.Queue has no steady state: utilization %g is not below 1", c.Queue.Utilization)
	}
	fixed := Term{Name: TermFixed, Seconds: c.FixedSeconds, Note: "constant cost of a prefill"}
	p = p.priced(queue, fixed, linear, attention).spread(c.Spread)
	if c.PrefillUnavailable {
		return p.refused(RefusalUnavailable, "the destination cannot prefill")
	}
	return p
}

// prefillTerms are the linear and the attention term; missing names the unknown inputs.
func prefillTerms(r Request, m Model, c Compute) (linear, attention Term, missing []string) {
	i, j := float64(r.PresentTokens), float64(r.PrefixTokens)
	perToken, missing := linearSecondsPerToken(m, c)
	linear = Term{Name: TermPrefillLinear, Seconds: perToken * (j - i)}
	attention = Term{Name: TermPrefillAttention}
	source := ""
	if c.Source != "" {
		source = ", " + c.Source
	}
	if c.SecondsPerToken > 0 {
		linear.Note = fmt.Sprintf("%.0f tokens x %.5g us (measured%s)", j-i, 1e6*perToken, source)
		attention.Note = "within the measured time a token"
		return linear, attention, nil
	}
	linear.Note = fmt.Sprintf("%.0f tokens x %.5g us (2P at %.3g FLOP/s%s)", j-i, 1e6*perToken, c.flops(), source)
	if m.AttentionOff {
		attention.Note = "off"
		return linear, attention, missing
	}
	for _, f := range []struct {
		name    string
		unknown bool
	}{
		{"Model.Layers", m.Layers == 0},
		{"Model.QueryHeads", m.QueryHeads == 0},
		{"Model.AttnHeadDim", m.AttnHeadDim == 0},
	} {
		if f.unknown {
			missing = append(missing, f.name+" (or Model.AttentionOff)")
		}
	}
	if missing != nil {
		return linear, attention, missing
	}
	// (j−i)(j+i) rather than j²−i²: no cancellation, so that 0 tokens cost exactly 0.
	flop := 2 * float64(m.Layers) * float64(m.QueryHeads) * m.AttnHeadDim * (j - i) * (j + i)
	attention.Seconds = flop / c.flops()
	attention.Note = fmt.Sprintf("positions %d to %d", r.PresentTokens, r.PrefixTokens)
	return linear, attention, nil
}

// queueTerm adds a visible backlog and the modelled wait of an unseen queue (nil: none). stable is false when that queue
// has no steady state.
func queueTerm(name string, backlog float64, note string, unseen *MM1) (t Term, stable bool) {
	t = Term{Name: name, Seconds: backlog, Note: note}
	if unseen == nil {
		return t, true
	}
	wait, stable := unseen.Wait()
	t.Seconds += wait
	t.Note += fmt.Sprintf("; M/M/1 at %.4g of %.4g/s", unseen.Utilization, unseen.ServiceRate)
	return t, stable
}

func backlogNote(known, some bool) string {
	if known || some {
		return "visible backlog"
	}
	return "backlog unknown, not counted"
}
