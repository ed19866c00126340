package wire

import "encoding/binary"

// TakesCosts is the bit of Hello.Codecs and HelloAnswer.Codecs that says: this side takes Costs frames. It is of no codec.
const TakesCosts uint64 = 1 << 63

// Costs says what coding takes the side that sends it, so that the other one can choose codecs and price transfers.
type Costs struct {
	Cores  uint16 // processors that coding, sending and receiving share, 1 or more
	Codecs []Cost // ascending codecs
}

// A Cost is what a codec takes of a processor, picoseconds a byte of pages before coding; 0: not known.
type Cost struct {
	Codec          uint8 // 0 to MaxCostCodec
	Encode, Decode uint32
}

const (
	// MaxCostCodec bounds Cost.Codec.
	MaxCostCodec = 62
	costBytes    = 12
)

// Validate reports the first field that cannot be sent.
func (m Costs) Validate() error {
	const frame = "costs"
	if m.Cores == 0 {
		return malformed(frame, "cores", m.Cores, "1 to 65535")
	}
	last := -1
	for _, c := range m.Codecs {
		switch {
		case c.Codec > MaxCostCodec:
			return malformed(frame, "codec", c.Codec, "0 to 62")
		case int(c.Codec) <= last:
			return malformed(frame, "codec", c.Codec, "above the one before")
		}
		last = int(c.Codec)
	}
	return nil
}

// AppendCosts validates m and appends it to b.
func AppendCosts(b []byte, m Costs) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	b = append(binary.BigEndian.AppendUint16(b, m.Cores), byte(len(m.Codecs)), 0)
	for _, c := range m.Codecs {
		b = append(b, c.Codec, 0, 0, 0)
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, c.Encode), c.Decode)
	}
	return b, nil
}

// DecodeCosts decodes exactly one Costs.
func DecodeCosts(b []byte) (Costs, error) {
	c := cursor{b: b, frame: "costs"}
	m := Costs{Cores: c.u16("cores")}
	n := int(c.u8("codecs"))
	if r := c.u8("reserved"); r != 0 {
		c.fail("reserved", r, "0")
	}
	if n > MaxCostCodec+1 {
		c.fail("codecs", n, "at most 63")
	}
	if c.err == nil && n > 0 {
		m.Codecs = make([]Cost, 0, min(n, len(c.b)/costBytes))
	}
	for range n {
		e := Cost{Codec: c.u8("codec")}
		if r := c.take(3, "reserved"); r != nil && r[0]|r[1]|r[2] != 0 {
			c.fail("reserved", r, "0")
		}
		e.Encode, e.Decode = c.u32("encode"), c.u32("decode")
		if c.err != nil {
			break
		}
		m.Codecs = append(m.Codecs, e)
	}
	if err := c.end(); err != nil {
		return Costs{}, err
	}
	return m, m.Validate()
}
