package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the protocol version that this package speaks.
const Version = 3

// ErrMalformed is matched by every decoding and validation error of this
// package.
var ErrMalformed = errors.New("malformed frame")

// FormatError says which field of which frame is wrong. It matches ErrMalformed.
type FormatError struct {
	Frame string // "chunk header", "hello"
	Field string
	Value any    // what was found
	Want  string // what is allowed
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: %s is %v, want %s", e.Frame, e.Field, e.Value, e.Want)
}

// Is reports whether target is ErrMalformed.
func (e *FormatError) Is(target error) bool { return target == ErrMalformed }

func malformed(frame, field string, value any, want string) error {
	return &FormatError{Frame: frame, Field: field, Value: value, Want: want}
}

// cursor reads fields off the front of a frame; the first short read sticks.
type cursor struct {
	b     []byte
	frame string
	err   error
}

func (c *cursor) take(n int, field string) []byte {
	if c.err != nil {
		return nil
	}
	if n < 0 || n > len(c.b) {
		c.err = malformed(c.frame, field, fmt.Sprintf("%d bytes short", n-len(c.b)), "the whole field")
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8(field string) uint8 {
	if p := c.take(1, field); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16(field string) uint16 {
	if p := c.take(2, field); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u32(field string) uint32 {
	if p := c.take(4, field); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64(field string) uint64 {
	if p := c.take(8, field); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// end returns the first error, or one for bytes that are left over.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) != 0 {
		c.err = malformed(c.frame, "trailing bytes", len(c.b), "none")
	}
	return c.err
}

func (c *cursor) fail(field string, value any, want string) {
	if c.err == nil {
		c.err = malformed(c.frame, field, value, want)
	}
}
