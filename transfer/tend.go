package transfer

import (
	"log/slog"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

const (
	// minLook and maxLook bound the time between two looks at the path of a busy
	// link, which else is a round trip.
	minLook, maxLook = 50 * time.Millisecond, time.Second
	// idleLook is how often an idle link sees whether it has more connections than
	// it began with.
	idleLook = time.Minute
	// quietTime is the silence after which a connection that takes no more chunks
	// is closed.
	quietTime = time.Second
)

// path is what a link knows of its path beyond what each connection does. It is
// guarded by the link's lock.
type path struct {
	policy stripePolicy
	est    *estimator
	least  leastRTT

	// Of the last look.
	at         time.Time
	sent, lost uint64 // packets, of the side that sends pages
	bytes      uint64 // received, or sent and not lost
	sending    bool   // from here

	watched, hungry time.Duration // of all looks, and of those in which connections lacked chunks
}

// pathCounts adds up the live connections of a link.
type pathCounts struct {
	pastStripes
	stripes     int // that take chunks
	window      uint64
	rttMin, rtt time.Duration // the least of late; 0: none was measured
}

// counts returns the sums over all connections. l.mu is held.
func (l *Link) counts() pathCounts {
	c, now := pathCounts{pastStripes: l.mu.past}, time.Now()
	var weighted float64
	for _, s := range l.mu.stripes {
		st := s.conn.ConnectionStats()
		c.add(st)
		if s.draining {
			continue
		}
		c.stripes++
		c.window += st.CongestionWindow
		weighted += float64(st.CongestionWindow) * float64(st.SmoothedRTT)
		if rtt, fresh := s.trips.next(st); fresh {
			l.mu.path.least.add(now, rtt)
		}
	}
	if c.stripes > 0 {
		c.rttMin = l.mu.path.least.value()
	}
	if c.window > 0 {
		c.rtt = time.Duration(weighted / float64(c.window))
	}
	return c
}

// lookEvery is the time between two looks at a busy link.
func lookEvery(rtt time.Duration) time.Duration { return min(max(rtt, minLook), maxLook) }

// tend looks at the path while pages leave from here, tells the dialler of it or
// acts on it, and closes connections that have been retired. It ends with the
// link.
func (l *Link) tend() {
	timer := time.NewTimer(idleLook)
	defer timer.Stop()
	sent := false // pages left from here at the last look
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		l.mu.Lock()
		l.heard(time.Now())
		c := l.counts()
		var live []*stripe
		for _, s := range l.mu.stripes {
			if !s.draining {
				live = append(live, s)
			}
		}
		sends, busy, draining := len(l.mu.outflows) > 0, len(l.mu.outflows)+len(l.mu.intakes) > 0, len(l.mu.stripes)-c.stripes
		l.mu.Unlock()
		if sends || sent {
			l.report(c, live)
		}
		if busy || sent {
			l.tellCosts(false)
		}
		sent = sends
		if !busy {
			l.rest(c)
		}
		switch {
		case busy || sent:
			timer.Reset(lookEvery(c.rtt))
		case draining > 0:
			timer.Reset(maxLook)
		default:
			timer.Reset(idleLook)
		}
		if l.dialled && draining > 0 {
			l.closeRetired()
		}
	}
}

// report gives what the sending side sees to the side that dialled.
func (l *Link) report(c pathCounts, live []*stripe) {
	p := wire.Path{Starved: l.hedges.wasHungry(live, l.sched.hasReady()), Window: c.window, Sent: c.packetsSent, Lost: c.packetsLost, RTTMin: min(c.rttMin, time.Hour), RTT: min(c.rtt, time.Hour)}
	if c.packetsSent > 0 {
		p.PacketBytes = uint32(c.bytesSent / c.packetsSent)
	}
	if l.dialled {
		l.look(p, true)
		return
	}
	payload, err := wire.AppendPath(nil, p)
	if err != nil { // the bounds hold above
		l.agent.cfg.Logger.LogAttrs(l.ctx, slog.LevelError, "BUG: path not reported", slog.Any("error", err))
		return
	}
	l.push(wire.TypePath, 0, 0, payload)
}

// rest has an idle link shrink in time.
func (l *Link) rest(c pathCounts) {
	if !l.dialled {
		return
	}
	l.mu.Lock()
	n := l.mu.path.policy.decide(pathSample{at: time.Now(), stripes: c.stripes}, 0)
	l.mu.Unlock()
	l.resize(n, c.stripes)
}

// look takes in one report of the side that sends pages, this one or the peer,
// and has the number of connections follow.
func (l *Link) look(p wire.Path, sending bool) {
	if !l.dialled {
		return
	}
	l.mu.Lock()
	m, now, c := &l.mu.path, time.Now(), l.counts()
	bytes := c.bytesReceived
	if sending {
		bytes = c.bytesSent - min(c.bytesSent, p.Lost*uint64(p.PacketBytes))
	}
	took := now.Sub(m.at)
	s := pathSample{at: now, took: took, packet: float64(p.PacketBytes), rttMin: p.RTTMin, rtt: p.RTT, stripes: c.stripes}
	// After a pause the first report only says where counting begins.
	if m.sending == sending && took > 0 && took <= 4*lookEvery(p.RTT) {
		s.busy, s.rate = !p.Starved, float64(bytes-min(bytes, m.bytes))/took.Seconds()
		m.watched += took
		if p.Starved {
			m.hungry += took
		}
		s.sent, s.lost = float64(p.Sent)-float64(m.sent), float64(p.Lost)-float64(m.lost)
		m.est.observe(s)
	}
	m.at, m.sent, m.lost, m.bytes, m.sending = now, p.Sent, p.Lost, bytes, sending
	s.loss = m.est.randomLoss()
	n := m.policy.decide(s, m.est.capacity(now).Value)
	if s.busy {
		m.est.stripes = n
	}
	l.mu.Unlock()
	l.resize(n, c.stripes)
}

// resize has a dialled link have n connections, of which it has live.
func (l *Link) resize(n, live int) {
	if n >= live {
		if n > live {
			l.kickKeeper()
		}
		return
	}
	l.mu.Lock()
	retired := l.retireLocked(live - n)
	l.mu.Unlock()
	for _, s := range retired {
		l.sched.dropStripe(s.number)
		l.push(wire.TypeRetire, 0, uint64(s.number), nil)
	}
}

// retireLocked marks the n last connections to come; the one that carries control
// stays. l.mu is held.
func (l *Link) retireLocked(n int) []*stripe {
	var out []*stripe
	for range n {
		var last *stripe
		for _, s := range l.mu.stripes {
			if !s.draining && s != l.mu.control && (last == nil || s.number > last.number) {
				last = s
			}
		}
		if last == nil {
			break
		}
		last.draining = true
		last.quiet.since = time.Now()
		out = append(out, last)
	}
	return out
}

// handleRetire stops giving chunks to a stripe that the dialler will close.
func (l *Link) handleRetire(number uint64) {
	l.mu.Lock()
	var s *stripe
	if number <= 1<<32-1 {
		if s = l.mu.stripes[uint32(number)]; s != nil {
			s.draining = true
		}
	}
	l.mu.Unlock()
	if s != nil {
		l.sched.dropStripe(s.number)
	}
}

// closeRetired closes retired connections over which nothing travels any more.
// What such a one still held is asked for again.
func (l *Link) closeRetired() {
	var quiet []*stripe
	now := time.Now()
	l.mu.Lock()
	for _, s := range l.mu.stripes {
		if !s.draining {
			continue
		}
		c := s.conn.ConnectionStats()
		if n := c.PacketsReceived; n != s.quiet.packets {
			s.quiet.packets, s.quiet.since = n, now
		} else if now.Sub(s.quiet.since) >= max(quietTime, 4*c.SmoothedRTT) {
			quiet = append(quiet, s)
		}
	}
	l.mu.Unlock()
	for _, s := range quiet {
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "retired")
	}
}

// kickKeeper has the keeper dial what is missing.
func (l *Link) kickKeeper() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// wakeTender has the tender look at once.
func (l *Link) wakeTender() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
