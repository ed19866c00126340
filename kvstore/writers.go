package kvstore

import "slices"

// Writer is a process that may write an owner's reserved slots through its own mapping.
type Writer struct {
	// Name is what the process is known by, as in Quiet and ReleaseOwner.
	Name Owner
	// Ranks are the parts that it writes. Of a slot of which all of them are committed it is done with its writing.
	Ranks []int
}

// AbortLost aborts the reservations of o that can never be filled because the part of a rank in lost is missing: the
// process that was to write it is gone. They are out of the index at once. The memory of a slot that others of o's
// processes may still be writing, writers, is not reused until each of them has said that it is Quiet or is released
// with ReleaseOwner. It returns the number of reservations aborted.
func (a *Arena) AbortLost(o Owner, lost []int, writers []Writer) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	if a.mu.closed || len(lost) == 0 {
		return 0
	}
	for i := range a.mu.slots {
		s := &a.mu.slots[i]
		if s.state != slotReserved || s.owner != o || s.fill.byPage || s.hasParts(lost) {
			continue
		}
		for _, w := range writers {
			if !s.hasParts(w.Ranks) {
				s.writers = append(s.writers, w.Name)
			}
		}
		a.drainLocked(uint32(i))
		n++
	}
	return n
}

// Quiet says that a writer that AbortLost left at a slot no longer writes it. False means that it was not waited for:
// the reference is stale, or the slot is somebody's.
func (a *Arena) Quiet(writer Owner, ref SlotRef) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.resolveLocked(ref)
	return err == nil && s.state == slotDraining && a.quietLocked(writer, ref.Slot)
}

func (a *Arena) quietLocked(writer Owner, i uint32) bool {
	s := &a.mu.slots[i]
	at := slices.Index(s.writers, writer)
	if at < 0 {
		return false
	}
	s.writers = slices.Delete(s.writers, at, at+1)
	a.settleLocked(i)
	return true
}

// HasParts reports whether each of ranks has committed its part of a block that is being filled, or the block is
// committed. False also for a stale reference and for no ranks.
func (a *Arena) HasParts(ref SlotRef, ranks []int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.resolveLocked(ref)
	if err != nil || len(ranks) == 0 || s.state != slotReserved && s.state != slotCommitted {
		return false
	}
	return s.state == slotCommitted || s.hasParts(ranks)
}

func (s *slot) hasParts(ranks []int) bool {
	for _, r := range ranks {
		if r/64 >= len(s.fillRanks) || s.fillRanks[r/64]&(1<<(r%64)) == 0 {
			return false
		}
	}
	return true
}
