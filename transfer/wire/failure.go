package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

const (
	// NoIndex stands for "of no descriptor" and "of no page" in a Failure.
	NoIndex = 1<<32 - 1
	// MaxDetails bounds the opaque details of a Failure, in bytes.
	MaxDetails = 512 << 10
)

// A Failure is an error on its way to the peer.
type Failure struct {
	Code    uint16
	Pair    uint32 // descriptor index or NoIndex
	Page    uint32 // page in the descriptor or NoIndex
	Message string // at most MaxMessage bytes of UTF-8
	Details []byte // opaque, at most MaxDetails
}

// Validate reports the first field that is out of range.
func (m Failure) Validate() error {
	switch {
	case len(m.Message) > MaxMessage || !utf8.ValidString(m.Message):
		return malformed("failure", "message", len(m.Message), "at most 1024 bytes of UTF-8")
	case len(m.Details) > MaxDetails:
		return malformed("failure", "details", len(m.Details), "at most 524288 bytes")
	}
	return nil
}

// AppendFailure validates m and appends it to b.
func AppendFailure(b []byte, m Failure) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	b = binary.BigEndian.AppendUint16(b, m.Code)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Pair)
	b = binary.BigEndian.AppendUint32(b, m.Page)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Message)))
	b = append(b, m.Message...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Details)))
	return append(b, m.Details...), nil
}

// DecodeFailure decodes exactly one Failure. Details shares b's memory.
func DecodeFailure(b []byte) (Failure, error) {
	c := cursor{b: b, frame: "failure"}
	m := Failure{Code: c.u16("code")}
	if r := c.u16("reserved"); r != 0 {
		c.fail("reserved", r, "0")
	}
	m.Pair = c.u32("descriptor")
	m.Page = c.u32("page")
	m.Message = string(c.take(int(c.u16("message length")), "message"))
	n := c.u32("details length")
	if n > MaxDetails {
		c.fail("details length", n, "at most 524288")
	}
	m.Details = c.take(int(n), "details")
	if err := c.end(); err != nil {
		return Failure{}, err
	}
	return m, m.Validate()
}

// AppendProgress appends a Progress payload: pages verified so far.
func AppendProgress(b []byte, pages uint64) []byte {
	return binary.BigEndian.AppendUint64(b, pages)
}

// DecodeProgress decodes exactly one Progress payload.
func DecodeProgress(b []byte) (uint64, error) {
	c := cursor{b: b, frame: "progress"}
	n := c.u64("pages")
	return n, c.end()
}
