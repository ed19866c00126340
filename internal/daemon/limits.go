package daemon

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Bounds on those who connect. A connection beyond them is closed at once, before anything is read of it.
const (
	// maxConns bounds the connections of a gRPC listener, maxConnsAddr those of one remote address; engines and proxies have one each.
	maxConns, maxConnsAddr = 1024, 256
	// maxAdminConns bounds those of the admin address.
	maxAdminConns = 128
	// maxStreams bounds the calls of one gRPC connection that run at a time.
	maxStreams = 128
	// maxHeader bounds the header of a call or an HTTP request, bytes.
	maxHeader = 16 << 10
	// openTimeout is what a client has for TLS and the first frames of HTTP/2.
	openTimeout = 5 * time.Second
	// pingEvery and pingTimeout find clients that are gone; pingLeast is how often a client may ask whether this side is.
	pingEvery, pingTimeout, pingLeast = time.Minute, 20 * time.Second, 10 * time.Second
)

// grpcLimits are the options that bound a gRPC server.
func grpcLimits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeader),
		grpc.ConnectionTimeout(openTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingLeast, PermitWithoutStream: true}),
	}
}

// adminServer bounds what an HTTP client takes. A profile of up to two minutes can be written.
func adminServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
	}
}

// boundedListener closes the connections that are too many, in all and of one address.
type boundedListener struct {
	net.Listener
	most, mostOf int    // of one address; 0: any number
	refused      func() // counts
	mu           struct {
		sync.Mutex
		open int
		of   map[netip.Addr]int
	}
}

// bounded wraps l, which it owns from then on.
func (d *Daemon) bounded(l net.Listener, name string, most, mostOf int) net.Listener {
	if l == nil {
		return nil
	}
	b := &boundedListener{Listener: l, most: most, mostOf: mostOf, refused: d.metrics.refusedConns.WithLabelValues(name).Inc}
	b.mu.of = map[netip.Addr]int{}
	return b
}

// Accept returns the next connection that is not too many.
func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := remoteIP(c)
		if b.enter(addr) {
			return &boundedConn{Conn: c, left: sync.OnceFunc(func() { b.leave(addr) })}, nil
		}
		b.refused()
		_ = c.Close()
	}
}

// remoteIP is the zero Addr where the connection has none, as on a unix socket.
func remoteIP(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

func (b *boundedListener) enter(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.open >= b.most || b.mostOf > 0 && a.IsValid() && b.mu.of[a] >= b.mostOf {
		return false
	}
	b.mu.open++
	b.mu.of[a]++
	return true
}

func (b *boundedListener) leave(a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.open--
	if b.mu.of[a]--; b.mu.of[a] == 0 {
		delete(b.mu.of, a)
	}
}

// boundedConn says when it is closed.
type boundedConn struct {
	net.Conn
	left func()
}

// Close closes the connection and makes room for another.
func (c *boundedConn) Close() error {
	defer c.left()
	return c.Conn.Close()
}

// NetConn is the connection within.
func (c *boundedConn) NetConn() net.Conn { return c.Conn }

// unbounded is the connection that a boundedConn wraps, or c.
func unbounded(c net.Conn) net.Conn {
	if b, ok := c.(*boundedConn); ok {
		return b.Conn
	}
	return c
}
