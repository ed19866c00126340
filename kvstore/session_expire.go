package kvstore

import (
	"fmt"
	"time"
)

// expireAtOnce is how many records go in one write: a hand-over waits for no longer than that takes.
const expireAtOnce = 1024

// Expire drops the records that last changed, or were last in use (see Use), before a time, whole seconds, and returns how many those were: nobody says when a
// session ends. It drops forwarding records as well. Other changes go on meanwhile. Time that passes while the store is open is not that of the day, which may be set. A record counts
// from the opening of the file where a release wrote it that did not keep the time, or the time is yet to come.
// Errors: ErrClosed, and the disk's: then what is left is kept.
func (s *Sessions) Expire(before time.Time) (int, error) {
	for n := 0; ; {
		some, err := s.expireSome(before)
		n += some
		if err != nil {
			return n, fmt.Errorf("expire sessions: %w", err)
		}
		if some < expireAtOnce {
			return n, nil
		}
	}
}

// expireSome is Expire for at most expireAtOnce records.
func (s *Sessions) expireSome(before time.Time) (int, error) {
	s.write.Lock()
	defer s.write.Unlock()
	var old []sessionKey
	least := s.seconds(before)
	s.mu.RLock()
	closed := s.mu.closed
	for k, r := range s.mu.records {
		if r.used < least {
			if old = append(old, k); len(old) == expireAtOnce {
				break
			}
		}
	}
	s.mu.RUnlock()
	switch {
	case closed:
		return 0, ErrClosed
	case len(old) == 0:
		return 0, nil
	}
	if err := s.drop(old); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stats.Expired += int64(len(old))
	return len(old), nil
}

// seconds is how long after the opening of the store t is, rounded down.
func (s *Sessions) seconds(t time.Time) int64 {
	d := t.Sub(s.opened)
	return int64((d - (d%time.Second+time.Second)%time.Second) / time.Second)
}

// Use notes that a session is in use: its record counts as changed now, until a restart. It does nothing where there is none.
func (s *Sessions) Use(t Tenant, id SessionID) {
	k := sessionKey{t, id}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, known := s.mu.records[k]; known {
		r.used = s.seconds(time.Now())
		s.mu.records[k] = r
	}
}
