package transfer

import (
	"fmt"
	"io"
	"sync"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// pageReader reads the pages of one chunk. close is owed.
type pageReader struct {
	coded bool
	left  int // bytes of the chunk that are still to come
	by    *processors
	codes *sync.Pool // of *codedPage
	page  *codedPage // nil: none yet
}

// codedPage is a page before it is decoded, with its header.
type codedPage struct {
	header  [wire.PageHeaderBytes]byte
	b       []byte
	scratch codec.Scratch
}

// header is the size of what precedes each page.
func (r *pageReader) header() int {
	if r.coded {
		return wire.PageHeaderBytes
	}
	return 0
}

// next reads the next page into page, whose length is that of a page. The result
// has no sum. Errors: those of the stream, and of a breach of the protocol, which
// wrap ErrProtocol; a page that does not decode is none.
func (r *pageReader) next(stream io.Reader, page []byte) (arrived, error) {
	if !r.coded {
		r.left -= len(page)
		_, err := io.ReadFull(stream, page)
		return arrived{b: page, wire: len(page)}, err
	}
	if r.page == nil {
		r.page = r.codes.Get().(*codedPage)
	}
	c := r.page
	if _, err := io.ReadFull(stream, c.header[:]); err != nil {
		return arrived{}, err
	}
	h, err := wire.DecodePageHeader(c.header[:], len(page))
	if err != nil {
		return arrived{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	n, id := int(h.Length), codec.ID(h.Codec)
	if r.left -= wire.PageHeaderBytes + n; r.left < 0 {
		return arrived{}, fmt.Errorf("page of %d coded bytes in a chunk that has %d left: %w", n, r.left+n, ErrProtocol)
	}
	if id == codec.Raw {
		_, err := io.ReadFull(stream, page)
		return arrived{b: page, wire: n}, err
	}
	if !id.Valid() {
		return arrived{}, fmt.Errorf("page with codec %d, which was not offered: %w", h.Codec, ErrProtocol)
	}
	if cap(c.b) < n {
		c.b = make([]byte, len(page)) // no page is longer than without a codec
	}
	c.b = c.b[:n]
	if _, err := io.ReadFull(stream, c.b); err != nil {
		return arrived{}, err
	}
	a := arrived{b: page, wire: n, codec: id}
	if a.took, err = r.by.decode(id, page, c); err != nil {
		a.err = fmt.Errorf("decode %v: %w: %w", id, err, ErrChecksumMismatch)
	}
	return a, nil
}

func (r *pageReader) close() {
	if r.page != nil {
		r.codes.Put(r.page)
	}
}
