//go:build chaos

package chaos

import (
	"net"
	"sync"
)

// gate holds a node's packets while it is shut.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
}

// wait returns when the gate is open.
func (g *gate) wait() {
	g.mu.Lock()
	c := g.shut
	g.mu.Unlock()
	if c != nil {
		<-c
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// socket is a node's socket behind its gate.
type socket struct {
	net.PacketConn
	gate *gate
}

func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := s.PacketConn.ReadFrom(b)
	s.gate.wait()
	return n, from, err
}

func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	s.gate.wait()
	return s.PacketConn.WriteTo(b, to)
}

// SetReadBuffer and SetWriteBuffer are there because quic-go looks for them.
func (s *socket) SetReadBuffer(n int) error {
	return s.PacketConn.(interface{ SetReadBuffer(int) error }).SetReadBuffer(n)
}

func (s *socket) SetWriteBuffer(int) error { return nil }
