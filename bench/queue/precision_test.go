package queue

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// normal draws n values of that mean and standard deviation.
func normal(rng *rand.Rand, n int, mean, sd float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = mean + sd*rng.NormFloat64()
	}
	return x
}

// The power that is stated is the one that there is: with the means as far apart as detectable says, the intervals are apart in
// about four of five measurements; with the means equal, in almost none.
func TestDetectable(t *testing.T) {
	t.Parallel()
	rng := newRand(1, "power")
	const rounds, sd = 4000, 0.4
	law := results.Estimate{Value: 1, Low: .99, High: 1.01}
	// What a measurement of that spread states on average, the law being at 1.
	var stated float64
	for range rounds {
		x := normal(rng, linkBatches, 1, sd)
		stated += detectable(results.MeanInterval(x, 0), x, law) / rounds
	}
	apart := func(mean float64) float64 {
		n := 0
		for range rounds {
			if !results.MeanInterval(normal(rng, linkBatches, mean, sd), 0).Overlaps(law) {
				n++
			}
		}
		return float64(n) / rounds
	}
	if got := apart(1 + stated); got < .76 || got > .84 {
		t.Errorf("off by %.3f: apart in %.3f of the rounds, want 0.8", stated, got)
	}
	if got := apart(1); got > .05 {
		t.Errorf("equal: apart in %.3f of the rounds", got)
	}
	if d := detectable(results.Estimate{Value: 1, Low: 0, High: 2}, normal(rng, linkBatches, 1, 1), results.Estimate{}); !math.IsInf(d, 1) {
		t.Errorf("a law of 0 can be told apart by %v", d)
	}
}

// Jobs are enough when the interval is narrow and batches do not correlate, not by either alone, and never before the first
// look.
func TestEnough(t *testing.T) {
	t.Parallel()
	rng := newRand(2, "enough")
	drift := func(n int) []float64 { // narrow enough, but every batch is like its neighbour
		x := normal(rng, n, 1, .01)
		for i := range x {
			x[i] += .1 * math.Sin(2*math.Pi*float64(i)/float64(n))
		}
		return x
	}
	for _, tc := range []struct {
		name      string
		wait      []float64
		precision float64
		want      bool
	}{
		{"narrow", normal(rng, 2000, 1, 1), .2, true},
		{"wide", normal(rng, 2000, 1, 10), .2, false},
		{"wide, loosely asked", normal(rng, 2000, 1, 10), 1, true},
		{"too few", normal(rng, linkBatches-1, 1, .01), .2, false},
		{"not asked", normal(rng, 2000, 1, .01), -1, false},
		{"correlated", drift(2000), .2, false},
		{"no mean", normal(rng, 2000, -1, .01), .2, false},
	} {
		if got := enough(tc.wait, tc.precision); got != tc.want {
			e, err := estimateOf(tc.wait)
			t.Errorf("%s: %v, want %v (%+v, %v)", tc.name, got, tc.want, e, err)
		}
	}
	// Chance alone stops one measurement in twenty from being believed.
	high := 0
	for range 4000 {
		if e, err := estimateOf(normal(rng, 400, 1, 1)); err != nil || e.lag1 > maxLag1(linkBatches) {
			high++
		}
	}
	if high > 4000/12 {
		t.Errorf("%d of 4000 series without correlation look correlated", high)
	}
}

// A point that is wide, or whose batches correlate, or of a machine that was late, decides nothing and says why.
func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		half, lag  float64
		late       float64
		precision  float64
		conclusive bool
		say        string
	}{
		{name: "good", half: .1, precision: .2, conclusive: true},
		{name: "wide", half: .3, precision: .2, say: "known to ±30 % after 500 jobs in 9 s, not to the ±20 % asked for: inconclusive"},
		{name: "wide and not asked", half: 3, precision: -1, conclusive: true},
		{name: "correlated", half: .1, lag: .5, precision: .2, say: "correlate by 0.50, above 0.37"},
		{name: "late", half: .1, late: 2, precision: .2, say: "this machine was too busy"},
	} {
		r := &Result{}
		p := Point{Source: SourceQUIC, Utilization: .3, Jobs: 500, ServiceSeconds: 1, QUIC: &LinkPoint{Seconds: 9, LateP99Seconds: tc.late, Overlaps: true}}
		r.judge(&p, estimate{results.Estimate{Value: 1, Low: 1 - tc.half, High: 1 + tc.half}, tc.lag}, tc.precision)
		if p.QUIC.Conclusive != tc.conclusive || math.Abs(p.QUIC.HalfWidth-tc.half) > 1e-9 {
			t.Errorf("%s: %+v", tc.name, *p.QUIC)
		}
		if say := strings.Join(r.warnings, "\n"); !strings.Contains(say, tc.say) || (say == "") != (tc.say == "") {
			t.Errorf("%s: warned %q, want %q", tc.name, say, tc.say)
		}
		if got := p.QUIC.verdict(); (got == "yes") != tc.conclusive || (got == "inconclusive") == tc.conclusive {
			t.Errorf("%s: verdict %s", tc.name, got)
		}
	}
}

// A run that may not go on for long enough says that it decides nothing, in its warnings and its conclusion.
func TestTooShortIsInconclusive(t *testing.T) {
	t.Parallel()
	res := inVirtualTime(t, Config{Jobs: 10_000, Seed: 2, Duration: 2 * time.Second, Precision: .01, LinkUtilizations: []float64{.6}})
	q := res.Points[0].QUIC
	if q.Conclusive || q.HalfWidth <= .01 || len(res.warnings) == 0 || !strings.Contains(res.warnings[0], "inconclusive") {
		t.Errorf("%+v, warnings %q", *q, res.warnings)
	}
	res.Link.Discipline = nearest(res.Points)
	if say := res.conclude(); !strings.Contains(say, "1 of 1 utilizations are inconclusive") || strings.Contains(say, "overlaps that of the law") {
		t.Errorf("concluded %q", say)
	}
}

// Adjusting takes the luck of the draw out and nothing else: the mean is the same over many draws, whether the law that is used is
// the right one or not, and it scatters less when it is near.
func TestAdjusted(t *testing.T) {
	t.Parallel()
	const rho, rounds, n = .6, 400, 500
	truth := ProcessorSharing()
	law := rho / (1 - rho)
	for _, tc := range []struct {
		name    string
		control Discipline
		narrow  float64 // the scatter of the adjusted means over that of the raw ones, at most
	}{{"the right law", Chunked(2, .1), .5}, {"another order", FIFO(), 1.2}} {
		rng := newRand(7, tc.name)
		var raw, adj []float64
		var controls float64
		for range rounds {
			jobs := poisson(n, rho, rng, rng.ExpFloat64)
			wait, control := truth.serve(jobs).wait, tc.control.serve(jobs).wait
			controls += meanOf(control[warmUp(n):]) / rounds
			raw = append(raw, meanOf(wait[warmUp(n):]))
			adj = append(adj, meanOf(adjusted(wait, control, law)))
		}
		a, r := results.MeanInterval(adj, .999), results.MeanInterval(raw, .999)
		// The queue starts empty, so that the control's mean over so few jobs is a little off its long-run one, by as much as this.
		if off := law - controls; a.Low-math.Abs(off) > law || a.High+math.Abs(off) < law {
			t.Errorf("%s: adjusted mean %+v, want %v", tc.name, a, law)
		}
		if w := (a.High - a.Low) / (r.High - r.Low); w > tc.narrow {
			t.Errorf("%s: the adjusted means scatter %.2f times as much as the raw ones", tc.name, w)
		}
	}
}

// The prefix is the jobs before the first that is not done, in whatever order they end, and what they wrote is seen.
func TestPrefix(t *testing.T) {
	t.Parallel()
	const n = 1000
	p := newPrefix(n)
	wrote := make([]int, n)
	order := newRand(3, "prefix").Perm(n)
	var wg sync.WaitGroup
	for _, chunk := range slices.Collect(slices.Chunk(order, 100)) {
		wg.Go(func() {
			for _, i := range chunk {
				wrote[i] = i + 1
				p.add(i)
			}
		})
	}
	for seen := 0; seen < n; seen = p.len() {
		for i, v := range wrote[:p.len()] {
			if v != i+1 {
				t.Fatalf("job %d is done and wrote %d", i, v)
			}
		}
	}
	wg.Wait()
	q := newPrefix(3)
	for i, want := range map[int]int{2: 0, 1: 0} {
		if q.add(i); q.len() != want {
			t.Errorf("after %d: %d", i, q.len())
		}
	}
	if q.add(0); q.len() != 3 {
		t.Errorf("all done: %d", q.len())
	}
}
