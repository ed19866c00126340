package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// Nonce names a link: every stripe of it says the same one.
type Nonce [16]byte

// A Hello is what the dialler of a stripe says first.
type Hello struct {
	Nonce       Nonce
	Stripe      uint32
	Name        string // 1 to MaxName bytes of UTF-8
	Incarnation string // 1 to MaxName bytes of UTF-8
	Repair      Repair
	Codecs      uint64 // pages that it can decode: bit n for codec n of package codec; and TakesCosts
}

// Repair is what one side offers for repair of lost packets below QUIC; both must
// offer it for any. The zero value offers none.
type Repair struct {
	Version uint8  // the highest that it speaks, and every lower one; 0: none
	Span    uint16 // packets that it remembers to rebuild others, MinSpan to MaxSpan
}

// MinSpan and MaxSpan bound Repair.Span, packets.
const MinSpan, MaxSpan = 128, 4096

func (r Repair) validate(frame string) error {
	switch {
	case r.Version == 0 && r.Span != 0:
		return malformed(frame, "repair span", r.Span, "0 without a version")
	case r.Version != 0 && (r.Span < MinSpan || r.Span > MaxSpan):
		return malformed(frame, "repair span", r.Span, "128 to 4096")
	}
	return nil
}

func appendRepair(b []byte, r Repair) []byte {
	return binary.BigEndian.AppendUint16(append(b, r.Version), r.Span)
}

func (c *cursor) repair() Repair {
	return Repair{Version: c.u8("repair version"), Span: c.u16("repair span")}
}

// A HelloAnswer is what the listener replies to a Hello.
type HelloAnswer struct {
	Code        uint16 // 0: accepted
	Name        string
	Incarnation string
	Message     string // at most MaxMessage bytes of UTF-8; "" when accepted
	Repair      Repair
	Codecs      uint64 // as in Hello
}

// Validate reports the first field that cannot be sent.
func (h Hello) Validate() error {
	if err := validNames("hello", h.Name, h.Incarnation); err != nil {
		return err
	}
	return h.Repair.validate("hello")
}

// Validate reports the first field that cannot be sent.
func (a HelloAnswer) Validate() error {
	if err := validNames("hello answer", a.Name, a.Incarnation); err != nil {
		return err
	}
	if len(a.Message) > MaxMessage || !utf8.ValidString(a.Message) {
		return malformed("hello answer", "message", len(a.Message), "at most 1024 bytes of UTF-8")
	}
	return a.Repair.validate("hello answer")
}

func validNames(frame, name, incarnation string) error {
	for _, f := range [...]struct{ field, value string }{{"name", name}, {"incarnation", incarnation}} {
		if len(f.value) == 0 || len(f.value) > MaxName || !utf8.ValidString(f.value) {
			return malformed(frame, f.field, len(f.value), "1 to 255 bytes of UTF-8")
		}
	}
	return nil
}

// AppendHello validates h and appends it to b.
func AppendHello(b []byte, h Hello) ([]byte, error) {
	if err := h.Validate(); err != nil {
		return b, err
	}
	b = append(b, h.Nonce[:]...)
	b = binary.BigEndian.AppendUint32(b, h.Stripe)
	b = appendShort(b, h.Name)
	return binary.BigEndian.AppendUint64(appendRepair(appendShort(b, h.Incarnation), h.Repair), h.Codecs), nil
}

// DecodeHello decodes exactly one hello.
func DecodeHello(b []byte) (Hello, error) {
	c := cursor{b: b, frame: "hello"}
	var h Hello
	copy(h.Nonce[:], c.take(len(h.Nonce), "nonce"))
	h.Stripe = c.u32("stripe")
	h.Name = c.short("name")
	h.Incarnation = c.short("incarnation")
	h.Repair = c.repair()
	h.Codecs = c.u64("codecs")
	if err := c.end(); err != nil {
		return Hello{}, err
	}
	return h, h.Validate()
}

// AppendHelloAnswer validates a and appends it to b.
func AppendHelloAnswer(b []byte, a HelloAnswer) ([]byte, error) {
	if err := a.Validate(); err != nil {
		return b, err
	}
	b = binary.BigEndian.AppendUint16(b, a.Code)
	b = appendShort(b, a.Name)
	b = appendShort(b, a.Incarnation)
	b = binary.BigEndian.AppendUint16(b, uint16(len(a.Message)))
	return binary.BigEndian.AppendUint64(appendRepair(append(b, a.Message...), a.Repair), a.Codecs), nil
}

// DecodeHelloAnswer decodes exactly one hello answer.
func DecodeHelloAnswer(b []byte) (HelloAnswer, error) {
	c := cursor{b: b, frame: "hello answer"}
	a := HelloAnswer{Code: c.u16("code"), Name: c.short("name"), Incarnation: c.short("incarnation")}
	a.Message = string(c.take(int(c.u16("message length")), "message"))
	a.Repair = c.repair()
	a.Codecs = c.u64("codecs")
	if err := c.end(); err != nil {
		return HelloAnswer{}, err
	}
	return a, a.Validate()
}

func appendShort(b []byte, s string) []byte {
	b = append(b, byte(len(s)))
	return append(b, s...)
}

func (c *cursor) short(field string) string {
	return string(c.take(int(c.u8(field)), field))
}
