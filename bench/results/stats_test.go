package results

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// TestQuantile holds against R: quantile(c(10, 1, 4, 2, 3), p, type = 7).
func TestQuantile(t *testing.T) {
	x := []float64{10, 1, 4, 2, 3}
	for _, test := range []struct{ p, want float64 }{{0, 1}, {0.1, 1.4}, {0.3, 2.2}, {0.5, 3}, {0.9, 7.6}, {1, 10}, {-1, 1}, {2, 10}} {
		if got := Quantile(x, test.p); !near(got, test.want, 1e-12) {
			t.Errorf("Quantile(%v) = %v, want %v", test.p, got, test.want)
		}
	}
	if !slices.Equal(x, []float64{10, 1, 4, 2, 3}) {
		t.Errorf("the samples are %v: they were changed", x)
	}
	for _, bad := range [][]float64{nil, {1, math.NaN()}} {
		if got := Quantile(bad, 0.5); !math.IsNaN(got) {
			t.Errorf("Quantile(%v) = %v, want NaN", bad, got)
		}
	}
	if got := Median([]float64{-math.MaxFloat64, math.MaxFloat64}); got != 0 {
		t.Errorf("median of the two extremes is %v, want 0", got)
	}
}

// exactCoverage is the probability that the k-th order statistics from both ends enclose the median, in exact arithmetic.
func exactCoverage(n, k int) float64 {
	tail := new(big.Int)
	for i := range k + 1 {
		tail.Add(tail, new(big.Int).Binomial(int64(n), int64(i)))
	}
	r := new(big.Rat).SetFrac(tail.Lsh(tail, 1), new(big.Int).Lsh(big.NewInt(1), uint(n)))
	f, _ := r.Float64()
	return 1 - f
}

func TestMedianIntervalRanks(t *testing.T) {
	for _, level := range []float64{0.5, 0.9, 0.95, 0.99} {
		for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 20, 21, 33, 64, 101, 200} {
			x := make([]float64, n)
			for i := range x {
				x[i] = float64(n - i) // 1..n, descending
			}
			k := 0
			for k+1 <= (n-1)/2 && exactCoverage(n, k+1) >= level {
				k++
			}
			got := MedianInterval(x, level)
			want := Estimate{Value: float64(n+1) / 2, Low: float64(k + 1), High: float64(n - k), Level: max(0, exactCoverage(n, k))}
			if got.Value != want.Value || got.Low != want.Low || got.High != want.High || math.Abs(got.Level-want.Level) > 1e-12 {
				t.Fatalf("n = %d, level %v: %+v, want %+v", n, level, got, want)
			}
		}
	}
}

func TestMedianIntervalCovers(t *testing.T) {
	r := rng(1)
	const rounds = 4000
	for _, n := range []int{6, 9, 25} {
		hit := 0
		var level float64
		for range rounds {
			x := make([]float64, n)
			for i := range x {
				x[i] = r.ExpFloat64()
			}
			e := MedianInterval(x, 0)
			level = e.Level
			if e.Low <= math.Ln2 && math.Ln2 <= e.High {
				hit++
			}
		}
		if got := float64(hit) / rounds; math.Abs(got-level) > 4*math.Sqrt(level*(1-level)/rounds) || level < 0.95 {
			t.Errorf("n = %d: covers %.4f, says %.4f", n, got, level)
		}
	}
}

func TestMeanInterval(t *testing.T) {
	// t.test(1:10): 5.5, 3.334149 to 7.665851.
	e := MeanInterval([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0)
	if e.Value != 5.5 || math.Abs(e.Low-3.334149) > 1e-6 || math.Abs(e.High-7.665851) > 1e-6 || e.Level != 0.95 {
		t.Errorf("interval is %+v, want 5.5 [3.334149, 7.665851] at 0.95", e)
	}
	if e := MeanInterval([]float64{3}, 0); e != (Estimate{Value: 3, Low: 3, High: 3}) {
		t.Errorf("of one sample it is %+v, want no level", e)
	}
	if e := MeanInterval(nil, 0); !math.IsNaN(e.Value) {
		t.Errorf("of none it is %+v, want NaN", e)
	}
}

// TestBatchMeans measures the mean of a first-order autoregression, whose true mean is 0.
func TestBatchMeans(t *testing.T) {
	r := rng(2)
	const rounds, n, rho = 400, 4000, 0.9
	hit, naive := 0, 0
	for range rounds {
		x := make([]float64, n)
		v := r.NormFloat64() / math.Sqrt(1-rho*rho)
		for i := range x {
			v = rho*v + r.NormFloat64()
			x[i] = v
		}
		e, lag1, err := BatchMeans(x, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(lag1) > 0.75 {
			t.Fatalf("neighbouring means correlate by %v, want little", lag1)
		}
		if e.Low <= 0 && 0 <= e.High {
			hit++
		}
		if m := MeanInterval(x, 0); m.Low <= 0 && 0 <= m.High {
			naive++
		}
	}
	if got := float64(hit) / rounds; got < 0.91 || got > 0.985 {
		t.Errorf("covers %.3f, want about 0.95", got)
	}
	if got := float64(naive) / rounds; got > 0.6 {
		t.Errorf("without batches it covers %.3f: the series is too easy for this test", got)
	}
	if e, _, err := BatchMeans([]float64{9, 1, 2, 3, 4}, 2, 0); err != nil || e.Value != 2.5 {
		t.Errorf("mean of 2 batches of 1, 2, 3, 4 is %v (%v), want 2.5: what is left over goes first", e.Value, err)
	}
	for _, batches := range []int{-1, 1, 6} {
		if _, _, err := BatchMeans([]float64{1, 2, 3, 4, 5}, batches, 0); err == nil {
			t.Errorf("%d batches of 5 values are no error", batches)
		}
	}
	if _, _, err := BatchMeans([]float64{1, math.Inf(1)}, 2, 0); err == nil {
		t.Error("an infinite value is no error")
	}
}

func TestBootstrapInterval(t *testing.T) {
	r := rng(3)
	x := make([]float64, 400)
	for i := range x {
		x[i] = 10 + r.NormFloat64()
	}
	mean := func(x []float64) float64 { return stat.Mean(x, nil) }
	b, want := BootstrapInterval(x, mean, 0, 7), MeanInterval(x, 0)
	if !near(b.Value, want.Value, 1e-12) || math.Abs(b.Low-want.Low) > 0.02 || math.Abs(b.High-want.High) > 0.02 {
		t.Errorf("of a mean it is %+v, by Student's t %+v", b, want)
	}
	if again := BootstrapInterval(x, mean, 0, 7); again != b {
		t.Errorf("with the same seed it is %+v, then %+v", b, again)
	}
	if other := BootstrapInterval(x, mean, 0, 8); other == b {
		t.Error("another seed gives the very same")
	}
	if e := BootstrapInterval(nil, mean, 0, 1); !math.IsNaN(e.Low) {
		t.Errorf("of none it is %+v, want NaN", e)
	}
	if e := BootstrapInterval([]float64{1}, func([]float64) float64 { return math.NaN() }, 0, 1); !math.IsNaN(e.Low) {
		t.Errorf("of a statistic that is never finite it is %+v, want NaN", e)
	}
}
