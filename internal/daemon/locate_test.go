package daemon

import (
	"context"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func TestUnknownSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for _, hint := range []string{"", "a"} {
			req := request("nobody")
			req.SourceHint = hint
			rep := r.b.mustEnd(req, failed, ReasonSessionNotFound, unmoved)
			if rep.GetBlocksTotal() != 0 || rep.GetBytes() != 0 {
				t.Errorf("hint %q: report of nothing: %v", hint, rep)
			}
		}
		_, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: request("nobody")})
		wantError(t, err, ReasonSessionNotFound)
		r.settle()
	})
}

func TestBadRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for _, tc := range []struct {
			name, field string
			edit        func(*pb.MigrateRequest)
		}{
			{"no request id", "request_id", func(q *pb.MigrateRequest) { q.RequestId = "" }},
			{"no session", "session.session_id", func(q *pb.MigrateRequest) { q.Session = nil }},
			{"bad hint", "source_hint", func(q *pb.MigrateRequest) { q.SourceHint = "a b" }},
			{"bad engine", "engine_id", func(q *pb.MigrateRequest) { q.EngineId = "../e" }},
			{"bad mode", "mode", func(q *pb.MigrateRequest) { q.Mode = 99 }},
			{"bad deadline", "deadline", func(q *pb.MigrateRequest) { q.Deadline.Seconds = -1 }},
			{"takeover without number", "repin_seq", func(q *pb.MigrateRequest) { q.Takeover = true }},
			{"keys and session", "session.session_id", func(q *pb.MigrateRequest) { q.Keys = chain("k", 1) }},
			{"keys without source", "source_hint", func(q *pb.MigrateRequest) { q.Session, q.Keys = nil, chain("k", 1) }},
		} {
			req := request("s")
			tc.edit(req)
			_, _, err := r.b.migrate(req)
			f := wantError(t, err, ReasonInvalid)
			if len(f.Fields) != 1 || f.Fields[0].Field != tc.field {
				t.Errorf("%s: faults %+v, want one of %s", tc.name, f.Fields, tc.field)
			}
		}
		req := request("s")
		req.Mode = pb.Mode_MODE_BACKGROUND
		_, _, err := r.b.migrate(req)
		wantError(t, err, ReasonModeUnavailable)
		r.settle()
	})
}

// A wrong hint, or none, costs calls and nothing else; a hint that names nobody does not either.
func TestSourceHints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		for _, hint := range []string{"", "a", "b", "c", "nobody"} {
			id := "hint-" + hint
			keys := engines["a"].session(id, 3)
			req := request(id)
			req.SourceHint = hint
			rep := f.nodes["b"].mustEnd(req, committed, "", moved)
			if rep.GetSource().GetNodeId() != "a" {
				t.Errorf("hint %q: source %v", hint, rep.GetSource())
			}
			engines["b"].check("", keys)
			f.wantOwner(id, "b")
		}
		f.settle()
	})
}

// A hint at a node that is down falls back to the others, and a node that is down does not hold the others up.
func TestDeadNodeDoesNotHoldUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		ea, eb := f.nodes["a"].register("e", testLayout(), 1<<20), f.nodes["b"].register("e", testLayout(), 1<<20)
		f.nodes["c"].stop()
		for hint, limit := range map[string]time.Duration{"": 2 * time.Second, "c": 7 * time.Second} {
			id := "dead-" + hint
			keys := ea.session(id, 2)
			req := request(id)
			req.SourceHint = hint
			started := time.Now()
			f.nodes["b"].mustEnd(req, committed, "", moved)
			if d := time.Since(started); d > limit {
				t.Errorf("hint %q took %v, want at most %v", hint, d, limit)
			}
			eb.check("", keys)
		}
		rep := f.nodes["b"].mustEnd(request("nobody"), failed, ReasonPeerUnreachable, unmoved)
		if rep.GetSource() != nil {
			t.Errorf("source of nothing: %v", rep.GetSource())
		}
		f.settle()
	})
}

// a -> b -> c, then d asks a: two forwarding records lead to c. One more is refused.
func TestForwarding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c", "d", "e")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		hop := func(to, hint string) *pb.MigrateRequest {
			req := request("s")
			req.SourceHint = hint
			f.nodes[to].mustEnd(req, committed, "", moved)
			f.wantOwner("s", to)
			return req
		}
		keys := engines["a"].session("s", 4)
		hop("b", "a")
		hop("c", "b")
		hop("d", "a") // a -> b -> c
		engines["d"].check("", keys)
		req := request("s")
		req.SourceHint = "a" // a -> b -> c -> d
		f.nodes["e"].mustEnd(req, failed, ReasonTooManyHops, unmoved)
		f.wantOwner("s", "d")
		engines["d"].check("", keys)
		hop("e", "") // all at once: the highest epoch wins
		engines["e"].check("", keys)
		if got := f.nodes["e"].record("s").GetEpoch(); got != 5 {
			t.Errorf("epoch is %d after four hand-overs, want 5", got)
		}
		f.settle()
	})
}

func TestHereAlready(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 4)
		rep := r.a.mustEnd(request("s"), committed, "", moved)
		if rep.GetBytes() != 0 || rep.GetBlocksUsable() != 4 || rep.GetTailTokens() != 3 || rep.GetEpoch() != 1 || rep.GetTotal().AsDuration() != 0 {
			t.Errorf("report %v", rep)
		}
		r.ea.check("", keys)

		// Owned here, with blocks that are gone: what is to be prefilled is said.
		r.ea.publish("", "t", append(chain("t", 3), chain("gone", 2)...), 5*16)
		rep = r.a.mustEnd(request("t"), committed, "", moved)
		if rep.GetBlocksTotal() != 5 || rep.GetBlocksUsable() != 0 || rep.GetTailTokens() != 80 {
			t.Errorf("report %v", rep)
		}
		r.ea.write("", chain("t", 3))
		rep = r.a.mustEnd(request("t"), committed, "", moved)
		if rep.GetBlocksUsable() != 3 || rep.GetTailTokens() != 32 {
			t.Errorf("report %v", rep)
		}
		plan, err := r.a.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: request("t")})
		if err != nil || plan.GetBlocksPresent() != 3 || plan.GetTailTokens() != 32 || plan.GetBytesMissing() != 0 {
			t.Errorf("plan %v, %v", plan, err)
		}
		r.settle()
	})
}

// A session whose blocks the source has lost moves cold: the prefix, and the tail to prefill.
func TestSourceLostBlocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := chain("s", 6)
		r.ea.write("", keys[:4])
		r.ea.publish("", "s", keys, 6*16+1)
		rep := r.b.mustEnd(request("s"), recompute, ReasonBlockNotFound, moved)
		if rep.GetBlocksMoved() != 4 || rep.GetBlocksUsable() != 4 || rep.GetTailTokens() != 33 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys[:4])
		r.wantOwner("s", "b")

		// What the source has lost may be at the destination.
		keys = chain("t", 6)
		r.ea.write("", keys[:4])
		r.eb.write("", keys[2:])
		r.ea.publish("", "t", keys, 6*16+1)
		rep = r.b.mustEnd(request("t"), committed, "", moved)
		if rep.GetBlocksMoved() != 2 || rep.GetBlocksPresent() != 4 || rep.GetTailTokens() != 1 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		r.settle()
	})
}
