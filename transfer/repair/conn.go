package repair

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Conn repairs what is lost under QUIC: it wraps the socket that quic-go would
// have. Give PacketConn to quic.Transport.Conn. Safe for concurrent use.
type Conn struct {
	below net.PacketConn
	oob   oobConn // below, if it has what quic-go looks for
	cfg   Config
	epoch time.Time
	out   outbox // rebuilt packets

	// Read without a lock; replaced under mu.
	byAddr  atomic.Pointer[map[netip.AddrPort]*Session]
	byToken atomic.Pointer[map[Token]*Session]
	keeping atomic.Int32 // sessions that look at packets
	asked   atomic.Int64 // when sessions were last asked for their addresses, ns since epoch

	strangers, malformed atomic.Uint64

	mu struct {
		sync.Mutex
		closed bool
		past   Stats
	}
}

// Wrap puts repair over a socket, which is the Conn's from then on. cfg must be
// valid (see Config.Validate); Wrap panics otherwise.
func Wrap(below net.PacketConn, cfg Config) *Conn {
	if err := cfg.Validate(); err != nil {
		panic("BUG: Wrap: " + err.Error())
	}
	c := &Conn{below: below, cfg: cfg.WithDefaults(), epoch: time.Now()}
	c.oob, _ = below.(oobConn)
	c.byAddr.Store(&map[netip.AddrPort]*Session{})
	c.byToken.Store(&map[Token]*Session{})
	return c
}

// PacketConn is the socket for quic-go. What the socket below can do, it can:
// control messages, reads in batches, buffer sizes.
func (c *Conn) PacketConn() net.PacketConn {
	if c.oob != nil {
		return &batchConn{plainConn{c}}
	}
	return &plainConn{c}
}

// Below returns the socket that is wrapped.
func (c *Conn) Below() net.PacketConn { return c.below }

// Stats adds up the counters of all sessions, ended ones included.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	st := c.mu.past
	c.mu.Unlock()
	for _, s := range *c.byToken.Load() {
		st.Add(s.Stats())
	}
	st.Strangers, st.Malformed = c.strangers.Load(), c.malformed.Load()
	return st
}

// Close ends all sessions and closes the socket.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	for _, s := range *c.byToken.Load() {
		_ = s.Close()
	}
	return c.below.Close()
}

func (c *Conn) add(s *Session, addr netip.AddrPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	tokens, addrs := maps.Clone(*c.byToken.Load()), maps.Clone(*c.byAddr.Load())
	switch {
	case c.mu.closed:
		return fmt.Errorf("repair: attach: %w", net.ErrClosed)
	case tokens[s.cfg.Receive] != nil:
		return errors.New("repair: SessionConfig.Receive names another session: derive it from what is unique to this one")
	}
	tokens[s.cfg.Receive], addrs[addr] = s, s
	c.byToken.Store(&tokens)
	c.byAddr.Store(&addrs)
	return nil
}

func (c *Conn) remove(s *Session, addr netip.AddrPort, stats Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tokens, addrs := maps.Clone(*c.byToken.Load()), maps.Clone(*c.byAddr.Load())
	if tokens[s.cfg.Receive] == s {
		delete(tokens, s.cfg.Receive)
	}
	if addrs[addr] == s {
		delete(addrs, addr)
	}
	c.byToken.Store(&tokens)
	c.byAddr.Store(&addrs)
	c.mu.past.Add(stats)
}

// move follows a session to another address, unless that is another session's.
func (c *Conn) move(s *Session, addr netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || !addr.IsValid() || (*c.byToken.Load())[s.cfg.Receive] != s {
		return
	}
	addrs := maps.Clone(*c.byAddr.Load())
	if o := addrs[addr]; o != nil {
		return
	}
	s.mu.Lock()
	if addrs[s.mu.addr] == s {
		delete(addrs, s.mu.addr)
	}
	s.mu.addr = addr
	s.mu.send.trusted = firstPacket // QUIC starts over too
	s.mu.send.seen = 0
	s.mu.Unlock()
	addrs[addr] = s
	c.byAddr.Store(&addrs)
}

// to returns the session with a peer's address. When there is none, sessions are
// asked, seldom, whether theirs has changed.
func (c *Conn) to(addr net.Addr) *Session {
	addrs := *c.byAddr.Load()
	if len(addrs) == 0 {
		return nil
	}
	ap, ok := addrPort(addr)
	if s := addrs[ap]; s != nil || !ok {
		return s
	}
	now := int64(time.Since(c.epoch))
	if last := c.asked.Load(); now-last < int64(controlPeriod) || !c.asked.CompareAndSwap(last, now) {
		return nil
	}
	for _, s := range *c.byToken.Load() {
		if s.cfg.Path == nil {
			continue
		}
		if a, ok := addrPort(s.cfg.Path().Addr); ok && a == ap {
			c.move(s, a)
			return s
		}
	}
	return nil
}

// took looks at a packet that was read and says whether it was of repair.
func (c *Conn) took(b []byte, from net.Addr, oob []byte) bool {
	if !isRepair(b) {
		if c.keeping.Load() == 0 {
			return false
		}
		addrs := *c.byAddr.Load()
		if ap, ok := addrPort(from); ok && addrs[ap] != nil {
			addrs[ap].arrived(b, from, oob)
		}
		return false
	}
	kind, token, err := head(b)
	if err != nil {
		c.malformed.Add(1)
		return true
	}
	s := (*c.byToken.Load())[token]
	if s == nil {
		c.strangers.Add(1)
		return true
	}
	if !s.receive(kind, b, from, oob) {
		c.malformed.Add(1)
	}
	return true
}

// wrote takes what quic-go has sent.
func (c *Conn) wrote(b []byte, segment int, addr net.Addr, oob []byte) {
	if s := c.to(addr); s != nil {
		s.wrote(b, segment, addr, oob)
	}
}

// emit sends packets of one size. Parity that cannot be sent is as good as lost.
func (c *Conn) emit(packets []byte, size int, addr net.Addr, oob []byte) {
	if u, ok := addr.(*net.UDPAddr); ok && c.oob != nil {
		if setSegment(oob, size) {
			if len(packets) > 0 {
				_, _, _ = c.oob.WriteMsgUDP(packets, oob, u)
			}
			return
		}
		for len(packets) > 0 {
			_, _, _ = c.oob.WriteMsgUDP(packets[:size], oob, u)
			packets = packets[size:]
		}
		return
	}
	for len(packets) > 0 {
		_, _ = c.below.WriteTo(packets[:size], addr)
		packets = packets[size:]
	}
}

// reply sends one packet.
func (c *Conn) reply(packet []byte, addr net.Addr, oob []byte) {
	c.emit(packet, len(packet), addr, oob)
}

// outbox holds rebuilt packets until the next read.
type outbox struct {
	some atomic.Bool
	mu   struct {
		sync.Mutex
		queue, free []*rebuiltPacket
	}
}

// maxRebuilt is far beyond what one packet can make whole.
const maxRebuilt = 1024

type rebuiltPacket struct {
	data, oob []byte
	from      net.Addr
}

func (o *outbox) push(data []byte, from net.Addr, oob []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.mu.queue) >= maxRebuilt {
		return
	}
	var p *rebuiltPacket
	if n := len(o.mu.free); n > 0 {
		p, o.mu.free = o.mu.free[n-1], o.mu.free[:n-1]
	} else {
		p = new(rebuiltPacket)
	}
	p.data, p.oob, p.from = append(p.data[:0], data...), append(p.oob[:0], oob...), from
	o.mu.queue = append(o.mu.queue, p)
	o.some.Store(true)
}

// pop hands the oldest packet to use, and says whether there was one.
func (o *outbox) pop(use func(*rebuiltPacket)) bool {
	if !o.some.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.mu.queue) == 0 {
		return false
	}
	p := o.mu.queue[0]
	o.mu.queue = append(o.mu.queue[:0], o.mu.queue[1:]...)
	use(p)
	p.from = nil
	o.mu.free = append(o.mu.free, p)
	o.some.Store(len(o.mu.queue) > 0)
	return true
}
