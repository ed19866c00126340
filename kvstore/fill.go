package kvstore

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/kvferry/kvferry/internal/fault"
)

// MaxRanks bounds the ranks that fill one block.
const MaxRanks = 1024

// CommitPart says that one rank has written its share of a reserved block through its own mapping. When all of world
// ranks have, the arena computes every page's checksum and the block becomes readable; that call returns true, and so
// does any repetition afterwards. The same rank twice counts once. Ranks count from 0; every rank commits, also one
// that had nothing to write (a replica of heads another rank wrote; for MLA all but rank 0).
//
// Errors: *FieldError for a bad rank or a world that differs from an earlier call's, ErrNotOwner, ErrStaleGeneration,
// ErrMixedFill, ErrInvalidated (the reservation is gone), ErrFidelityUnsupported, ErrArenaFault, ErrClosed.
func (a *Arena) CommitPart(o Owner, ref SlotRef, rank, world int, f Fidelity) (committed bool, err error) {
	if err := validatePart(rank, world, f); err != nil {
		return false, fmt.Errorf("commit part: %w", err)
	}
	if err := fault.At(fault.Commit, a.cfg.Name); err != nil {
		return false, fmt.Errorf("commit part: %w", err)
	}
	last, err := a.recordPart(o, ref, rank, world)
	if errors.Is(err, ErrCommitted) {
		return true, nil
	}
	if err == nil && last {
		err = a.seal(ref)
	}
	if err != nil {
		return false, fmt.Errorf("commit part: %w", err)
	}
	return last, nil
}

func validatePart(rank, world int, f Fidelity) error {
	if world < 1 || world > MaxRanks {
		return &FieldError{Field: "world", Value: strconv.Itoa(world), Allowed: fmt.Sprintf("1 to %d", MaxRanks), Fix: "send the engine's tensor-parallel size"}
	}
	if rank < 0 || rank >= world {
		return &FieldError{Field: "rank", Value: strconv.Itoa(rank), Allowed: fmt.Sprintf("0 to %d", world-1), Fix: "count ranks from 0"}
	}
	if f != FidelityExact {
		return fmt.Errorf("fidelity %s: %w", f, ErrFidelityUnsupported)
	}
	return nil
}

// recordPart notes a rank and reports whether the block is now whole; then the slot is held for seal.
func (a *Arena) recordPart(o Owner, ref SlotRef, rank, world int) (last bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usableLocked(); err != nil {
		return false, err
	}
	s, err := a.reservedLocked(o, ref)
	if s != nil && s.fill.world != 0 && s.fill.world != world {
		return false, &FieldError{
			Field: "world", Value: strconv.Itoa(world), Allowed: fmt.Sprintf("%d, as in the first part's commit", s.fill.world),
			Fix: "abort the block and have every rank commit with the same world",
		}
	}
	if err != nil {
		return false, err
	}
	if s.fill.byPage {
		return false, &slotError{ref, ErrMixedFill}
	}
	if s.doomed {
		a.drainLocked(ref.Slot)
		return false, &slotError{ref, ErrInvalidated}
	}
	s.fill.world = world
	for len(s.fillRanks) < (world+63)/64 {
		s.fillRanks = append(s.fillRanks, 0)
	}
	if bit := uint64(1) << (rank % 64); s.fillRanks[rank/64]&bit == 0 {
		s.fillRanks[rank/64] |= bit
		s.fill.ranks++
	}
	if s.fill.ranks < world || s.sealing {
		return false, nil
	}
	s.sealing = true
	a.beginLocked(ref.Slot)
	return true, nil
}

// seal computes the page checksums of a whole block and commits it. The slot is held by recordPart.
func (a *Arena) seal(ref SlotRef) error {
	a.mu.Lock()
	s := &a.mu.slots[ref.Slot]
	key, sums := s.key.key, s.sums // sums is nobody else's while the slot is sealing
	a.mu.Unlock()
	var err error
	for page := 0; page < a.pages && err == nil; page++ {
		sums[page], err = a.guardedSum(key, page, a.memory(ref.Slot, page, 1))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.endLocked(ref.Slot)
	s.sealing = false
	switch {
	case err != nil:
		return err
	case s.state != slotReserved: // aborted meanwhile; held, so still this generation
		return staleError(ref, s.generation)
	case s.doomed:
		a.drainLocked(ref.Slot)
		return &slotError{ref, ErrInvalidated}
	}
	a.commitLocked(ref.Slot)
	return nil
}

// WritePage lands one page of a reserved block: p's checksum is compared with sum first, then p is copied into the
// slot, and the page counts as verified. p is not retained. A page that has landed already with the same sum is
// accepted and left as it is. Pages of one block may be written concurrently.
//
// Errors, all in a *PageError: ErrChecksumMismatch (nothing was written; the mismatch is counted), ErrPageConflict,
// *FieldError for a page outside the block or a wrong length, ErrStaleGeneration, ErrCommitted, ErrMixedFill,
// ErrInvalidated, ErrArenaFault, ErrClosed.
func (a *Arena) WritePage(ref SlotRef, page int, p []byte, sum uint32) error {
	key, err := a.pageKey(ref, page, len(p))
	if err == nil {
		if hit := fault.Page(fault.Verify, a.cfg.Name, p); hit != nil {
			err = fmt.Errorf("%w: %w", ErrArenaFault, hit)
		}
	}
	if err == nil {
		if got := PageSum(a.pin, key, page, p); got != sum && !fault.Planted(fault.VerificationSkipped) {
			a.sumFailures.Add(1)
			err = fmt.Errorf("%w: computed %08x, received %08x", ErrChecksumMismatch, got, sum)
		} else if err = a.beginPage(ref, page, sum); err == nil {
			err = a.endPage(ref, page, a.guardedCopy(a.memory(ref.Slot, page, 1), p))
		}
	}
	if err != nil && !errors.Is(err, errPageLanded) {
		return &PageError{Slot: ref.Slot, Generation: ref.Generation, Page: page, Key: key, Err: err}
	}
	return nil
}

// errPageLanded tells WritePage that there is nothing to do.
var errPageLanded = errors.New("page has landed")

// pageKey returns the key of the block that awaits a page of size bytes.
func (a *Arena) pageKey(ref SlotRef, page, size int) (BlockKey, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.landingLocked(ref)
	switch {
	case err != nil:
		return "", err
	case page < 0 || page >= a.pages:
		err = &FieldError{Field: "page", Value: strconv.Itoa(page), Allowed: fmt.Sprintf("0 to %d", a.pages-1), Fix: "pages are layers of this layout"}
	case int64(size) != a.pageBytes:
		err = &FieldError{Field: "page length", Value: strconv.Itoa(size), Allowed: fmt.Sprintf("%d bytes", a.pageBytes), Fix: "send whole decoded pages of this layout"}
	}
	return s.key.key, err
}

// landingLocked returns the slot ref names when pages may land in it.
func (a *Arena) landingLocked(ref SlotRef) (*slot, error) {
	if err := a.usableLocked(); err != nil {
		return nil, err
	}
	s, err := a.resolveLocked(ref)
	switch {
	case err != nil:
		return nil, err
	case s.state == slotDraining:
		return nil, staleError(ref, s.generation)
	case s.state == slotCommitted:
		return nil, ErrCommitted
	case s.doomed:
		return nil, ErrInvalidated
	case s.fill.world > 0:
		return nil, ErrMixedFill
	}
	return s, nil
}

// beginPage holds the slot for the copy of one page whose sum was found right. Two copies of one page may run at once
// only when they have the same sum, and so the same bytes.
func (a *Arena) beginPage(ref SlotRef, page int, sum uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.landingLocked(ref)
	if err != nil {
		return err
	}
	for len(s.fill.pages) < a.pages {
		s.fill.pages = append(s.fill.pages, pageEmpty)
	}
	state := s.fill.pages[page]
	if state != pageEmpty && s.sums[page] != sum {
		return ErrPageConflict
	}
	if state == pageVerified {
		return errPageLanded
	}
	s.fill.pages[page], s.sums[page] = pageClaimed, sum
	s.fill.byPage = true
	a.beginLocked(ref.Slot)
	return nil
}

// endPage ends one page's copy; err is the copy's outcome.
func (a *Arena) endPage(ref SlotRef, page int, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.endLocked(ref.Slot)
	s := &a.mu.slots[ref.Slot] // held, so still this generation
	switch {
	case err != nil: // a fault: the arena is broken for good
		return err
	case s.state == slotDraining:
		return staleError(ref, s.generation)
	case s.fill.pages[page] == pageClaimed:
		s.fill.pages[page] = pageVerified
		s.fill.verified++
	}
	return nil
}

// CommitLanded makes a block readable whose pages have all landed through WritePage. Repeating it is harmless.
// Errors: ErrIncomplete, ErrNotOwner, ErrStaleGeneration, ErrMixedFill, ErrInvalidated (the reservation is gone),
// ErrArenaFault, ErrClosed.
func (a *Arena) CommitLanded(o Owner, ref SlotRef) error {
	if err := fault.At(fault.Commit, a.cfg.Name); err != nil {
		return fmt.Errorf("commit landed block: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.usableLocked()
	if err == nil {
		err = a.commitLandedLocked(o, ref)
	}
	if err != nil && !errors.Is(err, ErrCommitted) {
		return fmt.Errorf("commit landed block: %w", err)
	}
	return nil
}

func (a *Arena) commitLandedLocked(o Owner, ref SlotRef) error {
	s, err := a.reservedLocked(o, ref)
	switch {
	case err != nil:
		return err
	case s.fill.world > 0:
		return &slotError{ref, ErrMixedFill}
	case s.doomed:
		a.drainLocked(ref.Slot)
		return &slotError{ref, ErrInvalidated}
	case s.fill.verified < a.pages:
		return &slotError{ref, fmt.Errorf("%w: %d of %d pages verified", ErrIncomplete, s.fill.verified, a.pages)}
	}
	a.commitLocked(ref.Slot)
	return nil
}

// PagesLanded returns how many pages of a slot are verified and a bitmap of them, page p at bit p%64 of word p/64. The
// bitmap is the caller's own. A committed block has all pages. Errors: ErrStaleGeneration, ErrClosed.
func (a *Arena) PagesLanded(ref SlotRef) (n int, bitmap []uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.resolveLocked(ref)
	if err == nil && s.state == slotDraining {
		err = staleError(ref, s.generation)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("pages landed: %w", err)
	}
	bitmap = make([]uint64, (a.pages+63)/64)
	for p := range a.pages {
		if s.state == slotCommitted || p < len(s.fill.pages) && s.fill.pages[p] == pageVerified {
			bitmap[p/64] |= 1 << (p % 64)
			n++
		}
	}
	return n, bitmap, nil
}
