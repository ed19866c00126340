package wire

import "encoding/binary"

// MaxMemories bounds the memories that an agent announces.
const MaxMemories = 4096

const memoryBytes = 20

// Memory describes one registered memory to the peer.
type Memory struct {
	ID        uint32
	PageBytes uint32 // 1 to MaxChunkBytes
	Readable  bool
	Writable  bool
	Length    uint64 // bytes, at most 2^63-1
}

// Metadata is what an agent announces about itself.
type Metadata struct {
	Version     uint16
	Name        string
	Incarnation string
	Memories    []Memory // ascending ids
}

// Validate reports the first field that is out of range.
func (m Metadata) Validate() error {
	const frame = "metadata"
	if err := validNames(frame, m.Name, m.Incarnation); err != nil {
		return err
	}
	if len(m.Memories) > MaxMemories {
		return malformed(frame, "memories", len(m.Memories), "at most 4096")
	}
	for i, r := range m.Memories {
		switch {
		case i > 0 && r.ID <= m.Memories[i-1].ID:
			return malformed(frame, "memory id", r.ID, "ascending")
		case r.PageBytes < 1 || r.PageBytes > MaxChunkBytes:
			return malformed(frame, "page bytes", r.PageBytes, "1 to 4194304")
		case r.Length > 1<<63-1:
			return malformed(frame, "length", r.Length, "at most 2^63-1")
		}
	}
	return nil
}

// AppendMetadata validates m and appends it to b.
func AppendMetadata(b []byte, m Metadata) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	b = binary.BigEndian.AppendUint16(b, m.Version)
	b = appendShort(b, m.Name)
	b = appendShort(b, m.Incarnation)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Memories)))
	for _, r := range m.Memories {
		var flags uint32
		if r.Readable {
			flags |= 1
		}
		if r.Writable {
			flags |= 2
		}
		b = binary.BigEndian.AppendUint32(b, r.ID)
		b = binary.BigEndian.AppendUint32(b, r.PageBytes)
		b = binary.BigEndian.AppendUint32(b, flags)
		b = binary.BigEndian.AppendUint64(b, r.Length)
	}
	return b, nil
}

// DecodeMetadata decodes exactly one Metadata.
func DecodeMetadata(b []byte) (Metadata, error) {
	c := cursor{b: b, frame: "metadata"}
	m := Metadata{Version: c.u16("version"), Name: c.short("name"), Incarnation: c.short("incarnation")}
	n := c.u32("memory count")
	if c.err == nil && (n > MaxMemories || len(c.b) != int(n)*memoryBytes) {
		c.fail("memory count", n, "as many as follow, at most 4096")
	}
	if c.err != nil {
		return Metadata{}, c.err
	}
	for range n {
		r := Memory{ID: c.u32("id"), PageBytes: c.u32("page bytes")}
		flags := c.u32("flags")
		if flags > 3 {
			c.fail("flags", flags, "0 to 3")
		}
		r.Readable, r.Writable = flags&1 != 0, flags&2 != 0
		r.Length = c.u64("length")
		m.Memories = append(m.Memories, r)
	}
	if err := c.end(); err != nil {
		return Metadata{}, err
	}
	return m, m.Validate()
}
