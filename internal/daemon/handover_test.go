package daemon

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A session that grows while it moves arrives at its new version: the delta is fetched.
func TestSessionGrows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := chain("s", 40)
		r.ea.write("", keys[:24])
		r.ea.publish("", "s", keys[:24], 24*16+1)
		m := r.b.begin(request("s"))
		m.landed(4 * 8192)
		r.ea.write("", keys[24:])
		version := r.ea.publish("", "s", keys, 40*16+5).GetVersion()
		rep := m.end()
		wantReport(t, rep, committed, "", moved)
		if rep.GetBlocksTotal() != 40 || rep.GetBlocksMoved() != 40 || rep.GetTokens() != 40*16+5 || rep.GetTailTokens() != 5 || rep.GetStaleTailTokens() != 0 {
			t.Errorf("report %v", rep)
		}
		if got := r.b.record("s"); got.GetVersion() != version || got.GetEpoch() != 2 || len(got.GetBlockKeys()) != 40 {
			t.Errorf("record at the destination: version %d epoch %d, %d keys", got.GetVersion(), got.GetEpoch(), len(got.GetBlockKeys()))
		}
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		r.settle()
	})
}

// A session that never stops growing moves after three deltas, and the report says what was left.
func TestSessionGrowsForEver(t *testing.T) {
	for _, mode := range []pb.Mode{pb.Mode_MODE_FETCH, pb.Mode_MODE_RECOMPUTE} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, fast, nil)
			keys := chain("s", 400)
			r.ea.write("", keys[:4])
			r.ea.publish("", "s", keys[:4], 4*16)
			last := int64(0) // tokens of the last version that the source published
			grown := make(chan error, 1)
			go func() {
				for n := 5; ; n++ {
					time.Sleep(5 * time.Millisecond)
					r.ea.write("", keys[n-1:n])
					_, err := r.a.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
						EngineId: "e", Session: &pb.SessionRef{SessionId: "s"}, BlockKeys: keys[:n], Tokens: int64(n) * 16,
					})
					if err != nil {
						grown <- err
						return
					}
					last = int64(n) * 16
				}
			}()
			req := request("s")
			req.Mode = mode
			want, n := committed, int64(0)
			if mode == pb.Mode_MODE_RECOMPUTE {
				want = recompute
			}
			rep := r.b.mustEnd(req, want, "", moved)
			err := <-grown
			wantError(t, err, ReasonNotOwner)
			if rep.GetStaleTailTokens() != last-rep.GetTokens() || rep.GetStaleTailTokens() <= 0 {
				t.Errorf("%v: %d stale tail tokens; %d moved of %d", mode, rep.GetStaleTailTokens(), rep.GetTokens(), last)
			}
			if n = int64(len(r.b.record("s").GetBlockKeys())); n*16 != rep.GetTokens() || n <= 4 {
				t.Errorf("%v: %d blocks recorded, %d tokens reported", mode, n, rep.GetTokens())
			}
			if mode == pb.Mode_MODE_FETCH {
				r.eb.check("", keys[:n])
			}
			r.wantOwner("s", "b")
			r.settle()
		})
	}
}

// The answer of the hand-over is lost. If the link heals in time the same question gets the same answer; if not, the
// report says that ownership is unknown, and migrating again settles it. Nobody else can have become the owner.
func TestHandOverAnswerLost(t *testing.T) {
	for _, tc := range []struct {
		name string
		heal time.Duration // after the cut
		hint string        // of the migration afterwards
	}{
		{"healed in time", 3 * time.Second, ""},
		{"too late, no hint", 40 * time.Second, ""},
		{"too late, hint", 40 * time.Second, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, fast, nil)
				keys := r.ea.session("s", 8)
				m := r.b.begin(request("s"))
				m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
				r.net.CutOneWay(r.a.ip, r.b.ip)
				inTime := tc.heal < 20*time.Second
				if inTime {
					time.Sleep(tc.heal)
					r.heal()
					wantReport(t, m.end(), committed, "", moved)
				} else {
					started := time.Now()
					wantReport(t, m.end(), failed, ReasonPeerUnreachable, unknown)
					if d := time.Since(started); d > 25*time.Second {
						t.Errorf("waited %v for the authority", d)
					}
					r.cut()
					if got := r.a.record("s").GetOwnerNodeId(); got != "b" {
						t.Errorf("the source records owner %q: the hand-over did not happen", got)
					}
					time.Sleep(tc.heal)
					r.heal()
					_, err := r.a.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
						EngineId: "e", Session: &pb.SessionRef{SessionId: "s"}, BlockKeys: keys, Tokens: 200,
					})
					wantError(t, err, ReasonNotOwner)
					req := request("s")
					req.SourceHint = tc.hint
					rep := r.b.mustEnd(req, committed, "", moved)
					if rep.GetBytes() != 0 || rep.GetBlocksPresent() != 8 {
						t.Errorf("blocks moved twice: %v", rep)
					}
				}
				r.wantOwner("s", "b")
				if got := r.b.record("s").GetEpoch(); got != 2 {
					t.Errorf("epoch %d after one hand-over", got)
				}
				r.eb.check("", keys)
				time.Sleep(75 * time.Second)
				r.settle()
			})
		})
	}
}

// The request of the hand-over is lost, and the source stays owner: whole, publishing, and free to move later.
func TestHandOverRequestLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		m := r.b.begin(request("s"))
		m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
		r.cut()
		rep := m.end()
		if rep.GetState() != failed || rep.GetOwnership() == moved {
			t.Errorf("report %v", rep)
		}
		r.heal()
		r.wantOwner("s", "a")
		r.ea.publish("", "s", keys, 8*16+9)
		r.b.mustEnd(request("s"), committed, "", moved)
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		time.Sleep(75 * time.Second)
		r.settle()
	})
}

// A cancel that meets a hand-over in flight waits for its answer, and then it is too late.
func TestCancelDuringHandOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		m := r.b.begin(request("s"))
		m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
		got, err := r.b.cancel(m.req.GetRequestId())
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, got.GetReport(), committed, "", moved)
		wantReport(t, m.end(), committed, "", moved)
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		r.settle()
	})
}

// Two nodes pull one session at once: one wins, the other is fenced, and all agree on the owner.
func TestTwoDestinations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		keys := engines["a"].session("s", 16)
		wins := map[string]*pb.MigrationReport{}
		mb, mc := f.nodes["b"].begin(request("s")), f.nodes["c"].begin(request("s"))
		for name, m := range map[string]*running{"b": mb, "c": mc} {
			rep := m.end()
			if rep.GetState() == committed {
				wantReport(t, rep, committed, "", moved)
				wins[name] = rep
				continue
			}
			wantReport(t, rep, failed, ReasonFenced, unmoved)
		}
		if len(wins) != 1 {
			t.Fatalf("%d winners: %v", len(wins), wins)
		}
		for name := range wins {
			f.wantOwner("s", name)
			engines[name].check("", keys)
			if got := f.nodes["a"].record("s"); got.GetOwnerNodeId() != name || got.GetEpoch() != 2 {
				t.Errorf("the source records %v", got)
			}
		}
		f.settle()
	})
}

// Only PublishSession is fenced, by owner and by epoch.
func TestPublishIsFenced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 4)
		publish := func(n *node, epoch uint64) error {
			_, err := n.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
				EngineId: "e", Session: &pb.SessionRef{SessionId: "s"}, BlockKeys: keys, Tokens: 70, Epoch: epoch,
			})
			return err
		}
		if err := publish(r.a, 1); err != nil {
			t.Errorf("publish with the current epoch: %v", err)
		}
		f := wantError(t, publish(r.a, 9), ReasonFenced)
		if f.Meta["owner_node_id"] != "a" || f.Meta["epoch"] != "1" {
			t.Errorf("FENCED carries %v", f.Meta)
		}
		r.b.mustEnd(request("s"), committed, "", moved)
		wantError(t, publish(r.a, 0), ReasonNotOwner)
		wantError(t, publish(r.a, 1), ReasonNotOwner)
		if err := publish(r.b, 2); err != nil {
			t.Errorf("the new owner can't publish: %v", status.Convert(err))
		}
		wantError(t, publish(r.b, 1), ReasonFenced)
		r.settle()
	})
}
