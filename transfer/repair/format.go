package repair

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the version of the packet format, as negotiated. Two ends use the lower of theirs; 0 is none.
const Version = 2

// ErrMalformed is wrapped by every error of a packet that does not decode.
var ErrMalformed = errors.New("malformed repair packet")

// A Token names one direction of a session in each of its repair packets.
type Token [8]byte

// Bounds of the format.
const (
	// MaxGroup is the most packets that a group covers.
	MaxGroup = 108
	// MaxParity is the most parity packets of a group.
	MaxParity = 40
	// MaxPacket is the largest packet that is covered, bytes: what QUIC sends at most.
	MaxPacket = 1452
	// MaxSpan bounds Config.MaxSpan, packets.
	MaxSpan = 4096

	// MaxParityPacket and reportBytes are sizes of repair packets, below those of the packets they repair.
	MaxParityPacket = parityHead + fingerprintBytes*MaxGroup + maxSymbol + sealBytes
	reportBytes     = commonHead + 4 + 8*(6+lossBins)
	minRepairPacket = commonHead

	dataSymbols = 2 * MaxGroup
	// Symbols are multiples of what a vector holds: the rest of one is folded a byte at a time.
	symbolUnit       = 32
	maxSymbol        = ((lengthBytes+MaxPacket+1)/2 + symbolUnit - 1) / symbolUnit * symbolUnit
	lengthBytes      = 2
	fingerprintBytes = 3
	// minPacket keeps the fingerprint inside of what QUIC encrypts.
	minPacket  = 20
	commonHead = 10
	parityHead = commonHead + 16

	kindParity = 0x31
	kindReport = 0x32
	flagSingle = 1
	lossBins   = 8
)

// parity is the header of a parity packet.
type parity struct {
	first   uint32 // number of the group's first packet, counted over the covered packets of the session
	span    int    // packets from the first to the last of the group, both included
	n       int    // packets of the group
	symbols int    // parity symbols of the group
	index   int    // of this one
	single  bool   // every packet fits one symbol
	half    int    // bytes of a whole symbol
	check   uint32 // check of each packet, added without carry
}

// report is what a receiver counted since the session began.
type report struct {
	number                              uint32 // ascending
	groups, packets                     uint64
	lost, repaired, unrepaired, squares uint64 // squares: of the losses a group, summed
	histogram                           [lossBins]uint64
}

func malformed(what string, got any, allowed string) error {
	return fmt.Errorf("%s is %v; allowed is %s: %w", what, got, allowed, ErrMalformed)
}

// padded is how many bytes a packet of n bytes, with its length, takes in whole units.
func padded(n int) int { return (lengthBytes + n + symbolUnit - 1) / symbolUnit * symbolUnit }

// isRepair says that a packet is not QUIC's: the fixed bit and the header form bit are clear.
func isRepair(b []byte) bool { return len(b) > 0 && b[0]&0xc0 == 0 }

// head splits off what all repair packets begin with.
func head(b []byte) (kind byte, t Token, err error) {
	if len(b) < minRepairPacket {
		return 0, t, malformed("length", len(b), "10 bytes or more")
	}
	if b[0] != kindParity && b[0] != kindReport {
		return 0, t, malformed("kind", b[0], "0x31 or 0x32")
	}
	if b[1] != Version {
		return 0, t, malformed("version", b[1], "2")
	}
	copy(t[:], b[2:])
	return b[0], t, nil
}

func appendHead(b []byte, kind byte, t Token) []byte {
	return append(append(b, kind, Version), t[:]...)
}

// appendParity appends the header; fingerprints and the symbol follow.
func appendParity(b []byte, t Token, p parity) []byte {
	b = appendHead(b, kindParity, t)
	b = binary.BigEndian.AppendUint32(b, p.first)
	b = binary.BigEndian.AppendUint16(b, uint16(p.span))
	var flags byte
	if p.single {
		flags = flagSingle
	}
	b = append(b, byte(p.n), byte(p.symbols), byte(p.index), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(p.half))
	return binary.BigEndian.AppendUint32(b, p.check)
}

// decodeParity decodes a whole parity packet; the slices point into b.
func decodeParity(b []byte) (p parity, fingerprints, symbol []byte, err error) {
	if len(b) < parityHead {
		return p, nil, nil, malformed("length", len(b), "26 bytes or more")
	}
	p = parity{
		first: binary.BigEndian.Uint32(b[10:]), span: int(binary.BigEndian.Uint16(b[14:])),
		n: int(b[16]), symbols: int(b[17]), index: int(b[18]), single: b[19] == flagSingle, half: int(binary.BigEndian.Uint16(b[20:])),
		check: binary.BigEndian.Uint32(b[22:]),
	}
	switch {
	case p.n < 1 || p.n > MaxGroup:
		err = malformed("packets", p.n, "1 to 108")
	case p.span < p.n || p.span > MaxSpan:
		err = malformed("span", p.span, "the packets of the group to 4096")
	case p.symbols < 1 || p.symbols > MaxParity:
		err = malformed("symbols", p.symbols, "1 to 40")
	case p.index >= p.symbols:
		err = malformed("index", p.index, "below the symbols")
	case b[19] > flagSingle:
		err = malformed("flags", b[19], "0 or 1")
	case p.half < lengthBytes+1 || p.half > maxSymbol:
		err = malformed("half", p.half, "3 to 736")
	}
	if err != nil {
		return parity{}, nil, nil, err
	}
	b = b[parityHead:]
	if len(b) <= fingerprintBytes*p.n {
		return parity{}, nil, nil, malformed("length", len(b), "the fingerprints and a symbol")
	}
	fingerprints, symbol = b[:fingerprintBytes*p.n], b[fingerprintBytes*p.n:]
	if len(symbol) > p.half || !p.single && len(symbol) != p.half || len(symbol) < lengthBytes+1 {
		return parity{}, nil, nil, malformed("symbol", len(symbol), "as many bytes as the header says")
	}
	return p, fingerprints, symbol, nil
}

func appendReport(b []byte, t Token, r report) []byte {
	b = appendHead(b, kindReport, t)
	b = binary.BigEndian.AppendUint32(b, r.number)
	for _, v := range [...]uint64{r.groups, r.packets, r.lost, r.repaired, r.unrepaired, r.squares} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, v := range r.histogram {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// decodeReport decodes a whole report, and refuses one whose numbers cannot be.
func decodeReport(b []byte) (r report, err error) {
	if len(b) != reportBytes {
		return r, malformed("length", len(b), "126 bytes")
	}
	r.number = binary.BigEndian.Uint32(b[commonHead:])
	b = b[commonHead+4:]
	for i, v := range [...]*uint64{&r.groups, &r.packets, &r.lost, &r.repaired, &r.unrepaired, &r.squares} {
		*v = binary.BigEndian.Uint64(b[8*i:])
	}
	var sum uint64
	for i := range r.histogram {
		r.histogram[i] = binary.BigEndian.Uint64(b[8*(6+i):])
		if r.histogram[i] > r.groups {
			return report{}, malformed("histogram", r.histogram[i], "at most the groups")
		}
		sum += r.histogram[i]
	}
	switch {
	case r.groups > 1<<48: // nothing below overflows
		err = malformed("groups", r.groups, "at most 2^48")
	case sum != r.groups:
		err = malformed("histogram", sum, "the groups in all")
	case r.packets < r.groups || r.packets > r.groups*MaxGroup:
		err = malformed("packets", r.packets, "1 to 108 a group")
	case r.lost > r.packets:
		err = malformed("lost", r.lost, "at most the packets")
	case r.repaired > r.lost || r.unrepaired != r.lost-r.repaired:
		err = malformed("repaired and unrepaired", r.repaired+r.unrepaired, "the lost in all")
	case r.squares < r.lost || r.squares > r.lost*MaxGroup:
		err = malformed("squares", r.squares, "the lost to 108 times as many")
	}
	if err != nil {
		return report{}, err
	}
	return r, nil
}

// bin is where a histogram counts a group of so many losses: 0, 1, 2, 3, 4, to 8, to 16, more.
func bin(losses int) int {
	switch {
	case losses <= 4:
		return losses
	case losses <= 8:
		return 5
	case losses <= 16:
		return 6
	}
	return 7
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// check is a packet's part of parity.check, by which a group that was rebuilt of
// other packets than were sent is known.
func check(packet []byte) uint32 { return crc32.Checksum(packet, castagnoli) }

// fingerprint is the end of a packet's AEAD tag, which is uniform.
func fingerprint(packet []byte) uint32 {
	t := packet[len(packet)-fingerprintBytes:]
	return uint32(t[0])<<16 | uint32(t[1])<<8 | uint32(t[2])
}
