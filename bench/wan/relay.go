package wan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// DefaultMaxFlows is how many client addresses a relay serves at a time.
const DefaultMaxFlows = 1024

// relayBuffer is asked of the kernel for each socket, in bytes; it may give less.
const relayBuffer = 4 << 20

// RelayConfig describes a Relay.
type RelayConfig struct {
	// Listen is the UDP address clients send to, such as 127.0.0.1:0.
	Listen string
	// Target is the UDP address they reach.
	Target string
	// Model shapes each direction for which no Link is given. Zero is a perfect
	// link.
	Model Model
	// Up carries client to target, Down target to client. A Link given here may
	// serve several relays and stays the caller's to close; nil opens one of
	// Model, closed with the relay.
	Up, Down *Link
	// MaxFlows bounds the client addresses served; the one idle for longest
	// makes room. Zero is 1024, negative is unlimited.
	MaxFlows int
}

// RelayStats counts what a relay has done.
type RelayStats struct {
	Up, Down LinkStats // of the links, other relays on them included
	Flows    int       // client addresses served now
	Evicted  int64     // flows that made room for another
}

// A Relay forwards datagrams between real UDP sockets through a pair of links.
// Like a NAT it gives each client address a socket of its own towards the
// target.
type Relay struct {
	cfg      RelayConfig
	conn     *net.UDPConn
	target   netip.AddrPort
	ownLinks []*Link
	tasks    sync.WaitGroup // the client reader and one reader a flow

	mu struct {
		sync.Mutex
		closed  bool
		flows   map[netip.AddrPort]*flow
		evicted int64
	}
}

// OpenRelay starts a relay. Close is owed. It returns an error that names the
// field for an address that can't be used or a Model that is not valid.
func OpenRelay(cfg RelayConfig) (*Relay, error) {
	if err := cfg.Model.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxFlows == 0 {
		cfg.MaxFlows = DefaultMaxFlows
	}
	target, err := net.ResolveUDPAddr("udp", cfg.Target)
	if err != nil || target.Port == 0 || target.IP == nil {
		return nil, fmt.Errorf("wan: relay target %q: want host:port, such as 127.0.0.1:4433: %w", cfg.Target, errors.Join(err, errMissingHostOrPort(target)))
	}
	listen, err := net.ResolveUDPAddr("udp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("wan: relay listen address %q: want host:port, such as 127.0.0.1:0: %w", cfg.Listen, err)
	}
	conn, err := net.ListenUDP("udp", listen)
	if err != nil {
		return nil, fmt.Errorf("wan: relay listen address %q: %w", cfg.Listen, err)
	}
	setBuffers(conn)
	r := &Relay{cfg: cfg, conn: conn, target: unmap(target.AddrPort())}
	r.mu.flows = map[netip.AddrPort]*flow{}
	if r.cfg.Up == nil {
		r.cfg.Up = r.openLink("up")
	}
	if r.cfg.Down == nil {
		r.cfg.Down = r.openLink("down")
	}
	r.tasks.Go(r.readClients)
	return r, nil
}

func errMissingHostOrPort(a *net.UDPAddr) error {
	if a == nil {
		return nil
	}
	return errors.New("host or port is missing")
}

func (r *Relay) openLink(name string) *Link {
	l := OpenLink(r.cfg.Model, name)
	r.ownLinks = append(r.ownLinks, l)
	return l
}

func setBuffers(c *net.UDPConn) {
	// The kernel caps these at rmem_max and wmem_max without an error; a relay
	// with small buffers drops as a busy router would.
	_ = c.SetReadBuffer(relayBuffer)
	_ = c.SetWriteBuffer(relayBuffer)
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Addr is the address clients send to.
func (r *Relay) Addr() netip.AddrPort {
	return unmap(r.conn.LocalAddr().(*net.UDPAddr).AddrPort())
}

// Stats returns the relay's counters.
func (r *Relay) Stats() RelayStats {
	r.mu.Lock()
	s := RelayStats{Flows: len(r.mu.flows), Evicted: r.mu.evicted}
	r.mu.Unlock()
	s.Up, s.Down = r.cfg.Up.Stats(), r.cfg.Down.Stats()
	return s
}

// SetModel changes both links, for all relays that share them (see
// Link.SetModel). It returns Model.Validate's error and then changes nothing.
func (r *Relay) SetModel(m Model) error {
	return errors.Join(r.cfg.Up.SetModel(m), r.cfg.Down.SetModel(m))
}

// Cut cuts both links, for all relays that share them.
func (r *Relay) Cut() { r.cfg.Up.Cut(); r.cfg.Down.Cut() }

// Heal undoes Cut.
func (r *Relay) Heal() { r.cfg.Up.Heal(); r.cfg.Down.Heal() }

// Close closes the sockets and the links that the relay opened and waits for
// the goroutines. It is idempotent.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.mu.closed {
		r.mu.Unlock()
		r.tasks.Wait()
		return nil
	}
	r.mu.closed = true
	err := r.conn.Close()
	for _, f := range r.mu.flows {
		err = errors.Join(err, f.conn.Close())
	}
	clear(r.mu.flows)
	r.mu.Unlock()
	r.tasks.Wait()
	for _, l := range r.ownLinks {
		err = errors.Join(err, l.Close())
	}
	return err
}

// A flow is one client's mapping.
type flow struct {
	relay    *Relay
	client   netip.AddrPort
	conn     *net.UDPConn // connected to the target
	lastUsed time.Time    // guarded by relay.mu
	up       upstreamSink // where the up link delivers
	down     clientSink   // where the down link delivers
}

type upstreamSink struct{ conn *net.UDPConn }

func (s upstreamSink) receive(p *packet) bool {
	_, err := s.conn.Write(p.data)
	if err == nil {
		p.free()
	}
	return err == nil
}

type clientSink struct {
	conn   *net.UDPConn
	client netip.AddrPort
}

func (s clientSink) receive(p *packet) bool {
	_, err := s.conn.WriteToUDPAddrPort(p.data, s.client)
	if err == nil {
		p.free()
	}
	return err == nil
}

// readClients runs until the listening socket is closed.
func (r *Relay) readClients() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier write
		}
		f := r.flow(unmap(from))
		if f == nil {
			continue
		}
		p := newPacket(buf[:n])
		p.sink = &f.up
		r.cfg.Up.send(p)
	}
}

// flow returns the client's mapping, making one if need be; nil when that is
// not possible, and the datagram is dropped.
func (r *Relay) flow(client netip.AddrPort) *flow {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.mu.flows[client]; f != nil {
		f.lastUsed = now
		return f
	}
	if r.mu.closed {
		return nil
	}
	if r.cfg.MaxFlows > 0 && len(r.mu.flows) >= r.cfg.MaxFlows {
		r.evict()
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.target))
	if err != nil {
		return nil
	}
	setBuffers(conn)
	f := &flow{relay: r, client: client, conn: conn, lastUsed: now}
	f.up, f.down = upstreamSink{conn}, clientSink{r.conn, client}
	r.mu.flows[client] = f
	r.tasks.Go(f.readTarget)
	return f
}

// evict drops the flow idle for longest. Called with mu held.
func (r *Relay) evict() {
	var oldest *flow
	for _, f := range r.mu.flows {
		if oldest == nil || f.lastUsed.Before(oldest.lastUsed) {
			oldest = f
		}
	}
	delete(r.mu.flows, oldest.client)
	r.mu.evicted++
	_ = oldest.conn.Close()
}

// readTarget runs until the flow's socket is closed.
func (f *flow) readTarget() {
	buf := make([]byte, 1<<16)
	for {
		n, err := f.conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // port unreachable: the target may come back
		}
		p := newPacket(buf[:n])
		p.sink = &f.down
		f.relay.cfg.Down.send(p)
	}
}
