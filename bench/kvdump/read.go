package kvdump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/bench/kvfile"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Daemon says which blocks of which daemon are recorded.
type Daemon struct {
	// Socket is the unix socket of a daemon on this host, an absolute path. Its arena's file is read here. Required.
	Socket string
	// EngineID is the engine whose arena is read. Default: the only one there is.
	EngineID string
	// Tenant of the keys. Default: the default tenant.
	Tenant string
	// World is how many ranks the engine has registered for: the daemon takes no process with another number. Default 1.
	World int
	// Keys name the blocks, 8 to 64 bytes each, 1 to 65,536 of them. They are not changed. Required.
	Keys [][]byte
}

const (
	maxKeys     = 1 << 16
	callTimeout = 30 * time.Second
	// acquireTries is how often blocks are looked up again that were evicted before they were held.
	acquireTries = 3
)

func (d Daemon) check() error {
	if len(d.Socket) < 2 || d.Socket[0] != '/' {
		return &InputError{"socket", fmt.Sprintf("%q", d.Socket), "the absolute path of a daemon's unix socket"}
	}
	if len(d.Keys) == 0 || len(d.Keys) > maxKeys {
		return &InputError{"keys", fmt.Sprintf("%d keys", len(d.Keys)), fmt.Sprintf("1 to %d", maxKeys)}
	}
	for i, k := range d.Keys {
		if len(k) < 8 || len(k) > 64 {
			return &InputError{fmt.Sprintf("keys[%d]", i), fmt.Sprintf("%d bytes", len(k)), "8 to 64"}
		}
	}
	if d.World < 0 || d.World > 1024 {
		return &InputError{"world", fmt.Sprint(d.World), "1 to 1024 ranks"}
	}
	return nil
}

// reader is a process that has joined an engine to read its blocks.
type reader struct {
	d       Daemon
	client  pb.EngineServiceClient
	status  *pb.ArenaStatus
	node    string
	arenaID string
	stride  int64
	file    *os.File // the arena's, for reading
}

// Read records blocks that an engine has committed, in the order of their keys: those that are there, as many as MaxBytes allows. It
// joins the engine as one more process of it, which stays until the connection's process ends, holds the blocks while it reads them
// through the arena's file, which it opens for reading only, and gives them back. Errors: *InputError, *RefusedError, gRPC statuses of the
// daemon, fs.ErrExist for a file that is there, those of the file system; ctx's cause, or a status that
// says that it ended.
func Read(ctx context.Context, c Config, d Daemon) (_ *Summary, err error) {
	c = c.withDefaults()
	if err := errors.Join(d.check(), c.check()); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", d.Socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	r := &reader{d: d, client: pb.NewEngineServiceClient(conn)}
	c.Progress.Stage("ask the daemon", 0)
	if err := r.choose(ctx, pb.NewRegionServiceClient(conn)); err != nil {
		return nil, err
	}
	h, err := r.header()
	if err != nil {
		return nil, err
	}
	if err := r.join(ctx, h); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.file.Close()) }()
	lease, found, err := r.hold(ctx, func(have int) (int, error) { return c.blocks(h, have) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.release(ctx, lease.GetLeaseId())) }()
	rec, err := c.begin(h, len(lease.GetSlots()))
	if err != nil {
		return nil, err
	}
	s, err := rec.end(r.copy(ctx, lease.GetSlots(), rec))
	if s != nil {
		s.Absent, s.Left = len(d.Keys)-found, found-s.Blocks
	}
	return s, err
}

// choose finds the engine's arena.
func (r *reader) choose(ctx context.Context, region pb.RegionServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	st, err := region.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return err
	}
	r.node = st.GetNode().GetNodeId()
	ids := make([]string, 0, len(st.GetArenas()))
	for _, a := range st.GetArenas() {
		ids = append(ids, a.GetEngineId())
		if r.d.EngineID == "" || a.GetEngineId() == r.d.EngineID {
			r.status = a
		}
	}
	switch {
	case len(ids) == 0:
		return &RefusedError{fmt.Sprintf("no engine is registered at node %s", r.node), "start one; kvferry status shows them"}
	case r.d.EngineID == "" && len(ids) > 1:
		return &InputError{"engine", "not given", "one of " + strings.Join(ids, ", ")}
	case r.status == nil:
		return &InputError{"engine", fmt.Sprintf("%q", r.d.EngineID), "one of " + strings.Join(ids, ", ")}
	case r.status.GetBroken():
		return &RefusedError{fmt.Sprintf("the arena of engine %s is broken", r.status.GetEngineId()), "have the engine register again; its blocks are gone"}
	}
	return nil
}

var (
	dtypes = map[pb.Dtype]kvfile.DType{
		pb.Dtype_DTYPE_BF16: kvfile.BF16, pb.Dtype_DTYPE_FP16: kvfile.FP16, pb.Dtype_DTYPE_FP8_E4M3: kvfile.FP8E4M3, pb.Dtype_DTYPE_FP8_E5M2: kvfile.FP8E5M2,
	}
	kinds = map[pb.LayoutKind]kvfile.Kind{pb.LayoutKind_LAYOUT_KIND_GQA: kvfile.GQA, pb.LayoutKind_LAYOUT_KIND_MLA: kvfile.MLA}
)

// header is that of the engine's pages, without their layers.
func (r *reader) header() (kvfile.Header, error) {
	l := r.status.GetLayout()
	h := kvfile.Header{
		Model: l.GetModelId(), Revision: l.GetRevision(), Weights: l.GetWeightsVersion(), Source: short(fmt.Sprintf("engine %s (%s)", r.status.GetEngineId(), r.status.GetEngine())),
		DType: dtypes[l.GetDtype()], Kind: kinds[l.GetKind()], Layers: int(l.GetLayers()), KVHeads: int(l.GetKvHeads()), HeadDim: int(l.GetHeadDim()), Tokens: int(l.GetBlockTokens()),
		PageLayers: []int{0},
	}
	if err := h.Validate(); err != nil {
		return h, fmt.Errorf("layout of engine %s: %w", r.status.GetEngineId(), err)
	}
	h.PageBytes = int(r.status.GetBlockBytes() / int64(h.Layers))
	if err := h.Validate(); err != nil { // the daemon counts as we do
		return h, fmt.Errorf("layout of engine %s: %w", r.status.GetEngineId(), err)
	}
	return h, nil
}

// short cuts text to what a header takes.
func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), 200)], "") }

// join opens the arena's file and registers this process with the engine as it is: the same layout, software and, by leaving it out, prefill speed.
func (r *reader) join(ctx context.Context, h kvfile.Header) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, software := r.status.GetEngineId(), r.status.GetEngine()
	if r.file, err = os.Open(r.status.GetPath()); err != nil {
		return fmt.Errorf("open the arena, which has to be on this host and readable by this user: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.file.Close())
		}
	}()
	// A registration would have the daemon replace an arena that is cut off.
	if fi, err := r.file.Stat(); err != nil || fi.Size() < r.status.GetSlots()*r.status.GetBlockBytes() {
		return errors.Join(&RefusedError{fmt.Sprintf("the arena of engine %s is cut off", id), "have the engine register again; its blocks are gone"}, err)
	}
	i := max(strings.LastIndexByte(software, ' '), 0)
	reg, err := r.client.RegisterEngine(ctx, &pb.RegisterEngineRequest{
		EngineId: id, EngineName: software[:i], EngineVersion: strings.TrimPrefix(software[i:], " "), Layout: r.status.GetLayout(), World: uint32(max(r.d.World, 1)), WriteThrough: true,
	})
	if err != nil {
		return err
	}
	r.arenaID, r.stride = reg.GetArenaId(), reg.GetStrideBytes()
	if !r.same(reg.GetArenaPath()) {
		// The engine has gone since, and what we have been given is a new and empty arena; or it has another, and then keeps it.
		_, uerr := r.client.UnregisterEngine(ctx, &pb.UnregisterEngineRequest{EngineId: id, ArenaId: r.arenaID})
		if status.Code(uerr) == codes.FailedPrecondition {
			uerr = nil
		}
		return errors.Join(&RefusedError{fmt.Sprintf("the arena of engine %s has been replaced a moment ago", id), "try again when the engine has blocks"}, uerr)
	}
	if want := int64(h.Layers) * int64(h.PageBytes); reg.GetBlockBytes() != want || r.stride < want {
		return &RefusedError{fmt.Sprintf("the arena of engine %s has blocks of %d bytes, %d apart, and its layout makes %d", id, reg.GetBlockBytes(), r.stride, want), "use a daemon of this release"}
	}
	return nil
}

// same says whether the file that is open is the one at path.
func (r *reader) same(path string) bool {
	at, err := os.Stat(path)
	if err != nil {
		return false
	}
	open, err := r.file.Stat()
	return err == nil && os.SameFile(at, open)
}

// hold leases the blocks that are there, up to what most says of how many that are, and says how many there were.
func (r *reader) hold(ctx context.Context, most func(have int) (int, error)) (*pb.AcquireBlocksResponse, int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		look, err := r.client.LookupBlocks(ctx, &pb.LookupBlocksRequest{EngineId: r.status.GetEngineId(), ArenaId: r.arenaID, Tenant: r.d.Tenant, Keys: r.d.Keys})
		if err != nil {
			return nil, 0, err
		}
		var keys [][]byte
		for i, b := range look.GetBlocks()[:min(len(look.GetBlocks()), len(r.d.Keys))] {
			if b.GetState() == pb.BlockState_BLOCK_STATE_PRESENT {
				keys = append(keys, r.d.Keys[i])
			}
		}
		if len(keys) == 0 {
			return nil, 0, &RefusedError{
				fmt.Sprintf("none of the %d blocks is at node %s in the arena of engine %s, tenant %q", len(r.d.Keys), r.node, r.status.GetEngineId(), r.d.Tenant),
				"look at the keys, the tenant and the engine; kvferry sessions shows which sessions have blocks here",
			}
		}
		n, err := most(len(keys))
		if err != nil {
			return nil, 0, err
		}
		lease, err := r.client.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: r.status.GetEngineId(), ArenaId: r.arenaID, Tenant: r.d.Tenant, Keys: keys[:n]})
		if status.Code(err) == codes.NotFound && try < acquireTries {
			continue // evicted since
		}
		if err != nil {
			return nil, 0, err
		}
		if len(lease.GetSlots()) != n {
			return nil, 0, errors.Join(fmt.Errorf("%d blocks are held, %d were asked for", len(lease.GetSlots()), n), r.release(ctx, lease.GetLeaseId()))
		}
		return lease, len(keys), nil
	}
}

// release gives the blocks back, also when ctx has ended: a hold without an end keeps them until this process dies.
func (r *reader) release(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if _, err := r.client.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: r.status.GetEngineId(), ArenaId: r.arenaID, LeaseIds: []uint64{id}}); err != nil {
		return fmt.Errorf("give the blocks back: %w", err)
	}
	return nil
}

// copy writes the blocks in those slots.
func (r *reader) copy(ctx context.Context, slots []*pb.SlotRef, rec *recorder) error {
	block := make([]byte, rec.h.Layers*rec.h.PageBytes)
	for _, ref := range slots {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Reads of the file and not of a mapping: one that somebody truncates is an error and no fault.
		if _, err := io.ReadFull(io.NewSectionReader(r.file, int64(ref.GetSlot())*r.stride, int64(len(block))), block); err != nil {
			return fmt.Errorf("read slot %d of the arena: %w", ref.GetSlot(), err)
		}
		if err := rec.block(block); err != nil {
			return err
		}
	}
	return nil
}
