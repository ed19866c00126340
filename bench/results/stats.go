package results

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// DefaultLevel is the confidence of an interval when none is given.
const DefaultLevel = 0.95

// Estimate is a number with the interval that holds the true one.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	// Level is the confidence that the interval has, in 0..1: what was asked for or, of a [MedianInterval], what the
	// order statistics give: more than asked, or less if there are too few samples. 0 says that nothing is known.
	Level float64 `json:"level"`
}

// unknown is an estimate from nothing.
func unknown() Estimate {
	return Estimate{Value: math.NaN(), Low: math.NaN(), High: math.NaN()}
}

// Overlaps says whether two intervals share a point, ends included.
func (e Estimate) Overlaps(o Estimate) bool {
	return e.Low <= o.High && o.Low <= e.High
}

// levelOr returns the level to use: 0 is the default, and what is no level becomes the default too.
func levelOr(level float64) float64 {
	if level > 0 && level < 1 {
		return level
	}
	return DefaultLevel
}

// Median returns the middle of the samples in any order, the mean of the two middle ones of an even number; NaN of none.
// x is not changed.
func Median(x []float64) float64 { return Quantile(x, 0.5) }

// Quantile returns the p-quantile of the samples in any order, p in 0..1 (clipped), interpolated between the two nearest
// (type 7 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996: R's and NumPy's default). It is NaN when
// there are no samples, or one is NaN. x is not changed.
func Quantile(x []float64, p float64) float64 {
	if len(x) == 0 || slices.ContainsFunc(x, math.IsNaN) || math.IsNaN(p) {
		return math.NaN()
	}
	return quantileSorted(slices.Sorted(slices.Values(x)), p)
}

func quantileSorted(x []float64, p float64) float64 {
	h := float64(len(x)-1) * min(max(p, 0), 1)
	i := int(h)
	if i+1 >= len(x) || x[i] == x[i+1] {
		return x[i]
	}
	// Not x[i] + d*(x[i+1]-x[i]), whose difference overflows for the largest numbers.
	d := h - float64(i)
	return (1-d)*x[i] + d*x[i+1]
}

// MedianInterval returns the median of independent samples and an interval for the median they come from, whatever their
// distribution: the narrowest symmetric pair of order statistics that holds it with at least the level asked for (0 is
// 0.95). With n samples the extremes hold it with 1-2^(1-n), so six are needed for 0.95; with fewer, the extremes are
// returned and Level says how sure they are. All NaN for no samples. x is not changed.
func MedianInterval(x []float64, level float64) Estimate {
	n := len(x)
	if n == 0 || slices.ContainsFunc(x, math.IsNaN) {
		return unknown()
	}
	s := slices.Sorted(slices.Values(x))
	k := medianRank(n, levelOr(level))
	e := Estimate{Value: quantileSorted(s, 0.5), Low: s[k], High: s[n-1-k], Level: rankCoverage(n, k)}
	return e
}

// rankCoverage is the probability that the k-th order statistics from both ends (from 0) enclose the median: 1 - 2 P(B <= k)
// with B binomial of n and one half.
func rankCoverage(n, k int) float64 {
	return max(0, 1-2*distuv.Binomial{N: float64(n), P: 0.5}.CDF(float64(k)))
}

// medianRank is the largest k whose coverage is at least the level, or 0.
func medianRank(n int, level float64) int {
	lo, hi := 0, (n-1)/2 // the answer is in lo..hi; coverage falls as k rises
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if rankCoverage(n, mid) >= level {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// MeanInterval returns the mean of independent samples and its interval by Student's t with n-1 degrees of freedom: exact
// for normal samples, near for many of any kind. level 0 is 0.95. One sample has Level 0 and no width; none gives NaN.
func MeanInterval(x []float64, level float64) Estimate {
	if len(x) == 0 || slices.ContainsFunc(x, math.IsNaN) {
		return unknown()
	}
	mean, sd := stat.MeanStdDev(x, nil)
	if len(x) == 1 {
		return Estimate{Value: x[0], Low: x[0], High: x[0]}
	}
	level = levelOr(level)
	n := float64(len(x))
	half := tQuantile(level, n-1) * sd / math.Sqrt(n)
	return Estimate{Value: mean, Low: mean - half, High: mean + half, Level: level}
}

// tQuantile is the two-sided critical value of Student's t.
func tQuantile(level, df float64) float64 {
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Quantile(0.5 + level/2)
}

// BatchMeans returns the mean of a correlated stationary series (waits of successive jobs) and its interval: the series is
// cut into so many batches of equal length, what is left over at the start is dropped, and Student's t is used on the
// batches' means. batches 0 is 20; level 0 is 0.95. lag1 is the correlation of neighbouring means: above about 0.2 the
// batches are too short and the interval too narrow; measure longer. Source: Law, "Simulation Modeling and Analysis",
// section 9.5.3. It is an error to ask for fewer than 2 batches or for more than there are values.
func BatchMeans(series []float64, batches int, level float64) (e Estimate, lag1 float64, err error) {
	if batches == 0 {
		batches = 20
	}
	if batches < 2 || batches > len(series) {
		return unknown(), 0, fmt.Errorf("batch means: %d batches of %d values, want 2 to as many as there are values", batches, len(series))
	}
	size := len(series) / batches
	series = series[len(series)-size*batches:]
	means := make([]float64, batches)
	for i := range means {
		means[i] = stat.Mean(series[i*size:(i+1)*size], nil)
		if !finite(means[i]) {
			return unknown(), 0, fmt.Errorf("batch means: the mean of batch %d is %v, want finite values", i, means[i])
		}
	}
	return MeanInterval(means, level), lag1Correlation(means), nil
}

func lag1Correlation(x []float64) float64 {
	mean := stat.Mean(x, nil)
	var cov, variance float64
	for i, v := range x {
		variance += (v - mean) * (v - mean)
		if i > 0 {
			cov += (v - mean) * (x[i-1] - mean)
		}
	}
	if variance == 0 {
		return 0
	}
	return cov / variance
}

// bootstrapDraws is how many times the samples are drawn again: the ends of a 95 % interval are then good to about a
// twentieth of its width.
const bootstrapDraws = 4000

// BootstrapInterval returns a statistic of independent samples and its percentile interval by drawing the samples again
// with replacement, 4,000 times (Efron and Tibshirani, "An Introduction to the Bootstrap", section 13.3). The same seed
// gives the same interval. level 0 is 0.95. Draws for which the statistic is not finite are left out; all NaN when none
// is left or there are no samples. statistic gets a slice that it may reorder and must not keep. With fewer than about ten
// samples the interval is too narrow: prefer [MedianInterval] or [MeanInterval]. x is not changed.
func BootstrapInterval(x []float64, statistic func([]float64) float64, level float64, seed uint64) Estimate {
	if len(x) == 0 {
		return unknown()
	}
	e := Estimate{Value: statistic(slices.Clone(x)), Level: levelOr(level)}
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	draw := make([]float64, len(x))
	values := make([]float64, 0, bootstrapDraws)
	for range bootstrapDraws {
		for i := range draw {
			draw[i] = x[rng.IntN(len(x))]
		}
		if v := statistic(draw); finite(v) {
			values = append(values, v)
		}
	}
	return percentiles(e, values)
}

// percentiles sets an estimate's interval from bootstrap draws.
func percentiles(e Estimate, draws []float64) Estimate {
	if len(draws) == 0 {
		return unknown()
	}
	slices.Sort(draws)
	e.Low, e.High = quantileSorted(draws, 0.5-e.Level/2), quantileSorted(draws, 0.5+e.Level/2)
	return e
}
