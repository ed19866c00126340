package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/wire"
)

// stripe is one QUIC connection of a link. Its bidirectional stream carries the
// hello and then control frames; each chunk has a unidirectional stream.
type stripe struct {
	number  uint32
	conn    *quic.Conn
	stream  *quic.Stream
	control atomic.Bool // a control frame went over it, in either direction
	moved   moved       // chunks' bytes

	// Guarded by the link's lock.
	heard struct { // when a packet was last found to have come
		packets uint64 // received by then
		at      time.Time
	}
	trips    lastTrip // of the last look at the path
	pinged   uint64   // packets received at the last ping, and one; 0: none yet
	draining bool     // takes no more chunks
	quiet    struct { // of one that drains
		packets uint64    // received
		since   time.Time // none came
	}

	// Of a dialled stripe, which has a socket of its own; else nil.
	transport *quic.Transport
	packet    net.PacketConn

	repairConn *repair.Conn // under the connection; nil: off
	repair     *repair.Session
}

// speed is what the connection's window lets through.
func (s *stripe) speed() speed {
	c := s.conn.ConnectionStats()
	return speed{float64(c.CongestionWindow), c.SmoothedRTT}
}

// closeSocket closes the socket of a dialled stripe whose connection has ended.
func (s *stripe) closeSocket() error {
	if s.transport == nil {
		return nil
	}
	return errors.Join(s.transport.Close(), s.packet.Close())
}

// runStripe owns the goroutines of a stripe: senders, the acceptor of chunks
// with its receivers, the control reader. It returns when the connection ended
// and all of them with it.
func (l *Link) runStripe(s *stripe) {
	var wg sync.WaitGroup
	s.stream.SetPriority(0, false) // control goes before chunks of every class
	for class := range Class(classes) {
		for range l.agent.cfg.StreamsPerStripe {
			wg.Go(func() { l.sendChunks(s, class) })
		}
	}
	wg.Go(func() { l.acceptChunks(s) })
	wg.Go(func() { l.readControl(s) })
	ctx := s.conn.Context()
	<-ctx.Done()
	l.drop(s, context.Cause(ctx))
	wg.Wait()
	_ = s.closeSocket() // the connection is gone; nothing can be lost here
}

// openStream counts chunk streams as they open and end here.
func (l *Link) openStream(n int64) {
	l.streams.Add(n)
	l.agent.metrics.streams.Add(float64(n))
}

// writeHello sends a preamble and a hello or its answer.
func writeHello(w io.Writer, version uint16, body []byte) error {
	b := wire.AppendPreamble(nil, wire.Preamble{Version: version, Length: uint16(len(body))})
	if _, err := w.Write(append(b, body...)); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	return nil
}

// readHello reads a preamble and what follows it.
func readHello(r io.Reader) (wire.Preamble, []byte, error) {
	var head [wire.PreambleBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return wire.Preamble{}, nil, fmt.Errorf("read preamble: %w", err)
	}
	p, err := wire.DecodePreamble(head[:])
	if err != nil {
		return p, nil, fmt.Errorf("read preamble: %w", err)
	}
	body := make([]byte, p.Length)
	if _, err := io.ReadFull(r, body); err != nil {
		return p, nil, fmt.Errorf("read hello: %w", err)
	}
	return p, body, nil
}
