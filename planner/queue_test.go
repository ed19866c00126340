package planner

import (
	"math"
	"testing"
)

// Wq = ρ/(μ(1−ρ)), checked against the state probabilities: an arrival that finds n waits n mean services, and finds n
// with probability (1−ρ)ρⁿ.
func TestMM1WaitAgainstStates(t *testing.T) {
	t.Parallel()
	for _, q := range []MM1{{20, 0}, {20, 0.1}, {1, 0.5}, {0.25, 0.9}, {1000, 0.99}} {
		want, p := 0.0, 1-q.Utilization
		for n := range 20_000 {
			want += p * float64(n) / q.ServiceRate
			p *= q.Utilization
		}
		got, ok := q.Wait()
		if !ok || math.Abs(got-want) > 1e-9*max(want, 1) {
			t.Errorf("%+v: %v, %v; want %v", q, got, ok, want)
		}
	}
}

func TestMM1HasNoAnswer(t *testing.T) {
	t.Parallel()
	for _, q := range []MM1{
		{20, 1},
		{20, 1.5},
		{0, 0.5},
		{-1, 0.5},
		{20, -0.1},
		{math.NaN(), 0.5},
		{20, math.NaN()},
		{math.Inf(1), 0.5},
		{20, math.Inf(1)},
	} {
		if wait, ok := q.Wait(); ok || wait != 0 {
			t.Errorf("%+v: %v, %v; want no answer", q, wait, ok)
		}
	}
}

func TestCrossoverUtilizationHasNoAnswer(t *testing.T) {
	t.Parallel()
	idle := MM1{ServiceRate: 20}
	for name, f := range map[string]func() (float64, bool){
		"fetch slower":     func() (float64, bool) { return CrossoverUtilization(1, 1.1, idle, 20) },
		"unstable compute": func() (float64, bool) { return CrossoverUtilization(1, 0.5, MM1{20, 1}, 20) },
		"no rate":          func() (float64, bool) { return CrossoverUtilization(1, 0.5, idle, 0) },
		"NaN":              func() (float64, bool) { return CrossoverUtilization(math.NaN(), 0.5, idle, 20) },
		"infinite":         func() (float64, bool) { return CrossoverUtilization(math.Inf(1), 0.5, idle, 20) },
	} {
		if rho, ok := f(); ok || rho != 0 {
			t.Errorf("%s: %v, %v; want none", name, rho, ok)
		}
	}
	if rho, ok := CrossoverUtilization(1, 1, idle, 20); !ok || rho != 0 {
		t.Errorf("equal: %v, %v; want 0, true", rho, ok)
	}
}
