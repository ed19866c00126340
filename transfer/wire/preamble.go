package wire

import "encoding/binary"

const (
	// PreambleBytes is the size of a preamble.
	PreambleBytes = 8
	// MaxName bounds a name and an incarnation, in bytes.
	MaxName = 255
	// MaxHello bounds a hello and a hello answer, in bytes.
	MaxHello = 2048
	// MaxMessage bounds the text of a refusal or failure, in bytes.
	MaxMessage = 1024

	magic = "kvfy"
)

// A Preamble opens the bidirectional stream of every connection. Its layout is
// the same in every protocol version, so that two versions can refuse each
// other in words.
type Preamble struct {
	Version uint16
	Length  uint16 // bytes of the hello that follows, at most MaxHello
}

// AppendPreamble appends p to b.
func AppendPreamble(b []byte, p Preamble) []byte {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, p.Version)
	return binary.BigEndian.AppendUint16(b, p.Length)
}

// DecodePreamble decodes exactly PreambleBytes bytes. The version is returned
// as it stands: refusing it is the caller's part.
func DecodePreamble(b []byte) (Preamble, error) {
	c := cursor{b: b, frame: "preamble"}
	if m := c.take(4, "magic"); c.err == nil && string(m) != magic {
		c.fail("magic", string(m), magic)
	}
	p := Preamble{Version: c.u16("version"), Length: c.u16("length")}
	if p.Length > MaxHello {
		c.fail("length", p.Length, "at most 2048")
	}
	if err := c.end(); err != nil {
		return Preamble{}, err
	}
	return p, nil
}
