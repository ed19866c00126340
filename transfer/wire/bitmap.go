package wire

import "math/bits"

// MaxBits bounds a bitmap on the wire: what fits a control frame.
const MaxBits = 1 << 22

// A Bitmap is a set of page numbers. The zero value holds no bits; NewBitmap
// makes one of a size. It is not safe for concurrent use.
type Bitmap struct {
	n    int
	bits []byte // bit i is bit i%8 of byte i/8; spare bits are 0
}

// NewBitmap returns a bitmap of n bits, all clear. n must not be negative.
func NewBitmap(n int) Bitmap {
	return Bitmap{n: n, bits: make([]byte, (n+7)/8)}
}

// Len returns the number of bits.
func (m Bitmap) Len() int { return m.n }

// Has reports whether bit i is set; false out of range.
func (m Bitmap) Has(i int) bool {
	return i >= 0 && i < m.n && m.bits[i/8]&(1<<(i%8)) != 0
}

// Set sets bit i and reports whether it was clear. Out of range it does
// nothing.
func (m Bitmap) Set(i int) bool {
	if i < 0 || i >= m.n || m.Has(i) {
		return false
	}
	m.bits[i/8] |= 1 << (i % 8)
	return true
}

// Count returns how many bits are set.
func (m Bitmap) Count() int {
	n := 0
	for _, b := range m.bits {
		n += bits.OnesCount8(b)
	}
	return n
}

// Clone returns a copy that shares nothing with m.
func (m Bitmap) Clone() Bitmap {
	return Bitmap{n: m.n, bits: append([]byte(nil), m.bits...)}
}

// AppendBitmap appends the bytes of m to b, without its length.
func AppendBitmap(b []byte, m Bitmap) []byte { return append(b, m.bits...) }

// DecodeBitmap takes a bitmap of n bits from exactly (n+7)/8 bytes. It copies b.
func DecodeBitmap(b []byte, n int) (Bitmap, error) {
	switch {
	case n < 0 || n > MaxBits:
		return Bitmap{}, malformed("bitmap", "bits", n, "0 to 4194304")
	case len(b) != (n+7)/8:
		return Bitmap{}, malformed("bitmap", "bytes", len(b), "one a started eight bits")
	case n%8 != 0 && b[len(b)-1]>>(n%8) != 0:
		return Bitmap{}, malformed("bitmap", "spare bits", b[len(b)-1]>>(n%8), "0")
	}
	return Bitmap{n: n, bits: append([]byte(nil), b...)}, nil
}
