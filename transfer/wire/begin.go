package wire

import "encoding/binary"

const (
	// MaxToken bounds the opaque token of a transfer, in bytes.
	MaxToken = 256
	// MaxNotify bounds the notification of a transfer, in bytes.
	MaxNotify = 64 << 10
	// DescBytes is the size of an encoded descriptor.
	DescBytes = 24
	// MaxFrameDescs bounds the descriptors of one Begin frame.
	MaxFrameDescs = 32768
	// MaxDescs bounds the descriptors of a transfer.
	MaxDescs = 1 << 18
	// MaxPages bounds the pages of a transfer.
	MaxPages = 1 << 24
)

// Op is the direction of a transfer, seen from its initiator.
type Op uint8

// The operations.
const (
	OpRead  Op = 1
	OpWrite Op = 2
)

// Desc names a run of pages in one of the receiver's memories.
type Desc struct {
	Memory     uint32
	Pages      uint32 // 1 to MaxPages
	Offset     uint64 // bytes
	Generation uint64
}

// A Begin opens a transfer, or continues the list of its descriptors.
type Begin struct {
	Op     Op
	More   bool   // further frames follow
	First  uint32 // index of Descs[0] in the transfer
	Token  []byte // in the first frame only
	Notify []byte // in the first frame only
	// Class and Deadline order the transfer among others at the side that sends
	// pages; in the first frame only. Deadline is in milliseconds from now, 0: none.
	Class    Class
	Deadline uint32
	Descs    []Desc // 1 to MaxFrameDescs
}

// Validate reports the first field that is out of range.
func (m Begin) Validate() error {
	const frame = "begin"
	switch {
	case m.Op != OpRead && m.Op != OpWrite:
		return malformed(frame, "operation", m.Op, "1 or 2")
	case len(m.Token) > MaxToken:
		return malformed(frame, "token", len(m.Token), "at most 256 bytes")
	case len(m.Notify) > MaxNotify:
		return malformed(frame, "notify", len(m.Notify), "at most 65536 bytes")
	case m.First > 0 && len(m.Token)+len(m.Notify) > 0:
		return malformed(frame, "token and notify", "set", "empty in a continuation")
	case m.First > 0 && (m.Class != 0 || m.Deadline != 0):
		return malformed(frame, "class and deadline", "set", "0 in a continuation")
	case m.Class > ClassReplication:
		return malformed(frame, "class", m.Class, "0 to 2")
	case len(m.Descs) == 0 || len(m.Descs) > MaxFrameDescs:
		return malformed(frame, "descriptors", len(m.Descs), "1 to 32768")
	case m.First > MaxDescs || int(m.First)+len(m.Descs) > MaxDescs:
		return malformed(frame, "first", m.First, "at most 262144 descriptors in all")
	}
	for _, d := range m.Descs {
		if d.Pages == 0 || d.Pages > MaxPages {
			return malformed(frame, "pages", d.Pages, "1 to 16777216")
		}
	}
	return nil
}

// AppendBegin validates m and appends it to b.
func AppendBegin(b []byte, m Begin) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	var flags byte
	if m.More {
		flags = 1
	}
	b = append(b, byte(m.Op), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Token)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Notify)))
	b = binary.BigEndian.AppendUint32(b, m.First)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Descs)))
	b = append(b, byte(m.Class), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Deadline)
	b = append(b, m.Token...)
	b = append(b, m.Notify...)
	for _, d := range m.Descs {
		b = binary.BigEndian.AppendUint32(b, d.Memory)
		b = binary.BigEndian.AppendUint32(b, d.Pages)
		b = binary.BigEndian.AppendUint64(b, d.Offset)
		b = binary.BigEndian.AppendUint64(b, d.Generation)
	}
	return b, nil
}

// DecodeBegin decodes exactly one Begin. Token and Notify share b's memory.
func DecodeBegin(b []byte) (Begin, error) {
	c := cursor{b: b, frame: "begin"}
	m := Begin{Op: Op(c.u8("operation"))}
	flags := c.u8("flags")
	if flags > 1 {
		c.fail("flags", flags, "0 or 1")
	}
	m.More = flags == 1
	token, notify := c.u16("token length"), c.u32("notify length")
	m.First = c.u32("first")
	n := c.u32("descriptor count")
	m.Class = Class(c.u8("class"))
	if r := c.take(3, "reserved"); r != nil && r[0]|r[1]|r[2] != 0 {
		c.fail("reserved", r, "0")
	}
	m.Deadline = c.u32("deadline")
	if token > MaxToken || notify > MaxNotify {
		c.fail("token or notify length", []uint32{uint32(token), notify}, "at most 256 and 65536")
	}
	m.Token = c.take(int(token), "token")
	m.Notify = c.take(int(notify), "notify")
	if c.err == nil && (n > MaxFrameDescs || len(c.b) != int(n)*DescBytes) {
		c.fail("descriptor count", n, "as many as follow, at most 32768")
	}
	if c.err != nil {
		return Begin{}, c.err
	}
	m.Descs = make([]Desc, n)
	for i := range m.Descs {
		m.Descs[i] = Desc{Memory: c.u32("memory"), Pages: c.u32("pages"), Offset: c.u64("offset"), Generation: c.u64("generation")}
	}
	if err := c.end(); err != nil {
		return Begin{}, err
	}
	return m, m.Validate()
}
