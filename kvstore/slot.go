package kvstore

import (
	"fmt"
	"strings"

	"github.com/kvferry/kvferry/internal/fault"
)

// slotState is the life of a slot: free → reserved → committed → free, with draining in place of free while readers
// or writers are still at the memory or a lease still holds the block.
type slotState uint8

const (
	slotFree slotState = iota
	slotReserved
	slotCommitted
	slotDraining
	slotStates
)

const noSlot = ^uint32(0)

// slot is everything known about one slot. All of it is guarded by the arena's lock; the memory itself is not: it is
// guarded by the state, by inflight and by leases.
type slot struct {
	generation uint64
	key        indexKey
	owner      Owner // of the reservation; kept after commit so that a repeated commit is recognised
	state      slotState
	indexed    bool // the index entry of key is this slot's
	doomed     bool // invalidated while reserved
	sealing    bool // the last part is in and page sums are being computed
	protected  bool
	inflight   int32   // copies, checks and reservations in progress
	holders    int32   // leases, a lease once for each time it names the block
	writers    []Owner // of a draining slot: processes that may still write it

	parent    SlotRef // the block this one continues; Generation 0 when unknown
	children  int32   // resident blocks that continue this one
	position  uint32  // blocks before this one in its sequence, as far as known
	stamp     uint64  // last use
	heapAt    [heapCount]int32
	sums      []uint32 // page checksums, valid once committed or per verified page
	fill      fillState
	fillRanks []uint64 // bitmap of ranks that have committed
}

// fillState is how far a reserved slot is filled.
type fillState struct {
	world    int  // ranks that will commit, 0 until the first one has
	ranks    int  // ranks that have
	verified int  // pages landed and verified
	byPage   bool // WritePage has begun a page
	pages    []pageState
}

type pageState uint8

const (
	pageEmpty    pageState = iota
	pageClaimed            // a copy is in progress; its sum is recorded
	pageVerified           // in place
)

func (s *slot) listed() bool { return s.heapAt[heapGlobal] >= 0 }

func (s *slot) evictable() bool {
	return s.state == slotCommitted && s.inflight == 0 && !s.held()
}

// held reports whether a lease keeps the slot.
func (s *slot) held() bool { return s.holders > 0 && !fault.Planted(fault.SlotReusedEarly) }

// tenantState is what one tenant uses. It exists while the tenant has a slot.
type tenantState struct {
	used int
	heap slotHeap
}

func (a *Arena) refLocked(i uint32) SlotRef {
	return SlotRef{Slot: i, Generation: a.mu.slots[i].generation}
}

// resolveLocked returns the slot ref names, in any state but free. It works on a broken arena, so that what is held can
// be given back.
func (a *Arena) resolveLocked(ref SlotRef) (*slot, error) {
	if a.mu.closed {
		return nil, fmt.Errorf("arena %s: %w", a.cfg.Name, ErrArenaClosed)
	}
	if int64(ref.Slot) >= int64(len(a.mu.slots)) {
		return nil, &FieldError{Field: "slot", Value: ref.String(), Allowed: "a slot of this arena", Fix: "use a reference returned by Reserve or Acquire of the same arena"}
	}
	s := &a.mu.slots[ref.Slot]
	if s.generation != ref.Generation && !fault.Planted(fault.LateWriterAllowed) || s.state == slotFree {
		return nil, staleError(ref, s.generation)
	}
	return s, nil
}

// reservedLocked returns the slot ref names when owner o may still fill it. A committed slot is ErrCommitted.
func (a *Arena) reservedLocked(o Owner, ref SlotRef) (*slot, error) {
	s, err := a.resolveLocked(ref)
	switch {
	case err != nil:
		return nil, err
	case s.state == slotDraining:
		return nil, staleError(ref, s.generation)
	case s.owner != o:
		return nil, &slotError{ref, ErrNotOwner}
	case s.state == slotCommitted:
		return s, &slotError{ref, ErrCommitted}
	}
	return s, nil
}

func (a *Arena) setStateLocked(s *slot, state slotState) {
	a.mu.states[s.state]--
	a.mu.states[state]++
	if invariants {
		assertf(a.mu.states[s.state] >= 0, "%d slots in state %d", a.mu.states[s.state], s.state)
	}
	s.state = state
}

// takeLocked turns a free slot into a reservation of k.
func (a *Arena) takeLocked(k indexKey, o Owner) uint32 {
	last := len(a.mu.free) - 1
	i := a.mu.free[last]
	a.mu.free = a.mu.free[:last]
	s := &a.mu.slots[i]
	k.key, k.tenant = BlockKey(strings.Clone(string(k.key))), Tenant(strings.Clone(string(k.tenant)))
	*s = slot{
		generation: s.generation + 1, key: k, owner: o, state: s.state, indexed: true,
		heapAt: [heapCount]int32{-1, -1, -1}, writers: s.writers[:0], sums: s.sums, fillRanks: s.fillRanks[:0],
		fill: fillState{pages: s.fill.pages[:0]},
	}
	if s.sums == nil {
		s.sums = make([]uint32, a.pages)
	}
	a.setStateLocked(s, slotReserved)
	a.noteLocked(i)
	a.tenantLocked(k.tenant).used++
	a.index.put(k, indexEntry{ref: a.refLocked(i), state: BlockLanding})
	return i
}

// tenantLocked returns the account of a tenant that gets a slot.
func (a *Arena) tenantLocked(name Tenant) *tenantState {
	t := a.mu.tenants[name]
	if t == nil {
		t = &tenantState{heap: slotHeap{which: heapTenant}}
		a.mu.tenants[name] = t
	}
	return t
}

// linkLocked records that slot child continues slot parent.
func (a *Arena) linkLocked(child, parent uint32) {
	c, p := &a.mu.slots[child], &a.mu.slots[parent]
	if child == parent || c.parent.Generation != 0 && a.parentLocked(c) != noSlot {
		return
	}
	c.parent = a.refLocked(parent)
	c.position = p.position + 1
	a.reorderLocked(child) // one change at a time: a heap can mend only one
	p.children++
	a.reorderLocked(parent)
}

// parentLocked returns the resident parent of s, or noSlot.
func (a *Arena) parentLocked(s *slot) uint32 {
	if s.parent.Generation == 0 {
		return noSlot
	}
	p := &a.mu.slots[s.parent.Slot]
	if p.generation != s.parent.Generation || p.state == slotFree {
		return noSlot
	}
	return s.parent.Slot
}

// commitLocked makes a filled reservation readable by all.
func (a *Arena) commitLocked(i uint32) {
	s := &a.mu.slots[i]
	a.setStateLocked(s, slotCommitted)
	s.stamp = a.tickLocked()
	a.recordLocked(i)
	a.index.put(s.key, indexEntry{ref: a.refLocked(i), state: BlockPresent})
	a.settleLocked(i)
}

// drainLocked takes slot i out of the index; it is free once nobody is at it.
func (a *Arena) drainLocked(i uint32) {
	s := &a.mu.slots[i]
	a.unlistLocked(i)
	a.unindexLocked(i)
	a.setStateLocked(s, slotDraining)
	a.noteLocked(i)
	a.settleLocked(i)
}

func (a *Arena) unindexLocked(i uint32) {
	s := &a.mu.slots[i]
	if s.indexed {
		a.index.remove(s.key, a.refLocked(i))
		s.indexed = false
	}
}

// settleLocked does what is due when a copy ends or a holder lets go: a drained slot is freed, a committed one becomes
// a candidate for eviction.
func (a *Arena) settleLocked(i uint32) {
	s := &a.mu.slots[i]
	switch {
	case s.evictable():
		a.listLocked(i)
	case s.state == slotDraining && s.inflight == 0 && !s.held() && len(s.writers) == 0:
		a.freeLocked(i)
	}
}

func (a *Arena) freeLocked(i uint32) {
	s := &a.mu.slots[i]
	if p := a.parentLocked(s); p != noSlot {
		a.mu.slots[p].children--
		a.reorderLocked(p)
	}
	t := a.mu.tenants[s.key.tenant]
	if t.used--; t.used == 0 {
		delete(a.mu.tenants, s.key.tenant)
	}
	s.key, s.owner, s.parent = indexKey{}, "", SlotRef{}
	if invariants {
		assertf(s.state != slotFree && s.inflight == 0 && s.holders == 0, "slot %d is freed in state %d with %d calls and %d leases", i, s.state, s.inflight, s.holders)
		a.mangle(i)
	}
	a.setStateLocked(s, slotFree)
	a.noteLocked(i)
	a.mu.free = append(a.mu.free, i)
}

// evictLocked drops one candidate.
func (a *Arena) evictLocked(i uint32) {
	a.drainLocked(i)
	a.mu.evictions++
}

// beginLocked keeps slot i's memory from being reused until end.
func (a *Arena) beginLocked(i uint32) {
	a.unlistLocked(i)
	a.mu.slots[i].inflight++
	a.mu.inflight++
}

func (a *Arena) endLocked(i uint32) {
	a.mu.slots[i].inflight--
	if a.mu.inflight--; a.mu.inflight == 0 {
		a.idle.Broadcast()
	}
	a.settleLocked(i)
}
