package transfer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/udp"
	"github.com/kvferry/kvferry/transfer/wire"
)

// Lock order: Agent.mu and Transfer.mu before Link.mu, Link.mu before the locks of
// hedges, scheduler and outbox, hedges before scheduler, scheduler before limiters
// and limiter. The locks of ending and memory are leaves. None is held across I/O
// or a call into the consumer's code.

// An Agent owns registered memories and the links to its peers. All methods are
// safe for concurrent use.
type Agent struct {
	cfg      Config
	quic     *quic.Config
	server   *quic.Transport // nil: does not listen
	repair   *repair.Conn    // over Config.Conn; nil: does not listen, or repair is off
	listener *quic.Listener
	door     *door
	metrics  *metrics

	outBuffers sync.Pool // *chunkBuffer, a chunk each
	inBuffers  sync.Pool // *chunkBuffer, a page each
	outCodes   sync.Pool // *codedChunk, a chunk each
	inCodes    sync.Pool // *codedPage, a page each
	processors *processors
	limiters   limiters // of tenants

	// ctx ends with the agent.
	ctx    context.Context //nolint:containedctx // a lifetime, like net/http's base context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // acceptor, hellos of accepted connections

	mu struct {
		sync.Mutex
		closed     bool
		closeDone  chan struct{}
		memories   map[MemoryID]*memory
		nextMemory MemoryID
		links      map[*Link]struct{}
		dialled    map[PeerID]*dialling // live, or being dialled
	}
}

// Open starts an agent; Close is owed. Errors: a joined *FieldError for each bad
// field, or the listener's. On an error Config.Conn stays the caller's.
func Open(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open transfer agent: %w", err)
	}
	cfg = cfg.withDefaults()
	if err := cfg.checkName(); err != nil {
		return nil, fmt.Errorf("open transfer agent: %w", err)
	}
	a := &Agent{cfg: cfg, quic: cfg.quicConfig(), processors: newProcessors(cfg)}
	a.outBuffers.New = func() any { return new(chunkBuffer) }
	a.inBuffers.New = func() any { return new(chunkBuffer) }
	a.outCodes.New = func() any { return new(codedChunk) }
	a.inCodes.New = func() any { return new(codedPage) }
	a.mu.closeDone = make(chan struct{})
	a.mu.memories = make(map[MemoryID]*memory)
	a.mu.links = make(map[*Link]struct{})
	a.mu.dialled = make(map[PeerID]*dialling)
	var err error
	if a.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	a.door = newDoor(cfg, a.metrics)
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	if cfg.Conn == nil {
		return a, nil
	}
	if a.cfg.Conn, err = wrapUDP(cfg.Conn); err != nil {
		a.metrics.unregister()
		a.cancel(ErrClosed)
		return nil, fmt.Errorf("listen: %w", err)
	}
	a.warnBuffers()
	socket := a.cfg.Conn
	if !cfg.Repair.Off() {
		a.repair = repair.Wrap(socket, cfg.Repair)
		socket = a.repair.PacketConn()
	}
	a.server = &quic.Transport{Conn: socket, StatelessResetKey: resetKey(cfg.Name, cfg.TLS), VerifySourceAddress: a.door.retry, ConnContext: a.door.enter}
	accepted := a.quic.Clone()
	accepted.GetConfigForClient = a.door.config(a.quic)
	if a.listener, err = a.server.Listen(cfg.listenTLS(), accepted); err != nil {
		a.metrics.unregister()
		a.cancel(ErrClosed)
		return nil, errors.Join(fmt.Errorf("listen: %w", err), a.server.Close())
	}
	a.wg.Go(a.accept)
	return a, nil
}

// warnBuffers tells what the listening socket lacks; those of stripes are alike.
func (a *Agent) warnBuffers() {
	u, ok := a.cfg.Conn.(*udp.Conn)
	if !ok {
		return
	}
	has := u.Buffers()
	for name, b := range map[string]udp.Buffer{"read": has.Read, "write": has.Write} {
		if b.Short() {
			a.cfg.Logger.LogAttrs(a.ctx, slog.LevelWarn, "socket buffer is smaller than asked for: packets are lost when the process is not scheduled for a moment",
				slog.String("buffer", name), slog.Int("asked_bytes", b.Asked), slog.Int("got_bytes", b.Got), slog.String("fix", b.Fix))
		}
	}
}

// checkName holds Config.Name against the certificate, where there is one to
// look at.
func (c Config) checkName() error {
	if len(c.TLS.Certificates) == 0 {
		return nil
	}
	leaf, err := leafOf(c.TLS.Certificates[0])
	if err != nil {
		return &FieldError{Field: "Config.TLS.Certificates", Value: err, Allowed: "a certificate that parses", Fix: "load the node's certificate"}
	}
	id, err := c.Identify(leaf)
	if err != nil || id != c.Name {
		return &FieldError{
			Field: "Config.Name", Value: fmt.Sprintf("%q", string(c.Name)),
			Allowed: fmt.Sprintf("%q, as in the certificate", string(id)), Fix: "use the certificate of this node", Err: errors.Join(ErrPeerIdentity, err),
		}
	}
	return nil
}

func leafOf(c tls.Certificate) (*x509.Certificate, error) {
	switch {
	case c.Leaf != nil:
		return c.Leaf, nil
	case len(c.Certificate) == 0:
		return nil, errors.New("no certificate in the chain")
	}
	return x509.ParseCertificate(c.Certificate[0])
}

// recall returns what is remembered of the path to a peer.
func (a *Agent) recall(id PeerID) Estimates {
	if a.cfg.Recall == nil {
		return Estimates{}
	}
	return a.cfg.Recall(id)
}

// Addr returns the address that the agent listens on, nil if it does not.
func (a *Agent) Addr() net.Addr {
	if a.listener == nil {
		return nil
	}
	return a.listener.Addr()
}

// Peer returns this agent's own name and incarnation.
func (a *Agent) Peer() Peer { return Peer{ID: a.cfg.Name, Incarnation: a.cfg.Incarnation} }

// Close ends every link, transfer and call, waits until all goroutines and
// calls into Sources, Sinks and handlers have returned, and closes the sockets.
// It waits up to a second for peers to acknowledge transfers that ended. It is
// idempotent, and must not be called from a callback.
func (a *Agent) Close() error {
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		<-a.mu.closeDone
		return nil
	}
	a.mu.closed = true
	defer close(a.mu.closeDone)
	links := make([]*Link, 0, len(a.mu.links))
	for l := range a.mu.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	var errs []error
	if a.listener != nil {
		errs = append(errs, a.listener.Close())
	}
	var closing sync.WaitGroup
	for _, l := range links {
		closing.Go(func() { _ = l.Close(CodeOK) }) // Close of a link always returns nil
	}
	closing.Wait()
	a.cancel(ErrClosed)
	a.wg.Wait()
	for _, l := range links {
		l.wg.Wait()
	}
	if a.server != nil {
		errs = append(errs, a.server.Close(), a.server.Conn.Close())
	}
	a.metrics.unregister()
	return errors.Join(errs...)
}

// Register makes a memory known under a new id and announces it to the peers.
// Errors: *FieldError, ErrBusy beyond wire.MaxMemories, ErrClosed.
func (a *Agent) Register(m Memory) (MemoryID, error) {
	if err := m.validate(); err != nil {
		return 0, fmt.Errorf("register memory: %w", err)
	}
	a.mu.Lock()
	switch {
	case a.mu.closed:
		a.mu.Unlock()
		return 0, fmt.Errorf("register memory: agent: %w", ErrClosed)
	case len(a.mu.memories) >= wire.MaxMemories:
		a.mu.Unlock()
		return 0, fmt.Errorf("register memory: %d are registered: %w", wire.MaxMemories, ErrBusy)
	}
	a.mu.nextMemory++
	id := a.mu.nextMemory
	a.mu.memories[id] = newMemory(id, m)
	a.mu.Unlock()
	a.announce()
	return id, nil
}

// Deregister forgets a memory and returns when no call into its Source or Sink
// runs or will start. Transfers that need it fail with ErrUnknownMemory. It must
// not be called from such a call. Error: ErrUnknownMemory.
func (a *Agent) Deregister(id MemoryID) error {
	a.mu.Lock()
	m := a.mu.memories[id]
	delete(a.mu.memories, id)
	a.mu.Unlock()
	if m == nil {
		return fmt.Errorf("deregister memory %d: %w", id, ErrUnknownMemory)
	}
	m.close()
	a.announce()
	return nil
}

func (a *Agent) announce() {
	for _, l := range a.Links() {
		l.pushMetadata()
	}
}

func (a *Agent) lookup(id MemoryID) (*memory, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.mu.memories[id]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("memory %d: %w", id, ErrUnknownMemory)
}

// Metadata returns what peers are told.
func (a *Agent) Metadata() Metadata {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := Metadata{Peer: a.Peer()}
	for id, r := range a.mu.memories {
		m.Memories = append(m.Memories, MemoryShape{
			ID: id, PageBytes: r.PageBytes, Length: r.Length,
			Readable: r.Source != nil, Writable: r.Sink != nil && r.RemoteWrite,
		})
	}
	slices.SortFunc(m.Memories, func(x, y MemoryShape) int { return int(x.ID) - int(y.ID) })
	return m
}

// Links returns the live links, dialled and accepted, in no order.
func (a *Agent) Links() []*Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*Link, 0, len(a.mu.links))
	for l := range a.mu.links {
		out = append(out, l)
	}
	return out
}

// add makes a link known; it fails when the agent is closed.
func (a *Agent) add(want PeerID, nonce wire.Nonce, addr net.Addr) (*Link, error) {
	known := a.recall(want)
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return nil, fmt.Errorf("agent: %w", ErrClosed)
	}
	l := newLink(a, want, nonce, addr, known)
	a.mu.links[l] = struct{}{}
	a.mu.Unlock()
	l.pushMetadata()
	a.metrics.links.Inc()
	return l, nil
}

// forget is called once, at a link's end. The link's goroutines are waited for
// by a goroutine of the agent's.
func (a *Agent) forget(l *Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.mu.links[l]; !ok {
		return
	}
	delete(a.mu.links, l)
	if d := a.mu.dialled[l.want]; d != nil && d.link == l {
		delete(a.mu.dialled, l.want)
	}
	a.metrics.links.Dec()
	if !a.mu.closed { // Close holds the link and waits itself
		a.wg.Go(l.wg.Wait)
	}
}
