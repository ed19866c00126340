package steady

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
)

// cores are the processors of an end: what is charged holds one for its time, and waits for one in order of arrival.
type cores struct {
	turns chan struct{} // nil: there are as many as are asked for
	busy  atomic.Int64  // calls of work that wait or work
}

func newCores(n int) *cores {
	c := &cores{}
	if n > 0 {
		c.turns = make(chan struct{}, n)
	}
	return c
}

// work is charged for d.
func (c *cores) work(d time.Duration) {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	if c.turns != nil {
		c.turns <- struct{}{}
		defer func() { <-c.turns }()
	}
	time.Sleep(d)
}

// settle returns when nothing is charged any more: a transport's send queue outlives it.
func (c *cores) settle() {
	for c.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// chargedCodecs is package codec, whose work is charged.
type chargedCodecs struct {
	cores *cores
	costs map[codec.ID]Cost
}

// Encode codes a page.
func (c chargedCodecs) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	c.charge(c.costs[id].Encode, len(src))
	return codec.Encode(id, dst, src, s)
}

// Decode decodes a page.
func (c chargedCodecs) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	c.charge(c.costs[id].Decode, len(dst))
	return codec.Decode(id, dst, src, s)
}

func (c chargedCodecs) charge(cost float64, bytes int) {
	if d := time.Duration(cost * float64(bytes) * float64(time.Second)); d > 0 {
		c.cores.work(d)
	}
}

// charged is a socket whose packets cost processor time. It is charged in runs of packets: a sleep each would be most of the
// simulation's work.
type charged struct {
	net.PacketConn
	cost        time.Duration
	cores       *cores
	sent, taken atomic.Int64 // nanoseconds that are owed
}

const (
	chargedRun = 16 // full packets
	fullPacket = 1280
)

func (c *charged) charge(owed *atomic.Int64, n int) {
	cost := int64(c.cost)
	if owed.Add(cost/4+cost*3/4*int64(n)/fullPacket) < chargedRun*cost {
		return
	}
	if d := owed.Swap(0); d > 0 {
		c.cores.work(time.Duration(d))
	}
}

// WriteTo sends a packet.
func (c *charged) WriteTo(b []byte, addr net.Addr) (int, error) {
	c.charge(&c.sent, len(b))
	return c.PacketConn.WriteTo(b, addr)
}

// ReadFrom reads a packet.
func (c *charged) ReadFrom(b []byte) (int, net.Addr, error) {
	n, addr, err := c.PacketConn.ReadFrom(b)
	if err == nil {
		c.charge(&c.taken, n)
	}
	return n, addr, err
}

// SetReadBuffer and SetWriteBuffer are what QUIC asks of a socket.
func (c *charged) SetReadBuffer(n int) error {
	if s, ok := c.PacketConn.(interface{ SetReadBuffer(int) error }); ok {
		return s.SetReadBuffer(n)
	}
	return fmt.Errorf("read buffer of %T", c.PacketConn)
}

// SetWriteBuffer does as SetReadBuffer.
func (c *charged) SetWriteBuffer(n int) error {
	if s, ok := c.PacketConn.(interface{ SetWriteBuffer(int) error }); ok {
		return s.SetWriteBuffer(n)
	}
	return fmt.Errorf("write buffer of %T", c.PacketConn)
}
