package compare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync/atomic"

	"github.com/kvferry/kvferry/bench/kvgen"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// memory is the pages of one end, in chunks of whole pages.
type memory struct {
	b     []byte
	page  int
	begun []atomic.Bool // destination: a page of this transfer is landing, or has
	left  atomic.Int64  // destination: pages of this transfer that have not landed
	all   chan struct{} // destination: closed when left is 0
}

func newMemory(bytes int64, page int) *memory {
	m := &memory{b: make([]byte, bytes), page: page, begun: make([]atomic.Bool, bytes/int64(page))}
	m.reset()
	return m
}

// reset forgets what landed. No transfer runs.
func (m *memory) reset() {
	clear(m.b)
	for i := range m.begun {
		m.begun[i].Store(false)
	}
	m.left.Store(int64(len(m.begun)))
	m.all = make(chan struct{})
}

// fill writes seeded bytes: BF16 values as KV cache has them (kv), or such that do not compress. No two pages are alike.
func (m *memory) fill(seed uint64, kv bool) error {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	random := rand.NewChaCha8(key)
	if !kv {
		_, _ = random.Read(m.b) // never fails
		return nil
	}
	// Making values takes long, and mantissas are as good as random: so 8 MiB are made, and every page has its own mantissas.
	made := m.b[:min(len(m.b), kvBytes/m.page*m.page)]
	for i := range len(made) / m.page {
		half := m.page / 2
		c := kvgen.Config{Tokens: half / 256, Heads: 1, HeadDim: 128, Layer: i % kvLayers, Layers: kvLayers, First: i / kvLayers * half / 256, Seed: seed}
		for k, part := range [][]byte{made[i*m.page:][:half], made[i*m.page+half:][:half]} {
			c.Kind = kvgen.Kind(k)
			if err := kvgen.Generate(part, c); err != nil {
				return err
			}
		}
	}
	for at := len(made); at < len(m.b); at += m.page {
		p := m.b[at:][:m.page]
		copy(p, made[at%len(made):])
		for i := 0; i < len(p); i += 8 { // the seven low bits of each value
			binary.LittleEndian.PutUint64(p[i:], binary.LittleEndian.Uint64(p[i:])^random.Uint64()&0x007f_007f_007f_007f)
		}
	}
	return nil
}

const (
	kvBytes  = 8 << 20
	kvLayers = 32
)

// landed is bytes of pages that have.
func (m *memory) landed() int64 { return int64(len(m.b)) - m.left.Load()*int64(m.page) }

// digest is a checksum over everything.
func (m *memory) digest() uint32 { return crc32.Checksum(m.b, castagnoli) }

func (m *memory) chunks() int        { return len(m.b) / chunkBytes }
func (m *memory) pagesPerChunk() int { return chunkBytes / m.page }

// chunk is the bytes of a chunk.
func (m *memory) chunk(i int) []byte { return m.b[i*chunkBytes : (i+1)*chunkBytes] }

// pageSum is CRC32C over the page's number, so that a page in another's place does not verify, and its bytes.
func pageSum(page int, p []byte) uint32 {
	sum := ^uint32(0)
	for shift := 56; shift >= 0; shift -= 8 {
		sum = castagnoli[byte(sum)^byte(uint64(page)>>shift)] ^ sum>>8
	}
	return crc32.Update(^sum, castagnoli, p)
}

// land verifies a page in its buffer and puts it in its place.
func (m *memory) land(page int, p []byte, sum uint32) error {
	if page < 0 || page >= len(m.begun) {
		return fmt.Errorf("page %d of %d: out of range", page, len(m.begun))
	}
	if got := pageSum(page, p); got != sum {
		return fmt.Errorf("page %d: checksum %08x, announced %08x", page, got, sum)
	}
	if m.begun[page].Swap(true) {
		return fmt.Errorf("page %d arrived twice", page)
	}
	copy(m.b[page*m.page:], p)
	if m.left.Add(-1) == 0 {
		close(m.all)
	}
	return nil
}

// A frame is a chunk with its checksums: the chunk's number and a checksum a page, 32 bits each, big-endian; then the pages.
func (m *memory) frameHead() int { return 4 + 4*m.pagesPerChunk() }

// putHead writes the head of a chunk's frame into b, of frameHead bytes.
func (m *memory) putHead(b []byte, chunk int) {
	binary.BigEndian.PutUint32(b, uint32(chunk))
	per, data := m.pagesPerChunk(), m.chunk(chunk)
	for i := range per {
		binary.BigEndian.PutUint32(b[4+4*i:], pageSum(chunk*per+i, data[i*m.page:(i+1)*m.page]))
	}
}

// writeFrame writes a chunk's frame; head is a buffer of frameHead bytes.
func (m *memory) writeFrame(w io.Writer, chunk int, head []byte) error {
	m.putHead(head, chunk)
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(m.chunk(chunk))
	return err
}

// frameReader lands the frames of one stream, with buffers of its own.
type frameReader struct {
	m          *memory
	head, page []byte
}

func newFrameReader(m *memory) *frameReader {
	return &frameReader{m: m, head: make([]byte, m.frameHead()), page: make([]byte, m.page)}
}

// next lands one frame. io.EOF: the stream ended between two.
func (f *frameReader) next(r io.Reader) error {
	if _, err := io.ReadFull(r, f.head); err != nil {
		return err
	}
	chunk, per := int(binary.BigEndian.Uint32(f.head)), f.m.pagesPerChunk()
	for i := range per {
		if _, err := io.ReadFull(r, f.page); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("chunk %d: %w", chunk, err)
		}
		if err := f.m.land(chunk*per+i, f.page, binary.BigEndian.Uint32(f.head[4+4*i:])); err != nil {
			return err
		}
	}
	return nil
}
