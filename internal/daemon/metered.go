package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// What gRPC keeps of the requests of calls that run has no bound but a message's size times the calls of a connection times connections. So a
// connection's bytes are counted as they come, by its HTTP/2 frames, until the call that they are of ends; who goes beyond the bounds
// loses the connection.

// maxConnRequests bounds the requests of a connection's calls that run, those that are not whole included, and maxCallerRequests those of all
// connections of a caller, a user of the host or the node of a certificate, bytes: four and sixteen of the largest, or 14 and 60 with a million
// tokens' keys of 64 bytes.
const maxConnRequests, maxCallerRequests = 4 * maxMessage, 16 * maxMessage

// errMetered is why a connection is closed whose calls take too much.
var errMetered = errors.New("the requests of its calls take too much memory")

// meter counts the bytes of requests a caller.
type meter struct {
	most, mostOf int64 // of a caller, of a connection
	cut          func(who string, held int64)

	mu struct {
		sync.Mutex
		of map[string]int64
	}
}

// newMeter is that of the gRPC server behind a listener of that name.
func (d *Daemon) newMeter(listener string) *meter {
	m := &meter{most: maxCallerRequests, mostOf: maxConnRequests}
	m.cut = func(who string, held int64) {
		d.metrics.refusedConns.WithLabelValues(listener).Inc()
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "connection closed: the requests of its calls take too much memory",
			slog.String("listener", listener), slog.String("caller", who), slog.Int64("held_bytes", held), slog.Int64("most_bytes", m.mostOf), slog.Int64("most_bytes_caller", m.most))
	}
	m.mu.of = map[string]int64{}
	return m
}

// add reports whether a caller may have n bytes more; below zero it has less.
func (m *meter) add(who string, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.mu.of[who] + n
	if n > 0 && held > m.most {
		return false
	}
	if m.mu.of[who] = held; held == 0 {
		delete(m.mu.of, who)
	}
	return true
}

// meteredCreds are credentials whose connections are metered.
type meteredCreds struct {
	credentials.TransportCredentials
	meter *meter
}

// ServerHandshake does that of the credentials within.
func (c meteredCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	inner, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	who := "nobody"
	if caller, err := callerBy(info); err == nil { // else its calls are refused
		who = caller.name()
	}
	return newMeteredConn(inner, c.meter, who), info, nil
}

// Clone copies the credentials within.
func (c meteredCreds) Clone() credentials.TransportCredentials {
	return meteredCreds{c.TransportCredentials.Clone(), c.meter}
}

// meteredConn is the server's end of a connection of HTTP/2 without TLS, or within it.
type meteredConn struct {
	net.Conn
	meter *meter
	who   string

	mu struct {
		sync.Mutex
		in, out frames
		calls   map[uint32]int64 // that run, with the bytes that came of their requests
		last    uint32           // stream that came last
		held    int64            // the sum of calls
		over    bool             // they take too much
		closed  bool
	}
}

func newMeteredConn(conn net.Conn, m *meter, who string) *meteredConn {
	c := &meteredConn{Conn: conn, meter: m, who: who}
	c.mu.calls = map[uint32]int64{}
	c.mu.in.skip = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") // what a client says first
	return c
}

// HTTP/2 frames (RFC 9113 section 6).
const (
	frameHeaderBytes = 9
	frameData        = 0
	frameHeaders     = 1
	frameReset       = 3
	flagEndStream    = 1
)

// frames finds the headers of frames in a stream of bytes.
type frames struct {
	skip int // bytes until the next header
	n    int // bytes of it that have come
	head [frameHeaderBytes]byte
}

// frame is a frame's header.
type frame struct {
	length      int64
	kind, flags byte
	stream      uint32
}

// each gives every header that ends in b, until see says no.
func (f *frames) each(b []byte, see func(frame) bool) {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			f.skip, b = f.skip-n, b[n:]
			continue
		}
		n := copy(f.head[f.n:], b)
		if f.n, b = f.n+n, b[n:]; f.n < frameHeaderBytes {
			return
		}
		f.n = 0
		f.skip = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		if !see(frame{int64(f.skip), f.head[3], f.head[4], binary.BigEndian.Uint32(f.head[5:]) &^ (1 << 31)}) {
			return
		}
	}
}

// Read reads, and counts what it is of.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	if !c.mu.closed {
		c.mu.in.each(b[:n], c.seen)
	}
	over, held := c.mu.over && !c.mu.closed, c.mu.held
	c.mu.Unlock()
	if over {
		_ = c.Close()
		c.meter.cut(c.who, held)
		return 0, errMetered
	}
	return n, err
}

// seen takes in a frame that came; false: the calls take too much. The lock is held.
func (c *meteredConn) seen(f frame) bool {
	_, runs := c.mu.calls[f.stream]
	switch {
	case f.kind == frameHeaders && f.stream > c.mu.last:
		c.mu.calls[f.stream], c.mu.last = 0, f.stream
	case f.kind == frameReset:
		c.ended(f.stream)
	case f.kind == frameData && runs: // else it is late, and dropped
		if c.mu.held+f.length > c.meter.mostOf || !c.meter.add(c.who, f.length) {
			c.mu.over = true
			return false
		}
		c.mu.calls[f.stream] += f.length
		c.mu.held += f.length
	}
	return true
}

// ended forgets a call; the lock is held.
func (c *meteredConn) ended(stream uint32) {
	n, ok := c.mu.calls[stream]
	if !ok {
		return
	}
	delete(c.mu.calls, stream)
	c.mu.held -= n
	c.meter.add(c.who, -n)
}

// Write writes, and sees which calls end by it.
func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.out.each(b[:n], func(f frame) bool {
		if f.kind == frameReset || (f.kind == frameHeaders || f.kind == frameData) && f.flags&flagEndStream != 0 {
			c.ended(f.stream)
		}
		return true
	})
	return n, err
}

// Close closes the connection; its calls end with it.
func (c *meteredConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for stream := range c.mu.calls {
		c.ended(stream)
	}
	return err
}
