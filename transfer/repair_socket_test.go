package transfer_test

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
	"golang.org/x/net/ipv4"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/udp"
)

// lossySocket loses one packet in fifty of what comes in.
type lossySocket struct {
	*udp.Conn
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lossySocket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		// One at a time: buffers are known by their place.
		n, err := l.Conn.ReadBatch(ms[:1], flags)
		l.mu.Lock()
		lost := l.r.IntN(50) == 0
		l.mu.Unlock()
		if err != nil || !lost {
			return n, err
		}
	}
}

// TestRepairKeepsECN has quic-go validate ECN over sockets that lose packets, which
// repair rebuilds: each must bring a mark, or quic-go counts too few and gives ECN
// up.
func TestRepairKeepsECN(t *testing.T) {
	var ends [2]*quic.Transport
	var conns [2]*repair.Conn
	var sessions [2]*repair.Session
	for i := range ends {
		u, err := udp.Listen("127.0.0.1:0", udp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = repair.Wrap(&lossySocket{Conn: u, r: rand.New(rand.NewPCG(1, uint64(i)))}, repair.Config{Parity: 16, Group: 40, Depth: 1, MaxOverhead: 100})
		defer conns[i].Close()
		ends[i] = &quic.Transport{Conn: conns[i].PacketConn()}
		defer ends[i].Close()
	}
	for i, c := range conns {
		var err error
		if sessions[i], err = c.Attach(repair.SessionConfig{
			Addr: conns[1-i].Below().LocalAddr(), Send: repair.Token{byte(i)}, Receive: repair.Token{byte(1 - i)}, SendKey: repair.Key{byte(1 + i)}, ReceiveKey: repair.Key{byte(2 - i)}, MaxSpan: 1024,
		}); err != nil {
			t.Fatal(err)
		}
	}
	tls := ca.Node("r1", "n")
	tls.NextProtos = []string{"test"}
	var server, client states
	conf := func(s *states) *quic.Config {
		return &quic.Config{Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return s }}
	}
	ln, err := ends[0].Listen(tls, conf(&server))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dialTLS := tls.Clone()
	dialTLS.InsecureSkipVerify = true
	conn, err := ends[1].Dial(ctx, conns[0].Below().LocalAddr().(*net.UDPAddr), dialTLS, conf(&client))
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := move(ctx, conn, accepted, random(8, 8<<20)); err != nil {
		t.Fatal(err)
	}
	st := sessions[0].Stats()
	t.Logf("%+v; QUIC lost %d of %d", st, conn.ConnectionStats().PacketsLost, conn.ConnectionStats().PacketsSent)
	if st.Repaired < 20 {
		t.Errorf("%d packets repaired: %+v", st.Repaired, st)
	}
	if got := client.last(); got != qlog.ECNStateCapable {
		t.Errorf("ECN is %q, want capable", got)
	}
	_ = conn.CloseWithError(0, "")
}
