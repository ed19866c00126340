package kvstore

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// An arena that is kept (ArenaConfig.Keep) has its index in a file beside it, which is changed with every change of a slot. So it needs no
// word at the end: what a killed process leaves is complete, but for a record that it was in the middle of.

// indexSuffix is what the index's file name has more than the arena's. No engine's or node's name has a '+'.
const indexSuffix = "+index"

// unknownProcess is who may be at an arena's memory when nothing is known of who was; it never says that it is gone.
const unknownProcess = "?"

// beforeOwner holds what processes of an earlier opening may still read or write.
const beforeOwner Owner = "before"

// Restored says what an arena took over from the process that had it before.
type Restored struct {
	// Blocks are committed and readable: every page has the checksum it was committed with.
	Blocks int
	// Dropped are blocks whose record was damaged, or one of whose pages did not verify.
	Dropped int
	// Held are slots that processes of before may still be reading or writing. Their memory is not reused until all of these
	// are gone, see Arena.Gone.
	Held int
	// Why says why nothing was taken over although there was a file; or why this arena will not be kept.
	Why string
	// Took is how long it took to open, verification included.
	Took time.Duration
}

// table is the mapped index. All of it is guarded by the arena's lock.
type table struct {
	head    tableHead
	mem     []byte
	lost    bool   // it can't be relied on: the arena is not kept
	record  []byte // room to build one record
	state   [stateSize]byte
	seq     uint64 // of the copy of the processes written last
	current []string
}

// write copies b into the mapped file. Somebody who truncates it costs the arena its keeping and nothing else.
func (t *table) write(off int64, b []byte) {
	if t.lost {
		return
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			t.lost = true
		}
	}()
	copy(t.mem[off:off+int64(len(b))], b)
}

// noteLocked writes what a slot is to the table.
func (a *Arena) noteLocked(i uint32) {
	t := a.table
	if t == nil || t.lost {
		return
	}
	s := &a.mu.slots[i]
	st := tableState{
		stamp: s.stamp, generation: s.generation, parentGeneration: s.parent.Generation, parent: s.parent.Slot, position: s.position,
	}
	switch s.state {
	case slotCommitted:
		st.state = tableCommitted
	case slotReserved, slotDraining:
		st.state = tableBusy
	default:
	}
	if s.holders > 0 {
		st.flags |= stateHeld
	}
	if s.protected {
		st.flags |= stateProtected
	}
	st.put(t.state[:])
	t.write(t.head.stateOf(i), t.state[:])
}

// recordLocked writes what a committed slot holds to the table. The state that makes the record count is written after it.
func (a *Arena) recordLocked(i uint32) {
	t := a.table
	if t == nil || t.lost {
		return
	}
	s := &a.mu.slots[i]
	r := blockRecord{key: s.key, byPage: s.fill.byPage, generation: s.generation, sums: s.sums}
	r.put(t.record, i)
	t.write(t.head.recordOf(i), t.record)
	a.noteLocked(i)
}

// SetProcesses names the processes that may touch the arena's memory through a mapping of their own: each process that is handed
// slots or leases must be among them before it is. After a restart they hold what they held until they are Gone. Names are the caller's,
// at most MaxNameBytes long, and must mean the same process to the next opener. Where they do not fit (about 16 KB in all) the arena is not kept. It
// does nothing for an arena without Keep.
func (a *Arena) SetProcesses(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.table == nil || a.mu.closed {
		return
	}
	a.table.current = slices.Clone(names)
	a.writeProcessesLocked()
}

func (a *Arena) writeProcessesLocked() {
	t := a.table
	all := slices.Concat(t.current, a.mu.before)
	slices.Sort(all)
	b := encodeProcesses(t.seq+1, slices.Compact(all))
	if b == nil {
		t.write(0, make([]byte, 8)) // whoever opens it next finds no index
		t.lost = true
		return
	}
	t.seq++
	t.write(tableHeadSize+int64(t.seq%2)*processSize, b)
}

// Before returns the names of the processes of earlier openings that may still touch the memory.
func (a *Arena) Before() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mu.before)
}

// Gone says that a process of an earlier opening has ended or has forgotten what it held: it is not at the memory any more. When the last of them
// is gone, so is what they held. A name that is not waited for changes nothing.
func (a *Arena) Gone(name string) {
	a.mu.Lock()
	at := slices.Index(a.mu.before, name)
	if at < 0 || a.mu.closed {
		a.mu.Unlock()
		return
	}
	a.mu.before = slices.Delete(a.mu.before, at, at+1)
	a.writeProcessesLocked()
	last := len(a.mu.before) == 0
	a.mu.Unlock()
	if last {
		a.ReleaseOwner(beforeOwner)
	}
}

// Restored says what the arena took over when it was opened.
func (a *Arena) Restored() Restored { return a.restored }

// RestoredByPage returns the blocks taken over that had come page by page, not from an engine here.
func (a *Arena) RestoredByPage() []SlotRef {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mu.byPage)
}

// Discard is Close, and the file goes whether or not it was to be kept.
func (a *Arena) Discard() error {
	a.mu.Lock()
	a.mu.discard = true
	return a.closeLocked()
}

// keepsLocked reports whether the files stay when the arena closes.
func (a *Arena) keepsLocked() bool {
	return a.table != nil && !a.table.lost && !a.mu.discard && !a.broken.Load()
}

// KeptArena is an arena file that no process has open.
type KeptArena struct {
	// Path is the arena's file.
	Path string
	// Identity is the ArenaConfig.Keep it was opened with; "" for a file without a valid index, whose blocks nobody can find.
	Identity string
	// Bytes is the file's size.
	Bytes int64
	// Since is when it was first seen without a process that has it open, in this machine's time; at least a second's resolution.
	Since time.Time
}

// ArenaFile is an arena's file as somebody else sees it.
type ArenaFile struct {
	// Path is the file.
	Path string
	// Identity is the ArenaConfig.Keep it was opened with; "" where no valid index is beside it, or it is not kept.
	Identity string
	// Bytes is its size and its index's.
	Bytes int64
	// InUse says that a process has it open as its arena, or that this can't be told: the file is Unread.
	InUse bool
	// Unread says why the file, or its index, could not be read, as where it is another user's: what is wrong with it is not known. nil: both were.
	Unread error
	// Used is when a process had it last, as Arena.NoteAlive or Close said, or made it.
	Used time.Time
	// Damage says why nobody can take it over; "" for one that is whole, or Unread.
	Damage string
}

// NoteAlive has the file's time of change say that a process has the arena now, for people who find it later (ArenaFile.Used).
func (a *Arena) NoteAlive() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.usableLocked() == nil {
		a.mapping.noteAlive()
	}
}

// why joins what was wrong with an arena that was to be taken over.
func why(errs ...error) string {
	if err := errors.Join(errs...); err != nil {
		return err.Error()
	}
	return ""
}

// fits says what keeps an index from being that of an arena as want says.
func (h tableHead) fits(want tableHead) error {
	differs := func(what string, has, wants any) error {
		return fmt.Errorf("it was made for another %s: %v, not %v", what, has, wants)
	}
	switch {
	case h.identity != want.identity:
		return differs("engine", fmt.Sprintf("%q", h.identity), fmt.Sprintf("%q", want.identity))
	case h.pin != want.pin:
		return differs("layout", h.pin, want.pin)
	case h.bytes != want.bytes:
		return differs("size", h.bytes, want.bytes)
	case h.slots != want.slots || h.pages != want.pages || h.stride != want.stride:
		return differs("shape", []int64{int64(h.slots), int64(h.pages), h.stride}, []int64{int64(want.slots), int64(want.pages), want.stride})
	}
	return nil
}
