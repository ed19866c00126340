package codec

import (
	"bytes"
	"testing"
)

// TestOddBytesWithTheLongestCodes has streams end in up to seven bytes, which are packed before the eights, that all have codes of the longest
// kind: 77 bits, more than a container holds.
func TestOddBytesWithTheLongestCodes(t *testing.T) {
	var halving []byte // counts that halve: codes of 1, 2, 3... bits
	for v, n := 0, 1<<14; n > 0; v, n = v+1, n/2 {
		halving = append(halving, bytes.Repeat([]byte{byte(v)}, n)...)
	}
	rare := []byte{11, 12, 13, 11, 12, 13, 11}
	quarter := len(halving) / 4
	for _, id := range []ID{Huff, Huff16, Huff8} {
		for tail := range 8 {
			var block []byte
			for i := range 4 {
				end := rare // of one stream, so that they stay rare
				if i != 2 {
					end = halving
				}
				block = append(append(block, halving[i*quarter:][:quarter/8*8]...), end[:tail]...)
			}
			page := append(block[:len(block):len(block)], block...) // a block is one half
			if id != Huff8 {
				plane := page
				page = make([]byte, 2*len(plane))
				for i, b := range plane {
					page[2*i+1] = b
				}
			}
			var s Scratch
			if n := roundTrip(t, id, page, &s); n == 0 {
				t.Errorf("%v, %d bytes behind the eights: not coded", id, tail)
			}
			if id == Huff8 && tail == len(rare) {
				if longest := s.huff.codes.lengths(histogram(&s.huff.counts, block), longestCode, &s.huff.sorter); longest != longestCode || s.huff.codes[rare[0]] != longestCode || s.huff.codes[rare[2]] != longestCode {
					t.Errorf("the longest code has %d bits, that of the rarest bytes %d", longest, s.huff.codes[rare[0]])
				}
			}
		}
	}
}
