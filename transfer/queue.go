package transfer

import (
	"context"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/transfer/wire"
)

// noticeEvery is how often a source tells that a transfer waits its turn. A
// progress timeout shorter than a few of them may end a transfer that waits.
const noticeEvery = time.Second

// A Queue says what goes before a transfer at its source.
type Queue struct {
	// Waits is set while others go first. Pages of the transfer that were written
	// before may still arrive.
	Waits bool
	// Transfers of higher classes, and of its own class and tenant, go before it.
	Transfers int
	// Bytes of pages are to be written before its next one, as the order stands: of
	// those transfers, and of other tenants what their weights give them meanwhile.
	Bytes int64
}

// queuedOutflow is an outflow that waits.
type queuedOutflow struct {
	flow *outflow
	at   Queue
}

// watchLocked has those told who wait; the scheduler's lock is held.
func (q *scheduler) watchLocked() {
	if q.notices == nil && q.notify != nil {
		q.notices = time.AfterFunc(q.rules.noticeEvery, q.tellWaiting)
	}
}

// tellWaiting tells those who wait, and does so again while there is anything to
// send.
func (q *scheduler) tellWaiting() {
	var waiting []queuedOutflow
	q.mu.Lock()
	busy := false
	for f := range q.flows {
		if f.sched.left == 0 && f.sched.writing == 0 {
			continue
		}
		busy = true
		if at := q.placeLocked(f); at.Waits && len(q.live) > 0 {
			waiting = append(waiting, queuedOutflow{f, at})
		}
	}
	switch {
	case q.closed:
	case busy:
		q.notices.Reset(q.rules.noticeEvery)
	default:
		q.notices = nil
	}
	q.mu.Unlock()
	q.notify(waiting)
}

// placeLocked says where f stands.
func (q *scheduler) placeLocked(f *outflow) (at Queue) {
	var higher int64
	for c := range f.class {
		higher += q.queued[c] + q.wire[c]
	}
	at.Waits = higher > 0 || f.sched.left > 0 && f.sched.writing == 0
	if !at.Waits {
		return Queue{}
	}
	at.Transfers, at.Bytes = q.queues[f.class].place(f)
	at.Bytes += higher
	for o := range q.flows {
		if o.class < f.class && (o.sched.left > 0 || o.sched.writing > 0) {
			at.Transfers++
		}
	}
	return at
}

// tellQueued sends notices to the receiving sides. For a write it is this side
// that watches for progress, too.
func (l *Link) tellQueued(waiting []queuedOutflow) {
	for _, w := range waiting {
		if w.flow.key.own {
			w.flow.touch()
		}
		l.push(wire.TypeQueued, w.flow.key.flags(), w.flow.key.id, wire.AppendQueued(nil, wire.Queued{
			Transfers: uint32(min(w.at.Transfers, maxServed*2)), Bytes: uint64(max(w.at.Bytes, 0)),
		}))
	}
}

// waits notes that the source has the transfer wait, which is no stall.
func (in *intake) waits(at Queue) {
	if d := in.noteWait(at); in.queueTimeout > 0 && d >= in.queueTimeout {
		in.finish(fmt.Errorf("transfer %d: %d transfers and %d bytes go first, after %v: %w: %w", in.key.id, at.Transfers, at.Bytes, d, ErrQueued, context.DeadlineExceeded))
	}
}

// noteWait returns for how long it has waited.
func (in *intake) noteWait(at Queue) time.Duration {
	in.Lock()
	defer in.Unlock()
	if in.decided {
		return 0
	}
	at.Waits = true
	in.queue, in.lastAt = at, time.Now()
	if in.queued.IsZero() {
		in.queued = in.lastAt
	}
	in.held = in.held || in.done > 0
	in.wake()
	return in.lastAt.Sub(in.queued)
}
