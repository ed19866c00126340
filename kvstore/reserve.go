package kvstore

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/internal/fault"
)

// Reserve finds or makes a slot for each key, in order. The keys are consecutive blocks of one sequence, which is what
// eviction's "tail before head" is built on; when the first key does not start the sequence use ReserveAfter. Keys
// the same owner has reserved already are Reserved again with the same reference, so a repeated call is harmless.
//
// Unleased blocks are evicted by policy when there is no room. All or nothing: *ArenaFullError reserves and evicts
// nothing. Other errors: *FieldError for a bad name, *BlockError for a bad or repeated key, ErrClosed, ErrArenaFault.
func (a *Arena) Reserve(o Owner, t Tenant, keys []BlockKey) ([]Reservation, error) {
	return a.ReserveAfter(o, t, "", keys)
}

// ReserveAfter is Reserve for blocks that continue the block named parent. A parent that is not resident, or "", is
// as good as unknown.
func (a *Arena) ReserveAfter(o Owner, t Tenant, parent BlockKey, keys []BlockKey) ([]Reservation, error) {
	if err := errors.Join(o.Validate(), t.Validate(), validateKeys(keys, true)); err != nil {
		return nil, fmt.Errorf("reserve blocks: %w", err)
	}
	if err := fault.At(fault.Reserve, a.cfg.Name); err != nil {
		return nil, fmt.Errorf("reserve blocks: %w: %w", &ArenaFullError{Needed: len(keys), Total: a.Slots(), Tenant: t}, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usableLocked(); err != nil {
		return nil, fmt.Errorf("reserve blocks: %w", err)
	}
	at, held, need := a.holdResidentLocked(t, parent, keys)
	defer func() {
		for _, i := range held {
			a.endLocked(i)
		}
	}()
	if err := a.makeRoomLocked(t, need); err != nil {
		return nil, fmt.Errorf("reserve blocks: %w", err)
	}
	prev := noSlot
	if e, ok := a.index.get(indexKey{t, parent}); ok && parent != "" {
		prev = e.ref.Slot
	}
	stamp := a.tickLocked()
	out := make([]Reservation, len(keys))
	for n, k := range keys {
		i := at[n]
		if i == noSlot {
			i = a.takeLocked(indexKey{t, k}, o)
		}
		s := &a.mu.slots[i]
		out[n] = Reservation{Key: k, State: Reserved, Ref: a.refLocked(i)}
		switch {
		case s.state == slotCommitted:
			out[n].State = Present
			s.stamp, s.protected = stamp, true
		case s.owner != o:
			out[n].State = Pending
		}
		if prev != noSlot {
			a.linkLocked(i, prev)
		}
		prev = i
	}
	return out, nil
}

// holdResidentLocked finds the slots of keys that are resident (noSlot for others) and keeps them and the parent from
// being evicted to make room for the rest.
func (a *Arena) holdResidentLocked(t Tenant, parent BlockKey, keys []BlockKey) (at, held []uint32, need int) {
	at = make([]uint32, len(keys))
	hold := func(k BlockKey) uint32 {
		e, ok := a.index.get(indexKey{t, k})
		if !ok {
			return noSlot
		}
		a.beginLocked(e.ref.Slot)
		held = append(held, e.ref.Slot)
		return e.ref.Slot
	}
	for n, k := range keys {
		if at[n] = hold(k); at[n] == noSlot {
			need++
		}
	}
	if parent != "" {
		hold(parent)
	}
	return at, held, need
}

// makeRoomLocked evicts until need slots are free and the tenant's quota has room for them, or changes nothing.
func (a *Arena) makeRoomLocked(t Tenant, need int) error {
	if need == 0 {
		return nil
	}
	err := a.roomLocked(t, need)
	if err != nil && a.expireLocked(a.now()) > 0 { // expired leases are as good as gone
		err = a.roomLocked(t, need)
	}
	if err != nil {
		return err
	}
	if quota, used, heap := a.quotaLocked(t); quota > 0 {
		for range used + need - quota {
			a.evictLocked(heap.items[0])
		}
	}
	for need > len(a.mu.free) {
		a.evictLocked(a.mu.global.items[0])
	}
	return nil
}

// Room returns how many slots Reserve could have for a tenant at this moment: free ones and those of blocks that may be evicted,
// within the tenant's quota. 0 after Close or a fault.
func (a *Arena) Room(t Tenant) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken.Load() {
		return 0
	}
	a.expireLocked(a.now())
	room := len(a.mu.free) + len(a.mu.global.items)
	if quota, used, heap := a.quotaLocked(t); quota > 0 {
		room = min(room, max(0, quota-used+len(heap.items)))
	}
	return room
}

// roomLocked reports why need slots cannot be had, or nil.
func (a *Arena) roomLocked(t Tenant, need int) error {
	full := func() *ArenaFullError {
		_, used, _ := a.quotaLocked(t)
		return &ArenaFullError{
			Needed: need, Free: len(a.mu.free), Evictable: len(a.mu.global.items), Leased: a.mu.leased,
			Reserved: a.mu.states[slotReserved], Draining: a.mu.states[slotDraining], Total: len(a.mu.slots),
			Tenant: t, TenantUsed: used,
		}
	}
	if need > len(a.mu.free)+len(a.mu.global.items) {
		return full()
	}
	if quota, used, heap := a.quotaLocked(t); quota > 0 && used+need-quota > len(heap.items) {
		e := full()
		e.Quota, e.Evictable = quota, len(heap.items)
		return e
	}
	return nil
}

// quotaLocked returns the tenant's quota (0: none), the slots it uses, and its candidates for eviction.
func (a *Arena) quotaLocked(t Tenant) (quota, used int, heap *slotHeap) {
	heap = &slotHeap{which: heapTenant}
	if ts := a.mu.tenants[t]; ts != nil {
		used, heap = ts.used, &ts.heap
	}
	if a.cfg.TenantSlots != nil {
		quota = max(0, a.cfg.TenantSlots(t))
	}
	return quota, used, heap
}

// validateKeys checks every key, and that none repeats when unique is set. The first violation is a *BlockError.
func validateKeys(keys []BlockKey, unique bool) error {
	var seen map[BlockKey]struct{}
	if unique {
		seen = make(map[BlockKey]struct{}, len(keys))
	}
	for i, k := range keys {
		if err := k.Validate(); err != nil {
			return &BlockError{Key: k, Index: i, Err: err}
		}
		if !unique {
			continue
		}
		if _, dup := seen[k]; dup {
			return &BlockError{Key: k, Index: i, Err: &FieldError{
				Field: "key", Value: "repeated", Allowed: "each key once",
				Fix: "a block key names a whole prefix, so one sequence never has it twice",
			}}
		}
		seen[k] = struct{}{}
	}
	return nil
}

// Abort gives up a reservation. The slot is free once writers in progress are done; the reference is stale at once, so
// a second Abort is ErrStaleGeneration. Other errors: ErrNotOwner, ErrCommitted, ErrClosed.
// The caller vouches that an engine that mapped the slot no longer writes it.
func (a *Arena) Abort(o Owner, ref SlotRef) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.reservedLocked(o, ref); err != nil {
		return fmt.Errorf("abort slot: %w", err)
	}
	a.drainLocked(ref.Slot)
	return nil
}

// Invalidate drops the blocks named by keys and returns how many there were. Unleased blocks go now; leased ones are
// out of the index now and freed when released; one being filled never becomes readable: its commit is
// ErrInvalidated.
func (a *Arena) Invalidate(t Tenant, keys []BlockKey) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	if a.mu.closed {
		return 0
	}
	for _, k := range keys {
		e, ok := a.index.get(indexKey{t, k})
		if !ok {
			continue
		}
		n++
		if s := &a.mu.slots[e.ref.Slot]; s.state == slotReserved {
			s.doomed = true
			a.unindexLocked(e.ref.Slot)
			continue
		}
		a.drainLocked(e.ref.Slot)
	}
	return n
}

// DropBlock takes a committed block out of the index, for example when VerifyBlock found it bad. Leases on it stay
// valid until released. Errors: ErrStaleGeneration, ErrBlockNotFound when it is not committed, ErrClosed.
func (a *Arena) DropBlock(ref SlotRef) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.resolveLocked(ref)
	if err == nil && s.state != slotCommitted {
		err = &slotError{ref, ErrBlockNotFound}
	}
	if err != nil {
		return fmt.Errorf("drop block: %w", err)
	}
	a.drainLocked(ref.Slot)
	return nil
}

// slotError is a failure of one slot.
type slotError struct {
	ref SlotRef
	err error
}

func (e *slotError) Error() string { return fmt.Sprintf("slot %s: %v", e.ref, e.err) }
func (e *slotError) Unwrap() error { return e.err }

func staleError(ref SlotRef, current uint64) error {
	return fmt.Errorf("slot %s (its generation is %d): %w", ref, current, ErrStaleGeneration)
}
