package kvstore

import (
	"hash/maphash"
	"sync"

	"github.com/kvferry/kvferry/internal/fault"
)

const indexShards = 64 // a power of two; enough that look-ups of many streams rarely meet

// index maps (tenant, key) to the slot that holds or awaits the block. Reads take only a shard's read lock; writes
// come from under the arena's lock, which is always taken first.
type index struct {
	seed   maphash.Seed
	shards [indexShards]indexShard
}

type indexShard struct {
	mu struct {
		sync.RWMutex
		entries map[indexKey]indexEntry
	}
	_ [24]byte // keeps neighbours' locks off one cache line
}

type indexKey struct {
	tenant Tenant
	key    BlockKey
}

// place is where the index keeps k.
func (k indexKey) place() indexKey {
	if fault.Planted(fault.SaltDropped) {
		k.tenant = ""
	}
	return k
}

type indexEntry struct {
	ref   SlotRef
	state BlockState
}

func (x *index) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].mu.entries = make(map[indexKey]indexEntry)
	}
}

func (x *index) shard(k indexKey) *indexShard {
	h := maphash.String(x.seed, string(k.key)) ^ maphash.String(x.seed, string(k.tenant))*0x9e3779b97f4a7c15
	return &x.shards[h%indexShards]
}

func (x *index) get(k indexKey) (indexEntry, bool) {
	k = k.place()
	s := x.shard(k)
	s.mu.RLock()
	e, ok := s.mu.entries[k]
	s.mu.RUnlock()
	return e, ok
}

func (x *index) put(k indexKey, e indexEntry) {
	k = k.place()
	s := x.shard(k)
	s.mu.Lock()
	s.mu.entries[k] = e
	s.mu.Unlock()
}

// remove deletes the entry of k when it is ref's, and reports whether it was.
func (x *index) remove(k indexKey, ref SlotRef) bool {
	k = k.place()
	s := x.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.mu.entries[k]; !ok || e.ref != ref {
		return false
	}
	delete(s.mu.entries, k)
	return true
}

func (x *index) clear() {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		clear(s.mu.entries)
		s.mu.Unlock()
	}
}
