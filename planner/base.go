package planner

import (
	"errors"
	"math"
	"time"
)

// BaseInput holds the inputs of the base model. In a preset every field is set but for the queues of presets that have
// none; as overrides, zero fields keep the preset's value.
type BaseInput struct {
	BytesPerToken Bytes         // KV bytes a token
	Params        float64       // P, all parameters, in 2·P FLOPs a token
	PeakFLOPS     float64       // FLOP a second
	MFU           float64       // share of PeakFLOPS, above 0 to 1
	RTT           time.Duration // round-trip time
	Goodput       Rate          // bits a second
	PrefixTokens  int64         // tokens
	// ComputeServiceRate and FetchServiceRate are μ of the two M/M/1 queues, in requests a second. Zero in a preset: it
	// has no queues, and no crossover utilization.
	ComputeServiceRate float64
	FetchServiceRate   float64
	// ComputeUtilization is ρ of the compute queue, below 1. Negative as an override: an idle queue.
	ComputeUtilization float64
}

// BasePreset is a published set of inputs of the base model.
type BasePreset struct {
	Name   string
	Source string // where the inputs come from
	Input  BaseInput
}

// CrossoverPreset is Llama-3.1-70B (80 layers, 8 KV heads of 128, BF16, P = 70e9) on 989e12 FLOPS at MFU 0.40, 100 Gbps,
// 70 ms and 1,000 tokens. It has no queues.
func CrossoverPreset() BasePreset {
	return BasePreset{
		Name:   "crossover",
		Source: "base model, crossover preset: L=80 H=8 C=128 BF16, P=70e9, 989e12 FLOPS, MFU 0.40, RTT 70 ms, 100 Gbps",
		Input: BaseInput{
			BytesPerToken: 2 * 80 * 8 * 128 * 2, Params: 70e9, PeakFLOPS: 989e12, MFU: 0.40,
			RTT: 70 * time.Millisecond, Goodput: 100e9, PrefixTokens: 1000,
		},
	}
}

// UtilizationPreset is [CrossoverPreset] with 600 tokens and two queues of 20 requests a second, the compute queue's
// utilization being 0.1.
func UtilizationPreset() BasePreset {
	p := CrossoverPreset()
	p.Name = "utilization"
	p.Source = "base model, utilization preset: as crossover, 600 tokens, both queues 20/s, compute queue at 0.1"
	p.Input.PrefixTokens = 600
	p.Input.ComputeServiceRate, p.Input.FetchServiceRate, p.Input.ComputeUtilization = 20, 20, 0.1
	return p
}

// BaseResult is what the base model says. Its JSON is what the command line prints, once rounded.
type BaseResult struct {
	BytesPerToken       Bytes   `json:"bytes_per_token"`
	RecomputeUsPerToken float64 `json:"recompute_us_per_token"` // t_c, microseconds
	FetchUsPerToken     float64 `json:"fetch_us_per_token"`     // t_f, microseconds
	// CrossoverTokens is RTT/(t_c − t_f) to the nearest token. Nil: none, t_c ≤ t_f.
	CrossoverTokens  *int64  `json:"crossover_tokens"`
	RecomputeSeconds float64 `json:"recompute_seconds"` // N·t_c, service only
	FetchSeconds     float64 `json:"fetch_seconds"`     // RTT + N·t_f, service only
	// CrossoverUtilization is the fetch queue's utilization at which both take as long. Nil: the preset has no queues,
	// or fetch is slower even with none.
	CrossoverUtilization *float64 `json:"crossover_utilization"`
}

// Rounded returns a copy as it is printed: microseconds to 2 decimals, seconds to 5, the utilization to 4.
func (b BaseResult) Rounded() BaseResult {
	b.RecomputeUsPerToken = Round(b.RecomputeUsPerToken, 2)
	b.FetchUsPerToken = Round(b.FetchUsPerToken, 2)
	b.RecomputeSeconds = Round(b.RecomputeSeconds, 5)
	b.FetchSeconds = Round(b.FetchSeconds, 5)
	if b.CrossoverUtilization != nil {
		rho := Round(*b.CrossoverUtilization, 4)
		b.CrossoverUtilization = &rho
	}
	return b
}

// EvaluateBase evaluates the base model on the preset's inputs, the non-zero fields of overrides replacing them. The
// result is exact; [BaseResult.Rounded] is for print. Errors: one [InputError] a fault, joined.
func EvaluateBase(preset BasePreset, overrides BaseInput) (BaseResult, error) {
	in := preset.Input.with(overrides)
	if err := in.validate(); err != nil {
		return BaseResult{}, err
	}
	m, c, l := in.parts()
	r := Request{PrefixTokens: in.PrefixTokens, RoundTrips: 1}
	recompute, fetch := Recompute(r, m, c), Fetch(r, m, l)
	tc, _ := c.perToken(&m)
	out := BaseResult{
		BytesPerToken:       in.BytesPerToken,
		RecomputeUsPerToken: 1e6 * tc,
		FetchUsPerToken:     1e6 * in.Goodput.seconds(float64(in.BytesPerToken)),
		RecomputeSeconds:    recompute.Seconds,
		FetchSeconds:        fetch.Seconds,
	}
	// A crossover beyond what an int64 holds is as good as none.
	if n, ok := Crossover(m, c, l); ok && n < math.MaxInt64/2 {
		tokens := int64(math.Round(n))
		out.CrossoverTokens = &tokens
	}
	if in.ComputeServiceRate > 0 && in.FetchServiceRate > 0 {
		queue := MM1{ServiceRate: in.ComputeServiceRate, Utilization: in.ComputeUtilization}
		if rho, ok := CrossoverUtilization(recompute.Seconds, fetch.Seconds, queue, in.FetchServiceRate); ok {
			out.CrossoverUtilization = &rho
		}
	}
	return out, nil
}

// parts gives the inputs to the full planner: linear, warm, no window cap.
func (in BaseInput) parts() (Model, Compute, Link) {
	return Model{BytesPerToken: in.BytesPerToken, ParamsActive: in.Params, AttentionOff: true},
		Compute{PeakFLOPS: in.PeakFLOPS, MFU: in.MFU},
		Link{RTT: in.RTT, Goodput: in.Goodput, WindowPackets: -1}
}

// with replaces fields by o's non-zero ones.
func (in BaseInput) with(o BaseInput) BaseInput {
	replace(&in.BytesPerToken, o.BytesPerToken)
	replace(&in.Params, o.Params)
	replace(&in.PeakFLOPS, o.PeakFLOPS)
	replace(&in.MFU, o.MFU)
	replace(&in.RTT, o.RTT)
	replace(&in.Goodput, o.Goodput)
	replace(&in.PrefixTokens, o.PrefixTokens)
	replace(&in.ComputeServiceRate, o.ComputeServiceRate)
	replace(&in.FetchServiceRate, o.FetchServiceRate)
	replace(&in.ComputeUtilization, o.ComputeUtilization)
	if in.ComputeUtilization < 0 && !math.IsInf(in.ComputeUtilization, -1) {
		in.ComputeUtilization = 0
	}
	return in
}

func replace[T comparable](dst *T, v T) {
	var zero T
	if v != zero {
		*dst = v
	}
}

// validate wants every input of the base model, in range.
func (in BaseInput) validate() error {
	var f faults
	const fix = "set it, or leave the override 0 to keep the preset's value"
	for _, v := range []struct {
		field  string
		v      float64
		lo, hi float64
	}{
		{"BaseInput.BytesPerToken", float64(in.BytesPerToken), 1, maxBytesPerToken},
		{"BaseInput.Params", in.Params, 1, maxParams},
		{"BaseInput.PeakFLOPS", in.PeakFLOPS, 1, maxFLOPS},
		{"BaseInput.MFU", in.MFU, 1e-6, 1},
		{"BaseInput.RTT", in.RTT.Seconds(), 1e-9, maxSeconds},
		{"BaseInput.Goodput", float64(in.Goodput), 1, maxRate},
		{"BaseInput.PrefixTokens", float64(in.PrefixTokens), 1, maxTokens},
	} {
		f.required(v.field, v.v, v.lo, v.hi, fix)
	}
	f.float("BaseInput.ComputeServiceRate", in.ComputeServiceRate, 1e-9, 1e12, fix)
	f.float("BaseInput.FetchServiceRate", in.FetchServiceRate, 1e-9, 1e12, fix)
	f.float("BaseInput.ComputeUtilization", in.ComputeUtilization, 0, math.Nextafter(1, 0), fix)
	return errors.Join(f.errs...)
}
