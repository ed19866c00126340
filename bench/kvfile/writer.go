package kvfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	magic       = "KVPAGES\n"
	prefixBytes = len(magic) + 4 + 4
	sumBytes    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrPages is wrapped by the errors of a writer that got more or fewer pages than its header says, or one of another length.
var ErrPages = errors.New("pages do not fit the header")

// Writer writes a file's pages one after the other.
type Writer struct {
	w       io.Writer
	h       Header
	written int
	err     error // the first of writing, which ends it
}

// NewWriter writes h, with its defaults filled in, to w; w is retained. Errors: those of Validate, and of w.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	h = h.withDefaults()
	if err := h.Validate(); err != nil {
		return nil, err
	}
	enc, err := h.encode()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, prefixBytes+len(enc)+sumBytes)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, Version)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(enc)))
	b = append(b, enc...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("write header: %w", err)
	}
	return &Writer{w: w, h: h}, nil
}

// WritePage writes the next page, of the layer that the header says. page is not retained. Errors: ErrPages, those of the
// underlying writer; after one of those every call returns it.
func (w *Writer) WritePage(page []byte) error {
	switch {
	case w.err != nil:
		return w.err
	case w.written == w.h.Pages:
		return fmt.Errorf("%w: page %d of %d", ErrPages, w.written, w.h.Pages)
	case len(page) != w.h.PageBytes:
		return fmt.Errorf("%w: page %d has %d bytes, want %d", ErrPages, w.written, len(page), w.h.PageBytes)
	}
	var sum [sumBytes]byte
	binary.LittleEndian.PutUint32(sum[:], crc32.Checksum(page, castagnoli))
	for _, b := range [][]byte{sum[:], page} {
		if _, err := w.w.Write(b); err != nil {
			w.err = fmt.Errorf("write page %d: %w", w.written, err)
			return w.err
		}
	}
	w.written++
	return nil
}

// Finish says whether the file is whole: ErrPages when pages are missing, or the error of writing. Nothing is written.
func (w *Writer) Finish() error {
	if w.err == nil && w.written != w.h.Pages {
		return fmt.Errorf("%w: %d of %d are written", ErrPages, w.written, w.h.Pages)
	}
	return w.err
}
