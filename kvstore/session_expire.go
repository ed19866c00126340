package kvstore

import (
	"fmt"
	"time"
)

// expireAtOnce is how many records go in one write: a hand-over waits for no longer than that takes.
const expireAtOnce = 1024

// Expire drops the records that last changed before a time, whole seconds, and returns how many those were: nobody says when a session ends. It drops
// forwarding records as well. Other changes go on meanwhile. A record that a release wrote which did not keep the time counts from the opening of the file.
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
	s.mu.RLock()
	closed := s.mu.closed
	for k, r := range s.mu.records {
		if r.changed < before.Unix() {
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
