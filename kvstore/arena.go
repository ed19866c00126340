package kvstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Arena is shared, page-aligned host memory in slots of one block each, with the index, the leases and the eviction
// policy over them. Safe for concurrent use. Close is owed.
type Arena struct {
	cfg       ArenaConfig
	pin       Pin
	pages     int   // a block
	pageBytes int64 // a page
	stride    int64 // a slot
	mapping   *mapping
	index     index
	table     *table // nil: the arena is not kept
	restored  Restored

	broken      atomic.Bool // a copy faulted
	sumFailures atomic.Int64
	touched     atomic.Int64 // bytes
	pinned      atomic.Int64 // bytes
	pinErr      atomic.Pointer[string]

	stop  chan struct{} // closed by Close; ends the pinner
	tasks sync.WaitGroup

	idle *sync.Cond // on mu; mu.inflight reached zero
	mu   struct {
		sync.Mutex
		closed    bool
		closeDone chan struct{} // set by the first Close, closed when the memory is gone
		slots     []slot
		free      []uint32
		tenants   map[Tenant]*tenantState
		global    slotHeap
		protected slotHeap
		leases    map[LeaseID]*lease
		expiring  map[LeaseID]*lease // those that have an expiry
		expired   expiredLeases
		states    [slotStates]int
		leased    int // slots with a holder
		stamp     uint64
		evictions int64
		inflight  int
		before    []string  // processes of earlier openings that may be at the memory
		byPage    []SlotRef // taken over at opening, and landed page by page
		discard   bool      // the files go at Close
	}
}

// ArenaStats is a snapshot. SlotsFree + SlotsReserved + SlotsCommitted + SlotsDraining = SlotsTotal.
type ArenaStats struct {
	SlotsTotal     int
	SlotsFree      int
	SlotsReserved  int // being filled
	SlotsCommitted int // readable
	SlotsDraining  int // out of the index, waiting for readers, writers or leases
	Leases         int
	LeasedBlocks   int   // distinct slots that leases hold
	Evictions      int64 // since opening
	SumFailures    int64 // checksum mismatches since opening
	RestoredBlocks int64 // taken over at opening from the process before
	RestoreDropped int64 // not taken over because they did not verify
	Bytes          int64 // of the file
	TouchedBytes   int64 // faulted in so far
	PinnedBytes    int64 // locked so far
	PinError       string
	Broken         bool // memory faulted; every use is ErrArenaFault
}

// OpenArena creates and maps the arena's file. With Keep, a file that an earlier process left under the same identity, layout and size is
// taken over: each block whose pages all have the checksums they were committed with is readable again, under a new generation; see
// Restored. Any other file of the same name that no live process holds is removed first; one that is held is ErrArenaInUse. Memory is
// touched and locked in the background. Other errors: *FieldError (joined), *ArenaDirError, *ArenaSpaceError, or the system's. On error
// nothing is left behind.
func OpenArena(cfg ArenaConfig) (*Arena, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open arena: %w", err)
	}
	started := time.Now()
	cfg = cfg.withDefaults()
	a := &Arena{
		cfg: cfg, pin: cfg.Layout.Pin(), pages: cfg.Layout.PagesPerBlock(),
		pageBytes: cfg.Layout.PageBytes(), stride: cfg.Layout.Stride(), stop: make(chan struct{}),
	}
	a.idle = sync.NewCond(&a.mu.Mutex)
	if err := a.open(true); err != nil {
		return nil, fmt.Errorf("open arena: %w", err)
	}
	if a.mapping.reopened && !a.restore() {
		a.broken.Store(false)
		_ = a.mapping.close(false) // what comes next says more
		if err := a.open(false); err != nil {
			return nil, fmt.Errorf("open arena: %w", err)
		}
		a.mapping.why = "its memory faulted, or its index makes no sense"
	}
	if !a.mapping.reopened {
		a.restored = Restored{Why: a.mapping.why}
		a.mu.Lock()
		base := randomGeneration()
		a.beginGenerationsLocked(base)
		a.freeListLocked()
		if a.table != nil {
			a.newTableLocked(base)
		}
		a.mu.Unlock()
	}
	a.restored.Took = time.Since(started)
	a.tasks.Go(a.pinAll) // pinner: ends at the file's end or when stop closes
	return a, nil
}

// open maps the file and forgets whatever the arena knew; with reuse, a file that is there is taken where it fits.
func (a *Arena) open(reuse bool) error {
	n := int(a.cfg.Bytes / a.stride)
	head := tableHead{slots: n, pages: a.pages, bytes: int64(n) * a.stride, stride: a.stride, pin: a.pin, identity: a.cfg.Keep}
	m, err := openMapping(a.cfg, head, reuse)
	if err != nil {
		return err
	}
	a.mapping, a.table = m, nil
	if m.index != nil {
		head.generation = m.generation
		a.table = &table{head: head, mem: m.index, record: make([]byte, head.recordSize())}
	}
	a.index.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.slots, a.mu.free = make([]slot, n), make([]uint32, 0, n)
	for i := range n {
		a.mu.slots[i] = slot{heapAt: [heapCount]int32{-1, -1, -1}}
	}
	a.mu.states = [slotStates]int{slotFree: n}
	a.mu.tenants = make(map[Tenant]*tenantState)
	a.mu.leases, a.mu.expiring = make(map[LeaseID]*lease), make(map[LeaseID]*lease)
	a.mu.global, a.mu.protected = slotHeap{which: heapGlobal}, slotHeap{which: heapProtected}
	a.mu.stamp, a.mu.leased, a.mu.before, a.mu.byPage = 0, 0, nil, nil
	return nil
}

// randomGeneration starts each fresh arena at its own generation, so that a reference from before a restart is stale. It leaves room to count on.
func randomGeneration() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return uint64(binary.LittleEndian.Uint32(b[:])) << 24
}

// Close waits for copies in progress and unmaps the file. The file goes, unless the arena is kept (ArenaConfig.Keep) and whole.
// Idempotent; every caller waits. All other methods return ErrClosed (or zero values) from then on.
func (a *Arena) Close() error {
	a.mu.Lock()
	return a.closeLocked()
}

// CloseIdle is Discard, if nobody but the owners in mine holds a lease or fills a block; else it changes nothing and returns an
// *ArenaBusyError. Leases that have run out are not held. There is no moment between the look and the closing.
func (a *Arena) CloseIdle(mine ...Owner) error {
	a.mu.Lock()
	if a.mu.closed {
		return a.closeLocked()
	}
	var busy ArenaBusyError
	now := a.now()
	for _, l := range a.mu.leases {
		if !l.expiredAt(now) && !slices.Contains(mine, l.owner) {
			busy.Leases++
		}
	}
	for i := range a.mu.slots {
		if s := &a.mu.slots[i]; s.state == slotReserved && !slices.Contains(mine, s.owner) {
			busy.Filling++
		}
	}
	if busy != (ArenaBusyError{}) {
		a.mu.Unlock()
		return fmt.Errorf("close arena: %w", &busy)
	}
	a.mu.discard = true
	return a.closeLocked()
}

// closeLocked gives a.mu back.
func (a *Arena) closeLocked() error {
	if a.mu.closed {
		done := a.mu.closeDone
		a.mu.Unlock()
		<-done
		return nil
	}
	a.mu.closed = true
	a.mu.closeDone = make(chan struct{})
	defer close(a.mu.closeDone)
	close(a.stop)
	for a.mu.inflight > 0 {
		a.idle.Wait()
	}
	a.mu.Unlock()
	a.tasks.Wait()
	a.index.clear()
	a.mu.Lock()
	keep := a.keepsLocked()
	a.mu.Unlock()
	if err := a.mapping.close(keep); err != nil {
		return fmt.Errorf("close arena: %w", err)
	}
	return nil
}

func (a *Arena) usableLocked() error {
	if a.mu.closed {
		return fmt.Errorf("arena %s: %w", a.cfg.Name, ErrArenaClosed)
	}
	if a.broken.Load() {
		return fmt.Errorf("arena %s: %w", a.cfg.Name, ErrArenaFault)
	}
	return nil
}

// CheckFile looks at the file that engines map: ErrArenaFault when it is shorter than the arena, or has lost its name, so
// that nobody can map it any more. The arena is broken from then on, as by the fault that comes of touching the memory. Other errors: ErrClosed, the system's.
func (a *Arena) CheckFile() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.usableLocked()
	if err == nil {
		if err = a.mapping.whole(); errors.Is(err, ErrArenaFault) {
			a.broken.Store(true)
		}
	}
	if err != nil {
		return fmt.Errorf("check arena: %w", err)
	}
	return nil
}

// Layout returns the arena's layout. Its slices must not be changed.
func (a *Arena) Layout() Layout { return a.cfg.Layout }

// Pin returns the layout's pin.
func (a *Arena) Pin() Pin { return a.pin }

// Path returns the arena's file, which engines map.
func (a *Arena) Path() string { return a.mapping.path }

// Slots returns the number of slots.
func (a *Arena) Slots() int { return len(a.mu.slots) }

// Stats returns a snapshot. After Close it shows the last state.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := ArenaStats{
		SlotsTotal: len(a.mu.slots), SlotsFree: a.mu.states[slotFree], SlotsReserved: a.mu.states[slotReserved],
		SlotsCommitted: a.mu.states[slotCommitted], SlotsDraining: a.mu.states[slotDraining],
		Leases: len(a.mu.leases), LeasedBlocks: a.mu.leased, Evictions: a.mu.evictions,
		SumFailures: a.sumFailures.Load(), Bytes: a.mapping.size, TouchedBytes: a.touched.Load(),
		PinnedBytes: a.pinned.Load(), Broken: a.broken.Load(),
		RestoredBlocks: int64(a.restored.Blocks), RestoreDropped: int64(a.restored.Dropped),
	}
	if p := a.pinErr.Load(); p != nil {
		st.PinError = *p
	}
	return st
}

// Lookup returns what the index knows about a key, and its slot unless absent. It touches no recency, takes one read
// lock and does not allocate. After Close or a fault everything is absent.
func (a *Arena) Lookup(t Tenant, k BlockKey) (BlockState, SlotRef) {
	if a.broken.Load() {
		return BlockAbsent, SlotRef{}
	}
	e, ok := a.index.get(indexKey{t, k})
	if !ok {
		return BlockAbsent, SlotRef{}
	}
	return e.state, e.ref
}

// ReservationState is what became of one key of a Reserve call.
type ReservationState uint8

// The states of a Reservation.
const (
	// Reserved means that the caller fills the slot and then commits or aborts it.
	Reserved ReservationState = iota + 1
	// Present means that the block is committed already. The reference is not held: acquire the block to read it.
	Present
	// Pending means that another owner is filling the block.
	Pending
)

// String returns "reserved", "present", "pending" or "reservation(n)".
func (s ReservationState) String() string {
	switch s {
	case Reserved:
		return "reserved"
	case Present:
		return "present"
	case Pending:
		return "pending"
	default:
		return fmt.Sprintf("reservation(%d)", uint8(s))
	}
}

// Reservation is Reserve's answer for one key.
type Reservation struct {
	Key   BlockKey
	State ReservationState
	Ref   SlotRef
}

// now is the one place the arena reads the clock; leases are all that depends on it.
func (a *Arena) now() time.Time { return time.Now() }

// memory returns n pages of a slot from page first on.
func (a *Arena) memory(slot uint32, first, n int) []byte {
	off := int64(slot)*a.stride + int64(first)*a.pageBytes
	end := off + int64(n)*a.pageBytes
	return a.mapping.mem[off:end:end]
}
