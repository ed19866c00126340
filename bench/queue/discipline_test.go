package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var nearly = cmpopts.EquateApprox(0, 1e-9)

// randomJobs are few jobs with ties, gaps and bursts.
func randomJobs(rng *rand.Rand, n int) []job {
	jobs := make([]job, n)
	var now float64
	for i := range jobs {
		if rng.IntN(3) > 0 {
			now += rng.ExpFloat64()
		}
		jobs[i] = job{at: now, service: .05 + rng.ExpFloat64()}
	}
	return jobs
}

func TestByHand(t *testing.T) {
	t.Parallel()
	// Work of 5 and 1 at time 0 and 1; another 2 arrives at 10, when all is done.
	jobs := []job{{0, 5}, {1, 1}, {10, 2}}
	for _, tc := range []struct {
		d    Discipline
		wait []float64
	}{
		{FIFO(), []float64{0, 4, 0}},
		// From 1 on both get a half: the second ends at 3, the first, with 3 left, at 6.
		{ProcessorSharing(), []float64{1, 1, 0}},
		// A job goes to the back when its piece starts, so the first is before the second once more: a a a b a a.
		{Chunked(1, 1), []float64{1, 2, 0}},
		// The same in pieces of 1.5: a until 3, b until 4, a until 6.
		{Chunked(1, 1.5), []float64{1, 2, 0}},
		// Two slots of 1: both are a's until 2; its third piece and b share until 4; a ends at 6.
		{Chunked(2, 1), []float64{1, 2, 0}},
	} {
		t.Run(fmt.Sprint(tc.d), func(t *testing.T) {
			out := tc.d.serve(jobs)
			if diff := cmp.Diff(tc.wait, out.wait, nearly); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]float64{0, 4, 0}, out.backlog, nearly); diff != "" {
				t.Errorf("backlogs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFIFOIsLindley holds first come, first served to its recursion, and the backlog to the wait.
func TestFIFOIsLindley(t *testing.T) {
	t.Parallel()
	rng := newRand(1, "lindley")
	for range 200 {
		jobs := randomJobs(rng, 50)
		out := FIFO().serve(jobs)
		var free float64
		for i, j := range jobs {
			want := max(0, free-j.at)
			free = max(free, j.at) + j.service
			if math.Abs(out.wait[i]-want) > 1e-9 || math.Abs(out.backlog[i]-want) > 1e-9 {
				t.Fatalf("job %d of %v waits %v with backlog %v, want %v", i, jobs, out.wait[i], out.backlog[i], want)
			}
		}
	}
}

// sharedBySteps is processor sharing from completion to completion, over all jobs each time.
func sharedBySteps(jobs []job) []float64 {
	left, wait := make([]float64, len(jobs)), make([]float64, len(jobs))
	here := map[int]bool{}
	var now float64
	next := 0
	for next < len(jobs) || len(here) > 0 {
		until := math.Inf(1)
		if next < len(jobs) {
			until = jobs[next].at
		}
		for i := range here {
			until = min(until, now+left[i]*float64(len(here)))
		}
		step := (until - now) / float64(max(1, len(here)))
		for i := range here {
			if left[i] -= step; left[i] < 1e-12 {
				wait[i] = until - jobs[i].at - jobs[i].service
			}
		}
		now = until
		for i := range here {
			if left[i] < 1e-12 {
				delete(here, i)
			}
		}
		if next < len(jobs) && jobs[next].at <= now {
			here[next], left[next] = true, jobs[next].service
			next++
		}
	}
	return wait
}

func TestProcessorSharingBySteps(t *testing.T) {
	t.Parallel()
	rng := newRand(2, "steps")
	for range 200 {
		jobs := randomJobs(rng, 40)
		if diff := cmp.Diff(sharedBySteps(jobs), ProcessorSharing().serve(jobs).wait, nearly); diff != "" {
			t.Fatalf("waits of %v (-steps +server):\n%s", jobs, diff)
		}
	}
}

// TestConservation: every order is busy at the same times and finds the same backlog, and no job waits less than nothing.
func TestConservation(t *testing.T) {
	t.Parallel()
	rng := newRand(3, "conservation")
	last := func(jobs []job, wait []float64) float64 {
		var end float64
		for i, j := range jobs {
			end = max(end, j.at+j.service+wait[i])
		}
		return end
	}
	for range 100 {
		jobs := randomJobs(rng, 60)
		want := FIFO().serve(jobs)
		for _, d := range []Discipline{ProcessorSharing(), Chunked(1, .1), Chunked(3, .3), Chunked(16, .7), {Name: "limited", Slots: 2}} {
			got := d.serve(jobs)
			if diff := cmp.Diff(want.backlog, got.backlog, nearly); diff != "" {
				t.Fatalf("%v: backlogs (-fifo +got):\n%s", d, diff)
			}
			if a, b := last(jobs, want.wait), last(jobs, got.wait); math.Abs(a-b) > 1e-9 {
				t.Fatalf("%v: the last job ends at %v, want %v", d, b, a)
			}
			if least := slices.Min(got.wait); least < -1e-9 {
				t.Fatalf("%v: a job waits %v", d, least)
			}
		}
	}
}

// TestLimits: large pieces are first come, first served, small ones processor sharing.
func TestLimits(t *testing.T) {
	t.Parallel()
	jobs := randomJobs(newRand(4, "limits"), 300)
	if diff := cmp.Diff(FIFO().serve(jobs).wait, Chunked(1, 1e9).serve(jobs).wait, nearly); diff != "" {
		t.Errorf("huge pieces (-fifo +got):\n%s", diff)
	}
	if diff := cmp.Diff(ProcessorSharing().serve(jobs).wait, Chunked(1, 1e-4).serve(jobs).wait, cmpopts.EquateApprox(.001, .05)); diff != "" {
		t.Errorf("tiny pieces (-sharing +got):\n%s", diff)
	}
}

func TestNoJobs(t *testing.T) {
	t.Parallel()
	if out := FIFO().serve(nil); len(out.wait) != 0 || len(out.backlog) != 0 {
		t.Errorf("got %+v of no jobs", out)
	}
}

func TestSamplers(t *testing.T) {
	t.Parallel()
	for _, s := range []Service{Exponential, Deterministic, Lognormal} {
		const mean, spread, n = .05, 2.0, 400_000
		draw, err := s.sampler(mean, spread, newRand(1, "moments"))
		if err != nil {
			t.Fatal(err)
		}
		var sum, squares float64
		for range n {
			v := draw()
			sum += v
			squares += v * v
		}
		got := sum / n
		scv := squares/n/(got*got) - 1
		if math.Abs(got-mean) > .01*mean || math.Abs(scv-s.scv(spread)) > .1 {
			t.Errorf("%s: mean %v with C² %v, want %v with %v", s, got, scv, mean, s.scv(spread))
		}
	}
	if _, err := Service("uniform").sampler(1, 1, nil); err == nil {
		t.Error("an unknown service is no error")
	}
}

func TestGeometricMoments(t *testing.T) {
	t.Parallel()
	g := geometric{mean: 20_000, max: 1000}
	rng := newRand(5, "geometric")
	const n = 400_000
	var sum, squares float64
	for range n {
		v := float64(g.draw(rng) * pageBytes)
		sum += v
		squares += v * v
	}
	mean, scv := g.moments()
	gotMean := sum / n
	gotSCV := squares/n/(gotMean*gotMean) - 1
	if math.Abs(gotMean-mean) > .01*mean || math.Abs(gotSCV-scv) > .02 {
		t.Errorf("pages have mean %v and C² %v, want %v and %v", gotMean, gotSCV, mean, scv)
	}
}

func BenchmarkServe(b *testing.B) {
	for _, d := range []Discipline{FIFO(), ProcessorSharing(), Chunked(2, .01)} {
		b.Run(d.Name, func(b *testing.B) {
			rng := newRand(1, "bench")
			jobs := poisson(100_000, 16, rng, func() float64 { return .05 * rng.ExpFloat64() })
			b.ReportAllocs()
			for b.Loop() {
				d.serve(jobs)
			}
		})
	}
}
