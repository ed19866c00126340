package daemon

import (
	"math/bits"
	"sync/atomic"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// layerRound is the pages of one transfer of a migration: a bit a page, layer by layer. Readers of any group size derive what
// has landed from it, so that a page costs one bit and nothing else.
type layerRound struct {
	blocks []landedBlock // in the order of the transfer's wanted blocks
	layers int
	words  int             // of a row
	rows   []atomic.Uint64 // bit b%64 of word layer*words + b/64: that page of block b is verified
	whole  []atomic.Uint64 // bit b%64 of word b/64: block b is committed
	over   bool            // guarded by the log's lock: blocks that are not whole are gone
}

func newLayerRound(ws []wanted, layers int) *layerRound {
	r := &layerRound{layers: layers, words: (len(ws) + 63) / 64, blocks: make([]landedBlock, len(ws))}
	for i, w := range ws {
		r.blocks[i] = landedBlock{key: w.key, ref: w.local, index: w.index}
	}
	r.rows, r.whole = make([]atomic.Uint64, layers*r.words), make([]atomic.Uint64, r.words)
	return r
}

// landed notes verified pages of a block.
func (r *layerRound) landed(block, layer, pages int) {
	for l := layer; l < layer+pages; l++ {
		r.rows[l*r.words+block/64].Or(1 << (block % 64))
	}
}

// committed notes that a block is in the index.
func (r *layerRound) committed(block int) { r.whole[block/64].Or(1 << (block % 64)) }

// group is the blocks of word w that have all pages of layers [first, first+n), and are not gone. The log's lock is held.
func (r *layerRound) group(first, n, w int) uint64 {
	out := ^uint64(0)
	if r.over {
		out = r.whole[w].Load()
	}
	for l := first; l < first+n && out != 0; l++ {
		out &= r.rows[l*r.words+w].Load()
	}
	return out
}

// layerPlace is what a reader has been told of the layers in a log, by groups of size layers.
type layerPlace struct {
	size  int
	given []uint64 // blocks named to the reader, a bit each: word group*words + b/64, round after round
	left  []int    // a round: bits of given that may still come

	round, group, at int // where a sweep goes on: the round begins at word at of given
}

// begin starts a sweep.
func (p *layerPlace) begin() {
	if p != nil {
		p.round, p.group, p.at = 0, 0, 0
	}
}

// newLayerPlace returns a place at the beginning, nil for size 0.
func newLayerPlace(size int) *layerPlace {
	if size == 0 {
		return nil
	}
	return &layerPlace{size: size}
}

// beginRound adds a transfer.
func (l *landedLog) beginRound(r *layerRound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.rounds = append(l.mu.rounds, r)
}

// endRound says that r's transfer is quiet: what is not committed is not going to be, and is not named any more.
func (l *landedLog) endRound(r *layerRound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.over = true
}

// layersSince returns one group's blocks that landed and that p has not given out, at most limit, and notes them in p. nil
// ends the sweep, also for a nil p. What lands during a sweep may be left for the next one.
func (l *landedLog) layersSince(p *layerPlace, limit int) *pb.LandedLayers {
	if p == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; p.round < len(l.mu.rounds); p.round, p.group = p.round+1, 0 {
		r := l.mu.rounds[p.round]
		groups := (r.layers + p.size - 1) / p.size
		if p.round == len(p.left) {
			p.left = append(p.left, groups*len(r.blocks))
			p.given = append(p.given, make([]uint64, groups*r.words)...)
		}
		for ; p.group < groups && p.left[p.round] > 0; p.group++ {
			first := p.group * p.size
			out := &pb.LandedLayers{MigrationId: l.migration, Tenant: l.tenant, FirstLayer: uint32(first), Layers: uint32(min(p.size, r.layers-first))}
			n := r.take(out, p.given[p.at+p.group*r.words:p.at+(p.group+1)*r.words], limit)
			p.left[p.round] -= n
			if n == limit { // there may be more
				return out
			}
			if n > 0 {
				p.group++
				return out
			}
		}
		p.at += groups * r.words
	}
	return nil
}

// take fills out with the blocks of its group that are not given yet, notes them as given and counts them.
func (r *layerRound) take(out *pb.LandedLayers, given []uint64, limit int) (n int) {
	for w := range given {
		for fresh := r.group(int(out.GetFirstLayer()), int(out.GetLayers()), w) &^ given[w]; fresh != 0; fresh &= fresh - 1 {
			bit := bits.TrailingZeros64(fresh)
			if w*64+bit >= len(r.blocks) {
				break
			}
			if n == limit {
				return n
			}
			b := r.blocks[w*64+bit]
			given[w] |= 1 << bit
			out.Keys, out.Slots, out.Blocks = append(out.GetKeys(), []byte(b.key)), append(out.GetSlots(), refToProto(b.ref)), append(out.GetBlocks(), uint32(b.index))
			n++
		}
	}
	return n
}
