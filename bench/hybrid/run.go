package hybrid

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Run simulates all cells on all processors. When ctx ends it returns the cells that are done, Interrupted, and no error. Errors: what
// Validate says.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	res := &Result{cfg: cfg, Cells: []Cell{}, Real: []Real{}, Draws: cfg.Draws, started: time.Now(), machine: results.ThisMachine()}
	todo, err := settings(cfg)
	if err != nil {
		return nil, err
	}
	work := 0.0
	for i := range todo {
		work += todo[i].work(cfg.Draws)
	}
	cfg.Progress.Stage(fmt.Sprintf("simulating %d cells", len(todo)), work)
	z := normals(cfg.Seed, cfg.Draws)
	cells, errs, done := make([]Cell, len(todo)), make([]error, len(todo)), make([]bool, len(todo))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(todo)) {
		workers.Go(func() { // owner: Run, which waits
			var m meeting
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(todo) {
					return
				}
				cells[i], errs[i] = todo[i].simulate(z, &m)
				done[i] = errs[i] == nil
				cfg.Progress.Add(todo[i].work(cfg.Draws))
			}
		})
	}
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i, ok := range done {
		if ok {
			res.Cells = append(res.Cells, cells[i])
		}
	}
	res.interrupted = len(res.Cells) < len(todo)
	if cfg.Real > 0 && !res.interrupted {
		if res.Real, err = runReal(ctx, cfg.Real, cfg.Progress); err != nil {
			return nil, err
		}
		res.interrupted = len(res.Real) < cfg.Real
	}
	if res.interrupted {
		res.warn("interrupted: only what was done until then is here")
	}
	res.judge()
	return res, nil
}

// work is how many blocks a cell simulates.
func (s *setting) work(draws int) float64 {
	if s.cell.Sigma == 0 {
		draws = 1
	}
	return float64(draws) * float64(len(s.cum))
}
