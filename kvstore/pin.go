package kvstore

import "sync/atomic"

const pinChunk = 4 << 20 // bytes at a time: small enough to use up a small RLIMIT_MEMLOCK and to stop soon

// touchSink keeps guardedTouch's reads from being optimised away.
var touchSink atomic.Uint32

// pinAll faults in and, where allowed, locks the whole mapping, low addresses first.
func (a *Arena) pinAll() {
	lock := a.cfg.Lock == LockTry
	for off := int64(0); off < a.mapping.size; off += pinChunk {
		select {
		case <-a.stop:
			return
		default:
		}
		mem := a.mapping.mem[off:min(off+pinChunk, a.mapping.size)]
		if lock {
			if err := lockMemory(mem); err != nil {
				lock = false
				text := "lock arena memory: " + err.Error() + "; raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
				a.pinErr.Store(&text)
			} else {
				a.pinned.Add(int64(len(mem)))
			}
		}
		if !lock {
			if err := populateMemory(mem); err != nil && a.guardedTouch(mem) != nil {
				return // the arena is broken
			}
		}
		a.touched.Add(int64(len(mem)))
	}
}
