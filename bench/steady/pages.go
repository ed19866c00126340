package steady

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"

	"github.com/kvferry/kvferry/bench/kvgen"
	"github.com/kvferry/kvferry/transfer"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const stampBytes = 8

// pages is a memory of any length that holds nothing: a page is its number, then a template. It is the source of one agent and
// the sink of the other.
type pages struct {
	template []byte // a page
	landed   atomic.Int64
}

// newPages makes pages of noise, or of BF16 values with the entropy of a cache's: K's half, then V's, of heads of 128 channels.
func newPages(pageBytes int, values bool) (*pages, error) {
	p := &pages{template: make([]byte, pageBytes)}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(p.template) // never fails
	const heads, dim = 4, 128
	tokens := pageBytes / (2 * heads * dim * 2)
	if !values || tokens == 0 {
		return p, nil
	}
	half := tokens * heads * dim * 2
	for _, kind := range []kvgen.Kind{kvgen.K, kvgen.V} {
		c := kvgen.Config{Kind: kind, Tokens: tokens, Heads: heads, HeadDim: dim, Layer: 10, Layers: 32}
		if err := kvgen.Generate(p.template[int(kind)*half:(int(kind)+1)*half], c); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// number is a page's place in the memory.
func (p *pages) number(d transfer.Desc, page int) uint64 {
	return d.Offset/uint64(len(p.template)) + uint64(page)
}

// ReadPages makes pages.
func (p *pages) ReadPages(_ []byte, _ int, d transfer.Desc, first int, dst []byte, sums []uint32) error {
	n := len(p.template)
	for i := range sums {
		b := dst[i*n : (i+1)*n]
		copy(b, p.template)
		binary.BigEndian.PutUint64(b, p.number(d, first+i))
		sums[i] = crc32.Checksum(b, castagnoli)
	}
	return nil
}

// LandPage verifies a page: its checksum, and every byte.
func (p *pages) LandPage(_ int, d transfer.Desc, page int, b []byte, sum uint32) error {
	if got := crc32.Checksum(b, castagnoli); got != sum {
		return fmt.Errorf("page %d: %w: computed %08x, announced %08x", page, transfer.ErrChecksumMismatch, got, sum)
	}
	if len(b) != len(p.template) || binary.BigEndian.Uint64(b) != p.number(d, page) || !bytes.Equal(b[stampBytes:], p.template[stampBytes:]) {
		return fmt.Errorf("page %d of the block at %d: its bytes are not those that were sent", page, d.Offset)
	}
	p.landed.Add(int64(len(b)))
	return nil
}
