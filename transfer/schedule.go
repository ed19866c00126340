package transfer

import (
	"sync"
	"sync/atomic"
	"time"
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

// scheduler hands the chunks of a link's outflows to whichever stripe asks: the
// highest class first, between the tenants of a class by weight, within a tenant
// in the order of before. Senders ask for one class each, so that a stripe whose
// senders of a lower class are blocked in a write still has some for a higher
// one.
type scheduler struct {
	mu      sync.Mutex
	rules   schedulerRules
	work    [classes]*sync.Cond
	queues  [classes]classQueue
	limit   limiter // of the link
	timer   *time.Timer
	wakeAt  time.Time        // when timer fires; zero: it does not
	live    map[uint32]*lane // stripes
	shy     *time.Timer      // nil: no stripe has left chunks to others yet
	flows   map[*outflow]struct{}
	notices *time.Timer           // nil: nobody is to be told anything
	notify  func([]queuedOutflow) // called without the lock
	queued  [classes]int64        // bytes not yet taken
	writing [classes]int64        // bytes taken and not yet accepted by a connection, of flows that are not over
	wire    [classes]int64        // bytes that a connection is accepting, duplicates included
	top     atomic.Int32          // the highest class of which there are any, classes: none; changed under the lock
	resume  *sync.Cond            // top may have become lower, or a held chunk's write is over
	closed  bool
}

// schedulerRules are what Config says about scheduling.
type schedulerRules struct {
	concurrency int
	ageAfter    time.Duration
	maxRate     int64
	noticeEvery time.Duration
}

func (q *scheduler) init(rules schedulerRules, notify func([]queuedOutflow)) {
	for c := range q.work {
		q.work[c] = sync.NewCond(&q.mu)
	}
	q.resume = sync.NewCond(&q.mu)
	q.top.Store(classes)
	q.rules, q.notify = rules, notify
	q.limit.setRate(rules.maxRate, time.Now())
	q.live = make(map[uint32]*lane)
	q.flows = make(map[*outflow]struct{})
}

// addStripe has a stripe take chunks. speed says how fast it is, without taking
// the scheduler's lock; nil: as good as any.
func (q *scheduler) addStripe(number uint32, speed func() speed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.live[number] = &lane{speed: speed}
}

// dropStripe has the stripe's senders stop. Chunks that it carried are asked for
// again by the receiving side, which knows what arrived.
func (q *scheduler) dropStripe(number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.live, number)
	q.endLocked()
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
	for _, t := range []*time.Timer{q.timer, q.notices, q.shy} {
		if t != nil {
			t.Stop()
		}
	}
	q.endLocked()
}

// wakeLocked wakes the senders of the classes from the given one down that have
// something to send.
func (q *scheduler) wakeLocked(from Class) {
	for c := int(from); c < classes; c++ {
		if q.queued[c] > 0 {
			q.work[c].Broadcast()
		}
	}
}

// endLocked has every sender see whether it is to stop.
func (q *scheduler) endLocked() {
	for _, w := range q.work {
		w.Broadcast()
	}
	q.resume.Broadcast()
}

// start queues every chunk of f.
func (q *scheduler) start(f *outflow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.sched.dead || q.closed {
		return
	}
	f.limit = f.link.agent.limiters.use(f.share, time.Now())
	f.sched.left = f.bytes()
	f.sched.queuedAt = time.Now()
	q.flows[f] = struct{}{}
	q.queued[f.class] += f.sched.left
	q.queues[f.class].add(f)
	q.watchLocked()
	q.wakeLocked(f.class)
}

// stop forgets the chunks of f that no sender has taken.
func (q *scheduler) stop(f *outflow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.sched.dead {
		return
	}
	f.sched.dead = true
	delete(q.flows, f)
	q.writing[f.class] -= f.sched.writing // its source may keep a sender for good
	f.link.agent.limiters.release(f.limit)
	q.resume.Broadcast()
	if _, queued := q.queues[f.class].find(f); queued {
		q.queues[f.class].remove(f)
		q.queued[f.class] -= f.sched.left
		f.sched.left = 0
		q.wakeLocked(f.class + 1) // it may have held lower ones back
	}
}

// take waits for a chunk of the class for the stripe; false: the stripe or link
// is gone.
func (q *scheduler) take(stripe uint32, class Class) (chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed || q.live[stripe] == nil {
			return chunk{}, false
		}
		c, wait, ok := q.next(stripe, class)
		if ok {
			return c, true
		}
		if wait > 0 {
			q.wakeInLocked(wait)
			q.wakeLocked(class + 1)
		}
		q.work[class].Wait()
	}
}

// next picks a chunk of the class for the stripe, if there is one and no higher
// class has one; the lock is held. When it is held back by a rate, wait says for
// how long.
func (q *scheduler) next(stripe uint32, class Class) (c chunk, wait time.Duration, ok bool) {
	if q.queued[class] == 0 {
		return chunk{}, 0, false
	}
	s := seat{stripe: stripe, only: len(q.live) == 1, now: time.Now(), age: q.rules.ageAfter, window: q.rules.concurrency}
	if wait := q.limit.wait(s.now); wait > 0 {
		return chunk{}, wait, false
	}
	for h := range class {
		if q.queues[h].ready(s) {
			return chunk{}, 0, false
		}
	}
	if wait, yes := q.defersLocked(stripe, class, s.now); yes {
		q.lookAgainLocked(wait)
		return chunk{}, 0, false
	}
	if c, wait, ok = q.queues[class].pick(s); !ok {
		return chunk{}, wait, false
	}
	q.limit.take(s.now, c.bytes()) // asked above, under the same lock
	f := c.flow
	if f.sched.takenAt.IsZero() {
		f.sched.waited = s.now.Sub(f.sched.queuedAt)
	}
	f.sched.takenAt = s.now
	f.sched.writing += c.bytes()
	f.sched.stripeOf[c.ordinal] = stripe
	q.queued[class] -= c.bytes()
	q.writing[class] += c.bytes()
	q.live[stripe].writing += c.bytes()
	q.live[stripe].since = s.now
	if !q.queues[class].ready(s) {
		q.wakeLocked(class + 1)
	}
	return c, 0, true
}

// charge corrects what a chunk counts for at its rates by n bytes.
func (q *scheduler) charge(c chunk, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit.charge(n)
	if c.flow.limit != nil {
		c.flow.limit.charge(n)
	}
	if n < 0 && !q.wakeAt.IsZero() { // a chunk may start sooner than it seemed
		q.wakeLocked(Interactive)
	}
}

// wakeInLocked has the senders look again when a rate allows a chunk.
func (q *scheduler) wakeInLocked(d time.Duration) {
	at := time.Now().Add(d)
	if !q.wakeAt.IsZero() && !at.Before(q.wakeAt) {
		return
	}
	q.wakeAt = at
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.rateAllows)
		return
	}
	q.timer.Reset(d)
}

func (q *scheduler) rateAllows() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.wakeAt = time.Time{}
	q.wakeLocked(Interactive)
}

// lookAgainLocked has the stripes that left chunks to others look again.
func (q *scheduler) lookAgainLocked(d time.Duration) {
	if q.shy == nil {
		q.shy = time.AfterFunc(d, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			if !q.closed {
				q.wakeLocked(Interactive)
			}
		})
		return
	}
	q.shy.Reset(d)
}

// sent accounts for a chunk that left. lost says that its connection broke
// under it: it is queued again unless the receiving side already asked.
func (q *scheduler) sent(c chunk, stripe uint32, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.flow.sched.dead {
		q.writing[c.flow.class] -= c.bytes()
	}
	c.flow.sched.writing -= c.bytes()
	if l := q.live[stripe]; l != nil {
		l.writing -= c.bytes()
	}
	if lost && c.flow.sched.stripeOf[c.ordinal] == stripe {
		c.avoid = 0
		c.flow.sched.stripeOf[c.ordinal] = 0
		q.requeue(c)
	}
}

// again queues runs of f that the receiving side asks for; those of a chunk that
// waits its turn are left alone. Like againLost and againStalled it returns how many
// pages have been queued on request so far.
func (q *scheduler) again(f *outflow, runs []chunk) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range runs {
		if c.ordinal < f.sched.next {
			f.sched.repeats += q.requeue(c)
		}
	}
	return f.sched.repeats
}

// againLost queues those of runs whose chunk went over the lost stripe.
func (q *scheduler) againLost(f *outflow, runs []chunk, stripe uint32) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.retake(f, runs, func(last uint32) bool { return last == stripe })
}

// againStalled queues those of runs that some stripe has taken, for another one
// than that. A chunk that waits its turn is left alone.
func (q *scheduler) againStalled(f *outflow, runs []chunk) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.retake(f, runs, func(uint32) bool { return true })
}

// retake queues the runs that want picks by the stripe that took their chunk
// last, for other stripes, and forgets that stripe: its own failure to write the
// chunk no longer queues it. Several runs may lie in one chunk.
func (q *scheduler) retake(f *outflow, runs []chunk, want func(last uint32) bool) int64 {
	picked := runs[:0]
	for _, c := range runs {
		if c.avoid = f.sched.stripeOf[c.ordinal]; c.avoid != 0 && want(c.avoid) {
			picked = append(picked, c)
		}
	}
	for _, c := range picked {
		f.sched.stripeOf[c.ordinal] = 0
		f.sched.repeats += q.requeue(c)
	}
	return f.sched.repeats
}

// requeue queues the pages of c that do not wait to be sent again, and returns how
// many those are.
func (q *scheduler) requeue(c chunk) (pages int64) {
	f := c.flow
	if f.sched.dead || q.closed {
		return 0
	}
	for _, r := range f.fresh(c) {
		f.sched.again = append(f.sched.again, r)
		f.sched.left += r.bytes()
		q.queued[f.class] += r.bytes()
		f.mark(r, true)
		pages += int64(r.pages)
	}
	if pages == 0 {
		return 0
	}
	if _, queued := q.queues[f.class].find(f); !queued {
		q.queues[f.class].add(f)
	}
	q.watchLocked()
	q.wakeLocked(f.class)
	return pages
}

// hasQueued reports whether a chunk waits for a stripe.
func (q *scheduler) hasQueued() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued != [classes]int64{}
}

// hasReady reports whether a chunk waits that no rate holds back.
func (q *scheduler) hasReady() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued != [classes]int64{} && q.wakeAt.IsZero()
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
func (q *scheduler) backlog() (total int64) {
	for _, n := range q.backlogs() {
		total += n
	}
	return total
}

// backlogs is backlog by class.
func (q *scheduler) backlogs() (out [classes]int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range out {
		out[c] = q.queued[c] + q.writing[c]
	}
	return out
}
