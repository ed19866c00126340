package kvstore

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Limits of names and keys, in bytes.
const (
	// MinKeyBytes and MaxKeyBytes bound a block key.
	MinKeyBytes = 8
	MaxKeyBytes = 64
	// MaxNameBytes bounds a tenant, owner, node, session or migration name.
	MaxNameBytes = 256
)

// BlockKey names a whole prefix up to and including one block: the engine's own hash, raw bytes, not hexadecimal,
// MinKeyBytes to MaxKeyBytes long. The store compares keys and never computes one.
type BlockKey string

// Validate returns nil or a *FieldError.
func (k BlockKey) Validate() error {
	if len(k) >= MinKeyBytes && len(k) <= MaxKeyBytes {
		return nil
	}
	return &FieldError{
		Field: "key", Value: fmt.Sprintf("%d bytes", len(k)), Allowed: fmt.Sprintf("%d to %d bytes", MinKeyBytes, MaxKeyBytes),
		Fix: "send the engine's block hash as raw bytes, not as hexadecimal",
	}
}

// String returns the key in hexadecimal.
func (k BlockKey) String() string { return hex.EncodeToString([]byte(k)) }

// Tenant is a salt space: no look-up, lease or invalidation crosses tenants. "" is the default tenant.
type Tenant string

// Validate returns nil or a *FieldError.
func (t Tenant) Validate() error { return validateName("tenant", string(t), true) }

// Owner names who holds a reservation or a lease: an engine process, a migration, a peer. Not empty.
type Owner string

// Validate returns nil or a *FieldError.
func (o Owner) Validate() error { return validateName("owner", string(o), false) }

func validateName(field, s string, emptyAllowed bool) error {
	if (s != "" || emptyAllowed) && len(s) <= MaxNameBytes && utf8.ValidString(s) {
		return nil
	}
	allowed := fmt.Sprintf("1 to %d bytes of UTF-8", MaxNameBytes)
	if emptyAllowed {
		allowed = fmt.Sprintf("at most %d bytes of UTF-8", MaxNameBytes)
	}
	return &FieldError{Field: field, Value: strconv.Quote(clip(s)), Allowed: allowed, Fix: "use a short name that is stable for the caller's life"}
}

// SlotRef names one use of one slot. The block's bytes start at Slot·Layout.Stride() in the arena's file. A reference
// whose generation is not the slot's is stale, and every method refuses it.
type SlotRef struct {
	// Slot counts from 0.
	Slot uint32
	// Generation changes each time the slot is reserved. Never 0 for a live slot.
	Generation uint64
}

// String returns "slot@generation".
func (r SlotRef) String() string { return fmt.Sprintf("%d@%d", r.Slot, r.Generation) }

// BlockState is what the index knows about a key.
type BlockState uint8

// The states Lookup returns.
const (
	// BlockAbsent means that nobody holds or fills the block.
	BlockAbsent BlockState = iota
	// BlockPresent means that the block is committed: every page is in place and has a checksum.
	BlockPresent
	// BlockLanding means that somebody has reserved the block and is filling it.
	BlockLanding
)

// String returns "absent", "present", "landing" or "state(n)".
func (s BlockState) String() string {
	switch s {
	case BlockAbsent:
		return "absent"
	case BlockPresent:
		return "present"
	case BlockLanding:
		return "landing"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// clip keeps a caller's text printable and short enough for an error message.
func clip(s string) string {
	const limit = 80
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	if !utf8.ValidString(s) {
		return strconv.QuoteToASCII(s)
	}
	return s
}
