package planner

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Noise alone alarms at the stated rate at most; a shift by a quarter, by half or by two, up or down, soon does, with its length.
func TestPageHinkley(t *testing.T) {
	t.Parallel()
	for _, sigma := range []float64{0.01, 0.05, 0.1} {
		alarms := 0
		const draws = 2_000_000
		rng := rand.New(rand.NewPCG(1, uint64(1000*sigma)))
		var p PageHinkley
		for range draws {
			if _, alarm := p.Observe(sigma * rng.NormFloat64()); alarm {
				alarms++
			}
		}
		t.Logf("sigma %.2f: %d alarms in %d stationary draws", sigma, alarms, draws)
		if alarms > 2 {
			t.Errorf("sigma %v: %d alarms in %d draws", sigma, alarms, draws)
		}
		for _, tc := range []struct {
			ratio        float64
			median, most int
		}{{1.25, 8, 24}, {0.75, 6, 16}, {1.5, 3, 6}, {2, 3, 4}, {0.5, 3, 4}} {
			var delays []int
			for range 500 {
				p.Reset()
				for range 200 {
					if _, alarm := p.Observe(sigma * rng.NormFloat64()); alarm {
						t.Fatal("an alarm without a shift")
					}
				}
				for n := 1; ; n++ {
					since, alarm := p.Observe(math.Log(tc.ratio) + sigma*rng.NormFloat64())
					if !alarm {
						continue
					}
					delays = append(delays, n)
					if since > n+12 || since < 2 {
						t.Errorf("ratio %v: after %d samples it says %d", tc.ratio, n, since)
					}
					break
				}
			}
			slices.Sort(delays)
			t.Logf("sigma %.2f, ratio %v: median %d samples, at most %d", sigma, tc.ratio, delays[250], delays[499])
			if delays[250] > tc.median || delays[499] > tc.most {
				t.Errorf("sigma %v, ratio %v: median %d, at most %d samples", sigma, tc.ratio, delays[250], delays[499])
			}
		}
	}
}

// One sample alone is no change; NaN and infinities do no harm; an alarm forgets.
func TestPageHinkleyEdges(t *testing.T) {
	t.Parallel()
	var p PageHinkley
	for _, x := range []float64{math.NaN(), math.Inf(1), 0, -1e300, 0, 0, 0, 0, math.NaN()} {
		if since, alarm := p.Observe(x); alarm || since != 0 {
			t.Errorf("%v alarmed", x)
		}
	}
	if p.Observe(0.3); p.Quiet() {
		t.Error("quiet after a sample that counts")
	}
	if p.Reset(); !p.Quiet() {
		t.Error("not quiet after a reset")
	}
	for i, want := range []bool{false, false, true, false, false, true} {
		since, alarm := p.Observe(10)
		if alarm != want || alarm && since != 3 {
			t.Errorf("sample %d: %v, %d", i, alarm, since)
		}
	}
	custom := PageHinkley{Drift: 1, Alarm: 1.5, Sample: 3}
	if _, alarm := custom.Observe(2); alarm {
		t.Error("alarmed at 1")
	}
	if since, alarm := custom.Observe(2); !alarm || since != 2 {
		t.Error("did not alarm at 2")
	}
}
