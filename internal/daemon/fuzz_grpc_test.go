package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// rawCodec carries bytes as messages.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// panicLog is a log that looks for calls that panicked: what the recovery interceptor keeps from a caller.
type panicLog struct {
	slog.Handler
	seen *atomic.Pointer[string]
}

func (h panicLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panicked") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		h.seen.Store(&text)
	}
	return nil
}

func (panicLog) Enabled(context.Context, slog.Level) bool { return true }
func (h panicLog) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h panicLog) WithGroup(string) slog.Handler          { return h }

// target is one daemon on in-memory sockets that stands for as long as a fuzz worker runs.
type target struct {
	d       *Daemon
	conn    *grpc.ClientConn
	engine  pb.EngineServiceClient
	reg     *pb.RegisterEngineResponse
	methods []protoreflect.MethodDescriptor
	panics  atomic.Pointer[string]
	runs    int
}

// newTarget opens it with an engine "e", a session "s" of tenant "victim" with two blocks, and a peer that does not answer.
func newTarget(tb testing.TB) *target {
	tb.Helper()
	x := &target{}
	ca, err := certs.NewCA("test", 24*365*time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "kvferry-test-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	network := wan.NewNetwork(wan.Model{Rate: 1e9})
	tb.Cleanup(func() { _ = network.Close() })
	packets, err := network.Listen(netip.MustParseAddrPort("10.0.0.1:7441"))
	if err != nil {
		tb.Fatal(err)
	}
	no, tlsConfig, local := false, pair.Material(ca).ServerConfig(), bufconn.Listen(1<<20)
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	x.d, err = Open(Config{
		Node:      NodeConfig{ID: "a", Region: "r-a"},
		Listen:    ListenConfig{Unix: "/nonexistent/unused", GRPC: off, Admin: off, QUIC: "0.0.0.0:1"},
		Arena:     ArenaConfig{Dir: dir, Bytes: 1 << 20, MaxBytes: 8 << 20, Lock: &no},
		GPU:       GPUConfig{Enabled: &no},
		Link:      LinkConfig{ConnectTimeout: 10 * time.Millisecond, ProgressTimeout: 100 * time.Millisecond},
		Migration: MigrationConfig{CallTimeout: 10 * time.Millisecond, Keep: 16, Deadline: 100 * time.Millisecond},
		Peers:     []PeerConfig{{Node: "b", Region: "r-b", Address: "10.0.0.2:7441"}},
	}, Parts{
		Local: local, Packets: packets, TLS: tlsConfig, NoState: true, Log: slog.New(panicLog{seen: &x.panics}),
		DialPacket: func(context.Context) (net.PacketConn, error) {
			return network.Listen(netip.MustParseAddrPort("10.0.0.1:0"))
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = x.d.Close() })
	x.conn, err = grpc.NewClient("passthrough:///local", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return local.DialContext(ctx) }))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = x.conn.Close() })
	x.engine = pb.NewEngineServiceClient(x.conn)
	if x.reg, err = x.engine.RegisterEngine(tb.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), WriteThrough: true}); err != nil {
		tb.Fatal(err)
	}
	x.write(tb, "victim", chain("v", 2))
	if _, err := x.engine.PublishSession(tb.Context(), &pb.PublishSessionRequest{
		EngineId: "e", ArenaId: x.reg.GetArenaId(), Session: &pb.SessionRef{Tenant: "victim", SessionId: "s"}, BlockKeys: chain("v", 2), Tokens: 40,
	}); err != nil {
		tb.Fatal(err)
	}
	for _, file := range []protoreflect.FileDescriptor{pb.File_kvferry_v1_engine_proto, pb.File_kvferry_v1_migration_proto, pb.File_kvferry_v1_planner_proto, pb.File_kvferry_v1_region_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				x.methods = append(x.methods, methods.Get(j))
			}
		}
	}
	return x
}

// write puts blocks whose bytes are their key, over and over, into the arena.
func (x *target) write(tb testing.TB, tenant string, keys [][]byte) {
	tb.Helper()
	res, err := x.engine.ReserveBlocks(tb.Context(), &pb.ReserveBlocksRequest{EngineId: "e", ArenaId: x.reg.GetArenaId(), Tenant: tenant, Keys: keys})
	if err != nil {
		tb.Fatal(err)
	}
	f, err := os.OpenFile(x.reg.GetArenaPath(), os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var slots []*pb.SlotRef
	for i, r := range res.GetReservations() {
		if _, err := f.WriteAt(x.content(keys[i]), int64(r.GetSlot().GetSlot())*x.reg.GetStrideBytes()); err != nil {
			tb.Fatal(err)
		}
		slots = append(slots, r.GetSlot())
	}
	if _, err := x.engine.CommitBlocks(tb.Context(), &pb.CommitBlocksRequest{EngineId: "e", ArenaId: x.reg.GetArenaId(), Slots: slots}); err != nil {
		tb.Fatal(err)
	}
}

func (x *target) content(key []byte) []byte {
	return []byte(strings.Repeat(string(key), int(x.reg.GetBlockBytes())/len(key)))
}

// names gives a message, as bytes, what a caller knows: the last value of a field counts.
func (x *target) names(m protoreflect.MethodDescriptor, body []byte) []byte {
	body = append([]byte(nil), body...)
	known := map[protoreflect.Name]string{"engine_id": "e", "arena_id": x.reg.GetArenaId()}
	x.d.migrations.mu.Lock()
	for id := range x.d.migrations.mu.byID {
		known["migration_id"] = id
	}
	x.d.migrations.mu.Unlock()
	for name, value := range known {
		if f := m.Input().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind {
			body = protowire.AppendString(protowire.AppendTag(body, f.Number(), protowire.BytesType), value)
		}
	}
	return body
}

// within is what an answer may take: a second, and what a busy machine adds.
const within = 10 * time.Second

// call makes one call and returns how long it took and its status.
func (x *target) call(m protoreflect.MethodDescriptor, body []byte) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	name, began := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), time.Now()
	var out []byte
	if !m.IsStreamingServer() {
		err = x.conn.Invoke(ctx, name, &body, &out, grpc.ForceCodecV2(rawCodec{}))
		return time.Since(began), err
	}
	stream, err := x.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return time.Since(began), err
	}
	if err = errors.Join(stream.SendMsg(&body), stream.CloseSend()); err != nil {
		return time.Since(began), err
	}
	if m.Name() == "Events" { // it goes on for ever when it begins
		if _, err = stream.Header(); err != nil {
			return time.Since(began), err
		}
		time.AfterFunc(time.Millisecond, cancel)
	}
	for {
		if err = stream.RecvMsg(&out); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return time.Since(began), err
		}
	}
}

// whole holds the daemon to what must be so after anything that a caller does: no panic, the victim's bytes as they were, nothing held
// on behalf of nobody, memory and goroutines bounded.
func (x *target) whole(t *testing.T) {
	t.Helper()
	if text := x.panics.Load(); text != nil {
		t.Fatal(*text)
	}
	if x.runs++; x.runs%64 != 0 {
		return
	}
	e, err := x.d.engines.get("e")
	if err == nil && e.arenaID == x.reg.GetArenaId() {
		e.arena.ReleaseOwner(e.owner())
		for _, p := range e.mu.procs {
			e.arena.ReleaseOwner(e.processOwner(p))
		}
		var got []byte
		lease, refs, err := e.arena.Acquire("test", "victim", []kvstore.BlockKey{kvstore.BlockKey(chain("v", 2)[0]), kvstore.BlockKey(chain("v", 2)[1])}, -1)
		if err == nil { // else it was evicted or unregistered, which callers may bring about
			for i, ref := range refs {
				got = make([]byte, x.reg.GetBlockBytes())
				if err := e.arena.ReadPages(lease, ref, 0, int(testLayout().GetLayers()), got, nil); err != nil {
					t.Fatal(err)
				}
				if string(got) != string(x.content(chain("v", 2)[i])) {
					t.Fatal("the victim's block has other bytes")
				}
			}
			_ = e.arena.Release(lease)
		}
	}
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) && (x.d.migrations.active() > 0 || x.d.offers.count() > 0) {
		time.Sleep(time.Millisecond)
	}
	if n, m := x.d.migrations.active(), x.d.offers.count(); n != 0 || m != 0 {
		t.Fatalf("%d migrations and %d offers are left", n, m)
	}
	for _, e := range x.d.engines.list() {
		if st := e.arena.Stats(); e.arenaID == x.reg.GetArenaId() && (st.SlotsReserved != 0 || st.Leases != 0) {
			t.Fatalf("%d slots reserved, %d leases", st.SlotsReserved, st.Leases)
		}
	}
	if n := runtime.NumGoroutine(); n > 500 {
		t.Fatalf("%d goroutines", n)
	}
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc > 512<<20 {
		runtime.GC()
		if runtime.ReadMemStats(&m); m.HeapAlloc > 512<<20 {
			t.Fatalf("%d MiB of heap", m.HeapAlloc>>20)
		}
	}
	if err != nil || e.arenaID != x.reg.GetArenaId() { // a caller may unregister; the next ones find an engine again
		if x.reg, err = x.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), WriteThrough: true}); err != nil {
			x.clear()
		}
	}
}

// clear takes away the arenas that callers have registered.
func (x *target) clear() {
	x.d.engines.opening.Lock()
	for _, e := range x.d.engines.list() {
		_ = x.d.engines.retire(e)
		x.d.engines.closed(e.id)
	}
	x.d.engines.opening.Unlock()
	x.reg, _ = x.engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), WriteThrough: true})
}

// Whatever bytes come as the request of whatever method, over a real server: nothing panics, the caller gets a status with a code that says
// whose fault it is, in time, and nothing stays behind.
func FuzzServices(f *testing.F) {
	x := newTarget(f)
	slot := &pb.SlotRef{Slot: 1, Generation: 1}
	seeds := map[protoreflect.FullName]proto.Message{}
	for _, m := range []proto.Message{
		&pb.RegisterEngineRequest{EngineId: "x", Layout: testLayout(), ArenaBytes: 1 << 16}, &pb.ReserveBlocksRequest{Tenant: "t", Keys: chain("k", 2)},
		&pb.CommitBlocksRequest{Slots: []*pb.SlotRef{slot}}, &pb.LookupBlocksRequest{Tenant: "victim", Keys: chain("v", 2)},
		&pb.AcquireBlocksRequest{Tenant: "victim", Keys: chain("v", 2), Prefix: true}, &pb.ReleaseBlocksRequest{LeaseIds: []uint64{1}, Aborted: []*pb.SlotRef{slot}},
		&pb.PublishSessionRequest{Session: &pb.SessionRef{Tenant: "t", SessionId: "u"}, BlockKeys: chain("k", 2), Tokens: 40, Epoch: 1}, &pb.EventsRequest{LandedLayers: 1},
		request("u"), &pb.PlanRequest{Migrate: request("u")}, &pb.GetMigrationRequest{RequestId: "r"}, &pb.ListMigrationsRequest{Limit: 3, Tenant: "t"},
		&pb.CancelMigrationRequest{}, &pb.ClaimPrefillRequest{ComputedBlocks: 1, WantBlocks: 1}, &pb.ListPlansRequest{Worst: true}, &pb.ListSessionsRequest{Limit: 1, Page: "p"},
	} {
		seeds[m.ProtoReflect().Descriptor().FullName()] = m
	}
	for i, m := range x.methods {
		body, _ := proto.Marshal(seeds[m.Input().FullName()])
		f.Add(uint8(i), true, body)
		f.Add(uint8(i), false, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
		f.Add(uint8(i), true, append(body, 0x82))
	}
	f.Fuzz(func(t *testing.T, method uint8, named bool, body []byte) {
		m := x.methods[int(method)%len(x.methods)]
		if named {
			body = x.names(m, body)
		}
		took, err := x.call(m, body)
		st := status.Convert(err)
		switch code := st.Code(); {
		case took >= within:
			t.Errorf("%s took %v: %v", m.FullName(), took, err)
		case code == codes.Unknown || code == codes.Internal || code == codes.Unimplemented:
			t.Errorf("%s: %v", m.FullName(), err)
		case code != codes.OK && code != codes.Canceled && len(st.Details()) == 0:
			t.Errorf("%s: a status without details: %v", m.FullName(), err)
		case len(st.Message()) > 2*maxFaultText:
			t.Errorf("%s: a message of %d bytes", m.FullName(), len(st.Message()))
		}
		x.whole(t)
	})
}

// Whatever a certified peer sends as a call: nothing panics, the peer gets an answer or a failure that says whose fault it is, the victim's
// session stays whole, and nothing but what was offered stays behind.
func FuzzPeerCall(f *testing.F) {
	x := newTarget(f)
	ref := &pb.SessionRef{Tenant: "victim", SessionId: "s"}
	for _, r := range []*pb.PeerRequest{
		{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: ref}}},
		{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref, MigrationId: "m"}}},
		{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref, DryRun: true, First: 1 << 31, Layout: testLayout()}}},
		{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: &pb.SessionRef{Tenant: "victim"}, Keys: chain("v", 2)}}},
		{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{OfferId: make([]byte, 16), First: 1}}},
		{Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: make([]byte, 16), BytesLeft: 5}}},
		{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: make([]byte, 16)}}},
		{Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{Session: ref, MigrationId: "m", Epoch: 1, Version: 2}}},
		{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: make([]byte, 16), Slot: &pb.SlotRef{Generation: 1}}}},
		{Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{Session: &pb.SessionRef{SessionId: "other"}, Epoch: 9, RepinSeq: 9}}},
		{},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(true, b)
		f.Add(false, append(b, 0xff))
	}
	from := transfer.Peer{ID: "c", Incarnation: "1"}
	f.Fuzz(func(t *testing.T, named bool, body []byte) {
		if named { // the offer is one of the caller's own
			body = x.ownOffer(t, from, body)
		}
		began := time.Now()
		out, err := x.d.answerPeer(t.Context(), from, body)
		if took := time.Since(began); took > within {
			t.Errorf("took %v", took)
		}
		if err != nil {
			re, ok := errors.AsType[*transfer.RemoteError](err)
			if !ok || re.Code != codeFailure || len(re.Details) == 0 {
				t.Fatalf("failed with %v", err)
			}
			if fault := failureFromDetails(re); fault.Reason == ReasonInternal || len(fault.Message) > maxFaultText {
				t.Errorf("failed with %v", fault)
			}
		} else if err := proto.Unmarshal(out, &pb.PeerResponse{}); err != nil {
			t.Errorf("answer: %v", err)
		}
		if s, err := x.d.sessions.Get("victim", "s"); err != nil || s.Owner != "a" && s.Owner != "c" || len(s.Keys) != 2 {
			t.Fatalf("the victim's record is %+v: %v", s, err)
		}
		x.d.offers.mu.Lock()
		var ids [][]byte
		for id, of := range x.d.offers.mu.byID {
			if of.peer != from.ID {
				t.Errorf("an offer of %q", of.peer)
			}
			ids = append(ids, id[:])
		}
		x.d.offers.mu.Unlock()
		for _, id := range ids {
			if err := x.d.offers.end(id, from.ID); err != nil {
				t.Error(err)
			}
		}
		x.whole(t)
	})
}

// ownOffer has a call name an offer of the caller's.
func (x *target) ownOffer(t *testing.T, from transfer.Peer, body []byte) []byte {
	t.Helper()
	var r pb.PeerRequest
	if proto.Unmarshal(body, &r) != nil {
		return body
	}
	of, err := x.d.answerOffer(from, &pb.OfferCall{Session: &pb.SessionRef{Tenant: "victim"}, Keys: chain("v", 2)})
	if err != nil {
		t.Fatal(err)
	}
	switch c := r.GetCall().(type) {
	case *pb.PeerRequest_Offer:
		if len(c.Offer.GetOfferId()) > 0 {
			c.Offer.OfferId = of.GetOfferId()
		}
	case *pb.PeerRequest_Renew:
		c.Renew.OfferId = of.GetOfferId()
	case *pb.PeerRequest_EndOffer:
		c.EndOffer.OfferId = of.GetOfferId()
	case *pb.PeerRequest_Accuse:
		c.Accuse.OfferId = of.GetOfferId()
	}
	out, err := proto.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Whatever layout comes from outside: it is refused field by field, or it is one that comes back as it is, with the same pin.
func FuzzLayout(f *testing.F) {
	for _, l := range []*pb.Layout{testLayout(), bigLayout(), {}} {
		b, err := proto.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var l pb.Layout
		if proto.Unmarshal(in, &l) != nil {
			return
		}
		got, err := layoutFromProto(&l)
		if err != nil {
			if classify(err).Reason != ReasonInvalid {
				t.Errorf("refused with %v", err)
			}
			return
		}
		again, err := layoutFromProto(layoutToProto(got))
		if err != nil || again.Pin() != got.Pin() || len(got.Diff(again)) != 0 {
			t.Errorf("%+v comes back as %+v: %v", got, again, err)
		}
		if b := got.BlockBytes(); b <= 0 || got.Stride() < b || got.PageBytes() > kvstore.MaxPageBytes {
			t.Errorf("blocks of %d bytes, pages of %d", b, got.PageBytes())
		}
		other := got
		other.SaltPolicy += "x"
		if other.Pin() == got.Pin() {
			t.Error("another salt policy has the same pin")
		}
	})
}
