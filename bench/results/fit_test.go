package results

import (
	"errors"
	"math"
	"testing"

	"gonum.org/v1/gonum/stat"
)

// TestLinearFitAnscombe holds against the published regression of the first of Anscombe's four sets ("Graphs in statistical
// analysis", 1973) as R's lm prints it.
func TestLinearFitAnscombe(t *testing.T) {
	x := []float64{10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5}
	y := []float64{8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68}
	f, err := LinearFit(x, y, 0)
	if err != nil {
		t.Fatal(err)
	}
	const t9 = 2.262157 // the 0.975 quantile of Student's t with 9 degrees of freedom
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"intercept", f.Intercept.Value, 3.0001},
		{"slope", f.Slope.Value, 0.5001},
		{"r2", f.R2, 0.6665},
		{"sigma", f.Sigma, 1.237},
		{"error of the intercept", (f.Intercept.High - f.Intercept.Low) / 2 / t9, 1.1247},
		{"error of the slope", (f.Slope.High - f.Slope.Low) / 2 / t9, 0.1179},
	} {
		if math.Abs(c.got-c.want) > 6e-4 {
			t.Errorf("%s is %.5f, want %.4f", c.name, c.got, c.want)
		}
	}
	if f.XMin != 4 || f.XMax != 14 || f.N != 11 {
		t.Errorf("range %v to %v of %d, want 4 to 14 of 11", f.XMin, f.XMax, f.N)
	}
	// At the mean the line's error is sigma / sqrt(n).
	if e := f.Interval(9, 0); !near((e.High-e.Low)/2, t9*f.Sigma/math.Sqrt(11), 1e-6) {
		t.Errorf("interval at the mean is %+v", e)
	}
}

func TestLinearFitGonum(t *testing.T) {
	r := rng(4)
	for range 200 {
		n := 2 + r.IntN(30)
		x, y := make([]float64, n), make([]float64, n)
		for i := range x {
			x[i], y[i] = 100*r.NormFloat64(), 3+r.NormFloat64()
		}
		f, err := LinearFit(x, y, 0.9)
		if err != nil {
			t.Fatal(err)
		}
		alpha, beta := stat.LinearRegression(x, y, nil, false)
		r2 := stat.RSquared(x, y, nil, alpha, beta)
		if math.Abs(f.Intercept.Value-alpha) > 1e-8*(1+math.Abs(alpha)) || math.Abs(f.Slope.Value-beta) > 1e-8*(1+math.Abs(beta)) || math.Abs(f.R2-r2) > 1e-8 {
			t.Fatalf("fit %v + %v x, R2 %v; gonum has %v, %v, %v", f.Intercept.Value, f.Slope.Value, f.R2, alpha, beta, r2)
		}
	}
}

func TestLinearFitRefuses(t *testing.T) {
	for name, xy := range map[string][2][]float64{
		"lengths":        {{1, 2}, {1}},
		"none":           {nil, nil},
		"one":            {{1}, {1}},
		"one x":          {{2, 2, 2}, {1, 2, 3}},
		"not a number":   {{1, 2}, {1, math.NaN()}},
		"infinite":       {{1, math.Inf(1)}, {1, 2}},
		"too large":      {{-1e200, 1e200}, {1, 2}},
		"too near":       {{1e-200, 2e-200}, {1, 2}},
		"y too large":    {{0, 1, 2}, {-1e200, 1e200, 3}},
		"y overflows it": {{1, 2}, {-1.7e308, 1.7e308}},
	} {
		if f, err := LinearFit(xy[0], xy[1], 0); err == nil {
			t.Errorf("%s: fit is %+v, want an error", name, f)
		}
	}
}

func line(t *testing.T, n int, intercept, slope float64, noise func() float64) Fit {
	t.Helper()
	x, y := make([]float64, n), make([]float64, n)
	for i := range x {
		x[i] = float64(i + 1)
		y[i] = intercept + slope*x[i] + noise()
	}
	f, err := LinearFit(x, y, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func silence() float64 { return 0 }

func TestCrossExact(t *testing.T) {
	a, b := line(t, 10, 5, 1, silence), line(t, 10, 0, 2, silence) // 5 + x = 2 x
	c, err := Cross(a, b, 0)
	if err != nil || math.Abs(c.X.Value-5) > 1e-9 || math.Abs(c.Y-10) > 1e-9 || c.Extrapolated || c.X.High-c.X.Low > 1e-6 {
		t.Errorf("crossing is %+v (%v), want 5, 10 inside the range and no width", c, err)
	}
	if c, err := Cross(line(t, 10, 30, 1, silence), b, 0); err != nil || !c.Extrapolated || math.Abs(c.X.Value-30) > 1e-9 {
		t.Errorf("crossing is %+v (%v), want 30, extrapolated", c, err)
	}
	two := line(t, 2, 1.5, 0, silence)
	if c, err := Cross(two, line(t, 2, 0, 1, silence), 0); err != nil || c.X.Level != 0 || math.Abs(c.X.Value-1.5) > 1e-9 {
		t.Errorf("crossing of lines through two points is %+v (%v), want 1.5 without a level", c, err)
	}
	if c, err := Cross(two, line(t, 10, 0, 1, rng(1).NormFloat64), 0); err != nil || c.X.Level != 0.95 {
		t.Errorf("crossing of two points and ten is %+v (%v), want an interval", c, err)
	}
	if _, err := Cross(a, line(t, 10, 7, 1, silence), 0); !errors.Is(err, ErrNoCrossing) {
		t.Errorf("parallel lines: %v, want ErrNoCrossing", err)
	}
	if _, err := Cross(Fit{}, a, 0); err == nil || errors.Is(err, ErrNoCrossing) {
		t.Errorf("a zero Fit: %v, want another error", err)
	}
	r := rng(5)
	if _, err := Cross(line(t, 10, 0, 1, r.NormFloat64), line(t, 10, 1, 1.001, r.NormFloat64), 0); !errors.Is(err, ErrNoCrossing) {
		t.Errorf("lines parallel but for noise: %v, want ErrNoCrossing", err)
	}
}

// TestCrossCovers counts how often the interval holds the true crossing, for noise of one size and of two.
func TestCrossCovers(t *testing.T) {
	r := rng(6)
	for _, scale := range []float64{0.3, 1, 2} {
		const rounds = 3000
		hit, none := 0, 0
		for range rounds {
			a := line(t, 12, 6, 1, func() float64 { return scale * r.NormFloat64() })
			b := line(t, 12, 0, 2, func() float64 { return 0.6 * scale * r.NormFloat64() })
			c, err := Cross(a, b, 0)
			switch {
			case errors.Is(err, ErrNoCrossing): // no finite interval: the whole line holds it
				none++
				hit++
			case err != nil:
				t.Fatal(err)
			case c.X.Low <= 6 && 6 <= c.X.High:
				hit++
			}
		}
		if got := float64(hit) / rounds; got < 0.94 || got > 0.965 {
			t.Errorf("noise %v: covers %.4f (%d without a crossing), want about 0.95", scale, got, none)
		}
	}
}
