package kvstore

import (
	"fmt"
	"math"
	"slices"

	"go.etcd.io/bbolt"
)

// Forwarded is a session that this node handed over, and whose new owner has not been heard to have it: it may have died
// between the hand-over and recording it.
type Forwarded struct {
	Tenant Tenant
	ID     SessionID
	// Migration is the hand-over's, To the new owner and Incarnation its process then.
	Migration   string
	To          NodeID
	Incarnation string
	// Epoch and RepinSeq are those that the session went under.
	Epoch, RepinSeq uint64
}

// unconfirmed is the hand-over that made the recorded owner, when that has not been heard to have the session.
func (r record) unconfirmed(self NodeID) (Forwarded, bool) {
	s := r.session
	if len(r.moves) == 0 || s.Owner == self {
		return Forwarded{}, false
	}
	m := r.moves[len(r.moves)-1]
	if m.Confirmed || m.Incarnation == "" || m.To != s.Owner || m.Epoch != s.Epoch {
		return Forwarded{}, false
	}
	return Forwarded{Tenant: s.Tenant, ID: s.ID, Migration: m.Migration, To: m.To, Incarnation: m.Incarnation, Epoch: s.Epoch, RepinSeq: s.RepinSeq}, true
}

// confirmed is moves of which the last needs no confirmation any more.
func confirmed(moves []move) []move {
	if len(moves) == 0 || moves[len(moves)-1].Confirmed {
		return moves
	}
	moves = slices.Clone(moves)
	moves[len(moves)-1].Confirmed = true
	return moves
}

// Unconfirmed returns every hand-over that awaits Confirm or Reclaim, ordered by tenant and id. It looks at all records.
func (s *Sessions) Unconfirmed() []Forwarded {
	s.mu.RLock()
	var out []Forwarded
	for _, r := range s.mu.records {
		if f, ok := r.unconfirmed(s.self); ok {
			out = append(out, f)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b Forwarded) int { return sessionKey{a.Tenant, a.ID}.compare(sessionKey{b.Tenant, b.ID}) })
	return out
}

// UnconfirmedOf returns the hand-over of a session that awaits Confirm or Reclaim; false: there is none.
func (s *Sessions) UnconfirmedOf(t Tenant, id SessionID) (Forwarded, bool) {
	r, ok, err := s.find(sessionKey{t, id})
	if err != nil || !ok {
		return Forwarded{}, false
	}
	return r.unconfirmed(s.self)
}

// Confirm records that the new owners have the sessions, all in one write. What has changed since is left alone. Errors:
// ErrClosed and the disk's: then all await Confirm as before.
func (s *Sessions) Confirm(list []Forwarded) error {
	s.write.Lock()
	defer s.write.Unlock()
	var next []record
	for _, f := range list {
		r, ok, err := s.find(sessionKey{f.Tenant, f.ID})
		if err != nil {
			return fmt.Errorf("confirm hand-overs: %w", err)
		}
		if open, awaits := r.unconfirmed(s.self); ok && awaits && open == f {
			r.moves = confirmed(r.moves)
			next = append(next, r)
		}
	}
	if err := s.storeAll(next); err != nil {
		return fmt.Errorf("confirm hand-overs: %w", err)
	}
	return nil
}

// ForgetLost drops the record of a session that went to owner, which has been asked and does not have it any more, and neither has anybody else. False: the record
// does not name owner, or the hand-over awaits Confirm or Reclaim, and it stays. Errors: ErrClosed, the disk's.
func (s *Sessions) ForgetLost(t Tenant, id SessionID, owner NodeID) (bool, error) {
	s.write.Lock()
	defer s.write.Unlock()
	k := sessionKey{t, id}
	r, known, err := s.find(k)
	_, awaits := r.unconfirmed(s.self)
	if err == nil && known && !awaits && owner != s.self && r.session.Owner == owner {
		if err = s.drop([]sessionKey{k}); err == nil {
			return true, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("forget session that its owner has lost: %w", err)
	}
	return false, nil
}

// Reclaim makes this node the owner again of a session that it handed over, under the epoch after the lost one, because
// another process has come up at the new owner and does not know of it. It returns the new record. Errors: *FencedError
// when the record is not f any more, ErrSessionNotFound, ErrClosed, the disk's.
func (s *Sessions) Reclaim(f Forwarded) (Session, error) {
	s.write.Lock()
	defer s.write.Unlock()
	r, err := s.mustFind(sessionKey{f.Tenant, f.ID})
	if err == nil {
		if open, awaits := r.unconfirmed(s.self); !awaits || open != f || r.session.Epoch == math.MaxUint64 {
			err = r.session.fenced()
		}
	}
	if err == nil {
		r.session.Owner = s.self
		r.session.Epoch++
		// Asked for again, it is fenced.
		r.moves = slices.DeleteFunc(slices.Clone(r.moves), func(m move) bool { return m.Epoch == f.Epoch })
		err = s.store(r)
	}
	if err != nil {
		return Session{}, fmt.Errorf("reclaim session: %w", err)
	}
	return r.session.clone(), nil
}

// storeAll is store for several records in one write.
func (s *Sessions) storeAll(list []record) error {
	if len(list) == 0 {
		return nil
	}
	if s.db != nil {
		err := s.update(func(b *bbolt.Bucket) error {
			for _, r := range list {
				v, err := r.encode()
				if err == nil {
					k := sessionKey{r.session.Tenant, r.session.ID}
					err = b.Put(k.encode(), v)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("persist sessions: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range list {
		s.putLocked(r)
	}
	return nil
}
