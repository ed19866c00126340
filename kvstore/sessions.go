package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/kvferry/kvferry/internal/fault"
)

// Sessions is a node's record of sessions: those it owns, and where the others went. With a file every change is
// durable before the call that made it returns. Safe for concurrent use. Close is owed.
type Sessions struct {
	self     NodeID
	db       *bbolt.DB // nil: memory only
	opened   time.Time
	maxBytes int64 // MaxSessionsBytes but in tests

	// write is held over a whole change, its disk write included, so that changes are in one order in memory and on
	// disk. Readers never take it: they see only what is durable. It is taken before mu.
	write   sync.Mutex
	failed  bool         // the last change was not made durable; guarded by write
	damaged error        // the file can't be changed any more; guarded by write
	spare   []sessionKey // records that a look for room has found to go next; guarded by write
	lookAt  time.Time    // no look for room before then; guarded by write
	mu      struct {
		sync.RWMutex
		closed    bool
		records   map[sessionKey]record
		elsewhere map[sessionKey]Elsewhere // sessions without a record that are not to be published here
		stats     SessionStats             // but what Stats counts by itself
	}
}

var sessionsBucket = []byte("kvferry.sessions.v1")

const sessionsOpenTimeout = 2 * time.Second // a live process holds the file's lock

// OpenSessions opens the records in the bbolt file at path, created if missing, for the node self. The path "" keeps
// records in memory only. Errors: *FieldError for a bad self; *StateFileError for a file that is damaged, stays locked by another process for 2 s, or
// can't be opened or written.
func OpenSessions(path string, self NodeID) (*Sessions, error) {
	s := &Sessions{self: self, opened: time.Now(), maxBytes: MaxSessionsBytes}
	s.mu.records, s.mu.elsewhere = make(map[sessionKey]record), make(map[sessionKey]Elsewhere)
	if err := self.Validate(); err != nil {
		return nil, fmt.Errorf("open sessions: %w", err)
	}
	if path == "" {
		return s, nil
	}
	if err := s.load(path); err != nil {
		if s.db != nil {
			if !errors.Is(err, errDamaged) { // else it might wait for a lock for ever
				err = errors.Join(err, s.db.Close())
			}
		}
		return nil, fmt.Errorf("open sessions: %w", stateFileError(path, err))
	}
	return s, nil
}

// load opens the file and reads every record.
func (s *Sessions) load(path string) error {
	return guarded(func() (err error) {
		s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: sessionsOpenTimeout})
		switch {
		case errors.Is(err, bolterrors.ErrTimeout):
			return errFileInUse
		case err != nil:
			return err
		}
		return s.read()
	})
}

// read reads every record.
func (s *Sessions) read() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(sessionsBucket)
		if err != nil {
			return err
		}
		err = b.ForEach(func(k, v []byte) error {
			r, err := decodeRecord(v)
			if err != nil {
				return err
			}
			key := sessionKey{r.session.Tenant, r.session.ID}
			if !bytes.Equal(k, key.encode()) {
				return fmt.Errorf("record of session %q has another session's key", clip(string(r.session.ID)))
			}
			if now := s.opened.Unix(); r.changed == 0 || r.changed > now { // a clock was set back
				r.changed = now
			}
			r.used = r.changed - s.opened.Unix()
			s.putLocked(r) // nobody else has s yet
			return nil
		})
		if err != nil {
			return err
		}
		return s.readElsewhere(tx)
	})
}

// Close closes the file. Idempotent; later calls return ErrClosed.
func (s *Sessions) Close() error {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if closed || s.db == nil || s.damaged != nil { // a damaged one might wait for a lock for ever; the process's end closes it
		return nil
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close sessions: %w", err)
	}
	return nil
}

// find returns a record as it is, sharing its slices.
func (s *Sessions) find(k sessionKey) (record, bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.closed {
		return record{}, false, ErrClosed
	}
	r, ok := s.mu.records[k]
	return r, ok, nil
}

// mustFind is find with ErrSessionNotFound.
func (s *Sessions) mustFind(k sessionKey) (record, error) {
	r, ok, err := s.find(k)
	if err == nil && !ok {
		err = fmt.Errorf("session %q of tenant %q: %w", clip(string(k.id)), clip(string(k.tenant)), ErrSessionNotFound)
	}
	return r, err
}

// store makes a record durable, then visible. Called with write held. r's slices must not change afterwards.
func (s *Sessions) store(r record) error {
	k := sessionKey{r.session.Tenant, r.session.ID}
	now := time.Now()
	r.changed, r.used = now.Unix(), s.seconds(now)
	if s.db != nil && !fault.Planted(s.keptBy(r)) {
		if err := fault.At(fault.Persist, string(s.self)); err != nil {
			s.failed = true
			return fmt.Errorf("persist session: %w", err)
		}
		v, err := r.encode()
		if err != nil {
			return fmt.Errorf("encode session record: %w", err)
		}
		_, marked := s.ElsewhereOf(k.tenant, k.id)
		err = s.update(func(b *bbolt.Bucket) error {
			if marked {
				if err := unmark(b, k); err != nil {
					return err
				}
			}
			return b.Put(k.encode(), v)
		})
		if err != nil {
			return fmt.Errorf("persist session: %w", err)
		}
	}
	s.mu.Lock()
	s.putLocked(r)
	delete(s.mu.elsewhere, k)
	s.mu.Unlock()
	return nil
}

// keptBy is the bug that has a record like r not kept.
func (s *Sessions) keptBy(r record) fault.Bug {
	if r.session.Owner == s.self {
		return fault.AdoptNotPersisted
	}
	return fault.ForwardNotPersisted
}

// Get returns the record of a session. When the session went to another node, Owner says where. The result is the
// caller's own. Errors: ErrSessionNotFound, ErrClosed.
func (s *Sessions) Get(t Tenant, id SessionID) (Session, error) {
	r, err := s.mustFind(sessionKey{t, id})
	if err != nil {
		return Session{}, fmt.Errorf("get session: %w", err)
	}
	return r.session.clone(), nil
}

// List returns all records ordered by tenant and id, forwarding records included. The result is the caller's own.
func (s *Sessions) List() []Session {
	s.mu.RLock()
	out := make([]Session, 0, len(s.mu.records))
	for _, r := range s.mu.records {
		out = append(out, r.session.clone())
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b Session) int {
		return sessionKey{a.Tenant, a.ID}.compare(sessionKey{b.Tenant, b.ID})
	})
	return out
}

// Publish records what a session consists of and returns the record. A session not known becomes this node's, at version 1 and epoch 1, or at the given epoch
// when that is higher, unless MarkElsewhere says that it is to come from another node. Of a known one the pin, keys, tokens, block tokens and fidelity are
// replaced and the version grows by one; RepinSeq never goes back. In's Owner and Version are ignored. An Epoch other than 0 must be the recorded one. Where
// records take too much memory, others go: see MaxSessionsBytes.
//
// Errors: *FieldError and *BlockError (joined), *NotOwnerError, *ElsewhereError, *FencedError, ErrSessionLimit, ErrClosed, and the
// disk's.
func (s *Sessions) Publish(in Session) (Session, error) {
	if err := in.Validate(); err != nil {
		return Session{}, fmt.Errorf("publish session: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	old, ok, err := s.find(sessionKey{in.Tenant, in.ID})
	if err != nil {
		return Session{}, fmt.Errorf("publish session: %w", err)
	}
	next := in.clone()
	next.Owner = s.self
	switch {
	case !ok:
		next.Epoch, next.Version = max(1, in.Epoch), 1
		if e, marked := s.ElsewhereOf(in.Tenant, in.ID); marked && !fault.Planted(fault.ElsewhereIgnored) {
			err = &ElsewhereError{Tenant: in.Tenant, ID: in.ID, Elsewhere: e}
		}
	case old.session.Owner != s.self:
		err = &NotOwnerError{Tenant: in.Tenant, ID: in.ID, Owner: old.session.Owner, Epoch: old.session.Epoch}
	case in.Epoch != 0 && in.Epoch != old.session.Epoch:
		err = old.session.fenced()
	default:
		next.Epoch, next.Version = old.session.Epoch, old.session.Version+1
		next.RepinSeq = max(in.RepinSeq, old.session.RepinSeq)
	}
	if err == nil {
		err = s.makeRoom(next)
	}
	if err == nil {
		err = s.store(record{session: next, moves: old.moves})
	}
	if err != nil {
		return Session{}, fmt.Errorf("publish session: %w", err)
	}
	return next.clone(), nil
}

// HandOver gives a session this node owns to another node. It is durable before it returns Moved. The decision, in
// this order: the same Migration again has the result it had, unless the session has another owner or epoch since, and is a *FencedError then; an unknown session is
// ErrSessionNotFound; a session owned elsewhere, another epoch, or a lower RepinSeq is a *FencedError; a version ahead of the
// record is a *FieldError; a version behind it is Grown, or with AcceptStale Moved with StaleTailTokens; else Moved. The node
// that the record names as the owner may ask again, by the recorded epoch: the answer that made it the owner may have been
// lost. It is Moved under that epoch and the recorded RepinSeq: only an owner makes a rank higher.
//
// Other errors: *FieldError for a bad request (also To being this node), *MigrationConflictError for a Migration that
// moved the session elsewhere, ErrClosed, and the disk's: then nothing was handed over.
func (s *Sessions) HandOver(h HandOver) (HandOverResult, error) {
	err := h.Validate()
	if err == nil && h.To == s.self {
		err = &FieldError{Field: "to", Value: string(h.To), Allowed: "another node", Fix: "the session is here already"}
	}
	if err == nil {
		err = fault.At(fault.HandOver, string(s.self))
	}
	if err != nil {
		return HandOverResult{}, fmt.Errorf("hand over session: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	r, err := s.mustFind(sessionKey{h.Tenant, h.ID})
	if err != nil {
		return HandOverResult{}, fmt.Errorf("hand over session: %w", err)
	}
	result, next, err := r.handOver(h, s.self)
	if err == nil && next != nil {
		err = s.store(*next)
	}
	if err != nil {
		return HandOverResult{}, fmt.Errorf("hand over session: %w", err)
	}
	return result, nil
}

// handOver is the compare-and-set: the result, and the next record if there is one.
func (r record) handOver(h HandOver, self NodeID) (HandOverResult, *record, error) {
	for _, m := range r.moves {
		if m.Migration != h.Migration || fault.Planted(fault.CommitDoubled) {
			continue
		}
		if m.To != h.To {
			return HandOverResult{}, nil, &MigrationConflictError{ID: h.ID, Migration: h.Migration, To: m.To, Epoch: m.Epoch}
		}
		if r.session.Owner != m.To || r.session.Epoch != m.Epoch { // it has gone on since: who asks must not record that it owns it
			return HandOverResult{}, nil, r.session.fenced()
		}
		return m.result(), nil, nil
	}
	cur, again := r.session, r.session.Owner == h.To
	switch {
	case cur.Owner != self && !again || h.Epoch != cur.Epoch || h.RepinSeq < cur.RepinSeq:
		return HandOverResult{}, nil, cur.fenced()
	case cur.Epoch == math.MaxUint64 && !again:
		return HandOverResult{}, nil, &FieldError{Field: "epoch", Value: fmt.Sprint(cur.Epoch), Allowed: "less than 2^64-1", Fix: "end the session and start another"}
	case h.Version > cur.Version:
		return HandOverResult{}, nil, &FieldError{Field: "version", Value: fmt.Sprint(h.Version), Allowed: fmt.Sprintf("at most %d, the recorded one", cur.Version), Fix: "use the version of the offer"}
	case h.Version < cur.Version && !h.AcceptStale:
		return HandOverResult{Outcome: Grown, Epoch: cur.Epoch, Version: cur.Version, StaleTailTokens: max(0, cur.Tokens-h.Tokens), Session: cur.clone()}, nil, nil
	}
	m := move{Migration: h.Migration, To: h.To, Epoch: cur.Epoch, Version: cur.Version, Incarnation: h.Incarnation}
	if !again {
		m.Epoch = max(cur.Epoch, h.Above) + 1
	}
	if h.Version < cur.Version {
		m.StaleTailTokens = max(0, cur.Tokens-h.Tokens)
	}
	next := record{session: cur, moves: append(slices.Clone(r.moves), m)}
	next.moves = next.moves[max(0, len(next.moves)-maxMoves):]
	if !again {
		next.session.Owner, next.session.Epoch, next.session.RepinSeq = h.To, m.Epoch, h.RepinSeq
	}
	return m.result(), &next, nil
}

func (m move) result() HandOverResult {
	return HandOverResult{Outcome: Moved, Epoch: m.Epoch, Version: m.Version, StaleTailTokens: m.StaleTailTokens}
}

// Adopt records in as owned by this node with the epoch, version and re-pin number it carries: at the destination after
// a hand-over, or for a takeover of a session this node had no record of. Owner is ignored. Adopting the same again is
// harmless.
//
// Errors: *FencedError when the record is ordered after (RepinSeq, Epoch), or equal to it and of a node with a greater name,
// or this node's at a later version; *FieldError and *BlockError (joined); ErrSessionLimit; ErrClosed; the disk's.
func (s *Sessions) Adopt(in Session) error {
	err := in.Validate()
	if in.Epoch == 0 || in.Version == 0 {
		err = errors.Join(err, &FieldError{
			Field: "epoch, version", Value: fmt.Sprintf("%d, %d", in.Epoch, in.Version), Allowed: "1 or more each",
			Fix: "adopt with the epoch of the hand-over's result and the version of the offer",
		})
	}
	if err == nil {
		err = fault.At(fault.Adopt, string(s.self))
	}
	if err != nil {
		return fmt.Errorf("adopt session: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	old, ok, err := s.find(sessionKey{in.Tenant, in.ID})
	switch {
	case err != nil || !ok:
	case old.session.before(in.RepinSeq, in.Epoch, s.self):
	case old.session.Owner != s.self || old.session.RepinSeq != in.RepinSeq || old.session.Epoch != in.Epoch || in.Version < old.session.Version:
		err = old.session.fenced()
	}
	if err == nil {
		err = s.makeRoom(in)
	}
	if err == nil {
		next := in.clone()
		next.Owner = s.self
		err = s.store(record{session: next, moves: confirmed(old.moves)})
	}
	if err != nil {
		return fmt.Errorf("adopt session: %w", err)
	}
	return nil
}

// Take makes this node the owner of a session it has a record of, because the proxy asked so with a higher re-pin
// number: the epoch grows by one. It returns the new record. Errors: *FencedError unless repinSeq is higher than the
// recorded one, ErrSessionNotFound (then Adopt what is known of it), ErrClosed, the disk's.
func (s *Sessions) Take(t Tenant, id SessionID, repinSeq uint64) (Session, error) {
	s.write.Lock()
	defer s.write.Unlock()
	r, err := s.mustFind(sessionKey{t, id})
	if err == nil && (repinSeq <= r.session.RepinSeq || r.session.Epoch == math.MaxUint64) {
		err = r.session.fenced()
	}
	if err == nil {
		r.session.Owner, r.session.RepinSeq = s.self, repinSeq
		r.session.Epoch++
		r.moves = confirmed(r.moves)
		err = s.store(r)
	}
	if err != nil {
		return Session{}, fmt.Errorf("take session over: %w", err)
	}
	return r.session.clone(), nil
}

// Yield records that a session is another node's since (repinSeq, epoch): what a node does that comes back and learns
// of a takeover, or a peer's forwarding. Yielding the same again is harmless. Errors: *FencedError when the record is
// ordered after that, or equal to it and of a node with a greater name; *FieldError, ErrSessionNotFound, ErrClosed, the disk's.
func (s *Sessions) Yield(t Tenant, id SessionID, to NodeID, epoch, repinSeq uint64) error {
	err := validateName("to", string(to), false)
	if err == nil && to == s.self {
		err = &FieldError{Field: "to", Value: string(to), Allowed: "another node", Fix: "use Take to become the owner"}
	}
	if err != nil {
		return fmt.Errorf("yield session: %w", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	r, err := s.mustFind(sessionKey{t, id})
	if err == nil {
		cur := r.session
		same := cur.Owner == to && cur.Epoch == epoch && cur.RepinSeq == repinSeq
		if same {
			return nil
		}
		if !cur.before(repinSeq, epoch, to) {
			err = cur.fenced()
		}
	}
	if err == nil {
		r.session.Owner, r.session.Epoch, r.session.RepinSeq = to, epoch, repinSeq
		err = s.store(r)
	}
	if err != nil {
		return fmt.Errorf("yield session: %w", err)
	}
	return nil
}

// Forget drops the record of a session that ended, a forwarding record included. Errors: ErrSessionNotFound,
// ErrClosed, the disk's.
func (s *Sessions) Forget(t Tenant, id SessionID) error {
	s.write.Lock()
	defer s.write.Unlock()
	k := sessionKey{t, id}
	_, err := s.mustFind(k)
	if err == nil {
		err = s.drop([]sessionKey{k})
	}
	if err != nil {
		return fmt.Errorf("forget session: %w", err)
	}
	return nil
}

// drop takes records away, on disk and then in memory. Called with write held.
func (s *Sessions) drop(keys []sessionKey) error {
	if s.db != nil {
		err := s.update(func(b *bbolt.Bucket) error {
			for _, k := range keys {
				if err := b.Delete(k.encode()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		s.dropLocked(k)
	}
	return nil
}
