package repair

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// controlPeriod is how often a session asks for its path.
const controlPeriod = 20 * time.Millisecond

// windowAge is how fast the largest window is forgotten.
const windowAge = 30 * time.Second

// hopeless, the percent of parity allowed over the loss rate, is where parity ends: at
// 25 % a loss of 0.1, as of flows too many for a queue of a few packets.
const hopeless = 250

// Path is what QUIC knows of the path of a session.
type Path struct {
	Addr       net.Addr // of the peer; nil: as before
	RTT, Least time.Duration
	Latest     time.Duration // the last single RTT; 0: not known
	Sent, Lost uint64        // packets, since the connection began
}

// SessionConfig describes one QUIC connection of a Conn.
type SessionConfig struct {
	// Addr is the peer's address, a *net.UDPAddr.
	Addr net.Addr
	// Send and Receive name the two directions; the peer has them the other way
	// round.
	Send, Receive Token
	// SendKey and ReceiveKey authenticate the two directions, the peer's the other way
	// round: secret, not zero, not the same, and of this session only.
	SendKey, ReceiveKey Key
	// MaxSpan is the peer's Config.MaxSpan.
	MaxSpan int
	// Path is asked for what QUIC knows, some times a second while packets go out.
	// It must not block. Nil: nothing is known.
	Path func() Path
	// Estimator is shared by the sessions of a path. Nil: one of its own.
	Estimator *Estimator
}

// A Session repairs the packets of one QUIC connection, in both directions. Close
// is owed. Safe for concurrent use.
type Session struct {
	conn      *Conn
	cfg       SessionConfig
	estimator *Estimator
	maxDepth  int // what the peer's span allows

	sending atomic.Bool  // parity goes out
	control atomic.Int64 // when to ask for the path, ns since conn.epoch

	// What rebuilt packets are handed out with, set under mu by the read.
	from    net.Addr
	fromOOB []byte
	rebuilt func([]byte)

	mu struct {
		sync.Mutex
		closed     bool
		addr       netip.AddrPort
		send       sender
		receive    seal
		recv       receiver
		keeping    bool // counted in conn.keeping
		dest       net.Addr
		oob        []byte
		timer      *time.Timer
		armed      bool
		sent, lost uint64 // of QUIC, when last asked
		asked      time.Time
		window     float64 // packets that the path holds, the most lately
		fitWindow  float64 // for which the plan was made
		last       report  // of the peer
		advice     advice
		stats      Stats
	}
}

// Attach begins a session. Errors name the field that cannot be used, or are net.ErrClosed.
func (c *Conn) Attach(cfg SessionConfig) (*Session, error) {
	addr, ok := addrPort(cfg.Addr)
	switch {
	case !ok:
		return nil, fmt.Errorf("repair: SessionConfig.Addr is %v; allowed is a *net.UDPAddr: give the peer's address", cfg.Addr)
	case cfg.MaxSpan < minSpan || cfg.MaxSpan > MaxSpan:
		return nil, fmt.Errorf("repair: SessionConfig.MaxSpan is %d; allowed are 128 to 4096: take the peer's word in its hello", cfg.MaxSpan)
	case cfg.SendKey == Key{}:
		return nil, errors.New("repair: SessionConfig.SendKey is zero: derive it from the connection's TLS exporter")
	case cfg.ReceiveKey == Key{} || cfg.ReceiveKey == cfg.SendKey:
		return nil, errors.New("repair: SessionConfig.ReceiveKey is zero or SendKey: derive another one from the connection's TLS exporter")
	case c.cfg.Off():
		return nil, errors.New("repair: Config.Parity is negative, off: leave it 0 for repair")
	}
	s := &Session{conn: c, cfg: cfg, estimator: cfg.Estimator, maxDepth: max(1, min(maxDepth, cfg.MaxSpan/c.cfg.Group))}
	if s.estimator == nil {
		s.estimator = NewEstimator()
	}
	s.rebuilt = func(p []byte) { c.out.push(p, s.from, s.fromOOB) }
	s.mu.addr, s.mu.dest = addr, cfg.Addr
	s.mu.send = newSender(cfg.Send)
	s.mu.send.seal, s.mu.receive = newSeal(cfg.SendKey), newSeal(cfg.ReceiveKey)
	s.mu.recv.maxSpan = c.cfg.MaxSpan
	s.replan(s.estimator.advice(), 0, true)
	if err := c.add(s, addr); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends the session: what comes for it later is dropped. It is idempotent and
// never fails.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.sending.Store(false)
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
	stats := s.stats()
	s.mu.recv.ring, s.mu.recv.active, s.mu.recv.pending, s.mu.recv.free = ring{}, false, nil, nil
	s.keeping()
	addr := s.mu.addr
	s.mu.Unlock()
	s.conn.remove(s, addr, stats)
	return nil
}

// keeping tells the Conn whether packets have to be looked at; mu held.
func (s *Session) keeping() {
	if s.mu.recv.active == s.mu.keeping {
		return
	}
	s.mu.keeping = s.mu.recv.active
	if s.mu.keeping {
		s.conn.keeping.Add(1)
	} else {
		s.conn.keeping.Add(-1)
	}
}

// replan follows the advice; mu held, or s not yet shared. It returns the groups
// that the change closes.
func (s *Session) replan(a advice, rtt time.Duration, force bool) (closed []*group) {
	p := &s.mu.send.plan
	if rtt > 0 {
		// QUIC takes a packet for lost 9/8 RTT after it was sent; each time that was
		// wrong it undoes its backing off and waits longer, 2 RTT at last. Half an RTT
		// fills the groups of slow connections, which makes parity cheap.
		p.wait = min(max(rtt/2, time.Millisecond), 50*time.Millisecond)
	} else if p.wait == 0 {
		p.wait = 2 * time.Millisecond
	}
	window := s.mu.window
	if a == s.mu.advice && !force && (a.cold || window < s.mu.fitWindow*1.2 && window > s.mu.fitWindow/1.5) {
		return nil
	}
	s.mu.advice, s.mu.fitWindow = a, window
	if a.cold { // it says nothing yet
		window = 0
	}
	cfg := &s.conn.cfg
	p.packets, p.overhead = cfg.Group, cfg.MaxOverhead
	depth := min(a.depth, s.maxDepth)
	if cfg.Depth > 0 {
		depth = min(cfg.Depth, s.maxDepth)
	}
	on := cfg.Parity > 0 || !a.off
	if depth != p.depth || !on {
		closed = s.mu.send.closeAll(closed)
	}
	p.depth = depth
	p.allow(window)
	if cfg.Parity > 0 {
		p.fixed(cfg.Parity)
	} else if on && a.loss > float64(p.overhead)/hopeless {
		p.fixed(0) // the cap leaves most groups short
	} else if on {
		p.fit(a.loss, a.clump)
	}
	if p.symbols == 0 {
		on = false
		closed = s.mu.send.closeAll(closed)
	}
	s.sending.Store(on && !s.mu.closed)
	return closed
}

// wrote takes what went out to addr: packets of segment bytes, the last may be
// shorter.
func (s *Session) wrote(b []byte, segment int, addr net.Addr, oob []byte) {
	now := time.Now()
	due := now.Sub(s.conn.epoch) >= time.Duration(s.control.Load())
	if !due && !s.sending.Load() {
		return
	}
	var room [maxDepth + 2]*group
	closed := room[:0]
	var path Path
	if due && s.cfg.Path != nil {
		path = s.cfg.Path()
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return
	}
	if due {
		closed = append(closed, s.follow(now, path)...)
	}
	if s.sending.Load() {
		s.mu.dest = addr
		if !bytes.Equal(s.mu.oob, oob) {
			s.mu.oob = append(s.mu.oob[:0], oob...)
		}
		before := s.mu.send.number
		for len(b) > 0 {
			n := min(segment, len(b))
			closed = s.mu.send.add(b[:n], now, closed)
			b = b[n:]
		}
		s.mu.stats.Packets += uint64(s.mu.send.number - before)
		closed = s.mu.send.expired(now, closed)
		s.arm(now)
	}
	s.emit(closed)
}

// follow asks the estimator what to do; mu held.
func (s *Session) follow(now time.Time, path Path) []*group {
	s.control.Store(int64(now.Sub(s.conn.epoch) + controlPeriod))
	sent, lost := path.Sent-s.mu.sent, path.Lost-s.mu.lost
	if path.Sent < s.mu.sent || path.Lost < s.mu.lost {
		sent, lost = 0, 0
	}
	s.mu.sent, s.mu.lost = path.Sent, path.Lost
	s.measure(now, path.RTT, sent)
	if s.sending.Load() { // reports tell
		sent, lost = 0, 0
	}
	s.estimator.path(now, path.RTT, path.Latest, path.Least, sent, lost)
	return s.replan(s.estimator.advice(), path.RTT, false)
}

// measure learns how many packets the path holds; mu held.
func (s *Session) measure(now time.Time, rtt time.Duration, sent uint64) {
	took := now.Sub(s.mu.asked)
	s.mu.asked = now
	if took <= 0 || took > time.Second || rtt <= 0 {
		return
	}
	w := float64(sent) * rtt.Seconds() / max(took, rtt/4).Seconds()
	s.mu.window = max(w, s.mu.window*math.Exp(-took.Seconds()/windowAge.Seconds()))
}

// arm has the timer close groups that do not fill; mu held.
func (s *Session) arm(now time.Time) {
	if s.mu.armed || s.mu.send.opened == 0 {
		return
	}
	s.mu.armed = true
	d := max(s.mu.send.deadline.Sub(now), 0)
	if s.mu.timer == nil {
		s.mu.timer = time.AfterFunc(d, s.expire)
	} else {
		s.mu.timer.Reset(d)
	}
}

func (s *Session) expire() {
	now := time.Now()
	s.mu.Lock()
	s.mu.armed = false
	if s.mu.closed {
		s.mu.Unlock()
		return
	}
	var room [maxDepth]*group
	closed := s.mu.send.expired(now, room[:0])
	s.arm(now)
	s.emit(closed)
}

// emit sends the parity of groups; mu is held on entry and not on return.
func (s *Session) emit(closed []*group) {
	if len(closed) == 0 {
		s.mu.Unlock()
		return
	}
	dest := s.mu.dest
	for _, g := range closed {
		g.oob = append(g.oob[:0], s.mu.oob...)
		s.mu.stats.Groups++
		s.mu.stats.ParityPackets += uint64(g.count)
		s.mu.stats.ParityBytes += uint64(g.count * g.size)
	}
	s.mu.Unlock()
	for _, g := range closed {
		s.conn.emit(g.packets, g.size, dest, g.oob)
	}
	s.mu.Lock()
	s.mu.send.free = append(s.mu.send.free, closed...)
	s.mu.Unlock()
}

// arrived takes a QUIC packet from the peer.
func (s *Session) arrived(packet []byte, from net.Addr, oob []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from, s.fromOOB = from, oob
	s.mu.recv.keep(packet, s.rebuilt)
	s.keeping()
}

// receive takes a repair packet with the session's token and says whether it was one.
func (s *Session) receive(kind byte, b []byte, from net.Addr, oob []byte) bool {
	s.mu.Lock()
	b, ok := s.mu.receive.open(b)
	if !ok {
		s.mu.stats.Rejected++
	}
	s.mu.Unlock()
	if !ok {
		return true
	}
	if kind == kindReport {
		r, err := decodeReport(b)
		if err == nil {
			s.reported(r)
		}
		return err == nil
	}
	p, fingerprints, symbol, err := decodeParity(b)
	if err != nil {
		return false
	}
	addr, _ := addrPort(from)
	now := time.Now()
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return false
	}
	moved := addr != s.mu.addr
	s.from, s.fromOOB = from, oob
	ok = s.mu.recv.take(p, fingerprints, symbol, now, s.rebuilt)
	s.keeping()
	s.mu.stats.ParityReceived++
	r, due := s.mu.recv.due(now)
	dest := s.mu.dest
	var reply, packet []byte
	if due {
		reply = bytes.Clone(s.mu.oob)
		packet = s.mu.send.seal.add(appendReport(make([]byte, 0, reportBytes+sealBytes), s.cfg.Send, r), 0)
	}
	s.mu.Unlock()
	if moved {
		s.conn.move(s, addr)
	}
	if due {
		s.conn.reply(packet, dest, reply)
	}
	return ok
}

// reported takes a report of the peer on what was sent from here.
func (s *Session) reported(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.mu.last
	// A late one, or one of more than was sent.
	if int32(r.number-last.number) <= 0 || r.groups < last.groups || r.packets < last.packets || r.lost < last.lost ||
		r.squares < last.squares || r.repaired < last.repaired || r.unrepaired < last.unrepaired || r.packets > s.mu.stats.Packets {
		return
	}
	s.mu.last = r
	s.mu.stats.PeerLost, s.mu.stats.PeerRepaired, s.mu.stats.PeerUnrepaired = r.lost, r.repaired, r.unrepaired
	s.estimator.add(report{groups: r.groups - last.groups, packets: r.packets - last.packets, lost: r.lost - last.lost, squares: r.squares - last.squares})
}

// Stats returns the session's counters and what is in use.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats()
}

func (s *Session) stats() Stats {
	st, c := s.mu.stats, &s.mu.recv.counts
	st.GroupsReceived, st.Lost, st.Repaired, st.Unrepaired = c.groups, c.lost, c.repaired, c.unrepaired
	if s.sending.Load() {
		p := &s.mu.send.plan
		st.Group, st.Symbols, st.Depth = p.packets, p.symbols, p.depth
	}
	return st
}

func addrPort(a net.Addr) (netip.AddrPort, bool) {
	u, ok := a.(*net.UDPAddr)
	if !ok || u == nil {
		return netip.AddrPort{}, false
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), ap.IsValid()
}
