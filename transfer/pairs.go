package transfer

import (
	"slices"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// pairs is one side of a transfer's descriptor list. Its pages are numbered
// through, over all descriptors in order.
type pairs struct {
	descs []Desc
	mems  []*memory
	base  []int // base[i] is the number of the first page of descs[i]; one more at the end
}

func newPairs(descs []Desc, mems []*memory) pairs {
	p := pairs{descs: descs, mems: mems, base: make([]int, len(descs)+1)}
	for i, d := range descs {
		p.base[i+1] = p.base[i] + int(d.Pages)
	}
	return p
}

func (p *pairs) pages() int { return p.base[len(p.descs)] }

func (p *pairs) bytes() int64 { return p.bytesOf(p.pages()) }

// bytesOf returns the size of the first pages pages.
func (p *pairs) bytesOf(pages int) int64 {
	var n int64
	for i := 0; i < len(p.descs) && p.base[i] < pages; i++ {
		n += int64(min(pages, p.base[i+1])-p.base[i]) * int64(p.mems[i].PageBytes)
	}
	return n
}

// locate returns the descriptor and the page in it of page number n.
func (p *pairs) locate(n int) (pair, page int) {
	i, found := slices.BinarySearch(p.base, n)
	if !found {
		i--
	}
	return i, n - p.base[i]
}

const (
	// chunksEach is how many chunks each stripe should have left to take when a
	// descriptor's turn comes: fewer are too coarse to share them out evenly.
	chunksEach = 4
	// minTailChunk is the least that chunks are made smaller to for that, in bytes:
	// a stream costs about as much as 10 kB.
	minTailChunk = 128 << 10
)

// chunkSizes returns how many pages of each descriptor one chunk takes: chunkBytes
// as long as much is left, less towards the end of the list.
func (p *pairs) chunkSizes(chunkBytes, stripes int) []int {
	out := make([]int, len(p.descs))
	left := p.bytes()
	for i, d := range p.descs {
		page := int64(p.mems[i].PageBytes)
		size := min(max(left/int64(chunksEach*max(stripes, 1)), minTailChunk), int64(chunkBytes))
		out[i] = int(min(max(size/page, 1), wire.MaxChunkPages))
		left -= int64(d.Pages) * page
	}
	return out
}

// flowKey names a transfer on a link: ids are issued by both ends.
type flowKey struct {
	own bool // issued here
	id  uint64
}

func (k flowKey) flags() uint8 {
	if k.own {
		return wire.FlagOwn
	}
	return 0
}

// element is what all pages hold; ok: there is one such.
func (p *pairs) element() (e codec.Element, ok bool) {
	for i, m := range p.mems {
		if i > 0 && m.Element != e {
			return codec.Unknown, false
		}
		e = m.Element
	}
	return e, int(e) < Elements
}
