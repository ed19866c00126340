package kvstore

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
)

// LeaseID names a lease. Never 0; not guessable; not reused after a restart.
type LeaseID uint64

// String returns the id in hexadecimal.
func (id LeaseID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// lease holds blocks: while it lives none of them is evicted and none of their slots reused.
type lease struct {
	id     LeaseID
	owner  Owner
	refs   []SlotRef // by slot
	expiry time.Time // zero: never
}

func bySlot(a, b SlotRef) int { return cmp.Compare(a.Slot, b.Slot) }

func (l *lease) holds(ref SlotRef) bool {
	at, ok := slices.BinarySearchFunc(l.refs, ref, bySlot)
	return ok && l.refs[at] == ref
}

func (l *lease) expiredAt(now time.Time) bool { return !l.expiry.IsZero() && !now.Before(l.expiry) }

// expiredLeases remembers the last leases that ran out, so that their holders learn why.
type expiredLeases struct {
	ids  [4096]LeaseID
	next int
	set  map[LeaseID]struct{}
}

func (e *expiredLeases) add(id LeaseID) {
	if e.set == nil {
		e.set = make(map[LeaseID]struct{})
	}
	delete(e.set, e.ids[e.next])
	e.ids[e.next] = id
	e.next = (e.next + 1) % len(e.ids)
	e.set[id] = struct{}{}
}

// Released counts what ReleaseOwner gave back.
type Released struct {
	Reservations int // slots freed, or draining until their writers are done
	Committed    int // reservations whose pages had all landed: kept as ordinary cache
	Leases       int
	Blocks       int // blocks those leases held
}

func expiryOf(now time.Time, ttl time.Duration) time.Time {
	switch {
	case ttl < 0 && fault.Planted(fault.LeaseLost):
		return now.Add(time.Second)
	case ttl < 0:
		return time.Time{}
	case ttl == 0:
		return now.Add(DefaultLeaseTTL)
	default:
		return now.Add(ttl)
	}
}

// Acquire leases the committed blocks named by keys, all or none, and returns their slots in the same order. ttl 0 is
// DefaultLeaseTTL; negative never expires (an engine on this host, whose death is noticed otherwise). A key may
// repeat. Acquiring is a use for the eviction policy.
//
// Errors: *BlockError with ErrBlockNotFound for the first key that is absent or still landing, or with a *FieldError
// for a bad key; *FieldError; ErrLeaseLimit; ErrArenaFault; ErrClosed.
func (a *Arena) Acquire(o Owner, t Tenant, keys []BlockKey, ttl time.Duration) (LeaseID, []SlotRef, error) {
	id, refs, _, err := a.acquire(o, t, keys, ttl, false)
	if err != nil {
		return 0, nil, fmt.Errorf("acquire blocks: %w", err)
	}
	return id, refs, nil
}

// AcquirePrefix leases the longest run of keys from the first on that is committed, and returns its length. When that
// is 0 there is no lease: the id is 0 and the error nil. Otherwise as Acquire.
func (a *Arena) AcquirePrefix(o Owner, t Tenant, keys []BlockKey, ttl time.Duration) (LeaseID, []SlotRef, int, error) {
	id, refs, n, err := a.acquire(o, t, keys, ttl, true)
	if err != nil {
		return 0, nil, 0, fmt.Errorf("acquire prefix: %w", err)
	}
	return id, refs, n, nil
}

func (a *Arena) acquire(o Owner, t Tenant, keys []BlockKey, ttl time.Duration, prefix bool) (LeaseID, []SlotRef, int, error) {
	err := errors.Join(o.Validate(), t.Validate(), validateKeys(keys, false))
	if err == nil && len(keys) == 0 && !prefix {
		err = &FieldError{Field: "keys", Value: "empty", Allowed: "at least one", Fix: "name the blocks to lease"}
	}
	if err != nil {
		return 0, nil, 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usableLocked(); err != nil {
		return 0, nil, 0, err
	}
	refs := make([]SlotRef, 0, len(keys))
	for n, k := range keys {
		e, ok := a.index.get(indexKey{t, k})
		if !ok || e.state != BlockPresent {
			if prefix {
				break
			}
			return 0, nil, 0, &BlockError{Key: k, Index: n, Err: ErrBlockNotFound}
		}
		refs = append(refs, e.ref)
	}
	if len(refs) == 0 {
		return 0, nil, 0, nil
	}
	now := a.now()
	if limit := a.cfg.MaxLeases; limit > 0 && len(a.mu.leases) >= limit && a.expireLocked(now) == 0 {
		return 0, nil, 0, fmt.Errorf("%w: %d held; release some or raise MaxLeases", ErrLeaseLimit, limit)
	}
	l := &lease{id: a.newLeaseIDLocked(), owner: o, refs: slices.Clone(refs), expiry: expiryOf(now, ttl)}
	slices.SortFunc(l.refs, bySlot)
	a.mu.leases[l.id] = l
	if !l.expiry.IsZero() {
		a.mu.expiring[l.id] = l
	}
	stamp := a.tickLocked()
	for _, ref := range refs {
		s := &a.mu.slots[ref.Slot]
		if !fault.Planted(fault.SlotReusedEarly) {
			a.unlistLocked(ref.Slot)
		}
		s.stamp, s.protected = stamp, true
		if s.holders++; s.holders == 1 {
			a.mu.leased++
			a.noteLocked(ref.Slot)
		}
	}
	return l.id, refs, len(refs), nil
}

func (a *Arena) newLeaseIDLocked() LeaseID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // documented never to fail
		id := LeaseID(binary.LittleEndian.Uint64(b[:]))
		_, taken := a.mu.leases[id]
		_, expired := a.mu.expired.set[id]
		if id != 0 && !taken && !expired {
			return id
		}
	}
}

// leaseLocked returns a lease that has not run out at now; one that has is dropped.
func (a *Arena) leaseLocked(id LeaseID, now time.Time) (*lease, error) {
	if a.mu.closed {
		return nil, ErrArenaClosed
	}
	l := a.mu.leases[id]
	if l != nil && l.expiredAt(now) {
		a.dropLeaseLocked(l)
		a.mu.expired.add(id)
		l = nil
	}
	if l != nil {
		return l, nil
	}
	if _, ok := a.mu.expired.set[id]; ok {
		return nil, fmt.Errorf("lease %s: %w", id, ErrLeaseExpired)
	}
	return nil, fmt.Errorf("lease %s: %w", id, ErrLeaseNotFound)
}

// Renew makes a lease last ttl from now, with ttl as for Acquire. Errors: ErrLeaseExpired, ErrLeaseNotFound,
// ErrClosed.
func (a *Arena) Renew(id LeaseID, ttl time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	l, err := a.leaseLocked(id, now)
	if err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	l.expiry = expiryOf(now, ttl)
	if delete(a.mu.expiring, id); !l.expiry.IsZero() {
		a.mu.expiring[id] = l
	}
	return nil
}

// Release ends a lease. Errors: ErrLeaseNotFound (also for a second release), ErrLeaseExpired, ErrClosed; in each case
// the lease holds nothing.
func (a *Arena) Release(id LeaseID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, err := a.leaseLocked(id, a.now())
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	a.dropLeaseLocked(l)
	return nil
}

// ReleaseHeld is Release for what o holds: a lease of another owner is ErrLeaseNotFound, and stays.
func (a *Arena) ReleaseHeld(o Owner, id LeaseID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, err := a.leaseLocked(id, a.now())
	if err == nil && l.owner != o {
		err = fmt.Errorf("lease %s: %w", id, ErrLeaseNotFound)
	}
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	a.dropLeaseLocked(l)
	return nil
}

func (a *Arena) dropLeaseLocked(l *lease) {
	delete(a.mu.leases, l.id)
	delete(a.mu.expiring, l.id)
	stamp := a.tickLocked()
	for _, ref := range l.refs {
		s := &a.mu.slots[ref.Slot] // held until here, so still this generation
		if s.holders--; s.holders == 0 {
			a.mu.leased--
			s.stamp = stamp
			a.noteLocked(ref.Slot)
			a.settleLocked(ref.Slot)
		}
	}
}

// ExpireLeases ends every lease that has run out at now and returns their ids, for events. The daemon calls it every
// second or so; an expired lease is refused whether or not it has been swept.
func (a *Arena) ExpireLeases(now time.Time) []LeaseID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sweepLocked(now)
}

func (a *Arena) sweepLocked(now time.Time) []LeaseID {
	var ids []LeaseID
	for id, l := range a.mu.expiring {
		if l.expiredAt(now) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		a.dropLeaseLocked(a.mu.leases[id])
		a.mu.expired.add(id)
	}
	return ids
}

func (a *Arena) expireLocked(now time.Time) int { return len(a.sweepLocked(now)) }

// ReleaseOwner gives back everything o holds: leases end, reservations are aborted, except those whose pages have all
// landed, which become ordinary cache; slots that AbortLost left to it no longer wait for it. For an engine or one of
// its processes that died, or a migration that ended.
func (a *Arena) ReleaseOwner(o Owner) Released {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out Released
	if a.mu.closed {
		return out
	}
	for _, l := range a.mu.leases {
		if l.owner == o {
			out.Leases++
			out.Blocks += len(l.refs)
			a.dropLeaseLocked(l)
		}
	}
	for i := range a.mu.slots {
		s := &a.mu.slots[i]
		if s.state == slotDraining {
			a.quietLocked(o, uint32(i))
		}
		if s.state != slotReserved || s.owner != o {
			continue
		}
		if !a.broken.Load() && a.commitLandedLocked(o, a.refLocked(uint32(i))) == nil {
			out.Committed++
			continue
		}
		out.Reservations++
		if s.state == slotReserved { // a doomed one is draining already
			a.drainLocked(uint32(i))
		}
	}
	return out
}
