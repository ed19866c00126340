package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// A puller that goes silent loses its leases after the TTL; nobody has to tell the source.
func TestLeaseOfSilentPullerExpires(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		m := r.b.begin(request("s"))
		m.landed(4 * 8192)
		if got := r.a.idle(); got.Offers != 1 || got.LeasedBlocks != 64 || got.Transfers != 1 || got.Backlog == 0 {
			t.Errorf("the source holds %+v during the transfer", got)
		}
		cut := time.Now()
		r.cut()
		rep := m.end()
		wantReport(t, rep, failed, ReasonStalled, unmoved)
		if d := time.Since(cut); d > 12*time.Second {
			t.Errorf("noticed after %v, want the progress time-out of 10s", d)
		}
		if got := r.b.idle(); got.Reserved != 0 || got.Leases != 0 || got.Active != 0 {
			t.Errorf("the destination holds %+v after its report", got)
		}
		time.Sleep(time.Until(cut.Add(25 * time.Second)))
		if got := r.a.idle(); got.Offers != 1 || got.LeasedBlocks != 64 {
			t.Errorf("the source holds %+v before the TTL is over", got)
		}
		// What the source read into connections that were dying counts as progress, so that it may be a second TTL. The
		// link ends after the idle time-out of its connections and the wait for the dialler.
		r.a.within(cut.Add(65*time.Second), "the leases", func(i idle) bool { return i.Offers == 0 && i.LeasedBlocks == 0 && i.Leases == 0 })
		r.a.within(cut.Add(120*time.Second), "the link", func(i idle) bool { return i == idle{} })
		r.heal()
		r.ea.check("", keys)
		r.wantOwner("s", "a")
		r.settle()
	})
}

// within waits until what the node holds is as wanted.
func (n *node) within(limit time.Time, what string, ok func(idle) bool) {
	n.f.t.Helper()
	for !ok(n.idle()) {
		if time.Now().After(limit) {
			n.f.t.Fatalf("%s: %s holds %+v after all that time", what, n.name, n.idle())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// A transfer of three lease TTLs goes on: leases are renewed by progress.
func TestSlowTransferIsNotDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		r := newRig(t, slow, func(_ string, c *Config, _ *Parts) { c.Migration.LeaseTTL = ttl })
		keys := r.ea.session("s", 140)
		rep := r.b.mustEnd(request("s"), committed, "", moved)
		if d := rep.GetTransfer().AsDuration(); d < 3*ttl {
			t.Errorf("the transfer took %v, which shows nothing about a TTL of %v", d, ttl)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// offerOf has b draw an offer of a session at a, as a migration does.
func (r *rig) offerOf(session string) (*transfer.Link, *pb.OfferAnswer) {
	r.t.Helper()
	ctx := context.Background()
	link, err := r.b.d.links.get(ctx, "a")
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.b.d.callPeer(ctx, link, &pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{
		Session: &pb.SessionRef{SessionId: session}, MigrationId: "m", Layout: testLayout(),
	}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return link, resp.GetOffer()
}

// read moves one offered block into a slot of b, whose reservation is given back.
func (r *rig) read(link *transfer.Link, of *pb.OfferAnswer, token []byte, generation uint64) error {
	r.t.Helper()
	e, err := r.b.d.engines.get("e")
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := e.arena.Reserve("test", "", []kvstore.BlockKey{"a block of the test"})
	if err != nil {
		r.t.Fatal(err)
	}
	defer e.arena.ReleaseOwner("test")
	local := transfer.Desc{Memory: e.memory, Offset: uint64(got[0].Ref.Slot) * uint64(e.layout.Stride()), Generation: got[0].Ref.Generation, Pages: 4}
	remote := transfer.Desc{
		Memory: transfer.MemoryID(of.GetMemoryId()), Offset: uint64(of.GetSlots()[0].GetSlot()) * uint64(of.GetStrideBytes()), Generation: generation, Pages: 4,
	}
	tr, err := link.Prepare(transfer.Read, []transfer.Desc{local}, []transfer.Desc{remote}, transfer.TransferOptions{Token: token})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = tr.Release() }()
	if err := tr.Post(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	_, err = tr.Wait(context.Background())
	return err
}

// Pages are given to the holder of a live offer and of the right generation, and to nobody else.
func TestReadNeedsOfferAndGeneration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 2)
		link, of := r.offerOf("s")
		good := of.GetSlots()[0].GetGeneration()
		forged := append([]byte(nil), of.GetOfferId()...)
		forged[0] ^= 1
		for _, tc := range []struct {
			name       string
			token      []byte
			generation uint64
			want       error
			reason     Reason
		}{
			{"stale generation", of.GetOfferId(), good - 1, transfer.ErrStaleGeneration, ReasonStaleGeneration},
			{"next generation", of.GetOfferId(), good + 1, transfer.ErrStaleGeneration, ReasonStaleGeneration},
			{"forged offer", forged, good, transfer.ErrLeaseExpired, ReasonLeaseExpired},
			// The right pages under another key: they fail verification at the destination.
			{"another block", of.GetOfferId(), good, transfer.ErrChecksumMismatch, ReasonChecksumMismatch},
		} {
			err := r.read(link, of, tc.token, tc.generation)
			if !errors.Is(err, tc.want) || classify(err).Reason != tc.reason {
				t.Errorf("%s: %v, want %s", tc.name, err, tc.reason)
			}
		}
		time.Sleep(31 * time.Second) // nobody renews
		err := r.read(link, of, of.GetOfferId(), good)
		if f := classify(err); f.Reason != ReasonLeaseExpired || f.Fix == "" {
			t.Errorf("after the TTL: %v, want %s", err, ReasonLeaseExpired)
		}
		_, err = r.b.d.callPeer(context.Background(), link, &pb.PeerRequest{Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: of.GetOfferId()}}})
		if f := classify(err); f.Reason != ReasonLeaseExpired || f.Fix == "" {
			t.Errorf("renewal after the TTL: %v", err)
		}
		r.ea.check("", keys)
		r.wantOwner("s", "a")
		r.settle()
	})
}

// Engines, too, are refused a slot's earlier use, a lease twice, and what is not theirs.
func TestEngineStaleReferences(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		ctx, e := context.Background(), r.a.engine
		keys := r.ea.session("s", 2)
		got, err := e.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: chain("t", 1)})
		if err != nil {
			t.Fatal(err)
		}
		slot := got.GetReservations()[0].GetSlot()
		old := &pb.SlotRef{Slot: slot.GetSlot(), Generation: slot.GetGeneration() - 1}
		_, err = e.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "e", Slots: []*pb.SlotRef{old}})
		wantError(t, err, ReasonStaleGeneration)
		_, err = e.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "e", Slots: []*pb.SlotRef{{Slot: 1 << 30, Generation: 1}}})
		wantError(t, err, ReasonInvalid)
		if _, err = e.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", Aborted: []*pb.SlotRef{slot}}); err != nil {
			t.Errorf("abort: %v", err)
		}
		_, err = e.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", Aborted: []*pb.SlotRef{slot}})
		wantError(t, err, ReasonStaleGeneration)
		_, err = e.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "e", Slots: []*pb.SlotRef{slot}})
		wantError(t, err, ReasonStaleGeneration)
		_, err = e.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "e", Slots: []*pb.SlotRef{slot}, World: 2})
		wantError(t, err, ReasonInvalid)

		acq, err := e.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		release := &pb.ReleaseBlocksRequest{EngineId: "e", LeaseIds: []uint64{acq.GetLeaseId()}}
		if _, err = e.ReleaseBlocks(ctx, release); err != nil {
			t.Errorf("release: %v", err)
		}
		_, err = e.ReleaseBlocks(ctx, release)
		wantError(t, err, ReasonLeaseNotFound)
		_, err = e.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: append(keys, chain("gone", 1)...)})
		wantError(t, err, ReasonBlockNotFound)
		acq, err = e.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: chain("gone", 1), Prefix: true})
		if err != nil || acq.GetLeaseId() != 0 {
			t.Errorf("prefix of nothing: %v, %v", acq, err)
		}
		_, err = e.LookupBlocks(ctx, &pb.LookupBlocksRequest{EngineId: "e", Keys: [][]byte{[]byte("short")}})
		wantError(t, err, ReasonInvalid)
		_, err = e.LookupBlocks(ctx, &pb.LookupBlocksRequest{EngineId: "nobody", Keys: keys})
		wantError(t, err, ReasonEngineNotFound)
		r.ea.check("", keys)
		r.settle()
	})
}
