package transfer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// outflow is the sending half of a transfer: of a peer's read, or of a write
// that was started here.
type outflow struct {
	ending
	pairs
	link    *Link
	key     flowKey
	token   []byte // for Source
	class   Class
	share   Share
	limit   *tenantLimiter // of the tenant, nil: none; guarded by the scheduler's lock
	notify  []byte         // for this side, of a peer's read
	remote  *beginning     // what the peer was told, of a write
	started bool           // the peer is ready, of a write; guarded by ending's lock

	chunkSize []int // pages a chunk of each descriptor
	chunkBase []int // ordinal of the first chunk of each descriptor; one more at the end
	streams   map[*quic.SendStream]struct{}
	landed    int       // pages that the peer says are verified, of a write
	lastAt    time.Time // of the last progress

	// sched is guarded by the scheduler's lock.
	sched struct {
		dead     bool
		next     int      // ordinal of the first chunk never taken
		nextPair int      // its descriptor
		again    []chunk  // to be sent once more; no page is in it twice
		waits    []uint64 // bitmap of the pages in again, nil: none yet
		repeats  int64    // pages that were queued because the receiving side asked
		stripeOf []uint32 // the stripe that took a chunk last, by ordinal; 0: none
		left     int64    // bytes not taken, those of again included
		writing  int64    // bytes taken and not yet accepted by a connection

		deadline time.Time     // zero: none
		queuedAt time.Time     // when its chunks were queued first
		takenAt  time.Time     // when a chunk was taken last
		waited   time.Duration // from queuedAt to the first chunk
		arrived  uint64        // order in its class; 0: not yet
		turn     uint64        // count of the class's chunks at its last one
		reported bool          // its wait has been
	}
}

func newOutflow(l *Link, key flowKey, p pairs, b *beginning) *outflow {
	f := &outflow{
		pairs: p, link: l, key: key, token: b.token, notify: b.notify, class: b.class, streams: make(map[*quic.SendStream]struct{}),
	}
	f.sched.deadline = b.deadline
	if share := l.agent.cfg.Share; share != nil {
		f.share = share(l.Peer(), b.token)
	}
	f.chunkSize = p.chunkSizes(l.agent.cfg.ChunkBytes, l.sched.stripes())
	f.chunkBase = make([]int, len(p.descs)+1)
	for i, d := range p.descs {
		n := f.chunkSize[i]
		f.chunkBase[i+1] = f.chunkBase[i] + (int(d.Pages)+n-1)/n
	}
	f.sched.stripeOf = make([]uint32, f.chunkBase[len(p.descs)])
	return f
}

// pending, canPop, peek, pop and unpop are called under the scheduler's lock.
func (f *outflow) pending() bool {
	return len(f.sched.again) > 0 || f.sched.next < len(f.sched.stripeOf)
}

// canPop reports whether pop would give a chunk.
func (f *outflow) canPop(stripe uint32, only bool) bool {
	_, _, ok := f.peek(stripe, only)
	return ok
}

// peek returns what pop would, and its index in again, -1: it is the next in order.
func (f *outflow) peek(stripe uint32, only bool) (c chunk, again int, ok bool) {
	for i, c := range f.sched.again {
		if only || c.avoid != stripe {
			return c, i, true
		}
	}
	if f.sched.next == len(f.sched.stripeOf) {
		return chunk{}, 0, false
	}
	for f.sched.next >= f.chunkBase[f.sched.nextPair+1] {
		f.sched.nextPair++
	}
	return f.whole(f.sched.nextPair, f.sched.next), -1, true
}

// whole returns the chunk of an ordinal of descriptor pair.
func (f *outflow) whole(pair, ordinal int) chunk {
	n := f.chunkSize[pair]
	first := (ordinal - f.chunkBase[pair]) * n
	return chunk{flow: f, ordinal: ordinal, pair: pair, first: first, pages: min(n, int(f.descs[pair].Pages)-first)}
}

func (f *outflow) pop(stripe uint32, only bool) (chunk, bool) {
	c, again, ok := f.peek(stripe, only)
	switch {
	case !ok:
		return c, false
	case again == 0: // the rest need not move
		f.sched.again = f.sched.again[1:]
		f.mark(c, false)
	case again > 0:
		f.sched.again = slices.Delete(f.sched.again, again, again+1)
		f.mark(c, false)
	default:
		f.sched.next++
	}
	f.sched.left -= c.bytes()
	return c, true
}

// unpop takes back a chunk that pop gave and nobody sends.
func (f *outflow) unpop(c chunk) {
	f.sched.again = slices.Insert(f.sched.again, 0, c)
	f.sched.left += c.bytes()
	f.mark(c, true)
}

// mark notes that the pages of c wait in again, or that they do not.
func (f *outflow) mark(c chunk, waits bool) {
	if f.sched.waits == nil {
		f.sched.waits = make([]uint64, (f.pages()+63)/64)
	}
	for n := f.base[c.pair] + c.first; c.pages > 0; n, c.pages = n+1, c.pages-1 {
		if waits {
			f.sched.waits[n/64] |= 1 << (n % 64)
		} else {
			f.sched.waits[n/64] &^= 1 << (n % 64)
		}
	}
}

// fresh cuts c into the runs of its pages that do not wait in again.
func (f *outflow) fresh(c chunk) (out []chunk) {
	if f.sched.waits == nil {
		return []chunk{c}
	}
	open := false
	for i := range c.pages {
		n := f.base[c.pair] + c.first + i
		switch {
		case f.sched.waits[n/64]>>(n%64)&1 == 1:
			open = false
		case open:
			out[len(out)-1].pages++
		default:
			r := c
			r.first, r.pages = c.first+i, 1
			out, open = append(out, r), true
		}
	}
	return out
}

const (
	// againBatch is about how many runs of a request are looked at at a time.
	againBatch = 1024
	// maxRepeats and leastRepeats bound what the receiving side may ask for again,
	// in pages: so many times those of the transfer, and so many at least. A page is
	// asked for when it is bad, once, when it is reset, maxResets times, and when its
	// connection is lost or stalls.
	maxRepeats, leastRepeats = 64, 4096
)

// runs cuts the pages of a request at the borders of chunks and yields them in
// batches; the runs of one chunk are in one batch.
func (f *outflow) runs(m wire.Again, yield func([]chunk) bool) {
	var out []chunk
	for i := 0; i < m.Pages.Len(); i++ {
		n := int(m.Base) + i
		if !m.Pages.Has(i) || n >= f.pages() {
			continue
		}
		pair, page := f.locate(n)
		size := f.chunkSize[pair]
		ord := f.chunkBase[pair] + page/size
		if k := len(out) - 1; k >= 0 && out[k].ordinal == ord && out[k].first+out[k].pages == page {
			out[k].pages++
			continue
		}
		c := chunk{flow: f, ordinal: ord, pair: pair, first: page, pages: 1}
		if m.Reason == wire.ReasonBadPage {
			c.avoid = m.Stripe
		}
		if k := len(out) - 1; k >= againBatch && out[k].ordinal != ord {
			if !yield(out) {
				return
			}
			out = out[:0]
		}
		out = append(out, c)
	}
	if len(out) > 0 {
		yield(out)
	}
}

// handleAgain queues what the receiving side asks for, and fails the transfer when
// that is more than a working one can need.
func (f *outflow) handleAgain(m wire.Again) {
	limit := max(maxRepeats*int64(f.pages()), leastRepeats)
	f.runs(m, func(runs []chunk) bool {
		var repeats int64
		switch m.Reason {
		case wire.ReasonStripeLost:
			repeats = f.link.sched.againLost(f, runs, m.Stripe)
		case wire.ReasonStalled:
			repeats = f.link.sched.againStalled(f, runs)
		case wire.ReasonBadPage:
			repeats = f.link.sched.again(f, runs)
		}
		if repeats <= limit {
			return true
		}
		f.finish(&ChunkError{
			Transfer: f.key.id, Pair: -1, Page: -1,
			Err: fmt.Errorf("%d pages asked for again, at most %d: %w", repeats, limit, ErrProtocol),
		})
		return false
	})
}

// touch counts as progress.
func (f *outflow) touch() {
	f.Lock()
	defer f.Unlock()
	f.lastAt = time.Now()
}

// read fills dst with the pages of c. It returns ErrClosed when the flow is over.
func (f *outflow) read(c chunk, dst []byte, sums []uint32) error {
	if !f.enter() {
		return ErrClosed
	}
	defer f.leave()
	mem := f.mems[c.pair]
	if !mem.enter() {
		return &ChunkError{Transfer: f.key.id, Pair: c.pair, Page: c.first, Err: ErrUnknownMemory}
	}
	defer mem.leave()
	if err := mem.Source.ReadPages(f.token, c.pair, f.descs[c.pair], c.first, dst, sums); err != nil {
		return &ChunkError{Transfer: f.key.id, Pair: c.pair, Page: c.first, Err: err}
	}
	return nil
}

// track notes an open stream so that the end of the flow resets it; false: the
// flow is over.
func (f *outflow) track(s *quic.SendStream) bool {
	f.Lock()
	defer f.Unlock()
	if f.decided {
		return false
	}
	f.streams[s] = struct{}{}
	return true
}

func (f *outflow) untrack(s *quic.SendStream) {
	f.Lock()
	defer f.Unlock()
	delete(f.streams, s)
}

// finish ends the flow for a reason that arose here; finishAs says whether the
// peer gave it. Chunks that wait are dropped and open streams reset.
func (f *outflow) finish(err error) bool { return f.finishAs(err, false) }

func (f *outflow) finishAs(err error, byPeer bool) bool {
	if !f.end(err, byPeer) {
		return false
	}
	f.link.sched.stop(f)
	f.Lock()
	code := CodeCancelled
	if err != nil && !errors.Is(err, ErrCancelled) {
		code = codeOf(err)
	}
	open := make([]*quic.SendStream, 0, len(f.streams))
	for s := range f.streams {
		open = append(open, s)
	}
	f.Unlock()
	for _, s := range open {
		s.CancelWrite(quic.StreamErrorCode(code))
	}
	return true
}
