package refengine

import (
	"context"
	"fmt"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// This file is what a turn says to the daemon. Nothing here fails a turn but
// publish.

// call bounds one call to the daemon.
func (t *turn) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.ctx, callTimeout)
}

// load takes the longest prefix of keys, the blocks from first on, that the
// daemon holds into the cache.
func (t *turn) load(first int, keys [][]byte) {
	ctx, cancel := t.call()
	defer cancel()
	found, err := t.e.client.LookupBlocks(ctx, &kvferryv1.LookupBlocksRequest{
		EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), Tenant: t.req.Tenant, Keys: keys,
	})
	if t.attachAgain(err) {
		return // nothing is there yet
	}
	if err != nil {
		t.warn("look up %d blocks: %v", len(keys), err)
		return
	}
	n := 0
	for _, b := range found.GetBlocks() {
		if b.GetState() != kvferryv1.BlockState_BLOCK_STATE_PRESENT {
			break
		}
		n++
	}
	if n = min(n, len(keys)); n > 0 {
		t.read(first, keys[:n])
	}
}

// loadOne takes one block that the daemon said it has; false if it no longer
// has it, and then does not ask again.
func (t *turn) loadOne(block int) bool {
	delete(t.elsewhere, block)
	before, attached := len(t.seq.keys), t.attached
	t.read(block, t.keys[block:block+1])
	if t.attached != attached && t.req.Commit {
		t.reserveAgain()
	}
	return len(t.seq.keys) > before
}

// read leases blocks, copies them into the cache and ends the lease.
func (t *turn) read(first int, keys [][]byte) {
	ctx, cancel := t.call()
	defer cancel()
	lease, err := t.e.client.AcquireBlocks(ctx, &kvferryv1.AcquireBlocksRequest{
		EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), Tenant: t.req.Tenant, Keys: keys, Prefix: true,
	})
	if t.attachAgain(err) {
		return
	}
	if err != nil {
		t.warn("acquire %d blocks: %v", len(keys), err)
		return
	}
	if id := lease.GetLeaseId(); id != 0 {
		defer t.release(&kvferryv1.ReleaseBlocksRequest{EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), LeaseIds: []uint64{id}})
	}
	for i, ref := range lease.GetSlots()[:min(len(keys), len(lease.GetSlots()))] {
		mem, err := t.e.arena.Slot(ref)
		if err != nil {
			t.warn("read block %d: %v", first+i, err)
			return
		}
		t.res.DamagedPages += t.seq.mem.importBlock(first+i, keys[i], mem)
		t.seq.add(keys[i], true)
		t.inDaemon[first+i] = true
		t.res.LoadedBlocks = append(t.res.LoadedBlocks, first+i)
		t.e.count(func(c *Counters) { c.LoadedBlocks++ })
	}
}

// reserve asks for slots for the blocks from first on. Those that the cache
// holds already and the daemon lacks are written at once.
func (t *turn) reserve(first int, keys [][]byte) {
	if len(keys) == 0 {
		return
	}
	ctx, cancel := t.call()
	defer cancel()
	req := &kvferryv1.ReserveBlocksRequest{EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), Tenant: t.req.Tenant, Keys: keys}
	if first > 0 {
		req.ParentKey = t.keys[first-1]
	}
	got, err := t.e.client.ReserveBlocks(ctx, req)
	if t.attachAgain(err) {
		t.reserveAgain()
		return
	}
	if err != nil {
		t.warn("reserve %d blocks: %v", len(keys), err)
		return
	}
	if len(got.GetReservations()) != len(keys) {
		t.warn("reserve %d blocks: %d answers", len(keys), len(got.GetReservations()))
	}
	for i, r := range got.GetReservations()[:min(len(keys), len(got.GetReservations()))] {
		block := first + i
		cached := block < len(t.seq.keys)
		switch r.GetState() {
		case kvferryv1.ReservationState_RESERVATION_STATE_RESERVED:
			t.slots[block] = r.GetSlot()
			if cached {
				t.finish(block)
			}
		case kvferryv1.ReservationState_RESERVATION_STATE_PRESENT:
			t.inDaemon[block] = true
			t.elsewhere[block] = !cached
		case kvferryv1.ReservationState_RESERVATION_STATE_LANDING, kvferryv1.ReservationState_RESERVATION_STATE_UNSPECIFIED:
			// Someone else fills it: computed here, committed there.
		}
	}
}

// write copies a block into its slot, rank by rank.
func (t *turn) write(block int) {
	mem, err := t.e.arena.Slot(t.slots[block])
	if err != nil {
		t.warn("write block %d: %v", block, err)
		return
	}
	for rank := range t.e.cfg.World {
		t.seq.mem.exportBlock(block, t.keys[block], rank, t.e.cfg.World, mem)
	}
	t.pending = append(t.pending, block)
	t.e.count(func(c *Counters) { c.WrittenBlocks++ })
}

// commit makes the written blocks visible.
func (t *turn) commit() {
	if len(t.pending) == 0 {
		return
	}
	blocks := t.pending
	t.pending = nil
	var slots []*kvferryv1.SlotRef
	for _, b := range blocks {
		slots = append(slots, t.slots[b])
	}
	ctx, cancel := t.call()
	defer cancel()
	var visible []bool
	for rank := range t.e.cfg.World {
		got, err := t.e.client.CommitBlocks(ctx, &kvferryv1.CommitBlocksRequest{
			EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), Slots: slots, Rank: uint32(rank), World: uint32(t.e.cfg.World),
			Fidelity: kvferryv1.Fidelity_FIDELITY_EXACT,
		})
		if t.attachAgain(err) {
			t.reserveAgain()
			t.commit()
			return
		}
		if err != nil {
			t.warn("commit %d blocks: %v", len(blocks), err)
			return // their slots are aborted at the end of the turn
		}
		visible = got.GetCommitted()
	}
	for i, b := range blocks {
		delete(t.slots, b)
		if i < len(visible) && visible[i] {
			t.inDaemon[b] = true
		} else {
			t.warn("commit block %d: not visible though all ranks have written", b)
		}
	}
}

// abort gives back slots that were not committed.
func (t *turn) abort() {
	var slots []*kvferryv1.SlotRef
	for b, ref := range t.slots {
		slots = append(slots, ref)
		delete(t.slots, b)
	}
	if len(slots) > 0 {
		t.release(&kvferryv1.ReleaseBlocksRequest{EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(), Aborted: slots})
	}
}

// release goes on after the turn was cancelled: a lease that is not ended
// holds its blocks until this process dies.
func (t *turn) release(req *kvferryv1.ReleaseBlocksRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), callTimeout)
	defer cancel()
	if _, err := t.e.client.ReleaseBlocks(ctx, req); err != nil && !arenaGone(err) { // a new arena knows of none of them
		t.warn("release: %v", err)
	}
}

// publish records the session with the blocks that are in the daemon without a
// gap.
func (t *turn) publish() error {
	err := t.publishOnce()
	if t.attachAgain(err) {
		t.reserveAgain()
		t.commit()
		t.countCommitted()
		err = t.publishOnce()
	}
	if err != nil {
		return fmt.Errorf("refengine: %w %q: %w", ErrPublish, t.req.Session, err)
	}
	return nil
}

func (t *turn) publishOnce() error {
	ctx, cancel := t.call()
	defer cancel()
	p := published{keys: t.keys[:t.res.CommittedBlocks], tokens: int64(len(t.tokens))}
	got, err := t.e.client.PublishSession(ctx, &kvferryv1.PublishSessionRequest{
		EngineId: t.e.cfg.EngineID, ArenaId: t.e.arenaID(),
		Session:   &kvferryv1.SessionRef{Tenant: t.req.Tenant, SessionId: t.req.Session},
		BlockKeys: p.keys, Tokens: p.tokens, Fidelity: kvferryv1.Fidelity_FIDELITY_EXACT,
	})
	if err != nil {
		return err
	}
	t.res.SessionVersion, t.res.SessionEpoch = got.GetSession().GetVersion(), got.GetSession().GetEpoch()
	t.e.remember(t.req.Tenant, t.req.Session, p)
	return nil
}
