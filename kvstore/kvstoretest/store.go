package kvstoretest

import (
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// Store is what the conformance suite runs against. kvstore.Arena implements it.
type Store interface {
	Layout() kvstore.Layout
	Pin() kvstore.Pin
	Path() string
	Slots() int
	Stats() kvstore.ArenaStats
	Close() error

	Lookup(kvstore.Tenant, kvstore.BlockKey) (kvstore.BlockState, kvstore.SlotRef)
	Reserve(kvstore.Owner, kvstore.Tenant, []kvstore.BlockKey) ([]kvstore.Reservation, error)
	ReserveAfter(kvstore.Owner, kvstore.Tenant, kvstore.BlockKey, []kvstore.BlockKey) ([]kvstore.Reservation, error)
	CommitPart(o kvstore.Owner, ref kvstore.SlotRef, rank, world int, f kvstore.Fidelity) (bool, error)
	WritePage(ref kvstore.SlotRef, page int, p []byte, sum uint32) error
	CommitLanded(kvstore.Owner, kvstore.SlotRef) error
	PagesLanded(kvstore.SlotRef) (int, []uint64, error)
	Abort(kvstore.Owner, kvstore.SlotRef) error

	Acquire(kvstore.Owner, kvstore.Tenant, []kvstore.BlockKey, time.Duration) (kvstore.LeaseID, []kvstore.SlotRef, error)
	AcquirePrefix(kvstore.Owner, kvstore.Tenant, []kvstore.BlockKey, time.Duration) (kvstore.LeaseID, []kvstore.SlotRef, int, error)
	Renew(kvstore.LeaseID, time.Duration) error
	Release(kvstore.LeaseID) error
	ExpireLeases(now time.Time) []kvstore.LeaseID
	ReadPages(l kvstore.LeaseID, ref kvstore.SlotRef, first, n int, dst []byte, sums []uint32) error

	VerifyBlock(kvstore.SlotRef) error
	DropBlock(kvstore.SlotRef) error
	Invalidate(kvstore.Tenant, []kvstore.BlockKey) int
	ReleaseOwner(kvstore.Owner) kvstore.Released
}

var _ Store = (*kvstore.Arena)(nil)
