package goodput

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/bench/arenafile"
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

// register makes our engine known and maps its arena where that is on this host. Its id carries the arena's shape and size: what
// another run has left behind, or has in use, is met only by a run that wants the very same.
func (e *engine) register(ctx context.Context, page, pages, slots int) error {
	e.id = fmt.Sprintf("kvferry-bench-%dx%dx%d", page, pages, slots)
	block := int64(page) * int64(pages)
	stride := (block + 4095) &^ 4095
	resp, err := e.client.RegisterEngine(ctx, &pb.RegisterEngineRequest{
		EngineId: e.id, EngineName: "kvferry bench", EngineVersion: "1", Layout: layoutOf(page, pages), ArenaBytes: int64(slots) * stride, World: 1, WriteThrough: true,
	})
	if err != nil {
		return err
	}
	e.values = make([]byte, block)
	fillKV(e.values, page, 1)
	e.slots, e.arenaID = int(resp.GetSlots()), resp.GetArenaId()
	e.arena, err = arenafile.Map(resp, block, int64(page))
	if errors.Is(err, fs.ErrNotExist) { // it is on another host
		err = nil
	}
	if err != nil {
		return fmt.Errorf("arena of node %s: %w", e.node, err)
	}
	return nil
}

// unregister has the daemon give the arena back, and says why it did not; "" also when there is nothing to give back. The daemon
// hears of the end of a migration a moment after we do, and of one that failed when its lease ends, which is not waited for.
func (e *engine) unregister(ctx context.Context) (why string) {
	if e == nil || e.arenaID == "" {
		return ""
	}
	id := e.arenaID
	e.arenaID = ""
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unregisterTimeout) // an interrupted run cleans up, too
	defer cancel()
	for {
		_, err := e.client.UnregisterEngine(ctx, &pb.UnregisterEngineRequest{EngineId: e.id, ArenaId: id})
		switch status.Code(err) {
		case codes.OK, codes.Unavailable, codes.NotFound: // gone, or the daemon is, and its arenas with it
			return ""
		case codes.FailedPrecondition:
			if pause(ctx, leaseLook) {
				continue
			}
		case codes.Unimplemented:
			return "it is of a release that gives arenas back when it ends"
		default:
		}
		return status.Convert(err).Message()
	}
}

// fill writes a block of values as caches have them, all of its own: the bits of their mantissas, which do not compress anyway, are
// changed by the seed.
func (e *engine) fill(b []byte, seed uint64) {
	const mantissas = 0x007f_007f_007f_007f
	fill(b, seed)
	copy(b[len(b)&^7:], e.values[len(b)&^7:])
	for i := 0; i+8 <= len(b); i += 8 {
		v := binary.LittleEndian.Uint64(b[i:])&mantissas ^ binary.LittleEndian.Uint64(e.values[i:])
		binary.LittleEndian.PutUint64(b[i:], v)
	}
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
		mem, err := e.arena.Slot(r.GetSlot())
		if err != nil {
			return err
		}
		e.fill(mem, seedOf(keys[i]))
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
	// unregisterTimeout is how long giving an arena back may take.
	unregisterTimeout = 5 * time.Second
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
	want := make([]byte, e.arena.BlockBytes())
	for i, ref := range lease.GetSlots() {
		mem, err := e.arena.Slot(ref)
		if err != nil {
			return err
		}
		if e.fill(want, seedOf(keys[i])); !bytes.Equal(mem, want) {
			return fmt.Errorf("block %d (%x) differs at node %s from what was written at the source", i, keys[i], e.node)
		}
	}
	return nil
}
