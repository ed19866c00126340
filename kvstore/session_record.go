package kvstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

const (
	recordVersion = 1
	maxMoves      = 8 // hand-overs remembered a session: a destination retries its last, not one eight moves ago
)

// record is what the store keeps of one session: the session and its latest hand-overs, oldest first.
type record struct {
	session Session
	moves   []move
	changed int64 // when it was last stored, Unix seconds; 0: by a release that did not keep it
	used    int64 // when it was last stored or in use, seconds after the store was opened: nobody sets that clock
	bytes   int64 // of memory; set where it is kept
}

// move is a hand-over that was made.
type move struct {
	Migration       string `cbor:"1,keyasint"`
	To              NodeID `cbor:"2,keyasint"`
	Epoch           uint64 `cbor:"3,keyasint"`
	Version         uint64 `cbor:"4,keyasint"`
	StaleTailTokens int64  `cbor:"5,keyasint"`
	// Incarnation is that of To; empty in records of releases that did not keep it.
	Incarnation string `cbor:"6,keyasint,omitempty"`
	// Confirmed: To, or somebody after it, has been heard to have the session.
	Confirmed bool `cbor:"7,keyasint,omitempty"`
}

// diskRecord is the stored form, canonical CBOR. Keys are fixed for ever; a changed meaning takes a new version.
type diskRecord struct {
	Version     uint64   `cbor:"0,keyasint"`
	Tenant      string   `cbor:"1,keyasint"`
	ID          string   `cbor:"2,keyasint"`
	Pin         []byte   `cbor:"3,keyasint"`
	Keys        [][]byte `cbor:"4,keyasint"`
	Tokens      int64    `cbor:"5,keyasint"`
	BlockTokens int64    `cbor:"6,keyasint"`
	Owner       string   `cbor:"7,keyasint"`
	Epoch       uint64   `cbor:"8,keyasint"`
	SessVersion uint64   `cbor:"9,keyasint"`
	RepinSeq    uint64   `cbor:"10,keyasint"`
	Fidelity    uint8    `cbor:"11,keyasint"`
	Moves       []move   `cbor:"12,keyasint"`
	Changed     int64    `cbor:"13,keyasint,omitempty"`
}

// recordMode refuses what the encoder never writes: unknown and repeated fields, indefinite lengths, tags.
var recordMode = func() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField, MaxArrayElements: MaxSessionKeys, MaxMapPairs: 64, MaxNestedLevels: 8,
	}.DecMode()
	if err != nil {
		panic("BUG: CBOR decoding options: " + err.Error())
	}
	return m
}()

func (r record) encode() ([]byte, error) {
	s := r.session
	d := diskRecord{
		Version: recordVersion, Tenant: string(s.Tenant), ID: string(s.ID), Pin: s.Pin[:], Keys: make([][]byte, len(s.Keys)),
		Tokens: s.Tokens, BlockTokens: int64(s.BlockTokens), Owner: string(s.Owner), Epoch: s.Epoch, SessVersion: s.Version,
		RepinSeq: s.RepinSeq, Fidelity: uint8(s.Fidelity), Moves: append([]move{}, r.moves...), Changed: r.changed,
	}
	for i, k := range s.Keys {
		d.Keys[i] = []byte(k)
	}
	return canonicalMode.Marshal(d)
}

// decodeRecord accepts exactly what encode writes: anything else, however close, is an error.
func decodeRecord(b []byte) (record, error) {
	var d diskRecord
	if err := recordMode.Unmarshal(b, &d); err != nil {
		return record{}, fmt.Errorf("decode session record: %w", err)
	}
	bad := func(field, value, allowed string) error {
		return fmt.Errorf("decode session record: %w", &FieldError{
			Field: field, Value: value, Allowed: allowed, Fix: "the file was written by another version or is damaged",
		})
	}
	switch {
	case d.Version != recordVersion:
		return record{}, bad("record version", fmt.Sprint(d.Version), fmt.Sprint(recordVersion))
	case len(d.Pin) != len(Pin{}):
		return record{}, bad("pin", fmt.Sprintf("%d bytes", len(d.Pin)), fmt.Sprintf("%d bytes", len(Pin{})))
	case d.Epoch == 0 || d.SessVersion == 0:
		return record{}, bad("epoch or version", "0", "1 or more")
	case len(d.Moves) > maxMoves:
		return record{}, bad("moves", fmt.Sprint(len(d.Moves)), fmt.Sprintf("at most %d", maxMoves))
	case d.Changed < 0:
		return record{}, bad("time of change", fmt.Sprint(d.Changed), "0 or more")
	case d.BlockTokens < 0 || d.BlockTokens > maxBlockTokens:
		return record{}, bad("block_tokens", fmt.Sprint(d.BlockTokens), fmt.Sprintf("0 to %d", maxBlockTokens))
	}
	r := record{moves: d.Moves, changed: d.Changed, session: Session{
		Tenant: Tenant(d.Tenant), ID: SessionID(d.ID), Pin: Pin(d.Pin), Tokens: d.Tokens, BlockTokens: int(d.BlockTokens),
		Owner: NodeID(d.Owner), Epoch: d.Epoch, Version: d.SessVersion, RepinSeq: d.RepinSeq, Fidelity: Fidelity(d.Fidelity),
	}}
	if len(d.Keys) > 0 {
		r.session.Keys = make([]BlockKey, len(d.Keys))
	}
	for i, k := range d.Keys {
		r.session.Keys[i] = BlockKey(k)
	}
	if err := r.session.Validate(); err != nil {
		return record{}, fmt.Errorf("decode session record: %w", err)
	}
	if err := r.session.Owner.Validate(); err != nil {
		return record{}, fmt.Errorf("decode session record: %w", err)
	}
	if again, err := r.encode(); err != nil || !bytes.Equal(again, b) {
		return record{}, bad("encoding", "not canonical", "canonical CBOR")
	}
	return r, nil
}

// sessionKey is a session's place in the map and, encoded, in the file: the tenant's length as two bytes, big-endian,
// then the tenant, then the id. Lengths are bounded by MaxNameBytes.
type sessionKey struct {
	tenant Tenant
	id     SessionID
}

// compare orders by tenant, then by id.
func (k sessionKey) compare(o sessionKey) int {
	return cmp.Or(cmp.Compare(k.tenant, o.tenant), cmp.Compare(k.id, o.id))
}

func (k sessionKey) encode() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(k.tenant)))
	return append(append(b, k.tenant...), k.id...)
}
