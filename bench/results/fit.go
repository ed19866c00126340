package results

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// ErrNoCrossing is wrapped by the errors that say that two lines do not cross, or nowhere in particular.
var ErrNoCrossing = errors.New("no crossing")

// Fit is a straight line through measurements: y = Intercept + Slope x, by least squares.
type Fit struct {
	N         int      `json:"n"`
	Intercept Estimate `json:"intercept"` // in y's unit
	Slope     Estimate `json:"slope"`     // in y's unit a unit of x
	R2        float64  `json:"r2"`        // share of y's variance that the line explains, 0..1; 1 if y does not vary
	Sigma     float64  `json:"sigma"`     // standard deviation of y about the line, n-2 degrees of freedom; 0 for two points
	XMin      float64  `json:"x_min"`     // the measured range
	XMax      float64  `json:"x_max"`

	xMean, sxx float64
}

// LinearFit fits a line to points (x[i], y[i]) whose errors are independent and of one size. Its intervals are by
// Student's t with n-2 degrees of freedom; level 0 is 0.95. Two points give a line whose intervals have Level 0 and no
// width. It is an error when the lengths differ, there are fewer than two different x, or a number is not finite.
func LinearFit(x, y []float64, level float64) (Fit, error) {
	if len(x) != len(y) {
		return Fit{}, fmt.Errorf("linear fit: %d x and %d y, want as many of both", len(x), len(y))
	}
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			return Fit{}, fmt.Errorf("linear fit: point %d is (%v, %v), want finite numbers", i, x[i], y[i])
		}
	}
	if len(x) < 2 || slices.Min(x) == slices.Max(x) {
		return Fit{}, fmt.Errorf("linear fit: %d points, want two or more with different x", len(x))
	}
	f := Fit{N: len(x), XMin: slices.Min(x), XMax: slices.Max(x), R2: 1}
	var my, sxy, syy float64
	f.xMean, my = stat.Mean(x, nil), stat.Mean(y, nil)
	for i := range x {
		dx, dy := x[i]-f.xMean, y[i]-my
		f.sxx += dx * dx
		sxy += dx * dy
		syy += dy * dy
	}
	f.Slope.Value = sxy / f.sxx
	f.Intercept.Value = my - f.Slope.Value*f.xMean
	if !finite(f.sxx) || f.sxx == 0 || !finite(f.Slope.Value) || !finite(f.Intercept.Value) || !finite(syy) {
		return Fit{}, errors.New("linear fit: the numbers are too large or too close together to compute with: scale them")
	}
	var rss float64
	for i := range x {
		r := y[i] - f.At(x[i])
		rss += r * r
	}
	if syy > 0 {
		f.R2 = min(max(1-rss/syy, 0), 1)
	}
	if f.N > 2 {
		f.Sigma = math.Sqrt(rss / float64(f.N-2))
	}
	f.Slope = f.interval(f.Slope.Value, f.slopeVariance(), level)
	f.Intercept = f.interval(f.Intercept.Value, f.variance(0), level)
	return f, nil
}

// interval is by Student's t, of no width where nothing is known about errors.
func (f Fit) interval(value, variance, level float64) Estimate {
	if f.N <= 2 {
		return Estimate{Value: value, Low: value, High: value}
	}
	level = levelOr(level)
	half := tQuantile(level, float64(f.N-2)) * math.Sqrt(variance)
	return Estimate{Value: value, Low: value - half, High: value + half, Level: level}
}

// At returns the line's y at x.
func (f Fit) At(x float64) float64 { return f.Intercept.Value + f.Slope.Value*x }

// Interval returns the line's y at x with its interval; level 0 is 0.95. It is of the line, not of a single measurement.
func (f Fit) Interval(x, level float64) Estimate {
	return f.interval(f.At(x), f.variance(x), level)
}

// variance is that of the line at x; slopeVariance that of the slope; at is their covariance.
func (f Fit) variance(x float64) float64 {
	d := x - f.xMean
	return f.Sigma * f.Sigma * (1/float64(f.N) + d*d/f.sxx)
}

func (f Fit) slopeVariance() float64 { return f.Sigma * f.Sigma / f.sxx }

func (f Fit) covariance() float64 { return -f.Sigma * f.Sigma * f.xMean / f.sxx }

// Crossing is where two lines have the same y.
type Crossing struct {
	X Estimate `json:"x"`
	Y float64  `json:"y"`
	// Extrapolated says that it lies outside of the range in which both lines were measured: measure there before
	// believing it.
	Extrapolated bool `json:"extrapolated"`
}

// Cross returns where two lines from independent measurements cross, with the interval of Fieller's theorem ("Some
// problems in interval estimation", 1954), which holds for slopes of any uncertainty where the delta method is too narrow.
// level 0 is 0.95. The degrees of freedom are Welch's, of the two lines' variances at the crossing. The error wraps
// [ErrNoCrossing] when the lines are parallel as far as the measurements tell; then no finite interval holds the crossing.
func Cross(a, b Fit, level float64) (Crossing, error) {
	level = levelOr(level)
	if a.N < 2 || b.N < 2 {
		return Crossing{}, errors.New("cross: a line is no fit of two points or more")
	}
	num := b.Intercept.Value - a.Intercept.Value
	den := a.Slope.Value - b.Slope.Value
	x := num / den
	if den == 0 || !finite(x) {
		return Crossing{}, fmt.Errorf("%w: the lines are parallel, slope %v", ErrNoCrossing, a.Slope.Value)
	}
	c := Crossing{X: Estimate{Value: x, Low: x, High: x}, Y: a.At(x)}
	c.Extrapolated = x < max(a.XMin, b.XMin) || x > min(a.XMax, b.XMax)
	va, vb := a.variance(x), b.variance(x)
	df := welch(va, float64(a.N-2), vb, float64(b.N-2))
	if df == 0 { // two points each: nothing is known about their errors
		return c, nil
	}
	c.X.Level = level
	if va+vb == 0 {
		return c, nil
	}
	t := tQuantile(level, df)
	vNum, vDen := a.variance(0)+b.variance(0), a.slopeVariance()+b.slopeVariance()
	cov := -(a.covariance() + b.covariance())
	// (num - x den)^2 <= t^2 (vNum - 2 x cov + x^2 vDen), a quadratic in x.
	qa, qb, qc := den*den-t*t*vDen, num*den-t*t*cov, num*num-t*t*vNum
	if qa <= 0 {
		return Crossing{}, fmt.Errorf("%w: the slopes %v and %v differ by less than their noise; measure more, or a wider range",
			ErrNoCrossing, a.Slope.Value, b.Slope.Value)
	}
	root := math.Sqrt(max(0, qb*qb-qa*qc))
	c.X.Low, c.X.High = min(x, (qb-root)/qa), max(x, (qb+root)/qa)
	return c, nil
}

// welch returns the degrees of freedom of a sum of two variances, 0 if neither has any.
func welch(va, na, vb, nb float64) float64 {
	if na <= 0 {
		return max(nb, 0)
	}
	if nb <= 0 {
		return na
	}
	if va+vb == 0 {
		return na + nb
	}
	return (va + vb) * (va + vb) / (va*va/na + vb*vb/nb)
}
