package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/bench/wan"
)

const (
	quicProtocol = "kvferry-compare"
	// streamsPerConn are written side by side on a connection, so that one is ready when another is done.
	streamsPerConn = 2
	maxConns       = 64
)

// quicConfig is quic-go's default but for windows that do not bind: those of package transfer.
func quicConfig() *quic.Config {
	return &quic.Config{
		InitialStreamReceiveWindow: 4<<20 + 64<<10, MaxStreamReceiveWindow: 8 << 20, InitialConnectionReceiveWindow: 32 << 20, MaxConnectionReceiveWindow: 64 << 20,
		MaxIncomingStreams: 1, MaxIncomingUniStreams: 1024, KeepAlivePeriod: 10 * time.Second,
	}
}

func serveQUIC(c *endConfig, m *memory) (string, io.Closer, error) {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return "", nil, err
	}
	s, err := serveQUICOver(c, m, conn)
	if err != nil {
		return "", nil, errors.Join(err, conn.Close())
	}
	return conn.LocalAddr().String(), s, nil
}

// quicSource answers each request with every chunk, over all connections of the one destination.
type quicSource struct {
	m         *memory
	transport *quic.Transport
	listener  *quic.Listener
	conn      net.PacketConn
	stop      context.CancelFunc
	wg        sync.WaitGroup // acceptor; requests; senders

	mu struct {
		sync.Mutex
		conns []*quic.Conn
	}
}

func serveQUICOver(c *endConfig, m *memory, conn net.PacketConn) (io.Closer, error) {
	t, err := c.serverTLS(quicProtocol)
	if err != nil {
		return nil, err
	}
	s := &quicSource{m: m, conn: conn, transport: &quic.Transport{Conn: conn}}
	if s.listener, err = s.transport.Listen(t, quicConfig()); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(func() { // ends when the listener is closed
		for {
			q, err := s.listener.Accept(ctx)
			if err != nil {
				return
			}
			s.mu.Lock()
			ok := len(s.mu.conns) < maxConns
			if ok {
				s.mu.conns = append(s.mu.conns, q)
			}
			s.mu.Unlock()
			if !ok {
				_ = q.CloseWithError(1, "too many connections")
				continue
			}
			s.wg.Go(func() { s.requests(ctx, q) })
		}
	})
	return s, nil
}

// requests serves the one request stream of a connection, if it has one: each byte on it asks for everything.
func (s *quicSource) requests(ctx context.Context, q *quic.Conn) {
	r, err := q.AcceptStream(ctx)
	if err != nil {
		return
	}
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		s.mu.Lock()
		conns := s.mu.conns
		s.mu.Unlock()
		var next atomic.Int64
		for _, q := range conns {
			for range streamsPerConn {
				s.wg.Go(func() { s.send(ctx, q, &next) })
			}
		}
	}
}

// send writes chunks that nobody else has taken, a stream each. An error shows at the destination as what does not arrive.
func (s *quicSource) send(ctx context.Context, q *quic.Conn, next *atomic.Int64) {
	head := make([]byte, s.m.frameHead())
	for {
		i := int(next.Add(1) - 1)
		if i >= s.m.chunks() {
			return
		}
		w, err := q.OpenUniStreamSync(ctx)
		if err != nil {
			return
		}
		if err := s.m.writeFrame(w, i, head); err != nil {
			_ = q.CloseWithError(2, err.Error())
			return
		}
		_ = w.Close() // fails after a reset only
	}
}

func (s *quicSource) Close() error {
	s.stop()
	err := errors.Join(s.listener.Close(), s.transport.Close(), s.conn.Close())
	s.wg.Wait()
	return err
}

// quicMover is the destination.
type quicMover struct {
	m       *memory
	conns   []*quic.Conn
	request *quic.Stream
	failed  chan error // of a receiver; capacity 1: the first counts
	closers closers
	stop    context.CancelFunc
	wg      sync.WaitGroup // receivers, acceptors
	readers sync.Pool      // *frameReader
}

// dialQUIC dials so many connections, a socket each.
func dialQUIC(n int) func(context.Context, *endConfig, *memory) (mover, error) {
	return func(ctx context.Context, c *endConfig, m *memory) (mover, error) {
		addr, err := net.ResolveUDPAddr("udp", c.Addr)
		if err != nil {
			return nil, err
		}
		return dialQUICOver(ctx, c, m, n, addr, func() (net.PacketConn, error) {
			return net.ListenPacket("udp", net.JoinHostPort(c.Host, "0"))
		})
	}
}

func dialQUICOver(ctx context.Context, c *endConfig, m *memory, n int, addr net.Addr, listen func() (net.PacketConn, error)) (_ mover, err error) {
	d := &quicMover{m: m, failed: make(chan error, 1)}
	d.readers.New = func() any { return newFrameReader(m) }
	var life context.Context
	life, d.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	t, err := c.clientTLS(quicProtocol)
	if err != nil {
		return nil, err
	}
	for range n {
		conn, err := listen()
		if err != nil {
			return nil, err
		}
		tr := &quic.Transport{Conn: conn}
		d.closers = append(d.closers, conn, tr)
		q, err := tr.Dial(ctx, addr, t, quicConfig())
		if err != nil {
			return nil, err
		}
		d.conns = append(d.conns, q)
		d.wg.Go(func() { d.accept(life, q) })
	}
	d.request, err = d.conns[0].OpenStreamSync(ctx)
	return d, err
}

// accept reads each stream of a connection on a goroutine of its own.
func (d *quicMover) accept(ctx context.Context, q *quic.Conn) {
	for {
		s, err := q.AcceptUniStream(ctx)
		if err != nil {
			d.fail(ctx, err)
			return
		}
		d.wg.Go(func() {
			f := d.readers.Get().(*frameReader)
			defer d.readers.Put(f)
			if err := f.next(s); err != nil {
				d.fail(ctx, fmt.Errorf("read a stream: %w", err))
				return
			}
			if _, err := s.Read(f.head[:1]); !errors.Is(err, io.EOF) {
				d.fail(ctx, fmt.Errorf("a stream goes on after its chunk: %w", err))
			}
		})
	}
}

func (d *quicMover) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	select {
	case d.failed <- err:
	default:
	}
}

func (d *quicMover) landed() int64 { return d.m.landed() }

func (d *quicMover) move(ctx context.Context) error {
	if _, err := d.request.Write([]byte{1}); err != nil {
		return err
	}
	select {
	case <-d.m.all:
		return nil
	case err := <-d.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *quicMover) Close() error {
	d.stop()
	for _, q := range d.conns {
		_ = q.CloseWithError(0, "")
	}
	err := d.closers.Close()
	d.wg.Wait()
	return err
}

// memoryConns is how many connections the floor has. One is the cheapest: 8 took 3.4 s/GB where one took 2.7 (2 cores, Zen 5).
const memoryConns = 1

// serveMemory opens the source of the floor on an in-memory network, which stays in c for the destination.
func serveMemory(c *endConfig, m *memory) (string, io.Closer, error) {
	c.network = wan.NewNetwork(wan.Model{})
	conn, err := c.network.Listen(netip.MustParseAddrPort("10.0.0.1:4433"))
	if err != nil {
		return "", nil, errors.Join(err, c.network.Close())
	}
	s, err := serveQUICOver(c, m, conn)
	if err != nil {
		return "", nil, errors.Join(err, c.network.Close())
	}
	return conn.LocalAddr().String(), closers{c.network, s}, nil
}

// dialMemory dials on the same host of that network: its sockets reach each other without a link between them.
func dialMemory(ctx context.Context, c *endConfig, m *memory) (mover, error) {
	addr, err := net.ResolveUDPAddr("udp", c.Addr)
	if err != nil {
		return nil, err
	}
	host := addr.AddrPort().Addr()
	d := *c
	d.Role, d.Cert, d.Key = roleDestination, c.OtherCert, c.OtherKey
	return dialQUICOver(ctx, &d, m, memoryConns, addr, func() (net.PacketConn, error) { return c.network.Listen(netip.AddrPortFrom(host, 0)) })
}
