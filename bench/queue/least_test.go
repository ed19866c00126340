package queue

import (
	"math"
	"math/rand/v2"
	"testing"
)

// bruteLeast works in small steps of time: in each, on the job that is there with the least left.
func bruteLeast(jobs []job, step float64) []float64 {
	left, wait := make([]float64, len(jobs)), make([]float64, len(jobs))
	for i, j := range jobs {
		left[i] = j.service
	}
	for open, now := len(jobs), 0.0; open > 0; now += step {
		best := -1
		for i, j := range jobs {
			if j.at <= now+1e-12 && left[i] > 1e-9 && (best < 0 || left[i] < left[best]-1e-9) {
				best = i
			}
		}
		if best < 0 {
			continue
		}
		if left[best] -= step; left[best] <= 1e-9 {
			wait[best] = now + step - jobs[best].at - jobs[best].service
			open--
		}
	}
	return wait
}

// With nothing on its way and a small grain the order is shortest remaining processing time, job by job; with everything on its way
// it is first come, first served.
func TestLeastLeftAgainstBruteForce(t *testing.T) {
	t.Parallel()
	const step = 1. / 64
	rng := rand.New(rand.NewPCG(1, 2))
	for trial := range 200 {
		jobs := make([]job, 1+rng.IntN(12))
		at := 0
		for i := range jobs {
			at += rng.IntN(40) + trial%2 // of one trial in two some arrive together
			jobs[i] = job{at: float64(at) * step, service: float64(1+rng.IntN(80)) * step}
		}
		got, want := LeastLeft(0, step).serve(jobs), bruteLeast(jobs, step)
		fifo, all := FIFO().serve(jobs), LeastLeft(math.Inf(1), step).serve(jobs)
		for i := range jobs {
			if math.Abs(got.wait[i]-want[i]) > 1e-9 {
				t.Fatalf("%+v: job %d waits %v, want %v", jobs, i, got.wait[i], want[i])
			}
			if trial%2 == 1 && math.Abs(all.wait[i]-fifo.wait[i]) > 1e-9 || math.Abs(all.backlog[i]-fifo.backlog[i]) > 1e-9 || math.Abs(got.backlog[i]-fifo.backlog[i]) > 1e-9 {
				t.Fatalf("%+v: job %d waits %v, first come, first served %v; backlogs %v, %v, %v", jobs, i, all.wait[i], fifo.wait[i], all.backlog[i], got.backlog[i], fifo.backlog[i])
			}
		}
	}
}

// The simulator's mean is that of the law, below M/M/1's; the more is on its way the less the order can do.
func TestLeastLeftLaw(t *testing.T) {
	t.Parallel()
	for _, rho := range []float64{.3, .6, .8} {
		rng := newRand(7, "least")
		jobs := poisson(200_000, rho, rng, rng.ExpFloat64)
		mean := meanOf(LeastLeft(0, 1./64).serve(jobs).wait)
		if want := leastWait(rho, 1); math.Abs(mean/want-1) > .05 || want > lawsAt(rho, 1, 1).MM1 {
			t.Errorf("at %v: mean wait %v, by law %v, by M/M/1 %v", rho, mean, want, lawsAt(rho, 1, 1).MM1)
		}
		last := mean
		for _, ahead := range []float64{.5, 2, 8} {
			now := meanOf(LeastLeft(ahead, 1./64).serve(jobs).wait)
			if now <= last || now > lawsAt(rho, 1, 1).MM1*1.05 {
				t.Errorf("at %v with %v ahead: mean wait %v, with less %v", rho, ahead, now, last)
			}
			last = now
		}
	}
}
