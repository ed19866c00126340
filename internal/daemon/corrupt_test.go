package daemon

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// slotOf is where a block lies in the engine's arena file.
func (e *testEngine) slotOf(key []byte) int64 {
	e.n.f.t.Helper()
	ctx := context.Background()
	acq, err := e.n.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: e.id, Keys: [][]byte{key}})
	if err != nil {
		e.n.f.t.Fatal(err)
	}
	if _, err := e.n.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: e.id, LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
		e.n.f.t.Fatal(err)
	}
	return int64(acq.GetSlots()[0].GetSlot()) * e.reg.GetStrideBytes()
}

// lookup is the state of each key.
func (e *testEngine) lookup(tenant string, keys [][]byte) []pb.BlockState {
	e.n.f.t.Helper()
	resp, err := e.n.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Fatal(err)
	}
	out := make([]pb.BlockState, len(keys))
	for i, b := range resp.GetBlocks() {
		out[i] = b.GetState()
	}
	return out
}

// A page that is damaged in the source's memory after its commit is never readable at the destination: the source drops
// the block, the prefix before it moves, and the report says what is to be prefilled.
func TestCorruptAtSource(t *testing.T) {
	const n = 12
	flip := func(block []byte) { block[5000] ^= 0x40 }
	for _, tc := range []struct {
		name   string
		at     int
		damage func(block []byte)
	}{
		{"one bit in the first block", 0, flip},
		{"one bit in the middle", 5, flip},
		{"one bit in the last block", n - 1, flip},
		{"a zeroed page", 7, func(b []byte) { clear(b[2048:4096]) }},
		{"two pages swapped", 3, func(b []byte) {
			p := append([]byte(nil), b[:2048]...)
			copy(b, b[2048:4096])
			copy(b[2048:], p)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, fast, nil)
				keys := r.ea.session("s", n)
				block := r.ea.content(keys[tc.at])
				tc.damage(block)
				if _, err := r.ea.file.WriteAt(block, r.ea.slotOf(keys[tc.at])); err != nil {
					t.Fatal(err)
				}
				events := r.a.events("e")
				rep := r.b.mustEnd(request("s"), recompute, ReasonChecksumMismatch, moved)
				if ev := (<-events.got).GetInvalidate(); len(ev.GetKeys()) != 1 || string(ev.GetKeys()[0]) != string(keys[tc.at]) || ev.GetReason() == "" {
					t.Errorf("the source's engine was not told: %v", ev)
				}
				events.stop()
				if rep.GetBlocksUsable() != int64(tc.at) || rep.GetTailTokens() != int64(n-tc.at)*16+3 || rep.GetPagesRetried() == 0 {
					t.Errorf("block %d of %d is bad: report %v", tc.at, n, rep)
				}
				r.wantOwner("s", "b")
				if tc.at > 0 {
					r.eb.check("", keys[:tc.at])
				}
				for e, name := range map[*testEngine]string{r.ea: "the source", r.eb: "the destination"} {
					if got := e.lookup("", keys[tc.at:tc.at+1])[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
						t.Errorf("the bad block is %v at %s", got, name)
					}
				}
				st, err := r.a.region.Status(context.Background(), &pb.StatusRequest{})
				if err != nil || st.GetArenas()[0].GetChecksumFailures() == 0 {
					t.Errorf("the source has not counted it: %v", err)
				}
				r.settle()

				// The destination computes the block again, and the whole session moves back.
				r.eb.write("", keys)
				r.a.mustEnd(request("s"), committed, "", moved)
				r.ea.check("", keys)
				r.settle()
			})
		})
	}
}

// Damage on the way costs retransmissions and nothing else.
func TestCorruptOnTheWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 200)
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(1, 2))
		flipped := 0
		r.net.Tap(func(p wan.Packet) wan.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if len(p.Data) > 100 && rng.IntN(50) == 0 {
				p.Data[rng.IntN(len(p.Data))] ^= 1 << rng.IntN(8)
				flipped++
			}
			return wan.Pass
		})
		rep := r.b.mustEnd(request("s"), committed, "", moved)
		r.net.Tap(nil)
		if flipped < 5 {
			t.Errorf("only %d packets were damaged", flipped)
		}
		if rep.GetBlocksMoved() != 200 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// Replication of a block that is bad at its source fails, and names why.
func TestReplicateCorrupt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 4)
		if _, err := r.ea.file.WriteAt(make([]byte, 8192), r.ea.slotOf(keys[2])); err != nil {
			t.Fatal(err)
		}
		req := request("")
		req.Session, req.SourceHint, req.Keys = &pb.SessionRef{}, "a", keys
		rep, _, err := r.b.migrate(req)
		if err != nil || rep.GetState() != failed || rep.GetCode() == "" || rep.GetOwnership() != nobody {
			t.Fatalf("report %v, %v", rep, err)
		}
		if got := r.eb.lookup("", keys[2:3])[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("the bad block is %v at the destination", got)
		}
		r.eb.check("", keys[:2])
		r.wantOwner("s", "a")
		r.settle()
	})
}
