package kvstore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kvferry/kvferry/internal/fault"
)

// Limits of the session store.
const (
	// MaxSessionKeys bounds the blocks of one session: 16 million tokens in blocks of 16.
	MaxSessionKeys = 1 << 20
)

// SessionID names a session within its tenant, as the proxy and the engine know it. 1 to MaxNameBytes bytes of UTF-8.
type SessionID string

// NodeID names a daemon. 1 to MaxNameBytes bytes of UTF-8.
type NodeID string

// Validate returns nil or a *FieldError.
func (id NodeID) Validate() error { return validateName("node", string(id), false) }

// Session is a session's record. It holds no memory of the arena: its blocks are named by key.
type Session struct {
	Tenant Tenant
	ID     SessionID
	// Pin is the layout of the blocks.
	Pin Pin
	// Keys are the published blocks from the first on, in order, without gaps.
	Keys []BlockKey
	// Tokens is the length of the session; at least BlockTokens for each key. The rest is a partial or unpublished tail.
	Tokens int64
	// BlockTokens is the tokens a block, for checking Tokens against Keys. 0 is unknown: then only Tokens ≥ len(Keys)
	// is checked.
	BlockTokens int
	// Owner is the node that may publish. On a forwarding record it is where the session went.
	Owner NodeID
	// Epoch is the fencing number: it grows with every change of owner. 1 for a new session.
	Epoch uint64
	// Version grows with every publication. 1 for a new session.
	Version uint64
	// RepinSeq is the proxy's own re-pin number; 0 before the first. Ownership is ordered by (RepinSeq, Epoch).
	RepinSeq uint64
	// Fidelity is the worst of the session's blocks.
	Fidelity Fidelity
}

// Validate returns nil or every violation joined: *FieldError, or *BlockError for a key. Owner is not checked.
func (s Session) Validate() error {
	errs := []error{s.Tenant.Validate(), validateName("session", string(s.ID), false)}
	bad := func(field, value, allowed, fix string) {
		errs = append(errs, &FieldError{Field: field, Value: value, Allowed: allowed, Fix: fix})
	}
	if s.Pin.IsZero() {
		bad("pin", "zero", "a layout's pin", "register the engine's layout first and use its pin")
	}
	if len(s.Keys) > MaxSessionKeys {
		bad("keys", strconv.Itoa(len(s.Keys)), fmt.Sprintf("at most %d", MaxSessionKeys), "split the session")
	} else if err := validateKeys(s.Keys, true); err != nil {
		errs = append(errs, err)
	}
	if s.BlockTokens < 0 || s.BlockTokens > maxBlockTokens {
		bad("block_tokens", strconv.Itoa(s.BlockTokens), fmt.Sprintf("0 (unknown) to %d", maxBlockTokens), "use the layout's BlockTokens")
	} else if least := int64(len(s.Keys)) * int64(max(1, s.BlockTokens)); s.Tokens < least {
		bad("tokens", strconv.FormatInt(s.Tokens, 10), fmt.Sprintf("at least %d for %d blocks", least, len(s.Keys)), "count all tokens of the session, and publish only full blocks")
	}
	if s.Fidelity > FidelityLossy {
		bad("fidelity", s.Fidelity.String(), "exact, lossy", "say how the blocks were made")
	}
	return errors.Join(errs...)
}

// clone returns a deep copy.
func (s Session) clone() Session {
	s.Keys = slices.Clone(s.Keys)
	return s
}

// before reports whether s's ownership is older than (repinSeq, epoch) of owner. Two nodes hold the same pair only where a
// re-pin number was used twice, or a state directory was lost: then the greater name is the owner, at every node.
func (s Session) before(repinSeq, epoch uint64, owner NodeID) bool {
	if fault.Planted(fault.EpochIgnored) {
		return true
	}
	return cmp.Or(cmp.Compare(s.RepinSeq, repinSeq), cmp.Compare(s.Epoch, epoch), cmp.Compare(s.Owner, owner)) < 0
}

func (s Session) fenced() *FencedError {
	return &FencedError{Tenant: s.Tenant, ID: s.ID, Epoch: s.Epoch, Owner: s.Owner, RepinSeq: s.RepinSeq}
}

// HandOver asks the owner of a session to give it to another node: a compare-and-set on epoch and version.
type HandOver struct {
	Tenant Tenant
	ID     SessionID
	// Migration makes the request idempotent: the same one again has the same result. 1 to MaxNameBytes bytes.
	Migration string
	// To is the node that takes the session over, and Incarnation its process: after another one has come up there that does
	// not know of it, the session can be reclaimed. At most MaxNameBytes; empty: it never is.
	To          NodeID
	Incarnation string
	// Epoch and Version are what the destination saw; Tokens the session's length then.
	Epoch, Version uint64
	Tokens         int64
	// RepinSeq is the proxy's re-pin number, 0 when it gave none and the session has none.
	RepinSeq uint64
	// AcceptStale commits although the session has grown since Version.
	AcceptStale bool
	// Above is the epoch of the record that To has, less than 2^64-1; 0: none. The session goes under a later one: an owner that has forgotten it and begun it
	// anew counts from 1 again, and To may not have forgotten.
	Above uint64
}

// Validate returns nil or every violation joined, each a *FieldError.
func (h HandOver) Validate() error {
	errs := []error{
		h.Tenant.Validate(), validateName("session", string(h.ID), false),
		validateName("migration", h.Migration, false), validateName("to", string(h.To), false),
		validateName("incarnation", h.Incarnation, true),
	}
	if h.Above == math.MaxUint64 {
		errs = append(errs, &FieldError{Field: "above", Value: fmt.Sprint(h.Above), Allowed: "less than 2^64-1", Fix: "end the session and start another"})
	}
	if h.Tokens < 0 {
		errs = append(errs, &FieldError{Field: "tokens", Value: strconv.FormatInt(h.Tokens, 10), Allowed: "0 or more", Fix: "send the token count of the version the destination has"})
	}
	return errors.Join(errs...)
}

// HandOverOutcome says what a hand-over did.
type HandOverOutcome uint8

// The outcomes of a hand-over.
const (
	// Moved means that the session belongs to HandOver.To, durably.
	Moved HandOverOutcome = iota + 1
	// Grown means that nothing changed: the session has grown since HandOver.Version.
	Grown
)

// String returns "moved", "grown" or "outcome(n)".
func (o HandOverOutcome) String() string {
	switch o {
	case Moved:
		return "moved"
	case Grown:
		return "grown"
	default:
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
}

// HandOverResult is the answer to a HandOver.
type HandOverResult struct {
	Outcome HandOverOutcome
	// Epoch is the session's epoch after the call: the new owner's when Moved.
	Epoch uint64
	// Version is the session's version, at the time of the move when Moved.
	Version uint64
	// StaleTailTokens is how many tokens the session has beyond HandOver.Tokens: the new owner prefills them.
	StaleTailTokens int64
	// Session is the current record when Grown, for computing the delta; zero when Moved.
	Session Session
}
