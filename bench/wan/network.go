package wan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// ErrAddrInUse is returned by Network.Listen for an address that a socket
// holds.
var ErrAddrInUse = errors.New("wan: address already in use")

// firstEphemeralPort starts the range that port 0 picks from.
const firstEphemeralPort = 49152

// A Network is a set of in-memory hosts, named by IP address, and the directed
// links between them. Each ordered pair of different addresses has one link,
// shared by all sockets of the two hosts and opened when it is first used.
// Sockets of one address reach each other at once and without loss.
type Network struct {
	model Model

	mu struct {
		sync.RWMutex
		closed   bool
		socks    map[netip.AddrPort]*conn
		links    map[pair]*Link
		nextPort map[netip.Addr]uint16
		tap      func(Packet) Verdict
	}
}

type pair struct{ from, to netip.Addr }

func (p pair) String() string { return p.from.String() + ">" + p.to.String() }

// NewNetwork returns a network whose links follow m unless SetModel says
// otherwise. m must be valid (see Model.Validate); NewNetwork panics if not.
// Close is owed.
func NewNetwork(m Model) *Network {
	if err := m.Validate(); err != nil {
		panic("BUG: NewNetwork: " + err.Error())
	}
	n := &Network{model: m}
	n.mu.socks = map[netip.AddrPort]*conn{}
	n.mu.links = map[pair]*Link{}
	n.mu.nextPort = map[netip.Addr]uint16{}
	return n
}

// Listen opens a socket. addr names a host; port 0 picks a free port of it.
// The socket behaves like a *net.UDPConn: reads and writes after Close wrap
// net.ErrClosed, reads past the deadline wrap os.ErrDeadlineExceeded, writes
// never block, a datagram that does not fit the reader's buffer is cut short.
// LocalAddr and the addresses from ReadFrom are *net.UDPAddr, shared and not
// to be modified. Writes take a *net.UDPAddr.
//
// Up to 4 MiB of payload wait for a reader (SetReadBuffer changes it); what
// does not fit is dropped and counted as LinkStats.DroppedReceiver.
//
// Listen returns an error for an address that is not a host's, ErrAddrInUse,
// or net.ErrClosed after Close.
func (n *Network) Listen(addr netip.AddrPort) (net.PacketConn, error) {
	ip := addr.Addr().Unmap()
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return nil, fmt.Errorf("wan: listen on %s: want a host's own address, such as 10.0.0.1:4433, or port 0 for any", addr)
	}
	addr = netip.AddrPortFrom(ip, addr.Port())
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return nil, fmt.Errorf("wan: listen on %s: network: %w", addr, net.ErrClosed)
	}
	if addr.Port() == 0 {
		port, ok := n.freePort(ip)
		if !ok {
			return nil, fmt.Errorf("wan: listen on %s: all ports from %d: %w", addr, firstEphemeralPort, ErrAddrInUse)
		}
		addr = netip.AddrPortFrom(ip, port)
	}
	if n.mu.socks[addr] != nil {
		return nil, fmt.Errorf("wan: listen on %s: %w: close its socket first, or use port 0", addr, ErrAddrInUse)
	}
	c := newConn(n, addr)
	n.mu.socks[addr] = c
	return c, nil
}

// freePort is called with mu held.
func (n *Network) freePort(ip netip.Addr) (uint16, bool) {
	for range 1<<16 - firstEphemeralPort {
		port := max(n.mu.nextPort[ip], firstEphemeralPort)
		n.mu.nextPort[ip] = port + 1 // wraps to 0, and max brings it back
		if n.mu.socks[netip.AddrPortFrom(ip, port)] == nil {
			return port, true
		}
	}
	return 0, false
}

// SetModel gives both directions between two hosts the model m, also under way
// (see Link.SetModel). It returns Model.Validate's error and then changes
// nothing.
func (n *Network) SetModel(a, b netip.Addr, m Model) error {
	return errors.Join(n.SetModelOneWay(a, b, m), n.SetModelOneWay(b, a, m))
}

// SetModelOneWay is SetModel for the packets from one host to another.
func (n *Network) SetModelOneWay(from, to netip.Addr, m Model) error {
	l := n.link(from, to)
	if l == nil {
		return m.Validate()
	}
	return l.SetModel(m)
}

// Cut cuts both directions between two hosts (see Link.Cut): when it returns,
// nothing passes any more and what was in flight is lost.
func (n *Network) Cut(a, b netip.Addr) {
	n.CutOneWay(a, b)
	n.CutOneWay(b, a)
}

// CutOneWay cuts the direction from one host to another.
func (n *Network) CutOneWay(from, to netip.Addr) {
	if l := n.link(from, to); l != nil {
		l.Cut()
	}
}

// Heal undoes Cut and CutOneWay in both directions.
func (n *Network) Heal(a, b netip.Addr) {
	for _, l := range []*Link{n.link(a, b), n.link(b, a)} {
		if l != nil {
			l.Heal()
		}
	}
}

// Stats returns the counters of the direction from one host to another, zero
// for a link that has not been used.
func (n *Network) Stats(from, to netip.Addr) LinkStats {
	n.mu.RLock()
	l := n.mu.links[pair{from.Unmap(), to.Unmap()}]
	n.mu.RUnlock()
	if l == nil {
		return LinkStats{}
	}
	return l.Stats()
}

// A Packet is what a tap sees: one datagram before it is offered to its link.
type Packet struct {
	From, To netip.AddrPort
	Data     []byte // payload; may be modified in place, not retained
}

// A Verdict is a tap's decision.
type Verdict int

const (
	Pass Verdict = iota // offer the packet to its link
	Drop                // discard it; no counter sees it
)

// Tap installs f, called for every datagram in the sender's goroutine, by
// several at once if there are several senders. Nil removes it.
func (n *Network) Tap(f func(Packet) Verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.tap = f
}

// link returns the directed link, opening it if need be; nil between a host
// and itself and after Close.
func (n *Network) link(from, to netip.Addr) *Link {
	key := pair{from.Unmap(), to.Unmap()}
	n.mu.RLock()
	l := n.mu.links[key]
	n.mu.RUnlock()
	if l != nil || key.from == key.to {
		return l
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if l = n.mu.links[key]; l == nil && !n.mu.closed {
		l = OpenLink(n.model, key.String())
		n.mu.links[key] = l
	}
	return l
}

// send routes one datagram. It takes ownership of p.
func (n *Network) send(p *packet, from netip.AddrPort) {
	n.mu.RLock()
	tap := n.mu.tap
	l := n.mu.links[pair{from.Addr(), p.to.Addr()}]
	n.mu.RUnlock()
	if tap != nil && tap(Packet{From: from, To: p.to, Data: p.data}) == Drop {
		p.free()
		return
	}
	p.sink = n
	if l == nil {
		l = n.link(from.Addr(), p.to.Addr())
	}
	switch {
	case l != nil:
		l.send(p)
	case from.Addr() != p.to.Addr() || !n.receive(p):
		p.free()
	}
}

// receive implements sink.
func (n *Network) receive(p *packet) bool {
	n.mu.RLock()
	c := n.mu.socks[p.to]
	n.mu.RUnlock()
	return c != nil && c.receive(p)
}

// forget is called by a socket that closes.
func (n *Network) forget(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.socks[c.addr] == c {
		delete(n.mu.socks, c.addr)
	}
}

// Close closes every socket and link and waits for their goroutines. It is
// idempotent and never fails.
func (n *Network) Close() error {
	n.mu.Lock()
	n.mu.closed = true
	socks, links := n.mu.socks, n.mu.links
	n.mu.socks, n.mu.links = map[netip.AddrPort]*conn{}, map[pair]*Link{}
	n.mu.Unlock()
	for _, c := range socks {
		_ = c.Close()
	}
	for _, l := range links {
		_ = l.Close()
	}
	return nil
}
