package daemon

import (
	"context"
	"fmt"
	"slices"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Prompts of N·k−1, N·k and N·k+1 tokens, N being 16: whole blocks move, the rest is to be prefilled, and never less than
// the last token.
func TestTokenCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for _, k := range []int64{0, 1, 5} {
			for _, d := range []int64{-1, 0, 1} {
				tokens := 16*k + d
				id := fmt.Sprintf("s%d", tokens)
				blocks := max(0, tokens/16)
				keys := chain(id, int(blocks))
				if blocks > 0 {
					r.ea.write("", keys)
				}
				resp, err := r.a.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
					EngineId: "e", Session: &pb.SessionRef{SessionId: id}, BlockKeys: keys, Tokens: tokens,
				})
				if tokens < 1 {
					wantError(t, err, ReasonInvalid)
					continue
				}
				if err != nil || resp.GetSession().GetTokens() != tokens {
					t.Fatalf("publish %d tokens: %v, %v", tokens, resp, err)
				}
				rep := r.b.mustEnd(request(id), committed, "", moved)
				want := max(1, tokens-16*blocks)
				if rep.GetTailTokens() != want || rep.GetBlocksMoved() != blocks || rep.GetBlocksUsable() != blocks || rep.GetTokens() != tokens || rep.GetBytes() != blocks*8192 || rep.GetPages() != blocks*4 {
					t.Errorf("%d tokens: want %d blocks and a tail of %d, report %v", tokens, blocks, want, rep)
				}
				if blocks > 0 {
					r.eb.check("", keys)
				}
				r.wantOwner(id, "b")
			}
		}
		_, err := r.a.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
			EngineId: "e", Session: &pb.SessionRef{SessionId: "few"}, BlockKeys: chain("few", 2), Tokens: 31,
		})
		wantError(t, err, ReasonInvalid) // fewer tokens than whole blocks
		r.settle()
	})
}

// Whatever part of the session the destination holds, exactly the rest moves.
func TestPartlyPresent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		const n = 12
		for name, here := range map[string][]int{
			"nothing": {}, "first": {0}, "prefix": {0, 1, 2, 3, 4}, "middle": {4, 5, 6}, "tail": {9, 10, 11}, "last": {11},
			"holes": {0, 2, 4, 6, 8, 10}, "all but one": {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11}, "everything": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		} {
			keys := r.ea.session(name, n)
			for i := range n {
				if slices.Contains(here, i) {
					r.eb.write("", keys[i:i+1])
				}
			}
			plan, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: request(name)})
			if err != nil || plan.GetBytesMissing() != int64(n-len(here))*8192 || plan.GetBlocksPresent() != int64(len(here)) || plan.GetTailTokens() != 3 {
				t.Errorf("%s: plan %v, %v", name, plan, err)
			}
			rep := r.b.mustEnd(request(name), committed, "", moved)
			if rep.GetBlocksPresent() != int64(len(here)) || rep.GetBlocksMoved() != int64(n-len(here)) || rep.GetBytes() != int64(n-len(here))*8192 || rep.GetBlocksUsable() != n {
				t.Errorf("%s: report %v", name, rep)
			}
			r.eb.check("", keys)
			r.wantOwner(name, "b")
		}
		r.settle()
	})
}

// Moving back moves only what the first region lacks.
func TestMoveBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := chain("s", 20)
		r.ea.write("", keys[:8])
		r.ea.publish("", "s", keys[:8], 8*16)
		for _, turn := range []struct {
			to     *testEngine
			blocks int // of the session when it moves
			moved  int
		}{
			{r.eb, 8, 8},
			{r.ea, 8, 0}, // nothing was added
			{r.eb, 12, 4},
			{r.ea, 20, 8},
		} {
			from := map[*testEngine]*testEngine{r.ea: r.eb, r.eb: r.ea}[turn.to]
			if turn.blocks > 8 {
				from.write("", keys[:turn.blocks])
				from.publish("", "s", keys[:turn.blocks], int64(turn.blocks)*16+2)
			}
			rep := turn.to.n.mustEnd(request("s"), committed, "", moved)
			if rep.GetBytes() != int64(turn.moved)*8192 || rep.GetBlocksMoved() != int64(turn.moved) || rep.GetBlocksUsable() != int64(turn.blocks) {
				t.Errorf("to %s: report %v", turn.to.n.name, rep)
			}
			turn.to.check("", keys[:turn.blocks])
			r.wantOwner("s", turn.to.n.name)
		}
		r.settle()
	})
}

// Named blocks are replicated without a hand-over; when the source lacks some, that is said.
func TestReplicateKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		replicate := func(keys [][]byte) *pb.MigrateRequest {
			req := request("")
			req.Session, req.SourceHint, req.Keys = &pb.SessionRef{}, "a", keys
			return req
		}
		rep := r.b.mustEnd(replicate(keys[2:6]), committed, "", nobody)
		if rep.GetBlocksMoved() != 4 || rep.GetBlocksTotal() != 4 || rep.GetBytes() != 4*8192 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys[2:6])
		r.wantOwner("s", "a")
		if rep = r.b.mustEnd(replicate(keys[:7]), committed, "", nobody); rep.GetBlocksMoved() != 3 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys[:7])

		gone := chain("gone", 2)
		rep = r.b.mustEnd(replicate([][]byte{keys[7], gone[0]}), failed, ReasonBlockNotFound, nobody)
		if rep.GetBlocksMoved() != 1 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		r.b.mustEnd(replicate(gone), failed, ReasonBlockNotFound, nobody)
		req := replicate(keys[:1])
		req.SourceHint = "nobody"
		r.b.mustEnd(req, failed, ReasonNodeNotFound, nobody)
		req = replicate(keys[:1])
		req.Session.Tenant = "other"
		r.b.mustEnd(req, failed, ReasonBlockNotFound, nobody)
		r.settle()
	})
}
