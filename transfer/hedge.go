package transfer

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// hedges are the chunks of a link that are being written, and the races between
// those that are written twice: at the end of the work, when nothing is queued, a
// connection that has nothing to do writes what another one will not have written
// soon. The first to be done resets the other's stream.
//
// A duplicate costs at most a chunk, a connection writes one at a time, and no
// chunk has two.
type hedges struct {
	mu      sync.Mutex
	runs    map[*run]struct{}
	pending map[*run]*stripe // that are doubled, and by whom
	hungry  bool             // a stripe ran out of chunks since the last wasHungry
}

func (h *hedges) init() {
	h.runs, h.pending = make(map[*run]struct{}), make(map[*run]*stripe)
}

// run is one chunk being written to one connection.
type run struct {
	chunk    chunk
	stripe   *stripe
	stream   *quic.SendStream
	begun    time.Time
	expected time.Duration // until it is written, as it seemed then
	rival    *run          // that writes the same chunk, nil: none
	over     bool          // it, or its rival, is written
}

// stripeRate is what a connection's window lets through, bytes a second.
func stripeRate(c quic.ConnectionStats) float64 {
	return float64(c.CongestionWindow) / max(c.SmoothedRTT, time.Millisecond).Seconds()
}

// begin notes that a chunk is going to be written. It returns nil when it is a
// duplicate of one that has been written meanwhile.
func (h *hedges) begin(s *stripe, c chunk, stream *quic.SendStream) *run {
	rate := stripeRate(s.conn.ConnectionStats())
	r := &run{chunk: c, stripe: s, stream: stream, begun: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.twin != nil {
		if c.twin.over {
			return nil
		}
		r.rival, c.twin.rival = c.twin, r
	}
	ahead := c.bytes()
	for o := range h.runs {
		if o.stripe == s {
			ahead += o.chunk.bytes()
		}
	}
	r.expected = time.Duration(float64(ahead) / rate * float64(time.Second))
	h.runs[r] = struct{}{}
	return r
}

// end forgets a run; queued: chunks wait.
func (h *hedges) end(r *run, queued bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, r)
	if !queued && !h.holds(r.stripe) {
		h.hungry = true
	}
	if r.rival != nil && !r.over {
		r.rival.rival = nil // this one failed; the other goes on alone
	}
}

// resumed notes that a run waited for a higher class until now.
func (h *hedges) resumed(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.begun = time.Now()
}

// wasHungry reports that since the last call a connection was left without a
// chunk while none waited, or that one of live has none, unless chunks are queued.
func (h *hedges) wasHungry(live []*stripe, queued bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.hungry
	h.hungry = false
	for _, s := range live {
		was = was || !queued && !h.holds(s)
	}
	return was
}

// holds reports whether a connection has a chunk; h.mu is held.
func (h *hedges) holds(s *stripe) bool {
	for r := range h.runs {
		if r.stripe == s {
			return true
		}
	}
	return false
}

// written reports whether r is the first of its race to be written, and ends the
// other.
func (h *hedges) written(r *run) bool {
	h.mu.Lock()
	if r.over {
		h.mu.Unlock()
		return false
	}
	r.over = true
	rival := r.rival
	if rival != nil {
		rival.over = true
	}
	h.mu.Unlock()
	if rival != nil {
		rival.stream.CancelWrite(quic.StreamErrorCode(CodeHedged))
	}
	return true
}

// late is a run that another connection should do as well.
type late struct {
	run     *run
	left    time.Duration // until it is written
	overdue bool          // it should have been long ago
}

// hedge has idle connections write what others are late with. It does nothing
// while chunks wait for a connection, and does not block.
func (l *Link) hedge() {
	if l.sched.hasQueued() {
		return
	}
	l.mu.Lock()
	ended := l.mu.ended
	stats := make(map[*stripe]quic.ConnectionStats, len(l.mu.stripes))
	takes := make(map[*stripe]bool, len(l.mu.stripes))
	for _, s := range l.mu.stripes {
		stats[s], takes[s] = s.conn.ConnectionStats(), !s.draining
	}
	l.mu.Unlock()
	if ended {
		return
	}
	pairs, stalled := l.hedges.pick(stats, takes, l.sched.held, time.Now())
	for _, p := range pairs {
		l.wg.Go(func() { l.sendTwin(p.by, p.of) })
	}
	if stalled {
		l.probe()
	}
}

// sendTwin writes a duplicate.
func (l *Link) sendTwin(s *stripe, of *run) {
	c := of.chunk
	c.twin = of
	l.agent.metrics.hedged.Add(float64(c.bytes()))
	// Its failure is no loss: the run that it doubles still counts.
	_, _ = l.sendChunk(newWriter(l, s, c.flow.class), c)
	l.hedges.mu.Lock()
	delete(l.hedges.pending, of)
	l.hedges.mu.Unlock()
}

// twin is a duplicate to be made.
type twin struct {
	by *stripe
	of *run
}

// pick chooses the duplicates to make; stalled: a connection is overdue so far
// that it may be dead. A chunk that held says waits for a higher class is not late.
func (h *hedges) pick(stats map[*stripe]quic.ConnectionStats, takes map[*stripe]bool, held func(Class) bool, now time.Time) (out []twin, stalled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	busy := make(map[*stripe]int64)
	for r := range h.runs {
		busy[r.stripe] += r.chunk.bytes()
	}
	for _, s := range h.pending {
		busy[s]++
	}
	var slow []late
	for r := range h.runs {
		if _, started := h.pending[r]; started || r.rival != nil || r.over || r.chunk.twin != nil || held(r.chunk.flow.class) {
			continue
		}
		c, live := stats[r.stripe]
		if !live { // what it carried is being asked for again
			continue
		}
		elapsed := now.Sub(r.begun)
		left := max(min(r.expected-elapsed, time.Duration(float64(busy[r.stripe])/stripeRate(c)*float64(time.Second))), 0)
		overdue := elapsed > overdueAfter(r.expected, c.SmoothedRTT)
		slow = append(slow, late{r, left, overdue})
		stalled = stalled || overdue
	}
	slices.SortFunc(slow, func(a, b late) int {
		if a.overdue != b.overdue {
			if a.overdue {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.left, a.left)
	})
	var idle []*stripe
	for s := range stats {
		if busy[s] == 0 && takes[s] {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(a, b *stripe) int { return cmp.Compare(stripeRate(stats[b]), stripeRate(stats[a])) })
	for _, r := range slow {
		if len(idle) == 0 {
			break
		}
		s := idle[0]
		need := time.Duration(float64(r.run.chunk.bytes()) / stripeRate(stats[s]) * float64(time.Second))
		if !r.overdue && r.left <= 2*need+stats[s].SmoothedRTT {
			continue
		}
		out = append(out, twin{s, r.run})
		h.pending[r.run] = s
		idle = idle[1:]
	}
	return out, stalled
}
