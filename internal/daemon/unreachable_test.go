package daemon

import (
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func auto(session string) *pb.MigrateRequest {
	req := request(session)
	req.Mode = pb.Mode_MODE_UNSPECIFIED
	return req
}

// The source can't be reached: a forced fetch fails, the planner's choice is to recompute, and ownership stays.
func TestSourceUnreachable(t *testing.T) {
	for _, connected := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, fast, nil)
			keys := r.ea.session("s", 4)
			if connected {
				r.b.mustEnd(request("nobody"), failed, ReasonSessionNotFound, unmoved)
			}
			r.cut()
			for _, hint := range []string{"", "a"} {
				started := time.Now()
				req := request("s")
				req.SourceHint = hint
				r.b.mustEnd(req, failed, ReasonPeerUnreachable, unmoved)
				req = auto("s")
				req.SourceHint = hint
				rep := r.b.mustEnd(req, recompute, ReasonPeerUnreachable, unmoved)
				if rep.GetMode() != pb.Mode_MODE_RECOMPUTE {
					t.Errorf("mode %v", rep.GetMode())
				}
				if d := time.Since(started); d > 21*time.Second {
					t.Errorf("two answers took %v", d)
				}
			}
			r.heal()
			r.b.mustEnd(request("s"), committed, "", moved)
			r.eb.check("", keys)
			r.wantOwner("s", "b")
			r.settle()
		})
	}
}

// With takeover and a higher repin_seq the destination becomes the owner at once, and the source yields when it is back.
func TestTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 4)
		r.cut()
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 5
		rep := r.b.mustEnd(req, recompute, ReasonPeerUnreachable, moved)
		if got := r.b.record("s"); got.GetOwnerNodeId() != "b" || got.GetRepinSeq() != 5 || got.GetEpoch() != rep.GetEpoch() {
			t.Errorf("record %v after a takeover at epoch %d", got, rep.GetEpoch())
		}
		r.ea.publish("", "s", keys, 70) // the cut-off owner does not know yet
		time.Sleep(30 * time.Second)
		r.heal()
		time.Sleep(15 * time.Second)
		r.wantOwner("s", "b")
		if got := r.a.record("s"); got.GetOwnerNodeId() != "b" || got.GetRepinSeq() != 5 {
			t.Errorf("the earlier owner records %v", got)
		}
		_, err := r.a.engine.PublishSession(t.Context(), &pb.PublishSessionRequest{
			EngineId: "e", Session: &pb.SessionRef{SessionId: "s"}, BlockKeys: keys, Tokens: 80,
		})
		if f := wantError(t, err, ReasonNotOwner); f.Meta["owner_node_id"] != "b" {
			t.Errorf("NOT_OWNER carries %v", f.Meta)
		}
		// A lower re-pin number is fenced at both.
		low := request("s")
		low.RepinSeq = 4
		r.b.mustEnd(low, failed, ReasonFenced, unmoved)
		low = request("s")
		low.RepinSeq = 4
		r.a.mustEnd(low, failed, ReasonFenced, unmoved)
		// The number itself is enough to go on with.
		back := request("s")
		back.RepinSeq = 5
		r.b.mustEnd(back, committed, "", moved) // here already
		back = request("s")
		back.RepinSeq = 6
		rep = r.a.mustEnd(back, committed, "", moved) // b's record, empty until its engine publishes, is the session
		if rep.GetBlocksTotal() != 0 || rep.GetTokens() != 0 {
			t.Errorf("report %v", rep)
		}
		r.wantOwner("s", "a")
		r.settle()
	})
}

// A takeover that is not higher than the record is fenced.
func TestTakeoverFenced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 2)
		first := request("s")
		first.RepinSeq = 5
		r.b.mustEnd(first, committed, "", moved)
		r.cut()
		for seq, want := range map[uint64]Reason{4: ReasonFenced, 5: ReasonFenced, 6: ReasonPeerUnreachable} {
			req := auto("s")
			req.Takeover, req.RepinSeq = true, seq
			rep, _, err := r.a.migrate(req)
			if err != nil || Reason(rep.GetCode()) != want || (rep.GetOwnership() == moved) != (seq == 6) {
				t.Errorf("takeover with %d: %v, %v", seq, rep, err)
			}
			if seq == 6 {
				break
			}
		}
		r.settleCut()
	})
}

// settleCut is settle for a link that stays cut: what the other side holds runs out.
func (r *rig) settleCut() {
	r.t.Helper()
	time.Sleep(75 * time.Second)
	r.settle()
}

// The link is cut in the middle: an answer within the progress time-out, whole blocks kept, and the next migration moves
// the rest.
func TestCutMidTransfer(t *testing.T) {
	for _, tc := range []struct {
		name  string
		req   func(string) *pb.MigrateRequest
		state pb.MigrationState
	}{
		{"forced", request, failed},
		{"planner's", auto, recompute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 64)
				m := r.b.begin(tc.req("s"))
				m.landed(10 * 8192)
				r.cut()
				rep := m.end()
				wantReport(t, rep, tc.state, ReasonStalled, unmoved)
				if rep.GetBlocksMoved() == 0 || rep.GetBlocksUsable() > rep.GetBlocksMoved() { // eight stripes land out of order
					t.Errorf("%d blocks moved, %d usable", rep.GetBlocksMoved(), rep.GetBlocksUsable())
				}
				if want := 64*16 + 3 - rep.GetBlocksUsable()*16; rep.GetTailTokens() != want {
					t.Errorf("%d tail tokens, want %d", rep.GetTailTokens(), want)
				}
				r.heal()
				next := r.b.mustEnd(request("s"), committed, "", moved)
				if next.GetBlocksPresent() != rep.GetBlocksMoved() || next.GetBlocksMoved() != 64-rep.GetBlocksMoved() {
					t.Errorf("first moved %d; then %d were here and %d moved", rep.GetBlocksMoved(), next.GetBlocksPresent(), next.GetBlocksMoved())
				}
				r.eb.check("", keys)
				r.wantOwner("s", "b")
				time.Sleep(35 * time.Second)
				r.settle()
			})
		})
	}
}

// A cut shorter than the progress time-out costs time and nothing else.
func TestShortCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		m := r.b.begin(request("s"))
		m.landed(10 * 8192)
		r.cut()
		time.Sleep(4 * time.Second)
		r.heal()
		wantReport(t, m.end(), committed, "", moved)
		r.eb.check("", keys)
		r.settleCut() // connections probe a path that was cut less and less often
	})
}
