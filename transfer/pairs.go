package transfer

import (
	"slices"

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

// chunkPages returns how many pages of descriptor pair one chunk takes.
func (p *pairs) chunkPages(pair, chunkBytes int) int {
	return min(max(chunkBytes/p.mems[pair].PageBytes, 1), wire.MaxChunkPages)
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
