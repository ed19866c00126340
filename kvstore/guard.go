package kvstore

import (
	"fmt"
	"runtime/debug"
)

// Whoever may map the arena's file for writing may also truncate it, and touching memory past a file's end is SIGBUS.
// Every touch of the mapping goes through this file, where such a fault becomes ErrArenaFault instead of the end of
// the process. The setting is per goroutine and restored on return.

// guardedCopy copies src to dst, one of which is arena memory.
func (a *Arena) guardedCopy(dst, src []byte) (err error) {
	defer a.recoverFault(debug.SetPanicOnFault(true), &err)
	copy(dst, src)
	return nil
}

// guardedSum returns the seeded checksum of a page in arena memory.
func (a *Arena) guardedSum(key BlockKey, page int, mem []byte) (sum uint32, err error) {
	defer a.recoverFault(debug.SetPanicOnFault(true), &err)
	return PageSum(a.pin, key, page, mem), nil
}

// guardedTouch reads one byte of every 4 KiB.
func (a *Arena) guardedTouch(mem []byte) (err error) {
	defer a.recoverFault(debug.SetPanicOnFault(true), &err)
	var x byte
	for i := 0; i < len(mem); i += SlotAlign {
		x ^= mem[i]
	}
	touchSink.Store(uint32(x))
	return nil
}

// recoverFault is deferred: it restores the goroutine's setting and turns a memory fault into an error.
func (a *Arena) recoverFault(old bool, err *error) {
	r := recover()
	debug.SetPanicOnFault(old)
	if r == nil {
		return
	}
	fault, ok := r.(interface{ Addr() uintptr }) // what the runtime promises for faults under SetPanicOnFault
	if !ok {
		panic(r)
	}
	a.broken.Store(true)
	*err = fmt.Errorf("arena %s at %#x: %w", a.cfg.Name, fault.Addr(), ErrArenaFault)
}

// mangle overwrites the head of each page of a slot, so that whoever still reads it is found out. A fault is ignored here:
// the next use of the arena meets it.
func (a *Arena) mangle(slot uint32) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	for page := range a.pages {
		head := a.memory(slot, page, 1)
		for i := range min(len(head), 64) {
			head[i] = 0xdb
		}
	}
}
