package kvstore

import (
	"cmp"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// restore takes over what an earlier process left: the mapped index says which blocks there were, and only those are kept of which every page
// has its checksum. It runs before anybody else knows the arena. False: a fault, or an index that makes no sense; the arena is to be opened without what is there.
func (a *Arena) restore() bool {
	h := a.table.head
	head := make([]byte, h.records())
	if err := a.mapping.readIndex(head, 0); err != nil {
		return false
	}
	seq, before, known := latestProcesses(head)
	if !known {
		before = []string{unknownProcess}
	}
	if a.mapping.alone {
		before = nil
	}
	a.table.seq = seq
	states := make([]tableState, h.slots)
	floor := h.generation
	for i := range states {
		states[i] = decodeState(head[h.stateOf(uint32(i)):][:stateSize])
		floor = max(floor, states[i].generation)
	}
	if floor > maxGeneration {
		return false
	}
	records := a.verifyAll(states)
	if a.broken.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.before = before
	base := floor + 1 + uint64(rand.Uint32N(1<<24))
	a.beginGenerationsLocked(base)
	taken := a.takeOverLocked(states, records)
	a.linkAllLocked(states, taken)
	if len(before) > 0 {
		a.holdBeforeLocked(states)
	}
	a.freeListLocked()
	for i := range a.mu.slots {
		a.settleLocked(uint32(i))
	}
	a.rewriteTableLocked(base)
	return true
}

// verifyAll reads the records of committed slots and verifies their pages, on all processors. nil is a block that is not taken over.
func (a *Arena) verifyAll(states []tableState) []*blockRecord {
	h := a.table.head
	records := make([]*blockRecord, len(states))
	var next, dropped atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() { // owner: this call
			b := make([]byte, h.recordSize())
			for {
				i := next.Add(1) - 1
				if i >= int64(len(states)) || a.broken.Load() {
					return
				}
				if states[i].state != tableCommitted {
					continue
				}
				err := a.mapping.readIndex(b, h.recordOf(uint32(i)))
				var r blockRecord
				if err == nil {
					r, err = decodeBlockRecord(b, uint32(i), h.pages)
				}
				if err != nil || r.generation != states[i].generation || r.fidelity != FidelityExact || !a.verified(uint32(i), r) {
					dropped.Add(1)
					continue
				}
				records[i] = &r
			}
		})
	}
	wg.Wait()
	a.restored.Dropped = int(dropped.Load())
	return records
}

// verified reports whether every page of a slot has the checksum of its record.
func (a *Arena) verified(slot uint32, r blockRecord) bool {
	for page, want := range r.sums {
		got, err := a.guardedSum(r.key.key, page, a.memory(slot, page, 1))
		if err != nil {
			return false
		}
		if got != want {
			a.sumFailures.Add(1)
			return false
		}
	}
	return true
}

// takeOverLocked puts verified blocks into their slots and the index, in order of their last use. It reports which slots have one.
func (a *Arena) takeOverLocked(states []tableState, records []*blockRecord) []bool {
	order := make([]uint32, 0, len(states))
	for i, r := range records {
		if r != nil {
			order = append(order, uint32(i))
		}
	}
	slices.SortFunc(order, func(x, y uint32) int {
		return cmp.Or(cmp.Compare(states[x].stamp, states[y].stamp), cmp.Compare(states[y].position, states[x].position))
	})
	taken := make([]bool, len(states))
	last := uint64(0)
	for _, i := range order {
		r, st := records[i], states[i]
		if _, twice := a.index.get(r.key); twice { // not what an arena writes
			a.restored.Dropped++
			continue
		}
		if st.stamp != last || a.mu.stamp == 0 { // counted anew: a damaged stamp must not be the last one for ever
			a.mu.stamp++
			last = st.stamp
		}
		s := &a.mu.slots[i]
		s.key, s.sums, s.indexed, s.stamp, s.position = r.key, r.sums, true, a.mu.stamp, min(st.position, MaxSlots)
		s.protected = st.flags&stateProtected != 0
		s.fill.byPage = r.byPage
		a.setStateLocked(s, slotCommitted)
		a.tenantLocked(r.key.tenant).used++
		a.index.put(s.key, indexEntry{ref: a.refLocked(i), state: BlockPresent})
		if r.byPage {
			a.mu.byPage = append(a.mu.byPage, a.refLocked(i))
		}
		taken[i] = true
		a.restored.Blocks++
	}
	return taken
}

// linkAllLocked restores which block continues which, among those taken over.
func (a *Arena) linkAllLocked(states []tableState, taken []bool) {
	for i, ok := range taken {
		st := states[i]
		if !ok || st.parentGeneration == 0 || int64(st.parent) >= int64(len(states)) || !taken[st.parent] || states[st.parent].generation != st.parentGeneration {
			continue
		}
		position := a.mu.slots[i].position
		a.linkLocked(uint32(i), st.parent)
		a.mu.slots[i].position = position // the parent's may not be in place yet
	}
}

// holdBeforeLocked keeps the memory that processes of an earlier opening may still read or write from being reused.
func (a *Arena) holdBeforeLocked(states []tableState) {
	var held []SlotRef
	for i, st := range states {
		s := &a.mu.slots[i]
		switch {
		case st.state == tableFree || st.state == tableCommitted && st.flags&stateHeld == 0:
		case s.state == slotCommitted:
			held = append(held, a.refLocked(uint32(i)))
			s.holders++
			a.mu.leased++
		default: // reserved, draining, or a block that did not verify and that somebody reads
			a.tenantLocked("").used++
			s.writers = append(s.writers, beforeOwner)
			a.setStateLocked(s, slotDraining)
		}
	}
	if len(held) > 0 {
		l := &lease{id: a.newLeaseIDLocked(), owner: beforeOwner, refs: held}
		a.mu.leases[l.id] = l
	}
	a.restored.Held = len(held) + a.mu.states[slotDraining]
}

// rewriteTableLocked makes the table this opening's.
func (a *Arena) rewriteTableLocked(base uint64) {
	for i := range a.mu.slots {
		if a.mu.slots[i].state == slotCommitted {
			a.recordLocked(uint32(i))
		} else {
			a.noteLocked(uint32(i))
		}
	}
	a.writeHeadLocked(base)
	a.writeProcessesLocked()
}

// writeHeadLocked notes that the arena is wanted, and the generation its slots began with. The rest of the header does not change.
func (a *Arena) writeHeadLocked(base uint64) {
	t := a.table
	t.head.generation, t.head.unclaimed = base, 0
	t.write(0, t.head.encode()[:tableHeadUsed])
}

// newTableLocked writes an index of slots none of which holds a block.
func (a *Arena) newTableLocked(base uint64) {
	a.table.write(0, make([]byte, 8)) // not valid until all of it is
	for i := range a.mu.slots {
		a.noteLocked(uint32(i))
	}
	a.writeProcessesLocked()
	a.writeHeadLocked(base)
}

// beginGenerationsLocked has every slot begin with a generation that it never had. Nobody has a reference yet.
func (a *Arena) beginGenerationsLocked(base uint64) {
	for i := range a.mu.slots {
		a.mu.slots[i].generation = base
	}
}

// freeListLocked collects the free slots, so that low ones are taken first: they are touched first.
func (a *Arena) freeListLocked() {
	a.mu.free = a.mu.free[:0]
	for i := len(a.mu.slots) - 1; i >= 0; i-- {
		if a.mu.slots[i].state == slotFree {
			a.mu.free = append(a.mu.free, uint32(i))
		}
	}
}
