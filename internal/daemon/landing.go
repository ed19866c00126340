package daemon

import (
	"fmt"
	"sync/atomic"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/wire"
)

// pageOrder says how a transfer's descriptors stand for blocks: whole blocks one after the other, or one group of layers of
// every block, then the next group.
type pageOrder struct {
	blocks, layers int
	size           int // layers a descriptor, but for the last group
}

func (o pageOrder) groups() int { return (o.layers + o.size - 1) / o.size }

// pairs is the number of descriptors.
func (o pageOrder) pairs() int { return o.blocks * o.groups() }

// pair is the block of a descriptor, its first layer and the number of them.
func (o pageOrder) pair(i int) (block, first, layers int) {
	first = i / o.blocks * o.size
	return i % o.blocks, first, min(o.size, o.layers-first)
}

// pageOrder is the order that the caller asked for, for n blocks. An error: the list would be too long.
func (m *migration) pageOrder(n int) (pageOrder, error) {
	layers := m.drive.engine.layout.PagesPerBlock()
	o := pageOrder{blocks: n, layers: layers, size: layers}
	if m.demand.groupMajor {
		o.size = m.demand.landedLayers
	}
	switch {
	case n > wire.MaxDescs:
		return o, failf(ReasonInvalid, "migrate a part of it with keys, or prefill it", "%d blocks are missing; a fetch brings at most %d", n, wire.MaxDescs)
	case o.pairs() > wire.MaxDescs:
		least := (layers + wire.MaxDescs/n - 1) / (wire.MaxDescs / n)
		f := invalid("landed_layers", o.size, fmt.Sprintf("at least %d with order LAYER_GROUP_MAJOR for %d missing blocks of %d layers: blocks times groups is at most %d",
			least, n, layers, wire.MaxDescs))
		f.Fix = "ask for larger groups, or fetch whole blocks"
		return o, f
	}
	return o, nil
}

// descriptors pairs the slots of blocks here with those of the source.
func (m *migration) descriptors(blocks []wanted, o pageOrder) (local, remote []transfer.Desc) {
	dr := &m.drive
	stride, pageBytes := uint64(dr.engine.layout.Stride()), uint64(dr.engine.layout.PageBytes())
	local, remote = make([]transfer.Desc, o.pairs()), make([]transfer.Desc, o.pairs())
	for i := range local {
		block, first, layers := o.pair(i)
		w := blocks[block]
		src, at := dr.offer.slots[w.index], uint64(first)*pageBytes
		local[i] = transfer.Desc{
			Memory: dr.engine.memory, Offset: uint64(w.local.Slot)*stride + at, Generation: w.local.Generation, Pages: uint32(layers),
		}
		remote[i] = transfer.Desc{
			Memory: dr.offer.memory, Offset: uint64(src.Slot)*dr.offer.stride + at, Generation: src.Generation, Pages: uint32(layers),
		}
	}
	return local, remote
}

// landing counts pages into blocks. landed is called by the transfer's receivers, concurrently.
type landing struct {
	m         *migration
	blocks    []wanted
	order     pageOrder
	left      []atomic.Int32 // pages that have not landed, a block
	round     *layerRound
	pageBytes int64
}

func newLanding(m *migration, blocks []wanted, o pageOrder) *landing {
	l := &landing{
		m: m, blocks: blocks, order: o, left: make([]atomic.Int32, o.blocks), round: newLayerRound(blocks, o.layers), pageBytes: m.drive.engine.layout.PageBytes(),
	}
	for i := range l.left {
		l.left[i].Store(int32(o.layers))
	}
	return l
}

func (l *landing) landed(pair, page, pages int) {
	m, dr := l.m, &l.m.drive
	block, first, _ := l.order.pair(pair)
	dr.pages.Add(int64(pages))
	dr.bytes.Add(int64(pages) * l.pageBytes)
	dr.left.Add(-int64(pages) * l.pageBytes)
	l.round.landed(block, first+page, pages)
	if l.left[block].Add(-int32(pages)) == 0 {
		l.commit(block)
	} else if dr.engine.layerReaders.Load() > 0 {
		dr.engine.landedMore()
	}
	m.noteProgress()
}

// commit makes a block whose pages have all landed readable by everybody.
func (l *landing) commit(block int) {
	m, dr := l.m, &l.m.drive
	w := l.blocks[block]
	dr.engine.landedFrom(w.local) // before anybody can find it
	if err := dr.engine.arena.CommitLanded(m.owner, w.local); err != nil {
		return
	}
	l.round.committed(block)
	dr.moved.Add(1)
	m.holdLanded(w.key)
	dr.log.add(landedBlock{key: w.key, ref: w.local, index: w.index})
	dr.engine.landedMore()
}

// landedReader is a Migrate stream's place in what has landed.
type landedReader struct {
	log    *landedLog // nil: nothing is asked for, or the migration had ended before
	blocks bool       // whole blocks are asked for
	at     int        // the block that is next
	mark   int        // blocks before it are given out in this round of messages
	layers *layerPlace
}

// look begins a round: blocks that land from here on are for the next one, so that all of a block's layers come before it.
func (r *landedReader) look() {
	if r.log != nil {
		r.mark = r.log.count()
		r.layers.begin()
	}
}

// fill puts into out what has landed and fits; more: call it again with another message.
func (r *landedReader) fill(out *pb.MigrateResponse) (more bool) {
	if r.log == nil {
		return false
	}
	room := maxLandedPart
	for room > 0 {
		l := r.log.layersSince(r.layers, room)
		if l == nil {
			break
		}
		out.LandedLayers = append(out.GetLandedLayers(), l)
		room -= len(l.GetKeys())
	}
	if room == 0 {
		return true
	}
	if !r.blocks {
		return false
	}
	var l *pb.Landed
	if l, r.at = r.log.since(r.at, min(r.mark, r.at+room)); l != nil {
		out.Landed = append(out.GetLanded(), l)
	}
	return r.at < r.mark
}
