package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// testLayout has small pages: 4 layers x 2 heads x 16 dims x 16 tokens, 2 KiB a page, 8 KiB a block.
func testLayout() *pb.Layout {
	return &pb.Layout{
		ModelId: "test", Dtype: pb.Dtype_DTYPE_BF16, Kind: pb.LayoutKind_LAYOUT_KIND_GQA, Layers: 4, KvHeads: 2, HeadDim: 16, BlockTokens: 16,
		PositionScheme: "rope", HashAlgorithm: "sha256_chain", HashSeed: "0", SaltPolicy: "none",
	}
}

// bigLayout is the reference: 64 KiB pages, 5 MiB blocks.
func bigLayout() *pb.Layout {
	l := testLayout()
	l.Layers, l.KvHeads, l.HeadDim = 80, 8, 128
	return l
}

// fleet is two or more nodes over one model link.
type fleet struct {
	t      *testing.T
	net    *wan.Network
	ca     *certs.CA
	nodes  map[string]*node
	names  []string
	edit   func(name string, cfg *Config, parts *Parts) // changes every node before it starts; nil for none
	narrow bool                                         // the path is as slow as slow
}

// node is one daemon with clients to it.
type node struct {
	f      *fleet
	name   string
	cfg    Config
	ip     netip.Addr
	d      *Daemon
	local  *bufconn.Listener
	conn   *grpc.ClientConn
	engine pb.EngineServiceClient
	mig    pb.MigrationServiceClient
	region pb.RegionServiceClient
}

func newFleet(t *testing.T, model wan.Model, names ...string) *fleet {
	t.Helper()
	return newFleetEdited(t, model, nil, names...)
}

func newFleetEdited(t *testing.T, model wan.Model, edit func(string, *Config, *Parts), names ...string) *fleet {
	t.Helper()
	ca, err := certs.NewCA("test", 24*365*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, net: wan.NewNetwork(model), ca: ca, nodes: map[string]*node{}, names: names, edit: edit, narrow: model.Rate > 0 && model.Rate <= slow.Rate}
	t.Cleanup(func() { _ = f.net.Close() })
	for i := range names {
		f.addNode(i)
	}
	return f
}

func (f *fleet) ipOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// addNode starts node i.
func (f *fleet) addNode(i int) *node {
	f.t.Helper()
	name := f.names[i]
	cfg := Config{
		Node:   NodeConfig{ID: name, Region: "r-" + name},
		Listen: ListenConfig{Unix: "/nonexistent/unused", GRPC: off, Admin: off, QUIC: "0.0.0.0:1"},
		Arena:  ArenaConfig{Dir: f.arenaDir(), Bytes: 4 << 20},
	}
	if f.narrow { // its groups of packets are so small that parity takes a quarter of it, when what slow start drops is by chance taken for the path's loss
		cfg.Link.Repair = off
	}
	lock := false
	cfg.Arena.Lock = &lock
	cfg.GPU.Enabled = &lock // no cgo in a bubble
	for j, other := range f.names {
		if j != i {
			cfg.Peers = append(cfg.Peers, PeerConfig{Node: other, Region: "r-" + other, Address: netip.AddrPortFrom(f.ipOf(j), 7441).String()})
		}
	}
	pair, err := f.ca.Issue("r-"+name, name)
	if err != nil {
		f.t.Fatal(err)
	}
	tlsConfig := pair.Material(f.ca).ServerConfig()
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	conn, err := f.net.Listen(netip.AddrPortFrom(f.ipOf(i), 7441))
	if err != nil {
		f.t.Fatal(err)
	}
	n := &node{f: f, name: name, ip: f.ipOf(i), local: bufconn.Listen(1 << 20)}
	parts := Parts{
		Local: n.local, Packets: conn, TLS: tlsConfig, NoState: true, Version: "test",
		DialPacket: func(context.Context) (net.PacketConn, error) { return f.net.Listen(netip.AddrPortFrom(n.ip, 0)) },
	}
	if f.edit != nil {
		f.edit(name, &cfg, &parts)
	}
	n.cfg = cfg
	if n.d, err = Open(cfg, parts); err != nil {
		f.t.Fatalf("open %s: %v", name, err)
	}
	n.dial()
	f.nodes[name] = n
	f.t.Cleanup(n.stop)
	return n
}

func (f *fleet) arenaDir() string {
	f.t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvferry-test-")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (n *node) dial() {
	ids := newArenaIDs()
	conn, err := grpc.NewClient("passthrough:///local", grpc.WithTransportCredentials(insecure.NewCredentials()), ids.unary(), ids.stream(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.local.DialContext(ctx) }))
	if err != nil {
		n.f.t.Fatal(err)
	}
	n.conn = conn
	n.engine, n.mig, n.region = pb.NewEngineServiceClient(conn), pb.NewMigrationServiceClient(conn), pb.NewRegionServiceClient(conn)
}

func (n *node) stop() {
	if n.d == nil {
		return
	}
	_ = n.conn.Close()
	if err := n.d.Close(); err != nil {
		n.f.t.Errorf("close %s: %v", n.name, err)
	}
	n.d = nil
}

// testEngine writes seeded blocks through the arena file, as an engine does through its mapping.
type testEngine struct {
	n      *node
	id     string
	layout *pb.Layout
	reg    *pb.RegisterEngineResponse
	file   *os.File
	values bool // blocks hold normal BF16 values, which codecs make shorter
}

func (n *node) register(id string, l *pb.Layout, bytes int64) *testEngine {
	n.f.t.Helper()
	reg, err := n.engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{
		EngineId: id, EngineName: "test", EngineVersion: "1", Layout: l, ArenaBytes: bytes, Prefill: &pb.PrefillSpeed{SecondsPerToken: 1}, WriteThrough: true,
	})
	if err != nil {
		n.f.t.Fatalf("register %s at %s: %v", id, n.name, err)
	}
	file, err := os.OpenFile(reg.GetArenaPath(), os.O_RDWR, 0)
	if err != nil {
		n.f.t.Fatal(err)
	}
	n.f.t.Cleanup(func() { _ = file.Close() })
	return &testEngine{n: n, id: id, layout: l, reg: reg, file: file}
}

// chain returns n block keys of a sequence.
func chain(seed string, n int) [][]byte {
	keys := make([][]byte, n)
	parent := []byte(seed)
	for i := range keys {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint32(parent, uint32(i)))
		parent = sum[:]
		keys[i] = sum[:]
	}
	return keys
}

// content is what block key holds: random bytes that depend on the key alone.
func (e *testEngine) content(key []byte) []byte {
	out := make([]byte, e.reg.GetBlockBytes())
	rng := rand.NewChaCha8([32]byte(sha256.Sum256(key)))
	if e.values {
		normal := rand.New(rng)
		for i := 0; i+1 < len(out); i += 2 {
			binary.LittleEndian.PutUint16(out[i:], uint16(math.Float32bits(float32(normal.NormFloat64()))>>16))
		}
		return out
	}
	_, _ = rng.Read(out)
	return out
}

// write reserves, fills and commits blocks.
func (e *testEngine) write(tenant string, keys [][]byte) {
	e.n.f.t.Helper()
	ctx := context.Background()
	res, err := e.n.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Fatalf("reserve: %v", err)
	}
	var slots []*pb.SlotRef
	for i, r := range res.GetReservations() {
		if r.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
			continue
		}
		if _, err := e.file.WriteAt(e.content(keys[i]), int64(r.GetSlot().GetSlot())*e.reg.GetStrideBytes()); err != nil {
			e.n.f.t.Fatal(err)
		}
		slots = append(slots, r.GetSlot())
	}
	com, err := e.n.engine.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: e.id, Slots: slots})
	if err != nil {
		e.n.f.t.Fatalf("commit: %v", err)
	}
	for i, ok := range com.GetCommitted() {
		if !ok {
			e.n.f.t.Fatalf("block %d is not committed", i)
		}
	}
}

func (e *testEngine) publish(tenant, session string, keys [][]byte, tokens int64) *pb.Session {
	e.n.f.t.Helper()
	resp, err := e.n.engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
		EngineId: e.id, Session: &pb.SessionRef{Tenant: tenant, SessionId: session}, BlockKeys: keys, Tokens: tokens,
	})
	if err != nil {
		e.n.f.t.Fatalf("publish: %v", err)
	}
	return resp.GetSession()
}

// check acquires blocks and compares every byte.
func (e *testEngine) check(tenant string, keys [][]byte) {
	e.n.f.t.Helper()
	ctx := context.Background()
	acq, err := e.n.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		e.n.f.t.Fatalf("acquire at %s: %v", e.n.name, err)
	}
	got := make([]byte, e.reg.GetBlockBytes())
	for i, s := range acq.GetSlots() {
		if _, err := e.file.ReadAt(got, int64(s.GetSlot())*e.reg.GetStrideBytes()); err != nil {
			e.n.f.t.Fatal(err)
		}
		if !bytes.Equal(got, e.content(keys[i])) {
			e.n.f.t.Fatalf("block %d at %s differs from what was written", i, e.n.name)
		}
	}
	if _, err := e.n.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: e.id, LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
		e.n.f.t.Fatal(err)
	}
}

var requests int

func request(session string) *pb.MigrateRequest {
	requests++
	return &pb.MigrateRequest{
		RequestId: fmt.Sprintf("req-%d", requests), Session: &pb.SessionRef{SessionId: session}, Mode: pb.Mode_MODE_FETCH, Deadline: durationpb.New(5 * time.Minute),
	}
}

// migrate runs req to its end and returns the report and the states on the way.
func (n *node) migrate(req *pb.MigrateRequest) (*pb.MigrationReport, []pb.MigrationState, error) {
	stream, err := n.mig.Migrate(context.Background(), req)
	if err != nil {
		return nil, nil, err
	}
	var states []pb.MigrationState
	for {
		u, err := stream.Recv()
		if err != nil {
			return nil, states, err
		}
		if len(states) == 0 || states[len(states)-1] != u.GetState() {
			states = append(states, u.GetState())
		}
		if u.GetReport() != nil {
			return u.GetReport(), states, nil
		}
	}
}

func (n *node) mustMigrate(req *pb.MigrateRequest, want pb.MigrationState) *pb.MigrationReport {
	n.f.t.Helper()
	rep, _, err := n.migrate(req)
	if err != nil {
		n.f.t.Fatalf("migrate: %v", err)
	}
	if rep.GetState() != want {
		n.f.t.Fatalf("migrate ended in %v (%s: %s), want %v", rep.GetState(), rep.GetCode(), rep.GetMessage(), want)
	}
	return rep
}

// idle is what a node holds when nothing is going on.
type idle struct {
	Reserved, Draining, Leases, LeasedBlocks, Active, Offers, Backlog, Transfers, Streams int64
}

func (n *node) idle() idle {
	n.f.t.Helper()
	st, err := n.region.Status(context.Background(), &pb.StatusRequest{})
	if err != nil {
		n.f.t.Fatal(err)
	}
	links, err := n.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
	if err != nil {
		n.f.t.Fatal(err)
	}
	out := idle{Active: st.GetActiveMigrations(), Offers: st.GetOffers(), Backlog: st.GetEgressBacklogBytes()}
	for _, a := range st.GetArenas() {
		out.Reserved += a.GetSlotsReserved()
		out.Draining += a.GetSlotsDraining()
		out.Leases += a.GetLeases()
		out.LeasedBlocks += a.GetLeasedBlocks()
	}
	for _, l := range links.GetLinks() {
		out.Transfers += l.GetTransfers()
		out.Streams += l.GetStreams()
		out.Backlog += l.GetEgressBacklogBytes()
	}
	return out
}

// settle waits two seconds of virtual time and holds every node to idle.
func (f *fleet) settle() {
	f.t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	for name, n := range f.nodes {
		if n.d == nil {
			continue
		}
		got := n.idle()
		for range 10 { // a full path may have lost the word that a stream is over: it comes again
			if got == (idle{}) {
				break
			}
			time.Sleep(time.Second)
			synctest.Wait()
			got = n.idle()
		}
		if got != (idle{}) {
			f.t.Errorf("%s holds %+v after all is over", name, got)
		}
	}
}

// thinned is full, and fewer with -short, as under the race detector: `make test` runs all.
func thinned(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// bubble runs f in virtual time and ends it whole: no goroutine may be left.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	runtime.GC() // finalisers of earlier tests belong outside the bubble
	synctest.Test(t, f)
}
