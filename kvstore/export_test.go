package kvstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// CheckInvariants recounts everything the arena keeps incrementally and compares.
func (a *Arena) CheckInvariants() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return nil
	}
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	var states [slotStates]int
	used := map[Tenant]int{}
	children := map[uint32]int32{}
	holders := map[SlotRef]int32{}
	for id, l := range a.mu.leases {
		check(a.mu.expiring[id] != nil == !l.expiry.IsZero(), "lease %s: expiry %v", id, l.expiry)
		check(slices.IsSortedFunc(l.refs, bySlot), "lease %s: not in order", id)
		for _, ref := range l.refs {
			holders[ref]++
		}
	}
	check(len(a.mu.expiring) <= len(a.mu.leases), "%d leases, %d of them expire", len(a.mu.leases), len(a.mu.expiring))
	leased, candidates, protected, indexed := 0, 0, 0, 0
	for i := range a.mu.slots {
		s := &a.mu.slots[i]
		states[s.state]++
		if s.state != slotFree {
			used[s.key.tenant]++
			if p := a.parentLocked(s); p != noSlot {
				children[p]++
			}
		}
		check(len(s.writers) == 0 || s.state == slotDraining || s.state == slotFree, "slot %d: %d writers in state %d", i, len(s.writers), s.state)
		check(s.holders == holders[a.refLocked(uint32(i))], "slot %d: %d holders, counted %d", i, s.holders, holders[a.refLocked(uint32(i))])
		if s.holders > 0 {
			leased++
			check(s.state == slotCommitted || s.state == slotDraining, "slot %d: leased in state %d", i, s.state)
		}
		check(s.listed() == s.evictable(), "slot %d: listed %v, evictable %v", i, s.listed(), s.evictable())
		if s.listed() {
			candidates++
			check(a.mu.global.items[s.heapAt[heapGlobal]] == uint32(i), "slot %d: misplaced in global heap", i)
			check(a.mu.tenants[s.key.tenant].heap.items[s.heapAt[heapTenant]] == uint32(i), "slot %d: misplaced in tenant heap", i)
			check(s.protected == (s.heapAt[heapProtected] >= 0), "slot %d: protected %v", i, s.protected)
			if s.protected {
				protected++
			}
		}
		if s.indexed {
			indexed++
			e, ok := a.index.get(s.key)
			want := BlockLanding
			if s.state == slotCommitted {
				want = BlockPresent
			}
			check(ok && e.ref == a.refLocked(uint32(i)) && e.state == want, "slot %d: index says %v", i, e)
			check(s.state == slotReserved || s.state == slotCommitted, "slot %d: indexed in state %d", i, s.state)
		} else {
			check(s.state != slotCommitted, "slot %d: committed and not indexed", i)
		}
	}
	for i := range a.mu.slots {
		if s := &a.mu.slots[i]; s.state != slotFree {
			check(s.children == children[uint32(i)], "slot %d: %d children, counted %d", i, s.children, children[uint32(i)])
		}
	}
	entries := 0
	for i := range a.index.shards {
		entries += len(a.index.shards[i].mu.entries)
	}
	check(entries == indexed, "index has %d entries, %d slots are indexed", entries, indexed)
	check(states == a.mu.states, "states %v, counted %v", a.mu.states, states)
	check(len(a.mu.free) == states[slotFree], "free list %d, counted %d", len(a.mu.free), states[slotFree])
	check(leased == a.mu.leased, "leased %d, counted %d", a.mu.leased, leased)
	check(candidates == len(a.mu.global.items), "candidates %d, counted %d", len(a.mu.global.items), candidates)
	check(protected == len(a.mu.protected.items), "protected %d, counted %d", len(a.mu.protected.items), protected)
	check(len(used) == len(a.mu.tenants), "tenants %d, counted %d", len(a.mu.tenants), len(used))
	for t, n := range used {
		check(a.mu.tenants[t] != nil && a.mu.tenants[t].used == n, "tenant %q: counted %d", t, n)
	}
	for _, h := range []*slotHeap{&a.mu.global, &a.mu.protected} {
		errs = append(errs, h.check(a.mu.slots))
	}
	for _, t := range a.mu.tenants {
		errs = append(errs, t.heap.check(a.mu.slots))
	}
	return errors.Join(errs...)
}

func (h *slotHeap) check(slots []slot) error {
	for at := 1; at < len(h.items); at++ {
		if h.order(&slots[h.items[(at-1)/2]], &slots[h.items[at]]) > 0 {
			return fmt.Errorf("heap %d: item %d is before its parent", h.which, at)
		}
	}
	return nil
}

// EvictionOrder returns the keys of all candidates, the next victim first, by sorting and not by the heap.
func (a *Arena) EvictionOrder() []BlockKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	var keys []BlockKey
	left := append([]uint32(nil), a.mu.global.items...)
	for len(left) > 0 {
		least := 0
		for i := range left {
			if evictionOrder(&a.mu.slots[left[i]], &a.mu.slots[left[least]]) < 0 {
				least = i
			}
		}
		keys = append(keys, a.mu.slots[left[least]].key.key)
		left = append(left[:least], left[least+1:]...)
	}
	return keys
}

// HoldSlot pretends that a copy is in progress until the returned function is called.
func (a *Arena) HoldSlot(ref SlotRef) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beginLocked(ref.Slot)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.endLocked(ref.Slot)
	}
}

// CommitPartInterrupted is CommitPart by the only rank, with interrupt running while the checksums are computed.
func (a *Arena) CommitPartInterrupted(o Owner, ref SlotRef, interrupt func()) error {
	if last, err := a.recordPart(o, ref, 0, 1); err != nil || !last {
		return fmt.Errorf("not the last part: %w", err)
	}
	interrupt()
	return a.seal(ref)
}

// Touch touches a slot's first page as the pinner does where the kernel cannot.
func (a *Arena) Touch(ref SlotRef) error { return a.guardedTouch(a.memory(ref.Slot, 0, 1)) }

// DecodeEncodeRecord decodes b and encodes it again.
func DecodeEncodeRecord(b []byte) ([]byte, error) {
	r, err := decodeRecord(b)
	if err != nil {
		return nil, err
	}
	return r.encode()
}

// EncodeSession returns the stored form of s with n hand-overs.
func EncodeSession(s Session, n int) []byte {
	r := record{session: s}
	for i := range n {
		r.moves = append(r.moves, move{Migration: fmt.Sprint("m", i), To: "node-b", Epoch: uint64(i + 2), Version: 1})
	}
	b, err := r.encode()
	if err != nil {
		panic(err)
	}
	return b
}

// SetMaxBytes replaces MaxSessionsBytes.
func (s *Sessions) SetMaxBytes(n int64) { s.maxBytes = n }

// BreakDisk makes every later write of the store fail.
func (s *Sessions) BreakDisk() { _ = s.db.Close() }

// IndexSuffix is what the index's file name has more than the arena's.
const IndexSuffix = indexSuffix

// IndexRecord returns where the table has the record of a slot, and its size.
func (a *Arena) IndexRecord(slot uint32) (off, size int64) {
	return a.table.head.recordOf(slot), a.table.head.recordSize()
}

// IndexState returns where the table has the state of a slot.
func (a *Arena) IndexState(slot uint32) int64 { return a.table.head.stateOf(slot) }

// Generation returns a slot's current generation.
func (a *Arena) Generation(slot uint32) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.slots[slot].generation
}

// EncodeIndex returns an index of one block a slot, as an arena writes it.
func EncodeIndex(l Layout, identity string, keys []BlockKey, tenant Tenant, processes []string) []byte {
	h := tableHead{slots: len(keys), pages: l.PagesPerBlock(), bytes: int64(len(keys)) * l.Stride(), stride: l.Stride(), generation: 7, pin: l.Pin(), identity: identity}
	b := make([]byte, h.size())
	copy(b, h.encode())
	copy(b[tableHeadSize:], encodeProcesses(3, processes))
	copy(b[tableHeadSize+processSize:], encodeProcesses(2, nil))
	for i, k := range keys {
		r := blockRecord{key: indexKey{tenant, k}, byPage: i%2 == 0, generation: 9, sums: make([]uint32, h.pages)}
		at := h.recordOf(uint32(i))
		r.put(b[at:at+h.recordSize()], uint32(i))
		tableState{stamp: 4, generation: 9, state: tableCommitted, flags: stateHeld}.put(b[h.stateOf(uint32(i)):][:stateSize])
	}
	return b
}

// DecodeIndex decodes all of an index as opening an arena does, and encodes what it accepts again in the places it came from.
func DecodeIndex(b []byte) (again []byte, head, processes bool, records int) {
	again, b = slices.Clone(b), slices.Clone(b)
	h, err := decodeTableHead(b)
	if err != nil || int64(len(b)) != h.size() {
		return again, false, false, 0
	}
	copy(again, h.encode())
	for i := range int64(2) {
		at := tableHeadSize + i*processSize
		if seq, names, ok := decodeProcesses(b[at : at+processSize]); ok {
			copy(again[at:], encodeProcesses(seq, names))
			processes = true
		}
	}
	for i := range uint32(h.slots) {
		decodeState(b[h.stateOf(i):][:stateSize])
		at := h.recordOf(i)
		r, err := decodeBlockRecord(b[at:at+h.recordSize()], i, h.pages)
		if err == nil {
			r.put(again[at:at+h.recordSize()], i)
			records++
		}
	}
	return again, true, processes, records
}

// The parts of an index, for DecodeIndexPart.
const (
	IndexHead = iota
	IndexProcesses
	IndexRecord
	IndexParts
)

// DecodeIndexPart decodes one part of an index that begins with b and goes on with zeros, its checksum made right when seal is set. It returns
// the part, and what is accepted of it encoded again; nil when it is refused. A record is of slot 3, of a block of 5 pages.
func DecodeIndexPart(part int, seal bool, b []byte) (whole, again []byte) {
	const slot, pages = 3, 5
	size := []int{tableHeadSize, processSize, int(tableHead{pages: pages}.recordSize())}[part]
	whole = append(make([]byte, 0, size), b[:min(len(b), size)]...)[:size]
	le := binary.LittleEndian
	switch part {
	case IndexHead:
		if seal {
			le.PutUint32(whole[344:], crc32.Checksum(whole[:344], castagnoli))
		}
		if h, err := decodeTableHead(whole); err == nil {
			again = h.encode()
		}
	case IndexProcesses:
		if seal {
			le.PutUint32(whole[size-4:], crc32.Checksum(whole[:size-4], castagnoli))
		}
		if seq, names, ok := decodeProcesses(whole); ok {
			again = encodeProcesses(seq, names)
		}
	case IndexRecord:
		if seal {
			le.PutUint32(whole, recordSum(whole, slot))
		}
		if r, err := decodeBlockRecord(whole, slot, pages); err == nil {
			again = make([]byte, size)
			r.put(again, slot)
		}
	}
	return whole, again
}

// FailNext has the store think that its last change failed.
func (s *Sessions) FailNext() {
	s.write.Lock()
	defer s.write.Unlock()
	s.failed = true
}

// DecodeEncodeElsewhere decodes a mark and encodes it again.
func DecodeEncodeElsewhere(k, v []byte) (key, value []byte, err error) {
	sk, e, err := decodeElsewhere(k, v)
	if err != nil {
		return nil, nil, err
	}
	return sk.encode(), e.encode(), nil
}
