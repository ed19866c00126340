package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	// ErrIncompressible says that a page would not become shorter.
	ErrIncompressible = errors.New("page does not become shorter")
	// ErrCorrupt says that bytes are not what Encode made of a page of that length.
	ErrCorrupt = errors.New("corrupt coded page")
)

const (
	version     = 1
	headerBytes = 1 + 4
	// MaxPageBytes bounds a page.
	MaxPageBytes = 4 << 20
)

// MaxEncoded is a capacity with which Encode of a page of n bytes does not allocate.
func MaxEncoded(n int) int { return n + n/8 + 256 }

// Scratch holds what codecs need besides their arguments. Its zero value is ready. It grows to what the largest page
// needs, after which nothing is allocated. It may not be used concurrently.
type Scratch struct {
	plane []byte // coded one
	other []byte
	huff  huffScratch
	zstd  zstdScratch
}

// planes returns two slices of n bytes.
func (s *Scratch) planes(n int) (coded, other []byte) {
	if cap(s.plane) < n {
		s.plane, s.other = make([]byte, n), make([]byte, n)
	}
	return s.plane[:n], s.other[:n]
}

// Encode appends the coded form of the page src to dst, whose bytes up to its length it does not change. Neither is retained.
// Errors: ErrIncompressible, with dst as it was, when that would not be shorter than src, and for Raw; an error for what is no codec
// and for a page over MaxPageBytes.
func Encode(id ID, dst, src []byte, s *Scratch) ([]byte, error) {
	if len(src) > MaxPageBytes {
		return dst, fmt.Errorf("page of %d bytes, at most %d", len(src), MaxPageBytes)
	}
	out := append(dst, version)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(src)))
	switch id {
	case Split4:
		out = s.encodeSplit4(out, src)
	case Huff:
		out = s.encodePlanes(out, src, splitBF16, tableLog)
	case Huff16:
		out = s.encodePlanes(out, src, splitFP16, longestCode)
	case Huff8:
		plane, _ := s.planes(len(src))
		copy(plane, src) // whoever else may write to src
		out = s.huff.encode(out, plane, longestCode)
	case Zstd:
		var err error
		if out, err = s.zstd.encode(out, src); err != nil {
			return dst, err
		}
	case Raw:
		return dst, ErrIncompressible
	default:
		return dst, fmt.Errorf("encode with %v: no such codec", id)
	}
	if len(out)-len(dst) >= len(src) {
		return dst, ErrIncompressible
	}
	return out, nil
}

// Decode fills dst, whose length is that of the page, from src, the whole of what Encode appended. Neither is retained.
// Errors wrap ErrCorrupt, and dst is then not defined. It allocates no more than the scratch grows by, which dst's length bounds, and as
// much again for some corrupt frames of Zstd.
func Decode(id ID, dst, src []byte, s *Scratch) error {
	if len(src) < headerBytes || len(dst) > MaxPageBytes {
		return corrupt("%d bytes for a page of %d", len(src), len(dst))
	}
	if src[0] != version {
		return corrupt("version %d, want %d", src[0], version)
	}
	if n := binary.LittleEndian.Uint32(src[1:]); int64(n) != int64(len(dst)) {
		return corrupt("a page of %d bytes, want %d", n, len(dst))
	}
	if len(src) >= len(dst) {
		return corrupt("%d bytes for a page of %d", len(src), len(dst))
	}
	body := src[headerBytes:]
	switch id {
	case Split4:
		return s.decodeSplit4(dst, body)
	case Huff:
		return s.decodePlanes(dst, body, mergeBF16)
	case Huff16:
		return s.decodePlanes(dst, body, mergeFP16)
	case Huff8:
		rest, err := s.huff.decode(dst, body)
		if err == nil && len(rest) != 0 {
			err = corrupt("%d bytes left over", len(rest))
		}
		return err
	case Zstd:
		return s.zstd.decode(dst, body)
	case Raw:
	}
	return corrupt("%v is not a codec of coded pages", id)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
