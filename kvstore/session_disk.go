package kvstore

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"

	"go.etcd.io/bbolt"
)

// StateFileError means that the file of session records can't be used as it is. Err says what is wrong with it.
type StateFileError struct {
	Path string
	Fix  string
	Err  error
}

func (e *StateFileError) Error() string {
	return fmt.Sprintf("session file %s: %v; %s", e.Path, e.Err, e.Fix)
}

// Unwrap returns Err.
func (e *StateFileError) Unwrap() error { return e.Err }

const (
	damagedFix = "move it away and start again: sessions that this node owned are then known to nobody until they are published again, and those that it " +
		"handed over are no longer found through it; or restore it from a copy"
	deniedFix = "let the daemon's user read and write it and its folder, on a filesystem that is not read-only"
	inUseFix  = "stop the other process or use another file"
)

var errFileInUse = errors.New("it is in use by another process")

// stateFileError says how to mend what keeps a file from being opened.
func stateFileError(path string, err error) error {
	fix := damagedFix
	switch {
	case errors.Is(err, errFileInUse):
		fix = inUseFix
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), isReadOnly(err):
		fix = deniedFix
	case isFull(err):
		fix = "free space where it lies"
	}
	return &StateFileError{Path: path, Fix: fix, Err: err}
}

// errDamaged is what a file is that makes bbolt panic, or memory fault. Locks of bbolt's may be held for ever after it.
var errDamaged = errors.New("the file is damaged")

// guarded runs f, which reads or writes the mapped file of a store. A file that somebody truncates is an error, not the end of the process, and so is
// one that is damaged so that bbolt panics.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	return f()
}

// update is one durable change, with write held. After one that found the file damaged there is none.
func (s *Sessions) update(f func(*bbolt.Bucket) error) error {
	if s.damaged != nil {
		return s.damaged
	}
	err := guarded(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return f(tx.Bucket(sessionsBucket)) })
	})
	s.failed = err != nil
	if errors.Is(err, errDamaged) {
		s.damaged = stateFileError(s.db.Path(), err)
		return s.damaged
	}
	return err
}

// spareBytes is what the filesystem must have left beside a record: the file grows by whole pages, and each change writes those of a path
// through its tree anew.
const spareBytes = 64 << 10

// Writable returns nil when a record like in could be made durable, as far as can be told: nil says that there is room for it, made where there was none (see
// MaxSessionsBytes), that the filesystem has room too, is not read-only, and that the last change did not fail; after one that did, an empty change is made to
// see. For a node that is about to ask for a session and must not be given what it can't note. Errors: ErrSessionLimit, ErrClosed, the disk's.
func (s *Sessions) Writable(in Session) error {
	s.write.Lock()
	defer s.write.Unlock()
	if _, _, err := s.find(sessionKey{}); err != nil {
		return err
	}
	if err := s.makeRoom(in); err != nil || s.db == nil {
		return err
	}
	err := s.damaged
	if err == nil {
		err = checkRoom(s.db.Path(), spareBytes+4*recordBytes(in))
	}
	if err == nil && s.failed {
		probe := []byte{0xff, 0xff} // no session's: a tenant's length is bounded
		err = s.update(func(b *bbolt.Bucket) error {
			return errors.Join(b.Put(probe, make([]byte, recordBytes(in))), b.Delete(probe))
		})
	}
	if err != nil {
		return fmt.Errorf("session file %s can't be written: %w", s.db.Path(), err)
	}
	return nil
}

// recordBytes is about the size of a session's record.
func recordBytes(s Session) int64 {
	n := int64(1024)
	for _, k := range s.Keys {
		n += int64(len(k)) + 3
	}
	return n
}
