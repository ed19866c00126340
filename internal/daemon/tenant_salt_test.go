package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// saltRig is two nodes; at the first, tenants xeno and yves have written the same keys with bytes of their own, and published a session of
// the same name. Zoe has nothing.
type saltRig struct {
	*rig
	keys [][]byte
}

const (
	xeno = "xeno-7f3a"
	yves = "yves-19c2"
	zoe  = "zoe-55d0"
)

// contentOf is what a tenant's block holds: nobody else's has the same.
func (e *testEngine) contentOf(tenant string, key []byte) []byte {
	return e.content(append([]byte(tenant), key...))
}

// writeAs writes blocks of a tenant.
func (e *testEngine) writeAs(tenant string, keys [][]byte) {
	e.n.f.t.Helper()
	res, err := e.n.engine.ReserveBlocks(context.Background(), &pb.ReserveBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Fatal(err)
	}
	var slots []*pb.SlotRef
	for i, r := range res.GetReservations() {
		if r.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
			e.n.f.t.Fatalf("block %d of %s is %v before it was written", i, tenant, r.GetState())
		}
		if _, err := e.file.WriteAt(e.contentOf(tenant, keys[i]), int64(r.GetSlot().GetSlot())*e.reg.GetStrideBytes()); err != nil {
			e.n.f.t.Fatal(err)
		}
		slots = append(slots, r.GetSlot())
	}
	if _, err := e.n.engine.CommitBlocks(context.Background(), &pb.CommitBlocksRequest{EngineId: e.id, Slots: slots}); err != nil {
		e.n.f.t.Fatal(err)
	}
}

// holds compares the bytes behind slots with those of a tenant.
func (e *testEngine) holds(tenant string, keys [][]byte, slots []*pb.SlotRef) {
	e.n.f.t.Helper()
	if len(slots) != len(keys) {
		e.n.f.t.Errorf("%d slots for %d keys of %s", len(slots), len(keys), tenant)
		return
	}
	got := make([]byte, e.reg.GetBlockBytes())
	for i, s := range slots {
		if _, err := e.file.ReadAt(got, int64(s.GetSlot())*e.reg.GetStrideBytes()); err != nil {
			e.n.f.t.Fatal(err)
		}
		if !bytes.Equal(got, e.contentOf(tenant, keys[i])) {
			e.n.f.t.Errorf("block %d at %s is not that of %s", i, e.n.name, tenant)
		}
	}
}

// acquired leases blocks of a tenant, compares and releases them.
func (e *testEngine) acquired(tenant string, keys [][]byte) {
	e.n.f.t.Helper()
	acq, err := e.n.engine.AcquireBlocks(context.Background(), &pb.AcquireBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Errorf("acquire for %s at %s: %v", tenant, e.n.name, err)
		return
	}
	e.holds(tenant, keys, acq.GetSlots())
	if _, err := e.n.engine.ReleaseBlocks(context.Background(), &pb.ReleaseBlocksRequest{EngineId: e.id, LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
		e.n.f.t.Error(err)
	}
}

// states are those that LookupBlocks answers.
func (e *testEngine) states(tenant string, keys [][]byte) (out map[pb.BlockState]int) {
	e.n.f.t.Helper()
	resp, err := e.n.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Fatal(err)
	}
	out = map[pb.BlockState]int{}
	for _, b := range resp.GetBlocks() {
		out[b.GetState()]++
		if b.GetState() != pb.BlockState_BLOCK_STATE_LANDING && b.GetMigrationId() != "" {
			e.n.f.t.Errorf("a block of %s that is %v names migration %s", tenant, b.GetState(), b.GetMigrationId())
		}
	}
	return out
}

const (
	blockAbsent  = pb.BlockState_BLOCK_STATE_ABSENT
	blockPresent = pb.BlockState_BLOCK_STATE_PRESENT
	blockLanding = pb.BlockState_BLOCK_STATE_LANDING
)

// asks is a call of a certified peer at the first node.
func (r *saltRig) asks(req *pb.PeerRequest) (*pb.PeerResponse, error) {
	r.t.Helper()
	body, err := proto.Marshal(req)
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := r.a.d.answerPeer(context.Background(), transfer.Peer{ID: "b", Incarnation: r.b.d.Incarnation()}, body)
	if err != nil {
		if re, ok := errors.AsType[*transfer.RemoteError](err); ok {
			return nil, failureFromDetails(re)
		}
		return nil, err
	}
	resp := &pb.PeerResponse{}
	return resp, proto.Unmarshal(out, resp)
}

func (r *saltRig) refuses(err error, want Reason) {
	r.t.Helper()
	if f := classify(errOr(err)); f.Reason != want {
		r.t.Errorf("answered %v, want %s", err, want)
	}
}

func errOr(err error) error {
	if err == nil {
		return failf("NONE", "", "no error")
	}
	return err
}

// theirs is a migration of a tenant's session, by fetch.
func theirs(tenant string) *pb.MigrateRequest {
	q := request("s")
	q.Session.Tenant = tenant
	return q
}

func named(tenant string, keys [][]byte) *pb.MigrateRequest {
	q := request("")
	q.Session, q.Keys, q.SourceHint = &pb.SessionRef{Tenant: tenant}, keys, "a"
	return q
}

// Nothing of one tenant is found, matched, offered, read, moved, listed or counted as another's, by any call of any service and any call
// of a peer, though keys and session names are equal: the bytes tell whose block it was. The steps come in order.
func TestNoCrossTenantHit(t *testing.T) {
	steps := []struct {
		name   string
		covers string // calls, by name
		do     func(t *testing.T, r *saltRig)
	}{
		{"look up", "LookupBlocks", func(t *testing.T, r *saltRig) {
			for tenant, want := range map[string]pb.BlockState{xeno: blockPresent, yves: blockPresent, zoe: blockAbsent, "": blockAbsent} {
				if got := r.ea.states(tenant, r.keys); got[want] != len(r.keys) {
					t.Errorf("%q finds %v", tenant, got)
				}
			}
		}},
		{"reserve what another has", "ReserveBlocks ReleaseBlocks CommitBlocks", func(t *testing.T, r *saltRig) {
			for tenant, want := range map[string]pb.ReservationState{
				xeno: pb.ReservationState_RESERVATION_STATE_PRESENT, zoe: pb.ReservationState_RESERVATION_STATE_RESERVED,
			} {
				res, err := r.a.engine.ReserveBlocks(t.Context(), &pb.ReserveBlocksRequest{EngineId: "e", Tenant: tenant, Keys: r.keys})
				if err != nil {
					t.Fatal(err)
				}
				var slots []*pb.SlotRef
				for _, x := range res.GetReservations() {
					if x.GetState() != want {
						t.Errorf("%s gets %v, want %v", tenant, x.GetState(), want)
					}
					if x.GetSlot() != nil {
						slots = append(slots, x.GetSlot())
					}
				}
				if _, err := r.a.engine.ReleaseBlocks(t.Context(), &pb.ReleaseBlocksRequest{EngineId: "e", Aborted: slots}); err != nil {
					t.Error(err)
				}
			}
			if got := r.ea.states(zoe, r.keys); got[blockAbsent] != len(r.keys) {
				t.Errorf("zoe finds %v after giving up", got)
			}
		}},
		{"acquire", "AcquireBlocks", func(t *testing.T, r *saltRig) {
			r.ea.acquired(xeno, r.keys)
			r.ea.acquired(yves, r.keys)
			_, err := r.a.engine.AcquireBlocks(t.Context(), &pb.AcquireBlocksRequest{EngineId: "e", Tenant: zoe, Keys: r.keys})
			wantError(t, err, ReasonBlockNotFound)
			got, err := r.a.engine.AcquireBlocks(t.Context(), &pb.AcquireBlocksRequest{EngineId: "e", Tenant: zoe, Keys: r.keys, Prefix: true})
			if err != nil || len(got.GetSlots()) != 0 {
				t.Errorf("zoe's prefix is %v: %v", got, err)
			}
		}},
		{"publish", "PublishSession ListSessions", func(t *testing.T, r *saltRig) {
			for range 3 {
				r.ea.publish(xeno, "s", r.keys, 67)
			}
			for tenant, version := range map[string]uint64{xeno: 4, yves: 1} {
				resp, err := r.a.region.ListSessions(t.Context(), &pb.ListSessionsRequest{Tenant: tenant})
				if err != nil || len(resp.GetSessions()) != 1 {
					t.Fatalf("%s's sessions are %v: %v", tenant, resp, err)
				}
				if s := resp.GetSessions()[0]; s.GetSession().GetVersion() != version || s.GetSession().GetRef().GetTenant() != tenant || s.GetBlocksPresent() != 4 {
					t.Errorf("%s's session is %v", tenant, s)
				}
			}
			r.ea.publish(zoe, "only-zoes", r.keys, 67) // keys that she has no blocks of
			resp, err := r.a.region.ListSessions(t.Context(), &pb.ListSessionsRequest{Tenant: zoe})
			if err != nil || len(resp.GetSessions()) != 1 || resp.GetSessions()[0].GetBlocksPresent() != 0 {
				t.Errorf("zoe's sessions are %v: %v", resp, err)
			}
		}},
		{"a peer locates", "Locate", func(t *testing.T, r *saltRig) {
			for tenant, want := range map[string]bool{xeno: true, yves: true, zoe: false, "": false} {
				resp, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: &pb.SessionRef{Tenant: tenant, SessionId: "s"}}}})
				if err != nil || resp.GetLocate().GetKnown() != want {
					t.Errorf("session s of %q: %v, %v", tenant, resp, err)
				}
			}
		}},
		{"a peer asks for an offer", "Offer EndOffer Renew", func(t *testing.T, r *saltRig) {
			offer := func(tenant, session string, keys [][]byte, dry bool) (*pb.OfferAnswer, error) {
				resp, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{
					Session: &pb.SessionRef{Tenant: tenant, SessionId: session}, Keys: keys, DryRun: dry, MigrationId: "m",
				}}})
				return resp.GetOffer(), err
			}
			_, err := offer(zoe, "s", nil, false)
			r.refuses(err, ReasonSessionNotFound)
			for _, dry := range []bool{true, false} {
				if a, err := offer(zoe, "", r.keys, dry); err != nil || a.GetBlocksAvailable() != 0 || len(a.GetSlots()) != 0 {
					t.Errorf("zoe is offered %v: %v", a, err)
				}
				if a, err := offer(zoe, "only-zoes", nil, dry); err != nil || a.GetBlocksAvailable() != 0 || len(a.GetSlots()) != 0 {
					t.Errorf("zoe's session has %v: %v", a, err)
				}
			}
			for _, tenant := range []string{xeno, yves} {
				a, err := offer(tenant, "s", nil, false)
				if err != nil {
					t.Fatal(err)
				}
				r.ea.holds(tenant, r.keys, a.GetSlots())
				if a, err = offer(tenant, "", r.keys, false); err != nil {
					t.Fatal(err)
				}
				r.ea.holds(tenant, r.keys, a.GetSlots())
			}
		}},
		{"a peer reads and accuses another's slots by its own offer", "Accuse", func(t *testing.T, r *saltRig) {
			offer := func(tenant string) *pb.OfferAnswer {
				resp, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: &pb.SessionRef{Tenant: tenant}, Keys: r.keys}}})
				if err != nil {
					t.Fatal(err)
				}
				return resp.GetOffer()
			}
			mine, other := offer(xeno), offer(yves)
			e, err := r.a.d.engines.get("e")
			if err != nil {
				t.Fatal(err)
			}
			m := &arenaMemory{arena: e.arena, stride: uint64(e.layout.Stride()), page: uint64(e.layout.PageBytes()), offers: r.a.d.offers}
			read := func(id []byte, slot *pb.SlotRef) error {
				dst, sums := make([]byte, e.layout.PageBytes()), make([]uint32, 1)
				err := m.ReadPages(id, 0, transfer.Desc{Offset: uint64(slot.GetSlot()) * m.stride, Generation: slot.GetGeneration(), Pages: 1}, 0, dst, sums)
				if err == nil && !bytes.Equal(dst, r.ea.contentOf(xeno, r.keys[0])[:len(dst)]) {
					t.Error("a page of another's")
				}
				return err
			}
			if err := read(mine.GetOfferId(), mine.GetSlots()[0]); err != nil {
				t.Errorf("its own: %v", err)
			}
			if err := read(mine.GetOfferId(), other.GetSlots()[0]); !errors.Is(err, transfer.ErrStaleGeneration) {
				t.Errorf("another's: %v", err)
			}
			_, err = r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: mine.GetOfferId(), Slot: other.GetSlots()[0]}}})
			r.refuses(err, ReasonInvalid)
			for _, of := range []*pb.OfferAnswer{mine, other} {
				if _, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: of.GetOfferId()}}}); err != nil {
					t.Error(err)
				}
			}
		}},
		{"a peer takes another's session", "HandOver Yield Confirm", func(t *testing.T, r *saltRig) {
			zoes := &pb.SessionRef{Tenant: zoe, SessionId: "s"}
			_, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{Session: zoes, MigrationId: "m", Epoch: 1, Version: 1}}})
			r.refuses(err, ReasonSessionNotFound)
			_, err = r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{Session: zoes, Epoch: 9, RepinSeq: 9}}})
			r.refuses(err, ReasonSessionNotFound)
			for tenant, want := range map[string]bool{xeno: true, yves: true, zoe: false} {
				resp, err := r.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Confirm{Confirm: &pb.ConfirmCall{Session: &pb.SessionRef{Tenant: tenant, SessionId: "s"}, Epoch: 1}}})
				if err != nil || resp.GetConfirm().GetKnown() != want {
					t.Errorf("session s of %s: %v, %v", tenant, resp, err)
				}
			}
			for _, tenant := range []string{xeno, yves} {
				if s, err := r.a.d.sessions.Get(kvstore.Tenant(tenant), "s"); err != nil || s.Owner != "a" || s.Epoch != 1 {
					t.Errorf("%s's record is %+v: %v", tenant, s, err)
				}
			}
		}},
		{"plan and copy what one has not", "Plan Migrate GetPlan", func(t *testing.T, r *saltRig) {
			_, err := r.b.mig.Plan(t.Context(), &pb.PlanRequest{Migrate: theirs(zoe)})
			wantError(t, err, ReasonSessionNotFound)
			r.b.mustEnd(named(zoe, r.keys), failed, ReasonBlockNotFound, nobody)
			r.b.mustEnd(theirs(zoe), failed, ReasonSessionNotFound, unmoved)
			for _, tenant := range []string{xeno, yves, zoe} {
				if got := r.eb.states(tenant, r.keys); got[blockAbsent] != len(r.keys) {
					t.Errorf("%s finds %v at the destination", tenant, got)
				}
			}
		}},
		{"while one's blocks land", "Events", func(t *testing.T, r *saltRig) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			events, err := r.b.engine.Events(ctx, &pb.EventsRequest{EngineId: "e"})
			if err != nil {
				t.Fatal(err)
			}
			run := r.b.begin(theirs(yves))
			run.landed(1)
			if got := r.eb.states(yves, r.keys); got[blockLanding] == 0 {
				t.Errorf("yves finds %v", got)
			}
			for _, tenant := range []string{xeno, zoe} {
				if got := r.eb.states(tenant, r.keys); got[blockAbsent] != len(r.keys) {
					t.Errorf("%s finds %v while yves's land", tenant, got)
				}
			}
			wantReport(t, run.end(), committed, "", moved)
			for seen := 0; seen < len(r.keys); {
				ev, err := events.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if l := ev.GetLanded(); l != nil {
					if l.GetTenant() != yves {
						t.Errorf("blocks of %s landed", l.GetTenant())
					}
					r.eb.holds(yves, l.GetKeys(), l.GetSlots())
					seen += len(l.GetKeys())
				}
			}
			r.eb.acquired(yves, r.keys)
		}},
		{"the diff of a migration", "", func(t *testing.T, r *saltRig) {
			rep := r.b.mustEnd(theirs(xeno), committed, "", moved)
			if rep.GetBlocksMoved() != 4 || rep.GetBlocksPresent() != 0 {
				t.Errorf("yves's blocks count for xeno's: %v", rep)
			}
			r.eb.acquired(xeno, r.keys)
			r.eb.acquired(yves, r.keys)
			if rep := r.b.mustEnd(named(xeno, r.keys), committed, "", nobody); rep.GetBlocksMoved() != 0 {
				t.Errorf("xeno's own do not: %v", rep)
			}
		}},
		{"lists", "ListMigrations ListPlans", func(t *testing.T, r *saltRig) {
			for tenant, want := range map[string]int{xeno: 2, yves: 1, zoe: 2} {
				list, err := r.b.mig.ListMigrations(t.Context(), &pb.ListMigrationsRequest{Tenant: tenant})
				if err != nil || len(list.GetMigrations()) != want {
					t.Errorf("%s has %d migrations, want %d: %v", tenant, len(list.GetMigrations()), want, err)
				}
				for _, m := range list.GetMigrations() {
					if m.GetSession().GetTenant() != tenant {
						t.Errorf("%s is shown %v", tenant, m.GetSession())
					}
				}
				plans, err := r.b.mig.ListPlans(t.Context(), &pb.ListPlansRequest{Tenant: tenant})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range plans.GetPlans() {
					if p.GetSession().GetTenant() != tenant {
						t.Errorf("%s is shown the plan of %v", tenant, p.GetSession())
					}
				}
			}
		}},
		{"one's blocks are dropped", "", func(t *testing.T, r *saltRig) {
			e, err := r.b.d.engines.get("e")
			if err != nil {
				t.Fatal(err)
			}
			st, ref := e.arena.Lookup(xeno, kvstore.BlockKey(r.keys[0]))
			if st != kvstore.BlockPresent {
				t.Fatalf("xeno's block is %v", st)
			}
			if err := e.arena.DropBlock(ref); err != nil {
				t.Fatal(err)
			}
			if got := r.eb.states(xeno, r.keys); got[blockAbsent] != 1 {
				t.Errorf("xeno finds %v", got)
			}
			r.eb.acquired(yves, r.keys)
		}},
		{"one fills the arena", "", func(t *testing.T, r *saltRig) {
			for i := range 4 { // more than it holds: whatever is evicted, nobody gets another's
				r.eb.writeAs(zoe, chain(fmt.Sprintf("fill%d", i), 150))
			}
			for _, tenant := range []string{xeno, yves} {
				for _, k := range r.keys {
					if r.eb.states(tenant, [][]byte{k})[blockPresent] == 1 {
						r.eb.acquired(tenant, [][]byte{k})
					}
				}
			}
		}},
		{"metrics", "", func(t *testing.T, r *saltRig) {
			for _, n := range []*node{r.a, r.b} {
				families, err := n.d.registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				var text bytes.Buffer
				for _, f := range families {
					if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
						t.Fatal(err)
					}
				}
				for _, tenant := range []string{xeno, yves, zoe} {
					if strings.Contains(text.String(), tenant) {
						t.Errorf("%s names %s", n.name, tenant)
					}
				}
			}
		}},
		{"another salt policy", "RegisterEngine", func(t *testing.T, r *saltRig) {
			salted := testLayout()
			salted.SaltPolicy = "cache_salt"
			r.b.register("salted", salted, 1<<20)
			q := theirs(yves)
			q.EngineId = "salted"
			if rep := r.a.mustEnd(theirs(yves), committed, "", moved); rep.GetBlocksTotal() != 4 { // back first
				t.Errorf("report %v", rep)
			}
			rep := r.b.mustEnd(q, failed, ReasonLayoutMismatch, unmoved)
			if !strings.Contains(rep.GetMessage(), "SaltPolicy") {
				t.Errorf("the refusal does not name the salt policy: %s", rep.GetMessage())
			}
		}},
	}
	// Every call is in a step, or has neither a tenant's keys nor a tenant's name to go by.
	covered := map[string]bool{}
	for _, s := range steps {
		for call := range strings.FieldsSeq(s.covers) {
			covered[call] = true
		}
	}
	for call := range strings.FieldsSeq("UnregisterEngine GetMigration ClaimPrefill CancelMigration Evaluate Status ListLinks") {
		covered[call] = true // an engine, an id that is random or the caller's own, or nothing
	}
	var missing []string
	for _, file := range []protoreflect.FileDescriptor{pb.File_kvferry_v1_engine_proto, pb.File_kvferry_v1_migration_proto, pb.File_kvferry_v1_planner_proto, pb.File_kvferry_v1_region_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if name := string(methods.Get(j).Name()); !covered[name] {
					missing = append(missing, name)
				}
			}
		}
	}
	calls := (&pb.PeerRequest{}).ProtoReflect().Descriptor().Fields()
	for i := range calls.Len() {
		if name := strings.TrimSuffix(string(calls.Get(i).Message().Name()), "Call"); !covered[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no step for %v, of %v", missing, slices.Sorted(maps.Keys(covered)))
	}
	bubble(t, func(t *testing.T) {
		r := &saltRig{rig: newRig(t, slow, nil), keys: chain("same", 4)}
		for _, tenant := range []string{xeno, yves} {
			r.ea.writeAs(tenant, r.keys)
			r.ea.publish(tenant, "s", r.keys, 67)
		}
		for _, s := range steps {
			before := t.Failed()
			s.do(t, r)
			if t.Failed() && !before {
				t.Errorf("it was step %q", s.name)
			}
		}
		time.Sleep(2 * r.a.d.cfg.Migration.LeaseTTL) // offers of the steps that took some expire
		r.settle()
	})
}
