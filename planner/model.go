package planner

import "time"

// Model is what the planner needs to know of a language model. Plain numbers; the zero value knows nothing.
type Model struct {
	// Name appears in notes only.
	Name string
	// BytesPerToken is the KV cache of one token over all layers, in bytes on the wire: 2·80·8·128·2 = 327,680 for
	// Llama-3.1-70B in BF16. Zero: unknown, and fetch needs Request.MissingBytes instead.
	BytesPerToken Bytes
	// BlockTokens is the tokens in one block. Only whole blocks move. Zero: tokens move singly, as in the base model.
	BlockTokens int
	// ParamsActive is P in 2·P FLOPs a token: the parameters that one token is multiplied with (active ones in a
	// mixture of experts; without the embeddings where that is known, 68.45e9 for Llama-3.1-70B). Zero: unknown.
	ParamsActive float64
	// Layers is the number of layers with full attention. Zero: unknown.
	Layers int
	// QueryHeads is the number of query heads a layer (not KV heads): 64 for Llama-3.1-70B. Zero: unknown.
	QueryHeads int
	// AttnHeadDim is the head dimension that attention costs: 128 for Llama-3.1-70B; the mean of the key and the value
	// dimension where they differ, (192+128)/2 for DeepSeek-V3. Zero: unknown.
	AttnHeadDim float64
	// AttentionOff leaves the quadratic attention term out, as the base model does. Without it an unknown Layers,
	// QueryHeads or AttnHeadDim leaves recompute unpriced.
	AttentionOff bool
}

// Validate joins one [InputError] a fault, nil when there is none. Unknown (zero) fields are valid.
func (m Model) Validate() error {
	var f faults
	f.integer("Model.BytesPerToken", int64(m.BytesPerToken), 0, maxBytesPerToken, "give the KV bytes of one token over all layers, or 0 if unknown")
	f.integer("Model.BlockTokens", int64(m.BlockTokens), 0, maxTokens, "give the layout's tokens a block, or 0 to count single tokens")
	f.float("Model.ParamsActive", m.ParamsActive, 1, maxParams, "give the parameters active for one token, or 0 if unknown")
	f.integer("Model.Layers", int64(m.Layers), 0, maxCount, "give the layers with full attention, or 0 if unknown")
	f.integer("Model.QueryHeads", int64(m.QueryHeads), 0, maxCount, "give the query heads a layer, or 0 if unknown")
	f.float("Model.AttnHeadDim", m.AttnHeadDim, 1, maxCount, "give the attention head dimension, or 0 if unknown")
	return f.join()
}

// DefaultMFU is the share of peak FLOPS that prefill reaches when nothing better is known. Source: Llama-3.3-70B FP8 on
// two H100 prefills at 0.45 to 0.49 of dense peak (docs.nvidia.com/nim/benchmarking, versions 1.5 and 1.8).
const DefaultMFU = 0.45

// Compute is the replica at the destination that would prefill.
type Compute struct {
	// PeakFLOPS is the replica's peak, all its GPUs together, in FLOP a second at the precision it prefills in
	// (989e12 for one H100 in dense BF16). Zero: unknown.
	PeakFLOPS float64
	// MFU is the share of PeakFLOPS that prefill reaches, above 0 to 1. Zero: [DefaultMFU].
	MFU float64
	// SecondsPerToken is a measured prefill time a token, in seconds, attention included. Above zero it replaces both
	// prefill terms and needs neither PeakFLOPS nor the model's shape. It holds near the prompt lengths that it was
	// measured at. Zero: not measured.
	SecondsPerToken float64
	// SecondsPerTokenSquared is b beside a measured SecondsPerToken, in seconds a token²: prefilling [i, j) takes b·(j²−i²) more, so that both
	// hold at any length. Zero: SecondsPerToken says it all. Without that it means nothing.
	SecondsPerTokenSquared float64
	// FixedSeconds is t0, the constant cost of a prefill (scheduling, launch), in seconds.
	FixedSeconds float64
	// QueueSeconds is the visible backlog: seconds of prefill that run before this one.
	QueueSeconds float64
	// QueueKnown says that QueueSeconds was observed, so that 0 means an empty queue and not an unknown one. It changes
	// the note of the term, not the price.
	QueueKnown bool
	// Queue models work that cannot be seen; its wait adds to QueueSeconds. Nil: none.
	Queue *Queue
	// Age is how long ago SecondsPerToken was measured. Zero: right now.
	Age time.Duration
	// MaxAge is the age beyond which SecondsPerToken and Spread count as unknown. Zero: [DefaultMaxAge]; negative: no age is
	// too old.
	MaxAge time.Duration
	// Spread is the standard deviation of a recompute's time over its expectation, 0.1 for 10 %. What else runs on the
	// replica widens it and does not move the mean. Zero: not known.
	Spread float64
	// PrefillUnavailable says that the replica cannot prefill at all (draining, out of memory): recompute is priced and
	// refused.
	PrefillUnavailable bool
	// Source says where the figures come from ("measured: 64 prefills", "spec sheet"). It is quoted in notes.
	Source string
}

// Validate joins one [InputError] a fault, nil when there is none. Unknown (zero) fields are valid.
func (c Compute) Validate() error {
	var f faults
	f.float("Compute.PeakFLOPS", c.PeakFLOPS, 1, maxFLOPS, "give the replica's peak in FLOP a second (989e12, not 989), or 0 if unknown")
	f.float("Compute.MFU", c.MFU, 1e-6, 1, "give a fraction (0.4 for 40 %), or 0 for the default")
	f.float("Compute.SecondsPerToken", c.SecondsPerToken, 1e-12, 1e6, "give measured seconds a token, or 0 if not measured")
	f.float("Compute.SecondsPerTokenSquared", c.SecondsPerTokenSquared, 0, 1e6, "give measured seconds a token squared, or 0 if not measured")
	f.float("Compute.FixedSeconds", c.FixedSeconds, 0, maxSeconds, "give seconds, or 0")
	f.float("Compute.QueueSeconds", c.QueueSeconds, 0, maxSeconds, "give the backlog in seconds, or 0")
	f.float("Compute.Spread", c.Spread, minSpread, maxSpread, "give a standard deviation over its mean (0.1 for 10 %), or 0 if not known")
	f.duration("Compute.Age", c.Age, "give the age of the measurement")
	c.Queue.validate(&f, "Compute.Queue")
	return f.join()
}

// flops is F, the FLOP a second that prefill gets; 0 if unknown.
func (c *Compute) flops() float64 {
	if c.MFU == 0 {
		return c.PeakFLOPS * DefaultMFU
	}
	return c.PeakFLOPS * c.MFU
}

// Law is what a prefill of m takes on the replica by itself, its queues left out. ok is false when an input is missing, or too old.
func (c Compute) Law(m Model) (law PrefillLaw, ok bool) {
	linear, quadratic, known := c.prefill(&m)
	if !known {
		return PrefillLaw{}, false
	}
	return PrefillLaw{Fixed: c.FixedSeconds, Linear: linear, Quadratic: quadratic}, true
}

// measured says that SecondsPerToken is there and not too old.
func (c *Compute) measured() bool { return c.SecondsPerToken > 0 && fresh(c.Age, c.MaxAge) }

// spread is the relative spread of a prefill; 0: not known. That of a measurement too old goes with it.
func (c *Compute) spread() float64 {
	if c.SecondsPerToken > 0 && !c.measured() {
		return 0
	}
	return c.Spread
}

// prefill is what tokens [i, j) cost: linear·(j−i) + quadratic·(j²−i²) seconds. known is false when an input is missing.
func (c *Compute) prefill(m *Model) (linear, quadratic float64, known bool) {
	linear, known = c.perToken(m)
	switch {
	case !known || m.AttentionOff:
		return linear, 0, known
	case c.measured():
		return linear, c.SecondsPerTokenSquared, true
	}
	if m.Layers == 0 || m.QueryHeads == 0 || m.AttnHeadDim == 0 {
		return 0, 0, false
	}
	return linear, 2 * float64(m.Layers) * float64(m.QueryHeads) * m.AttnHeadDim / c.flops(), true
}

// perToken is t_c, the seconds a token without attention.
func (c *Compute) perToken(m *Model) (seconds float64, known bool) {
	switch {
	case c.measured():
		return c.SecondsPerToken, true
	case m.ParamsActive == 0 || c.PeakFLOPS == 0:
		return 0, false
	}
	return 2 * m.ParamsActive / c.flops(), true
}

// missing names the inputs that prefill lacks.
func (c *Compute) missing(m *Model) []string {
	var missing []string
	for _, f := range []struct {
		name    string
		unknown bool
	}{
		{"Model.ParamsActive", m.ParamsActive == 0},
		{"Compute.PeakFLOPS (or a measured Compute.SecondsPerToken)", c.PeakFLOPS == 0},
		{"Model.Layers (or Model.AttentionOff)", m.Layers == 0 && !m.AttentionOff},
		{"Model.QueryHeads (or Model.AttentionOff)", m.QueryHeads == 0 && !m.AttentionOff},
		{"Model.AttnHeadDim (or Model.AttentionOff)", m.AttnHeadDim == 0 && !m.AttentionOff},
	} {
		if f.unknown {
			missing = append(missing, f.name)
		}
	}
	return missing
}
