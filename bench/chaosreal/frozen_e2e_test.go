//go:build e2e

package chaosreal

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A source that is stopped in its tracks, or killed, under a transfer: the migration ends with RECOMPUTE, ownership unmoved, before its
// deadline, and the migrations of another peer into the same destination take what they take without that.
func TestSourceGone(t *testing.T) {
	const deadline = 10 * time.Second
	for _, c := range []struct {
		name string
		gone func(*node)
		back func(context.Context, *node) error
	}{
		{"stopped", func(n *node) { n.freeze(n.current().daemon) }, func(_ context.Context, n *node) error { n.thaw(n.current().daemon); return nil }},
		{"killed", func(n *node) { _, _ = n.end(n.current().daemon, kill) }, func(ctx context.Context, n *node) error { return n.startDaemon(ctx, "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := openFleet(t.Context(), config(t).withDefaults(), fleetOptions{wan: runWAN()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := f.close(); err != nil {
					t.Error(err)
				}
			}()
			a, b, dst := f.nodes[0], f.nodes[1], f.nodes[2]
			lost := newSession(0, seedSession{home: 0}, 3)
			others := make([]*session, 8)
			var wg sync.WaitGroup
			wg.Go(func() { speak(t, lost, a, 60) })
			wg.Go(func() {
				for i := range others {
					others[i] = newSession(1+i, seedSession{home: 1}, 3)
					speak(t, others[i], b, 20)
				}
			})
			wg.Wait()
			without := moveAll(t, others[:4], b, dst)

			var once sync.Once
			gone, ended := make(chan struct{}), make(chan outcome, 1)
			began := time.Now()
			go func() {
				req := hinted(newRequest("lost", lost.ref(), pb.Mode_MODE_UNSPECIFIED, lost.nextRepin()), a)
				req.Deadline = durationpb.New(deadline)
				out, err := callMigrate(t.Context(), dst, req, func(u *pb.MigrateResponse) bool {
					if p := u.GetProgress(); p.GetPagesDone() > p.GetPagesTotal()/10 {
						once.Do(func() { c.gone(a); close(gone) })
					}
					return false
				})
				if err != nil {
					t.Error(err)
				}
				ended <- out
			}()
			select {
			case <-gone:
			case out := <-ended:
				t.Fatalf("the migration ended before its source was gone: %s %s", out, out.report.GetMessage())
			}
			with := moveAll(t, others[4:], b, dst)
			out := <-ended
			took := time.Since(began)
			t.Logf("the migration ended %v after it was asked for: %s %s; another peer's took %v without and %v with that", took.Truncate(time.Millisecond), out, out.code, without, with)
			if out.report.GetState() != pb.MigrationState_MIGRATION_STATE_RECOMPUTE || out.report.GetOwnership() != pb.Ownership_OWNERSHIP_UNMOVED {
				t.Errorf("%s %s, ownership %v: %s; want RECOMPUTE, unmoved", out, out.code, out.report.GetOwnership(), out.report.GetMessage())
			}
			if took > deadline {
				t.Errorf("it took %v, the deadline is %v", took, deadline)
			}
			if limit := 3*slices.Max(without) + time.Second; slices.Max(with) > limit {
				t.Errorf("another peer's migrations took %v, without that %v", with, without)
			}
			if err := c.back(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if err := a.attached(t.Context()); err != nil {
				t.Fatal(err)
			}
			out, err = callMigrate(t.Context(), dst, newRequest("again", lost.ref(), pb.Mode_MODE_FETCH, lost.nextRepin()), nil)
			if err != nil || out.report.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED {
				t.Errorf("the next migration, when the source is back: %v, %s %s: %s", err, out, out.code, out.report.GetMessage())
			}
		})
	}
}

// hinted names the owner, as a proxy does that knows where its session is. Without that a migration waits for the answers of all
// peers, of one that has gone silent for a second.
func hinted(req *pb.MigrateRequest, owner *node) *pb.MigrateRequest {
	req.SourceHint = owner.name
	return req
}

func speak(t *testing.T, s *session, n *node, blocks int) {
	if err := s.speak(t.Context(), n, blocks); err != nil {
		t.Errorf("%s at %s: %v", s.id, n.name, err)
	}
}

// moveAll moves sessions one after the other, whole, and returns how long each took.
func moveAll(t *testing.T, sessions []*session, from, to *node) (took []time.Duration) {
	t.Helper()
	for _, s := range sessions {
		began := time.Now()
		out, err := callMigrate(t.Context(), to, hinted(newRequest(fmt.Sprintf("other-%s", s.id), s.ref(), pb.Mode_MODE_FETCH, s.nextRepin()), from), nil)
		if err != nil || out.report.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED || out.report.GetBlocksUsable() != 20 {
			t.Fatalf("%s: %v, %s %s: %s", s.id, err, out, out.code, out.report.GetMessage())
		}
		took = append(took, time.Since(began).Truncate(time.Millisecond))
	}
	return took
}
