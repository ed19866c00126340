package daemon

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (n *node) cancel(requestID string) (*pb.Migration, error) {
	resp, err := n.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{RequestId: requestID})
	return resp.GetMigration(), err
}

// A cancel ends a migration in whatever state it is, at once, and leaves the session whole at its owner.
func TestCancelInEachState(t *testing.T) {
	for _, tc := range []struct {
		name string
		hold func(r *rig, req *pb.MigrateRequest) *running
	}{
		{"locating", func(r *rig, req *pb.MigrateRequest) *running {
			r.cut()
			m := r.b.begin(req)
			m.until(pb.MigrationState_MIGRATION_STATE_LOCATING, nil)
			return m
		}},
		{"offering, not connected", func(r *rig, req *pb.MigrateRequest) *running {
			r.cut()
			req.SourceHint = "a"
			m := r.b.begin(req)
			m.until(pb.MigrationState_MIGRATION_STATE_OFFERING, nil)
			return m
		}},
		{"offering, connected", func(r *rig, req *pb.MigrateRequest) *running {
			r.b.mustEnd(request("nobody"), failed, ReasonSessionNotFound, unmoved)
			r.cut()
			req.SourceHint = "a"
			m := r.b.begin(req)
			m.until(pb.MigrationState_MIGRATION_STATE_OFFERING, nil)
			return m
		}},
		{"reserving, behind another writer", func(r *rig, req *pb.MigrateRequest) *running {
			if _, err := r.b.engine.ReserveBlocks(context.Background(), &pb.ReserveBlocksRequest{EngineId: "e", Keys: chain("s", 32)}); err != nil {
				r.t.Fatal(err)
			}
			m := r.b.begin(req)
			m.until(pb.MigrationState_MIGRATION_STATE_RESERVING, nil)
			return m
		}},
		{"transferring", func(r *rig, req *pb.MigrateRequest) *running {
			m := r.b.begin(req)
			m.landed(8192)
			return m
		}},
		{"transferring, cut", func(r *rig, req *pb.MigrateRequest) *running {
			m := r.b.begin(req)
			m.landed(8192)
			r.cut()
			return m
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 32)
				m := tc.hold(r, request("s"))
				started := time.Now()
				got, err := r.b.cancel(m.req.GetRequestId())
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(started); d > 50*time.Millisecond {
					t.Errorf("cancel took %v", d)
				}
				wantReport(t, got.GetReport(), cancelled, ReasonCancelled, unmoved)
				if diff := cmp.Diff(got.GetReport(), m.end(), protocmp.Transform()); diff != "" {
					t.Errorf("stream and answer differ: %s", diff)
				}
				for range 2 { // twice, and after the end
					again, err := r.b.cancel(m.req.GetRequestId())
					if err != nil || again.GetState() != cancelled {
						t.Errorf("cancel again: %v, %v", again, err)
					}
				}
				r.heal()
				if e, err := r.b.d.engines.get("e"); err == nil {
					e.arena.ReleaseOwner(e.owner()) // the other writer
				}
				time.Sleep(70 * time.Second) // an end-offer that was lost with the link leaves it to the TTL
				r.ea.check("", keys)
				r.wantOwner("s", "a")
				r.settle()

				// What had landed whole is kept, and the next one works.
				rep := r.b.mustEnd(request("s"), committed, "", moved)
				if rep.GetBlocksPresent() != got.GetReport().GetBlocksMoved() || rep.GetBlocksPresent()+rep.GetBlocksMoved() != 32 {
					t.Errorf("%d blocks had landed, then %d were here and %d moved", got.GetReport().GetBlocksMoved(), rep.GetBlocksPresent(), rep.GetBlocksMoved())
				}
				r.eb.check("", keys)
				r.settle()
			})
		})
	}
}

func TestCancelOfEndedAndUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 2)
		req := request("s")
		r.b.mustEnd(req, committed, "", moved)
		got, err := r.b.cancel(req.GetRequestId())
		if err != nil || got.GetState() != committed || got.GetReport().GetOwnership() != moved {
			t.Errorf("cancel of a committed one: %v, %v", got, err)
		}
		_, err = r.b.cancel("unknown")
		wantError(t, err, ReasonMigrationNotFound)
		_, err = r.b.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{MigrationId: "unknown"})
		wantError(t, err, ReasonMigrationNotFound)
		_, err = r.b.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{})
		wantError(t, err, ReasonInvalid)
		_, err = r.b.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{MigrationId: "x", RequestId: "y"})
		wantError(t, err, ReasonInvalid)
		r.settle()
	})
}

// The deadline holds in whatever state it meets a migration, to the millisecond.
func TestDeadline(t *testing.T) {
	for _, connected := range []bool{true, false} {
		t.Run(fmt.Sprint("connected ", connected), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 200) // 13 s
				if !connected {
					r.cut()
				}
				req := request("s")
				req.Deadline = durationpb.New(3 * time.Second)
				started := time.Now()
				rep := r.b.mustEnd(req, failed, ReasonDeadline, unmoved)
				if d := time.Since(started); d < 3*time.Second || d > 3050*time.Millisecond {
					t.Errorf("ended after %v, want 3s", d)
				}
				if connected && rep.GetBlocksMoved() == 0 {
					t.Error("nothing landed before the deadline")
				}
				r.ea.check("", keys)
				r.wantOwner("s", "a")
				r.settle()
			})
		})
	}
}

// A dropped stream is not a cancel; the same request_id attaches again, while it runs and after it ended.
func TestReattach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 32)
		req := request("s")
		ctx, drop := context.WithCancel(context.Background())
		stream, err := r.b.mig.Migrate(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m := &running{n: r.b, req: req}
		m.landed(8192)
		drop()

		again := r.b.begin(req) // while it runs
		other := request("s")
		other.RequestId = req.GetRequestId()
		other.RepinSeq = 7
		_, _, err = r.b.migrate(other)
		if f := wantError(t, err, ReasonRequestMismatch); f.Meta["migration_id"] != first.GetMigrationId() {
			t.Errorf("mismatch names migration %q, want %q", f.Meta["migration_id"], first.GetMigrationId())
		}
		second := request("s")
		_, _, err = r.b.migrate(second)
		f := wantError(t, err, ReasonAlreadyMigrating)
		if f.Meta["migration_id"] != first.GetMigrationId() || f.Meta["request_id"] != req.GetRequestId() {
			t.Errorf("ALREADY_MIGRATING carries %v", f.Meta)
		}
		rep := again.end()
		wantReport(t, rep, committed, "", moved)

		late, states, err := r.b.migrate(req) // after its end
		if err != nil || len(states) != 1 {
			t.Errorf("re-attaching after the end: states %v, %v", states, err)
		}
		if diff := cmp.Diff(rep, late, protocmp.Transform()); diff != "" {
			t.Errorf("reports differ: %s", diff)
		}
		req.Landed = true // what the stream shows is each watcher's own choice
		if _, _, err := r.b.migrate(req); err != nil {
			t.Errorf("watching landed blocks of the same request: %v", err)
		}
		_, _, err = r.b.migrate(other) // and still no other parameters
		wantError(t, err, ReasonRequestMismatch)
		list, err := r.b.mig.ListMigrations(context.Background(), &pb.ListMigrationsRequest{})
		if err != nil || len(list.GetMigrations()) != 1 || list.GetMigrations()[0].GetMigrationId() != first.GetMigrationId() {
			t.Errorf("list %v, %v: want the one migration", list, err)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// Who has the report may migrate again at once: nothing of the first is in the way.
func TestMigrateAgainAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(_ string, c *Config, _ *Parts) { c.Migration.MaxActive = 1 })
		r.ea.session("s", 1)
		for i := range 20 {
			n := []*node{r.b, r.a}[i%2]
			n.mustEnd(request("s"), committed, "", moved)
		}
		if got := r.a.record("s").GetEpoch(); got != 21 {
			t.Errorf("epoch %d after 20 hand-overs", got)
		}
		r.settle()
	})
}

func TestMaxActive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, func(_ string, c *Config, _ *Parts) { c.Migration.MaxActive, c.Migration.Keep = 2, 1 })
		for i := range 3 {
			r.ea.session(fmt.Sprint("s", i), 8)
		}
		m0, m1 := r.b.begin(request("s0")), r.b.begin(request("s1"))
		m0.landed(1)
		m1.landed(1)
		_, _, err := r.b.migrate(request("s2"))
		wantError(t, err, ReasonTooManyMigrations)
		wantReport(t, m0.end(), committed, "", moved)
		wantReport(t, m1.end(), committed, "", moved)
		r.b.mustEnd(request("s2"), committed, "", moved)
		// Only one ended migration is remembered.
		_, err = r.b.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{RequestId: m0.req.GetRequestId()})
		wantError(t, err, ReasonMigrationNotFound)
		list, err := r.b.mig.ListMigrations(context.Background(), &pb.ListMigrationsRequest{})
		if err != nil || len(list.GetMigrations()) != 1 {
			t.Errorf("%d migrations are remembered, want 1: %v", len(list.GetMigrations()), err)
		}
		r.settle()
	})
}
