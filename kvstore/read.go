package kvstore

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kvferry/kvferry/internal/fault"
)

// ReadPages copies n pages from page first on of a leased block to dst, and their checksums to sums unless that is
// nil. dst must hold exactly n pages, sums n values. The sums are those of the commit: a reader that finds the bytes
// do not match them has found memory that somebody changed, see VerifyBlock.
//
// Errors: ErrLeaseExpired, ErrLeaseNotFound, ErrStaleGeneration, ErrBlockNotFound when the lease does not hold the
// block, *FieldError for a range or length, ErrArenaFault (dst may be changed), ErrClosed.
func (a *Arena) ReadPages(l LeaseID, ref SlotRef, first, n int, dst []byte, sums []uint32) error {
	err := a.beginRead(l, ref, first, n, dst, sums)
	if err == nil {
		err = a.guardedCopy(dst, a.memory(ref.Slot, first, n))
		if hit := fault.Page(fault.Read, a.cfg.Name, dst); hit != nil {
			err = fmt.Errorf("%w: %w", ErrArenaFault, hit)
		}
		a.mu.Lock()
		a.endLocked(ref.Slot)
		a.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("read pages: %w", err)
	}
	return nil
}

func (a *Arena) beginRead(id LeaseID, ref SlotRef, first, n int, dst []byte, sums []uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usableLocked(); err != nil {
		return err
	}
	l, err := a.leaseLocked(id, a.now())
	if err != nil {
		return err
	}
	s, err := a.resolveLocked(ref)
	switch {
	case err != nil:
		return err
	case !l.holds(ref):
		return fmt.Errorf("slot %s is not part of lease %s: %w", ref, id, ErrBlockNotFound)
	case first < 0 || n < 1 || n > a.pages || first > a.pages-n:
		return &FieldError{
			Field: "pages", Value: fmt.Sprintf("%d from %d on", n, first), Allowed: fmt.Sprintf("within 0 to %d", a.pages-1),
			Fix: "pages are layers of this layout",
		}
	case int64(len(dst)) != int64(n)*a.pageBytes:
		return &FieldError{Field: "dst", Value: strconv.Itoa(len(dst)) + " bytes", Allowed: strconv.FormatInt(int64(n)*a.pageBytes, 10), Fix: "size it with Layout.PageBytes"}
	case sums != nil && len(sums) != n:
		return &FieldError{Field: "sums", Value: strconv.Itoa(len(sums)), Allowed: fmt.Sprintf("nil or %d values", n), Fix: "give one value a page"}
	}
	copy(sums, s.sums[first:first+n])
	a.beginLocked(ref.Slot)
	return nil
}

// VerifyBlock computes the checksums of a committed block again. A page that differs is a *PageError with
// ErrChecksumMismatch, and counted; the caller then drops the block with DropBlock. Other errors: ErrStaleGeneration,
// ErrBlockNotFound when the block is not committed, ErrArenaFault, ErrClosed.
func (a *Arena) VerifyBlock(ref SlotRef) error {
	key, sums, err := a.beginVerify(ref)
	if err != nil {
		return fmt.Errorf("verify block: %w", err)
	}
	defer func() {
		a.mu.Lock()
		a.endLocked(ref.Slot)
		a.mu.Unlock()
	}()
	for page, want := range sums {
		got, err := a.guardedSum(key, page, a.memory(ref.Slot, page, 1))
		if err == nil && got != want {
			a.sumFailures.Add(1)
			err = fmt.Errorf("%w: computed %08x, recorded %08x", ErrChecksumMismatch, got, want)
		}
		if err != nil {
			return fmt.Errorf("verify block: %w", &PageError{Slot: ref.Slot, Generation: ref.Generation, Page: page, Key: key, Err: err})
		}
	}
	return nil
}

func (a *Arena) beginVerify(ref SlotRef) (BlockKey, []uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usableLocked(); err != nil {
		return "", nil, err
	}
	s, err := a.resolveLocked(ref)
	if err != nil {
		return "", nil, err
	}
	if s.state != slotCommitted {
		return "", nil, &slotError{ref, ErrBlockNotFound}
	}
	a.beginLocked(ref.Slot)
	return s.key.key, slices.Clone(s.sums), nil
}
