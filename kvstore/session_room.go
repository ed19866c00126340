package kvstore

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// MaxSessionsBytes bounds the memory of the records a store keeps, forwarding records included, as memoryBytes reckons it: a million sessions of 32
	// blocks, or 80,000 of 16,000 tokens in blocks of 16, with keys of 32 bytes.
	MaxSessionsBytes = 2 << 30
	// SessionSafeFor is how long no record goes for another's sake after it has changed.
	SessionSafeFor = time.Hour

	recordOverhead = 512 // bytes of a record without its names and keys: the structs, the place in the map, some hand-overs
	keyOverhead    = 16  // bytes of a key beside its own: a string's header

	roomEvery = time.Second // how often a full store looks at all its records for those that may go
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
// SessionSafeFor, the longest left alone first; of tenants that have more than their part before others. Called with write held. Errors: ErrSessionLimit, then
// nothing has gone; the disk's.
func (s *Sessions) makeRoom(in Session) error {
	k, now := sessionKey{in.Tenant, in.ID}, time.Now()
	s.mu.RLock()
	over := s.mu.stats.Bytes + memoryBytes(in) - s.mu.records[k].bytes - s.maxBytes
	s.mu.RUnlock()
	if over <= 0 {
		return nil
	}
	var gone []sessionKey
	if now.Sub(s.looked) >= roomEvery {
		if gone = s.displaced(k, now.Add(-SessionSafeFor).Unix(), over); gone == nil {
			s.looked = now
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

// idle is a record that may go.
type idle struct {
	key     sessionKey
	changed int64
	bytes   int64
}

// displaced are records that have not changed since before and take so many bytes together; nil when there are not as many. To find them takes a look at
// all, so there are some more, as many as one write drops and a 64th of all at most. The record under k is not among them.
func (s *Sessions) displaced(k sessionKey, before, bytes int64) []sessionKey {
	var all []idle
	parts, enough := map[Tenant]int64{}, int64(0)
	s.mu.RLock()
	for key, r := range s.mu.records {
		parts[key.tenant] += r.bytes
		if key != k && r.changed <= before {
			all = append(all, idle{key, r.changed, r.bytes})
			enough += r.bytes
		}
	}
	s.mu.RUnlock()
	if enough < bytes {
		return nil
	}
	slices.SortFunc(all, func(a, b idle) int { return cmp.Compare(a.changed, b.changed) })
	var out []sessionKey
	part, more := s.maxBytes/int64(len(parts)), bytes+s.maxBytes/64
	for _, greedy := range []bool{true, false} {
		for i := range all {
			c := &all[i]
			if bytes <= 0 && (len(out) >= expireAtOnce || more < c.bytes) {
				return out
			}
			if c.bytes == 0 || greedy && parts[c.key.tenant] <= part {
				continue
			}
			out = append(out, c.key)
			bytes, more, parts[c.key.tenant] = bytes-c.bytes, more-c.bytes, parts[c.key.tenant]-c.bytes
			c.bytes = 0 // gone
		}
	}
	return out
}
