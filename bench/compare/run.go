package compare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Run compares. When ctx ends it returns what it has, with Interrupted set and no error. Errors: Validate's; *EndError of an end
// that failed; the system's, when a process cannot be started.
func Run(ctx context.Context, cfg Config) (_ *Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ids, err := newIdentities()
	if err != nil {
		return nil, err
	}
	b := &bench{cfg: cfg, ids: ids, began: time.Now(), machine: results.ThisMachine(), cores: min(runtime.GOMAXPROCS(0), runtime.NumCPU())}
	for _, name := range append(cfg.Peers, nameMemory) {
		p, err := findPeer(name)
		if err != nil {
			return nil, err
		}
		b.series = append(b.series, &series{peer: p})
	}
	// The ends live as long as this call; ctx kills them through it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = b.run(ctx)
	interrupted := ctx.Err() != nil
	if interrupted {
		err = nil
	}
	for _, s := range b.series {
		if s.pair != nil {
			if cerr := s.pair.close(); !interrupted {
				err = errors.Join(err, cerr)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return b.result(interrupted), nil
}

// bench is a run under way.
type bench struct {
	cfg     Config
	ids     *identities
	series  []*series
	began   time.Time
	machine results.Machine
	cores   int
	moved   int64
}

// series is what one way gave.
type series struct {
	peer *peer
	pair *pair
	runs []*Turn
}

func (b *bench) run(ctx context.Context) error {
	for _, s := range b.series {
		b.tell(s.peer.name + ", connecting")
		var err error
		if s.pair, err = newPair(ctx, b.cfg, b.ids, s.peer, place{host: [2]string{"127.0.0.1", "127.0.0.1"}}); err != nil {
			return err
		}
	}
	for i := range b.cfg.Warmup {
		for _, s := range b.series {
			if _, err := b.one(ctx, s, false, fmt.Sprintf("%s, warm-up %d of %d", s.peer.name, i+1, b.cfg.Warmup)); err != nil {
				return err
			}
		}
	}
	for i := range b.cfg.Repeats {
		for k := range b.series {
			s := b.series[(k+i)%len(b.series)] // so that none is always the first after a pause
			r, err := b.one(ctx, s, true, fmt.Sprintf("%s, round %d of %d", s.peer.name, i+1, b.cfg.Repeats))
			if err != nil {
				return err
			}
			r.round = i
			s.runs = append(s.runs, r)
		}
	}
	return nil
}

// one runs a transfer.
func (b *bench) one(ctx context.Context, s *series, measured bool, stage string) (*Turn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.tell(stage)
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.patience()+10*time.Second, fmt.Errorf("%s: no end within %v", stage, b.cfg.patience()))
	defer cancel()
	r, err := s.pair.move(ctx, measured, b.cores, 0)
	if err != nil {
		return nil, err
	}
	b.moved += b.cfg.Bytes
	b.tell(stage)
	return r, nil
}

func (b *bench) tell(stage string) {
	if b.cfg.Progress != nil {
		b.cfg.Progress(Progress{Stage: stage, Done: b.moved, Total: int64(b.cfg.Warmup+b.cfg.Repeats) * int64(len(b.series)) * b.cfg.Bytes})
	}
}

func (b *bench) params() map[string]any {
	return map[string]any{
		"bytes": b.cfg.Bytes, "page_bytes": b.cfg.PageBytes, "warmup": b.cfg.Warmup, "repeats": b.cfg.Repeats, "peers": b.cfg.Peers,
	}
}
