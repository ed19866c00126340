package hybrid

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
)

// Thirty migrations at random settings, each at a link that the daemon has measured by five fetches: what the plan said against what they took.
func TestPredictions(t *testing.T) {
	var off []float64
	rng := rand.New(rand.NewPCG(3, 5))
	modes := map[string]int{}
	n := 30
	if testing.Short() {
		n = 2
	}
	for i := range n {
		p := randomPlace(rng)
		inBubble(t, fmt.Sprint(i), func(t *testing.T) {
			r, err := real(t.Context(), p)
			if err != nil {
				t.Fatalf("%d: %+v: %v", i, p, err)
			}
			t.Logf("%d: %.0f Mbit/s, %v, %d tokens of %.0f us: %s, predicted %.3f s, actual %.3f s (%+.1f %%), %d prefilled, %d moved, %d bytes twice",
				i, p.wan.Rate/1e6, p.wan.RTT, p.tokens, p.prefill*1e6, r.Mode, r.Predicted, r.Actual, 100*r.Error(), r.BlocksComputed, r.BlocksMoved, r.DuplicateBytes)
			modes[r.Mode]++
			if r.Mode != "recompute" { // whose prefill comes after the migration
				off = append(off, math.Abs(r.Error()))
			}
		})
	}
	slices.Sort(off)
	median, p95 := off[len(off)/2], off[len(off)*95/100]
	t.Logf("%v; error: median %.1f %%, P95 %.1f %%", modes, 100*median, 100*p95)
	if median > 0.1 || p95 > 0.25 {
		t.Errorf("prediction is off by %.1f %% in the median, %.1f %% at P95", 100*median, 100*p95)
	}
}

// Real bytes over the link model into a paced engine take what the simulation says, within 5 %.
func TestRealAgainstSimulation(t *testing.T) {
	places := realPlaces(12)
	if testing.Short() {
		places = places[:1]
	}
	for i, p := range places {
		inBubble(t, fmt.Sprint(i), func(t *testing.T) {
			r, err := real(t.Context(), p)
			if err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			off := r.Actual/r.Simulated - 1
			t.Logf("%.0f Mbit/s (goodput %.1f), %v, %d tokens of %.0f us: simulated %.3f s, planned %.3f s, took %.3f s (%+.1f %%), %d prefilled, %d moved, %d bytes twice",
				p.wan.Rate/1e6, r.GoodputBps/1e6, p.wan.RTT, p.tokens, p.prefill*1e6, r.Simulated, r.Predicted, r.Actual, 100*off, r.BlocksComputed, r.BlocksMoved, r.DuplicateBytes)
			if math.Abs(off) > 0.05 {
				t.Errorf("%+.1f %% off the simulation", 100*off)
			}
		})
	}
}

func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
