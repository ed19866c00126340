package transfer

import (
	"cmp"
	"slices"
	"time"
)

// agedEvery is the part of its tenant's bytes that the oldest transfer gets which
// has been queued for longer than Config.AgeAfter: one in so many.
const agedEvery = 4

// maxIdleTenants bounds the tenants that a class remembers because they are ahead
// of their share, without anything to send.
const maxIdleTenants = 1024

// classQueue orders the transfers of one class on one link: tenants by start-time
// fair queueing in bytes (Goyal, Vin, Cheng 1996), the transfers of a tenant by
// deadline, then by what is left of them. All of it is guarded by the scheduler.
type classQueue struct {
	tenants map[string]*tenantQueue
	vtime   float64 // start tag of the chunk served last
	turn    uint64  // chunks served
	arrived uint64  // transfers and tenants that came
}

// tenantQueue is one tenant's transfers of one class.
type tenantQueue struct {
	weight  float64
	limit   *tenantLimiter // nil: none
	tag     float64        // start tag of its next chunk
	since   uint64         // order of arrival, for ties
	flows   []*outflow     // those with chunks to send, in order of arrival
	unaged  int64          // bytes that went past the oldest aged transfer and are not made up for
	reserve time.Duration  // scratch: what its limiter says
}

func (cq *classQueue) empty() bool {
	for _, t := range cq.tenants {
		if len(t.flows) > 0 {
			return false
		}
	}
	return true
}

// add queues f, which has chunks to send and is not queued.
func (cq *classQueue) add(f *outflow) {
	t := cq.tenants[f.share.Tenant]
	if t == nil {
		cq.forget()
		t = &tenantQueue{tag: cq.vtime}
		if cq.tenants == nil {
			cq.tenants = make(map[string]*tenantQueue)
		}
		cq.tenants[f.share.Tenant] = t
	}
	cq.arrived++
	if len(t.flows) == 0 {
		t.tag, t.since = max(t.tag, cq.vtime), cq.arrived
	}
	t.weight, t.limit = f.share.weight(), f.limit
	if f.sched.arrived == 0 { // a chunk that comes back keeps its place
		f.sched.arrived = cq.arrived
	}
	t.flows = append(t.flows, f)
}

// find returns where f is queued, if it is.
func (cq *classQueue) find(f *outflow) (int, bool) {
	t := cq.tenants[f.share.Tenant]
	if t == nil {
		return 0, false
	}
	i := slices.Index(t.flows, f)
	return i, i >= 0
}

// remove takes f off the queue.
func (cq *classQueue) remove(f *outflow) {
	if i, ok := cq.find(f); ok {
		t := cq.tenants[f.share.Tenant]
		t.flows = slices.Delete(t.flows, i, i+1)
	}
	cq.reset()
}

// reset ends a busy period: with nobody queued nobody is ahead.
func (cq *classQueue) reset() {
	if cq.empty() {
		clear(cq.tenants)
		cq.vtime = 0
	}
}

// forget drops tenants without transfers that are not ahead of their share, or,
// beyond a bound, those least ahead.
func (cq *classQueue) forget() {
	var idle []string
	for name, t := range cq.tenants {
		if len(t.flows) > 0 {
			continue
		}
		if t.tag <= cq.vtime {
			delete(cq.tenants, name)
			continue
		}
		idle = append(idle, name)
	}
	if len(idle) < maxIdleTenants {
		return
	}
	slices.SortFunc(idle, func(a, b string) int { return cmp.Compare(cq.tenants[a].tag, cq.tenants[b].tag) })
	for _, name := range idle[:len(idle)-maxIdleTenants+1] {
		delete(cq.tenants, name)
	}
}

// A seat is who asks for a chunk: a stripe; only says that it is the link's last.
type seat struct {
	stripe uint32
	only   bool
	now    time.Time
	age    time.Duration // Config.AgeAfter
	window int           // Config.Concurrency
}

// ready reports whether a chunk could start at the seat.
func (cq *classQueue) ready(s seat) bool {
	for _, t := range cq.tenants {
		if t.servable(s) && t.wait(s.now) == 0 {
			return true
		}
	}
	return false
}

// pick takes the next chunk for the seat. When only the tenants' rates are in the
// way, wait says for how long; 0: nothing is queued for the seat.
func (cq *classQueue) pick(s seat) (c chunk, wait time.Duration, ok bool) {
	var best *tenantQueue
	for _, t := range cq.tenants {
		if !t.servable(s) {
			continue
		}
		t.reserve = t.wait(s.now)
		if t.reserve > 0 {
			if wait == 0 || t.reserve < wait {
				wait = t.reserve
			}
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(t.tag, best.tag), cmp.Compare(t.since, best.since)) < 0 {
			best = t
		}
	}
	if best == nil {
		return chunk{}, wait, false
	}
	f := best.choose(s)
	c, ok = f.pop(s.stripe, s.only)
	if !ok {
		panic("BUG: a transfer with chunks for a stripe gave none")
	}
	if best.limit != nil && best.limit.take(s.now, c.bytes()) > 0 {
		f.unpop(c)
		return cq.pick(s) // another link was faster: without this tenant
	}
	cq.served(best, f, c)
	return c, 0, true
}

// served moves virtual time on.
func (cq *classQueue) served(t *tenantQueue, f *outflow, c chunk) {
	cq.vtime = max(cq.vtime, t.tag)
	for _, o := range cq.tenants {
		if o.reserve > 0 { // a tenant held back by its rate saves up no share
			o.tag, o.reserve = max(o.tag, cq.vtime), 0
		}
	}
	t.tag += float64(c.bytes()) / t.weight
	cq.turn++
	f.sched.turn = cq.turn
	if !f.pending() {
		cq.remove(f)
	}
}

func (t *tenantQueue) wait(now time.Time) time.Duration {
	if t.limit == nil {
		return 0
	}
	return t.limit.wait(now)
}

func (t *tenantQueue) servable(s seat) bool {
	return slices.ContainsFunc(t.flows, func(f *outflow) bool { return f.canPop(s.stripe, s.only) })
}

// choose returns the transfer whose chunk is next; one of them has one.
func (t *tenantQueue) choose(s seat) *outflow {
	var aged *outflow
	for _, f := range t.flows {
		if s.age > 0 && s.now.Sub(f.sched.queuedAt) >= s.age && f.canPop(s.stripe, s.only) && (aged == nil || f.sched.arrived < aged.sched.arrived) {
			aged = f
		}
	}
	if aged == nil {
		t.unaged = 0
		return t.inOrder(s)
	}
	turn, _, _ := aged.peek(s.stripe, s.only)
	if owed := (agedEvery - 1) * turn.bytes(); t.unaged >= owed {
		t.unaged -= owed
		return aged
	}
	best := t.inOrder(s)
	if best == aged {
		t.unaged = 0
	} else if c, _, ok := best.peek(s.stripe, s.only); ok {
		t.unaged += c.bytes()
	}
	return best
}

// inOrder returns the transfer to serve by order alone: the first window of them
// in turn, and one beyond it only when none of those has a chunk for the seat.
func (t *tenantQueue) inOrder(s seat) *outflow {
	slices.SortFunc(t.flows, before)
	var best *outflow
	for i, f := range t.flows {
		if i >= s.window && best != nil {
			break
		}
		if f.canPop(s.stripe, s.only) && (best == nil || f.sched.turn < best.sched.turn) {
			best = f
		}
	}
	return best
}

// before orders the transfers of a tenant: earliest deadline first, then those
// without one by the bytes that are left to send, then by arrival.
func before(a, b *outflow) int {
	x, y := a.sched.deadline, b.sched.deadline
	switch {
	case x.IsZero() && y.IsZero():
		return cmp.Or(cmp.Compare(a.sched.left, b.sched.left), cmp.Compare(a.sched.arrived, b.sched.arrived))
	case x.IsZero():
		return 1
	case y.IsZero():
		return -1
	}
	return cmp.Or(x.Compare(y), cmp.Compare(a.sched.arrived, b.sched.arrived))
}

// place says what goes before f: transfers of its tenant, and bytes until its
// first chunk: all of those, and of each other tenant the part that its weight
// gives it meanwhile.
func (cq *classQueue) place(f *outflow) (transfers int, bytes int64) {
	mine := cq.tenants[f.share.Tenant]
	if mine == nil {
		return 0, 0
	}
	for _, o := range mine.flows {
		if o != f && before(o, f) < 0 {
			transfers++
			bytes += o.sched.left
		}
	}
	own := float64(bytes)
	for _, t := range cq.tenants {
		if t == mine || len(t.flows) == 0 {
			continue
		}
		var theirs int64
		for _, o := range t.flows {
			theirs += o.sched.left
		}
		bytes += int64(min(float64(theirs), own*t.weight/mine.weight))
	}
	return transfers, bytes
}
