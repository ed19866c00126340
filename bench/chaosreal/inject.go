package chaosreal

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// striker has the faults of a plan strike when the migrations have come so far, and undoes them in time or at heal.
type striker struct {
	f   *fleet
	log func(format string, args ...any)

	wg sync.WaitGroup // faults under way
	mu struct {
		sync.Mutex
		waiting []Fault
		fired   []fired
		healed  chan struct{} // closed by heal
		errs    []error
	}
}

// fired is a fault that has struck.
type fired struct {
	Fault
	moot bool // there was nothing to strike: the process was gone already
}

func newStriker(f *fleet, faults []Fault, log func(string, ...any)) *striker {
	s := &striker{f: f, log: log}
	s.mu.waiting, s.mu.healed = append(s.mu.waiting, faults...), make(chan struct{})
	return s
}

// reached is told how far a migration from one node to another has come, and has what waits for it strike.
func (s *striker) reached(ctx context.Context, migration, from, to int, state pb.MigrationState, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []Fault
	for _, w := range s.mu.waiting {
		due := w.Migration == migration && (state > w.State || state == w.State && (state != pb.MigrationState_MIGRATION_STATE_TRANSFERRING || share >= w.Share))
		if !due {
			rest = append(rest, w)
			continue
		}
		s.wg.Go(func() { s.strike(ctx, w, from, to) }) // ends when the fault is undone
	}
	s.mu.waiting = rest
}

// strike has one fault happen and undoes it.
func (s *striker) strike(ctx context.Context, w Fault, from, to int) {
	if w.After > 0 {
		s.wait(ctx, w.After)
	}
	at := [roles]int{from, to, nodeCount - from - to}[w.Role]
	other := [roles]int{to, from, from}[w.Role]
	if from == to { // the session was there already
		at, other = from, (from+1)%nodeCount
	}
	undo, err := s.do(ctx, w, at, other)
	s.mu.Lock()
	s.mu.fired = append(s.mu.fired, fired{w, undo == nil})
	if err != nil {
		s.mu.errs = append(s.mu.errs, fmt.Errorf("%s: %w", w, err))
	}
	s.mu.Unlock()
	s.log("%s at %s%s", w, s.f.nodes[at].name, map[bool]string{true: ": there was nothing to strike"}[undo == nil])
	if undo == nil {
		return
	}
	s.wait(ctx, w.Lasts)
	if err := undo(); err != nil {
		s.mu.Lock()
		s.mu.errs = append(s.mu.errs, fmt.Errorf("undo %s: %w", w, err))
		s.mu.Unlock()
	}
	s.log("undone: %s at %s", w.Kind, s.f.nodes[at].name)
}

// wait waits for d, or until everything is healed.
func (s *striker) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.mu.healed:
	case <-ctx.Done():
	}
}

// do has a fault happen and returns how it is undone; nil when there was nothing to strike.
func (s *striker) do(ctx context.Context, w Fault, at, other int) (undo func() error, err error) {
	n, now := s.f.nodes[at], s.f.nodes[at].current()
	nothing := func() error { return nil }
	onLinks := func(what func(*wan.Link), back func(*wan.Link), ways ...[2]int) func() error {
		for _, way := range ways {
			what(s.f.links[way[0]][way[1]])
		}
		return func() error {
			for _, way := range ways {
				back(s.f.links[way[0]][way[1]])
			}
			return nil
		}
	}
	cut, mend := (*wan.Link).Cut, (*wan.Link).Heal
	there, back := [2]int{at, other}, [2]int{other, at}
	switch w.Kind {
	case KillDaemon, RestartDaemon:
		how := kill
		if w.Kind == RestartDaemon {
			how = stop
		}
		was, err := n.end(now.daemon, how)
		if !was {
			return nil, err
		}
		return func() error { return n.startDaemon(ctx, "") }, err
	case KillEngine:
		was, err := n.end(now.engine, kill)
		if !was {
			return nil, err
		}
		return func() error { return n.startEngine(ctx) }, err
	case FreezeDaemon, FreezeEngine:
		c := now.daemon
		if w.Kind == FreezeEngine {
			c = now.engine
		}
		if !n.freeze(c) {
			return nil, nil
		}
		return func() error { n.thaw(c); return nil }, nil
	case CutOneWay:
		return onLinks(cut, mend, there), nil
	case CutBothWays:
		return onLinks(cut, mend, there, back), nil
	case Isolate:
		third := nodeCount - at - other
		return onLinks(cut, mend, there, back, [2]int{at, third}, [2]int{third, at}), nil
	case Lose:
		lossy := s.f.opt.wan
		lossy.Burst, lossy.Loss = &wan.GilbertElliott{PGoodToBad: 0.02, PBadToGood: 0.2}, 0.01
		change := func(m wan.Model) func(*wan.Link) { return func(l *wan.Link) { _ = l.SetModel(m) } }
		return onLinks(change(lossy), change(s.f.opt.wan), there, back), nil
	case TruncateArena, ScribbleArena, DeleteArena:
		hit, err := n.damage(w)
		if !hit {
			return nil, err
		}
		return nothing, err
	case FillState:
		if err := fill(n.stateDir()); err != nil {
			return nil, err
		}
		return func() error { return unfill(n.stateDir()) }, nil
	}
	return nil, fmt.Errorf("BUG: no fault %s", w.Kind)
}

// damage hits the arena's file. False: there is none. The engine does not write meanwhile: what it writes is its own word.
func (n *node) damage(w Fault) (bool, error) {
	n.turn.Lock()
	defer n.turn.Unlock()
	path := filepath.Join(n.arenaDir(), n.arenaFiles()[0])
	st, err := os.Stat(path)
	if err != nil || st.Size() < layout().Stride() {
		return false, nil // there is none now
	}
	if w.Kind != ScribbleArena {
		n.mu.Lock()
		n.mu.broken = true
		n.mu.Unlock()
	}
	switch w.Kind {
	case TruncateArena:
		return true, os.Truncate(path, st.Size()/2)
	case DeleteArena:
		return true, os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	r := rand.New(rand.NewPCG(w.Salt, 1))
	slots := st.Size() / layout().Stride()
	for range 24 {
		slot := r.Int64N(min(slots, 2*planSessions*48)) // low ones are in use
		n.mu.Lock()
		n.mu.damaged[uint32(slot)] = true
		n.mu.Unlock()
		at := slot*layout().Stride() + r.Int64N(layout().BlockBytes()-64)
		if _, err := f.WriteAt([]byte("somebody else wrote this over a page of the arena"), at); err != nil {
			return true, err
		}
	}
	return true, nil
}

// heal undoes everything: what waits does not strike any more, what has struck is undone, processes that are gone are started.
func (s *striker) heal(ctx context.Context) error {
	s.mu.Lock()
	s.mu.waiting = nil
	close(s.mu.healed)
	s.mu.Unlock()
	s.wg.Wait()
	s.f.healLinks()
	errs := make(chan error, nodeCount)
	for _, n := range s.f.nodes {
		go func() { errs <- n.mend(ctx, true) }()
	}
	s.mu.Lock()
	all := s.mu.errs
	s.mu.Unlock()
	for range s.f.nodes {
		if err := <-errs; err != nil {
			all = append(all, err)
		}
	}
	return joinErrors(all)
}
