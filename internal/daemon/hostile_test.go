package daemon

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// hostile is a peer "a" with a good certificate whose answers make no sense, and an honest node "b".
type hostile struct {
	f     *fleet
	b     *node
	eb    *testEngine
	agent *transfer.Agent
	hand  func() *pb.HandOverAnswer // nil: an empty one
}

// newHostile starts both. offer is a's answer to every offer call; ended counts the end-offer calls it gets.
func newHostile(t *testing.T, offer func(h *hostile) *pb.OfferAnswer, ended *int) *hostile {
	t.Helper()
	ca, err := certs.NewCA("test", 24*365*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, net: wan.NewNetwork(fast), ca: ca, nodes: map[string]*node{}, names: []string{"a", "b"}}
	t.Cleanup(func() { _ = f.net.Close() })
	h := &hostile{f: f, b: f.addNode(1)}
	h.eb = h.b.register("e", testLayout(), 1<<20)
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig := pair.Material(ca).ServerConfig()
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	conn, err := f.net.Listen(netip.AddrPortFrom(f.ipOf(0), 7441))
	if err != nil {
		t.Fatal(err)
	}
	h.agent, err = transfer.Open(transfer.Config{
		Name: "a", Incarnation: "x", Conn: conn, TLS: tlsConfig, Identify: identify,
		DialPacket: func(context.Context) (net.PacketConn, error) { return f.net.Listen(netip.AddrPortFrom(f.ipOf(0), 0)) },
		Handler: func(_ context.Context, _ transfer.Peer, payload []byte) ([]byte, error) {
			var req pb.PeerRequest
			if err := proto.Unmarshal(payload, &req); err != nil {
				return nil, err
			}
			resp := &pb.PeerResponse{}
			switch req.GetCall().(type) {
			case *pb.PeerRequest_Locate:
				resp.Answer = &pb.PeerResponse_Locate{Locate: &pb.LocateAnswer{Known: true, OwnerNodeId: "a", Epoch: 1}}
			case *pb.PeerRequest_Offer:
				resp.Answer = &pb.PeerResponse_Offer{Offer: offer(h)}
			case *pb.PeerRequest_EndOffer:
				*ended++
			case *pb.PeerRequest_HandOver:
				if h.hand != nil {
					resp.Answer = &pb.PeerResponse_HandOver{HandOver: h.hand()}
				}
			default:
			}
			return proto.Marshal(resp)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.agent.Close() })
	return h
}

// sane is an answer that would be believed; tests spoil it.
func (h *hostile) sane(keys [][]byte) *pb.OfferAnswer {
	return &pb.OfferAnswer{
		Session: &pb.Session{
			Ref: &pb.SessionRef{SessionId: "s"}, LayoutPin: h.eb.reg.GetLayoutPin(), BlockKeys: keys, Tokens: 40, OwnerNodeId: "a", Epoch: 1, Version: 1,
		},
		OfferId: make([]byte, 16), MemoryId: 1, StrideBytes: h.eb.reg.GetStrideBytes(), BlocksAvailable: 2, KeysTotal: 2,
		LeaseTtl: durationpb.New(30 * time.Second), Slots: []*pb.SlotRef{{Slot: 0, Generation: 1}, {Slot: 1, Generation: 1}},
	}
}

// An answer that makes no sense fails the migration by name: nothing of it is stored, and nothing falls over.
func TestHostileOffer(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*pb.OfferAnswer)
	}{
		{"no stride", func(a *pb.OfferAnswer) { a.StrideBytes = 0 }},
		{"another stride", func(a *pb.OfferAnswer) { a.StrideBytes *= 2 }},
		{"negative blocks", func(a *pb.OfferAnswer) { a.BlocksAvailable = -1; a.Slots = nil }},
		{"more blocks than slots", func(a *pb.OfferAnswer) { a.BlocksAvailable, a.Slots = 2, a.GetSlots()[:1] }},
		{"more slots than keys", func(a *pb.OfferAnswer) { a.Session.BlockKeys = a.GetSession().GetBlockKeys()[:1]; a.KeysTotal = 1 }},
		{"no offer id", func(a *pb.OfferAnswer) { a.OfferId = nil }},
		{"a short offer id", func(a *pb.OfferAnswer) { a.OfferId = []byte{1} }},
		{"no lease", func(a *pb.OfferAnswer) { a.LeaseTtl = nil }},
		{"an endless lease", func(a *pb.OfferAnswer) { a.LeaseTtl = durationpb.New(1<<62 - 1) }},
		{"negative backlog", func(a *pb.OfferAnswer) { a.EgressBacklogBytes = -5 }},
		{"negative rate", func(a *pb.OfferAnswer) { a.MaxRate = -1 }},
		{"no epoch", func(a *pb.OfferAnswer) { a.Session.Epoch = 0 }},
		{"negative tokens", func(a *pb.OfferAnswer) { a.Session.Tokens = -1 }},
		{"another session", func(a *pb.OfferAnswer) { a.Session.Ref.SessionId = "v" }},
		{"another tenant", func(a *pb.OfferAnswer) { a.Session.Ref.Tenant = "victim"; a.Session.OwnerNodeId = "b" }},
		{"endless keys", func(a *pb.OfferAnswer) { a.KeysTotal = 1 << 31 }},
		{"keys that trickle", func(a *pb.OfferAnswer) { a.KeysTotal = maxSessionKeys }},
		{"parts without keys", func(a *pb.OfferAnswer) {
			a.KeysTotal = 3
			a.Session.BlockKeys = nil
			a.Slots = nil
			a.BlocksAvailable = 0
		}},
		{"another layout", func(a *pb.OfferAnswer) { a.Session.LayoutPin = make([]byte, 32) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				keys, ended := chain("s", 2), 0
				h := newHostile(t, func(h *hostile) *pb.OfferAnswer {
					a := h.sane(keys)
					tc.spoil(a)
					return a
				}, &ended)
				h.eb.write("victim", chain("v", 2))
				h.eb.publish("victim", "v", chain("v", 2), 40)
				began := time.Now()
				rep := h.b.mustEnd(request("s"), failed, ReasonVersionMismatch, unmoved)
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v to see that", took)
				}
				if !strings.Contains(rep.GetMessage(), "offer makes no sense") {
					t.Errorf("message %s", rep.GetMessage())
				}
				if _, err := h.b.mig.Plan(t.Context(), &pb.PlanRequest{Migrate: request("s")}); err == nil {
					t.Error("a plan believes it")
				}
				list := h.b.d.sessions.List()
				if len(list) != 1 || list[0].Tenant != "victim" || len(list[0].Keys) != 2 || list[0].Epoch != 1 {
					t.Errorf("records are %+v", list)
				}
				h.f.settle()
			})
		})
	}
}

// Whatever a source answers to an offer and a hand-over: the migration ends in time with a reason that is no bug's, nobody else's session is
// touched, and nothing of what was never sent is there.
func FuzzSourceAnswer(f *testing.F) {
	for _, offer := range []*pb.OfferAnswer{
		{},
		{Slots: []*pb.SlotRef{{Slot: 1 << 31, Generation: 1 << 31}}, BlocksAvailable: 1},
		{KeysTotal: 1 << 20, MaxRate: 1 << 62, EgressBacklogBytes: 1 << 62, LeaseTtl: durationpb.New(1<<63 - 1)},
		{Session: &pb.Session{Ref: &pb.SessionRef{Tenant: "victim", SessionId: "v"}, Epoch: 1<<64 - 1, Version: 1<<64 - 1, RepinSeq: 1<<64 - 1, Tokens: 1<<63 - 1}},
		{Layout: testLayout(), MemoryId: 1<<32 - 1, StrideBytes: 1<<63 - 1},
	} {
		for _, hand := range []*pb.HandOverAnswer{{}, {Moved: true, Epoch: 2}, {Moved: true, Epoch: 1<<64 - 1, StaleTailTokens: -1}, {Grown: &pb.Session{}, Epoch: 7}} {
			a, err1 := proto.Marshal(offer)
			b, err2 := proto.Marshal(hand)
			if err1 != nil || err2 != nil {
				f.Fatal(err1, err2)
			}
			f.Add(true, a, b)
			f.Add(false, a, b)
		}
	}
	f.Fuzz(func(t *testing.T, sane bool, offer, hand []byte) {
		var given pb.OfferAnswer
		var moved pb.HandOverAnswer
		if proto.Unmarshal(offer, &given) != nil || proto.Unmarshal(hand, &moved) != nil {
			return
		}
		bubble(t, func(t *testing.T) {
			ended := 0
			h := newHostile(t, func(h *hostile) *pb.OfferAnswer {
				a := &pb.OfferAnswer{}
				if sane {
					a = h.sane(chain("s", 2))
				}
				proto.Merge(a, &given)
				return a
			}, &ended)
			h.hand = func() *pb.HandOverAnswer { return proto.CloneOf(&moved) }
			h.eb.write("victim", chain("v", 2))
			h.eb.publish("victim", "v", chain("v", 2), 40)
			rep, _, err := h.b.migrate(request("s"))
			if err != nil {
				t.Fatal(err)
			}
			if r := Reason(rep.GetCode()); r == ReasonInternal {
				t.Errorf("it ends by %s: %s", r, rep.GetMessage())
			}
			if n := rep.GetBlocksMoved(); n != 0 {
				t.Errorf("%d blocks moved, and none was sent", n)
			}
			s, err := h.b.d.sessions.Get("victim", "v")
			if err != nil || s.Owner != "b" || s.Epoch != 1 || len(s.Keys) != 2 {
				t.Errorf("the victim's record is %+v: %v", s, err)
			}
			if n := len(h.b.d.sessions.List()); n > 2 {
				t.Errorf("%d records", n)
			}
			h.f.settle()
		})
	})
}

// A session whose description does not fit one answer moves all the same, part by part.
func TestLongSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const blocks = 2*partKeys + 100
		r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 10e9, Seed: 1}, nil)
		keys := chain("long", blocks)
		r.ea.write("", keys[:4]) // the rest has been evicted
		r.ea.publish("", "long", keys, blocks*16+3)
		plan, err := r.b.mig.Plan(t.Context(), &pb.PlanRequest{Migrate: request("long")})
		if err != nil {
			t.Fatal(err)
		}
		if plan.GetBlocksTotal() != blocks || plan.GetTailTokens() != (blocks-4)*16+3 {
			t.Errorf("plan of %d blocks and %d tail tokens", plan.GetBlocksTotal(), plan.GetTailTokens())
		}
		rep := r.b.mustEnd(request("long"), recompute, ReasonBlockNotFound, moved)
		if rep.GetBlocksTotal() != blocks || rep.GetBlocksUsable() != 4 {
			t.Errorf("report of %d blocks, %d usable", rep.GetBlocksTotal(), rep.GetBlocksUsable())
		}
		got, err := r.b.d.sessions.Get("", "long")
		if err != nil || len(got.Keys) != blocks || string(got.Keys[blocks-1]) != string(keys[blocks-1]) {
			t.Errorf("the record has %d keys: %v", len(got.Keys), err)
		}
		r.eb.check("", keys[:4])
		r.settle()
	})
}

// Listing pages: no record's keys travel, and every session comes once.
func TestListSessionsPages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		want := []string{"", "s0", "", "s1", "t", "s0", "t", "s1", "t", "s2"}
		for i := 0; i < len(want); i += 2 {
			r.ea.publish(want[i], want[i+1], chain(want[i]+want[i+1], 3), 50)
		}
		var got []string
		for page, calls := "", 0; calls == 0 || page != ""; calls++ {
			resp, err := r.a.region.ListSessions(t.Context(), &pb.ListSessionsRequest{Limit: 2, Page: page})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range resp.GetSessions() {
				got = append(got, s.GetSession().GetRef().GetTenant(), s.GetSession().GetRef().GetSessionId())
				if s.GetBlocksTotal() != 3 || len(s.GetSession().GetBlockKeys()) != 0 {
					t.Errorf("session %v", s)
				}
			}
			page = resp.GetNextPage()
		}
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("listed %q, want %q", got, want)
		}
		for page, n := range map[string]int{"\x00": 5, "\x00s0": 4, "s": 3, "t\x00s1": 1, "t\x00s1\x00": 1, "\x00\x00\x00": 5, "t\x00z": 0, "~": 0, "\U0010ffff\x00x": 0, strings.Repeat("t", 1<<16): 0} {
			resp, err := r.a.region.ListSessions(t.Context(), &pb.ListSessionsRequest{Page: page})
			if err != nil || len(resp.GetSessions()) != n || resp.GetNextPage() != "" {
				t.Errorf("page %.20q: %d sessions, next %q, %v; want %d", page, len(resp.GetSessions()), resp.GetNextPage(), err, n)
			}
		}
		_, err := r.a.region.ListSessions(t.Context(), &pb.ListSessionsRequest{Limit: sessionsPageMax + 1})
		wantError(t, err, ReasonInvalid)
	})
}
