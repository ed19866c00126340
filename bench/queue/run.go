package queue

import (
	"context"
	"errors"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Run measures: the simulator, the crossovers, then the link in real time. When ctx ends it returns what it has, Interrupted,
// and no error; an error comes with what was measured before it, if that is anything, else with nil. Errors: what Validate
// says, or those of package transfer.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	res := &Result{cfg: cfg, Points: []Point{}, started: time.Now(), machine: results.ThisMachine()}
	err := res.measure(ctx)
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())) {
		res.interrupted, err = true, nil
		res.warn("interrupted: only what was measured until then is here")
	}
	if err != nil && len(res.Points) == 0 {
		return nil, err
	}
	for _, l := range []*Link{res.Link, res.Sharing} {
		if l != nil {
			l.Discipline = nearest(res.pointsOf(l.Law))
		}
	}
	res.Conclusion = res.conclude()
	return res, err
}

// measure does the parts in order.
func (r *Result) measure(ctx context.Context) error {
	var err error
	if r.Points, err = simulateAll(ctx, r.cfg); err != nil {
		return err
	}
	if r.Crossover, err = crossAll(ctx, r.cfg); err != nil {
		return err
	}
	if r.cfg.LinkOff {
		return nil
	}
	return measureLink(ctx, r.cfg, r)
}
