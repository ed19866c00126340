package crossover

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// heldOut never takes a length of the sweep, stays within bounds and spans them.
func TestHeldOut(t *testing.T) {
	if got, want := heldOut([]int64{32, 48, 80, 112, 160, 224, 336}, 16, 4096, 6), []int64{16, 64, 96, 128, 192, 352}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := heldOut([]int64{16, 32, 48, 64}, 16, 4096, 6), []int64{80, 96, 112}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		block := int64(1) << rng.IntN(8)
		var sweep []int64
		for v := block * (1 + rng.Int64N(4)); len(sweep) < 2 || rng.IntN(3) > 0; v += block * (1 + rng.Int64N(6)) {
			sweep = append(sweep, v)
		}
		last := sweep[len(sweep)-1]
		longest := last + block*rng.Int64N(5)
		most := leastHeldOut + rng.IntN(6)
		got := heldOut(sweep, block, longest, most)
		if !slices.IsSorted(got) || len(got) > most {
			t.Fatalf("%v of %v to %d: %v", most, sweep, longest, got)
		}
		for i, v := range got {
			if v < block || v%block != 0 || v > longest || slices.Contains(sweep, v) || i > 0 && v == got[i-1] {
				t.Fatalf("%v to %d: %v", sweep, longest, got)
			}
		}
		if longest > last && (len(got) == 0 || got[len(got)-1] <= last) {
			t.Fatalf("%v to %d: %v does not go beyond", sweep, longest, got)
		}
		if longest >= last+leastHeldOut*block && len(got) < leastHeldOut {
			t.Fatalf("%v to %d: only %v", sweep, longest, got)
		}
	}
}

// Of trials on a line the fit is that line; a quarter of them far off changes it by little.
func TestFitCost(t *testing.T) {
	const bits, trips = 131072 * 8.0, 0.21
	trials := func(fixed, rate float64, lengths ...int64) (out []trial) {
		for _, n := range lengths {
			out = append(out, trial{tokens: n, seconds: trips + fixed + bits*float64(n)/rate, rate: rate})
		}
		return out
	}
	many := []int64{16, 64, 96, 128, 192, 352}
	for _, tc := range []struct {
		name        string
		fixed, rate float64
		lengths     []int64
	}{
		{"line", 0.02, 9e8, many}, {"nothing fixed", 0, 9e8, many}, {"slow", 0.02, 1e6, many}, {"one length", 0.02, 9e8, []int64{64, 64, 64}},
	} {
		c := fitCost(trials(tc.fixed, tc.rate, tc.lengths...), bits, trips)
		if math.Abs(c.fixed-tc.fixed) > 1e-9 || math.Abs(c.rate/tc.rate-1) > 1e-9 {
			t.Errorf("%s: %+v, want %v and %v", tc.name, c, tc.fixed, tc.rate)
		}
	}
	// Faster than the round trips that are charged: nothing fixed, and the rate makes up for it.
	if c := fitCost(trials(-0.05, 9e8, many...), bits, trips); c.fixed != 0 || c.rate < 9e8 {
		t.Errorf("below the round trips: %+v", c)
	}
	// Longer ones that are no slower say nothing of a rate but what their pages moved at.
	flat := trials(0.1, 9e8, many...)
	for i := range flat {
		flat[i].seconds = 0.6
	}
	if c := fitCost(flat, bits, trips); c.rate != 9e8 || c.fixed < 0.2 || c.fixed > 0.39 {
		t.Errorf("flat: %+v", c)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		all := trials(0.02, 9e8, slices.Concat(many, many, many)...)
		for i := range all {
			all[i].seconds += 1e-3 * rng.NormFloat64()
		}
		for _, i := range rng.Perm(len(all))[:4] {
			all[i].seconds *= 1 + 2*rng.Float64()
		}
		c := fitCost(all, bits, trips)
		for _, n := range []float64{32, 112, 336} {
			got, want := trips+c.fixed+bits*n/c.rate, trips+0.02+bits*n/9e8
			if math.Abs(got/want-1) > 0.04 {
				t.Fatalf("%v tokens: %v s, want %v; %+v", n, got, want, c)
			}
		}
	}
}
