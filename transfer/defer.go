package transfer

import (
	"math"
	"time"
)

// speed is what a connection's congestion window lets through.
type speed struct {
	window float64 // bytes a round trip
	rtt    time.Duration
}

// takes is how long the connection is about to write n bytes: at its rate, or as
// in slow start where the window is smaller than they are, whichever is shorter.
func (s speed) takes(n int64) time.Duration {
	trips := float64(n) / s.window
	return time.Duration(min(trips, math.Log2(1+trips)) * float64(s.rtt))
}

// until is about what it writes in d, bytes.
func (s speed) until(d time.Duration) float64 {
	return s.window * d.Seconds() / s.rtt.Seconds()
}

// lane is a stripe as the scheduler sees it.
type lane struct {
	speed   func() speed // nil: not known, as good as any
	writing int64        // bytes taken and not yet accepted by the connection
	since   time.Time    // it took the last of them
}

const (
	// deferMargin is by how much sooner the others must be done with everything
	// before a stripe leaves the last chunks to them: stripes alike share them
	// out. Measured in virtual time over 1 Gbit/s x 70 ms, reads of 4 to 44 MiB
	// with two of six connections cold: 0 to 80 ms late at 1.5, 2 ms at 1.1.
	deferMargin = 1.1
	// leastDefer is the least time between two looks of a stripe that leaves chunks
	// to others.
	leastDefer = time.Millisecond
)

// defersLocked reports whether a stripe should leave what waits to the others: they
// are done with all of it well before it would be with one chunk. So a connection
// that is still in slow start, or was slowed by a loss, does not hold up the end
// of a transfer, or all of a short one. wait is when to look again, as the others may
// have stalled meanwhile. The queues are longest before a long transfer, whose
// chunks every stripe takes.
func (q *scheduler) defersLocked(stripe uint32, class Class, now time.Time) (wait time.Duration, yes bool) {
	own := q.live[stripe]
	if own.speed == nil || len(q.live) == 1 {
		return 0, false
	}
	var waiting, least int64
	for c := range class + 1 {
		waiting += q.queued[c]
	}
	for _, t := range q.queues[class].tenants {
		for _, f := range t.flows {
			if len(f.sched.again) > 0 { // it may have to avoid the others
				return 0, false
			}
			if c, _, ok := f.peek(stripe, false); ok && (least == 0 || c.bytes() < least) {
				least = c.bytes()
			}
		}
	}
	me := own.speed()
	if least == 0 || me.window <= 0 || me.rtt < nearRTT {
		return 0, false
	}
	sooner := time.Duration(float64(me.takes(least)) / deferMargin)
	var others int64
	for number, l := range q.live {
		if number != stripe {
			others += int64(l.left(sooner, now)) / least * least
		}
	}
	return max(sooner, leastDefer), others >= waiting
}

// left is about what the stripe can write within d besides what it has taken, bytes;
// 0 when it is long overdue with that, or nothing is known.
func (l *lane) left(d time.Duration, now time.Time) float64 {
	if l.speed == nil {
		return 0
	}
	s := l.speed()
	if s.window <= 0 || s.rtt <= 0 {
		return 0
	}
	ahead, elapsed := float64(l.writing), now.Sub(l.since)
	if l.writing > 0 && elapsed > overdueAfter(s.takes(l.writing), s.rtt) {
		return 0
	}
	return max(s.until(d)-max(ahead-s.until(elapsed), 0), 0)
}

// overdueAfter is the time after which a chunk that was expected to be written in
// d is late beyond what a path does to it.
func overdueAfter(d, rtt time.Duration) time.Duration {
	return 2*d + max(4*rtt, 200*time.Millisecond)
}
