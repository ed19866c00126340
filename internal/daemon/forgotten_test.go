package daemon

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// A session that its owner has forgotten and begins anew can be migrated to a node that remembers it by a later epoch, whichever of the two names is the greater, and
// goes on from there.
func TestForgottenAndBegunAnew(t *testing.T) {
	for _, tc := range []struct{ owner, other string }{{"b", "a"}, {"a", "b"}} {
		t.Run(tc.owner, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, fast, nil)
				nodes, engines := r.nodes, map[string]*testEngine{"a": r.ea, "b": r.eb}
				keys := engines[tc.owner].session("s", 3)
				for range 3 {
					nodes[tc.other].mustEnd(request("s"), committed, "", moved)
					nodes[tc.owner].mustEnd(request("s"), committed, "", moved)
				}
				time.Sleep(time.Minute)
				if err := nodes[tc.owner].d.sessions.Forget("", "s"); err != nil {
					t.Fatal(err)
				}
				engines[tc.owner].publish("", "s", keys, 3*16+1)
				nodes[tc.other].mustEnd(request("s"), committed, "", moved)
				r.wantOwner("s", tc.other)
				engines[tc.other].publish("", "s", keys, 3*16+2)
				time.Sleep(time.Minute)
				nodes[tc.owner].mustEnd(request("s"), committed, "", moved)
				r.wantOwner("s", tc.owner)
				r.settle()
			})
		})
	}
}

// No peer has a session's epochs used up.
func TestHandOverAboveIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		ask := func(above uint64) (*pb.HandOverAnswer, error) {
			return r.a.d.answerHandOver(t.Context(), transfer.Peer{ID: "b", Region: "b", Incarnation: "i"}, &pb.HandOverCall{
				Session: &pb.SessionRef{SessionId: "s"}, MigrationId: "m", Epoch: 1, Version: 1, Above: above,
			})
		}
		for _, above := range []uint64{maxEpoch, 1<<64 - 1} {
			if _, err := ask(above); err == nil || classify(err).Reason != ReasonInvalid {
				t.Errorf("above %d: %v", above, err)
			}
		}
		if a, err := ask(maxEpoch - 1); err != nil || a.GetEpoch() != maxEpoch {
			t.Errorf("%v, %v", a, err)
		}
	})
}

// What a migration goes by is not forgotten while it runs: the owner's record that it is to move, and the record here of where it went, without which an engine
// here might publish the session for its own.
func TestMigratedIsNotForgotten(t *testing.T) {
	for _, name := range []string{"committed", "the source dies"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, onDisk(dir))
				keys := r.ea.session("s", 24)
				in, err := r.a.d.sessions.Get("", "s")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.b.d.sessions.Publish(in); err != nil { // its beginning, of which no blocks are left
					t.Fatal(err)
				}
				if _, err := r.b.d.sessions.HandOver(kvstore.HandOver{ID: "s", Migration: "m", To: "a", Epoch: 1, Version: 1}); err != nil {
					t.Fatal(err)
				}
				in.Epoch = 2
				if err := r.a.d.sessions.Adopt(in); err != nil {
					t.Fatal(err)
				}
				forget := func() {
					t.Helper()
					for _, n := range []*node{r.a, r.b} {
						if _, err := n.d.sessions.Expire(time.Now().Add(-kvstore.SessionSafeFor)); err != nil {
							t.Fatal(err)
						}
						if n.record("s") == nil {
							t.Errorf("%s has forgotten the session", n.name)
						}
					}
				}
				time.Sleep(2 * kvstore.SessionSafeFor)
				m := r.b.begin(auto("s"))
				m.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
				forget()
				if name == "committed" {
					wantReport(t, m.end(), committed, "", moved)
					r.wantOwner("s", "b")
					return
				}
				r.cut()
				if rep := m.end(); rep.GetOwnership() != unmoved {
					t.Fatalf("report %v", rep)
				}
				forget()
				_, err = r.b.engine.PublishSession(t.Context(), publishRequest("s", keys))
				wantError(t, err, ReasonNotOwner)
				r.b = r.revive("b", dir, r.crash("b", dir))
				forget() // the disk knows it too
			})
		})
	}
}

// A session that its owner has forgotten is anybody's to begin again once a migration has asked for it, also at the node that it came from and that remembers where it
// went; while it may still arrive there, it is not.
func TestForgottenByItsOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 3)
		r.b.mustEnd(request("s"), committed, "", moved)
		time.Sleep(time.Minute)
		if err := r.b.d.sessions.Forget("", "s"); err != nil {
			t.Fatal(err)
		}
		_, err := r.a.engine.PublishSession(t.Context(), publishRequest("s", keys))
		wantError(t, err, ReasonNotOwner)
		r.a.mustEnd(auto("s"), failed, ReasonSessionNotFound, unmoved)
		r.ea.publish("", "s", keys, 3*16)
		r.b.mustEnd(request("s"), committed, "", moved)
		r.wantOwner("s", "b")

		lost := kvstore.HandOver{ID: "lost", Migration: "m", To: "b", Incarnation: "dead", Epoch: 1, Version: 1}
		r.ea.publish("", "lost", keys, 3*16)
		if _, err := r.a.d.sessions.HandOver(lost); err != nil {
			t.Fatal(err)
		}
		r.a.mustEnd(auto("lost"), failed, ReasonHandOverPending, unmoved)
		if s := r.a.record("lost"); s == nil || s.GetOwnerNodeId() != "b" {
			t.Errorf("the record is %v", s)
		}
		r.settle()
	})
}

// A node that remembers a forgotten session by a rank that it had before does not make its owner give it up to the node that has forgotten it: that one knows better.
func TestForgottenAndRemembered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, nil, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 4<<20)
		}
		keys := engines["a"].session("s", 3)
		for _, name := range []string{"b", "a", "b"} {
			f.nodes[name].mustEnd(request("s"), committed, "", moved)
		}
		time.Sleep(time.Minute)
		if err := f.nodes["b"].d.sessions.Forget("", "s"); err != nil {
			t.Fatal(err)
		}
		engines["b"].publish("", "s", keys, 3*16)
		req := request("s")
		req.SourceHint = "b"
		f.nodes["c"].mustEnd(req, committed, "", moved)
		f.nodes["c"].d.announceOwned() // as after a restart
		time.Sleep(time.Minute)
		if s := f.nodes["a"].record("s"); s.GetOwnerNodeId() != "b" || s.GetEpoch() != 4 {
			t.Errorf("a's record is %v", s) // else nothing is shown
		}
		for _, name := range []string{"b", "c"} {
			if s := f.nodes[name].record("s"); s.GetOwnerNodeId() != "c" {
				t.Errorf("%s's record is %v", name, s)
			}
		}
		engines["c"].publish("", "s", keys, 3*16+1)
		f.nodes["a"].mustEnd(request("s"), committed, "", moved)
		f.wantOwner("s", "a")
		f.settle()
	})
}
