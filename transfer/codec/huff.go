package codec

import (
	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
)

// Blocks of a coded plane.
const (
	// mostBlock keeps the streams of a block below the 64 KiB that their lengths can say.
	mostBlock        = 1<<16 - 1
	blockHeaderBytes = 4

	blockRaw     = 0
	blockOne     = 1 // a byte, repeated
	blockHuffman = 2

	// leastHuffman is the shortest block that four streams are made of.
	leastHuffman = 12
	// jumpBytes are the lengths of the first three streams.
	jumpBytes = 6
)

// huffScratch codes planes by Huffman: the bytes are those of huff0 (zstd's literals in four streams). Codes of at most tableLog
// bits are decoded here, longer ones by huff0.
type huffScratch struct {
	counts  [8][256]uint32
	codes   codeTable
	sorter  sorter
	weights [256]byte // of the table that is written or read
	table   [512]byte // the weights, coded
	fse     fse.Scratch
	out     unpackTable
	long    huff0.Scratch // for codes over tableLog bits
}

// blockSize is that of the blocks of a plane of n bytes: as many for each half, which
// are K and V of a page and differ in scale, so that each has tables of its own.
func blockSize(n int) int {
	half := (n + 1) / 2
	each := (half + mostBlock - 1) / mostBlock
	return (half + each - 1) / max(each, 1)
}

// encode appends plane in blocks, with codes of at most most bits.
func (h *huffScratch) encode(dst, plane []byte, most int) []byte {
	size := blockSize(len(plane))
	for len(plane) > 0 {
		b := plane[:min(len(plane), size)]
		plane = plane[len(b):]
		counts := histogram(&h.counts, b)
		if counts[b[0]] == uint32(len(b)) && len(b) > 1 {
			dst = append(appendBlock(dst, blockOne, 1), b[0])
			continue
		}
		start := len(dst)
		out := h.appendHuffman(appendBlock(dst, blockHuffman, 0), b, counts, most)
		if n := len(out) - start - blockHeaderBytes; out != nil && n < len(b) {
			appendBlock(out[:start], blockHuffman, n)
			dst = out
			continue
		}
		dst = append(appendBlock(dst, blockRaw, len(b)), b...)
	}
	return dst
}

func appendBlock(dst []byte, kind byte, n int) []byte {
	return append(dst, kind, byte(n), byte(n>>8), byte(n>>16))
}

// histogram counts the bytes of b. Eight tables side by side keep runs of one byte from waiting for themselves; the result is
// the first of them.
func histogram(counts *[8][256]uint32, b []byte) *[256]uint32 {
	clear(counts[:])
	for len(b) >= 8 {
		w := (*[8]byte)(b)
		counts[0][w[0]]++
		counts[1][w[1]]++
		counts[2][w[2]]++
		counts[3][w[3]]++
		counts[4][w[4]]++
		counts[5][w[5]]++
		counts[6][w[6]]++
		counts[7][w[7]]++
		b = b[8:]
	}
	for _, e := range b {
		counts[0][e]++
	}
	for i := range counts[0] {
		counts[0][i] += counts[1][i] + counts[2][i] + counts[3][i] + counts[4][i] + counts[5][i] + counts[6][i] + counts[7][i]
	}
	return &counts[0]
}

// decode fills plane from the blocks that src begins with, and returns what is left of src.
func (h *huffScratch) decode(plane, src []byte) ([]byte, error) {
	size := blockSize(len(plane))
	for len(plane) > 0 {
		if len(src) < blockHeaderBytes {
			return nil, corrupt("%d bytes left, want a block for %d more", len(src), len(plane))
		}
		kind, n := src[0], int(src[1])|int(src[2])<<8|int(src[3])<<16
		if src = src[blockHeaderBytes:]; n > len(src) {
			return nil, corrupt("block of %d bytes, %d left", n, len(src))
		}
		b := plane[:min(len(plane), size)]
		if err := h.block(b, src[:n], kind); err != nil {
			return nil, err
		}
		plane, src = plane[len(b):], src[n:]
	}
	return src, nil
}

func (h *huffScratch) block(dst, src []byte, kind byte) error {
	switch kind {
	case blockRaw:
		if len(src) != len(dst) {
			return corrupt("raw block of %d bytes, want %d", len(src), len(dst))
		}
		copy(dst, src)
		return nil
	case blockOne:
		if len(src) != 1 {
			return corrupt("block of one byte has %d", len(src))
		}
		for i := range dst {
			dst[i] = src[0]
		}
		return nil
	case blockHuffman:
		if len(dst) < leastHuffman || len(src) >= len(dst) {
			return corrupt("Huffman block of %d bytes for %d", len(src), len(dst))
		}
		return h.decodeHuffman(dst, src)
	}
	return corrupt("block of kind %d", kind)
}

// decodeLong decodes a block whose codes are longer than tableLog bits.
func (h *huffScratch) decodeLong(dst, src []byte) error {
	s, rest, err := huff0.ReadTable(src, &h.long)
	if err != nil {
		return corrupt("table: %v", err)
	}
	out, err := s.Decoder().Decompress4X(dst[:0:len(dst)], rest)
	if err != nil || len(out) != len(dst) {
		return corrupt("block: %d of %d bytes: %v", len(out), len(dst), err)
	}
	if &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}
