package codec

import (
	"errors"

	"github.com/klauspost/compress/huff0"
)

// Blocks of a coded plane.
const (
	// mostBlock keeps the streams of a block below the 64 KiB that huff0 can say.
	mostBlock        = 1<<16 - 1
	blockHeaderBytes = 4

	blockRaw     = 0
	blockOne     = 1 // a byte, repeated
	blockHuffman = 2
	// tableLog bounds codes to 8 bits: the decoder then takes five symbols a look, and exponents lose nothing by it.
	tableLog = 8
)

// huffScratch codes planes by Huffman.
type huffScratch struct {
	enc, dec huff0.Scratch
}

// blockSize is that of the blocks of a plane of n bytes: as many for each half, which
// are K and V of a page and differ in scale, so that each has tables of its own.
func blockSize(n int) int {
	half := (n + 1) / 2
	each := (half + mostBlock - 1) / mostBlock
	return (half + each - 1) / max(each, 1)
}

// encode appends plane in blocks.
func (h *huffScratch) encode(dst, plane []byte) []byte {
	size := blockSize(len(plane))
	h.enc.Reuse, h.enc.TableLog = huff0.ReusePolicyNone, tableLog
	for len(plane) > 0 {
		b := plane[:min(len(plane), size)]
		plane = plane[len(b):]
		out, _, err := huff0.Compress4X(b, &h.enc)
		switch {
		case errors.Is(err, huff0.ErrUseRLE):
			dst = append(appendBlock(dst, blockOne, 1), b[0])
		case err != nil || len(out) >= len(b):
			dst = append(appendBlock(dst, blockRaw, len(b)), b...)
		default:
			dst = append(appendBlock(dst, blockHuffman, len(out)), out...)
		}
	}
	return dst
}

func appendBlock(dst []byte, kind byte, n int) []byte {
	return append(dst, kind, byte(n), byte(n>>8), byte(n>>16))
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
		s, rest, err := huff0.ReadTable(src, &h.dec)
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
	return corrupt("block of kind %d", kind)
}
