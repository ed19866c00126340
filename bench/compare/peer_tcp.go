package compare

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

func serveTCP(c *endConfig, m *memory) (string, io.Closer, error) {
	t, err := c.serverTLS()
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), newTCPSource(m, tls.NewListener(l, t)), nil
}

// serveKernel serves plain TCP with a congestion control of the kernel's.
func serveKernel(congestion string) func(*endConfig, *memory) (string, io.Closer, error) {
	return func(c *endConfig, m *memory) (string, io.Closer, error) {
		lc := net.ListenConfig{Control: congestionControl(congestion)} // what it accepts has it too
		l, err := lc.Listen(context.Background(), "tcp4", net.JoinHostPort(c.Host, "0"))
		if err != nil {
			return "", nil, err
		}
		return l.Addr().String(), newTCPSource(m, l), nil
	}
}

func dialKernel(congestion string) func(context.Context, *endConfig, *memory) (mover, error) {
	return func(ctx context.Context, c *endConfig, m *memory) (mover, error) {
		conn, err := (&net.Dialer{Control: congestionControl(congestion)}).DialContext(ctx, "tcp4", c.Addr)
		if err != nil {
			return nil, err
		}
		return &streamMover{Conn: conn, frames: newFrameReader(m)}, nil
	}
}

func newTCPSource(m *memory, l net.Listener) *tcpSource {
	s := &tcpSource{m: m, listener: l}
	s.wg.Go(s.accept)
	return s
}

// tcpSource answers each byte of its one connection with every chunk.
type tcpSource struct {
	m        *memory
	listener net.Listener
	wg       sync.WaitGroup // the acceptor, which serves

	mu struct {
		sync.Mutex
		conn   net.Conn
		closed bool
	}
}

func (s *tcpSource) accept() {
	conn, err := s.listener.Accept()
	if err != nil {
		return
	}
	s.mu.Lock()
	s.mu.conn = conn
	closed := s.mu.closed
	s.mu.Unlock()
	if closed {
		_ = conn.Close()
		return
	}
	head := make([]byte, s.m.frameHead())
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		for i := range s.m.chunks() {
			if err := s.m.writeFrame(conn, i, head); err != nil {
				return // the destination sees its connection end
			}
		}
	}
}

func (s *tcpSource) Close() error {
	err := s.listener.Close()
	s.mu.Lock()
	conn := s.mu.conn
	s.mu.closed = true
	s.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // the destination has closed it before, as a rule
	}
	s.wg.Wait()
	return err
}

// streamMover reads frames from one connection.
type streamMover struct {
	net.Conn
	frames *frameReader
}

func dialTCP(ctx context.Context, c *endConfig, m *memory) (mover, error) {
	t, err := c.clientTLS()
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{Config: t}).DialContext(ctx, "tcp", c.Addr)
	if err != nil {
		return nil, err
	}
	return &streamMover{Conn: conn, frames: newFrameReader(m)}, nil
}

func (d *streamMover) landed() int64 { return d.frames.m.landed() }

func (d *streamMover) move(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = d.Conn.Close() })() // ends the read below
	if _, err := d.Write([]byte{1}); err != nil {
		return err
	}
	for range d.frames.m.chunks() {
		if err := d.frames.next(d.Conn); err != nil {
			return fmt.Errorf("read the connection: %w", errors.Join(context.Cause(ctx), err))
		}
	}
	return nil
}
