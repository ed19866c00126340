package planner

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// simulated is a queue of Poisson arrivals at rate ρ/E[S]: what each job takes longer than it would alone.
func simulated(law Law, rho float64, jobs int, rng *rand.Rand, service func() float64) (extra, size []float64) {
	size = make([]float64, jobs)
	for i := range size {
		size[i] = service()
	}
	arrive := make([]float64, jobs)
	at := 0.0
	for i := range arrive {
		at += rng.ExpFloat64() / rho // services have a mean of 1
		arrive[i] = at
	}
	if law == LawPS {
		return sharing(arrive, size), size
	}
	extra = make([]float64, jobs)
	free := 0.0
	for i := range arrive { // Lindley's recursion
		extra[i] = max(0, free-arrive[i])
		free = max(free, arrive[i]) + size[i]
	}
	return extra, size
}

// sharing serves all that is there at once. A job ends when the service that each has had since it came reaches its size: jobs
// are kept by the level at which they end.
func sharing(arrive, size []float64) []float64 {
	type job struct {
		ends float64 // level
		i    int
	}
	extra := make([]float64, len(arrive))
	var here []job // by ends, the last first to end
	now, level := 0.0, 0.0
	until := func(t float64) {
		for len(here) > 0 {
			next := here[len(here)-1]
			end := now + (next.ends-level)*float64(len(here))
			if end > t {
				break
			}
			now, level, here = end, next.ends, here[:len(here)-1]
			extra[next.i] = end - arrive[next.i] - size[next.i]
		}
		if len(here) > 0 {
			level += (t - now) / float64(len(here))
		}
		now = t
	}
	for i, t := range arrive {
		until(t)
		j := job{level + size[i], i}
		at, _ := slices.BinarySearchFunc(here, j, func(a, b job) int {
			if a.ends > b.ends {
				return -1
			}
			return 1
		})
		here = slices.Insert(here, at, j)
	}
	until(math.MaxFloat64 / 4)
	return extra
}

// batchMeans is the mean of a series and the half width of its 95 % interval, of 20 batches (t of 19 degrees of freedom: 2.093).
func batchMeans(x []float64) (mean, half float64) {
	const batches = 20
	size := len(x) / batches
	var sum, squares float64
	for b := range batches {
		m := 0.0
		for _, v := range x[b*size : (b+1)*size] {
			m += v
		}
		m /= float64(size)
		sum += m
		squares += m * m
	}
	mean = sum / batches
	return mean, 2.093 * math.Sqrt((squares/batches-mean*mean)/(batches-1))
}

// The laws against a simulation of what they are about. A 95 % interval misses one time in twenty, so all must hold at twice the
// width, and 15 of 18 as they are.
func TestLawsAgainstSimulation(t *testing.T) {
	t.Parallel()
	const jobs = 400_000
	sigma := math.Sqrt(math.Log(1 + 4.0)) // lognormal, C² = 4, mean 1
	held, all := 0, 0
	for _, tc := range []struct {
		name string
		law  Law
		scv  float64
		draw func(*rand.Rand) float64
	}{
		{"M/M/1", LawMM1, 0, (*rand.Rand).ExpFloat64},
		{"M/G/1, exponential", LawMG1, 1, (*rand.Rand).ExpFloat64},
		{"M/D/1", LawMG1, 0, func(*rand.Rand) float64 { return 1 }},
		{"M/G/1, lognormal", LawMG1, 4, func(rng *rand.Rand) float64 { return math.Exp(sigma*rng.NormFloat64() - sigma*sigma/2) }},
		{"sharing, exponential", LawPS, 0, (*rand.Rand).ExpFloat64},
		{"sharing, lognormal", LawPS, 0, func(rng *rand.Rand) float64 { return math.Exp(sigma*rng.NormFloat64() - sigma*sigma/2) }},
	} {
		for _, rho := range []float64{.2, .5, .8} {
			rng := rand.New(rand.NewPCG(31, uint64(rho*100)))
			extra, size := simulated(tc.law, rho, jobs, rng, func() float64 { return tc.draw(rng) })
			q := Queue{Law: tc.law, ServiceRate: 1, Utilization: rho, SCV: tc.scv}
			// Of processor sharing the law is about a job's own size; so is what is compared.
			off := make([]float64, 0, jobs)
			for i := jobs / 10; i < jobs; i++ {
				want, ok := q.Wait(size[i])
				if !ok {
					t.Fatal(q)
				}
				off = append(off, extra[i]-want)
			}
			mean, half := batchMeans(off)
			all++
			if math.Abs(mean) <= half {
				held++
			}
			if math.Abs(mean) > 2*half {
				t.Errorf("%s at %v: the law is %.4f ± %.4f services off", tc.name, rho, -mean, half)
			}
		}
	}
	if held < all-3 {
		t.Errorf("the law lies within the 95 %% interval at %d of %d points", held, all)
	}
}

// By hand: 20 jobs a second at one half.
func TestQueueWait(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		q       Queue
		service float64
		want    float64
		ok      bool
	}{
		{Queue{ServiceRate: 20, Utilization: .5}, 9, .05, true},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: .5}, 9, .025, true},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: .5, SCV: 1}, 9, .05, true},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: .5, SCV: 4}, 9, .125, true},
		{Queue{Law: LawPS, Utilization: .5}, 9, 9, true},
		{Queue{Law: LawPS, Utilization: .9}, 0, 0, true},
		{Queue{Law: LawPS, Utilization: 1}, 1, 0, false},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: 1.5}, 1, 0, false},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: .5, SCV: -1}, 1, 0, false},
		{Queue{Law: LawMG1, ServiceRate: 20, Utilization: .5, SCV: math.NaN()}, 1, 0, false},
		{Queue{Law: LawMG1, Utilization: .5}, 1, 0, false},
		{Queue{Law: 3, ServiceRate: 20}, 1, 0, false},
		{Queue{Law: -1, ServiceRate: 20}, 1, 0, false},
		{Queue{ServiceRate: 20}, math.NaN(), 0, false},
		{Queue{ServiceRate: 20}, -1, 0, false},
	} {
		if got, ok := tc.q.Wait(tc.service); ok != tc.ok || math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("%+v of %v: %v, %v; want %v, %v", tc.q, tc.service, got, ok, tc.want, tc.ok)
		}
	}
	var f faults
	(&Queue{Law: 7, ServiceRate: -1, Utilization: -1}).validate(&f, "q")
	(&Queue{Law: LawMG1, ServiceRate: 1, SCV: -1}).validate(&f, "q")
	(*Queue)(nil).validate(&f, "q")
	if got := fields(f.join()); len(got) != 4 || got[0] != "q.Law" || got[3] != "q.SCV" {
		t.Errorf("%v", got)
	}
}

// Sharing stretches what moves, so that a longer transfer waits longer: in fetch, in recompute, and in both ends of hybrid.
func TestSharingStretches(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.r.PrefixTokens, s.r.Hybrid = 8000, true
	s.l.Goodput = 5e9
	half := *s
	half.l.Queue, half.c.Queue = &Queue{Law: LawPS, Utilization: .5}, &Queue{Law: LawPS, Utilization: .5}
	alone, shared := s.decide(t), half.decide(t)
	for _, m := range []Mode{ModeFetch, ModeRecompute, ModeHybrid} {
		a, _ := alone.Plan(m)
		b, _ := shared.Plan(m)
		want := 2 * a.Seconds
		if m == ModeFetch {
			want -= .070 // the round trip is not shared
		}
		tolerance := 1e-9
		if m == ModeHybrid { // as is that of its tail
			want, tolerance = want-.035, .03
		}
		if math.Abs(b.Seconds-want) > tolerance {
			t.Errorf("%v: %v s alone, %v s shared, want %v", m, a.Seconds, b.Seconds, want)
		}
		checkDecision(t, shared)
	}
}
