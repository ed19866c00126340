package kvstore

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. Methods return them wrapped; compare with errors.Is.
var (
	// ErrBlockNotFound means that a block is not committed in this arena for this tenant.
	ErrBlockNotFound = errors.New("block not found")
	// ErrStaleGeneration means that a reference names an earlier use of its slot, or an aborted one.
	ErrStaleGeneration = errors.New("stale slot generation")
	// ErrNotOwner means that another owner holds the reservation.
	ErrNotOwner = errors.New("slot is reserved by another owner")
	// ErrCommitted means that the slot is committed already and can neither be written nor aborted.
	ErrCommitted = errors.New("block is already committed")
	// ErrIncomplete means that not all pages of a landing block are verified.
	ErrIncomplete = errors.New("block is incomplete")
	// ErrInvalidated means that the key was invalidated while the block was being filled; the reservation is gone.
	ErrInvalidated = errors.New("block was invalidated while it was filled")
	// ErrMixedFill means that one slot was filled both by ranks (CommitPart) and by pages (WritePage).
	ErrMixedFill = errors.New("slot is filled both by ranks and by pages")
	// ErrChecksumMismatch means that a page's bytes do not have the checksum they came with.
	ErrChecksumMismatch = errors.New("checksum mismatch")
	// ErrPageConflict means that a page came twice with different checksums.
	ErrPageConflict = errors.New("page landed twice with different checksums")
	// ErrFidelityUnsupported means that a block is not exact.
	ErrFidelityUnsupported = errors.New("only exact blocks can be committed")
	// ErrLeaseNotFound means that a lease was released or never existed.
	ErrLeaseNotFound = errors.New("lease not found")
	// ErrLeaseExpired means that a lease ran out; its blocks may be gone.
	ErrLeaseExpired = errors.New("lease expired")
	// ErrLeaseLimit means that the arena has as many leases as it may.
	ErrLeaseLimit = errors.New("too many leases")
	// ErrArenaFault means that touching the arena's memory faulted: someone truncated its file. The arena is broken
	// for good: close it and open another.
	ErrArenaFault = errors.New("arena memory fault")
	// ErrArenaInUse means that a live process holds the arena file of that name.
	ErrArenaInUse = errors.New("arena file is in use")
	// ErrClosed means that the arena or session store is closed.
	ErrClosed = errors.New("store is closed")
	// ErrArenaClosed is the arena's ErrClosed, and matches it: another arena may have taken its place.
	ErrArenaClosed error = arenaClosedError{}
	// ErrSessionNotFound means that this node has no record of the session.
	ErrSessionNotFound = errors.New("session not found")
	// ErrSessionLimit means that the session store is full, of sessions that changed lately.
	ErrSessionLimit = errors.New("too many sessions")
)

// FieldError is one value that is not allowed.
type FieldError struct {
	Field   string // field or argument
	Value   string // what was given, printable and clipped
	Allowed string // what is allowed
	Fix     string // how to fix it
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %s, allowed: %s; %s", e.Field, e.Value, e.Allowed, e.Fix)
}

// BlockError is a failure of one block of a list.
type BlockError struct {
	Key   BlockKey
	Index int // position in the caller's list
	Err   error
}

func (e *BlockError) Error() string {
	return fmt.Sprintf("block %d (key %s): %v", e.Index, clip(e.Key.String()), e.Err)
}

// Unwrap returns Err, for example ErrBlockNotFound.
func (e *BlockError) Unwrap() error { return e.Err }

// PageError is a failure of one page.
type PageError struct {
	Slot       uint32
	Generation uint64
	Page       int // layer
	Key        BlockKey
	Err        error
}

func (e *PageError) Error() string {
	return fmt.Sprintf("page %d of slot %d@%d (key %s): %v", e.Page, e.Slot, e.Generation, e.Key, e.Err)
}

// Unwrap returns Err, for example ErrChecksumMismatch.
func (e *PageError) Unwrap() error { return e.Err }

// ArenaFullError means that a reservation does not fit. Nothing was reserved and nothing was evicted. All counts are
// slots.
type ArenaFullError struct {
	Needed     int // slots the request needs beyond what is present
	Free       int
	Evictable  int // committed, unleased, and not part of the request
	Leased     int // held by leases
	Reserved   int // being filled
	Draining   int // waiting for readers or writers to finish
	Total      int
	Tenant     Tenant
	Quota      int // the tenant's quota, 0 when the arena itself is full
	TenantUsed int // slots the tenant uses
}

func (e *ArenaFullError) Error() string {
	if e.Quota > 0 {
		return fmt.Sprintf("tenant %q is at its quota: needs %d slots, uses %d of %d and only %d of them can be evicted; release leases or raise the quota",
			string(e.Tenant), e.Needed, e.TenantUsed, e.Quota, e.Evictable)
	}
	return fmt.Sprintf("arena is full: needs %d slots, has %d free and %d evictable of %d (%d leased, %d reserved, %d draining); release leases, wait, or make the arena larger",
		e.Needed, e.Free, e.Evictable, e.Total, e.Leased, e.Reserved, e.Draining)
}

// ArenaBusyError means that an arena is in use and was not closed.
type ArenaBusyError struct {
	// Leases are held.
	Leases int
	// Filling is how many blocks are being filled.
	Filling int
}

func (e *ArenaBusyError) Error() string {
	return fmt.Sprintf("the arena is in use: %d leases are held, %d blocks are being filled", e.Leases, e.Filling)
}

// ArenaSpaceError means that the memory filesystem cannot hold the arena.
type ArenaSpaceError struct {
	Dir       string
	Wanted    int64 // bytes
	Available int64 // bytes, -1 when unknown
	Err       error // what the system said, or nil when the check was made beforehand
}

func (e *ArenaSpaceError) Error() string {
	return fmt.Sprintf("%s has room for %d bytes, the arena wants %d; make the arena smaller or the filesystem larger (containers: --shm-size, or an emptyDir with medium Memory and a sizeLimit)",
		e.Dir, e.Available, e.Wanted)
}

// Unwrap returns Err.
func (e *ArenaSpaceError) Unwrap() error { return e.Err }

// ArenaDirError means that the directory is not on a memory filesystem.
type ArenaDirError struct {
	Dir    string
	FSType int64 // f_type of statfs(2)
}

func (e *ArenaDirError) Error() string {
	return fmt.Sprintf("%s is not on a memory filesystem (statfs type %#x), allowed: tmpfs, hugetlbfs, ramfs; use /dev/shm, or allow disk for tests",
		e.Dir, e.FSType)
}

type arenaClosedError struct{}

func (arenaClosedError) Error() string { return "arena is closed" }

// Is makes it ErrClosed, too.
func (arenaClosedError) Is(target error) bool { return target == ErrClosed }

// NotOwnerError means that another node owns the session.
type NotOwnerError struct {
	Tenant Tenant
	ID     SessionID
	Owner  NodeID
	Epoch  uint64
}

func (e *NotOwnerError) Error() string {
	return fmt.Sprintf("session %q is owned by node %q since epoch %d; publish it there, or take it over with a higher repin_seq",
		string(e.ID), string(e.Owner), e.Epoch)
}

// FencedError means that the caller's view of a session is behind the record.
type FencedError struct {
	Tenant   Tenant
	ID       SessionID
	Epoch    uint64 // recorded
	Owner    NodeID // recorded
	RepinSeq uint64 // recorded
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("session %q is fenced: recorded owner %q, epoch %d, repin_seq %d; look the session up again and retry",
		string(e.ID), string(e.Owner), e.Epoch, e.RepinSeq)
}

// MigrationConflictError means that a migration id was used before with other parameters.
type MigrationConflictError struct {
	ID        SessionID
	Migration string
	To        NodeID // where the recorded hand-over went
	Epoch     uint64 // the epoch it made
}

func (e *MigrationConflictError) Error() string {
	return fmt.Sprintf("migration %q of session %q already moved it to node %q at epoch %d; use a new migration id for another destination",
		clip(e.Migration), string(e.ID), string(e.To), e.Epoch)
}
