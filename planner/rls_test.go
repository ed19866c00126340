package planner

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// nearly says that a and b differ by at most rel of the larger.
func nearly(a, b, rel float64) bool { return math.Abs(a-b) <= rel*max(math.Abs(a), math.Abs(b)) }

// llamaLaw is about Llama-3.1-70B on two H100 in FP8.
var llamaLaw = PrefillLaw{Fixed: 0.012, Linear: 80e-6, Quadratic: 0.8e-9}

// draw is a prefill of random lengths that takes what law says, times a lognormal factor of mean 1.
func draw(rng *rand.Rand, law PrefillLaw, sigma float64) Prefill {
	c, u := int64(rng.IntN(60_000)), int64(200*math.Pow(100, rng.Float64()))
	return Prefill{c, u, law.Seconds(c, u) * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)}
}

// householder is least squares over rows by reflections: another way than the sums that RLS keeps.
func householder(rows [][3]float64, y []float64) [3]float64 {
	const n = 3
	for k := range n {
		norm := 0.0
		for i := k; i < len(rows); i++ {
			norm = math.Hypot(norm, rows[i][k])
		}
		if rows[k][k] > 0 {
			norm = -norm
		}
		v := make([]float64, len(rows))
		vv := 0.0
		for i := k; i < len(rows); i++ {
			v[i] = rows[i][k]
			if i == k {
				v[i] -= norm
			}
			vv += v[i] * v[i]
		}
		reflect := func(get func(i int) *float64) {
			s := 0.0
			for i := k; i < len(rows); i++ {
				s += v[i] * *get(i)
			}
			for i := k; i < len(rows); i++ {
				*get(i) -= 2 * s / vv * v[i]
			}
		}
		for j := k; j < n; j++ {
			reflect(func(i int) *float64 { return &rows[i][j] })
		}
		reflect(func(i int) *float64 { return &y[i] })
	}
	var x [3]float64
	for i := n - 1; i >= 0; i-- {
		x[i] = y[i]
		for j := i + 1; j < n; j++ {
			x[i] -= rows[i][j] * x[j]
		}
		x[i] /= rows[i][i]
	}
	return x
}

// The recursion equals batch least squares with the same weights, the prior as three more rows, after every observation.
func TestRLSEqualsBatch(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		prior := PrefillLaw{Fixed: 0.01, Linear: llamaLaw.Linear * math.Exp(rng.NormFloat64()), Quadratic: llamaLaw.Quadratic}
		forget := []float64{0, 1, 0.9}[seed%3]
		r, err := NewRLS(RLSConfig{Prior: prior, Forget: forget})
		if err != nil {
			t.Fatal(err)
		}
		forget = cmp.Or(forget, DefaultForget)
		var xs []vector
		var ys, ws []float64
		compared := 0
		for n := range 120 {
			p := draw(rng, llamaLaw, 0.05)
			x := features(p.Cached, p.Uncached)
			expected := dot(r.Fit().Law.scaled(), x)
			before := r.weight
			if err := r.Observe(p); err != nil {
				t.Fatal(err)
			}
			trust := r.weight - forget*before
			for i := range ws {
				ws[i] *= forget
			}
			xs, ys, ws = append(xs, x), append(ys, p.Seconds), append(ws, trust/(expected*expected))
			var rows [][3]float64
			var rhs []float64
			for i, sd := range r.deviations() {
				var row [3]float64
				row[i] = noisePrior / sd
				rows, rhs = append(rows, row), append(rhs, row[i]*prior.scaled()[i])
			}
			for i := range xs {
				s := math.Sqrt(ws[i])
				rows, rhs = append(rows, [3]float64{s * xs[i][0], s * xs[i][1], s * xs[i][2]}), append(rhs, s*ys[i])
			}
			want, got := householder(rows, rhs), r.Fit().Law.scaled()
			if want[0] < 0 || want[1] < 0 || want[2] < 0 {
				continue // clamped: TestRLSNonNegative
			}
			compared++
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-9*prior.scaled()[1] {
					t.Fatalf("seed %d, after %d: coefficient %d is %v, batch says %v", seed, n+1, i, got[i], want[i])
				}
			}
		}
		if compared < 60 {
			t.Errorf("seed %d: only %d compared", seed, compared)
		}
	}
}

// Of prefills without noise the law comes back, from a prior that is off by a factor of two or ten, or from none.
func TestRLSExact(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{0, 0.1, 0.5, 1, 2, 10} {
		rng := rand.New(rand.NewPCG(4, 4))
		r, err := NewRLS(RLSConfig{Prior: PrefillLaw{Linear: factor * llamaLaw.Linear}})
		if err != nil {
			t.Fatal(err)
		}
		for range 400 {
			if err := r.Observe(draw(rng, llamaLaw, 0)); err != nil {
				t.Fatal(err)
			}
		}
		f := r.Fit()
		for _, at := range []Prefill{{0, 256, 0}, {0, 8000, 0}, {0, 60_000, 0}, {30_000, 2000, 0}} {
			if got, want := f.Law.Seconds(at.Cached, at.Uncached), llamaLaw.Seconds(at.Cached, at.Uncached); !nearly(got, want, 0.02) {
				t.Errorf("prior off by %v: %d after %d takes %v s, want %v", factor, at.Uncached, at.Cached, got, want)
			}
		}
		if f.R2 < 0.9999 || f.Sigma > 0.025 || f.Observed != 400 || f.Weight > 50.01 {
			t.Errorf("prior off by %v: %+v", factor, f)
		}
	}
}

// With noise the fit is unbiased, says how large the noise is, and its spread covers what it is off by.
func TestRLSNoise(t *testing.T) {
	t.Parallel()
	for _, sigma := range []float64{0.02, 0.05, 0.1, 0.2} {
		const runs = 200
		var bias, noise, inside float64
		for seed := range uint64(runs) {
			rng := rand.New(rand.NewPCG(seed, 2))
			r, _ := NewRLS(RLSConfig{Prior: PrefillLaw{Linear: 2 * llamaLaw.Linear}})
			for range 150 {
				if err := r.Observe(draw(rng, llamaLaw, sigma)); err != nil {
					t.Fatal(err)
				}
			}
			f := r.Fit()
			p := draw(rng, llamaLaw, sigma)
			off := math.Log(f.Law.Seconds(p.Cached, p.Uncached) / llamaLaw.Seconds(p.Cached, p.Uncached))
			bias += off / runs
			noise += f.Sigma / runs
			if math.Abs(p.Seconds/f.Law.Seconds(p.Cached, p.Uncached)-1) <= 1.645*f.Spread(p.Cached, p.Uncached) {
				inside += 1.0 / runs
			}
		}
		t.Logf("sigma %.2f: bias %+.4f, sigma found %.3f, %.1f %% within 1.645 spreads", sigma, bias, noise, 100*inside)
		if math.Abs(bias) > 0.02+0.1*sigma || noise < 0.8*sigma || noise > 1.15*sigma+0.02 || inside < 0.84 {
			t.Errorf("sigma %.2f: bias %v, sigma found %v, %v inside", sigma, bias, noise, inside)
		}
	}
}

// A slow drift is followed; one that comes at once is forgotten as fast as λ says.
func TestRLSForgets(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(9, 9))
	r, _ := NewRLS(RLSConfig{Prior: llamaLaw})
	law, worst := llamaLaw, 0.0
	for i := range 2000 {
		law.Linear = llamaLaw.Linear * (1 + 0.5*math.Sin(float64(i)/200))
		if err := r.Observe(draw(rng, law, 0.02)); err != nil {
			t.Fatal(err)
		}
		if i > 100 {
			worst = max(worst, math.Abs(r.Fit().Law.Seconds(0, 8000)/law.Seconds(0, 8000)-1))
		}
	}
	t.Logf("worst error under drift %.3f", worst)
	if worst > 0.25 {
		t.Errorf("off by %v", worst)
	}
}

// Prompts of one length and position, ten thousand times: what they do not tell stays at the prior, and nothing winds up.
func TestRLSUnexcited(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 5))
	r, _ := NewRLS(RLSConfig{Prior: PrefillLaw{Linear: 160e-6}})
	for range 10_000 {
		if err := r.Observe(Prefill{0, 1024, 0.08 * math.Exp(0.01*rng.NormFloat64())}); err != nil {
			t.Fatal(err)
		}
	}
	f := r.Fit()
	if got := f.Law.Seconds(0, 1024); !nearly(got, 0.08, 0.01) {
		t.Errorf("where it was observed: %v s", got)
	}
	if got := f.Law.Seconds(0, 8192); !nearly(got, 0.64, 0.1) {
		t.Errorf("eight times as long: %v s", got)
	}
	if near, far := f.Spread(0, 1024), f.Spread(0, 65_536); near > 0.03 || far < 3*near {
		t.Errorf("spread %v where observed, %v at 64 times the length", near, far)
	}
	// One that differs is taken in at once.
	for range 60 {
		if err := r.Observe(Prefill{0, 65_536, 65_536*80e-6 + 0.8e-9*65_536*65_536}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := r.Fit().Law.Seconds(0, 65_536), 65_536*80e-6+0.8e-9*65_536*65_536; !nearly(got, want, 0.05) {
		t.Errorf("%v s, want %v", got, want)
	}
}

// The clamped solution is the best of all that are not negative, held to a search.
func TestRLSNonNegative(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 6))
	clamped := 0
	for range 200 {
		var a matrix
		var b vector
		for range 5 {
			x := vector{rng.Float64(), 3 * rng.Float64(), 9 * rng.Float64()}
			y := 3 + x[0] + x[1] + 0.2*x[2] + rng.NormFloat64()
			for i := range x {
				for j := range x {
					a[i][j] += x[i] * x[j]
				}
				b[i] += x[i] * y
			}
		}
		for i := range b {
			a[i][i] += 0.01
		}
		objective := func(x vector) float64 {
			return x[0]*dot(a[0], x) + x[1]*dot(a[1], x) + x[2]*dot(a[2], x) - 2*dot(b, x)
		}
		best := nonNegative(&a, b)
		if best[0] == 0 || best[1] == 0 || best[2] == 0 {
			clamped++
		}
		// Projected coordinate descent, from anywhere, ends at the only minimum of a convex function.
		x := vector{rng.Float64(), rng.Float64(), rng.Float64()}
		for range 20_000 {
			for i := range x {
				x[i] = max(0, x[i]+(b[i]-dot(a[i], x))/a[i][i])
			}
		}
		if min(best[0], best[1], best[2]) < 0 || math.Abs(objective(best)-objective(x)) > 1e-6*(1+math.Abs(objective(x))) {
			t.Fatalf("%v has %v, a search finds %v with %v", best, objective(best), x, objective(x))
		}
	}
	if clamped < 20 || clamped > 180 {
		t.Errorf("%d of 200 were clamped: the cases do not test both", clamped)
	}
}

// One stall among many does not move the fit; the lengths of what exists, and beyond, leave it finite.
func TestRLSRobust(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	r, _ := NewRLS(RLSConfig{Prior: llamaLaw})
	for range 100 {
		_ = r.Observe(draw(rng, llamaLaw, 0.02))
	}
	before := r.Fit().Law.Seconds(0, 8000)
	p := draw(rng, llamaLaw, 0)
	p.Seconds *= 20
	_ = r.Observe(p)
	if after := r.Fit().Law.Seconds(0, 8000); !nearly(before, after, 0.02) {
		t.Errorf("a stall moved 8,000 tokens from %v to %v s", before, after)
	}
	r = &RLS{}
	for range 3000 {
		p := Prefill{rng.Int64N(maxTokens), 1 + rng.Int64N(maxTokens), math.Exp(40*rng.Float64() - 20)}
		if rng.IntN(2) == 0 {
			p.Cached, p.Uncached = 0, 1
		}
		if err := r.Observe(p); err != nil {
			t.Fatal(err)
		}
		f := r.Fit()
		for _, v := range []float64{f.Law.Fixed, f.Law.Linear, f.Law.Quadratic, f.R2, f.Sigma, f.Spread(0, 1), f.Spread(maxTokens, maxTokens), f.Weight} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Fatalf("%+v", f)
			}
		}
	}
}

// What can't be is refused by name, and changes nothing.
func TestRLSRefuses(t *testing.T) {
	t.Parallel()
	r := &RLS{}
	nan, inf := math.NaN(), math.Inf(1)
	for _, p := range []Prefill{{-1, 1, 1}, {0, 0, 1}, {0, -5, 1}, {0, 1, 0}, {0, 1, -1}, {0, 1, nan}, {0, 1, inf}, {maxTokens + 1, 1, 1}, {0, maxTokens + 1, 1}, {0, 1, 1e10}} {
		if _, ok := errors.AsType[*InputError](r.Observe(p)); !ok {
			t.Errorf("%+v was taken", p)
		}
	}
	if f := r.Fit(); f.Observed != 0 || f.Law != (PrefillLaw{}) {
		t.Errorf("%+v", f)
	}
	for _, c := range []RLSConfig{{Prior: PrefillLaw{Linear: -1}}, {Prior: PrefillLaw{Linear: nan}}, {Prior: PrefillLaw{Fixed: -1}}, {Prior: PrefillLaw{Quadratic: inf}}, {Forget: 0.1}, {Forget: 1.1}, {Forget: nan}} {
		if _, err := NewRLS(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// The fit and the planner agree on what a prefill takes.
func TestLawIsThePlanners(t *testing.T) {
	t.Parallel()
	c := Compute{SecondsPerToken: llamaLaw.Linear, SecondsPerTokenSquared: llamaLaw.Quadratic, FixedSeconds: llamaLaw.Fixed, Spread: 0.05}
	for _, at := range []Prefill{{0, 100, 0}, {4096, 1, 0}, {30_000, 30_000, 0}} {
		p := Recompute(Request{PrefixTokens: at.Cached + at.Uncached, PresentTokens: at.Cached}, Model{}, c)
		if want := llamaLaw.Seconds(at.Cached, at.Uncached); !p.Eligible || !nearly(p.Seconds, want, 1e-12) {
			t.Errorf("%+v: planned %v s, law %v s", at, p.Seconds, want)
		}
	}
	c.SecondsPerTokenSquared = -1
	if c.Validate() == nil {
		t.Error("a negative square was taken")
	}
}

func BenchmarkRLS(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	r, _ := NewRLS(RLSConfig{Prior: llamaLaw})
	p := draw(rng, llamaLaw, 0.05)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Observe(p)
	}
}
