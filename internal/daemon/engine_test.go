package daemon

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func keysOf(keys [][]byte) []kvstore.BlockKey {
	out := make([]kvstore.BlockKey, len(keys))
	for i, k := range keys {
		out[i] = kvstore.BlockKey(k)
	}
	return out
}

// With two ranks a block is visible when both have committed, in whatever order, and not before.
func TestTensorParallelRanks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		a, b, ctx := f.nodes["a"], f.nodes["b"], context.Background()
		eb := b.register("e", testLayout(), 1<<20) // a world of one: ranks are not in the layout
		var ea *testEngine
		for rank := range uint32(2) {
			reg, err := a.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "tp", Layout: testLayout(), ArenaBytes: 1 << 20, Rank: rank, World: 2, WriteThrough: true})
			if err != nil {
				t.Fatal(err)
			}
			if ea == nil {
				ea = a.open("tp", reg)
			} else if reg.GetArenaPath() != ea.reg.GetArenaPath() {
				t.Errorf("rank %d has another arena", rank)
			}
		}
		keys := chain("s", 3)
		res, err := a.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "tp", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		var slots []*pb.SlotRef
		for i, r := range res.GetReservations() {
			if _, err := ea.file.WriteAt(ea.content(keys[i]), int64(r.GetSlot().GetSlot())*ea.reg.GetStrideBytes()); err != nil {
				t.Fatal(err)
			}
			slots = append(slots, r.GetSlot())
		}
		commit := func(rank uint32, slots ...*pb.SlotRef) []bool {
			resp, err := a.engine.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "tp", Slots: slots, Rank: rank, World: 2})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetCommitted()
		}
		const present, landing = pb.BlockState_BLOCK_STATE_PRESENT, pb.BlockState_BLOCK_STATE_LANDING
		if got := commit(1, slots...); got[0] || got[1] || got[2] {
			t.Errorf("committed by one rank: %v", got)
		}
		if got := ea.lookup("", keys); got[0] != landing || got[2] != landing {
			t.Errorf("visible with one rank's part: %v", got)
		}
		if got := commit(0, slots[0]); !got[0] {
			t.Error("not committed by both ranks")
		}
		if got := ea.lookup("", keys); got[0] != present || got[1] != landing {
			t.Errorf("states %v after the first block has both parts", got)
		}
		commit(0, slots[1:]...)
		for _, bad := range []*pb.CommitBlocksRequest{
			{EngineId: "tp", Slots: slots, Rank: 0, World: 1}, {EngineId: "tp", Slots: slots, Rank: 0}, {EngineId: "tp", Slots: slots, Rank: 2, World: 2},
		} {
			if _, err := a.engine.CommitBlocks(ctx, bad); err == nil {
				t.Errorf("accepted %v", bad)
			}
		}
		ea.publish("", "s", keys, 48)
		b.mustEnd(request("s"), committed, "", moved)
		eb.check("", keys)
		f.settle()
	})
}

// open makes a testEngine of a registration that the test made itself.
func (n *node) open(id string, reg *pb.RegisterEngineResponse) *testEngine {
	n.f.t.Helper()
	e := &testEngine{n: n, id: id, layout: testLayout(), reg: reg}
	e.file = openArena(n.f.t, reg.GetArenaPath())
	return e
}

// Blocks of one tenant are invisible to another, even under the same key, and sessions of the same id are two sessions.
func TestTenantsAreApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		ctx := context.Background()
		keys := chain("s", 4)
		r.ea.write("red", keys)
		r.ea.publish("red", "s", keys, 70)
		if got := r.ea.lookup("blue", keys)[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("blue sees red's block: %v", got)
		}
		_, err := r.a.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Tenant: "blue", Keys: keys})
		wantError(t, err, ReasonBlockNotFound)
		of := func(tenant string) *pb.MigrateRequest {
			req := request("s")
			req.Session.Tenant = tenant
			return req
		}
		r.b.mustEnd(of("blue"), failed, ReasonSessionNotFound, unmoved)
		r.b.mustEnd(of(""), failed, ReasonSessionNotFound, unmoved)

		// Blue has a session of the same id and keys, with other bytes: both move, neither finds the other's blocks.
		r.eb.write("blue", keys)
		rep := r.b.mustEnd(of("red"), committed, "", moved)
		if rep.GetBlocksPresent() != 0 || rep.GetBlocksMoved() != 4 {
			t.Errorf("red's migration counted blue's blocks: %v", rep)
		}
		r.eb.check("red", keys)
		r.eb.check("blue", keys)
		if got := r.eb.lookup("", keys)[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("the default tenant sees %v", got)
		}
		sessions, err := r.b.region.ListSessions(ctx, &pb.ListSessionsRequest{Tenant: "blue"})
		if err != nil || len(sessions.GetSessions()) != 0 {
			t.Errorf("blue lists %v, %v", sessions, err)
		}
		list, err := r.b.mig.ListMigrations(ctx, &pb.ListMigrationsRequest{Tenant: "red"})
		if err != nil || len(list.GetMigrations()) != 1 {
			t.Errorf("red lists %d migrations, %v", len(list.GetMigrations()), err)
		}
		r.settle()
	})
}

// An engine without write-through is asked to publish when somebody wants its session.
func TestPublishNow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		a, b, ctx := f.nodes["a"], f.nodes["b"], context.Background()
		b.register("e", testLayout(), 1<<20)
		reg, err := a.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), ArenaBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		ea := a.open("e", reg)
		events := a.events("e")
		ea.session("s", 2)
		b.mustEnd(request("s"), committed, "", moved)
		ev := <-events.got
		if p := ev.GetPublishNow(); p.GetSession().GetSessionId() != "s" || p.GetMigrationId() == "" {
			t.Errorf("first event is %v, want publish_now", ev)
		}
		events.stop()
		f.settle()
	})
}

// A landing block is LANDING with its migration and a forecast; a reserved one is not the caller's to write.
func TestLookupOfLandingBlocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		ctx := context.Background()
		keys := r.ea.session("s", 40)
		m := r.b.begin(request("s"))
		mig := m.landed(10 * 8192)
		look, err := r.b.engine.LookupBlocks(ctx, &pb.LookupBlocksRequest{EngineId: "e", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		seen, at := map[pb.BlockState]int{}, 0
		for i, b := range look.GetBlocks() {
			seen[b.GetState()]++
			if b.GetState() == pb.BlockState_BLOCK_STATE_LANDING {
				at = i // stripes differ in speed, so it may be any
			}
			if landing := b.GetState() == pb.BlockState_BLOCK_STATE_LANDING; landing != (b.GetMigrationId() == mig.GetMigrationId()) || landing && b.GetExpectedIn().AsDuration() <= 0 {
				t.Fatalf("block is %v", b)
			}
		}
		if seen[pb.BlockState_BLOCK_STATE_LANDING] == 0 || seen[pb.BlockState_BLOCK_STATE_ABSENT] != 0 {
			t.Errorf("states %v in the middle of a transfer", seen)
		}
		last := keys[at : at+1]
		res, err := r.b.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: last})
		if err != nil || res.GetReservations()[0].GetState() != pb.ReservationState_RESERVATION_STATE_LANDING {
			t.Errorf("reservation of a landing block: %v, %v", res, err)
		}
		wantReport(t, m.end(), committed, "", moved)
		res, err = r.b.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: last})
		if err != nil || res.GetReservations()[0].GetState() != pb.ReservationState_RESERVATION_STATE_PRESENT {
			t.Errorf("reservation of a landed block: %v, %v", res, err)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// Blocks that another migration or an engine is filling are waited for as long as they arrive.
func TestSharedPrefix(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The connection that carries the calls carries chunks, too, and may wait out losses on so slow a link.
		r := newRig(t, slow, func(_ string, c *Config, _ *Parts) { c.Migration.CallTimeout = time.Minute })
		keys := chain("s", 250) // 16 s, more than the progress time-out
		r.ea.write("", keys)
		for _, id := range []string{"s1", "s2"} {
			r.ea.publish("", id, keys, 250*16)
		}
		m1 := r.b.begin(request("s1"))
		m1.landed(8192)
		m2 := r.b.begin(request("s2"))
		rep1, rep2 := m1.end(), m2.end()
		wantReport(t, rep1, committed, "", moved)
		wantReport(t, rep2, committed, "", moved)
		if rep1.GetBlocksMoved()+rep2.GetBlocksMoved() != 250 {
			t.Errorf("%d + %d blocks moved, want each once", rep1.GetBlocksMoved(), rep2.GetBlocksMoved())
		}
		if d := rep1.GetTotal().AsDuration(); d < 11*time.Second {
			t.Errorf("took %v, which shows nothing", d)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// What engines reserve and abort leaves nothing behind.
func TestAbort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		ctx := context.Background()
		keys := chain("s", 5)
		res, err := r.a.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.a.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: keys})
		if err != nil || !bytes.Equal(slotBytes(res), slotBytes(again)) {
			t.Errorf("a repeated reservation has other slots: %v", err)
		}
		var slots []*pb.SlotRef
		for _, x := range res.GetReservations() {
			slots = append(slots, x.GetSlot())
		}
		if _, err := r.a.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", Aborted: slots}); err != nil {
			t.Fatal(err)
		}
		if got := r.ea.lookup("", keys)[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("an aborted block is %v", got)
		}
		r.settle()
	})
}

func slotBytes(r *pb.ReserveBlocksResponse) []byte {
	var out []byte
	for _, x := range r.GetReservations() {
		out = append(out, x.GetSlot().String()...)
	}
	return out
}
