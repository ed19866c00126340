package repair

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestShort holds the closed form to a count over every outcome of small groups,
// and of a large one to a simulation.
func TestShort(t *testing.T) {
	for _, n := range []int{1, 2, 5, 8} {
		for s := 1; s <= 6; s++ {
			const p = 0.13
			want := 0.0
			for outcome := range 1 << (n + s) {
				q, lost, need := 1.0, 0, 0
				for i := range n + s {
					hit := outcome>>i&1 == 1
					switch {
					case hit && i < n:
						lost++
					case !hit && i >= n:
						need++
					}
					if hit {
						q *= p
					} else {
						q *= 1 - p
					}
				}
				if 2*lost > need { // with no packet lost nothing is short
					want += q
				}
			}
			if got := short(n, s, p, 1); math.Abs(got-want) > 1e-12 {
				t.Errorf("n %d, s %d: %v, want %v", n, s, got, want)
			}
		}
	}
	r := rand.New(rand.NewPCG(3, 1))
	const runs, n, s, loss, clump = 200000, 108, 10, 0.01, 3.0
	failed := 0
	for range runs {
		lost, parity := 0, 0
		mean := (clump + 1) / 2
		for range poisson(r, n*loss/mean) {
			lost++
			for r.Float64() > 1/mean {
				lost++
			}
		}
		for range s {
			if r.Float64() < loss {
				parity++
			}
		}
		if 2*lost > s-parity && lost > 0 {
			failed++
		}
	}
	got, want := short(n, s, loss, clump), float64(failed)/runs
	if math.Abs(got-want) > 4*math.Sqrt(want/runs) {
		t.Errorf("runs: %v, simulated %v", got, want)
	}
}

func poisson(r *rand.Rand, mean float64) int {
	n, p := 0, math.Exp(-mean)
	for u := r.Float64(); u > p; n++ {
		u *= r.Float64()
	}
	return n
}

// TestPlan has parity grow with loss, with runs and with what is at stake, stay
// below the cap, and be the least that suffices.
func TestPlan(t *testing.T) {
	plan := func(loss, clump, window float64) plan {
		p := plan{packets: MaxGroup, depth: 1, overhead: 25}
		p.allow(window)
		p.fit(loss, clump)
		return p
	}
	for _, tc := range []struct {
		loss, clump, window float64
		want                int
	}{
		{1e-5, 1, 2000, 2},
		{1e-4, 1, 2000, 4},
		{1e-3, 1, 2000, 6},
		{1e-2, 1, 2000, 15},
		{1e-3, 1, 20, 0},    // a small window bears it
		{1e-2, 1, 20, 4},    // and not this
		{1e-3, 4, 2000, 32}, // runs
		{0.5, 1, 2000, 33},  // the cap
	} {
		p := plan(tc.loss, tc.clump, tc.window)
		if p.symbols != tc.want {
			t.Errorf("loss %g, clump %g, window %g: %d symbols, want %d", tc.loss, tc.clump, tc.window, p.symbols, tc.want)
		}
		if p.symbols > 2 && p.symbols < p.limit(MaxGroup) && (short(MaxGroup, p.symbols, tc.loss, tc.clump) > p.allowed*MaxGroup || short(MaxGroup, p.symbols-1, tc.loss, tc.clump) <= p.allowed*MaxGroup) {
			t.Errorf("loss %g: %d symbols are not the least that suffice", tc.loss, p.symbols)
		}
	}
	last := 0
	for loss := 1e-6; loss < 0.3; loss *= 1.3 {
		p := plan(loss, 1, 2000)
		if p.symbols < last {
			t.Errorf("loss %g: %d symbols after %d", loss, p.symbols, last)
		}
		last = p.symbols
		if got := float64(p.symbols*(parityHead+3*MaxGroup+672+ipBytes)) / (MaxGroup * 1308); got > 0.25 {
			t.Errorf("loss %g: overhead %.3f", loss, got)
		}
	}
}
