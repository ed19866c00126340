package planner

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A wider spread raises sigma and P95 of its own mode and moves nothing else: not the expected seconds, not a term, not the
// other mode.
func TestSpreadIsMonotonic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		s := world(rng)
		for mode, spread := range map[Mode]func(*script) *float64{
			ModeFetch:     func(s *script) *float64 { return &s.l.Spread },
			ModeRecompute: func(s *script) *float64 { return &s.c.Spread },
		} {
			last, seconds := -1.0, math.NaN()
			for _, wide := range []float64{0, 0.01, 0.1, 0.2, 0.4, 1} {
				changed := *s
				*spread(&changed) = wide
				d := changed.decide(t)
				checkDecision(t, d)
				p, _ := d.Plan(mode)
				if p.SigmaSeconds != wide*p.Seconds || p.P95Seconds < last {
					t.Fatalf("%v of spread %v: %+v after a P95 of %v", mode, wide, p, last)
				}
				if last >= 0 && p.Seconds != seconds {
					t.Fatalf("%v of spread %v takes %v s, not %v", mode, wide, p.Seconds, seconds)
				}
				last, seconds = p.P95Seconds, p.Seconds
			}
		}
	}
}

// Where both spreads are known, widening a mode's never makes it win, and narrowing never makes it lose.
func TestWiderSpreadNeverWins(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 8))
	flipped := 0
	for range 3000 {
		s := world(rng)
		s.r.Deadline = 0
		s.l.Spread, s.c.Spread = 0.01+rng.Float64(), 0.01+rng.Float64()
		wider := *s
		wider.l.Spread *= 1 + 3*rng.Float64()
		before, after := s.decide(t), wider.decide(t)
		if before.Winner != ModeFetch && after.Winner == ModeFetch {
			t.Fatalf("fetch wins for its spread of %v instead of %v: %+v", wider.l.Spread, s.l.Spread, after)
		}
		if before.Winner != after.Winner {
			flipped++
		}
	}
	if flipped == 0 {
		t.Error("no spread mattered")
	}
}

// The P95 of a normal distribution, by drawing from it.
func TestP95AgainstDraws(t *testing.T) {
	t.Parallel()
	var p Price
	p.price(2)
	p.spread(0.25)
	rng := rand.New(rand.NewPCG(9, 10))
	const n = 200_000
	below := 0
	for range n {
		if 2+0.5*rng.NormFloat64() <= p.P95Seconds {
			below++
		}
	}
	if share := float64(below) / n; math.Abs(share-0.95) > 2e-3 {
		t.Errorf("%.4f of the draws stay below P95 = %v", share, p.P95Seconds)
	}
}
