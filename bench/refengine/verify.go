package refengine

import (
	"context"
	"errors"
	"fmt"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A VerifyRequest names blocks to be read from the daemon and held to what they must be.
type VerifyRequest struct {
	Tenant string   `json:"tenant,omitempty"`
	Keys   [][]byte `json:"keys"`
}

// A Verified is what Verify found.
type Verified struct {
	// Present counts the blocks that the daemon has, each of which was read.
	Present int `json:"present"`
	// Missing are the places of the others in the request's keys.
	Missing []int `json:"missing,omitempty"`
	// Damaged are those with a page that is not what its key says.
	Damaged []DamagedBlock `json:"damaged,omitempty"`
}

// A DamagedBlock is a block that the daemon has and whose bytes are wrong.
type DamagedBlock struct {
	Block int    `json:"block"` // its place in the request's keys
	Slot  uint32 `json:"slot"`  // where it is in the arena
	Pages int    `json:"pages"` // that are wrong
}

// ErrNotPaced is returned by Verify of an engine that computes: it can't say what the blocks of a key must be.
var ErrNotPaced = errors.New("refengine: only a paced engine knows what a block must be; set Pace")

// Verify reads every block of the request that the daemon has and compares it with what its key says, byte for byte. It waits for a
// turn. Errors: ErrNotPaced, ErrClosed, ctx's cause, the gRPC status of the daemon.
func (e *Engine) Verify(ctx context.Context, req VerifyRequest) (*Verified, error) {
	paced, ok := e.compute.(pacedGPU)
	if !ok {
		return nil, ErrNotPaced
	}
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	defer e.end()
	out, mem := &Verified{}, paced.newMemory()
	for i, key := range req.Keys {
		err := e.lookAt(ctx, req.Tenant, key, func(ref *kvferryv1.SlotRef, block []byte) {
			out.Present++
			if n := mem.importBlock(i, key, block); n > 0 {
				out.Damaged = append(out.Damaged, DamagedBlock{Block: i, Slot: ref.GetSlot(), Pages: n})
			}
		})
		switch {
		case errors.Is(err, errAbsent):
			out.Missing = append(out.Missing, i)
		case err != nil:
			return nil, fmt.Errorf("refengine: verify block %d: %w", i, err)
		}
	}
	return out, nil
}

var errAbsent = errors.New("the daemon does not have the block")

// lookAt calls see with one block while it is leased. It returns errAbsent where there is none. The caller holds the turn.
func (e *Engine) lookAt(ctx context.Context, tenant string, key []byte, see func(*kvferryv1.SlotRef, []byte)) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := e.client.AcquireBlocks(ctx, &kvferryv1.AcquireBlocksRequest{
		EngineId: e.cfg.EngineID, ArenaId: e.arenaID(), Tenant: tenant, Keys: [][]byte{key}, Prefix: true,
	})
	if err != nil {
		return err
	}
	if lease.GetLeaseId() == 0 || len(lease.GetSlots()) == 0 {
		return errAbsent
	}
	mem, err := e.arena.Slot(lease.GetSlots()[0])
	if err == nil {
		see(lease.GetSlots()[0], mem)
	}
	free, freed := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer freed()
	_, freeErr := e.client.ReleaseBlocks(free, &kvferryv1.ReleaseBlocksRequest{EngineId: e.cfg.EngineID, ArenaId: e.arenaID(), LeaseIds: []uint64{lease.GetLeaseId()}})
	return errors.Join(err, freeErr)
}
