package daemon

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// front is an engine that prefills the blocks it is granted, each in so long, and passes over those that are here.
type front struct {
	t     *testing.T
	e     *testEngine
	keys  [][]byte
	block time.Duration
	want  uint32 // blocks a claim
	stop  int    // stops for good at this block; 0: does not
	says  bool   // that it does

	mu       sync.Mutex
	computed map[int]bool
	took     time.Duration // until every block was there
	done     chan struct{}
}

// prefilled is what a front's block holds: not what the source has, so that it shows who made it.
func prefilled(e *testEngine, key []byte) []byte {
	b := e.content(key)
	for i := range b {
		b[i] ^= 0x5a
	}
	return b
}

func (e *testEngine) front(block time.Duration, keys [][]byte) *front {
	return &front{t: e.n.f.t, e: e, keys: keys, block: block, want: 8, computed: map[int]bool{}, done: make(chan struct{})}
}

// start has it work for a migration.
func (f *front) start(id string) {
	go func() {
		defer close(f.done)
		began := time.Now()
		f.run(id)
		f.took = time.Since(began)
	}()
}

func (f *front) run(id string) {
	ctx, n := context.Background(), f.e.n
	for at := 0; at < len(f.keys); {
		if f.stop > 0 && at >= f.stop {
			if f.says {
				got, err := n.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: id, ComputedBlocks: uint32(at), GivesUp: true})
				if err != nil || !got.GetStop() || int(got.GetGrantedUntil()) != at {
					f.t.Errorf("giving up at %d: %v, %v", at, got, err)
				}
			}
			return
		}
		if f.here(at) {
			at++
			continue
		}
		got, err := n.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: id, ComputedBlocks: uint32(at), WantBlocks: f.want})
		if err != nil {
			f.t.Errorf("claim: %v", err)
			return
		}
		if int(got.GetGrantedUntil()) <= at {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		for at < min(int(got.GetGrantedUntil()), len(f.keys)) && (f.stop == 0 || at < f.stop) {
			if !f.here(at) {
				time.Sleep(f.block)
				f.compute(at)
			}
			at++
		}
	}
}

func (f *front) here(i int) bool {
	look, err := f.e.n.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: f.e.id, Keys: f.keys[i : i+1]})
	if err != nil {
		f.t.Errorf("look up: %v", err)
		return false
	}
	return look.GetBlocks()[0].GetState() == pb.BlockState_BLOCK_STATE_PRESENT
}

// compute writes block i, unless somebody else is at it.
func (f *front) compute(i int) {
	ctx, n := context.Background(), f.e.n
	res, err := n.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: f.e.id, Keys: f.keys[i : i+1]})
	if err != nil {
		f.t.Errorf("reserve: %v", err)
		return
	}
	r := res.GetReservations()[0]
	if r.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
		f.t.Errorf("block %d was granted and is %v", i, r.GetState())
		return
	}
	if _, err := f.e.file.WriteAt(prefilled(f.e, f.keys[i]), int64(r.GetSlot().GetSlot())*f.e.reg.GetStrideBytes()); err != nil {
		f.t.Error(err)
	}
	if _, err := n.engine.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: f.e.id, Slots: []*pb.SlotRef{r.GetSlot()}}); err != nil {
		f.t.Errorf("commit: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.computed[i] = true
}

// check holds every block to the front's bytes, or to the source's, by who should have made it, and counts the former.
func (f *front) check() (computed int) {
	f.t.Helper()
	ctx, n := context.Background(), f.e.n
	acq, err := n.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: f.e.id, Keys: f.keys})
	if err != nil {
		f.t.Fatalf("acquire: %v", err)
	}
	got := make([]byte, f.e.reg.GetBlockBytes())
	for i, s := range acq.GetSlots() {
		if _, err := f.e.file.ReadAt(got, int64(s.GetSlot())*f.e.reg.GetStrideBytes()); err != nil {
			f.t.Fatal(err)
		}
		want := f.e.content(f.keys[i])
		if f.computed[i] {
			want = prefilled(f.e, f.keys[i])
			computed++
		}
		if !bytes.Equal(got, want) {
			f.t.Fatalf("block %d, prefilled here: %v, has other bytes", i, f.computed[i])
		}
	}
	if _, err := n.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: f.e.id, LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
		f.t.Fatal(err)
	}
	return computed
}

func hybridRequest(session string) *pb.MigrateRequest {
	q := request(session)
	q.Mode = pb.Mode_MODE_HYBRID
	return q
}

// id is the migration's, once it has one.
func (r *running) id() string {
	r.n.f.t.Helper()
	for range 1000 {
		if m, err := r.n.d.migrations.find("", r.req.GetRequestId()); err == nil {
			snap, _ := m.snapshot()
			return snap.GetMigrationId()
		}
		time.Sleep(time.Millisecond)
	}
	r.n.f.t.Fatal("no migration")
	return ""
}

// Both at once take the time that the rates' sum gives, wherever the two meet: no block is both prefilled and kept from the source, and
// what is fetched twice is bounded.
func TestHybridMeets(t *testing.T) {
	const blocks = 200
	perBlock := time.Duration(8192 * 8 / (slow.Rate * 0.94) * 1e9) // the link's, headers counted
	for name, factor := range map[string]float64{"even": 1, "fast front": 0.25, "slow front": 4, "idle link": 0.02} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				r.ea.session("warm", 300)
				r.b.mustEnd(request("warm"), committed, "", moved)
				keys := r.ea.session("s", blocks)
				f := r.eb.front(time.Duration(factor*float64(perBlock)), keys)
				run := r.b.begin(hybridRequest("s"))
				f.start(run.id())
				rep := run.end()
				<-f.done
				wantReport(t, rep, committed, "", moved)
				computed := f.check()
				tc, tf := float64(f.block)*blocks/1e9, float64(perBlock)*blocks/1e9
				ideal := tc * tf / (tc + tf)
				t.Logf("prefill alone %.2f s, fetch alone %.2f s, both ideally %.2f s: took %.2f s, the front %.2f s; %d prefilled, %d moved, %d bytes twice",
					tc, tf, ideal, rep.GetTotal().AsDuration().Seconds(), f.took.Seconds(), computed, rep.GetBlocksMoved(), rep.GetDuplicateBytes())
				if got := rep.GetTotal().AsDuration().Seconds(); got > 1.05*ideal+0.3 {
					t.Errorf("took %.2f s, ideally %.2f s", got, ideal)
				}
				if rep.GetMode() != pb.Mode_MODE_HYBRID || rep.GetBlocksUsable() != blocks || rep.GetBlocksPresent()+rep.GetBlocksMoved()+rep.GetBlocksComputed() != blocks || rep.GetBlocksMoved()+int64(computed) != blocks {
					t.Errorf("report %v, %d prefilled", rep, computed)
				}
				// Two bandwidth-delay products are 5 KB here, less than a block: there are at least two in flight, and another is on its way.
				if rep.GetDuplicateBytes() > 3*8192 {
					t.Errorf("%d bytes were fetched and prefilled", rep.GetDuplicateBytes())
				}
				r.wantOwner("s", "b")
				r.settle()
			})
		})
	}
}

// A hybrid that nobody claims from is a fetch.
func TestHybridWithoutFront(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 300)
		rep := r.b.mustEnd(hybridRequest("s"), committed, "", moved)
		if rep.GetBlocksMoved() != 300 || rep.GetBlocksComputed() != 0 || rep.GetDuplicateBytes() != 0 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		r.settle()
	})
}

// The link dies under a hybrid: the front has everything after the time that prefill alone takes.
func TestHybridLinkDies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 200)
		f := r.eb.front(60*time.Millisecond, keys)
		run := r.b.begin(hybridRequest("s"))
		f.start(run.id())
		run.landed(20 * 8192)
		r.cut()
		rep := run.end()
		// The front is done before the link is given up, so that the hand-over was asked for.
		wantReport(t, rep, recompute, ReasonPeerUnreachable, unknown)
		<-f.done
		computed := f.check()
		t.Logf("the front took %v, prefill alone takes %v; %d prefilled", f.took, 200*f.block, computed)
		if f.took > 200*f.block+time.Second {
			t.Errorf("the front took %v, prefill alone takes %v", f.took, 200*f.block)
		}
		if computed < 150 || computed > 195 {
			t.Errorf("%d of 200 blocks prefilled", computed)
		}
		r.heal()
		r.settleCut()
	})
}

// A front that stops, granted blocks and all, is not waited for: the link brings the rest.
// One that says so gives its grant back at once: the whole takes as long as the link does, but for one run in fifty, which takes longer by
// a lost packet's time.
func TestHybridFrontStops(t *testing.T) {
	link := 110 * 8192 * 8 * time.Second / 1e6
	limit := link + link/4 + 1300*time.Millisecond
	stops := func(says bool) (took time.Duration) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, slow, nil)
			keys := r.ea.session("s", 120)
			f := r.eb.front(60*time.Millisecond, keys)
			f.stop, f.says = 10, says
			run := r.b.begin(hybridRequest("s"))
			f.start(run.id())
			rep := run.end()
			<-f.done
			wantReport(t, rep, committed, "", moved)
			if n := f.check(); n != 10 || rep.GetBlocksMoved() != 110 || rep.GetBlocksUsable() != 120 {
				t.Errorf("%d prefilled, report %v", n, rep)
			}
			took = rep.GetTotal().AsDuration()
			r.settle()
		})
		return took
	}
	if took := stops(false); took < limit {
		t.Errorf("a front that does not say so took %v, the link alone %v", took, link)
	}
	var said []time.Duration
	for len(said) < 5 {
		took := stops(true)
		if said = append(said, took); took < limit {
			t.Logf("%v", said)
			return
		}
	}
	t.Errorf("a front that says so took %v, the link alone %v", said, link)
}

// An arena that is smaller than the session takes what fits, from both ends, and the session moves with it. Who takes the room away
// meanwhile leaves the prefix.
func TestHybridKeepsWhatFits(t *testing.T) {
	for name, taken := range map[string]int{"small": 0, "taken meanwhile": 20} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFleet(t, slow, "a", "b")
				ea, eb := f.nodes["a"].register("e", testLayout(), 4<<20), f.nodes["b"].register("e", testLayout(), 60*8192)
				keys := ea.session("s", 100)
				front := eb.front(60*time.Millisecond, keys[:40])
				run := f.nodes["b"].begin(hybridRequest("s"))
				front.start(run.id())
				if taken > 0 {
					run.landed(8192)
					if _, err := f.nodes["b"].engine.ReserveBlocks(context.Background(), &pb.ReserveBlocksRequest{EngineId: "e", Keys: chain("other", taken)}); err != nil {
						t.Fatal(err)
					}
				}
				rep := run.end()
				<-front.done
				wantReport(t, rep, recompute, ReasonArenaFull, moved)
				n := int(rep.GetBlocksUsable())
				if taken == 0 && n != 60 || n == 0 || rep.GetTailTokens() != 100*16+3-int64(n)*16 {
					t.Errorf("%d blocks usable, %v", n, rep)
				}
				f.wantOwner("s", "b")
				if got := f.nodes["b"].idle(); got.LeasedBlocks != 0 || int(got.Reserved) != taken {
					t.Errorf("the destination holds %+v", got)
				}
			})
		})
	}
}

// A front that gives up before the plan, or after the end, changes nothing that it should not, and another one goes on.
func TestHybridGivesUpEarlyAndLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 60)
		run := r.b.begin(hybridRequest("s"))
		id := run.id()
		giveUp := func(at, want uint32) (*pb.ClaimPrefillResponse, error) {
			return r.b.mig.ClaimPrefill(context.Background(), &pb.ClaimPrefillRequest{MigrationId: id, ComputedBlocks: at, WantBlocks: want, GivesUp: true})
		}
		if _, err := giveUp(0, 1); err == nil {
			t.Error("gives_up with want_blocks is taken")
		} else {
			wantError(t, err, ReasonInvalid)
		}
		if got, err := giveUp(0, 0); err != nil || got.GetGrantedUntil() != 0 || !got.GetStop() {
			t.Errorf("before the plan: %v, %v", got, err)
		}
		f := r.eb.front(60*time.Millisecond, keys)
		f.start(id)
		rep := run.end()
		<-f.done
		wantReport(t, rep, committed, "", moved)
		if n := f.check(); n < 20 {
			t.Errorf("%d blocks prefilled by the second front", n)
		}
		if got, err := giveUp(7, 0); err != nil || got.GetGrantedUntil() != 7 || !got.GetEnded() {
			t.Errorf("after the end: %v, %v", got, err)
		}
		r.settle()
	})
}

// A cancel, or the deadline, leaves nothing behind at either end, whenever it comes.
func TestHybridCancelled(t *testing.T) {
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, slow, nil)
			keys := r.ea.session("s", 150)
			f := r.eb.front(60*time.Millisecond, keys)
			run := r.b.begin(hybridRequest("s"))
			id := run.id()
			f.start(id)
			time.Sleep(after)
			if _, err := r.b.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{MigrationId: id}); err != nil {
				t.Fatal(err)
			}
			wantReport(t, run.end(), cancelled, ReasonCancelled, unmoved)
			<-f.done // it prefills the rest
			f.check()
			r.wantOwner("s", "a")
			r.settle()
		})
	}
}

// A destination that holds part of the prefix, and parts of the rest, fetches and prefills only what is missing.
func TestHybridPartlyHere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 150)
		r.eb.write("", keys[:40])
		r.eb.write("", keys[70:75])
		r.eb.write("", keys[149:])
		f := r.eb.front(60*time.Millisecond, keys)
		run := r.b.begin(hybridRequest("s"))
		f.start(run.id())
		rep := run.end()
		<-f.done
		wantReport(t, rep, committed, "", moved)
		computed := f.check()
		// What was prefilled before the plan counts as here.
		if n := rep.GetBlocksPresent(); n < 46 || n > 56 || n+rep.GetBlocksMoved()+rep.GetBlocksComputed() != 150 || rep.GetBlocksMoved()+int64(computed) != 104 || computed < 30 {
			t.Errorf("%d prefilled, report %v", computed, rep)
		}
		r.settle()
	})
}

// A session that grows while it moves: the delta is fetched, and the session is whole.
func TestHybridGrows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := chain("s", 140)
		r.ea.write("", keys[:120])
		r.ea.publish("", "s", keys[:120], 120*16+3)
		f := r.eb.front(60*time.Millisecond, keys[:120])
		run := r.b.begin(hybridRequest("s"))
		f.start(run.id())
		run.landed(20 * 8192)
		r.ea.write("", keys[120:])
		r.ea.publish("", "s", keys, 140*16+3)
		rep := run.end()
		<-f.done
		wantReport(t, rep, committed, "", moved)
		f.keys = keys
		if computed := f.check(); rep.GetBlocksTotal() != 140 || rep.GetBlocksMoved()+int64(computed) != 140 || rep.GetStaleTailTokens() != 0 {
			t.Errorf("%d prefilled, report %v", computed, rep)
		}
		r.settle()
	})
}

// Random speeds, delays, sizes of claims and cuts: whatever happens there is one end, the front gets every block, and each block is
// what the one who made it wrote.
func TestHybridAtRandom(t *testing.T) {
	for seed := range uint64(thinned(12, 6)) {
		bubble(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 8))
			model := wan.Model{RTT: time.Duration(1+rng.IntN(150)) * time.Millisecond, Rate: 1e6 * math.Pow(100, rng.Float64()), Loss: rng.Float64() * 0.01, Seed: seed + 1}
			r := newRig(t, model, nil)
			keys := r.ea.session("s", 1+rng.IntN(300))
			f := r.eb.front(time.Duration(rng.IntN(60))*time.Millisecond, keys)
			f.want = uint32(1 + rng.IntN(40))
			run := r.b.begin(hybridRequest("s"))
			id := run.id()
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			f.start(id)
			if rng.IntN(3) == 0 {
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
				r.cut()
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
				r.heal()
			}
			rep := run.end()
			<-f.done
			computed := f.check()
			t.Logf("seed %d, %v, %d blocks, %v a block: %v in %v, the front %v; %d prefilled, %d moved, %d bytes twice",
				seed, model, len(keys), f.block, rep.GetState(), rep.GetTotal().AsDuration(), f.took, computed, rep.GetBlocksMoved(), rep.GetDuplicateBytes())
			if rep.GetState() == committed && rep.GetBlocksUsable() != int64(len(keys)) {
				t.Errorf("report %v", rep)
			}
			if bound := time.Duration(len(keys))*f.block + 3*time.Second + 2*model.RTT; f.took > bound {
				t.Errorf("the front took %v, prefill alone takes %v", f.took, time.Duration(len(keys))*f.block)
			}
			r.settle()
		})
	}
}

// The planner chooses hybrid for an engine that claims, on a link that nobody has measured and where it is the fastest on one that was; never
// for one that does not claim, or together with an order that it can't keep.
func TestPlannerChoosesHybrid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, slow, func(_ string, c *Config, _ *Parts) { c.Peers[0].PriorBps = slow.Rate }, "a", "b")
		r := &rig{fleet: f, a: f.nodes["a"], b: f.nodes["b"]}
		ctx, per := context.Background(), 60*time.Millisecond
		r.ea, r.eb = r.a.register("e", testLayout(), 8<<20), r.b.register("e", testLayout(), 8<<20)
		claims := func(on bool) {
			t.Helper()
			if _, err := r.b.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{
				EngineId: "e", Layout: testLayout(), ArenaBytes: 8 << 20, WriteThrough: true, ClaimsPrefill: on,
				Prefill: &pb.PrefillSpeed{SecondsPerToken: per.Seconds() / 16},
			}); err != nil {
				t.Fatal(err)
			}
		}
		plan := func(edit func(*pb.MigrateRequest)) *pb.Plan {
			t.Helper()
			q := auto("s")
			edit(q)
			resp, err := r.b.mig.Plan(ctx, &pb.PlanRequest{Migrate: q})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetPlan()
		}
		asIs := func(*pb.MigrateRequest) {}
		keys := r.ea.session("s", 200)
		claims(false)
		if p := plan(asIs); p.GetWinner() == pb.Mode_MODE_HYBRID {
			t.Errorf("an engine that does not claim: %v", p.GetReason())
		}
		claims(true)
		if p := plan(asIs); p.GetWinner() != pb.Mode_MODE_HYBRID || len(p.GetFlips()) == 0 {
			t.Errorf("a link that was not measured: %v", p)
		}
		if p := plan(func(q *pb.MigrateRequest) { q.Order, q.LandedLayers = pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR, 1 }); p.GetWinner() == pb.Mode_MODE_HYBRID {
			t.Errorf("groups of layers: %v", p.GetReason())
		}
		r.ea.session("warm", 300)
		r.b.mustEnd(request("warm"), committed, "", moved)
		front := r.eb.front(per, keys)
		run := r.b.begin(auto("s"))
		front.start(run.id())
		rep := run.end()
		<-front.done
		wantReport(t, rep, committed, "", moved)
		took := rep.GetTotal().AsDuration().Seconds()
		t.Logf("predicted %.2f s, took %.2f s, %d prefilled, %d moved", rep.GetPredictedSeconds(), took, rep.GetBlocksComputed(), rep.GetBlocksMoved())
		if rep.GetMode() != pb.Mode_MODE_HYBRID || math.Abs(rep.GetPredictedSeconds()/took-1) > 0.1 {
			t.Errorf("report %v", rep)
		}
		front.check()
		r.settle()
	})
}

// Claims that can't be answered are refused by name, and change nothing.
func TestClaimsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		r.ea.session("s", 100)
		run := r.b.begin(hybridRequest("s"))
		id, ctx := run.id(), context.Background()
		for name, q := range map[string]*pb.ClaimPrefillRequest{
			"want_blocks":     {MigrationId: id},
			"computed_blocks": {MigrationId: id, ComputedBlocks: 1<<20 + 1, WantBlocks: 1},
		} {
			_, err := r.b.mig.ClaimPrefill(ctx, q)
			if f := wantError(t, err, ReasonInvalid); len(f.Fields) != 1 || f.Fields[0].Field != name {
				t.Errorf("%s: %+v", name, f.Fields)
			}
		}
		_, err := r.b.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: "none", WantBlocks: 1})
		wantError(t, err, ReasonMigrationNotFound)
		wantReport(t, run.end(), committed, "", moved)
		// Of one that has ended everything is the caller's.
		got, err := r.b.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: id, ComputedBlocks: 7, WantBlocks: 5})
		if err != nil || !got.GetEnded() || !got.GetStop() || got.GetGrantedUntil() != 12 {
			t.Errorf("a claim after the end: %v, %v", got, err)
		}
		// A fetch grants nothing, from the beginning on.
		fetch := request("s2")
		r.ea.session("s2", 100)
		run = r.b.begin(fetch)
		if got, err := r.b.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: run.id(), WantBlocks: 5}); err != nil || got.GetGrantedUntil() != 0 || !got.GetStop() {
			t.Errorf("a claim on a fetch: %v, %v", got, err)
		}
		run.end()
		q := hybridRequest("s2")
		q.Order, q.LandedLayers = pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR, 1
		_, _, err = r.b.migrate(q)
		wantError(t, err, ReasonInvalid)
		r.settle()
	})
}
