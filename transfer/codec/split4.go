package codec

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// codes is the size of split4's codebook.
const (
	codes       = 16
	escapeBytes = 4
)

// encodeSplit4 appends what split4 makes of src. It stops early when that becomes longer than src.
func (s *Scratch) encodeSplit4(dst, src []byte) []byte {
	n := len(src) / group * group
	coded, _ := s.planes(n / 2)
	other := s.other[:n/2]
	splitBF16(coded, other, src[:n])
	book, code := codebook(coded)
	dst = append(dst, book[:]...)
	at := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	escapes, most := 0, len(src)/escapeBytes
	for i, e := range coded {
		if code[e] < codes {
			continue
		}
		if escapes++; escapes > most {
			return append(dst, src...) // as long as it must not be
		}
		dst = append(dst, byte(i), byte(i>>8), byte(i>>16), e)
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(escapes))
	var pair [8]byte
	for len(coded) >= len(pair)*2 {
		c := coded[:16]
		for j := range pair {
			pair[j] = code[c[2*j]]&(codes-1) | code[c[2*j+1]]<<4
		}
		dst = append(dst, pair[:]...)
		coded = coded[16:]
	}
	for ; len(coded) >= 2; coded = coded[2:] {
		dst = append(dst, code[coded[0]]&(codes-1)|code[coded[1]]<<4)
	}
	dst = append(dst, other...)
	return append(dst, src[n:]...)
}

// codebook returns the sixteen commonest bytes of a plane, the lower one first among equals, and the code of each byte;
// codes: it has none.
func codebook(plane []byte) (book [codes]byte, code [256]byte) {
	var counts [4][256]uint32 // side by side, so that runs of one byte do not wait for themselves
	for len(plane) >= 4 {
		counts[0][plane[0]]++
		counts[1][plane[1]]++
		counts[2][plane[2]]++
		counts[3][plane[3]]++
		plane = plane[4:]
	}
	for _, e := range plane {
		counts[0][e]++
	}
	var order [256]int
	for e := range order {
		order[e] = e
		counts[0][e] += counts[1][e] + counts[2][e] + counts[3][e]
	}
	slices.SortFunc(order[:], func(a, b int) int { return cmp.Or(cmp.Compare(counts[0][b], counts[0][a]), cmp.Compare(a, b)) })
	for e := range code {
		code[e] = codes
	}
	for c := range book {
		book[c] = byte(order[c])
		code[order[c]] = byte(c)
	}
	return book, code
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
