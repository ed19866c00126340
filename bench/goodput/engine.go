package goodput

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// tenant keeps the bench's blocks apart from everybody's.
const tenant = "kvferry-bench"

// layoutOf has pages and blocks of those sizes: BF16 latents, in 16 tokens a block or, for large pages, 256.
func layoutOf(page, pages int) *pb.Layout {
	tokens := 16
	if page > 256<<10 {
		tokens = 256
	}
	return &pb.Layout{
		ModelId: "kvferry/bench", Revision: fmt.Sprintf("%dx%d", page, pages), Dtype: pb.Dtype_DTYPE_BF16, Kind: pb.LayoutKind_LAYOUT_KIND_MLA, Layers: uint32(pages),
		KvHeads: 1, HeadDim: uint32(page / 2 / tokens), BlockTokens: uint32(tokens), PositionScheme: "none", HashAlgorithm: "kvferry/bench", SaltPolicy: "none",
	}
}

// register makes our engine known and maps its arena where that is on this host. An engine of that shape from an earlier run
// is used again, with the arena that it has.
func (e *engine) register(ctx context.Context, page, pages, slots int) error {
	e.id = fmt.Sprintf("kvferry-bench-%dx%d", page, pages)
	block := int64(page) * int64(pages)
	stride := (block + 4095) &^ 4095
	resp, err := e.client.RegisterEngine(ctx, &pb.RegisterEngineRequest{
		EngineId: e.id, EngineName: "kvferry bench", EngineVersion: "1", Layout: layoutOf(page, pages), ArenaBytes: int64(slots) * stride, World: 1, WriteThrough: true,
	})
	if err != nil {
		return err
	}
	if resp.GetBlockBytes() != block || resp.GetPageBytes() != int64(page) || resp.GetStrideBytes() != stride || resp.GetSlots() == 0 {
		return fmt.Errorf("node %s gave an arena of %d slots of %d bytes, blocks of %d and pages of %d, instead of blocks of %d and pages of %d",
			e.node, resp.GetSlots(), resp.GetStrideBytes(), resp.GetBlockBytes(), resp.GetPageBytes(), block, page)
	}
	e.slots, e.arenaID = int(resp.GetSlots()), resp.GetArenaId()
	e.arena, err = mapArena(resp)
	return err
}

// write fills and commits blocks.
func (e *engine) write(ctx context.Context, keys [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	got, err := e.reserve(ctx, keys)
	if err != nil {
		return err
	}
	slots := make([]*pb.SlotRef, 0, len(keys))
	for i, r := range got.GetReservations() {
		if i >= len(keys) || r.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
			return fmt.Errorf("block %d of a fresh name is %s at node %s", i, r.GetState(), e.node)
		}
		mem, err := e.arena.slot(r.GetSlot())
		if err != nil {
			return err
		}
		fill(mem, seedOf(keys[i]))
		slots = append(slots, r.GetSlot())
	}
	done, err := e.client.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: e.id, ArenaId: e.arenaID, Slots: slots, World: 1, Fidelity: pb.Fidelity_FIDELITY_EXACT})
	if err != nil {
		return err
	}
	for i := range keys {
		if i >= len(done.GetCommitted()) || !done.GetCommitted()[i] {
			return fmt.Errorf("block %d is not visible at node %s after its commit", i, e.node)
		}
	}
	return nil
}

// How long the source may hold the blocks of a migration that has ended: it is told at once, and else waits for its lease to end.
const (
	leaseTimeout = 60 * time.Second
	leaseLook    = 20 * time.Millisecond
)

// reserve takes slots. While all of them are leased by the migration before, it waits.
func (e *engine) reserve(ctx context.Context, keys [][]byte) (*pb.ReserveBlocksResponse, error) {
	for {
		got, err := e.client.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: e.id, ArenaId: e.arenaID, Tenant: tenant, Keys: keys})
		if err == nil || status.Code(err) != codes.ResourceExhausted || !pause(ctx, leaseLook) {
			return got, err
		}
	}
}

// verify compares landed blocks with what was written; nothing when the arena is not on this host.
func (e *engine) verify(ctx context.Context, keys [][]byte) (err error) {
	if e.arena == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout) // the lease must end
	defer cancel()
	lease, err := e.client.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: e.id, ArenaId: e.arenaID, Tenant: tenant, Keys: keys})
	if err != nil {
		return fmt.Errorf("look at the landed blocks: %w", err)
	}
	defer func() {
		_, rerr := e.client.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: e.id, ArenaId: e.arenaID, LeaseIds: []uint64{lease.GetLeaseId()}})
		err = errors.Join(err, rerr)
	}()
	if len(lease.GetSlots()) != len(keys) {
		return fmt.Errorf("%d of %d landed blocks are there", len(lease.GetSlots()), len(keys))
	}
	want := make([]byte, e.arena.block)
	for i, ref := range lease.GetSlots() {
		mem, err := e.arena.slot(ref)
		if err != nil {
			return err
		}
		if fill(want, seedOf(keys[i])); !bytes.Equal(mem, want) {
			return fmt.Errorf("block %d (%x) differs at node %s from what was written at the source", i, keys[i], e.node)
		}
	}
	return nil
}

// arena is a mapping of a daemon's arena file.
type arena struct {
	mem           []byte
	slots         uint32
	stride, block int64
}

// mapArena maps the file, after checking its size: a mapping beyond its end is a SIGBUS later. Nil without an error: there is no
// such file here.
func mapArena(r *pb.RegisterEngineResponse) (*arena, error) {
	a := &arena{slots: r.GetSlots(), stride: r.GetStrideBytes(), block: r.GetBlockBytes()}
	f, err := os.OpenFile(r.GetArenaPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open arena: %w", err)
	}
	defer func() { _ = f.Close() }()
	size := int64(a.slots) * a.stride
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat arena: %w", err)
	}
	if size <= 0 || size > 1<<46 || st.Size() < size {
		return nil, fmt.Errorf("arena %s has %d bytes, its %d slots of %d need %d", r.GetArenaPath(), st.Size(), a.slots, a.stride, size)
	}
	if a.mem, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map arena %s: %w", r.GetArenaPath(), err)
	}
	return a, nil
}

// slot is the memory of one block.
func (a *arena) slot(ref *pb.SlotRef) ([]byte, error) {
	if ref == nil || ref.GetSlot() >= a.slots {
		return nil, fmt.Errorf("slot %d is outside of the arena's %d", ref.GetSlot(), a.slots)
	}
	at := int64(ref.GetSlot()) * a.stride
	return a.mem[at : at+a.block : at+a.block], nil
}

func (a *arena) close() error {
	if a == nil || a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem = nil
	return unix.Munmap(mem)
}
