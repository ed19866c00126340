package daemon

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// tampering spoils pages after they were decoded, as a bad memory path at the destination does: the first of them, so many times.
type tampering struct {
	transfer.Codecs
	mu    sync.Mutex
	times int
	page  []byte // what is spoiled, as it came
	seen  int
}

func (c *tampering) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	return codec.Encode(id, dst, src, s)
}

func (c *tampering) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	err := codec.Decode(id, dst, src, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.page == nil {
		c.page = append([]byte(nil), src...)
	}
	if err == nil && string(c.page) == string(src) && c.seen < c.times {
		dst[len(dst)/2] ^= 4
		c.seen++
	}
	return err
}

// A page that is damaged once between the source's memory and the destination's is asked for again, and nobody notices but the counters. Damaged
// twice, with good bytes at the source: the source is asked and keeps its block, and the migration fails by name with what landed whole; the next one, over a sound
// path, commits.
func TestDamagedOnThePath(t *testing.T) {
	for name, times := range map[string]int{"once": 1, "twice": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				spoil := &tampering{times: times}
				r := newRig(t, fast, func(name string, c *Config, p *Parts) {
					c.Link.Codec = "huff"
					if name == "b" {
						p.Codecs = spoil
					}
				})
				r.ea.values, r.eb.values = true, true
				keys := r.ea.session("s", 30)
				if times == 1 {
					rep := r.b.mustEnd(request("s"), committed, "", moved)
					if rep.GetPagesRetried() != 1 || rep.GetBlocksMoved() != 30 || spoil.seen != 1 {
						t.Errorf("%d pages were spoiled: report %v", spoil.seen, rep)
					}
				} else {
					rep := r.b.mustEnd(request("s"), failed, ReasonChecksumMismatch, unmoved)
					if spoil.seen != 2 || rep.GetPagesRetried() < 2 {
						t.Errorf("%d pages were spoiled: report %v", spoil.seen, rep)
					}
					wantSamples(t, r.a.samples(), reported{`kvferry_peer_accusations_total{result="good"}`: 1, `kvferry_peer_accusations_total{result="dropped"}`: 0})
					r.ea.check("", keys)
					r.wantOwner("s", "a")
					r.settle()
					r.b.mustEnd(request("s"), committed, "", moved)
				}
				r.eb.check("", keys)
				r.wantOwner("s", "b")
				r.settle()
			})
		})
	}
}

// A hybrid whose source finds one of its blocks bad, or loses its memory, ends as well as one can: with a front the session is whole, every block
// its maker's, in no more time than prefill alone; without one, what landed in front of the damage is kept and the rest is to be prefilled.
func TestHybridSourceDamaged(t *testing.T) {
	const blocks = 120
	type damage func(t *testing.T, r *rig, keys [][]byte)
	flip := func(at int) damage {
		return func(t *testing.T, r *rig, keys [][]byte) {
			if _, err := r.ea.file.WriteAt(make([]byte, 4096), r.ea.slotOf(keys[at])); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(t *testing.T, r *rig, _ [][]byte) {
		if err := os.Truncate(r.ea.reg.GetArenaPath(), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name   string
		before damage // the migration
		during damage
		front  bool
		state  pb.MigrationState
		code   Reason
		usable int64 // -1: what has landed in front
	}{
		{"the last block, with a front", flip(blocks - 1), nil, true, committed, "", blocks},
		{"a block in the middle, with a front", flip(90), nil, true, committed, "", blocks},
		{"a block in the middle, without", flip(90), nil, false, recompute, ReasonChecksumMismatch, 90},
		{"the first block, without", flip(0), nil, false, recompute, ReasonChecksumMismatch, 0},
		{"all memory, with a front", nil, truncate, true, committed, "", blocks},
		{"all memory, without", nil, truncate, false, recompute, ReasonArenaFault, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", blocks)
				if tc.before != nil {
					tc.before(t, r, keys)
				}
				f := r.eb.front(60e6, keys)
				run := r.b.begin(hybridRequest("s"))
				if tc.front {
					f.start(run.id())
				}
				if tc.during != nil {
					run.landed(5 * 8192)
					tc.during(t, r, keys)
				}
				rep := run.end()
				wantReport(t, rep, tc.state, tc.code, moved)
				if tc.usable >= 0 && rep.GetBlocksUsable() != tc.usable || rep.GetBlocksUsable() > rep.GetBlocksMoved() && !tc.front {
					t.Errorf("report %v", rep)
				}
				if tc.front {
					<-f.done
					if computed := f.check(); rep.GetBlocksMoved()+int64(computed) != blocks || tc.during != nil && rep.GetBlocksMoved() < 5 {
						t.Errorf("%d prefilled, report %v", computed, rep)
					}
					if alone := blocks * f.block; f.took > alone+alone/10 {
						t.Errorf("the front took %v, alone it takes %v", f.took, alone)
					}
				} else if n := rep.GetBlocksUsable(); n > 0 {
					r.eb.check("", keys[:n])
				}
				r.wantOwner("s", "b")
				r.settle()
			})
		})
	}
}

// Somebody truncates or removes the destination's arena under a migration: that one fails by name, and what it was about stays with the source;
// the daemon goes on, and once the engine has registered again so does the session.
func TestDestinationDamaged(t *testing.T) {
	for name, mode := range map[string]pb.Mode{"fetch": pb.Mode_MODE_FETCH, "planned": pb.Mode_MODE_UNSPECIFIED, "hybrid": pb.Mode_MODE_HYBRID} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 40)
				req := request("s")
				req.Mode = mode
				run := r.b.begin(req)
				run.landed(10 * 8192)
				if err := os.Truncate(r.eb.reg.GetArenaPath(), 0); err != nil {
					t.Fatal(err)
				}
				wantReport(t, run.end(), failed, ReasonArenaFault, unmoved)
				r.wantOwner("s", "a")
				_, err := r.b.engine.AcquireBlocks(context.Background(), &pb.AcquireBlocksRequest{EngineId: "e", Keys: keys[:1]})
				wantError(t, err, ReasonArenaFault)
				time.Sleep(2 * time.Second) // the slow link's queue is that long
				r.settle()
				r.eb = r.b.register("e", testLayout(), 4<<20)
				r.b.mustEnd(request("s"), committed, "", moved)
				r.eb.check("", keys)
				r.settle()
			})
		})
	}
}

// Who accuses good blocks changes nothing, and who accuses what it was not offered, or by another's offer, is refused; a bad block is dropped once,
// whoever is first.
func TestAccusedWithoutCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		ea := f.nodes["a"].register("e", testLayout(), 1<<20)
		keys, others := ea.session("s", 4), chain("o", 2)
		ea.write("red", others)
		call := func(from string, req *pb.PeerRequest) (*pb.PeerResponse, error) {
			_, resp, err := f.nodes[from].d.callNode(context.Background(), "a", req)
			return resp, err
		}
		offerTo := func(from string) *pb.OfferAnswer {
			resp, err := call(from, &pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{
				Session: &pb.SessionRef{SessionId: "s"}, MigrationId: "m-" + from, Layout: testLayout(), Deadline: durationpb.New(60e9),
			}}})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetOffer()
		}
		offer := offerTo("b")
		accuseBy := func(from string, offer *pb.OfferAnswer, slot *pb.SlotRef) (*pb.AccuseAnswer, error) {
			resp, err := call(from, &pb.PeerRequest{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: offer.GetOfferId(), Slot: slot}}})
			return resp.GetAccuse(), err
		}
		accuse := func(from string, slot *pb.SlotRef) (*pb.AccuseAnswer, error) { return accuseBy(from, offer, slot) }
		for range 50 {
			for _, slot := range offer.GetSlots() {
				if got, err := accuse("b", slot); err != nil || got.GetDropped() {
					t.Fatalf("a good block was dropped: %v, %v", got, err)
				}
			}
		}
		e, err := f.nodes["a"].d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		_, theirs := e.arena.Lookup("red", keysOf(others)[0])
		stale := refFromProto(offer.GetSlots()[0])
		stale.Generation--
		for name, slot := range map[string]*pb.SlotRef{"another tenant's": refToProto(theirs), "of before": refToProto(stale), "none": {Slot: 1 << 30}, "unset": nil} {
			if _, err := accuse("b", slot); err == nil || classify(err).Reason != ReasonInvalid {
				t.Errorf("a slot that is %s: %v", name, err)
			}
		}
		if _, err := accuse("c", offer.GetSlots()[0]); err == nil || classify(err).Reason != ReasonLeaseExpired {
			t.Errorf("by another's offer: %v", err)
		}
		ea.check("", keys)
		ea.check("red", others)
		wantSamples(t, f.nodes["a"].samples(), reported{`kvferry_peer_accusations_total{result="good"}`: 200, `kvferry_peer_accusations_total{result="dropped"}`: 0})

		// A block that is bad is dropped once, and whoever was offered it learns so.
		second := offerTo("c")
		if _, err := ea.file.WriteAt(make([]byte, 4096), ea.slotOf(keys[2])); err != nil {
			t.Fatal(err)
		}
		for from, of := range map[string]*pb.OfferAnswer{"b": offer, "c": second} {
			if got, err := accuseBy(from, of, of.GetSlots()[2]); err != nil || !got.GetDropped() {
				t.Errorf("%s accuses with cause: %v, %v", from, got, err)
			}
		}
		wantSamples(t, f.nodes["a"].samples(), reported{`kvferry_peer_accusations_total{result="dropped"}`: 1})
		for from, of := range map[string]*pb.OfferAnswer{"b": offer, "c": second} {
			if _, err := call(from, &pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: of.GetOfferId()}}}); err != nil {
				t.Error(err)
			}
		}
		if got := ea.lookup("", keys[2:3])[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("the bad block is %v", got)
		}
		f.settle()
	})
}
