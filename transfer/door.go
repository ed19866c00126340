package transfer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"
)

// Bounds on those who dial. A connection is on its way from its first packet until its hello has been answered.
const (
	// retryAbove is how many may be on their way before a newcomer has to show, by one round trip more, that its address
	// is its own: packets with made-up addresses then cost one packet each and leave nothing here.
	retryAbove = 64
	// crowdAbove is how many may be on their way before each gets crowdTimeout, in place of Config.HandshakeTimeout.
	crowdAbove   = 256
	crowdTimeout = 2 * time.Second
	// maxArriving bounds those on their way in all, maxArrivingAddr those of one address (IPv6: of one /64). Addresses
	// that have a working connection are not counted in the first: a flood from elsewhere does not keep them out.
	maxArriving, maxArrivingAddr = 1024, 128
	// maxGreeted bounds the connections of one peer that have a good certificate and have not said hello; it dials
	// maxDials of a link at a time.
	maxGreeted = 4 * maxDials
	// maxPeerConns bounds the connections of one peer, all its links together.
	maxPeerConns = 2 * maxAccepted
	// acceptedWindow is the receive window that an accepted connection begins with, bytes: it carries control messages,
	// and pages only of writes. It grows as these are taken in, by maxGrown for all connections together.
	acceptedWindow = 1 << 20
	maxGrown       = 1 << 30
)

// refusal is why a connection was not let in: a label of a metric.
type refusal string

const (
	refusedArriving    refusal = "handshakes"  // too many are on their way
	refusedAddress     refusal = "address"     // too many of one address are
	refusedPeer        refusal = "peer"        // one peer has too many
	refusedConnections refusal = "connections" // all peers have
	refusedHello       refusal = "hello"       // none came in time, or not what was to come
)

// door counts the connections that others dial, and bounds them.
type door struct {
	most    int // connections with a stripe
	timeout time.Duration
	window  int64
	logger  *slog.Logger
	metrics *metrics
	log     *rate.Limiter
	mu      struct {
		sync.Mutex
		arriving int
		crowd    map[netip.Prefix]*presence // by address
		peers    map[PeerID]*presence
		inside   int
		grown    int64 // bytes that windows have grown by
	}
}

// presence is what an address, or a peer, has here.
type presence struct{ arriving, inside int }

func (p *presence) empty() bool { return *p == presence{} }

// guest is one connection. Its fields are guarded by the door's lock.
type guest struct {
	door   *door
	addr   netip.Prefix
	peer   PeerID // of its certificate, "" when that names none
	known  bool   // the certificate has been seen
	inside bool   // it has a stripe
	gone   bool
	grown  int64
}

type guestKey struct{}

func newDoor(cfg Config, m *metrics) *door {
	d := &door{
		most: cfg.MaxConnections, timeout: cfg.HandshakeTimeout, window: min(cfg.ConnWindow, acceptedWindow), logger: cfg.Logger, metrics: m,
		log: rate.NewLimiter(rate.Every(time.Second), 32), // a flood is counted, not written down
	}
	d.mu.crowd, d.mu.peers = map[netip.Prefix]*presence{}, map[PeerID]*presence{}
	return d
}

// prefixOf is what stands for an address: of IPv6 the network, in which one host has any number of them.
func prefixOf(a net.Addr) netip.Prefix {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := u.AddrPort().Addr().Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.WithZone("").Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

func at[K comparable](m map[K]*presence, k K) *presence {
	p := m[k]
	if p == nil {
		p = &presence{}
		m[k] = p
	}
	return p
}

func tidy[K comparable](m map[K]*presence, k K) {
	if p := m[k]; p != nil && p.empty() {
		delete(m, k)
	}
}

// retry reports whether an address has to show that it is who it says: quic.Transport.VerifySourceAddress.
func (d *door) retry(net.Addr) bool {
	d.mu.Lock()
	crowded := d.mu.arriving >= retryAbove
	d.mu.Unlock()
	if crowded {
		d.metrics.retried.Inc()
	}
	return crowded
}

// crowded reports whether those on their way get less time.
func (d *door) crowded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.arriving >= crowdAbove
}

// patience is how long a connection may take for its handshake, and again for its hello.
func (d *door) patience() time.Duration {
	if d.crowded() {
		return min(d.timeout, crowdTimeout)
	}
	return d.timeout
}

// config is that of an accepted connection: quic.Config.GetConfigForClient.
func (d *door) config(base *quic.Config) func(*quic.ClientInfo) (*quic.Config, error) {
	return func(*quic.ClientInfo) (*quic.Config, error) {
		c := base.Clone()
		c.HandshakeIdleTimeout = d.patience()
		c.InitialConnectionReceiveWindow = uint64(d.window)
		c.AllowConnectionWindowIncrease = func(conn *quic.Conn, delta uint64) bool { return guestOf(conn).grow(delta) }
		return c, nil
	}
}

// enter counts a connection from its first packet on, or refuses it: quic.Transport.ConnContext.
func (d *door) enter(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	g := &guest{door: d, addr: prefixOf(info.RemoteAddr)}
	if why := d.admit(g); why != "" {
		d.refused(ctx, why, info.RemoteAddr, nil)
		return nil, fmt.Errorf("%s: %w", why, ErrBusy)
	}
	context.AfterFunc(ctx, g.leave) // the context ends with the connection, or when its handshake has failed
	return context.WithValue(ctx, guestKey{}, g), nil
}

func (d *door) admit(g *guest) refusal {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer tidy(d.mu.crowd, g.addr)
	here := at(d.mu.crowd, g.addr)
	switch {
	case here.arriving >= maxArrivingAddr && g.addr.IsValid():
		return refusedAddress
	case d.mu.arriving >= maxArriving && (here.inside == 0 || d.mu.arriving >= 2*maxArriving):
		return refusedArriving
	}
	here.arriving++
	d.mu.arriving++
	return ""
}

// refused counts a refusal, and writes some of them down.
func (d *door) refused(ctx context.Context, why refusal, remote net.Addr, err error) {
	d.metrics.refused.WithLabelValues(string(why)).Inc()
	if d.log.Allow() {
		d.logger.LogAttrs(ctx, slog.LevelWarn, "connection refused",
			slog.String("remote", remote.String()), slog.String("reason", string(why)), slog.Any("error", err))
	}
}

// guestOf is the guest of an accepted connection.
func guestOf(conn *quic.Conn) *guest {
	g, _ := conn.Context().Value(guestKey{}).(*guest)
	return g
}

// greet notes whose certificate a connection has brought; ErrBusy: that peer has too many.
func (g *guest) greet(peer PeerID) error {
	d := g.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.gone {
		return fmt.Errorf("connection of %q: %w", peer, ErrClosed)
	}
	defer tidy(d.mu.peers, peer)
	p := at(d.mu.peers, peer)
	if p.arriving >= maxGreeted {
		return fmt.Errorf("peer %q has %d connections that have not said hello, at most %d: %w", peer, p.arriving, maxGreeted, ErrBusy)
	}
	g.peer, g.known = peer, true
	p.arriving++
	return nil
}

// settle notes that a connection is to become a stripe. ErrBusy: there are too many, of the peer or in all.
func (g *guest) settle() (refusal, error) {
	d := g.door
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.mu.peers[g.peer]
	switch {
	case g.gone || p == nil:
		return refusedHello, fmt.Errorf("connection of %q: %w", g.peer, ErrClosed)
	case p.inside >= maxPeerConns:
		return refusedPeer, fmt.Errorf("peer %q has %d connections here, at most %d: %w", g.peer, p.inside, maxPeerConns, ErrBusy)
	case d.mu.inside >= d.most:
		return refusedConnections, fmt.Errorf("%d connections, at most %d (Config.MaxConnections): %w", d.mu.inside, d.most, ErrBusy)
	}
	here := d.mu.crowd[g.addr]
	g.inside = true
	p.arriving, p.inside = p.arriving-1, p.inside+1
	here.arriving, here.inside = here.arriving-1, here.inside+1
	d.mu.arriving--
	d.mu.inside++
	return "", nil
}

// leave forgets a connection that has ended.
func (g *guest) leave() {
	d := g.door
	d.mu.Lock()
	defer d.mu.Unlock()
	g.gone = true
	d.mu.grown -= g.grown
	here, p := d.mu.crowd[g.addr], d.mu.peers[g.peer]
	if g.inside {
		here.inside, p.inside = here.inside-1, p.inside-1
		d.mu.inside--
	} else {
		here.arriving--
		d.mu.arriving--
		if g.known {
			p.arriving--
		}
	}
	tidy(d.mu.crowd, g.addr)
	tidy(d.mu.peers, g.peer)
}

// grow reports whether the connection's receive window may grow by delta bytes.
func (g *guest) grow(delta uint64) bool {
	if g == nil {
		return false
	}
	d := g.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.gone || delta > maxGrown || d.mu.grown+int64(delta) > maxGrown {
		return false
	}
	g.grown += int64(delta)
	d.mu.grown += int64(delta)
	return true
}

// onTheWay is how many connections are; inside, how many have a stripe.
func (d *door) onTheWay() (arriving, inside int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.arriving, d.mu.inside
}
