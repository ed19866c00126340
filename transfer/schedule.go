package transfer

import (
	"slices"
	"sync"
)

// chunk is a piece of work for a sender: a run of pages of one descriptor.
type chunk struct {
	flow    *outflow
	ordinal int // of the chunk that the run lies in
	pair    int
	first   int
	pages   int
	avoid   uint32 // a stripe that should not carry it, 0: none
	twin    *run   // that this one doubles, nil: none
}

func (c chunk) bytes() int64 { return int64(c.pages) * int64(c.flow.mems[c.pair].PageBytes) }

// scheduler hands the chunks of a link's outflows to whichever stripe asks, one
// chunk an outflow in turn. Priority classes, tenants' weights and hedging have
// their place in next.
type scheduler struct {
	mu      sync.Mutex
	work    *sync.Cond
	ring    []*outflow // those with chunks to send, next first
	live    map[uint32]bool
	queued  int64 // bytes not yet taken
	writing int64 // bytes taken and not yet accepted by a connection
	closed  bool
}

func (q *scheduler) init() {
	q.work = sync.NewCond(&q.mu)
	q.live = make(map[uint32]bool)
}

func (q *scheduler) addStripe(number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.live[number] = true
}

// dropStripe has the stripe's senders stop. Chunks that it carried are asked for
// again by the receiving side, which knows what arrived.
func (q *scheduler) dropStripe(number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.live, number)
	q.work.Broadcast()
}

// stripes is the number of stripes that take chunks.
func (q *scheduler) stripes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.live)
}

func (q *scheduler) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.work.Broadcast()
}

// start queues every chunk of f.
func (q *scheduler) start(f *outflow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.sched.dead || q.closed {
		return
	}
	q.queued += f.bytes()
	q.ring = append(q.ring, f)
	q.work.Broadcast()
}

// stop forgets the chunks of f that no sender has taken.
func (q *scheduler) stop(f *outflow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.sched.dead {
		return
	}
	f.sched.dead = true
	if i := slices.Index(q.ring, f); i >= 0 {
		q.ring = slices.Delete(q.ring, i, i+1)
		q.queued -= f.pendingBytes()
	}
}

// take waits for a chunk for the stripe; false: the stripe or link is gone.
func (q *scheduler) take(stripe uint32) (chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed || !q.live[stripe] {
			return chunk{}, false
		}
		if c, ok := q.next(stripe); ok {
			return c, true
		}
		q.work.Wait()
	}
}

// next picks a chunk for the stripe, if there is one; the lock is held.
func (q *scheduler) next(stripe uint32) (chunk, bool) {
	for i, f := range q.ring {
		c, ok := f.pop(stripe, len(q.live) == 1)
		if !ok {
			continue
		}
		q.ring = slices.Delete(q.ring, i, i+1)
		if f.pending() {
			q.ring = append(q.ring, f)
		}
		f.sched.stripeOf[c.ordinal] = stripe
		q.queued -= c.bytes()
		q.writing += c.bytes()
		return c, true
	}
	return chunk{}, false
}

// sent accounts for a chunk that left. lost says that its connection broke
// under it: it is queued again unless the receiving side already asked.
func (q *scheduler) sent(c chunk, stripe uint32, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing -= c.bytes()
	if lost && c.flow.sched.stripeOf[c.ordinal] == stripe {
		c.avoid = 0
		c.flow.sched.stripeOf[c.ordinal] = 0
		q.requeue(c)
	}
}

// again queues runs that the receiving side asks for.
func (q *scheduler) again(runs []chunk) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range runs {
		q.requeue(c)
	}
}

// againLost queues those of runs whose chunk went over the lost stripe.
func (q *scheduler) againLost(runs []chunk, stripe uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retake(runs, func(last uint32) bool { return last == stripe })
}

// againStalled queues those of runs that some stripe has taken, for another one
// than that. A chunk that waits its turn is left alone.
func (q *scheduler) againStalled(runs []chunk) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retake(runs, func(last uint32) bool { return last != 0 })
}

// retake queues the runs that want picks by the stripe that took their chunk
// last, for other stripes, and forgets that stripe: its own failure to write the
// chunk no longer queues it. Several runs may lie in one chunk.
func (q *scheduler) retake(runs []chunk, want func(last uint32) bool) {
	picked := runs[:0]
	for _, c := range runs {
		if c.avoid = c.flow.sched.stripeOf[c.ordinal]; want(c.avoid) {
			picked = append(picked, c)
		}
	}
	for _, c := range picked {
		c.flow.sched.stripeOf[c.ordinal] = 0
		q.requeue(c)
	}
}

func (q *scheduler) requeue(c chunk) {
	f := c.flow
	if f.sched.dead || q.closed {
		return
	}
	if !f.pending() {
		q.ring = append(q.ring, f)
	}
	f.sched.again = append(f.sched.again, c)
	q.queued += c.bytes()
	q.work.Broadcast()
}

// hasQueued reports whether a chunk waits for a stripe.
func (q *scheduler) hasQueued() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring) > 0
}

// carried notes that a stripe was the first to write a chunk that two wrote.
func (q *scheduler) carried(c chunk, stripe uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.flow.sched.dead {
		c.flow.sched.stripeOf[c.ordinal] = stripe
	}
}

// backlog returns the bytes that wait to leave.
func (q *scheduler) backlog() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued + q.writing
}
