package queue

import (
	"context"
	"fmt"
	"math"

	"github.com/kvferry/kvferry/bench/results"
)

// serviceRate is that of the simulated queues, jobs a second: the utilization preset's.
const serviceRate = 20

// batches is how many the series of waits is cut into for its interval.
const batches = 20

// variant is one kind of queue that is simulated.
type variant struct {
	discipline Discipline
	service    Service
}

// variants are the simulated ones.
func variants() []variant {
	return []variant{
		{FIFO(), Exponential},
		{FIFO(), Deterministic},
		{FIFO(), Lognormal},
		{ProcessorSharing(), Exponential},
		{ProcessorSharing(), Deterministic},
		{ProcessorSharing(), Lognormal},
	}
}

// warmUp is how many of n jobs are left out: the queue starts empty.
func warmUp(n int) int { return n / 10 }

// simulate measures one point. rho is above 0 and below 1.
func simulate(v variant, rho, spread float64, jobs int, seed uint64) (Point, error) {
	const mean = 1.0 / serviceRate
	rng := newRand(seed, fmt.Sprintf("simulate %s %v", v.service, rho)) // the same arrivals for every discipline
	draw, err := v.service.sampler(mean, spread, rng)
	if err != nil {
		return Point{}, err
	}
	arrivals := poisson(jobs, rho*serviceRate, rng, draw)
	out := v.discipline.serve(arrivals)
	skip := warmUp(jobs)
	wait, lag, err := results.BatchMeans(out.wait[skip:], batches, 0)
	if err != nil {
		return Point{}, fmt.Errorf("waits: %w", err)
	}
	scv := v.service.scv(spread)
	p := Point{
		Source: SourceSimulator, Discipline: v.discipline.Name, Service: v.service, Utilization: rho,
		ServiceSeconds: mean, ServiceSCV: scv, Jobs: jobs - skip,
		Wait:         Wait{Measured: wait.Value, Laws: lawsAt(rho, mean, scv), Backlog: meanOf(out.backlog[skip:])},
		WaitInterval: Interval{Low: wait.Low, High: wait.High, Level: wait.Level, Lag1: lag},
		Backlog:      errorsOf(out.backlog[skip:], out.wait[skip:]),
		SizeSlope:    slopeOf(arrivals[skip:], out.wait[skip:]),
		samples:      batchMeans(out.wait[skip:], batches),
	}
	return p, nil
}

// simulateAll measures every variant at every utilization, as far as ctx lasts.
func simulateAll(ctx context.Context, cfg Config) ([]Point, error) {
	all := variants()
	cfg.Progress.Stage("simulating queues", float64(len(all)*len(cfg.Utilizations)))
	var points []Point
	for _, v := range all {
		for _, rho := range cfg.Utilizations {
			if ctx.Err() != nil {
				return points, context.Cause(ctx)
			}
			p, err := simulate(v, rho, cfg.Spread, cfg.Jobs, cfg.Seed)
			if err != nil {
				return points, fmt.Errorf("simulate %s, %s service, at %v: %w", v.discipline.Name, v.service, rho, err)
			}
			points = append(points, p)
			cfg.Progress.Add(1)
		}
	}
	return points, nil
}

func meanOf(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(max(len(x), 1))
}

// batchMeans cuts a series as results.BatchMeans does and returns the means.
func batchMeans(x []float64, n int) []float64 {
	size := len(x) / n
	x = x[len(x)-size*n:]
	means := make([]float64, n)
	for i := range means {
		means[i] = meanOf(x[i*size : (i+1)*size])
	}
	return means
}

// errorsOf says how far the backlog that a job finds is from its wait.
func errorsOf(backlog, wait []float64) BacklogError {
	var e BacklogError
	for i := range wait {
		d := backlog[i] - wait[i]
		e.Mean += d
		e.MeanAbsolute += math.Abs(d)
		e.RMS += d * d
	}
	n := float64(max(len(wait), 1))
	e.Mean, e.MeanAbsolute, e.RMS = e.Mean/n, e.MeanAbsolute/n, math.Sqrt(e.RMS/n)
	return e
}

// slopeOf fits wait = a + b·service and returns b: 0 when all wait alike, ρ/(1−ρ) under processor sharing. Nil when all need
// the same time.
func slopeOf(jobs []job, wait []float64) *float64 {
	f, ok := lineOf(jobs, wait)
	if !ok {
		return nil
	}
	return &f.slope
}

// line is wait = intercept + slope·service.
type line struct{ intercept, slope float64 }

func (l line) at(service float64) float64 { return l.intercept + l.slope*service }

func lineOf(jobs []job, wait []float64) (l line, ok bool) {
	var mx, my float64
	for i, j := range jobs {
		mx += j.service
		my += wait[i]
	}
	n := float64(max(len(jobs), 1))
	mx, my = mx/n, my/n
	var sxx, sxy float64
	for i, j := range jobs {
		sxx += (j.service - mx) * (j.service - mx)
		sxy += (j.service - mx) * (wait[i] - my)
	}
	if sxx <= 1e-18*mx*mx*n {
		return line{intercept: my}, false
	}
	l.slope = sxy / sxx
	l.intercept = my - l.slope*mx
	return l, true
}
