package kvfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrFormat says that something is no file of KV pages, or of another version.
	ErrFormat = errors.New("no file of KV pages")
	// ErrChecksum says that bytes are not those that were written.
	ErrChecksum = errors.New("checksum does not match")
	// ErrTrailing says that something follows the last page.
	ErrTrailing = errors.New("bytes after the last page")
)

// Reader reads a file's pages one after the other.
type Reader struct {
	r    io.Reader
	h    Header
	read int
	err  error // the first, io.EOF included, which ends it
}

// NewReader reads the header; r is retained, and is best buffered. Errors: ErrFormat, ErrHeader, ErrChecksum, io.ErrUnexpectedEOF
// for a header that ends early, those of r. What it allocates is bounded by MaxHeaderBytes.
func NewReader(r io.Reader) (*Reader, error) {
	var prefix [prefixBytes]byte
	if n, err := io.ReadFull(r, prefix[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: %d bytes: %w", ErrFormat, n, io.ErrUnexpectedEOF)
		}
		return nil, fmt.Errorf("read header: %w", err)
	}
	if string(prefix[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it begins with %q, want %q; kvferry bench kv-dump records one", ErrFormat, prefix[:len(magic)], magic)
	}
	if v := binary.LittleEndian.Uint32(prefix[len(magic):]); v != Version {
		return nil, fmt.Errorf("%w: version %d, want %d; record it with this release's kvferry bench kv-dump", ErrFormat, v, Version)
	}
	n := binary.LittleEndian.Uint32(prefix[len(magic)+4:])
	if n < 2 || n > MaxHeaderBytes {
		return nil, fault("length", n, fmt.Sprintf("2 to %d bytes", MaxHeaderBytes))
	}
	b := make([]byte, int(n)+sumBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read header: %w", short(err))
	}
	sum := crc32.Update(crc32.Checksum(prefix[:], castagnoli), castagnoli, b[:n])
	if got := binary.LittleEndian.Uint32(b[n:]); got != sum {
		return nil, fmt.Errorf("%w: header has %08x, its bytes make %08x", ErrChecksum, got, sum)
	}
	h, err := decodeHeader(b[:n])
	if err != nil {
		return nil, err
	}
	return &Reader{r: r, h: h}, nil
}

// Header returns what the file says of its pages. The caller may not change PageLayers.
func (r *Reader) Header() Header { return r.h }

// ReadPage fills dst, whose length is the header's PageBytes, with the next page. It returns io.EOF after the last one, once nothing
// follows. Other errors: ErrPages for a dst of another length, ErrChecksum with dst not defined, ErrTrailing, io.ErrUnexpectedEOF for a file that
// ends early, those of the underlying reader; each but ErrPages ends reading, and every later call returns it.
func (r *Reader) ReadPage(dst []byte) error {
	if r.err == nil && len(dst) != r.h.PageBytes {
		return fmt.Errorf("%w: room of %d bytes for a page of %d", ErrPages, len(dst), r.h.PageBytes)
	}
	if r.err == nil {
		r.err = r.next(dst)
	}
	return r.err
}

func (r *Reader) next(dst []byte) error {
	var sum [sumBytes]byte
	if r.read == r.h.Pages {
		switch n, err := io.ReadFull(r.r, sum[:1]); {
		case n > 0:
			return ErrTrailing
		case errors.Is(err, io.EOF):
			return io.EOF
		default:
			return fmt.Errorf("read after the last page: %w", err)
		}
	}
	for _, b := range [][]byte{sum[:], dst} {
		if _, err := io.ReadFull(r.r, b); err != nil {
			return fmt.Errorf("read page %d of %d: %w", r.read, r.h.Pages, short(err))
		}
	}
	if got, want := binary.LittleEndian.Uint32(sum[:]), crc32.Checksum(dst, castagnoli); got != want {
		return fmt.Errorf("page %d of %d: %w: the file has %08x, its bytes make %08x", r.read, r.h.Pages, ErrChecksum, got, want)
	}
	r.read++
	return nil
}

// short makes the end of a file in its middle an unexpected one.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
