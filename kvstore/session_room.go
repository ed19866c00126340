package kvstore

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"time"
)

const (
	// MaxSessionsBytes bounds the memory of the records a store keeps, forwarding records included, as memoryBytes reckons it: a million sessions of 32
	// blocks, or 44,000 of 16,000 tokens in blocks of 16, with keys of 32 bytes.
	MaxSessionsBytes = 2 << 30
	// SessionSafeFor is how long no record goes for another's sake after it has changed.
	SessionSafeFor = time.Hour

	recordOverhead = 512 // bytes of a record without its names and keys: the structs, the place in the map, some hand-overs
	keyOverhead    = 16  // bytes of a key beside its own: a string's header

	// How often a full store looks at all its records for those that may go, once there were too few: not again within roomEvery, nor within roomPause times
	// what the look took.
	roomEvery = time.Second
	roomPause = 16
)

// memoryBytes is about what the record of a session takes of memory.
func memoryBytes(s Session) int64 {
	n := int64(recordOverhead + len(s.Tenant) + len(s.ID))
	for _, k := range s.Keys {
		n += int64(keyOverhead + len(k))
	}
	return n
}

// SessionStats counts what a session store keeps.
type SessionStats struct {
	// Owned and Forwarded are records, of sessions that are this node's and of those that are another's; Elsewhere are marks: see MarkElsewhere.
	Owned, Forwarded, Elsewhere int
	// Bytes is about what the records take of memory, at most MaxBytes.
	Bytes, MaxBytes int64
	// Expired and Displaced are the records that went since the store was opened: by Expire, and for another's sake.
	Expired, Displaced int64
}

// Stats returns the counts as they are. It takes no longer for many records.
func (s *Sessions) Stats() SessionStats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := s.mu.stats
	out.Forwarded, out.Elsewhere, out.MaxBytes = len(s.mu.records)-out.Owned, len(s.mu.elsewhere), s.maxBytes
	return out
}

// putLocked has r in memory, in place of what was there. Called with mu held, as dropLocked.
func (s *Sessions) putLocked(r record) {
	k := sessionKey{r.session.Tenant, r.session.ID}
	if old, known := s.mu.records[k]; known {
		r.used = max(r.used, old.used) // see Use
	}
	s.dropLocked(k)
	r.bytes = memoryBytes(r.session)
	s.mu.records[k] = r
	s.mu.stats.Bytes += r.bytes
	if r.session.Owner == s.self {
		s.mu.stats.Owned++
	}
}

func (s *Sessions) dropLocked(k sessionKey) {
	old, known := s.mu.records[k]
	if !known {
		return
	}
	delete(s.mu.records, k)
	s.mu.stats.Bytes -= old.bytes
	if old.session.Owner == s.self {
		s.mu.stats.Owned--
	}
}

// makeRoom sees to it that there is room for in's record, in place of the one that there may be: where there is none, records go that have not changed for
// SessionSafeFor, of the tenant that has the most, the longest left alone first, and so on. Called with write held. Errors: ErrSessionLimit, then nothing has gone;
// the disk's.
func (s *Sessions) makeRoom(in Session) error {
	k, now := sessionKey{in.Tenant, in.ID}, time.Now()
	s.mu.RLock()
	grows := memoryBytes(in) - s.mu.records[k].bytes
	over := s.mu.stats.Bytes + grows - s.maxBytes
	s.mu.RUnlock()
	if over <= 0 {
		return nil
	}
	before := s.seconds(now.Add(-SessionSafeFor))
	gone := s.pick(k, before, over)
	if gone == nil && !now.Before(s.lookAt) {
		var left bool
		s.spare, left = s.displaced(k, grows, before, over)
		gone = s.pick(k, before, over)
		if end := time.Now(); !left {
			s.lookAt = end.Add(max(roomEvery, roomPause*end.Sub(now)))
		}
	}
	if gone == nil {
		return fmt.Errorf("%w: their records take %d MiB, and too few have not changed for %v", ErrSessionLimit, s.maxBytes>>20, SessionSafeFor)
	}
	for some := range slices.Chunk(gone, expireAtOnce) {
		if err := s.drop(some); err != nil {
			return fmt.Errorf("make room for a session: %w", err)
		}
		s.mu.Lock()
		s.mu.stats.Displaced += int64(len(some))
		s.mu.Unlock()
	}
	return nil
}

// pick takes from spare as much as is wanted, and as many as one write drops; nil when that is not there. What has changed meanwhile, and the record under k, stay.
// Called with write held.
func (s *Sessions) pick(k sessionKey, before, bytes int64) (out []sessionKey) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for len(s.spare) > 0 && (bytes > 0 || len(out) < expireAtOnce) {
		key := s.spare[0]
		s.spare = s.spare[1:]
		if r, still := s.mu.records[key]; still && key != k && r.used <= before {
			out = append(out, key)
			bytes -= r.bytes
		}
	}
	if bytes > 0 {
		return nil
	}
	return out
}

// idle is a record that may go.
type idle struct {
	id    SessionID
	used  int64
	bytes int64
}

// holder is a tenant, what its records take of memory, and those that may go.
type holder struct {
	tenant Tenant
	bytes  int64
	idle   []idle
	sorted bool
}

// holders is a heap, who has the most first.
type holders []*holder

func (h holders) Len() int           { return len(h) }
func (h holders) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h holders) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *holders) Push(x any)        { *h = append(*h, x.(*holder)) }
func (h *holders) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// displaced are keys of records that have not changed since before and take so many bytes together; nil when there are not as many. To find them takes a look at
// all, so there are some more, a 64th of all at most; left: there are others that may go. The record under k, which grows, is not among them.
func (s *Sessions) displaced(k sessionKey, grows, before, bytes int64) (out []sessionKey, left bool) {
	parts, enough := map[Tenant]*holder{k.tenant: {tenant: k.tenant, bytes: grows}}, int64(0)
	s.mu.RLock()
	for key, r := range s.mu.records {
		h := parts[key.tenant]
		if h == nil {
			h = &holder{tenant: key.tenant}
			parts[key.tenant] = h
		}
		h.bytes += r.bytes
		if key != k && r.used <= before {
			h.idle = append(h.idle, idle{key.id, r.used, r.bytes})
			enough += r.bytes
		}
	}
	s.mu.RUnlock()
	if enough < bytes {
		return nil, false
	}
	var by holders
	for _, h := range parts {
		if len(h.idle) > 0 {
			by = append(by, h)
		}
	}
	heap.Init(&by)
	more := bytes + s.maxBytes/64
	for len(by) > 0 {
		most := by[0]
		if !most.sorted {
			slices.SortFunc(most.idle, func(a, b idle) int { return cmp.Compare(a.used, b.used) })
			most.sorted = true
		}
		c := most.idle[0]
		if bytes <= 0 && more < c.bytes {
			return out, true
		}
		out = append(out, sessionKey{most.tenant, c.id})
		bytes, more, most.bytes = bytes-c.bytes, more-c.bytes, most.bytes-c.bytes
		if most.idle = most.idle[1:]; len(most.idle) == 0 {
			heap.Pop(&by)
		} else {
			heap.Fix(&by, 0)
		}
	}
	return out, false
}
