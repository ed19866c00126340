package wan

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

const (
	defaultReceiveBuffer = 4 << 20
	maxReceiveBuffer     = 64 << 20
	maxPayload           = 65507 // of a UDP datagram over IPv4
)

// conn is an in-memory UDP socket. Readers wait on a condition variable, which
// is durably blocking in a synctest bubble.
type conn struct {
	net   *Network
	addr  netip.AddrPort
	local *net.UDPAddr

	mu struct {
		sync.Mutex
		cond     *sync.Cond // on mu
		queue    fifo[*packet]
		bytes    int // payload in queue
		limit    int
		closed   bool
		expired  bool
		timer    *time.Timer
		deadline int // generation, so that a stale timer does nothing
	}
}

var _ net.PacketConn = (*conn)(nil)

func newConn(n *Network, addr netip.AddrPort) *conn {
	c := &conn{net: n, addr: addr, local: net.UDPAddrFromAddrPort(addr)}
	c.mu.cond = sync.NewCond(&c.mu.Mutex)
	c.mu.limit = defaultReceiveBuffer
	return c
}

// receive queues p for a reader; false if there is no room.
func (c *conn) receive(p *packet) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.bytes+len(p.data) > c.mu.limit {
		return false
	}
	c.mu.bytes += len(p.data)
	c.mu.queue.push(p)
	c.mu.cond.Signal()
	return true
}

func (c *conn) ReadFrom(b []byte) (int, net.Addr, error) {
	c.mu.Lock()
	for {
		switch {
		case c.mu.closed:
			c.mu.Unlock()
			return 0, nil, c.opError("read", net.ErrClosed)
		case c.mu.expired:
			c.mu.Unlock()
			return 0, nil, c.opError("read", os.ErrDeadlineExceeded)
		case c.mu.queue.len() > 0:
			p := c.mu.queue.pop()
			c.mu.bytes -= len(p.data)
			c.mu.Unlock()
			n, from := copy(b, p.data), p.from
			p.free()
			return n, from, nil
		}
		c.mu.cond.Wait()
	}
}

func (c *conn) WriteTo(b []byte, addr net.Addr) (int, error) {
	to, ok := addr.(*net.UDPAddr)
	if !ok || to == nil {
		return 0, c.opError("write", fmt.Errorf("address %v is a %T, want a *net.UDPAddr", addr, addr))
	}
	if len(b) > maxPayload {
		return 0, c.opError("write", fmt.Errorf("datagram of %d bytes: at most %d fit UDP", len(b), maxPayload))
	}
	c.mu.Lock()
	closed := c.mu.closed
	c.mu.Unlock()
	if closed {
		return 0, c.opError("write", net.ErrClosed)
	}
	p := newPacket(b)
	ap := to.AddrPort()
	p.from, p.to = c.local, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	c.net.send(p, c.addr)
	return len(b), nil
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.local, Err: err}
}

func (c *conn) LocalAddr() net.Addr { return c.local }

// SetReadBuffer bounds the payload bytes that wait for a reader, at most 64 MiB.
func (c *conn) SetReadBuffer(bytes int) error {
	if bytes <= 0 {
		return c.opError("set", fmt.Errorf("read buffer of %d bytes: want more than 0", bytes))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.limit = min(bytes, maxReceiveBuffer)
	return nil
}

// SetWriteBuffer does nothing: writes never block.
func (c *conn) SetWriteBuffer(int) error { return nil }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: writes never block.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return c.opError("set", net.ErrClosed)
	}
	if c.mu.timer != nil {
		c.mu.timer.Stop()
		c.mu.timer = nil
	}
	c.mu.deadline++
	c.mu.expired = false
	if t.IsZero() {
		return nil
	}
	d := time.Until(t)
	if d <= 0 {
		c.mu.expired = true
		c.mu.cond.Broadcast()
		return nil
	}
	generation := c.mu.deadline
	c.mu.timer = time.AfterFunc(d, func() { c.expire(generation) })
	return nil
}

func (c *conn) expire(generation int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.deadline == generation {
		c.mu.expired = true
		c.mu.cond.Broadcast()
	}
}

// Close frees the address and wakes the readers. Closing twice is an error, as
// for a *net.UDPConn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.mu.closed = true
	if c.mu.timer != nil {
		c.mu.timer.Stop()
	}
	for c.mu.queue.len() > 0 {
		c.mu.queue.pop().free()
	}
	c.mu.bytes = 0
	c.mu.cond.Broadcast()
	c.mu.Unlock()
	c.net.forget(c)
	return nil
}
