package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/udp"
)

// sockets are what an agent can be run over.
var sockets = map[string]func() (net.PacketConn, error){
	"gro":     func() (net.PacketConn, error) { return udp.Listen("127.0.0.1:0", udp.Config{}) },
	"plain":   func() (net.PacketConn, error) { return udp.Listen("127.0.0.1:0", udp.Config{NoGRO: true}) },
	"wrapped": func() (net.PacketConn, error) { return net.ListenPacket("udp", "127.0.0.1:0") },
}

// over has an agent listen and dial through one kind of socket.
func over(t testing.TB, cfg *transfer.Config, kind string) {
	t.Helper()
	if cfg.Conn != nil {
		if err := cfg.Conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if cfg.Conn, err = sockets[kind](); err != nil {
		t.Fatal(err)
	}
	cfg.DialPacket = func(context.Context) (net.PacketConn, error) { return sockets[kind]() }
}

// TestSockets moves the same bytes there and back between agents over every pair of
// kinds of sockets.
func TestSockets(t *testing.T) {
	const pages, size = 64, 64 << 10
	for source := range sockets {
		for dest := range sockets {
			t.Run(source+" to "+dest, func(t *testing.T) {
				t.Parallel()
				f := loopback(t)
				a := f.open(1, func(c *transfer.Config) { over(t, c, source) })
				b := f.open(2, func(c *transfer.Config) { over(t, c, dest); c.Stripes = 3 })
				data, landed, back := random(7, pages*size), make([]byte, pages*size), make([]byte, pages*size)
				writable := transfer.Bytes(back, size)
				writable.RemoteWrite = true
				from, to, home := register(t, a, transfer.Bytes(data, size)), register(t, b, transfer.Bytes(landed, size)), register(t, a, writable)
				l := connect(t, b, a)
				waitMemory(t, l, home)
				list := func(id transfer.MemoryID) []transfer.Desc { return []transfer.Desc{{Memory: id, Pages: pages}} }
				if r, err := run(t, l, transfer.Read, list(to), list(from), transfer.TransferOptions{}); err != nil || r.PagesDone != pages {
					t.Fatalf("read: %+v, %v", r, err)
				}
				if r, err := run(t, l, transfer.Write, list(to), list(home), transfer.TransferOptions{}); err != nil || r.PagesDone != pages {
					t.Fatalf("write: %+v, %v", r, err)
				}
				if err := a.Deregister(home); err != nil { // the peer's word is not enough for the race detector
					t.Fatal(err)
				}
				if !bytes.Equal(landed, data) || !bytes.Equal(back, data) {
					t.Error("other bytes arrived")
				}
			})
		}
	}
}

// TestSocketClosed has Open name a socket that cannot be used, and leave it.
func TestSocketClosed(t *testing.T) {
	cfg, _ := loopback(t).config(1)
	if err := cfg.Conn.Close(); err != nil {
		t.Fatal(err)
	}
	if a, err := transfer.Open(cfg); a != nil || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, %v", a, err)
	}
}

// TestShortBuffers has Open log what the socket lacks and the way to have it. A
// process that may go beyond the system's limit gets all it asks for.
func TestShortBuffers(t *testing.T) {
	var log bytes.Buffer
	var has udp.Buffers
	loopback(t).open(1, func(c *transfer.Config) {
		if err := c.Conn.Close(); err != nil {
			t.Fatal(err)
		}
		conn, err := udp.Listen("127.0.0.1:0", udp.Config{ReadBuffer: 1<<30 - 1, WriteBuffer: -1})
		if err != nil {
			t.Fatal(err)
		}
		has = conn.Buffers()
		c.Conn, c.Logger = conn, slog.New(slog.NewTextHandler(&log, nil))
	})
	if got := strings.Contains(log.String(), "buffer=read") && strings.Contains(log.String(), has.Read.Fix); got != has.Read.Short() {
		t.Errorf("%v logged as %q", has.Read, log.String())
	}
	if strings.Contains(log.String(), "buffer=write") {
		t.Errorf("nothing was asked for, but logged is %q", log.String())
	}
}

// states collects the states of a connection's ECN validation.
type states struct {
	mu   sync.Mutex
	seen []qlog.ECNState
}

func (s *states) AddProducer() qlogwriter.Recorder { return s }
func (s *states) SupportsSchemas(string) bool      { return true }
func (s *states) Close() error                     { return nil }
func (s *states) RecordEvent(e qlogwriter.Event) {
	if e, ok := e.(qlog.ECNStateUpdated); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, e.State)
	}
}

func (s *states) last() qlog.ECNState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return "none"
	}
	return s.seen[len(s.seen)-1]
}

// TestECN has quic-go find over its own handshake that ECN marks arrive: it counts
// them datagram by datagram, so one that lost its control message fails it. Both
// ends listen on all addresses, which has quic-go ask for the local address too.
func TestECN(t *testing.T) {
	for name, cfg := range map[string]udp.Config{"gro": {}, "plain": {NoGRO: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ends [2]*quic.Transport
			for i := range ends {
				c, err := udp.Listen(":0", cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ends[i] = &quic.Transport{Conn: c}
				defer ends[i].Close()
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
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			dialTLS := tls.Clone()
			dialTLS.InsecureSkipVerify = true
			to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: ends[0].Conn.LocalAddr().(*net.UDPAddr).Port}
			conn, err := ends[1].Dial(ctx, to, dialTLS, conf(&client))
			if err != nil {
				t.Fatal(err)
			}
			accepted, err := ln.Accept(ctx)
			if err != nil {
				t.Fatal(err)
			}
			// Enough both ways for bursts, one after the other.
			data := random(8, 1<<20)
			for i, way := range [][2]*quic.Conn{{conn, accepted}, {accepted, conn}} {
				if err := move(ctx, way[0], way[1], data); err != nil {
					t.Fatalf("way %d: %v", i, err)
				}
			}
			for who, s := range map[string]*states{"server": &server, "client": &client} {
				if got := s.last(); got != qlog.ECNStateCapable {
					t.Errorf("%s: ECN is %q, want capable", who, got)
				}
			}
			_ = conn.CloseWithError(0, "")
		})
	}
}

// move sends data over one stream and compares what arrives.
func move(ctx context.Context, from, to *quic.Conn, data []byte) error {
	var (
		wg      sync.WaitGroup
		sendErr error
	)
	wg.Go(func() {
		s, err := from.OpenUniStreamSync(ctx)
		if err == nil {
			if _, err = s.Write(data); err == nil {
				err = s.Close()
			}
		}
		sendErr = err
	})
	defer wg.Wait()
	s, err := to.AcceptUniStream(ctx)
	if err != nil {
		return err
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(s); err != nil {
		return err
	}
	wg.Wait()
	if sendErr != nil {
		return sendErr
	}
	if !bytes.Equal(got.Bytes(), data) {
		return fmt.Errorf("%d bytes arrived, others than the %d sent", got.Len(), len(data))
	}
	return nil
}
