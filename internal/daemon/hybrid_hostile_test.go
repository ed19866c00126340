package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// An engine that asks again and again and brings nothing is not waited for: what it was granted is fetched.
func TestHybridFrontOnlyAsks(t *testing.T) {
	for name, computed := range map[string]uint32{"nothing": 0, "what is not so": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 60)
				q := hybridRequest("s")
				run := r.b.begin(q)
				id, ctx := run.id(), context.Background()
				asked := make(chan struct{})
				go func() {
					defer close(asked)
					for {
						got, err := r.b.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: id, ComputedBlocks: computed, WantBlocks: 8})
						if err != nil {
							t.Errorf("claim: %v", err)
							return
						}
						if got.GetEnded() {
							return
						}
						time.Sleep(time.Duration(thinned(5, 25)) * time.Millisecond)
					}
				}()
				rep := run.end()
				<-asked
				wantReport(t, rep, committed, "", moved)
				if took := rep.GetTotal().AsDuration(); rep.GetBlocksMoved() != 60 || took > frontLongest+12*time.Second {
					t.Errorf("took %v, report %v", took, rep)
				}
				r.eb.check("", keys)
				r.settle()
			})
		})
	}
}

// Claims from many goroutines, of all places at once and of each unit that is being asked for, end in a session that is whole.
func TestHybridClaimsFromMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 300)
		run := r.b.begin(hybridRequest("s"))
		m, err := r.b.d.migrations.find(run.id(), "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var claims atomic.Int64
		// Bursts are for while units move: at the beginning, and from when the front is given up. Without -short they never end.
		began := time.Now()
		pace := func() (burst int, pause time.Duration) {
			if d := time.Since(began); testing.Short() && d > 300*time.Millisecond && d < frontLongest-100*time.Millisecond {
				return 1, 50 * time.Millisecond
			}
			return 20, 2 * time.Millisecond
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for at := 0; ctx.Err() == nil; {
					burst, pause := pace()
					for range burst {
						if i%2 == 1 {
							at = (at + 7*i) % 310
						}
						claims.Add(1)
						got, err := m.claim(ctx, at, 8)
						if err != nil || got.GetStop() {
							return
						}
						if i%2 == 0 {
							at = int(got.GetFetchFrontier()) // take over what is asked for last
						}
					}
					time.Sleep(pause)
				}
			})
		}
		rep := run.end()
		cancel()
		wg.Wait()
		t.Logf("%d claims in %v", claims.Load(), time.Since(began))
		if claims.Load() < 10_000 {
			t.Error("claims were too few to show anything")
		}
		wantReport(t, rep, committed, "", moved)
		if rep.GetBlocksUsable() != 300 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// A front whose blocks all come at the end of a long step, and which claims meanwhile, is waited for.
func TestHybridLongStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		r.ea.session("warm", 300)
		r.b.mustEnd(request("warm"), committed, "", moved)
		keys := r.ea.session("s", 60)
		run := r.b.begin(hybridRequest("s"))
		id, ctx := run.id(), context.Background()
		claim := func() int {
			got, err := r.b.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: id, WantBlocks: 8})
			if err != nil {
				t.Fatal(err)
			}
			return int(got.GetGrantedUntil())
		}
		run.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
		granted := claim()
		for range 12 { // seconds; the link needs four for the rest
			time.Sleep(time.Second)
			claim()
		}
		f := r.eb.front(time.Millisecond, keys)
		for i := range granted {
			f.compute(i)
		}
		f.start(id)
		rep := run.end()
		<-f.done
		wantReport(t, rep, committed, "", moved)
		if n := f.check(); granted == 0 || n < granted || rep.GetBlocksMoved()+int64(n) != 60 {
			t.Errorf("%d granted, %d prefilled, report %v", granted, n, rep)
		}
		r.settle()
	})
}
