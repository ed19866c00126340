package daemon

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// What a ticket says goes before it, case by case, in blocks.
func TestTicketsByClassTenantAndLink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) {
			c.Tenants = map[string]TenantConfig{"heavy": {Weight: 3}}
		}, "a")
		te := f.nodes["a"].register("e", testLayout(), 8<<20)
		keys := map[string][][]byte{}
		for _, tenant := range []string{"", "heavy", "light"} {
			keys[tenant] = chain("s"+tenant, 200)
			te.write(tenant, keys[tenant])
		}
		e, err := f.nodes["a"].d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		o := f.nodes["a"].d.offers
		now := time.Now()
		draw := func(peer, tenant string, class transfer.Class, deadline time.Duration, blocks int, want int64) {
			t.Helper()
			u := urgency{class: class}
			if deadline > 0 {
				u.deadline = now.Add(deadline)
			}
			s := kvstore.Session{Tenant: kvstore.Tenant(tenant), Keys: keysOf(keys[tenant][:blocks])}
			if got := o.price(transfer.PeerID(peer), u, s, int64(blocks)*8192); got != want*8192 {
				t.Errorf("%s %q %v %v, %d blocks: priced behind %v blocks, want %d", peer, tenant, class, deadline, blocks, float64(got)/8192, want)
			}
			if _, before, err := o.make(e, transfer.Peer{ID: transfer.PeerID(peer)}, "m", u, s); err != nil || before != want*8192 {
				t.Errorf("%s %q %v %v, %d blocks: behind %v blocks, want %d: %v", peer, tenant, class, deadline, blocks, float64(before)/8192, want, err)
			}
		}
		draw("b", "", transfer.Background, 0, 40, 0)
		draw("b", "", transfer.Interactive, 0, 20, 0)                // a higher class
		draw("b", "", transfer.Background, 0, 60, 20+40)             // the higher class and less than itself
		draw("b", "", transfer.Background, time.Minute, 100, 20)     // a deadline before none
		draw("b", "", transfer.Background, time.Hour, 10, 20+100)    // a later deadline
		draw("b", "heavy", transfer.Interactive, 0, 90, 20)          // all that the other one has: its third would be 30
		draw("b", "light", transfer.Interactive, 0, 10, 10+30)       // as much of its equal, three times of the heavy one
		draw("b", "light", transfer.Replication, 0, 5, 20+90+10+210) // every higher class
		draw("c", "", transfer.Interactive, 0, 7, 7)                 // another link takes as much
		draw("c", "", transfer.Interactive, 0, 200, 7+207)
	})
}

// served waits until the source has counted the wait of n transfers of a class, and returns their sum in seconds.
func (n *node) waitSum(class string) float64 {
	return n.samples()[fmt.Sprintf(`kvferry_egress_wait_seconds_sum{class=%q}`, class)]
}

// The wait that a ticket predicts is the wait that is measured at the source, and classes, tenants and rates reach it from
// the API.
func TestPredictedWait(t *testing.T) {
	const rate = 400_000 // page bytes a second, less than the link has: the link's cap makes time exact
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(_ string, c *Config, _ *Parts) { c.Link.MaxRate = rate })
		sessions := map[string]int{"long": 150, "short": 50, "big": 200}
		for s, n := range sessions {
			r.ea.session(s, n)
		}
		begin := func(s string, class pb.TransferClass) *running {
			req := request(s)
			req.Class, req.Deadline = class, nil
			return r.b.begin(req)
		}
		long := begin("long", pb.TransferClass_TRANSFER_CLASS_BACKGROUND)
		long.landed(30 * 8192)
		short := begin("short", pb.TransferClass_TRANSFER_CLASS_INTERACTIVE)
		short.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
		big := begin("big", pb.TransferClass_TRANSFER_CLASS_BACKGROUND)
		big.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
		if got := r.b.backlogSeen(short.req.GetRequestId()); got != 0 {
			t.Errorf("an interactive migration is told of %d bytes before it", got)
		}
		ticket := r.b.backlogSeen(big.req.GetRequestId())
		time.Sleep(1500 * time.Millisecond)
		m, err := r.b.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{RequestId: big.req.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		if p := m.GetMigration().GetProgress(); !p.GetWaits() || p.GetTransfersAhead() < 1 || p.GetBytesAhead() <= 0 || p.GetBytesAhead() > ticket {
			t.Errorf("progress of a migration that waits: %v, its ticket was behind %d bytes", p, ticket)
		}
		for _, x := range []*running{long, short, big} {
			wantReport(t, x.end(), committed, "", moved)
		}
		predicted, measured := float64(ticket)/rate, r.a.waitSum("background")
		t.Logf("behind %d bytes: predicted %.3f s, measured %.3f s", ticket, predicted, measured)
		// Round trips pass between the ticket and the wait, and a chunk of 128 KiB (0.33 s) of each that goes before is with the
		// connections or not yet off their tickets.
		if d := math.Abs(predicted - measured); d > 0.4 || predicted < 2 {
			t.Errorf("predicted wait %.3f s, measured %.3f s", predicted, measured)
		}
		if got := r.a.waitSum("interactive"); got > 0.1 {
			t.Errorf("the interactive migration waited %.3f s", got)
		}
		got := r.a.samples()
		wantSamples(t, got, map[string]float64{
			`kvferry_egress_class_bytes_total{class="interactive",tenant="other"}`: 50 * 8192, `kvferry_egress_class_bytes_total{class="background",tenant="other"}`: 350 * 8192,
			`kvferry_egress_wait_seconds_count{class="background"}`: 2, `kvferry_egress_wait_seconds_count{class="interactive"}`: 1,
		})
		r.settle()
	})
}

// A plan knows the rate that the source's configuration leaves a tenant, though the link could do more.
func TestPlanKnowsTheSourcesRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, c *Config, _ *Parts) {
			c.Arena.Bytes = 8 << 20
			if name == "a" {
				c.Link.MaxRate = 2_000_000
				c.Tenants = map[string]TenantConfig{"capped": {MaxRate: 100_000}, "free": {MaxRate: 5_000_000}}
			}
		})
		r.ea.session("s", 100)
		r.b.mustEnd(request("s"), committed, "", moved) // so that the link is measured
		for _, tc := range []struct {
			tenant string
			rate   float64
		}{{"capped", 100_000}, {"free", 2_000_000}, {"unlisted", 2_000_000}} {
			keys := chain("k"+tc.tenant, 50)
			r.ea.write(tc.tenant, keys)
			r.ea.publish(tc.tenant, "k", keys, 50*16+1)
			req := request("k")
			req.Session.Tenant = tc.tenant
			dry, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: req})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range dry.GetPlan().GetModes() {
				if m.GetMode() != pb.Mode_MODE_FETCH {
					continue
				}
				want := 50 * 8192 / tc.rate
				if got := m.GetSeconds(); got < want || got > want+0.2 {
					t.Errorf("%s: a fetch is priced at %.3f s, want %.3f and round trips: %v", tc.tenant, got, want, m)
				}
			}
			if !strings.Contains(dry.GetPlan().GetLinkSource(), "max_rate") {
				t.Errorf("%s: the plan says of the link %q", tc.tenant, dry.GetPlan().GetLinkSource())
			}
		}
		r.settle()
	})
}

// Tenants' weights and rates come from the source's configuration, whatever the puller says.
func TestTenantsAtTheSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, c *Config, _ *Parts) {
			c.Arena.Bytes = 16 << 20
			if name == "a" {
				c.Link.MaxRate = 2_000_000
				c.Tenants = map[string]TenantConfig{"heavy": {Weight: 3}, "capped": {MaxRate: 100_000}}
			}
		})
		begin := func(tenant string, blocks int) *running {
			keys := chain("s"+tenant, blocks)
			r.ea.write(tenant, keys)
			r.ea.publish(tenant, "s", keys, int64(blocks)*16+1)
			req := request("s")
			req.Session.Tenant = tenant
			return r.b.begin(req)
		}
		capped := begin("capped", 20)
		light, heavy := begin("light", 100), begin("heavy", 100)
		done := map[string]time.Duration{}
		for name, m := range map[string]*running{"heavy": heavy, "light": light, "capped": capped} {
			done[name] = m.end().GetTotal().AsDuration()
		}
		// 800 kB each at 2 MB/s: the heavy one has three quarters of what the capped one leaves.
		if h, l := done["heavy"].Seconds(), done["light"].Seconds(); h < .45 || h > .8 || l < .75 || l > 1.1 {
			t.Errorf("the heavy tenant took %.2f s, the light one %.2f s", h, l)
		}
		// 160 kB at 100 kB/s, the last chunk not waited for.
		if c := done["capped"].Seconds(); c < .9 || c > 1.9 {
			t.Errorf("the capped tenant took %.2f s", c)
		}
		wantSamples(t, r.a.samples(), map[string]float64{
			`kvferry_egress_class_bytes_total{class="interactive",tenant="heavy"}`: 100 * 8192, `kvferry_egress_class_bytes_total{class="interactive",tenant="other"}`: 100 * 8192,
			`kvferry_egress_class_bytes_total{class="interactive",tenant="capped"}`: 20 * 8192,
		})
		r.settle()
	})
}

func TestTenantsConfig(t *testing.T) {
	c, err := ParseConfig([]byte("link: {max_rate: 125000000}\ntenants:\n  acme: {weight: 2.5, max_rate: 1000}\n  \"\": {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c = c.WithDefaults()
	if c.Link.MaxRate != 125000000 || c.Tenants["acme"] != (TenantConfig{2.5, 1000}) || c.Tenants[""] != (TenantConfig{Weight: 1}) {
		t.Errorf("%+v", c.Tenants)
	}
	bad := Config{Link: LinkConfig{MaxRate: -1}, Tenants: map[string]TenantConfig{"w": {Weight: -1}, "n": {Weight: math.NaN()}, "r": {MaxRate: -5}, strings.Repeat("x", 129): {}}}
	text := bad.WithDefaults().Validate().Error()
	for _, want := range []string{"link.max_rate = -1", `tenants["w"].weight = -1: must be 0.001 to 1000`, `tenants["n"].weight = NaN`, `tenants["r"].max_rate = -5`, "names of at most 128 bytes"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
}

func TestUnknownClass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		req := request("s")
		req.Class = 17
		_, _, err := r.b.migrate(req)
		wantError(t, err, ReasonInvalid)
	})
}

// The stream names every block once, as it lands, with its slot; an engine that opens its stream late is told of what has
// landed before, and one that does not read meanwhile misses nothing.
func TestLandedEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 300)
		place := map[string]int{}
		for i, k := range keys {
			place[string(k)] = i
		}
		early := r.b.events("e")
		req := request("s")
		req.Landed = true
		ctx := context.Background()
		stream, err := r.b.mig.Migrate(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		check := func(who string, seen map[string]bool, l *pb.Landed) {
			t.Helper()
			if l.GetMigrationId() == "" || len(l.GetKeys()) == 0 || len(l.GetSlots()) != len(l.GetKeys()) || len(l.GetBlocks()) != len(l.GetKeys()) {
				t.Fatalf("%s: %v", who, l)
			}
			for i, k := range l.GetKeys() {
				at, known := place[string(k)]
				if !known || seen[string(k)] || int(l.GetBlocks()[i]) != at {
					t.Fatalf("%s: block %d as %d, seen before: %v", who, at, l.GetBlocks()[i], seen[string(k)])
				}
				seen[string(k)] = true
				acq, err := r.b.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: [][]byte{k}})
				if err != nil || acq.GetSlots()[0].GetSlot() != l.GetSlots()[i].GetSlot() || acq.GetSlots()[0].GetGeneration() != l.GetSlots()[i].GetGeneration() {
					t.Fatalf("%s: block %d is not readable where it landed: %v, %v", who, at, acq, err)
				}
				if _, err := r.b.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		seen, parts := map[string]bool{}, 0
		var late *eventStream
		for {
			u, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range u.GetLanded() {
				check("stream", seen, l)
				parts++
			}
			if late == nil && len(seen) > 50 {
				late = r.b.events("e")
			}
			if u.GetReport() != nil {
				wantReport(t, u.GetReport(), committed, "", moved)
				break
			}
		}
		if len(seen) != len(keys) || parts < 2 {
			t.Errorf("the stream named %d of %d blocks in %d parts", len(seen), len(keys), parts)
		}
		synctest.Wait()
		for who, s := range map[string]*eventStream{"early": early, "late": late} {
			seen := map[string]bool{}
			for len(seen) < len(keys) {
				check(who, seen, (<-s.got).GetLanded())
			}
			if f := (<-s.got).GetFlip(); f.GetOwnerNodeId() != "b" {
				t.Errorf("%s: %v after all landed, want the flip", who, f)
			}
			s.stop()
		}
		r.settle()
	})
}

// Landings wait in one place, whatever their number, and come before the event that followed them.
func TestLandingsCoalesce(t *testing.T) {
	e := &engine{}
	e.mu.subs, e.mu.logs = map[*subscriber]struct{}{}, map[*landedLog]struct{}{}
	sub, stop := e.subscribe(0)
	defer stop()
	log := &landedLog{migration: "m"}
	e.beginLanding(log)
	const n = 100_000
	for i := range n {
		log.add(landedBlock{key: kvstore.BlockKey(fmt.Sprintf("%08d", i)), index: i})
		e.landedMore()
		if i == n/2-1 {
			e.publish(&pb.EventsResponse{Event: &pb.EventsResponse_Flip{Flip: &pb.Flip{}}})
		}
	}
	e.endLanding(log)
	at, flips, parts := 0, 0, 0
	for ev := e.next(sub); ev != nil; ev = e.next(sub) {
		if ev.GetFlip() != nil {
			flips++
			if at < n/2 {
				t.Errorf("the flip comes after %d blocks, want %d before it", at, n/2)
			}
			continue
		}
		parts++
		for _, b := range ev.GetLanded().GetBlocks() {
			if int(b) != at {
				t.Fatalf("block %d after %d", b, at-1)
			}
			at++
		}
	}
	if at != n || flips != 1 || parts > n/maxLandedPart+2 || len(sub.feeds) != 0 {
		t.Errorf("%d blocks, %d flips in %d parts, %d feeds left", at, flips, parts, len(sub.feeds))
	}
	select {
	case <-sub.lost:
		t.Error("the subscriber was cut off")
	default:
	}
}

// A page that lands costs a running migration that nobody watches no allocation.
func TestNoteProgressAllocs(t *testing.T) {
	m := &migration{}
	m.mu.changed = make(chan struct{})
	if n := testing.AllocsPerRun(100, m.noteProgress); n != 0 {
		t.Errorf("%v allocations a page", n)
	}
	_, changed := m.snapshot()
	m.noteProgress()
	select {
	case <-changed:
	default:
		t.Error("who watches is not told")
	}
	m.demand.wanted = time.Second
	m.mu.started = time.Now()
	if d := m.timeLeft(); d <= 0 || d > time.Second {
		t.Errorf("%v left of a second", d)
	}
}
