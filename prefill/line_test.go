package prefill

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The fit is the least of all lines, by search, and the truth of exact requests.
func TestLine(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		overhead, slope, noise := rng.Float64()*0.05, 1e-5+rng.Float64()*1e-3, []float64{0, 0.1}[i%2]
		var l line
		var xs, ys []float64
		if _, _, ok := l.fit(); ok {
			t.Fatal("a line through nothing")
		}
		for n := 16; n < 5000; n *= 2 {
			y := (overhead + slope*float64(n)) * (1 + noise*(rng.Float64()-0.5))
			l.add(n, y)
			xs, ys = append(xs, float64(n)), append(ys, y)
		}
		gotO, gotS, ok := l.fit()
		if !ok || gotO < 0 || gotS < 0 {
			t.Fatalf("%v %v %v", gotO, gotS, ok)
		}
		if noise == 0 && (math.Abs(gotO-overhead) > 1e-6 || math.Abs(gotS/slope-1) > 1e-6) {
			t.Fatalf("%v + %v·n, want %v + %v·n", gotO, gotS, overhead, slope)
		}
		loss := func(o, s float64) (sum float64) {
			for i, x := range xs {
				e := (o + s*x - ys[i]) / ys[i]
				sum += e * e
			}
			return sum
		}
		best := loss(gotO, gotS)
		for range 500 {
			o, s := gotO+(rng.Float64()-0.5)*0.01, gotS*(1+(rng.Float64()-0.5)*0.2)
			if o >= 0 && o <= ys[0] && loss(o, s) < best-1e-12 {
				t.Fatalf("%v + %v·n is better than %v + %v·n: %v, %v", o, s, gotO, gotS, loss(o, s), best)
			}
		}
	}
}

// One length tells nothing; what can't be is not told.
func TestLineDegenerate(t *testing.T) {
	t.Parallel()
	var l line
	l.add(64, 0.1)
	l.add(64, 0.2)
	if _, _, ok := l.fit(); ok {
		t.Error("a line through one length")
	}
	l.add(128, 0.05) // the longer was faster: all overhead
	if o, s, ok := l.fit(); !ok || o != 0.05 || s < 0 {
		t.Errorf("%v %v %v", o, s, ok)
	}
	l = line{}
	l.add(10, 0.01)
	l.add(1000, 3) // worse than in proportion: no overhead
	if o, s, ok := l.fit(); !ok || o != 0 || s < 0.001 || s > 0.003 {
		t.Errorf("%v %v %v", o, s, ok)
	}
	l = line{}
	l.add(1, 0)
	l.add(2, 0)
	if o, s, ok := l.fit(); !ok || o > 1e-9 || s != 0 {
		t.Errorf("%v %v %v", o, s, ok)
	}
}
