package daemon

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// backlogSeen is the backlog that the source answered to a migration when it made its offer.
func (n *node) backlogSeen(requestID string) int64 {
	n.f.t.Helper()
	m, err := n.d.migrations.find("", requestID)
	if err != nil {
		n.f.t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drive.offer.backlog
}

func egressTerm(p *pb.Plan) *pb.PlanTerm {
	for _, m := range p.GetModes() {
		for _, term := range m.GetTerms() {
			if m.GetMode() == pb.Mode_MODE_FETCH && term.GetName() == "egress_queue" {
				return term
			}
		}
	}
	return nil
}

// The source's uplink is shared: each plan sees, to the byte, what pullers before it still want, and it falls to zero.
func TestEgressBacklog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, slow, "a", "b", "c", "d")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 4<<20)
		}
		a := f.nodes["a"]
		backlog := func() int64 {
			st, err := a.region.Status(context.Background(), &pb.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return st.GetEgressBacklogBytes()
		}
		var running []*running
		for i, to := range []string{"b", "c", "d"} {
			id := fmt.Sprint("s", i)
			engines["a"].session(id, 64)
			n := f.nodes[to]
			time.Sleep(time.Second) // the pullers before are cut off, nothing is served
			want := backlog()
			if i > 0 && want < int64(i)*20*8192 {
				t.Errorf("%d pullers want only %d bytes", i, want)
			}
			plan, err := n.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: request(id)})
			if err != nil {
				t.Fatal(err)
			}
			if got := backlog(); got != want {
				t.Errorf("a dry run changed the backlog from %d to %d", want, got)
			}
			m := n.begin(request(id))
			m.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
			f.net.Cut(f.nodes["a"].ip, n.ip)
			if got := n.backlogSeen(m.req.GetRequestId()); got != want {
				t.Errorf("%s saw a backlog of %d bytes, %d were queued", to, got, want)
			}
			mig, err := n.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{RequestId: m.req.GetRequestId()})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []*pb.Plan{plan.GetPlan(), mig.GetMigration().GetPlan()} {
				// 1 Gbit/s is what peers.prior_bps says.
				if term := egressTerm(p); term == nil || math.Abs(term.GetSeconds()-float64(want)*8/1e9) > 1e-12 {
					t.Errorf("%s: egress term %v for %d bytes", to, term, want)
				}
			}
			running = append(running, m)
		}
		for _, to := range []string{"b", "c", "d"} {
			f.net.Heal(f.nodes["a"].ip, f.nodes[to].ip)
		}
		for i, m := range running {
			wantReport(t, m.end(), committed, "", moved)
			engines[m.n.name].check("", chain(fmt.Sprint("s", i), 64))
		}
		if got := backlog(); got != 0 {
			t.Errorf("backlog is %d after all is over", got)
		}
		f.settle()
	})
}

// Tickets to the byte, without a link: the offers themselves.
func TestTickets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		te := f.nodes["a"].register("e", testLayout(), 1<<20)
		keys := chain("s", 10)
		te.write("", keys)
		e, err := f.nodes["a"].d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		o := f.nodes["a"].d.offers
		draw := func(peer string, n int, want int64) *offer {
			of, before, err := o.make(e, transfer.Peer{ID: "b"}, "m-"+peer, urgency{}, kvstore.Session{Keys: keysOf(keys[:n])})
			if err != nil || before != want {
				t.Fatalf("ticket of %d blocks: %d bytes before it, want %d: %v", n, before, want, err)
			}
			return of
		}
		o1 := draw("1", 10, 0)
		o2 := draw("2", 3, 0) // less goes first
		o3 := draw("3", 1, 0)
		o0 := draw("0", 10, (10+3+1)*8192)
		if err := o.end(o0.id[:], "b"); err != nil {
			t.Fatal(err)
		}
		o.served(o1.id[:], 4*8192)
		if err := o.renew(o2.id[:], "b", 8192); err != nil {
			t.Fatal(err)
		}
		if got := o.backlog(); got != (6+1+1)*8192 {
			t.Errorf("backlog %d", got)
		}
		o.served(o3.id[:], 1<<40) // more than is left is none left
		draw("4", 2, 8192)
		if err := o.renew(o2.id[:], "c", 0); err == nil {
			t.Error("another peer renewed the offer")
		}
		if err := o.renew(o2.id[:], "b", -1); classify(err).Reason != ReasonInvalid {
			t.Errorf("negative bytes_left: %v", err)
		}
		if err := o.end(o1.id[:], "c"); err != nil || o.count() != 4 {
			t.Errorf("another peer ended the offer: %v, %d left", err, o.count())
		}
		for range 2 { // late and duplicate ends are expected
			if err := o.end(o1.id[:], "b"); err != nil || o.count() != 3 {
				t.Errorf("end: %v, %d left", err, o.count())
			}
		}
		if err := o.end([]byte("short"), "b"); classify(err).Reason != ReasonInvalid {
			t.Errorf("bad id: %v", err)
		}
		if got := o.backlog(); got != (1+2)*8192 {
			t.Errorf("backlog %d", got)
		}
		time.Sleep(32 * time.Second)
		if o.count() != 0 || o.backlog() != 0 {
			t.Errorf("%d offers, %d bytes after the TTL", o.count(), o.backlog())
		}
		f.settle()
	})
}
