package goodput

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// processors is how many this process may use at once.
func processors() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// count is so many stripes as were asked for; 0 is as many as the path needs.
func count(stripes int) string {
	switch stripes {
	case 0:
		return "adaptive stripes"
	case 1:
		return "1 stripe"
	}
	return fmt.Sprintf("%d stripes", stripes)
}

// Run measures Config's configurations over the in-memory link, in turns. When ctx ends it returns what it has, with
// Interrupted set and no error. When something fails after a transfer was measured, the result of what was measured comes
// beside the error, with Failure set. Errors: Config.Validate's, and those of package transfer.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r, err := newRig(cfg)
	if err != nil {
		return nil, err
	}
	return r.run(ctx)
}

// run measures the rig's configurations and closes it.
func (r *rig) run(ctx context.Context) (_ *Result, err error) {
	cfg := r.cfg
	defer func() { err = errors.Join(err, r.close()) }()
	b := &bench{cfg: cfg, rig: r, began: time.Now(), machine: results.ThisMachine()}
	defer func() { err = errors.Join(err, b.down()) }()
	for i, n := range cfg.Stripes {
		b.pairs = append(b.pairs, r.newPair(i, n))
		b.series = append(b.series, &series{stripes: n})
	}
	err = b.run(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	res := b.result(ctx.Err() != nil)
	if err != nil && len(res.Configurations) == 0 {
		return nil, err
	}
	res.fail(err)
	return res, err
}

// bench is a run under way.
type bench struct {
	cfg     Config
	rig     *rig
	pairs   []*pair
	series  []*series // one a pair
	began   time.Time
	machine results.Machine
	moved   int64 // page bytes of transfers that ended
}

// series is what one configuration gave.
type series struct {
	stripes int
	path    *Path // as the destination knew it last
	cold    *Measure
	runs    []*Measure
	partial *Measure // interrupted
	cut     *Measure
}

func (b *bench) run(ctx context.Context) error {
	for i := range b.cfg.Warmup {
		for j, s := range b.series {
			m, err := b.one(ctx, j, 0, count(s.stripes)+", warm-up")
			if err != nil {
				return err
			}
			if i == 0 && m.Complete {
				s.cold = m
			}
		}
	}
	for i := range b.cfg.Repeats {
		for k := range b.series {
			j := (k + i) % len(b.series) // so that none is always the first after a pause
			m, err := b.one(ctx, j, 0, fmt.Sprintf("%s, repeat %d of %d", count(b.series[j].stripes), i+1, b.cfg.Repeats))
			if err != nil {
				return err
			}
			if !m.Complete {
				b.series[j].partial = m
				return nil
			}
			b.series[j].runs = append(b.series[j].runs, m)
		}
	}
	if b.cfg.CutFor == 0 {
		return nil
	}
	for j, s := range b.series {
		m, err := b.one(ctx, j, b.cfg.CutFor, fmt.Sprintf("%s, link cut for %v", count(s.stripes), b.cfg.CutFor))
		if err != nil {
			return err
		}
		if m.Complete {
			s.cut = m
		}
	}
	return nil
}

// one runs a transfer of a configuration. An interrupted one is not Complete; a ctx that ended before it is an error.
func (b *bench) one(ctx context.Context, j int, cutFor time.Duration, stage string) (*Measure, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	p := b.pairs[j]
	if p.link == nil || b.cfg.Cold {
		if err := errors.Join(p.down(), p.up(ctx)); err != nil {
			return nil, fmt.Errorf("connect with %s: %w", count(p.stripes), err)
		}
	}
	b.tell(stage, 0, 0)
	m, err := p.transferOnce(ctx, cutFor, func(done int64, bps float64) { b.tell(stage, done, bps) })
	if err != nil {
		return nil, err
	}
	b.moved += m.Bytes
	b.series[j].path = pathOf(p.link.Stats().Estimates)
	b.tell(stage, 0, 0)
	return m, nil
}

func (b *bench) tell(stage string, done int64, bps float64) {
	if b.cfg.Progress == nil {
		return
	}
	n := b.cfg.Warmup + b.cfg.Repeats
	if b.cfg.CutFor > 0 {
		n++
	}
	b.cfg.Progress(Progress{Stage: stage, Done: b.moved + done, Total: int64(n) * int64(len(b.series)) * int64(len(b.rig.from)), GoodputBps: bps})
}

func (b *bench) down() error {
	var errs []error
	for _, p := range b.pairs {
		errs = append(errs, p.down())
	}
	return errors.Join(errs...)
}

func (b *bench) result(interrupted bool) *Result {
	res := &Result{Form: FormWAN, WAN: b.cfg.WAN.String(), Interrupted: interrupted, started: b.began, machine: b.machine, seconds: time.Since(b.began).Seconds()}
	for i, s := range b.series {
		if o, ok := b.outcome(s); ok {
			o.order = i
			res.Configurations = append(res.Configurations, o)
		}
	}
	res.params = b.params()
	return res
}

func (b *bench) params() map[string]any {
	return map[string]any{
		"form": FormWAN, "wan": b.cfg.WAN.String(), "bytes": b.rig.block * int64(b.rig.blocks), "page_bytes": b.cfg.PageBytes, "pages_per_block": b.cfg.PagesPerBlock,
		"stripes": b.cfg.Stripes, "warmup": b.cfg.Warmup, "repeats": b.cfg.Repeats, "cold": b.cfg.Cold, "cut_seconds": b.cfg.CutFor.Seconds(),
	}
}
