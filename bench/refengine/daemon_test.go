package refengine

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// fakeDaemon is an EngineService over one arena file, with the rules that an
// engine must keep: it fails calls that break them.
type fakeDaemon struct {
	kvferryv1.UnimplementedEngineServiceServer
	t        *testing.T
	listener *bufconn.Listener
	events   chan *kvferryv1.EventsResponse

	mu         sync.Mutex
	arena      string        // its id
	gone       chan struct{} // closed when another arena takes its place
	registered bool
	dir, path  string
	arenas     int
	file       *os.File
	layout     *kvferryv1.Layout
	slots      []fakeSlot
	maxSlots   int
	index      map[string]uint32
	leases     map[uint64][]uint32
	nextLease  uint64
	sessions   map[string]*kvferryv1.Session
	register   []*kvferryv1.RegisterEngineRequest
	calls      map[string]int
	fail       map[string]error  // by method, returned instead of an answer
	before     map[string]func() // by method, called once before the next call, locked
}

type arenaCall interface{ GetArenaId() string }

// check refuses a call about another arena, as the daemon does.
func (d *fakeDaemon) check(q arenaCall) error {
	if d.registered && q.GetArenaId() == d.arena {
		return nil
	}
	st, err := status.New(codes.FailedPrecondition, "arena is gone").WithDetails(&errdetails.ErrorInfo{Reason: "ARENA_STALE", Domain: "kvferry.v1"})
	if err != nil {
		return err
	}
	return st.Err()
}

// restart is the daemon's end and its next start: another arena, and nothing in it. Locked.
func (d *fakeDaemon) restart() {
	if d.gone != nil {
		close(d.gone)
	}
	if d.file != nil {
		_ = d.file.Close()
		_ = os.Remove(d.path)
	}
	d.arenas++
	d.arena, d.path, d.gone = fmt.Sprintf("arena-%d", d.arenas), filepath.Join(d.dir, fmt.Sprint(d.arenas)), make(chan struct{})
	d.registered, d.file, d.slots, d.index, d.leases = false, nil, nil, map[string]uint32{}, map[uint64][]uint32{}
}

type fakeSlot struct {
	key        string
	generation uint64
	ranks      map[uint32]bool // committed so far
	visible    bool
	used       bool
}

func newFakeDaemon(t *testing.T, slots int) *fakeDaemon {
	d := &fakeDaemon{
		t: t, listener: bufconn.Listen(1 << 20), events: make(chan *kvferryv1.EventsResponse, 16), maxSlots: slots,
		dir: t.TempDir(), before: map[string]func(){},
		sessions: map[string]*kvferryv1.Session{}, calls: map[string]int{}, fail: map[string]error{},
	}
	d.restart()
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		name := filepath.Base(info.FullMethod)
		d.calls[name]++
		if err := d.fail[name]; err != nil {
			return nil, err
		}
		if f := d.before[name]; f != nil {
			delete(d.before, name)
			f()
		}
		if q, ok := req.(arenaCall); ok {
			if err := d.check(q); err != nil {
				return nil, err
			}
		}
		return h(ctx, req)
	}))
	kvferryv1.RegisterEngineServiceServer(s, d)
	go func() { _ = s.Serve(d.listener) }()
	t.Cleanup(func() {
		s.Stop()
		if d.file != nil {
			_ = d.file.Close()
		}
	})
	return d
}

func (d *fakeDaemon) dial() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return d.listener.DialContext(ctx)
	})}
}

func (d *fakeDaemon) RegisterEngine(_ context.Context, r *kvferryv1.RegisterEngineRequest) (*kvferryv1.RegisterEngineResponse, error) {
	d.register = append(d.register, r)
	d.registered = true
	l := r.GetLayout()
	page := int64(2 * l.GetKvHeads() * l.GetBlockTokens() * l.GetHeadDim() * 2)
	block := page * int64(l.GetLayers())
	stride := (block + 4095) &^ 4095
	if d.file == nil {
		f, err := os.Create(d.path)
		if err != nil {
			return nil, err
		}
		if err := f.Truncate(stride * int64(d.maxSlots)); err != nil {
			return nil, err
		}
		d.file, d.layout, d.slots = f, l, make([]fakeSlot, d.maxSlots)
	}
	return &kvferryv1.RegisterEngineResponse{
		Node:      &kvferryv1.Node{NodeId: "node", RegionId: "region"},
		ArenaPath: d.path, Slots: uint32(d.maxSlots), StrideBytes: stride, BlockBytes: block, PageBytes: page,
		LayoutPin: make([]byte, 32), ArenaId: d.arena,
	}, nil
}

func full(tenant string, key []byte) string { return tenant + "\x00" + string(key) }

func (d *fakeDaemon) ReserveBlocks(_ context.Context, r *kvferryv1.ReserveBlocksRequest) (*kvferryv1.ReserveBlocksResponse, error) {
	if p := r.GetParentKey(); len(p) > 0 && len(p) != 32 {
		return nil, status.Errorf(codes.InvalidArgument, "parent key of %d bytes", len(p))
	}
	need := 0
	for _, k := range r.GetKeys() {
		if _, ok := d.index[full(r.GetTenant(), k)]; !ok {
			need++
		}
	}
	var free []uint32
	for i, s := range d.slots {
		if !s.used {
			free = append(free, uint32(i))
		}
	}
	if need > len(free) {
		return nil, status.Errorf(codes.ResourceExhausted, "arena is full: %d slots free, %d needed", len(free), need)
	}
	out := &kvferryv1.ReserveBlocksResponse{}
	for _, k := range r.GetKeys() {
		res := &kvferryv1.Reservation{State: kvferryv1.ReservationState_RESERVATION_STATE_RESERVED}
		i, ok := d.index[full(r.GetTenant(), k)]
		if !ok {
			i, free = free[0], free[1:]
			d.index[full(r.GetTenant(), k)] = i
			s := &d.slots[i]
			*s = fakeSlot{key: full(r.GetTenant(), k), generation: s.generation + 1, ranks: map[uint32]bool{}, used: true}
		}
		res.Slot = &kvferryv1.SlotRef{Slot: i, Generation: d.slots[i].generation}
		if d.slots[i].visible {
			res.State, res.Slot = kvferryv1.ReservationState_RESERVATION_STATE_PRESENT, nil
		}
		out.Reservations = append(out.Reservations, res)
	}
	return out, nil
}

func (d *fakeDaemon) slot(ref *kvferryv1.SlotRef) (*fakeSlot, error) {
	s := &d.slots[ref.GetSlot()]
	if !s.used || s.generation != ref.GetGeneration() {
		return nil, status.Errorf(codes.FailedPrecondition, "stale slot %v", ref)
	}
	return s, nil
}

func (d *fakeDaemon) CommitBlocks(_ context.Context, r *kvferryv1.CommitBlocksRequest) (*kvferryv1.CommitBlocksResponse, error) {
	out := &kvferryv1.CommitBlocksResponse{}
	for _, ref := range r.GetSlots() {
		s, err := d.slot(ref)
		if err != nil {
			return nil, err
		}
		if s.ranks[r.GetRank()] || s.visible {
			return nil, status.Errorf(codes.FailedPrecondition, "rank %d commits slot %v twice", r.GetRank(), ref)
		}
		s.ranks[r.GetRank()] = true
		s.visible = len(s.ranks) == int(r.GetWorld())
		out.Committed = append(out.Committed, s.visible)
	}
	return out, nil
}

func (d *fakeDaemon) LookupBlocks(_ context.Context, r *kvferryv1.LookupBlocksRequest) (*kvferryv1.LookupBlocksResponse, error) {
	out := &kvferryv1.LookupBlocksResponse{}
	for _, k := range r.GetKeys() {
		st := kvferryv1.BlockState_BLOCK_STATE_ABSENT
		if i, ok := d.index[full(r.GetTenant(), k)]; ok && d.slots[i].visible {
			st = kvferryv1.BlockState_BLOCK_STATE_PRESENT
		}
		out.Blocks = append(out.Blocks, &kvferryv1.BlockStatus{State: st})
	}
	return out, nil
}

func (d *fakeDaemon) AcquireBlocks(_ context.Context, r *kvferryv1.AcquireBlocksRequest) (*kvferryv1.AcquireBlocksResponse, error) {
	out := &kvferryv1.AcquireBlocksResponse{}
	var slots []uint32
	for _, k := range r.GetKeys() {
		i, ok := d.index[full(r.GetTenant(), k)]
		if !ok || !d.slots[i].visible {
			break
		}
		slots = append(slots, i)
		out.Slots = append(out.Slots, &kvferryv1.SlotRef{Slot: i, Generation: d.slots[i].generation})
	}
	if len(slots) > 0 {
		d.nextLease++
		d.leases[d.nextLease] = slots
		out.LeaseId = d.nextLease
	}
	return out, nil
}

func (d *fakeDaemon) ReleaseBlocks(_ context.Context, r *kvferryv1.ReleaseBlocksRequest) (*kvferryv1.ReleaseBlocksResponse, error) {
	for _, id := range r.GetLeaseIds() {
		if _, ok := d.leases[id]; !ok {
			return nil, status.Errorf(codes.NotFound, "lease %d", id)
		}
		delete(d.leases, id)
	}
	for _, ref := range r.GetAborted() {
		s, err := d.slot(ref)
		if err != nil {
			return nil, err
		}
		delete(d.index, s.key)
		s.used = false
	}
	return &kvferryv1.ReleaseBlocksResponse{}, nil
}

func (d *fakeDaemon) PublishSession(_ context.Context, r *kvferryv1.PublishSessionRequest) (*kvferryv1.PublishSessionResponse, error) {
	for i, k := range r.GetBlockKeys() {
		if at, ok := d.index[full(r.GetSession().GetTenant(), k)]; !ok || !d.slots[at].visible {
			return nil, status.Errorf(codes.FailedPrecondition, "block %d of the session is not here", i)
		}
	}
	key := sessionKey(r.GetSession().GetTenant(), r.GetSession().GetSessionId())
	s := d.sessions[key]
	if s == nil {
		s = &kvferryv1.Session{Ref: r.GetSession(), Epoch: 1}
		d.sessions[key] = s
	}
	s.Version++
	s.BlockKeys, s.Tokens = r.GetBlockKeys(), r.GetTokens()
	return &kvferryv1.PublishSessionResponse{Session: s}, nil
}

func (d *fakeDaemon) Events(r *kvferryv1.EventsRequest, s grpc.ServerStreamingServer[kvferryv1.EventsResponse]) error {
	d.mu.Lock()
	err, gone := d.check(r), d.gone
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		select {
		case ev := <-d.events:
			if err := s.Send(ev); err != nil {
				return err
			}
		case <-gone:
			return status.Error(codes.Unavailable, "the daemon is restarting")
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// checkQuiet fails the test if the engine holds a lease or a reservation.
func (d *fakeDaemon) checkQuiet() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.leases) > 0 {
		d.t.Errorf("%d leases are held", len(d.leases))
	}
	for i, s := range d.slots {
		if s.used && !s.visible {
			d.t.Errorf("slot %d is reserved and not committed", i)
		}
	}
}

// block returns the pages of a visible block.
func (d *fakeDaemon) block(tenant string, key []byte) []byte {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.index[full(tenant, key)]
	if !ok || !d.slots[i].visible {
		d.t.Fatalf("block %x is not in the daemon", key)
	}
	b := make([]byte, d.blockBytes())
	if _, err := d.file.ReadAt(b, int64(i)*d.stride()); err != nil {
		d.t.Fatal(err)
	}
	return b
}

// damage rewrites a visible block.
func (d *fakeDaemon) damage(key []byte, f func([]byte)) {
	d.t.Helper()
	b := d.block("", key)
	f(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.file.WriteAt(b, int64(d.index[full("", key)])*d.stride()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *fakeDaemon) blockBytes() int64 {
	l := d.layout
	return int64(2*l.GetKvHeads()*l.GetBlockTokens()*l.GetHeadDim()*2) * int64(l.GetLayers())
}

func (d *fakeDaemon) stride() int64 { return (d.blockBytes() + 4095) &^ 4095 }

// move copies blocks to another daemon, as a migration would.
func (d *fakeDaemon) move(to *fakeDaemon, keys [][]byte) {
	d.t.Helper()
	for _, k := range keys {
		b := d.block("", k)
		to.mu.Lock()
		if to.file == nil {
			to.mu.Unlock()
			d.t.Fatal("move before the destination's engine has registered")
		}
		res, err := to.ReserveBlocks(context.Background(), &kvferryv1.ReserveBlocksRequest{Keys: [][]byte{k}})
		if err != nil {
			d.t.Fatal(err)
		}
		ref := res.GetReservations()[0].GetSlot()
		if _, err := to.file.WriteAt(b, int64(ref.GetSlot())*to.stride()); err != nil {
			d.t.Fatal(err)
		}
		if _, err := to.CommitBlocks(context.Background(), &kvferryv1.CommitBlocksRequest{Slots: []*kvferryv1.SlotRef{ref}, World: 1}); err != nil {
			d.t.Fatal(fmt.Errorf("move: %w", err))
		}
		to.mu.Unlock()
	}
}
