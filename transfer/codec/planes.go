package codec

import (
	"encoding/binary"
	"unsafe"
)

// group is what is split at a time: 8 elements of 16 bits. What a page has beyond whole groups is its tail.
const group = 16

// Lanes of four 16-bit elements in a word.
const (
	lowBytes  = 0x00ff00ff00ff00ff
	signBits  = 0x0080008000800080
	mantissas = 0x007f007f007f007f
	highSigns = signBits << 8
)

// splitBF16 puts the exponents of src into coded, and sign and mantissa of each element into a byte of other. src is whole
// groups, each plane half as long.
func splitBF16(coded, other, src []byte) {
	n, done := planeWords(src, coded, other), 0
	if hasAVX2 && n >= 4 {
		done = n &^ 3
		splitBF16AVX2(&coded[0], &other[0], &src[0], n/4)
	}
	splitBF16Words(coded, other, src, done, n)
}

// splitBF16Words does so with the groups from first to end.
func splitBF16Words(coded, other, src []byte, first, end int) {
	for i := first; i < end; i++ {
		in, c, o := word16(src, i), word8(coded, i), word8(other, i)
		a, b := binary.LittleEndian.Uint64(in[:8]), binary.LittleEndian.Uint64(in[8:])
		binary.LittleEndian.PutUint64(c[:], a>>7&lowBytes|b>>7&lowBytes<<8)
		binary.LittleEndian.PutUint64(o[:], (a>>8&signBits|a&mantissas)|(b&highSigns|b&mantissas<<8))
	}
}

// mergeBF16 undoes splitBF16.
func mergeBF16(dst, coded, other []byte) {
	n, done := planeWords(dst, coded, other), 0
	if hasAVX2 && n >= 4 {
		done = n &^ 3
		mergeBF16AVX2(&dst[0], &coded[0], &other[0], n/4)
	}
	mergeBF16Words(dst, coded, other, done, n)
}

// mergeBF16Words does so with the groups from first to end.
func mergeBF16Words(dst, coded, other []byte, first, end int) {
	for i := first; i < end; i++ {
		out, c, o := word16(dst, i), word8(coded, i), word8(other, i)
		e, m := binary.LittleEndian.Uint64(c[:]), binary.LittleEndian.Uint64(o[:])
		binary.LittleEndian.PutUint64(out[:8], e&lowBytes<<7|m&signBits<<8|m&mantissas)
		binary.LittleEndian.PutUint64(out[8:], e>>1&(lowBytes<<7)|m&highSigns|m>>8&mantissas)
	}
}

// splitFP16 puts the high bytes of elements into coded and the low ones into other.
func splitFP16(coded, other, src []byte) {
	n, done := planeWords(src, coded, other), 0
	if hasAVX2 && n >= 4 {
		done = n &^ 3
		splitFP16AVX2(&coded[0], &other[0], &src[0], n/4)
	}
	splitFP16Words(coded, other, src, done, n)
}

// splitFP16Words does so with the groups from first to end.
func splitFP16Words(coded, other, src []byte, first, end int) {
	for i := first; i < end; i++ {
		in, c, o := word16(src, i), word8(coded, i), word8(other, i)
		a, b := binary.LittleEndian.Uint64(in[:8]), binary.LittleEndian.Uint64(in[8:])
		binary.LittleEndian.PutUint64(c[:], a>>8&lowBytes|b&^lowBytes)
		binary.LittleEndian.PutUint64(o[:], a&lowBytes|b&lowBytes<<8)
	}
}

// mergeFP16 undoes splitFP16.
func mergeFP16(dst, coded, other []byte) {
	n, done := planeWords(dst, coded, other), 0
	if hasAVX2 && n >= 4 {
		done = n &^ 3
		mergeFP16AVX2(&dst[0], &coded[0], &other[0], n/4)
	}
	mergeFP16Words(dst, coded, other, done, n)
}

// mergeFP16Words does so with the groups from first to end.
func mergeFP16Words(dst, coded, other []byte, first, end int) {
	for i := first; i < end; i++ {
		out, c, o := word16(dst, i), word8(coded, i), word8(other, i)
		h, l := binary.LittleEndian.Uint64(c[:]), binary.LittleEndian.Uint64(o[:])
		binary.LittleEndian.PutUint64(out[:8], h&lowBytes<<8|l&lowBytes)
		binary.LittleEndian.PutUint64(out[8:], h&^lowBytes|l>>8&lowBytes)
	}
}

// planeWords returns how many groups page and planes all have.
func planeWords(page, a, b []byte) int {
	return min(len(page)/group, len(a)/(group/2), len(b)/(group/2))
}

// word16 and word8 return what stands at an index below planeWords, which they do not check: that is half of the time of the loops.
func word16(b []byte, i int) *[16]byte {
	return (*[16]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), 16*i))
}

func word8(b []byte, i int) *[8]byte {
	return (*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), 8*i))
}

// encodePlanes appends the coded plane, with codes of at most most bits, the other one and the tail.
func (s *Scratch) encodePlanes(dst, src []byte, split func(coded, other, src []byte), most int) []byte {
	n := len(src) / group * group
	coded, _ := s.planes(n / 2)
	other := s.other[:n/2]
	split(coded, other, src[:n])
	dst = s.huff.encode(dst, coded, most)
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
