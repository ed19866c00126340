package wire

import "encoding/binary"

// Class is how urgent a transfer is; lower is more urgent.
type Class uint8

// The classes.
const (
	ClassInteractive Class = 0
	ClassBackground  Class = 1
	ClassReplication Class = 2
)

// Queued tells the receiving side of a transfer that its source has it wait.
type Queued struct {
	Transfers uint32 // that go before it
	Bytes     uint64 // of pages that go before it
}

// AppendQueued appends m to b.
func AppendQueued(b []byte, m Queued) []byte {
	b = binary.BigEndian.AppendUint32(b, m.Transfers)
	b = append(b, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint64(b, m.Bytes)
}

// DecodeQueued decodes exactly one Queued. Bytes beyond 2^62 are malformed.
func DecodeQueued(b []byte) (Queued, error) {
	c := cursor{b: b, frame: "queued"}
	m := Queued{Transfers: c.u32("transfers")}
	if r := c.u32("reserved"); r != 0 {
		c.fail("reserved", r, "0")
	}
	m.Bytes = c.u64("bytes")
	if m.Bytes > 1<<62 {
		c.fail("bytes", m.Bytes, "at most 2^62")
	}
	if err := c.end(); err != nil {
		return Queued{}, err
	}
	return m, nil
}
