package planner

import (
	"math"
	"testing"
)

// llama70B is Llama-3.1-70B with P without the input embedding and the LM head: 136.9 GFLOP a token.
func llama70B() Model {
	return Model{
		Name: "llama-3.1-70b", BytesPerToken: 327_680, BlockTokens: 16, ParamsActive: 68.45e9,
		Layers: 80, QueryHeads: 64, AttnHeadDim: 128,
	}
}

func h100() Compute { return Compute{PeakFLOPS: 989e12, MFU: 0.40, QueueKnown: true} }

// "equal at p* = 52.2k": where the attention of one more token costs what its linear part costs.
func TestAttentionEqualsLinearAt52k(t *testing.T) {
	t.Parallel()
	at := func(p int64) (linear, attention float64) {
		plan := Recompute(Request{PrefixTokens: p + 1, PresentTokens: p}, llama70B(), h100())
		linear, _ = plan.Term(TermPrefillLinear)
		attention, _ = plan.Term(TermPrefillAttention)
		return linear, attention
	}
	p := int64(0)
	for linear, attention := at(p); attention < linear; linear, attention = at(p) {
		p += 10
	}
	if math.Abs(float64(p)-52_200) > 50 {
		t.Errorf("attention reaches the linear cost at token %d, want 52.2k", p)
	}
}

// "The base formula is off by x0.99 (1k), x1.05 (8k), x1.28 (32k), x1.58 (64k), x2.18 (128k)"; k = 1,000.
func TestAttentionAgainstBaseFormula(t *testing.T) {
	t.Parallel()
	base := Model{ParamsActive: 70e9, AttentionOff: true}
	for tokens, want := range map[int64]float64{1000: 0.99, 8000: 1.05, 32_000: 1.28, 64_000: 1.58, 128_000: 2.18} {
		r := Request{PrefixTokens: tokens}
		got := Recompute(r, llama70B(), h100()).Seconds / Recompute(r, base, h100()).Seconds
		if Round(got, 2) != want {
			t.Errorf("%d tokens: x%.4f of the base formula, want x%v", tokens, got, want)
		}
	}
}

// Brute force: the cost of [i, j) is the sum over its tokens of (2P + 4·L·Hq·d·p)/F. Summing p from i to j−1 gives
// (j²−i²)/2 − (j−i)/2; the model's integral drops the second part, half a position a token.
func TestRecomputeAgainstSumOverTokens(t *testing.T) {
	t.Parallel()
	m, c := llama70B(), h100()
	for _, r := range [][2]int64{{0, 1}, {0, 4096}, {1000, 5000}, {30_000, 30_016}, {4096, 4096}} {
		flop := 0.0
		for p := r[0]; p < r[1]; p++ {
			flop += 2*68.45e9 + 4*80*64*128*(float64(p)+0.5)
		}
		want := flop / (989e12 * 0.40)
		got := Recompute(Request{PresentTokens: r[0], PrefixTokens: r[1]}, m, c)
		if math.Abs(got.Seconds-want) > 1e-9*want || !got.Eligible || got.Tokens != r[1]-r[0] {
			t.Errorf("[%d,%d): %v s, %d tokens, want %v s", r[0], r[1], got.Seconds, got.Tokens, want)
		}
	}
}

// Splitting a prefill in two costs the same work; queue and fixed cost come once each.
func TestRecomputeTermsAddUp(t *testing.T) {
	t.Parallel()
	c := h100()
	c.FixedSeconds, c.QueueSeconds, c.Queue = 0.01, 0.5, &Queue{ServiceRate: 20, Utilization: 0.5}
	p := Recompute(Request{PrefixTokens: 8000}, llama70B(), c)
	queue, _ := p.Term(TermComputeQueue)
	fixed, _ := p.Term(TermFixed)
	if math.Abs(queue-0.55) > 1e-12 || fixed != 0.01 { // Wq = 0.5/(20·0.5) = 0.05
		t.Errorf("queue %v, fixed %v; want 0.55, 0.01", queue, fixed)
	}
	front := Recompute(Request{PrefixTokens: 3000}, llama70B(), h100()).Seconds
	back := Recompute(Request{PrefixTokens: 8000, PresentTokens: 3000}, llama70B(), h100()).Seconds
	if math.Abs(front+back+0.56-p.Seconds) > 1e-9 {
		t.Errorf("front %v + back %v + 0.56 != whole %v", front, back, p.Seconds)
	}
}

func TestRecomputeMeasuredRateWins(t *testing.T) {
	t.Parallel()
	// NIM: 5,000 tokens in 406.8 ms on two H100 in FP8.
	c := Compute{SecondsPerToken: 0.4068 / 5000, PeakFLOPS: 1, Source: "NIM 1.8"}
	p := Recompute(Request{PrefixTokens: 5000}, Model{}, c)
	if !p.Eligible || math.Abs(p.Seconds-0.4068) > 1e-12 {
		t.Errorf("%+v, want 0.4068 s", p)
	}
	const note = "5000 tokens x 81.36 us (measured, NIM 1.8)"
	if p.Terms[2].Note != note {
		t.Errorf("note %q, want %q", p.Terms[2].Note, note)
	}
}

func TestRecomputeRefusals(t *testing.T) {
	t.Parallel()
	r := Request{PrefixTokens: 100}
	busy := h100()
	busy.Queue = &Queue{ServiceRate: 20, Utilization: 1.2}
	draining := h100()
	draining.PrefillUnavailable = true
	for _, tc := range []struct {
		name    string
		plan    ModePlan
		refusal Refusal
		reason  string
		priced  bool
	}{
		{
			"nothing known", Recompute(r, Model{AttentionOff: true}, Compute{}), RefusalMissingInput,
			"unknown: Model.ParamsActive, Compute.PeakFLOPS (or a measured Compute.SecondsPerToken)", false,
		},
		{
			"no attention shape", Recompute(r, Model{ParamsActive: 1e9, Layers: 2}, h100()), RefusalMissingInput,
			"unknown: Model.QueryHeads (or Model.AttentionOff), Model.AttnHeadDim (or Model.AttentionOff)", false,
		},
		{
			"unstable queue", Recompute(r, llama70B(), busy), RefusalUnstable,
			"Compute.Queue has no steady state: utilization 1.2 is not below 1", false,
		},
		{"draining", Recompute(r, llama70B(), draining), RefusalUnavailable, "the destination cannot prefill", true},
		{
			"invalid", Recompute(r, llama70B(), Compute{MFU: 40}), RefusalInvalidInput,
			"planner: Compute.MFU is 40: must be 0 or between 1e-06 and 1; give a fraction (0.4 for 40 %), or 0 for the default", false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := tc.plan
			if p.Eligible || p.Refusal != tc.refusal || p.Reason != tc.reason || p.Priced != tc.priced {
				t.Errorf("eligible %v, priced %v, %v, %q", p.Eligible, p.Priced, p.Refusal, p.Reason)
			}
			if !p.Priced && (p.Seconds != 0 || p.Terms != nil) {
				t.Errorf("not priced, yet %v s and terms %v", p.Seconds, p.Terms)
			}
		})
	}
}
