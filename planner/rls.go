package planner

import (
	"fmt"
	"math"
)

// PrefillLaw is what a prefill takes on an idle replica: Fixed + Linear·(j−i) + Quadratic·(j²−i²) seconds for tokens [i, j).
type PrefillLaw struct {
	Fixed     float64 // t0, seconds a prefill
	Linear    float64 // a, seconds a token
	Quadratic float64 // b, seconds a token²: causal attention
}

// Seconds is what uncached tokens after cached ones take.
func (p PrefillLaw) Seconds(cached, uncached int64) float64 {
	return dot(p.scaled(), features(cached, uncached))
}

// Prefill is one observed prefill.
type Prefill struct {
	// Cached is the tokens before it, 0 to 2³⁰; Uncached those that it computed, 1 to 2³⁰.
	Cached, Uncached int64
	// Seconds is how long it took, above 0 to 10⁹.
	Seconds float64
}

// Validate joins one [InputError] a fault, nil when there is none.
func (p Prefill) Validate() error {
	var f faults
	f.integer("Prefill.Cached", p.Cached, 0, maxTokens, "give the tokens before the computed ones")
	f.integer("Prefill.Uncached", p.Uncached, 1, maxTokens, "give the tokens computed; without any there is nothing to learn")
	f.required("Prefill.Seconds", p.Seconds, 1e-9, maxSeconds, "give the seconds it took")
	return f.join()
}

// Defaults and constants of [RLS].
const (
	// DefaultForget weighs an observation by 0.98 for each that follows: some fifty count.
	DefaultForget = 0.98

	perK = 1024.0 // tokens: the unit that keeps the three unknowns of one size

	// Deviations of the prior, over the seconds for 1,024 tokens. A prompt at which attention costs what everything else does is typically
	// of 50,000 tokens, which makes b·1024² about 0.01 of a·1024.
	fixedDeviation, linearDeviation, quadraticDeviation = 0.1, 1, 0.01
	// noisePrior is the relative deviation that an observation is taken for until there are more than noiseCount.
	noisePrior, noiseCount = 0.1, 2
	// From robustFrom observations on, one that is off by more than robustAt deviations, taken for at least robustLeast, counts less.
	robustFrom, robustAt, robustLeast = 8, 3, 0.05
)

// RLSConfig is what [NewRLS] takes.
type RLSConfig struct {
	// Prior is what is believed before anything is observed; its Linear is taken to be within about itself. Zero: the first observation
	// is the prior. Its coefficients are 0 or more.
	Prior PrefillLaw
	// Forget is λ, by which an observation's weight falls with each that follows, above 0.5 to 1. Zero: [DefaultForget]; 1: nothing is
	// forgotten.
	Forget float64
}

// Validate joins one [InputError] a fault, nil when there is none.
func (c RLSConfig) Validate() error {
	var f faults
	f.float("RLSConfig.Prior.Fixed", c.Prior.Fixed, 0, maxSeconds, "give seconds, or 0")
	f.float("RLSConfig.Prior.Linear", c.Prior.Linear, 1e-12, 1e6, "give seconds a token, or 0 if unknown")
	f.float("RLSConfig.Prior.Quadratic", c.Prior.Quadratic, 0, 1e6, "give seconds a token squared, or 0")
	f.float("RLSConfig.Forget", c.Forget, 0.5, 1, "give a factor such as 0.98, 0 for the default, or 1 to forget nothing")
	return f.join()
}

// RLS fits a [PrefillLaw] to a replica's observed prefills by recursive least squares with exponential forgetting.
//
// Each observation counts by its relative error. The regressors are (1, u, 2cu + u²), of c cached and u uncached tokens: the last is the
// two of causal attention, cached·u and u², in the ratio that the law gives them. The recursion keeps sums (the information form) and
// the prior beside them, which is never forgotten: whatever is observed, or not, the equations stay well conditioned, and a direction in
// which nothing was seen stays at the prior. Coefficients are 0 or more: where least squares would have one below, it is 0 and the
// others are the best with that.
//
// It is not safe for concurrent use. The zero value is one without a prior and with the defaults.
type RLS struct {
	forget   float64
	prior    vector // scaled; zero Linear: none
	data     matrix // Σ w·x·xᵀ
	right    vector // Σ w·x·y
	squares  float64
	weight   float64 // Σ of weights, each relative to one that is trusted
	observed int64
}

// NewRLS returns one that has observed nothing. Errors: those of [RLSConfig.Validate].
func NewRLS(c RLSConfig) (*RLS, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &RLS{forget: c.Forget}
	if c.Prior.Linear > 0 {
		r.prior = c.Prior.scaled()
	}
	return r, nil
}

// Observe takes in one prefill. Errors: those of [Prefill.Validate], and then nothing has changed.
func (r *RLS) Observe(p Prefill) error {
	if err := p.Validate(); err != nil {
		return err
	}
	x := features(p.Cached, p.Uncached)
	if r.prior[1] == 0 {
		r.prior = vector{0, p.Seconds / x[1], 0}
	}
	f := r.Fit()
	expected := dot(f.Law.scaled(), x)
	if !(expected > 0) {
		expected = p.Seconds
	}
	trust := 1.0
	if off, bound := math.Abs(p.Seconds-expected)/expected, robustAt*max(f.Sigma, robustLeast); r.observed >= robustFrom && off > bound {
		trust = bound / off
	}
	r.add(x, p.Seconds, expected, trust)
	return nil
}

// add takes in an observation with the weight trust/expected².
func (r *RLS) add(x vector, y, expected, trust float64) {
	keep := r.forget
	if keep == 0 {
		keep = DefaultForget
	}
	w := trust / (expected * expected)
	for i := range x {
		for j := range x {
			r.data[i][j] = keep*r.data[i][j] + w*x[i]*x[j]
		}
		r.right[i] = keep*r.right[i] + w*x[i]*y
	}
	r.squares, r.weight = keep*r.squares+w*y*y, keep*r.weight+trust
	r.observed++
}

// PrefillFit is what an [RLS] makes of what it observed.
type PrefillFit struct {
	// Law is the fit. Of an RLS without observations it is the prior.
	Law PrefillLaw
	// Observed counts the observations ever, Weight those that count: at most 1/(1−λ).
	Observed int64
	Weight   float64
	// R2 is the share of the observed times' squares, each relative to its expectation, that the law explains: 1 − Σe²/Σy², 0 to 1. It is
	// about zero and not about the mean, since prompts of one length have nothing to vary. 0 without observations.
	R2 float64
	// Sigma is the standard deviation of an observation's time over its expectation; of fewer than some ten it leans to 0.1.
	Sigma float64

	covariance matrix // of the scaled coefficients
}

// Spread is the standard deviation of a prefill's time over its expectation: of observations, and of the coefficients, which are
// the less certain the further the prefill is from what was observed. It is at most 10.
func (f PrefillFit) Spread(cached, uncached int64) float64 {
	x := features(cached, uncached)
	y := dot(f.Law.scaled(), x)
	if !(y > 0) {
		return f.Sigma
	}
	var v float64
	for i := range x {
		v += x[i] * dot(f.covariance[i], x)
	}
	return min(math.Sqrt(f.Sigma*f.Sigma+max(0, v)/(y*y)), 10)
}

// String is the fit for people.
func (f PrefillFit) String() string {
	return fmt.Sprintf("%d observed prefills, R2 %.4f, sigma %.1f %%", f.Observed, f.R2, 100*f.Sigma)
}

// Fit returns the fit to what was observed so far. It takes about a microsecond.
func (r *RLS) Fit() PrefillFit {
	out := PrefillFit{Observed: r.observed, Weight: r.weight, Sigma: noisePrior}
	if r.prior[1] == 0 {
		return out
	}
	a, b := r.data, r.right
	for i, sd := range r.deviations() {
		weak := noisePrior * noisePrior / (sd * sd)
		a[i][i] += weak
		b[i] += weak * r.prior[i]
	}
	best := nonNegative(&a, b)
	out.Law = PrefillLaw{best[0], best[1] / perK, best[2] / (perK * perK)}
	residual := r.squares
	for i := range best {
		residual += best[i] * (dot(r.data[i], best) - 2*r.right[i])
	}
	residual = max(0, residual)
	if r.squares > 0 {
		out.R2 = min(max(0, 1-residual/r.squares), 1)
	}
	out.Sigma = math.Sqrt((residual + noiseCount*noisePrior*noisePrior) / (r.weight + noiseCount))
	out.covariance = inverse(&a, max(out.Sigma, noisePrior))
	return out
}

// deviations are those of the prior, whose unit is what 1,024 tokens take by itself or by what was observed, whichever is more.
func (r *RLS) deviations() vector {
	k := r.prior[1]
	if seen := r.data[1][1]; seen > 0 {
		k = max(k, r.right[1]/seen)
	}
	return vector{max(fixedDeviation*k, r.prior[0]), linearDeviation * k, max(quadraticDeviation*k, r.prior[2])}
}

// vector and matrix are of the three unknowns: seconds, seconds a 1,024 tokens, seconds a square of that.
type (
	vector [3]float64
	matrix [3]vector
)

func dot(a, b vector) float64 { return a[0]*b[0] + a[1]*b[1] + a[2]*b[2] }

func (p PrefillLaw) scaled() vector {
	return vector{p.Fixed, p.Linear * perK, p.Quadratic * perK * perK}
}

func features(cached, uncached int64) vector {
	c, u := float64(cached)/perK, float64(uncached)/perK
	return vector{1, u, u * (2*c + u)}
}

// nonNegative minimises xᵀax − 2bᵀx over x ≥ 0 by trying every set of coefficients that are not 0. a is positive definite.
func nonNegative(a *matrix, b vector) (best vector) {
	most := 0.0 // bᵀx, which is less x's objective at the best x of a set
	for set := 7; set > 0; set-- {
		sub, right := *a, b
		for i := range b {
			if set&(1<<i) == 0 {
				right[i] = 0
				for j := range b {
					sub[i][j], sub[j][i] = 0, 0
				}
				sub[i][i] = 1
			}
		}
		c := newCholesky(&sub)
		x := c.solve(right)
		if x[0] >= 0 && x[1] >= 0 && x[2] >= 0 && dot(b, x) > most {
			best, most = x, dot(b, x)
		}
	}
	return best
}

// inverse is sigma² times that of a.
func inverse(a *matrix, sigma float64) (out matrix) {
	c := newCholesky(a)
	for i := range out {
		var unit vector
		unit[i] = sigma * sigma
		out[i] = c.solve(unit)
	}
	return out
}

// cholesky is the factor of a matrix whose rows and columns were scaled to a diagonal of ones, which bounds what rounding costs.
type cholesky struct {
	scale vector
	l     matrix
}

func newCholesky(a *matrix) (c cholesky) {
	for i := range c.scale {
		c.scale[i] = 1 / math.Sqrt(a[i][i])
	}
	for i := range c.l {
		for j := range i + 1 {
			sum := a[i][j] * c.scale[i] * c.scale[j]
			for k := range j {
				sum -= c.l[i][k] * c.l[j][k]
			}
			if i == j {
				c.l[i][i] = math.Sqrt(max(sum, 1e-14)) // the prior keeps it far above
			} else {
				c.l[i][j] = sum / c.l[j][j]
			}
		}
	}
	return c
}

func (c *cholesky) solve(b vector) (x vector) {
	for i := range x {
		x[i] = b[i] * c.scale[i]
		for k := range i {
			x[i] -= c.l[i][k] * x[k]
		}
		x[i] /= c.l[i][i]
	}
	for i := len(x) - 1; i >= 0; i-- {
		for k := i + 1; k < len(x); k++ {
			x[i] -= c.l[k][i] * x[k]
		}
		x[i] /= c.l[i][i]
	}
	for i := range x {
		x[i] *= c.scale[i]
	}
	return x
}
