package chaosreal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// RestartReport is what came of Restarts.
type RestartReport struct {
	// Kills and Stops of the one peer, each followed by a start on the same addresses.
	Kills, Stops int
	// Warm is how many of the sessions from before a restart came with their blocks.
	Warm int
	// Next is how long the first migration after each restart took, as its caller saw it, ascending.
	Next []time.Duration
	// Took is the time of it all.
	Took time.Duration
}

// nextLimit bounds a migration after a restart: a fraction of any timeout that a peer who poisons later transfers would run into.
const nextLimit = 3 * time.Second

// Restarts restarts one daemon of a fleet n times, by kill -9 and by asking, in turn, always on the same addresses, and has a session
// from before and one from after migrate each time, from it and to it. It returns an error for the first migration that does not
// work, and when the peer that lived through it all holds more than before.
func Restarts(ctx context.Context, cfg Config, n int) (_ *RestartReport, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	f, err := openFleet(ctx, cfg, fleetOptions{wan: runWAN()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	tell := results.OpenProgress(cfg.Out)
	defer func() { _ = tell.Close() }()
	tell.Stage("restarts of one peer", float64(n))
	r := &run{f: f, began: time.Now()}
	rep := &RestartReport{}
	var before usage
	for i := range n {
		if err := r.restart(ctx, i, rep); err != nil {
			return rep, fmt.Errorf("restart %d: %w", i, err)
		}
		if i == min(4, n-1) { // links have come and gone
			if before, err = f.nodes[1].usage(ctx); err != nil {
				return rep, err
			}
		}
		tell.Add(1)
	}
	slices.Sort(rep.Next)
	rep.Took = time.Since(r.began)
	if err := r.idle(ctx); err != nil {
		return rep, err
	}
	return rep, eventually(ctx, func() error {
		now, err := f.nodes[1].usage(ctx)
		if err == nil && (now.files > before.files+40 || now.goroutines > before.goroutines+100) {
			err = fmt.Errorf("the peer had %d files and %d goroutines, and after %d more restarts %d and %d", before.files, before.goroutines, n-5, now.files, now.goroutines)
		}
		return err
	})
}

// restart is one of them.
func (r *run) restart(ctx context.Context, i int, rep *RestartReport) error {
	a, b := r.f.nodes[0], r.f.nodes[1]
	from, to := a, b // whichever way, it is the next migration that b has with a
	if i%4 >= 2 {
		from, to = b, a
	}
	old, fresh := newSession(2*i, seedSession{home: from.index}, 7), newSession(2*i+1, seedSession{home: from.index}, 7)
	if err := old.speak(ctx, from, 4); err != nil {
		return err
	}
	how := kill
	if i%2 == 1 {
		how = stop
		rep.Stops++
	} else {
		rep.Kills++
	}
	if was, err := a.end(a.current().daemon, how); err != nil || !was {
		return fmt.Errorf("end the daemon (it ran: %v): %w", was, err)
	}
	if err := errors.Join(a.startDaemon(ctx, ""), a.attached(ctx)); err != nil {
		return err
	}
	out, took, err := r.next(ctx, old, to, i)
	if err != nil {
		return fmt.Errorf("a session from before: %w", err)
	}
	if out.report.GetBlocksUsable() == out.report.GetBlocksTotal() {
		rep.Warm++
	}
	rep.Next = append(rep.Next, took)
	if err := fresh.speak(ctx, from, 4); err != nil {
		return err
	}
	out, _, err = r.next(ctx, fresh, to, i)
	if err == nil && out.report.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED {
		err = fmt.Errorf("%s %s: %s", out, out.code, out.report.GetMessage())
	}
	if err != nil {
		return fmt.Errorf("a session from after: %w", err)
	}
	return nil
}

// next moves a session, which must come with its ownership and in time.
func (r *run) next(ctx context.Context, s *session, to *node, i int) (outcome, time.Duration, error) {
	began := time.Now()
	out, err := callMigrate(ctx, to, newRequest(fmt.Sprintf("restart%d-%s", i, s.id), s.ref(), pb.Mode_MODE_FETCH, s.nextRepin()), nil)
	took := time.Since(began)
	switch {
	case err != nil:
		return out, took, err
	case out.report.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED:
		return out, took, fmt.Errorf("%s %s after %v: %s", out, out.code, took, out.report.GetMessage())
	case took > nextLimit:
		return out, took, fmt.Errorf("%s took %v, more than %v", out, took, nextLimit)
	}
	return out, took, nil
}
