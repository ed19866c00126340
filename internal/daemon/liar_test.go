package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// liar is a peer "c" with a good certificate that asks node a for what it likes, beside the honest nodes of a rig.
type liar struct {
	*rig
	agent *transfer.Agent
	link  *transfer.Link
}

func newLiar(t *testing.T) *liar {
	t.Helper()
	l := &liar{rig: newRig(t, slow, nil)}
	pair, err := l.ca.Issue("r-c", "c")
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig := pair.Material(l.ca).ServerConfig()
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	conn, err := l.net.Listen(netip.AddrPortFrom(l.ipOf(2), 7441))
	if err != nil {
		t.Fatal(err)
	}
	l.agent, err = transfer.Open(transfer.Config{
		Name: "c", Incarnation: "1", Conn: conn, TLS: tlsConfig, Identify: identify, ProgressTimeout: 3 * time.Second,
		DialPacket: func(context.Context) (net.PacketConn, error) { return l.net.Listen(netip.AddrPortFrom(l.ipOf(2), 0)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.agent.Close() })
	if l.link, err = l.agent.Connect(t.Context(), netip.AddrPortFrom(l.ipOf(0), 7441).String(), "a"); err != nil {
		t.Fatal(err)
	}
	return l
}

// asks makes a call over the link.
func (l *liar) asks(req *pb.PeerRequest) (*pb.PeerResponse, error) {
	body, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	return l.says(body)
}

func (l *liar) says(body []byte) (*pb.PeerResponse, error) {
	out, err := l.link.Call(context.Background(), body)
	if re, ok := errors.AsType[*transfer.RemoteError](err); ok && re.Code == codeFailure {
		return nil, failureFromDetails(re)
	}
	if err != nil {
		return nil, err
	}
	resp := &pb.PeerResponse{}
	return resp, proto.Unmarshal(out, resp)
}

func (l *liar) offer(session string, keys [][]byte) (*pb.OfferAnswer, error) {
	resp, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: &pb.SessionRef{SessionId: session}, Keys: keys, MigrationId: "m"}}})
	return resp.GetOffer(), err
}

// wantRefused holds an answer to a refusal.
func wantRefused(t *testing.T, err error, want Reason) {
	t.Helper()
	if f, ok := errors.AsType[*Failure](err); !ok || f.Reason != want {
		t.Errorf("answered %v, want %s", err, want)
	}
}

// taker takes a page as it comes, whatever its checksum.
type taker struct{}

func (taker) LandPage(int, transfer.Desc, int, []byte, uint32) error { return nil }

// move is a read, or a write, of one page of slot with token; how it ended.
func (l *liar) move(op transfer.Op, token []byte, slot *pb.SlotRef) error {
	page := int(l.ea.reg.GetPageBytes())
	m := transfer.Bytes(make([]byte, page), page)
	m.Sink = taker{}
	mine, err := l.agent.Register(m)
	if err != nil {
		return err
	}
	defer func() { _ = l.agent.Deregister(mine) }()
	remote := transfer.Desc{Memory: l.link.Metadata().Memories[0].ID, Offset: uint64(slot.GetSlot()) * uint64(l.ea.reg.GetStrideBytes()), Generation: slot.GetGeneration(), Pages: 1}
	x, err := l.link.Prepare(op, []transfer.Desc{{Memory: mine, Pages: 1}}, []transfer.Desc{remote}, transfer.TransferOptions{Token: token})
	if err != nil {
		return err
	}
	defer x.Release()
	if err := x.Post(context.Background()); err != nil {
		return err
	}
	_, err = x.Wait(context.Background())
	return err
}

// What a certified peer may not have it does not get, whatever it says: each attack is refused for a stated reason and changes nothing, a
// migration between the honest nodes that runs meanwhile commits, and nothing is left.
func TestLyingPeer(t *testing.T) {
	session := func(id string) *pb.SessionRef { return &pb.SessionRef{SessionId: id} }
	for _, tc := range []struct {
		name   string
		attack func(t *testing.T, l *liar, theirs *offer)
	}{
		{"reads without an offer", func(t *testing.T, l *liar, theirs *offer) {
			for _, token := range [][]byte{nil, make([]byte, 16), []byte("x"), make([]byte, 256)} {
				if err := l.move(transfer.Read, token, refToProto(theirs.refs[0])); err == nil {
					t.Errorf("token of %d bytes: read", len(token))
				}
			}
		}},
		{"reads pages that were not offered", func(t *testing.T, l *liar, theirs *offer) {
			a, err := l.offer("other", nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.move(transfer.Read, a.GetOfferId(), a.GetSlots()[0]); err != nil {
				t.Errorf("its own: %v", err)
			}
			if err := l.move(transfer.Read, a.GetOfferId(), refToProto(theirs.refs[0])); !errors.Is(err, transfer.ErrStaleGeneration) {
				t.Errorf("another offer's: %v", err)
			}
			for _, slot := range []*pb.SlotRef{{Slot: a.GetSlots()[0].GetSlot(), Generation: 1 << 60}, {Slot: 511, Generation: 1}} {
				if err := l.move(transfer.Read, a.GetOfferId(), slot); !errors.Is(err, transfer.ErrStaleGeneration) {
					t.Errorf("slot %v: %v", slot, err)
				}
			}
			if err := l.move(transfer.Read, a.GetOfferId(), &pb.SlotRef{Slot: 1 << 20, Generation: 1}); !errors.Is(err, transfer.ErrOutOfRange) {
				t.Errorf("a slot beyond the arena: %v", err)
			}
			if _, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: a.GetOfferId()}}}); err != nil {
				t.Error(err)
			}
			if err := l.move(transfer.Read, a.GetOfferId(), a.GetSlots()[0]); !errors.Is(err, transfer.ErrLeaseExpired) {
				t.Errorf("after the offer's end: %v", err)
			}
		}},
		{"writes into the arena", func(t *testing.T, l *liar, theirs *offer) {
			if err := l.move(transfer.Write, theirs.id[:], refToProto(theirs.refs[0])); !errors.Is(err, transfer.ErrNotPermitted) {
				t.Errorf("write: %v", err)
			}
		}},
		{"uses another's offer", func(t *testing.T, l *liar, theirs *offer) {
			id, slot := theirs.id[:], refToProto(theirs.refs[0])
			_, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: id, BytesLeft: 0}}})
			wantRefused(t, err, ReasonLeaseExpired)
			_, err = l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: id, Slot: slot}}})
			wantRefused(t, err, ReasonLeaseExpired)
			_, err = l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{OfferId: id, First: 1}}})
			wantRefused(t, err, ReasonLeaseExpired)
			if _, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: id}}}); err != nil {
				t.Error(err) // it is gone for the liar, which is no error
			}
		}},
		{"accuses what is good, or not its own", func(t *testing.T, l *liar, theirs *offer) {
			a, err := l.offer("other", nil)
			if err != nil {
				t.Fatal(err)
			}
			accuse := func(slot *pb.SlotRef) (*pb.PeerResponse, error) {
				return l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: a.GetOfferId(), Slot: slot}}})
			}
			for range 20 {
				if resp, err := accuse(a.GetSlots()[0]); err != nil || resp.GetAccuse().GetDropped() {
					t.Errorf("a good block: %v, %v", resp, err)
				}
			}
			_, err = accuse(refToProto(theirs.refs[0]))
			wantRefused(t, err, ReasonInvalid)
			_, err = accuse(nil)
			wantRefused(t, err, ReasonInvalid)
			l.ea.check("", chain("other", 3))
		}},
		{"takes sessions by wrong words", func(t *testing.T, l *liar, _ *offer) {
			take := func(c *pb.HandOverCall) error {
				c.Session = session("other")
				resp, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_HandOver{HandOver: c}})
				if resp.GetHandOver().GetMoved() {
					t.Errorf("moved by %v", c)
				}
				return err
			}
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "m", Epoch: 2, Version: 1}), ReasonFenced)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "m", Epoch: 0, Version: 1}), ReasonFenced)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "m", Epoch: 1<<64 - 1, Version: 1, RepinSeq: 1<<64 - 1}), ReasonFenced)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "m", Epoch: 1, Version: 9}), ReasonInvalid)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "", Epoch: 1, Version: 1}), ReasonInvalid)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: strings.Repeat("m", 1<<16), Epoch: 1, Version: 1}), ReasonInvalid)
			wantRefused(t, take(&pb.HandOverCall{MigrationId: "m", Epoch: 1, Version: 1, Tokens: -1}), ReasonInvalid)
			if err := take(&pb.HandOverCall{MigrationId: "m", Epoch: 1, Version: 0}); err != nil { // grown, it hears
				t.Error(err)
			}
			yield := func(ref *pb.SessionRef, epoch, repin uint64) error {
				_, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{Session: ref, Epoch: epoch, RepinSeq: repin}}})
				return err
			}
			wantRefused(t, yield(session("other"), 1, 0), ReasonFenced)
			wantRefused(t, yield(session("other"), 0, 0), ReasonFenced)
			wantRefused(t, yield(session("other"), 1<<63, 1), ReasonInvalid)
			wantRefused(t, yield(session("no such"), 9, 9), ReasonSessionNotFound)
			wantRefused(t, yield(session(""), 9, 9), ReasonInvalid)
			wantRefused(t, yield(&pb.SessionRef{SessionId: "other", Tenant: strings.Repeat("t", 300)}, 9, 9), ReasonInvalid)
			if s, err := l.a.d.sessions.Get("", "other"); err != nil || s.Owner != "a" || s.Epoch != 1 {
				t.Errorf("the record is %+v: %v", s, err)
			}
		}},
		{"asks for offers without sense", func(t *testing.T, l *liar, _ *offer) {
			ask := func(c *pb.OfferCall) error {
				_, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: c}})
				return err
			}
			wantRefused(t, ask(&pb.OfferCall{}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: session("no such")}), ReasonSessionNotFound)
			wantRefused(t, ask(&pb.OfferCall{Session: session("other"), MigrationId: strings.Repeat("m", 1<<18)}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: &pb.SessionRef{Tenant: strings.Repeat("t", 1<<18)}, Keys: chain("k", 1)}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: session("other"), Keys: chain("k", 1)}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Keys: [][]byte{{1}}}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Keys: make([][]byte, maxKeysPerCall+1)}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: session("other"), Class: 77}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: session("other"), Deadline: durationpb.New(-1)}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{Session: session("other"), Layout: &pb.Layout{}}), ReasonInvalid)
			wantRefused(t, ask(&pb.OfferCall{OfferId: []byte("x")}), ReasonInvalid)
			for _, body := range [][]byte{nil, {0xff}, []byte("nonsense"), make([]byte, 1<<20)} {
				_, err := l.says(body)
				wantRefused(t, err, ReasonVersionMismatch)
			}
		}},
		{"floods with calls", func(t *testing.T, l *liar, _ *offer) {
			var wg sync.WaitGroup
			n := 5000
			if testing.Short() {
				n = 1000
			}
			for range n {
				wg.Go(func() {
					resp, err := l.asks(&pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: session("other")}}})
					if err == nil && !resp.GetLocate().GetKnown() || err != nil && !errors.Is(err, transfer.ErrBusy) {
						t.Errorf("answered %v: %v", resp, err)
					}
				})
			}
			wg.Wait()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLiar(t)
				l.ea.session("other", 3)
				keys := l.ea.session("s", 60)
				run := l.b.begin(request("s"))
				run.landed(1)
				var theirs *offer
				l.a.d.offers.mu.Lock()
				for _, of := range l.a.d.offers.mu.byID {
					theirs = of
				}
				l.a.d.offers.mu.Unlock()
				tc.attack(t, l, theirs)
				wantReport(t, run.end(), committed, "", moved)
				l.eb.check("", keys)
				time.Sleep(2 * l.a.d.cfg.Migration.LeaseTTL) // the liar's offers
				l.settle()
				l.wantOwner("other", "a")
			})
		})
	}
}

// One peer's offers are bounded in number and in what they name, and so is the memory behind them; another peer still gets one.
func TestOfferFlood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLiar(t)
		l.ea.session("s", 3)
		other := transfer.Peer{ID: "d", Incarnation: "1"}
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		for _, tc := range []struct {
			name   string
			call   *pb.OfferCall
			offers int
		}{
			{"of a session", &pb.OfferCall{Session: &pb.SessionRef{SessionId: "s"}}, maxPeerOffers},
			{"of keys that are not there", &pb.OfferCall{Keys: chain("none", 1<<14)}, maxPeerKeys >> 14},
		} {
			before, n := heap(), 0
			var err error
			for ; n < 2*maxPeerOffers; n++ {
				if _, err = l.a.d.answerOffer(transfer.Peer{ID: "c", Incarnation: "1"}, tc.call); err != nil {
					break
				}
			}
			wantRefused(t, err, ReasonTooManyMigrations)
			if n != tc.offers {
				t.Errorf("%s: %d offers, want %d", tc.name, n, tc.offers)
			}
			if took := heap() - before; took > 32<<20 {
				t.Errorf("%s: they take %d MiB", tc.name, took>>20)
			}
			a, err := l.a.d.answerOffer(other, &pb.OfferCall{Session: &pb.SessionRef{SessionId: "s"}})
			if err != nil || len(a.GetSlots()) != 3 {
				t.Errorf("%s: another peer gets %v: %v", tc.name, a, err)
			}
			time.Sleep(2 * l.a.d.cfg.Migration.LeaseTTL)
			l.settle()
			l.a.d.offers.mu.Lock()
			if n := len(l.a.d.offers.mu.byPeer); n != 0 {
				t.Errorf("%s: %d peers are still counted", tc.name, n)
			}
			l.a.d.offers.mu.Unlock()
		}
	})
}

// A source whose answers have no end, or no sense, fails the migrations from it in time, with a failure of a kilobyte; what it made up is
// not kept, and the destination goes on.
func TestLyingSourceAnswers(t *testing.T) {
	ok := func(h *hostile) *pb.OfferAnswer { return h.sane(chain("s", 2)) }
	for _, tc := range []struct {
		name  string
		offer func(h *hostile, n int) *pb.OfferAnswer
		hand  func(n int) *pb.HandOverAnswer
		mode  pb.Mode
		code  Reason
		own   pb.Ownership
	}{
		{name: "parts of slots without keys", offer: func(h *hostile, n int) *pb.OfferAnswer {
			a := h.sane(chain("s", 1))
			a.KeysTotal, a.BlocksAvailable = 1<<20, 1<<20
			if n > 1 {
				for range 1 << 12 {
					a.Slots = append(a.Slots, &pb.SlotRef{})
				}
			}
			return a
		}, code: ReasonVersionMismatch, own: unmoved},
		{name: "more keys than it said", offer: func(h *hostile, n int) *pb.OfferAnswer {
			a := h.sane(chain("s", 2))
			a.KeysTotal, a.Slots = 3, nil
			return a
		}, code: ReasonVersionMismatch, own: unmoved},
		{name: "an epoch near its end", offer: func(h *hostile, _ int) *pb.OfferAnswer {
			a := ok(h)
			a.Session.Epoch = 1<<64 - 1
			return a
		}, code: ReasonVersionMismatch, own: unmoved},
		{name: "tokens without end", offer: func(h *hostile, _ int) *pb.OfferAnswer {
			a := ok(h)
			a.Session.Tokens = 1<<63 - 1
			return a
		}, code: ReasonVersionMismatch, own: unmoved},
		{name: "handed over with an epoch of before", mode: pb.Mode_MODE_RECOMPUTE, hand: func(int) *pb.HandOverAnswer { return &pb.HandOverAnswer{Moved: true} }, code: ReasonVersionMismatch, own: unknown},
		{name: "handed over with the last epoch", mode: pb.Mode_MODE_RECOMPUTE, hand: func(int) *pb.HandOverAnswer { return &pb.HandOverAnswer{Moved: true, Epoch: 1<<64 - 1} }, code: ReasonVersionMismatch, own: unknown},
		{name: "handed over with a stale tail of less than nothing", mode: pb.Mode_MODE_RECOMPUTE, hand: func(int) *pb.HandOverAnswer {
			return &pb.HandOverAnswer{Moved: true, Epoch: 2, StaleTailTokens: -5}
		}, code: ReasonVersionMismatch, own: unknown},
		{name: "grown for ever", mode: pb.Mode_MODE_RECOMPUTE, hand: func(int) *pb.HandOverAnswer { return &pb.HandOverAnswer{Epoch: 1} }, code: ReasonVersionMismatch, own: unmoved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ended, offers, hands := 0, 0, 0
				var mu sync.Mutex
				h := newHostile(t, func(h *hostile) *pb.OfferAnswer {
					mu.Lock()
					defer mu.Unlock()
					if offers++; tc.offer != nil {
						return tc.offer(h, offers)
					}
					return ok(h)
				}, &ended)
				if tc.hand != nil {
					h.hand = func() *pb.HandOverAnswer { hands++; return tc.hand(hands) }
				}
				q := request("s")
				if tc.mode != 0 {
					q.Mode = tc.mode
				}
				rep := h.b.mustEnd(q, failed, tc.code, tc.own)
				if took := rep.GetTotal().AsDuration(); took > 30*time.Second || offers > 20 || hands > 20 {
					t.Errorf("it took %v, %d offers, %d hand-overs", took, offers, hands)
				}
				if len(rep.GetMessage()) > 4*maxFaultText {
					t.Errorf("a message of %d bytes", len(rep.GetMessage()))
				}
				if list := h.b.d.sessions.List(); len(list) != 0 {
					t.Errorf("records are %+v", list)
				}
				h.f.settle()
			})
		})
	}
}

// What a peer says of a failure is shortened before it is kept, and no control character of it reaches a log or a terminal.
func TestFailureOfAPeer(t *testing.T) {
	long := strings.Repeat("x\x1b[31m\n", 1<<14)
	f := &Failure{Reason: Reason(long), Message: long, Fix: long, Meta: map[string]string{}}
	for i := range 1000 {
		f.Fields = append(f.Fields, FieldFault{long[:10], long})
		f.with(string(rune('a'+i%26))+strings.Repeat("k", i), long)
	}
	st := f.proto()
	st.Message = long
	got := failureFromProto(st)
	text := got.Error() + string(got.Reason)
	for k, v := range got.Meta {
		text += k + v
	}
	if strings.ContainsAny(text, "\x1b\n") {
		t.Error("control characters are kept")
	}
	if len(text) > 1<<18 || len(got.Message) > maxFaultText || len(got.Fields) > maxFaultParts || len(got.Meta) > maxFaultParts {
		t.Errorf("%d bytes, %d fields, %d values", len(text), len(got.Fields), len(got.Meta))
	}
	// The owner that a peer names is a node's name, and an epoch leaves room for others.
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		s, err := r.a.d.sessions.Get("", "s")
		if err != nil {
			t.Fatal(err)
		}
		for _, meta := range []map[string]string{
			{"owner_node_id": "b\n", "epoch": "9", "repin_seq": "9"},
			{"owner_node_id": "", "epoch": "9", "repin_seq": "9"},
			{"owner_node_id": "b", "epoch": "18446744073709551615", "repin_seq": "9"},
			{"owner_node_id": "b", "epoch": "-1", "repin_seq": "9"},
		} {
			r.a.d.believe(t.Context(), "b", s, &Failure{Reason: ReasonFenced, Meta: meta})
			if now, err := r.a.d.sessions.Get("", "s"); err != nil || now.Owner != "a" || now.Epoch != 1 {
				t.Errorf("%v is believed: %+v", meta, now)
			}
		}
	})
}
