package codec

import "encoding/binary"

// group is what is split at a time: 8 elements of 16 bits. What a page has beyond whole groups is its tail.
const group = 16

// Lanes of four 16-bit elements in a word.
const (
	lowBytes  = 0x00ff00ff00ff00ff
	signBits  = 0x0080008000800080
	mantissas = 0x007f007f007f007f
)

// splitBF16 puts the exponents of src into coded, and sign and mantissa of each element into a byte of other. src is whole
// groups, each plane half as long.
func splitBF16(coded, other, src []byte) {
	for len(src) >= group && len(coded) >= group/2 && len(other) >= group/2 {
		a, b := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		binary.LittleEndian.PutUint64(coded, a>>7&lowBytes|b>>7&lowBytes<<8)
		binary.LittleEndian.PutUint64(other, a>>8&signBits|a&mantissas|(b>>8&signBits|b&mantissas)<<8)
		src, coded, other = src[group:], coded[group/2:], other[group/2:]
	}
}

// mergeBF16 undoes splitBF16.
func mergeBF16(dst, coded, other []byte) {
	for len(dst) >= group && len(coded) >= group/2 && len(other) >= group/2 {
		e, m := binary.LittleEndian.Uint64(coded), binary.LittleEndian.Uint64(other)
		binary.LittleEndian.PutUint64(dst, e&lowBytes<<7|m&signBits<<8|m&mantissas)
		e, m = e>>8, m>>8
		binary.LittleEndian.PutUint64(dst[8:], e&lowBytes<<7|m&signBits<<8|m&mantissas)
		dst, coded, other = dst[group:], coded[group/2:], other[group/2:]
	}
}

// splitFP16 puts the high bytes of elements into coded and the low ones into other.
func splitFP16(coded, other, src []byte) {
	for len(src) >= group && len(coded) >= group/2 && len(other) >= group/2 {
		a, b := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		binary.LittleEndian.PutUint64(coded, a>>8&lowBytes|b&^lowBytes)
		binary.LittleEndian.PutUint64(other, a&lowBytes|b&lowBytes<<8)
		src, coded, other = src[group:], coded[group/2:], other[group/2:]
	}
}

// mergeFP16 undoes splitFP16.
func mergeFP16(dst, coded, other []byte) {
	for len(dst) >= group && len(coded) >= group/2 && len(other) >= group/2 {
		h, l := binary.LittleEndian.Uint64(coded), binary.LittleEndian.Uint64(other)
		binary.LittleEndian.PutUint64(dst, h&lowBytes<<8|l&lowBytes)
		binary.LittleEndian.PutUint64(dst[8:], h&^lowBytes|l>>8&lowBytes)
		dst, coded, other = dst[group:], coded[group/2:], other[group/2:]
	}
}

// encodePlanes appends the coded plane, the other one and the tail.
func (s *Scratch) encodePlanes(dst, src []byte, split func(coded, other, src []byte)) []byte {
	n := len(src) / group * group
	coded, _ := s.planes(n / 2)
	other := s.other[:n/2]
	split(coded, other, src[:n])
	dst = s.huff.encode(dst, coded)
	dst = append(dst, other...)
	return append(dst, src[n:]...)
}

func (s *Scratch) decodePlanes(dst, src []byte, merge func(dst, coded, other []byte)) error {
	n := len(dst) / group * group
	coded, _ := s.planes(n / 2)
	src, err := s.huff.decode(coded, src)
	if err != nil {
		return err
	}
	if len(src) != n/2+len(dst)-n {
		return corrupt("%d bytes of the other plane and the tail, want %d", len(src), n/2+len(dst)-n)
	}
	merge(dst[:n], coded, src[:n/2])
	copy(dst[n:], src[n/2:])
	return nil
}
