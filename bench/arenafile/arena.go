// Package arenafile maps the arena that a daemon gave an engine: what an engine does between registering and writing blocks.
//
// # Usage
//
//	a, err := arenafile.Map(registration, blockBytes, pageBytes)
//	defer a.Close()
//	mem, err := a.Slot(ref) // one block
//
// # Concurrency
//
// Slot may be called by several goroutines at a time, not beside Close.
//
// # Limitations
//
// Nothing guards against a file that is truncated while it is mapped: touching it is a SIGBUS then, as for any engine.
package arenafile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Arena is a mapping of a daemon's arena file. The nil Arena is one that is not on this host: Close does nothing, Slot is an
// error. Close is owed.
type Arena struct {
	path          string
	mem           []byte
	slots         uint32
	stride, block int64
}

// maxBytes bounds what is mapped: 64 TiB.
const maxBytes = 1 << 46

// ErrBadSlot means that a slot reference is outside of the arena.
var ErrBadSlot = errors.New("slot is outside of the arena")

// Map maps the file that a registration names, after checking it against the caller's own sizes of a block and a page, in
// bytes, and against the file's size: a mapping beyond the end of a file is a SIGBUS later. Errors: os.ErrNotExist when
// there is no such file on this host; of the system; those of sizes that do not fit.
func Map(r *pb.RegisterEngineResponse, block, page int64) (*Arena, error) {
	a := &Arena{path: r.GetArenaPath(), slots: r.GetSlots(), stride: r.GetStrideBytes(), block: r.GetBlockBytes()}
	if a.block != block || r.GetPageBytes() != page {
		return nil, fmt.Errorf("the daemon's arena has blocks of %d bytes and pages of %d, ours have %d and %d: the daemon reads the layout otherwise", a.block, r.GetPageBytes(), block, page)
	}
	if a.slots == 0 || a.block <= 0 || a.stride < a.block || a.stride > maxBytes/int64(a.slots) {
		return nil, fmt.Errorf("the daemon's arena has %d slots of %d bytes for blocks of %d", a.slots, a.stride, a.block)
	}
	f, err := os.OpenFile(a.path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open arena: %w", err)
	}
	defer func() { _ = f.Close() }() // the mapping stays
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat arena: %w", err)
	}
	size := int64(a.slots) * a.stride
	if st.Size() < size {
		return nil, fmt.Errorf("arena %s has %d bytes, its %d slots of %d need %d", a.path, st.Size(), a.slots, a.stride, size)
	}
	if a.mem, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map arena %s: %w", a.path, err)
	}
	return a, nil
}

// Path is the file's.
func (a *Arena) Path() string { return a.path }

// Slots is how many blocks it holds.
func (a *Arena) Slots() int { return int(a.slots) }

// BlockBytes is the length of what Slot returns.
func (a *Arena) BlockBytes() int64 { return a.block }

// Slot is the memory of one block, valid until Close. Whose it is, is the daemon's word. Error: ErrBadSlot.
func (a *Arena) Slot(ref *pb.SlotRef) ([]byte, error) {
	switch {
	case a == nil || a.mem == nil:
		return nil, fmt.Errorf("%w: it is not mapped", ErrBadSlot)
	case ref == nil || ref.GetSlot() >= a.slots:
		return nil, fmt.Errorf("%w: slot %d of %d", ErrBadSlot, ref.GetSlot(), a.slots)
	}
	at := int64(ref.GetSlot()) * a.stride
	return a.mem[at : at+a.block : at+a.block], nil
}

// Close unmaps it. Idempotent.
func (a *Arena) Close() error {
	if a == nil || a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem = nil
	return unix.Munmap(mem)
}
