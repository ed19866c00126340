package refengine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// arena is this process's own mapping of the daemon's arena file.
type arena struct {
	path   string
	mem    []byte
	slots  uint32
	stride int64
	block  int64
}

// openArena maps the arena that a registration names, after checking it
// against the engine's own layout and the file's size: a mapping beyond the
// end of a file is a SIGBUS later.
func openArena(r *kvferryv1.RegisterEngineResponse, cfg ModelConfig) (*arena, error) {
	a := &arena{path: r.GetArenaPath(), slots: r.GetSlots(), stride: r.GetStrideBytes(), block: r.GetBlockBytes()}
	if a.block != int64(cfg.blockBytes()) || r.GetPageBytes() != int64(cfg.pageBytes()) {
		return nil, fmt.Errorf("refengine: the daemon's arena has blocks of %d bytes and pages of %d, the model %d and %d: the daemon reads the layout otherwise",
			a.block, r.GetPageBytes(), cfg.blockBytes(), cfg.pageBytes())
	}
	size := int64(a.slots) * a.stride
	if a.slots == 0 || a.stride < a.block || size <= 0 || size > 1<<46 {
		return nil, fmt.Errorf("refengine: the daemon's arena has %d slots of %d bytes for blocks of %d", a.slots, a.stride, a.block)
	}
	f, err := os.OpenFile(a.path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("refengine: open arena: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("refengine: stat arena: %w", err)
	}
	if st.Size() < size {
		return nil, fmt.Errorf("refengine: arena %s has %d bytes, its %d slots need %d", a.path, st.Size(), a.slots, size)
	}
	a.mem, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("refengine: map arena %s: %w", a.path, err)
	}
	return a, nil
}

var errBadSlot = errors.New("refengine: slot is outside the arena")

// slot is the memory of one block.
func (a *arena) slot(ref *kvferryv1.SlotRef) ([]byte, error) {
	if ref == nil || ref.GetSlot() >= a.slots {
		return nil, fmt.Errorf("%w: slot %d of %d", errBadSlot, ref.GetSlot(), a.slots)
	}
	at := int64(ref.GetSlot()) * a.stride
	return a.mem[at : at+a.block : at+a.block], nil
}

func (a *arena) close() error {
	if a == nil || a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem = nil
	return unix.Munmap(mem)
}
