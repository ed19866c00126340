package kvstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
)

// A session that this node has no record of is anybody's to publish: it is taken for a new one. One that was to be migrated here is not new. Until it
// has arrived, its owner is elsewhere, reachable or not, and a mark says so: publishing it here would make a second owner of equal rank, which nobody asked for.

// MaxElsewhere bounds the marks that a store keeps, about 200 B of memory each. The oldest sixteenth goes when there would be more.
const MaxElsewhere = 1 << 16

// elsewhereFresh is how old a mark may be before the same one is written again: its age only matters by the day.
const elsewhereFresh = time.Hour

var elsewhereBucket = []byte("kvferry.elsewhere.v1")

// Elsewhere is what a store knows of a session that is another node's and that it has no record of.
type Elsewhere struct {
	// Owner is the node that was taken for the owner when the mark was made; empty: nobody could tell.
	Owner NodeID
	// Epoch is the session's fencing number then, 0: not known.
	Epoch uint64
	// Since is when the mark was made or last made again, whole seconds.
	Since time.Time
}

// ElsewhereError means that a session can't be published because it was to come here and has not.
type ElsewhereError struct {
	Tenant Tenant
	ID     SessionID
	Elsewhere
}

func (e *ElsewhereError) Error() string {
	owner := "not known"
	if e.Owner != "" {
		owner = "node " + strconv.Quote(string(e.Owner))
	}
	return fmt.Sprintf("session %q of tenant %q has not moved here: a migration is to bring it, or was to; its owner is %s", clip(string(e.ID)), clip(string(e.Tenant)), owner)
}

// MarkElsewhere notes that a session is to come here from another node: until a record of it is made by Adopt, Publish refuses it. The mark outlasts a
// restart, DropElsewhere takes it away. A session with a record gets none: the record decides, and when it names another owner, it counts as changed now.
// Since is the time of day; an empty owner leaves the one that was known.
//
// Errors: *FieldError for a bad name, ErrClosed, and the disk's: then the mark holds until a restart.
func (s *Sessions) MarkElsewhere(t Tenant, id SessionID, e Elsewhere) error {
	err := errors.Join(t.Validate(), validateName("session", string(id), false), validateName("owner", string(e.Owner), true))
	if err != nil {
		return fmt.Errorf("mark session as elsewhere: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	k := sessionKey{t, id}
	r, known, err := s.find(k)
	if err == nil && known && r.session.Owner != s.self {
		s.Use(t, id)
		if age := time.Now().Unix() - r.changed; age < 0 || age >= int64(elsewhereFresh/time.Second) {
			err = s.store(r)
		}
	}
	if err != nil || known {
		return err
	}
	e.Since = time.Unix(e.Since.Unix(), 0)
	s.mu.RLock()
	old, marked := s.mu.elsewhere[k]
	s.mu.RUnlock()
	if marked && (e.Owner == "" || e.Owner == old.Owner) && (e.Epoch == 0 || e.Epoch == old.Epoch) && !e.Since.Before(old.Since) && e.Since.Sub(old.Since) < elsewhereFresh {
		return nil
	}
	if e.Owner == "" {
		e.Owner, e.Epoch = old.Owner, old.Epoch
	}
	drop := s.oldestElsewhere()
	s.mu.Lock()
	for _, d := range drop {
		delete(s.mu.elsewhere, d)
	}
	s.mu.elsewhere[k] = e
	s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	err = s.update(func(b *bbolt.Bucket) error {
		m, err := b.Tx().CreateBucketIfNotExists(elsewhereBucket)
		for _, d := range drop {
			if err == nil {
				err = m.Delete(d.encode())
			}
		}
		if err == nil {
			err = m.Put(k.encode(), e.encode())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("mark session as elsewhere: %w", err)
	}
	return nil
}

// oldestElsewhere is what has to go before another mark is made; nothing while there is room.
func (s *Sessions) oldestElsewhere() []sessionKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.mu.elsewhere) < MaxElsewhere {
		return nil
	}
	keys := make([]sessionKey, 0, len(s.mu.elsewhere))
	for k := range s.mu.elsewhere {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sessionKey) int { return s.mu.elsewhere[a].Since.Compare(s.mu.elsewhere[b].Since) })
	return keys[:MaxElsewhere/16]
}

// ElsewhereOf returns a session's mark; false: there is none.
func (s *Sessions) ElsewhereOf(t Tenant, id SessionID) (Elsewhere, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.mu.elsewhere[sessionKey{t, id}]
	return e, ok
}

// DropElsewhere takes a session's mark away, because every node has been asked and none knows it: who publishes it makes a new one. Without a mark it
// does nothing. Errors: ErrClosed, and the disk's: then the mark is back after a restart.
func (s *Sessions) DropElsewhere(t Tenant, id SessionID) error {
	s.write.Lock()
	defer s.write.Unlock()
	if _, marked := s.ElsewhereOf(t, id); !marked {
		return nil
	}
	if err := s.dropElsewhere([]sessionKey{{t, id}}); err != nil {
		return fmt.Errorf("unmark session: %w", err)
	}
	return nil
}

// ExpireElsewhere takes away the marks of before a time, and returns how many those were. It looks at all marks. Errors: as DropElsewhere.
func (s *Sessions) ExpireElsewhere(before time.Time) (int, error) {
	s.write.Lock()
	defer s.write.Unlock()
	var old []sessionKey
	s.mu.RLock()
	for k, e := range s.mu.elsewhere {
		if e.Since.Before(before) {
			old = append(old, k)
		}
	}
	s.mu.RUnlock()
	if len(old) == 0 {
		return 0, nil
	}
	if err := s.dropElsewhere(old); err != nil {
		return len(old), fmt.Errorf("expire marks of sessions: %w", err)
	}
	return len(old), nil
}

// dropElsewhere takes marks away, in memory whatever the disk says. Called with write held.
func (s *Sessions) dropElsewhere(keys []sessionKey) error {
	s.mu.Lock()
	closed := s.mu.closed
	for _, k := range keys {
		delete(s.mu.elsewhere, k)
	}
	s.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case s.db == nil:
		return nil
	}
	return s.update(func(b *bbolt.Bucket) error {
		for _, k := range keys {
			if err := unmark(b, k); err != nil {
				return err
			}
		}
		return nil
	})
}

// unmark takes a mark off the disk, in the change that b is of.
func unmark(b *bbolt.Bucket, k sessionKey) error {
	if m := b.Tx().Bucket(elsewhereBucket); m != nil {
		return m.Delete(k.encode())
	}
	return nil
}

// readElsewhere reads every mark, after the records.
func (s *Sessions) readElsewhere(tx *bbolt.Tx) error {
	b := tx.Bucket(elsewhereBucket)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		key, e, err := decodeElsewhere(k, v)
		if err != nil {
			return err
		}
		if _, known := s.mu.records[key]; !known { // else a release that does not know marks made the record
			s.mu.elsewhere[key] = e
		}
		return nil
	})
}

// A mark on disk, under its session's key:
//
//	offset size field
//	0      1    version, 1
//	1      8    since, Unix seconds, big-endian
//	9      8    epoch, big-endian
//	17     -    owner, 0 to MaxNameBytes
const (
	elsewhereVersion = 1
	elsewhereHeader  = 17
)

func (e Elsewhere) encode() []byte {
	out := make([]byte, 0, elsewhereHeader+len(e.Owner))
	out = append(out, elsewhereVersion)
	out = binary.BigEndian.AppendUint64(out, uint64(e.Since.Unix()))
	out = binary.BigEndian.AppendUint64(out, e.Epoch)
	return append(out, e.Owner...)
}

// decodeElsewhere accepts what encode writes, and nothing else.
func decodeElsewhere(k, v []byte) (key sessionKey, e Elsewhere, err error) {
	bad := func(field, value, allowed string) error {
		return fmt.Errorf("decode mark of a session: %w", &FieldError{Field: field, Value: value, Allowed: allowed, Fix: "the file was written by another version or is damaged"})
	}
	if len(v) < elsewhereHeader {
		return key, e, bad("mark", fmt.Sprintf("%d bytes", len(v)), fmt.Sprintf("at least %d bytes", elsewhereHeader))
	}
	if v[0] != elsewhereVersion {
		return key, e, bad("mark version", fmt.Sprint(v[0]), fmt.Sprint(elsewhereVersion))
	}
	n := 2
	if len(k) >= n {
		n += int(binary.BigEndian.Uint16(k))
	}
	if len(k) < n {
		return key, e, bad("mark key", fmt.Sprintf("%d bytes", len(k)), fmt.Sprintf("at least %d bytes", n))
	}
	key = sessionKey{Tenant(k[2:n]), SessionID(k[n:])}
	e = Elsewhere{Since: time.Unix(int64(binary.BigEndian.Uint64(v[1:])), 0), Epoch: binary.BigEndian.Uint64(v[9:]), Owner: NodeID(v[elsewhereHeader:])}
	if err := errors.Join(key.tenant.Validate(), validateName("session", string(key.id), false), validateName("owner", string(e.Owner), true)); err != nil {
		return key, e, fmt.Errorf("decode mark of a session: %w", err)
	}
	return key, e, nil
}
