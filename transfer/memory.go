package transfer

import (
	"fmt"
	"hash/crc32"
	"math"
	"sync"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// A MemoryID names a memory registered with one agent, from 1.
type MemoryID uint32

// A Desc is a run of whole pages of one block of a memory.
type Desc struct {
	Memory     MemoryID
	Offset     uint64 // bytes from the start of the memory to the first page
	Generation uint64 // of the block; opaque here, checked by Source and Sink
	Pages      uint32 // 1 or more
}

// Memory is what Register takes: where pages come from and go to.
type Memory struct {
	// PageBytes is the size of a page, 1 byte to 4 MiB. Both ends of a
	// descriptor pair must agree on it.
	PageBytes int
	// Length of the memory in bytes.
	Length int64
	// Element is what pages hold, for the choice of a codec. Default codec.Unknown: not
	// known.
	Element codec.Element
	// Source gives the pages out. Nil: nothing can be sent from this memory.
	Source Source
	// Sink takes pages in. Nil: nothing lands in this memory.
	Sink Sink
	// RemoteWrite lets peers start writes into this memory. Reads that are
	// started here may always land.
	RemoteWrite bool
}

// A Source gives pages out. It is called concurrently.
type Source interface {
	// ReadPages copies pages [first, first+len(sums)) of d into dst, whose
	// length is len(sums) pages, and their checksums into sums. token is that
	// of the transfer; pair is the index of the descriptor in it, the same at
	// both ends. Neither dst nor sums may be retained. An error fails the
	// transfer; wrap ErrStaleGeneration, ErrLeaseExpired or ErrOutOfRange where
	// one of them fits.
	ReadPages(token []byte, pair int, d Desc, first int, dst []byte, sums []uint32) error
}

// A Sink takes pages in. It is called concurrently, never for the same page of
// a transfer at the same time.
type Sink interface {
	// LandPage verifies p against sum, and only then makes it readable as page
	// page of d. p may not be retained. An error that wraps ErrChecksumMismatch
	// has the page asked for once more; every other error fails the transfer.
	LandPage(pair int, d Desc, page int, p []byte, sum uint32) error
}

// Bytes returns plain memory over b in pages of pageBytes; a last part shorter
// than a page cannot be addressed. Checksums are CRC32C seeded with the pair
// index and the page index, so that a page that lands in another's place fails.
// Generations are not checked. b stays in use until Deregister returns; the
// caller orders its own accesses to it.
func Bytes(b []byte, pageBytes int) Memory {
	p := plain{b: b, pageBytes: pageBytes}
	return Memory{PageBytes: pageBytes, Length: int64(len(b)), Source: p, Sink: p}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type plain struct {
	b         []byte
	pageBytes int
}

// plainSum is CRC32C over pair and page, big-endian 64 bits each, and p. The
// seed goes through the table by hand: crc32 lets its argument escape.
func plainSum(pair, page int, p []byte) uint32 {
	sum := ^uint32(0)
	for _, v := range [2]uint64{uint64(pair), uint64(page)} {
		for shift := 56; shift >= 0; shift -= 8 {
			sum = castagnoli[byte(sum)^byte(v>>shift)] ^ sum>>8
		}
	}
	return crc32.Update(^sum, castagnoli, p)
}

func (m plain) ReadPages(_ []byte, pair int, d Desc, first int, dst []byte, sums []uint32) error {
	copy(dst, m.b[d.Offset+uint64(first*m.pageBytes):])
	for i := range sums {
		sums[i] = plainSum(pair, first+i, dst[i*m.pageBytes:(i+1)*m.pageBytes])
	}
	return nil
}

func (m plain) LandPage(pair int, d Desc, page int, p []byte, sum uint32) error {
	if got := plainSum(pair, page, p); got != sum {
		return fmt.Errorf("page %d at offset %d: %w: computed %08x, announced %08x", page, d.Offset, ErrChecksumMismatch, got, sum)
	}
	copy(m.b[d.Offset+uint64(page*m.pageBytes):], p)
	return nil
}

// memory is a registered Memory and the number of calls into it.
type memory struct {
	Memory
	id MemoryID

	mu struct {
		sync.Mutex
		users  int
		closed bool
		quiet  chan struct{} // closed when closed and users is 0
	}
}

func newMemory(id MemoryID, m Memory) *memory {
	r := &memory{Memory: m, id: id}
	r.mu.quiet = make(chan struct{})
	return r
}

// enter admits one call into Source or Sink; leave must follow.
func (m *memory) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return false
	}
	m.mu.users++
	return true
}

func (m *memory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.users--
	if m.mu.closed && m.mu.users == 0 {
		close(m.mu.quiet)
	}
}

// close admits no more calls and waits for those that run.
func (m *memory) close() {
	m.mu.Lock()
	if !m.mu.closed {
		m.mu.closed = true
		if m.mu.users == 0 {
			close(m.mu.quiet)
		}
	}
	m.mu.Unlock()
	<-m.mu.quiet
}

func (m Memory) validate() error {
	switch {
	case m.PageBytes < 1 || m.PageBytes > wire.MaxChunkBytes:
		return &FieldError{Field: "Memory.PageBytes", Value: m.PageBytes, Allowed: "1 to 4194304", Fix: "set the size of a page in bytes"}
	case m.Length < 1:
		return &FieldError{Field: "Memory.Length", Value: m.Length, Allowed: "1 or more", Fix: "set the size of the memory in bytes"}
	case m.Source == nil && m.Sink == nil:
		return &FieldError{Field: "Memory.Source and Sink", Value: "nil", Allowed: "at least one", Fix: "set Source to send from the memory, Sink to receive into it"}
	case m.RemoteWrite && m.Sink == nil:
		return &FieldError{Field: "Memory.RemoteWrite", Value: true, Allowed: "only with a Sink", Fix: "set Sink, or leave RemoteWrite off"}
	}
	return nil
}

// inRange checks that d lies within a memory of the given shape.
func (d Desc) inRange(length int64, pageBytes int) error {
	bytes := uint64(d.Pages) * uint64(pageBytes) // below 2^24 * 2^22
	if d.Pages == 0 || d.Pages > wire.MaxPages {
		return fmt.Errorf("%d pages, allowed 1 to %d: %w", d.Pages, wire.MaxPages, ErrOutOfRange)
	}
	if d.Offset > math.MaxInt64 || uint64(length) < bytes || d.Offset > uint64(length)-bytes {
		return fmt.Errorf("%d pages of %d bytes at offset %d of memory %d, which has %d bytes: %w",
			d.Pages, pageBytes, d.Offset, d.Memory, length, ErrOutOfRange)
	}
	return nil
}

func toWire(ds []Desc) []wire.Desc {
	out := make([]wire.Desc, len(ds))
	for i, d := range ds {
		out[i] = wire.Desc{Memory: uint32(d.Memory), Pages: d.Pages, Offset: d.Offset, Generation: d.Generation}
	}
	return out
}

func appendFromWire(out []Desc, ds []wire.Desc) []Desc {
	for _, d := range ds {
		out = append(out, Desc{Memory: MemoryID(d.Memory), Pages: d.Pages, Offset: d.Offset, Generation: d.Generation})
	}
	return out
}
