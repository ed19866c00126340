package queue

import (
	"context"
	"fmt"
	"math"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/planner"
)

// crossLaw is one assumption about the source's link whose crossover is measured.
type crossLaw struct {
	name    string
	variant variant
	// own has the fetch wait as one of its own size, not as the mean job of the queue.
	own bool
}

func crossLaws() []crossLaw {
	return []crossLaw{
		{"M/M/1", variant{FIFO(), Exponential}, false},
		{"M/D/1", variant{FIFO(), Deterministic}, false},
		{"M/G/1, lognormal", variant{FIFO(), Lognormal}, false},
		{"processor sharing, exponential", variant{ProcessorSharing(), Exponential}, false},
		{"processor sharing, lognormal", variant{ProcessorSharing(), Lognormal}, false},
		{"processor sharing, own size", variant{ProcessorSharing(), Exponential}, true},
		{leastLaw, variant{LeastLeft(0, 1./serviceRate/64), Exponential}, false}, // a grain that is small beside the mean job
	}
}

const leastLaw = "least left first, exponential"

// preset is the decision that is crossed: the base model's utilization preset.
type preset struct {
	fetch, recompute float64 // service, seconds, without waits
	transmission     float64 // of the fetch, seconds on the link
	mean             float64 // service time of either queue, seconds
	compute          planner.MM1
	crossover        float64 // the planner's
}

func utilizationPreset() (preset, error) {
	in := planner.UtilizationPreset()
	r, err := planner.EvaluateBase(in, planner.BaseInput{})
	if err != nil {
		return preset{}, fmt.Errorf("evaluate preset: %w", err)
	}
	p := preset{
		fetch: r.FetchSeconds, recompute: r.RecomputeSeconds, transmission: r.FetchSeconds - in.Input.RTT.Seconds(),
		mean:    1 / in.Input.FetchServiceRate,
		compute: planner.MM1{ServiceRate: in.Input.ComputeServiceRate, Utilization: in.Input.ComputeUtilization},
	}
	rho, ok := planner.CrossoverUtilization(p.recompute, p.fetch, p.compute, in.Input.FetchServiceRate)
	if !ok {
		return preset{}, fmt.Errorf("BUG: the preset %q has no crossover utilization", in.Name)
	}
	p.crossover = rho
	return p, nil
}

// gap is the wait at which fetch takes as long as recompute with its mean wait.
func (p preset) gap(computeWait float64) float64 { return p.recompute + computeWait - p.fetch }

// predict is the crossover that theory gives for a law.
func (p preset) predict(l crossLaw, spread float64) float64 {
	wait, _ := p.compute.Wait()
	scale := lawsAt(.5, p.mean, l.variant.service.scv(spread)) // at 0.5, ρ/(1−ρ) is 1
	unit := scale.MG1
	if l.variant.discipline.Least {
		rho, err := bisect(func(rho float64) float64 { return leastWait(rho, p.mean) - p.gap(wait) }, .01, maxUtilization)
		if err != nil {
			return math.NaN()
		}
		return rho
	}
	switch {
	case l.own:
		unit = p.transmission
	case l.variant.discipline.Slots != 1:
		unit = scale.PS
	}
	x := p.gap(wait) / unit
	return x / (1 + x)
}

// crossSample is the random part of one replication, drawn once, so that the wait is a smooth function of the utilization.
type crossSample struct {
	law      crossLaw
	between  []float64 // exponential of mean 1
	services []float64
	jobs     []job
	own      float64 // service time of the fetch itself, seconds
}

// wait is the mean wait at a utilization, or that of a job of the fetch's own size.
func (s *crossSample) wait(rho, mean float64) float64 {
	var now float64
	for i := range s.jobs {
		now += s.between[i] * mean / rho
		s.jobs[i] = job{at: now, service: s.services[i]}
	}
	out := s.law.variant.discipline.serve(s.jobs)
	skip := warmUp(len(s.jobs))
	if s.law.own {
		l, _ := lineOf(s.jobs[skip:], out.wait[skip:])
		return l.at(s.own)
	}
	return meanOf(out.wait[skip:])
}

// replicate measures one crossover: where the simulated fetch takes as long as recompute with its simulated wait.
func (p preset) replicate(l crossLaw, spread float64, jobs int, seed uint64, number int) (float64, error) {
	rng := newRand(seed, fmt.Sprintf("crossover %s %d", l.name, number))
	draw, err := l.variant.service.sampler(p.mean, spread, rng)
	if err != nil {
		return 0, err
	}
	computeMean := 1 / p.compute.ServiceRate
	recompute := FIFO().serve(poisson(jobs, p.compute.Utilization*p.compute.ServiceRate, rng, func() float64 { return computeMean * rng.ExpFloat64() }))
	gap := p.gap(meanOf(recompute.wait[warmUp(jobs):]))
	s := &crossSample{law: l, own: p.transmission, between: make([]float64, jobs), services: make([]float64, jobs), jobs: make([]job, jobs)}
	for i := range jobs {
		s.between[i], s.services[i] = rng.ExpFloat64(), draw()
	}
	return bisect(func(rho float64) float64 { return s.wait(rho, p.mean) - gap }, .01, maxUtilization)
}

// bisect finds where f, which grows, is zero, to 1e-5, by Illinois' variant of false position with bisection to fall back
// on: f of a queue is flat on the left and steep on the right.
func bisect(f func(float64) float64, lo, hi float64) (float64, error) {
	flo, fhi := f(lo), f(hi)
	if flo > 0 || fhi < 0 {
		return 0, fmt.Errorf("no crossover from %v to %v: fetch differs by %.4g s and %.4g s", lo, hi, flo, fhi)
	}
	side := 0 // the end that moved last, for halving the other's weight when it stays
	for step := 0; hi-lo > 1e-5 && step < 60; step++ {
		// ρ/(1−ρ) is what waits are nearly linear in.
		a, b := lo/(1-lo), hi/(1-hi)
		x := a - flo*(b-a)/(fhi-flo)
		mid := x / (1 + x)
		if step%3 == 2 || !(mid > lo && mid < hi) || math.IsNaN(mid) {
			mid = (lo + hi) / 2
		}
		v := f(mid)
		switch {
		case v == 0:
			return mid, nil
		case v < 0:
			if lo, flo = mid, v; side == -1 {
				fhi /= 2
			}
			side = -1
		default:
			if hi, fhi = mid, v; side == 1 {
				flo /= 2
			}
			side = 1
		}
	}
	return (lo + hi) / 2, nil
}

// crossoverJobs is how many jobs a replication has, of those that a point has.
func crossoverJobs(jobs int) int { return max(1000, jobs/8) }

// leastJobs is how many a replication has at least whose crossover lies where queues are long.
const leastJobs = 20_000

func (l crossLaw) jobs(jobs int) int {
	if l.variant.discipline.Least {
		return max(leastJobs, crossoverJobs(jobs))
	}
	return crossoverJobs(jobs)
}

// crossAll measures the crossover of every law, as far as ctx lasts.
func crossAll(ctx context.Context, cfg Config) (*Crossover, error) {
	p, err := utilizationPreset()
	if err != nil {
		return nil, err
	}
	laws := crossLaws()
	cfg.Progress.Stage("measuring crossovers", float64(len(laws)*cfg.Replications))
	out := &Crossover{
		Predicted: p.crossover, FetchSeconds: p.fetch, RecomputeSeconds: p.recompute, TransmissionSeconds: p.transmission,
		ServiceRate: 1 / p.mean, ComputeUtilization: p.compute.Utilization,
	}
	for i, l := range laws {
		var found []float64
		for n := range cfg.Replications {
			if ctx.Err() != nil {
				return out.orNil(), context.Cause(ctx)
			}
			rho, err := p.replicate(l, cfg.Spread, l.jobs(cfg.Jobs), cfg.Seed, n)
			if err != nil {
				return out.orNil(), fmt.Errorf("crossover under %s: %w", l.name, err)
			}
			found = append(found, rho)
			cfg.Progress.Add(1)
		}
		e := results.MeanInterval(found, 0)
		m := Measured{Mean: e.Value, Low: e.Low, High: e.High}
		out.Laws = append(out.Laws, LawCrossover{
			Law: l.name, Discipline: l.variant.discipline.Name, Service: l.variant.service, OwnSize: l.own,
			Measured: m, Predicted: p.predict(l, cfg.Spread), samples: found,
		})
		if i == 0 {
			out.Measured = m
		}
	}
	return out, nil
}

// orNil is c if at least its first law was measured.
func (c *Crossover) orNil() *Crossover {
	if len(c.Laws) == 0 {
		return nil
	}
	return c
}
