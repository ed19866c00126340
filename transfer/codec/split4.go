package codec

import (
	"encoding/binary"
	"slices"
)

const (
	// codes is the size of split4's codebook.
	codes       = 16
	escapeBytes = 4
	noCode      = 1 << 8 // a byte's code where it has none: 0 in four bits
)

// encodeSplit4 appends what split4 makes of src, or src where that would be longer.
func (s *Scratch) encodeSplit4(dst, src []byte) []byte {
	n := len(src) / group * group
	coded, _ := s.planes(n / 2)
	other := s.other[:n/2]
	splitBF16(coded, other, src[:n])
	book, code, escapes := codebook(histogram(&s.huff.counts, coded))
	if escapes > len(src)/escapeBytes {
		return append(dst, src...)
	}
	dst = append(dst, book[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(escapes))
	at := len(dst)
	dst = slices.Grow(dst, escapes*escapeBytes+n/4+n/2+group)[:at+escapes*escapeBytes+n/4]
	special, pairs := dst[at:at+escapes*escapeBytes], dst[at+escapes*escapeBytes:]
	for i := 0; i < len(coded); i += 8 {
		c := (*[8]byte)(coded[i:])
		a, b := code[c[0]]|code[c[1]]<<4, code[c[2]]|code[c[3]]<<4
		d, e := code[c[4]]|code[c[5]]<<4, code[c[6]]|code[c[7]]<<4
		*(*[4]byte)(pairs[i/2:]) = [4]byte{byte(a), byte(b), byte(d), byte(e)}
		if (a|b|d|e)&^0xff != 0 {
			special = escape(special, c, i, &code)
		}
	}
	dst = append(dst, other...)
	return append(dst, src[n:]...)
}

// escape writes the bytes of c, of which the first is at, that have no code, and returns what is left of dst.
func escape(dst []byte, c *[8]byte, at int, code *[256]uint16) []byte {
	for j, e := range c {
		if code[e] == noCode {
			*(*[escapeBytes]byte)(dst) = [escapeBytes]byte{byte(at + j), byte((at + j) >> 8), byte((at + j) >> 16), e}
			dst = dst[escapeBytes:]
		}
	}
	return dst
}

// codebook returns the sixteen commonest bytes, the lower one first among equals, the code of each byte and how many are escapes.
func codebook(counts *[256]uint32) (book [codes]byte, code [256]uint16, escapes int) {
	var keys [256]uint32
	n := 0
	for b, c := range counts {
		if c > 0 || b < codes { // those that do not occur fill up the book
			keys[n] = c<<8 | uint32(255-b)
			n++
		}
	}
	slices.Sort(keys[:n])
	for i := range code {
		code[i] = noCode
	}
	for c := range book {
		n--
		book[c] = byte(255 - keys[n])
		code[book[c]] = uint16(c)
	}
	for _, k := range keys[:n] {
		escapes += int(k >> 8)
	}
	return book, code, escapes
}

func (s *Scratch) decodeSplit4(dst, src []byte) error {
	n := len(dst) / group * group
	if len(src) < codes+4 {
		return corrupt("%d bytes, want a codebook", len(src))
	}
	book := src[:codes]
	escapes := int64(binary.LittleEndian.Uint32(src[codes:]))
	src = src[codes+4:]
	if want := escapes*escapeBytes + int64(n/4) + int64(n/2) + int64(len(dst)-n); int64(len(src)) != want {
		return corrupt("%d bytes with %d escapes, want %d", len(src), escapes, want)
	}
	special, src := src[:escapes*escapeBytes], src[escapes*escapeBytes:]
	coded, _ := s.planes(n / 2)
	var pairs [256]uint16
	for b := range pairs {
		pairs[b] = uint16(book[b&(codes-1)]) | uint16(book[b>>4])<<8
	}
	out, in := coded, src[:n/4]
	for len(in) >= 4 && len(out) >= 8 {
		v := binary.LittleEndian.Uint32(in)
		binary.LittleEndian.PutUint64(out, uint64(pairs[byte(v)])|uint64(pairs[byte(v>>8)])<<16|uint64(pairs[byte(v>>16)])<<32|uint64(pairs[byte(v>>24)])<<48)
		in, out = in[4:], out[8:]
	}
	for last := -1; len(special) > 0; special = special[escapeBytes:] {
		i := int(special[0]) | int(special[1])<<8 | int(special[2])<<16
		if i <= last || i >= len(coded) {
			return corrupt("escape at %d after %d of %d", i, last, len(coded))
		}
		last, coded[i] = i, special[3]
	}
	src = src[n/4:]
	mergeBF16(dst[:n], coded, src[:n/2])
	copy(dst[n:], src[n/2:])
	return nil
}
