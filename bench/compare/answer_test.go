package compare

import "testing"

func TestAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, to, quantity string
		v                  []float64
		want               string
	}{
		{"all above", nameGRPC, QuantityGoodput, []float64{1.1, 1.2, 1.05}, AnswerMet},
		{"median above, interval below too", nameGRPC, QuantityGoodput, []float64{1.1, 1.2, 0.9}, AnswerUnclear},
		{"median below, interval above too", nameGRPC, QuantityGoodput, []float64{0.8, 1.2, 0.9}, AnswerUnclear},
		{"all below", nameGRPC, QuantityGoodput, []float64{0.8, 0.7, 0.9}, AnswerMissed},
		{"one round", nameGRPC, QuantityGoodput, []float64{1.5}, AnswerUnclear},
		{"one far round of many", nameGRPC, QuantityGoodput, []float64{1.1, 1.2, 1.3, 1.1, 1.2, 1.3, 1.2, 1.1, 1.2, 0.5}, AnswerMet},
		{"CPU below", nameMemory, QuantityCPU, []float64{1.05, 1, 1.09}, AnswerMet},
		{"CPU above", nameMemory, QuantityCPU, []float64{1.15, 1.2, 1.3}, AnswerMissed},
		{"CPU about", nameMemory, QuantityCPU, []float64{1.05, 1.2, 1}, AnswerUnclear},
		{"no aim", nameTCP, QuantityGoodput, []float64{1, 2}, ""},
	} {
		r := newRatio(c.to, c.quantity, c.v)
		if r.Answer != c.want || (r.Met != nil) != (c.want == AnswerMet || c.want == AnswerMissed) || r.Met != nil && *r.Met != (c.want == AnswerMet) {
			t.Errorf("%s: %q, met %v; want %q", c.name, r.Answer, r.Met, c.want)
		}
	}
}
