package transfer

import (
	"fmt"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// probeTimeout is how long a stripe may leave a ping unanswered while others
// answer theirs: several round trips of any path, with a retransmission.
const probeTimeout = 3 * time.Second

// outageLeast is the silence of a whole link from which on its connections back
// off for longer than a probe takes.
const outageLeast = 2500 * time.Millisecond

// maxJudging bounds the time that a probe takes.
const maxJudging = time.Minute

// heard notes when each stripe was last found to have received a packet; l.mu is
// held. Between two calls it is not known when that was: the later time counts.
func (l *Link) heard(now time.Time) {
	came := false
	for _, s := range l.mu.stripes {
		if n := s.conn.ConnectionStats().PacketsReceived; n != s.heard.packets || s.heard.at.IsZero() {
			s.heard.packets, s.heard.at, came = n, now, true
		}
	}
	if !came {
		return
	}
	if now.Sub(l.mu.heardAt) > outageLeast {
		l.mu.aliveSince = now
	}
	l.mu.heardAt = now
}

// deadAt is when a stripe that stays silent counts as dead: after an outage of the
// whole link it first waits out a back-off about as long as that was.
func (s *stripe) deadAt(aliveSince time.Time) time.Time {
	if aliveSince.After(s.heard.at) {
		return aliveSince.Add(aliveSince.Sub(s.heard.at) + probeTimeout)
	}
	return s.heard.at.Add(probeTimeout)
}

// probe looks for stripes that are dead and do not know it yet: every stripe
// gets a ping, and those that receive no packet in return, where others do, are
// closed. What they carried is then asked for over the others, and the dialler
// replaces them. With no stripe that answers the link as a whole is silent, which
// the idle timeout is for. It is called when a transfer makes no progress, does
// not block, and does nothing while a probe runs.
func (l *Link) probe() {
	ping, err := wire.AppendFrame(nil, wire.TypePing, 0, 0, nil)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.probing || l.mu.ended || len(l.mu.stripes) < 2 {
		return
	}
	l.mu.probing = true
	before := make(map[*stripe]uint64, len(l.mu.stripes))
	for _, s := range l.mu.stripes {
		n := s.conn.ConnectionStats().PacketsReceived
		before[s] = n
		if s.pinged == n+1 {
			continue // the last ping is unanswered, and may not have left: the writer must not wait behind it
		}
		s.pinged = n + 1
		if l.out.pushOver(ping, s) != nil {
			break
		}
	}
	l.wg.Go(func() { l.judge(before) })
}

// superseded is told of an accepted link whose peer has dialled another one: a peer keeps one, so it has given this one up, and where its
// word of that was lost, as in an outage, nobody else would say so before the idle timeout. What the link serves would be held until
// then. It is pinged, and ends unless a packet comes in return.
func (l *Link) superseded() {
	ping, err := wire.AppendFrame(nil, wire.TypePing, 0, 0, nil)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended || l.mu.superseded {
		return
	}
	l.mu.superseded = true
	before := make(map[*stripe]uint64, len(l.mu.stripes))
	for _, s := range l.mu.stripes {
		before[s] = s.conn.ConnectionStats().PacketsReceived
		if l.out.pushOver(ping, s) != nil {
			break
		}
	}
	l.wg.Go(func() { // owner: the link; ends probeTimeout later, or with it
		if !l.pause(probeTimeout) {
			return
		}
		l.mu.Lock()
		silent := true
		for _, s := range l.mu.stripes { // of one that has joined meanwhile any packet counts
			silent = silent && s.conn.ConnectionStats().PacketsReceived <= before[s]
		}
		l.mu.superseded = false
		l.mu.Unlock()
		if silent {
			l.endSoon(fmt.Errorf("peer %q has dialled anew: %w", l.want, ErrPeerGone), CodePeerGone)
		}
	})
}

// closeStripe closes a stripe that the peer has lost, which this side may not
// know yet.
func (l *Link) closeStripe(number uint32) {
	l.mu.Lock()
	s := l.mu.stripes[number]
	l.mu.Unlock()
	if s != nil {
		l.sched.dropStripe(number)
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "lost at the peer")
	}
}

// judge is owned by the link.
func (l *Link) judge(before map[*stripe]uint64) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.probing = false
	}()
	start := time.Now()
	for wait := probeTimeout; wait > 0; {
		if !l.pause(wait) {
			return
		}
		dead, next := l.silent(before)
		for _, s := range dead {
			_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "no packet in return")
		}
		if next.IsZero() || time.Since(start) > maxJudging {
			return
		}
		wait = max(time.Until(next), probeTimeout/4)
	}
}

// silent returns those of the stripes in before that have received no packet since
// and are dead, and when the next may be, zero: none will, or the link as a whole
// is silent.
func (l *Link) silent(before map[*stripe]uint64) (dead []*stripe, next time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard(now)
	quiet := 0
	for s, n := range before {
		if s.conn.ConnectionStats().PacketsReceived != n {
			continue
		}
		quiet++
		if l.mu.stripes[s.number] != s {
			continue
		}
		if at := s.deadAt(l.mu.aliveSince); !at.After(now) {
			dead = append(dead, s)
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if quiet == len(before) {
		return nil, time.Time{}
	}
	return dead, next
}

// pause waits for d; false: the link ended.
func (l *Link) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}
