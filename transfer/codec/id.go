package codec

import (
	"fmt"
	"strings"
)

// An ID names a codec on the wire. The numbers are stable.
type ID uint8

// The codecs.
const (
	Raw    ID = iota // as it is
	Split4           // BF16: the sixteen commonest exponents as 4 bits, others as escapes
	Huff             // BF16: the exponents by Huffman
	Huff16           // FP16: sign, exponent and the first two bits of the mantissa by Huffman
	Huff8            // bytes, as of FP8: each by Huffman
	Zstd             // anything that is not floats
	ids
)

var names = [ids]string{"raw", "split4", "huff", "huff16", "huff8", "zstd"}

// String returns the codec's name, in lower case.
func (id ID) String() string {
	if id.Valid() {
		return names[id]
	}
	return fmt.Sprintf("codec %d", uint8(id))
}

// Valid reports that there is such a codec; Raw is one.
func (id ID) Valid() bool { return id < ids }

// Parse returns the codec of that name.
func Parse(name string) (ID, error) {
	for id, n := range names {
		if n == name {
			return ID(id), nil
		}
	}
	return Raw, fmt.Errorf("codec %q: there are %s", name, strings.Join(names[:], ", "))
}

// An Element is what pages consist of.
type Element uint8

// The elements. The zero value is unknown.
const (
	Unknown Element = iota
	BF16
	FP16
	FP8    // either kind
	Opaque // not floats
)

// For returns the codecs that suit an element, the best ratio first; none for Unknown.
// The caller may not change the slice.
func For(e Element) []ID {
	switch e {
	case BF16:
		return forBF16
	case FP16:
		return forFP16
	case FP8:
		return forFP8
	case Opaque:
		return forOpaque
	case Unknown:
	}
	return nil
}

var (
	forBF16   = []ID{Huff, Split4}
	forFP16   = []ID{Huff16}
	forFP8    = []ID{Huff8}
	forOpaque = []ID{Zstd}
)
