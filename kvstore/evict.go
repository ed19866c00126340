package kvstore

import "cmp"

// Eviction order. Only committed blocks that nobody holds are candidates. Among them, in this order:
//
//  1. blocks no resident block continues, before blocks with successors: the tail of a sequence before its head;
//  2. probation before protected (segmented LRU: a second use protects; the coldest protected block is demoted when
//     the segment outgrows its share);
//  3. least recently used first;
//  4. of blocks used in one operation, the one furthest from the start of its sequence.
//
// A block with successors is still evicted when nothing else is left.

const protectedPercent = 80 // share of the slots that may be protected

// The heaps a candidate is in, and the index of its place in slot.heapAt.
const (
	heapGlobal = iota
	heapTenant
	heapProtected
	heapCount
)

// slotHeap is a binary min-heap of slot indices, the next to evict (or to demote) first. Slots know their place in it.
type slotHeap struct {
	which int
	items []uint32
}

func evictionOrder(a, b *slot) int {
	return cmp.Or(
		cmp.Compare(boolInt(a.children > 0), boolInt(b.children > 0)),
		cmp.Compare(boolInt(a.protected), boolInt(b.protected)),
		cmp.Compare(a.stamp, b.stamp),
		cmp.Compare(b.position, a.position),
	)
}

// demotionOrder is by recency alone: a block with successors is no less cold for them.
func demotionOrder(a, b *slot) int {
	return cmp.Or(cmp.Compare(a.stamp, b.stamp), cmp.Compare(b.position, a.position))
}

func (h *slotHeap) order(a, b *slot) int {
	if h.which == heapProtected {
		return demotionOrder(a, b)
	}
	return evictionOrder(a, b)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (h *slotHeap) push(slots []slot, i uint32) {
	slots[i].heapAt[h.which] = int32(len(h.items))
	h.items = append(h.items, i)
	h.up(slots, len(h.items)-1)
}

func (h *slotHeap) remove(slots []slot, i uint32) {
	at, last := int(slots[i].heapAt[h.which]), len(h.items)-1
	if at != last {
		h.swap(slots, at, last)
	}
	h.items = h.items[:last]
	slots[i].heapAt[h.which] = -1
	if at != last {
		h.fix(slots, at)
	}
}

func (h *slotHeap) fix(slots []slot, at int) {
	if !h.down(slots, at) {
		h.up(slots, at)
	}
}

func (h *slotHeap) up(slots []slot, at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if h.order(&slots[h.items[at]], &slots[h.items[parent]]) >= 0 {
			return
		}
		h.swap(slots, at, parent)
		at = parent
	}
}

func (h *slotHeap) down(slots []slot, at int) bool {
	start := at
	for {
		least := 2*at + 1
		if least >= len(h.items) {
			return at > start
		}
		if r := least + 1; r < len(h.items) && h.order(&slots[h.items[r]], &slots[h.items[least]]) < 0 {
			least = r
		}
		if h.order(&slots[h.items[least]], &slots[h.items[at]]) >= 0 {
			return at > start
		}
		h.swap(slots, at, least)
		at = least
	}
}

func (h *slotHeap) swap(slots []slot, a, b int) {
	h.items[a], h.items[b] = h.items[b], h.items[a]
	slots[h.items[a]].heapAt[h.which], slots[h.items[b]].heapAt[h.which] = int32(a), int32(b)
}

// listLocked makes slot i a candidate for eviction.
func (a *Arena) listLocked(i uint32) {
	s := &a.mu.slots[i]
	if s.listed() {
		return
	}
	a.mu.global.push(a.mu.slots, i)
	a.mu.tenants[s.key.tenant].heap.push(a.mu.slots, i)
	if !s.protected {
		return
	}
	a.mu.protected.push(a.mu.slots, i)
	if len(a.mu.protected.items) > max(1, len(a.mu.slots)*protectedPercent/100) {
		a.demoteLocked(a.mu.protected.items[0])
	}
}

// demoteLocked moves the coldest protected block to the warm end of probation.
func (a *Arena) demoteLocked(i uint32) {
	a.mu.protected.remove(a.mu.slots, i)
	s := &a.mu.slots[i]
	s.protected = false
	s.stamp = a.tickLocked()
	a.reorderLocked(i)
}

// unlistLocked takes slot i off the candidates.
func (a *Arena) unlistLocked(i uint32) {
	s := &a.mu.slots[i]
	if !s.listed() {
		return
	}
	a.mu.global.remove(a.mu.slots, i)
	a.mu.tenants[s.key.tenant].heap.remove(a.mu.slots, i)
	if s.heapAt[heapProtected] >= 0 {
		a.mu.protected.remove(a.mu.slots, i)
	}
}

// reorderLocked restores the heaps after slot i's place in the order changed.
func (a *Arena) reorderLocked(i uint32) {
	s := &a.mu.slots[i]
	if !s.listed() {
		return
	}
	a.mu.global.fix(a.mu.slots, int(s.heapAt[heapGlobal]))
	a.mu.tenants[s.key.tenant].heap.fix(a.mu.slots, int(s.heapAt[heapTenant]))
	if at := s.heapAt[heapProtected]; at >= 0 {
		a.mu.protected.fix(a.mu.slots, int(at))
	}
}

// tickLocked returns a new use stamp. One operation uses one stamp for all its blocks.
func (a *Arena) tickLocked() uint64 {
	a.mu.stamp++
	return a.mu.stamp
}
