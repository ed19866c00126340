package daemon

import (
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A takeover by a lower re-pin number than the cut-off owner's, at a node that knows nothing of the session: after the
// heal there is one owner, the one with the higher number.
func TestStaleTakeoverYields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 4)
		there, back := request("s"), request("s")
		there.RepinSeq, back.RepinSeq = 9, 10
		r.b.mustEnd(there, committed, "", moved)
		r.a.mustEnd(back, committed, "", moved)
		if err := r.b.d.sessions.Forget("", "s"); err != nil {
			t.Fatal(err)
		}
		r.cut()
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 5
		r.b.mustEnd(req, recompute, ReasonPeerUnreachable, moved)
		time.Sleep(30 * time.Second)
		r.heal()
		time.Sleep(60 * time.Second)
		r.wantOwner("s", "a")
	})
}

// A node that took a session over and restarted before the old owner came back still has it yield.
func TestTakeoverSurvivesRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dirs := map[string]string{"a": t.TempDir(), "b": t.TempDir()}
		r := newRig(t, fast, func(n string, c *Config, p *Parts) { c.StateDir, p.NoState = dirs[n], false })
		r.ea.session("s", 4)
		r.cut()
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 5
		r.b.mustEnd(req, recompute, ReasonPeerUnreachable, moved)
		r.b.stop()
		r.heal()
		r.b = r.addNode(1)
		time.Sleep(2 * time.Minute)
		r.wantOwner("s", "b")
	})
}

// An owner that is gone for good and is not configured any more can still be taken over from, whether the caller names it or not.
func TestTakeoverFromRemovedNode(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		removed := false
		r := newRig(t, fast, func(name string, c *Config, p *Parts) {
			if onDisk(dir)(name, c, p); removed {
				c.Peers = nil
			}
		})
		ids := []string{"", "a"} // and hints
		for _, id := range ids {
			r.ea.session("s"+id, 1)
			r.b.mustEnd(request("s"+id), committed, "", moved)
			r.a.mustEnd(request("s"+id), committed, "", moved)
		}
		removed = true
		r.a.stop()
		r.b = r.restart("b")
		r.eb = r.b.register("e", testLayout(), 4<<20)
		for _, id := range ids {
			req := auto("s" + id)
			req.SourceHint = id
			r.b.mustEnd(req, failed, ReasonNodeNotFound, unmoved)
			req = auto("s" + id)
			req.SourceHint, req.Takeover, req.RepinSeq = id, true, 1
			r.b.mustEnd(req, recompute, ReasonNodeNotFound, moved)
			r.eb.publish("", "s"+id, nil, 3)
		}
	})
}

// What nobody could describe is reported as unknown, not as one token.
func TestUnknownTail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 4)
		r.cut()
		rep := r.b.mustEnd(auto("s"), recompute, ReasonPeerUnreachable, unmoved)
		if rep.GetTokens() != 0 || rep.GetTailTokens() != 0 || rep.GetBlocksUsable() != 0 {
			t.Errorf("report %v", rep)
		}
	})
}

// A refusal or redirect names the owner's epoch although nothing moved.
func TestUnmovedReportsEpoch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 4)
		req := request("s")
		req.Mode, req.RedirectAllowed, req.ExpectedTurns = pb.Mode_MODE_REDIRECT, true, 1
		if rep := r.b.mustEnd(req, redirect, "", unmoved); rep.GetEpoch() != 1 {
			t.Errorf("epoch %d, want 1", rep.GetEpoch())
		}
	})
}

// An epoch from which no hand-over could count on is refused.
func TestPublishRefusesHugeEpoch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		_, err := r.a.engine.PublishSession(t.Context(), &pb.PublishSessionRequest{
			EngineId: "e", Session: &pb.SessionRef{SessionId: "s"}, Tokens: 3, Epoch: 1<<64 - 1,
		})
		wantError(t, err, ReasonInvalid)
		r.ea.session("s", 1)
		r.b.mustEnd(request("s"), committed, "", moved)
	})
}

// Names that would play with a terminal or a log are refused.
func TestNamesArePrintable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for _, bad := range []string{"a\x00b", "a\nb", "\x1b[31m", "a\u009bb", "\xff"} {
			if strings.ToValidUTF8(bad, "") == bad { // gRPC itself refuses the others
				_, _, err := r.b.migrate(request(bad))
				wantError(t, err, ReasonInvalid)
				q := request("s")
				q.RequestId = bad
				_, _, err = r.b.migrate(q)
				wantError(t, err, ReasonInvalid)
			}
		}
	})
}

// A node that took a session over and handed it on before the old owner came back still has that one yield.
func TestTakeoverHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		a, b, c := f.nodes["a"], f.nodes["b"], f.nodes["c"]
		keys := engines["a"].session("s", 4)
		there, back, on := request("s"), auto("s"), request("s")
		there.RepinSeq, back.RepinSeq, on.RepinSeq = 1, 2, 3
		back.Takeover, on.SourceHint = true, "a"
		b.mustEnd(there, committed, "", moved)
		time.Sleep(3 * time.Second) // b has told a that it has the session, and tells nobody any more
		f.net.Cut(a.ip, b.ip)
		f.net.Cut(c.ip, b.ip)
		a.mustEnd(back, recompute, ReasonPeerUnreachable, moved)
		c.mustEnd(on, committed, "", moved)
		f.net.Heal(a.ip, b.ip)
		f.net.Heal(c.ip, b.ip)
		time.Sleep(2 * time.Minute)
		if s := b.record("s"); s.GetOwnerNodeId() == "b" {
			t.Errorf("b still takes itself for the owner: %v", s)
		}
		f.wantOwner("s", "c")
		engines["c"].check("", keys)
		f.settle()
	})
}

// A session that was taken over from an owner who was cut off, and then handed over while that one had yet to hear of it: whoever has
// it in the end tells him. So it is when the one who took it over is gone by then, and over two hand-overs.
func TestTakenOverAndHandedOn(t *testing.T) {
	for _, c := range []struct {
		name  string
		chain []string // from the one who takes it over
		gone  string   // who ends before the heal; empty: nobody
	}{
		{"once", []string{"b", "c"}, ""},
		{"once, and gone", []string{"b", "c"}, "b"},
		{"twice", []string{"b", "c", "b"}, ""},
		{"twice, and gone", []string{"b", "c", "b"}, "c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFleet(t, fast, "a", "b", "c")
				ea := f.nodes["a"].register("e", testLayout(), 1<<20)
				ea.session("s", 4)
				for _, n := range []string{"b", "c"} {
					f.nodes[n].register("e", testLayout(), 1<<20)
					f.net.Cut(f.nodes["a"].ip, f.nodes[n].ip)
				}
				for i, n := range c.chain {
					req := auto("s")
					req.RequestId, req.RepinSeq, req.Takeover = n+strconv.Itoa(i), uint64(5+i), i == 0
					if i > 0 {
						req.SourceHint = c.chain[i-1]
					}
					if rep, _, err := f.nodes[n].migrate(req); err != nil || rep.GetOwnership() != moved {
						t.Fatalf("to %s: %v, %v", n, err, rep)
					}
				}
				if c.gone != "" {
					f.nodes[c.gone].stop()
				}
				for _, n := range []string{"b", "c"} {
					f.net.Heal(f.nodes["a"].ip, f.nodes[n].ip)
				}
				time.Sleep(2 * time.Minute)
				last := c.chain[len(c.chain)-1]
				s, err := f.nodes["a"].d.sessions.Get("", "s")
				if err != nil || string(s.Owner) != last {
					t.Errorf("the owner of before says that %q owns it (%v), want %q", s.Owner, err, last)
				}
			})
		})
	}
}
