package kvstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
)

// The index of an arena that is kept over restarts, a file beside the arena's own. It is mapped and changed in place, so that it is whole at
// any moment: what a process that is killed leaves is what it knew. Nothing in it is trusted: damage makes an arena begin empty, or
// costs one block. All numbers are little-endian, all padding is zero.
//
//	offset             size       field
//	0                  4096       header
//	4096               16384      processes that may touch the memory, one of two copies
//	20480              16384      the other copy; the one with the higher sequence that is whole counts
//	36864              40 a slot  states
//	then, at 4096s     a slot     records, 344 bytes and 4 a page, rounded up to 64
//
// Header:
//
//	0    8    "KVFINDEX"
//	8    4    version, 1
//	12   4    slots
//	16   4    pages a block
//	20   4    length of the identity, 1 to 256
//	24   8    bytes of the arena's file
//	32   8    stride
//	40   8    generation that every slot began this opening with
//	48   8    since when nobody has wanted the arena, seconds of Unix time; 0: it is wanted
//	56   32   layout pin
//	88   256  identity
//	344  4    CRC32C of what is before
//
// State of a slot, without a checksum: what is wrong in it costs order, or is found by the record's:
//
//	0    8    last use (the arena's own count)
//	8    8    generation
//	16   8    generation of the block that it continues; 0: none known
//	24   4    slot of that block
//	28   4    blocks before it
//	32   1    0 free, 1 busy (somebody may write it, or read what is out of the index), 2 committed
//	33   1    bit 0: a lease holds it; bit 1: protected from eviction by one use
//	34   6    zero
//
// Record of a committed block:
//
//	0    4    CRC32C of the slot's number (4 bytes), then of what follows
//	4    2    length of the tenant
//	6    1    length of the key
//	7    1    fidelity
//	8    1    bit 0: the block came page by page
//	9    7    zero
//	16   8    generation
//	24   64   key
//	88   256  tenant
//	344  4    a page: its checksum
//
// Copy of the processes:
//
//	0      8  sequence, from 1
//	8      4  how many
//	12     .  each its length, 2 bytes, and its name
//	16380  4  CRC32C of what is before
const (
	tableMagic    = "KVFINDEX"
	tableVersion  = 1
	tableHeadSize = 4096
	tableHeadUsed = 348
	processSize   = 16384
	stateAt       = tableHeadSize + 2*processSize
	stateSize     = 40
	recordUsed    = 344
	recordAlign   = 64
	maxIdentity   = 256
	maxGeneration = 1 << 62 // far from wrapping
)

// The states of a slot in the table.
const (
	tableFree uint8 = iota
	tableBusy
	tableCommitted
)

const (
	stateHeld      = 1 << 0
	stateProtected = 1 << 1
	recordByPage   = 1 << 0
)

// tableHead is the header of an index.
type tableHead struct {
	slots, pages int
	bytes        int64
	stride       int64
	generation   uint64
	unclaimed    int64 // Unix seconds
	pin          Pin
	identity     string
}

// records is where the records begin, recordSize the room of each, size that of the whole file.
func (h tableHead) records() int64 {
	return (int64(stateAt) + int64(h.slots)*stateSize + tableHeadSize - 1) / tableHeadSize * tableHeadSize
}

func (h tableHead) recordSize() int64 {
	return (recordUsed + 4*int64(h.pages) + recordAlign - 1) / recordAlign * recordAlign
}

func (h tableHead) size() int64 { return h.records() + int64(h.slots)*h.recordSize() }

func (h tableHead) stateOf(slot uint32) int64 { return stateAt + int64(slot)*stateSize }

func (h tableHead) recordOf(slot uint32) int64 { return h.records() + int64(slot)*h.recordSize() }

func (h tableHead) encode() []byte {
	b := make([]byte, tableHeadSize)
	le := binary.LittleEndian
	copy(b, tableMagic)
	le.PutUint32(b[8:], tableVersion)
	le.PutUint32(b[12:], uint32(h.slots))
	le.PutUint32(b[16:], uint32(h.pages))
	le.PutUint32(b[20:], uint32(len(h.identity)))
	le.PutUint64(b[24:], uint64(h.bytes))
	le.PutUint64(b[32:], uint64(h.stride))
	le.PutUint64(b[40:], h.generation)
	le.PutUint64(b[48:], uint64(h.unclaimed))
	copy(b[56:], h.pin[:])
	copy(b[88:], h.identity)
	le.PutUint32(b[344:], crc32.Checksum(b[:344], castagnoli))
	return b
}

// decodeTableHead accepts exactly what encode writes.
func decodeTableHead(b []byte) (tableHead, error) {
	bad := func(field, value, allowed string) (tableHead, error) {
		return tableHead{}, fmt.Errorf("decode arena index: %w", &FieldError{Field: field, Value: value, Allowed: allowed, Fix: "another release wrote it, or it is damaged; the arena begins empty"})
	}
	if len(b) < tableHeadSize || string(b[:8]) != tableMagic {
		return bad("magic", strconv.Quote(string(b[:min(8, len(b))])), strconv.Quote(tableMagic))
	}
	b = b[:tableHeadSize]
	le := binary.LittleEndian
	if v := le.Uint32(b[8:]); v != tableVersion {
		return bad("version", fmt.Sprint(v), fmt.Sprint(tableVersion))
	}
	if got, want := crc32.Checksum(b[:344], castagnoli), le.Uint32(b[344:]); got != want {
		return bad("header checksum", fmt.Sprintf("%08x", got), fmt.Sprintf("%08x", want))
	}
	h := tableHead{
		slots: int(le.Uint32(b[12:])), pages: int(le.Uint32(b[16:])), bytes: int64(le.Uint64(b[24:])), stride: int64(le.Uint64(b[32:])),
		generation: le.Uint64(b[40:]), unclaimed: int64(le.Uint64(b[48:])), pin: Pin(b[56:88]),
	}
	identity := le.Uint32(b[20:])
	switch {
	case h.slots < 1 || h.slots > MaxSlots:
		return bad("slots", fmt.Sprint(h.slots), fmt.Sprintf("1 to %d", MaxSlots))
	case h.pages < 1 || h.pages > MaxLayers:
		return bad("pages", fmt.Sprint(h.pages), fmt.Sprintf("1 to %d", MaxLayers))
	case identity < 1 || identity > maxIdentity:
		return bad("identity", fmt.Sprintf("%d bytes", identity), fmt.Sprintf("1 to %d bytes", maxIdentity))
	case h.generation > maxGeneration:
		return bad("generation", fmt.Sprint(h.generation), fmt.Sprintf("at most %d", uint64(maxGeneration)))
	case h.unclaimed < 0:
		return bad("unclaimed", fmt.Sprint(h.unclaimed), "0 or more")
	}
	h.identity = string(b[88 : 88+identity])
	if !bytes.Equal(h.encode(), b) {
		return bad("encoding", "not canonical", "zero padding")
	}
	return h, nil
}

// slotState is what the table says of one slot's state.
type tableState struct {
	stamp, generation, parentGeneration uint64
	parent, position                    uint32
	state, flags                        uint8
}

func (s tableState) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, s.stamp)
	le.PutUint64(b[8:], s.generation)
	le.PutUint64(b[16:], s.parentGeneration)
	le.PutUint32(b[24:], s.parent)
	le.PutUint32(b[28:], s.position)
	b[32], b[33] = s.state, s.flags
	clear(b[34:stateSize])
}

// decodeState takes any bytes; a state that is none is busy, so that nobody is given the memory who should not have it.
func decodeState(b []byte) tableState {
	le := binary.LittleEndian
	s := tableState{
		stamp: le.Uint64(b), generation: le.Uint64(b[8:]), parentGeneration: le.Uint64(b[16:]), parent: le.Uint32(b[24:]), position: le.Uint32(b[28:]),
		state: b[32], flags: b[33] & (stateHeld | stateProtected),
	}
	if s.state > tableCommitted {
		s.state = tableBusy
	}
	return s
}

// blockRecord is what the table says of a committed block.
type blockRecord struct {
	key        indexKey
	fidelity   Fidelity
	byPage     bool
	generation uint64
	sums       []uint32
}

// put writes r for a slot to b, which has room for exactly one record.
func (r blockRecord) put(b []byte, slot uint32) {
	clear(b)
	le := binary.LittleEndian
	le.PutUint16(b[4:], uint16(len(r.key.tenant)))
	b[6], b[7] = uint8(len(r.key.key)), uint8(r.fidelity)
	if r.byPage {
		b[8] = recordByPage
	}
	le.PutUint64(b[16:], r.generation)
	copy(b[24:], r.key.key)
	copy(b[88:], r.key.tenant)
	for i, sum := range r.sums {
		le.PutUint32(b[recordUsed+4*i:], sum)
	}
	le.PutUint32(b, recordSum(b, slot))
}

// recordSum is the checksum of a record. It changes b and restores it: a number on the stack would escape into hash/crc32's assembly.
func recordSum(b []byte, slot uint32) uint32 {
	had := [4]byte(b)
	binary.LittleEndian.PutUint32(b, slot)
	sum := crc32.Checksum(b, castagnoli)
	copy(b, had[:])
	return sum
}

// decodeBlockRecord accepts exactly what put writes for that slot. b has room for exactly one record of a block of pages pages.
func decodeBlockRecord(b []byte, slot uint32, pages int) (blockRecord, error) {
	le := binary.LittleEndian
	if le.Uint32(b) != recordSum(b, slot) {
		return blockRecord{}, fmt.Errorf("record of slot %d: %w", slot, ErrChecksumMismatch)
	}
	tenant, key := int(le.Uint16(b[4:])), int(b[6])
	if tenant > MaxNameBytes || key < MinKeyBytes || key > MaxKeyBytes {
		return blockRecord{}, &FieldError{Field: "record", Value: fmt.Sprintf("a tenant of %d bytes, a key of %d", tenant, key), Allowed: "names within their limits", Fix: "the record is damaged"}
	}
	r := blockRecord{
		key:      indexKey{tenant: Tenant(b[88 : 88+tenant]), key: BlockKey(b[24 : 24+key])},
		fidelity: Fidelity(b[7]), byPage: b[8]&recordByPage != 0, generation: le.Uint64(b[16:]), sums: make([]uint32, pages),
	}
	for i := range r.sums {
		r.sums[i] = le.Uint32(b[recordUsed+4*i:])
	}
	if err := r.key.tenant.Validate(); err != nil {
		return blockRecord{}, err
	}
	again := make([]byte, len(b))
	if r.put(again, slot); !bytes.Equal(again, b) {
		return blockRecord{}, &FieldError{Field: "record", Value: "not canonical", Allowed: "zero padding", Fix: "the record is damaged"}
	}
	return r, nil
}

// encodeProcesses returns a copy of the processes, or nil when they do not fit.
func encodeProcesses(seq uint64, names []string) []byte {
	b := make([]byte, 12, processSize)
	binary.LittleEndian.PutUint64(b, seq)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(names)))
	for _, n := range names {
		if len(n) > MaxNameBytes || len(b)+2+len(n) > processSize-4 {
			return nil
		}
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(n))), n...)
	}
	b = b[:processSize-4]
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeProcesses accepts exactly what encodeProcesses writes.
func decodeProcesses(b []byte) (seq uint64, names []string, ok bool) {
	le := binary.LittleEndian
	if len(b) != processSize || crc32.Checksum(b[:processSize-4], castagnoli) != le.Uint32(b[processSize-4:]) {
		return 0, nil, false
	}
	seq = le.Uint64(b)
	rest := b[12 : processSize-4]
	for range le.Uint32(b[8:]) {
		if len(rest) < 2 {
			return 0, nil, false
		}
		n := int(le.Uint16(rest))
		if rest = rest[2:]; n > MaxNameBytes || n > len(rest) {
			return 0, nil, false
		}
		names, rest = append(names, string(rest[:n])), rest[n:]
	}
	return seq, names, seq > 0 && bytes.Equal(encodeProcesses(seq, names), b)
}

// latestProcesses returns the newer whole copy of a table's processes. Neither is whole only when the file is damaged.
func latestProcesses(table []byte) (seq uint64, names []string, ok bool) {
	for i := range int64(2) {
		at := tableHeadSize + i*processSize
		if s, n, whole := decodeProcesses(table[at : at+processSize]); whole && s > seq {
			seq, names, ok = s, n, true
		}
	}
	return seq, names, ok
}
