package results

import (
	"math"
	"testing"
)

// bruteRankP tries every choice of the samples that are a's.
func bruteRankP(a, b []float64) float64 {
	all := append(append([]float64{}, a...), b...)
	u := func(pick int) float64 { // the pairs that a wins, ties half
		s := 0.0
		for i := range all {
			for j := range all {
				if pick>>i&1 == 1 && pick>>j&1 == 0 {
					switch {
					case all[i] > all[j]:
						s++
					case all[i] == all[j]:
						s += 0.5
					}
				}
			}
		}
		return s
	}
	middle := float64(len(a)*len(b)) / 2
	seen := math.Abs(u(1<<len(a)-1) - middle)
	total, extreme := 0, 0
	for pick := range 1 << len(all) {
		n := 0
		for i := range all {
			n += pick >> i & 1
		}
		if n != len(a) {
			continue
		}
		total++
		if math.Abs(u(pick)-middle) >= seen {
			extreme++
		}
	}
	return float64(extreme) / float64(total)
}

func TestMannWhitneyBrute(t *testing.T) {
	r := rng(7)
	for round := range 120 {
		a, b := make([]float64, 1+r.IntN(5)), make([]float64, 1+r.IntN(5))
		values := 4 + 100*(round%2) // many ties, and few
		for i := range a {
			a[i] = float64(r.IntN(values))
		}
		for i := range b {
			b[i] = float64(r.IntN(values))
		}
		if got, want := mannWhitney(a, b), bruteRankP(a, b); !near(got, want, 1e-12) {
			t.Fatalf("p of %v and %v is %v, want %v", a, b, got, want)
		}
	}
}

// TestMannWhitneyApproximation compares the two ways where both are good.
func TestMannWhitneyApproximation(t *testing.T) {
	r := rng(8)
	for round := range 10 {
		shift := float64(round) / 10
		a, b := make([]float64, 24), make([]float64, 26)
		for i := range a {
			a[i] = math.Round(8*r.NormFloat64()) / 8
		}
		for i := range b {
			b[i] = math.Round(8*(r.NormFloat64()+shift)) / 8
		}
		ranks, sum := midranks(a, b)
		exact, approx := exactRankP(ranks, len(a), sum), normalRankP(ranks, len(a), sum)
		if math.Abs(exact-approx) > 0.005 {
			t.Errorf("shift %v: counted %v, approximated %v", shift, exact, approx)
		}
	}
	if p := mannWhitney(make([]float64, 100), make([]float64, 100)); p != 1 {
		t.Errorf("p of equal samples is %v, want 1", p)
	}
	if p := mannWhitney(nil, []float64{1}); p != 1 {
		t.Errorf("p without samples is %v, want 1", p)
	}
}

// TestPairInterval: the interval holds the shifts that the test does not refuse, no others.
func TestPairInterval(t *testing.T) {
	r := rng(9)
	for range 60 {
		a, b := make([]float64, 3+r.IntN(6)), make([]float64, 3+r.IntN(6))
		for i := range a {
			a[i] = r.NormFloat64()
		}
		for i := range b {
			b[i] = r.NormFloat64() + 1
		}
		e := pairInterval(a, b, 0.95, func(n, o float64) float64 { return n - o })
		if e.Level < 0.95 {
			continue // too few samples for the level
		}
		for s := -4.0; s < 6; s += 0.05 {
			moved := make([]float64, len(b))
			for i := range b {
				moved[i] = b[i] - s
			}
			if inside, kept := e.Low < s && s < e.High, mannWhitney(a, moved) > 0.05+1e-12; inside != kept {
				t.Fatalf("shift %v of %v and %v: inside %+v is %v, not refused is %v", s, a, b, e, inside, kept)
			}
		}
	}
}

func TestPairRankLarge(t *testing.T) {
	k, _ := pairRank(25, 25, 0.95) // counted
	mean, sd := 25*25/2.0, math.Sqrt(25*25*51/12.0)
	if approx := int(mean - 1.959964*sd - 0.5); k < approx-2 || k > approx+2 {
		t.Errorf("rank is %d, about %d by the normal approximation", k, approx)
	}
	if k, level := pairRank(1, 1, 0.95); k != 0 || level != 0 {
		t.Errorf("one pair: rank %d at %v, want 0 at 0", k, level)
	}
	if k, level := pairRank(60, 60, 0.95); k < 1400 || k > 1450 || level != 0.95 {
		t.Errorf("60 and 60: rank %d at %v", k, level)
	}
}
