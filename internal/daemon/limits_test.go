package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// openOnes dials n connections, each of which says say and no more.
func openOnes(t *testing.T, network, addr string, n int, say []byte) (conns []net.Conn) {
	t.Helper()
	var d net.Dialer
	for range n {
		c, err := d.DialContext(t.Context(), network, addr)
		if err != nil {
			t.Fatal(err)
		}
		if len(say) > 0 {
			_, _ = c.Write(say) // it may be closed already
		}
		conns = append(conns, c)
	}
	return conns
}

// closedBy counts the connections that the other side has closed.
func closedBy(conns []net.Conn) (n int) {
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			n++
		}
	}
	return n
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// refusedConns is what is counted of a listener.
func (n *realNode) refusedConns(listener string) float64 {
	_, text := n.get("/metrics")
	return parseMetrics(n.t, text)[fmt.Sprintf(`kvferry_daemon_refused_connections_total{listener=%q}`, listener)]
}

// Connections that say nothing, or TLS and HTTP/2 byte by byte, to each listener, more than may be open: the rest is closed at once and
// counted, who is connected works on, and there is room again when they are gone.
func TestListenersBounded(t *testing.T) {
	n := newRealNode(t, nil)
	operator := pb.NewRegionServiceClient(n.dial(n.grpc, clientTLS(t, n.ca, n.ca)))
	works := func() {
		t.Helper()
		if _, err := n.region.Status(t.Context(), &pb.StatusRequest{}); err != nil {
			t.Errorf("over the socket: %v", err)
		}
		if _, err := operator.Status(t.Context(), &pb.StatusRequest{}); err != nil {
			t.Errorf("over TCP: %v", err)
		}
		if code, _ := n.get("/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d", code)
		}
	}
	works()
	for _, tc := range []struct {
		listener, network, addr string
		more, least             int // as many are opened; at least as many of them closed
		say                     []byte
	}{
		{"grpc", "tcp", n.grpc, maxConnsAddr + 40, 40, []byte{0x16, 3, 1}},
		{"admin", "tcp", n.admin, maxAdminConns + 20, 20, []byte("GET / HTT")},
	} {
		t.Run(tc.listener, func(t *testing.T) {
			before := n.refusedConns(tc.listener)
			conns := openOnes(t, tc.network, tc.addr, tc.more, tc.say)
			defer closeAll(conns)
			eventually(t, "the rest is closed", func() bool { return closedBy(conns) >= tc.least })
			if tc.listener != "admin" {
				works()
				if got := n.refusedConns(tc.listener) - before; got < float64(tc.least) {
					t.Errorf("%v refusals are counted", got)
				}
			}
			closeAll(conns)
			eventually(t, "there is room again", func() bool {
				var d net.Dialer
				c, err := d.DialContext(t.Context(), tc.network, tc.addr)
				if err != nil {
					return false
				}
				defer c.Close()
				return closedBy([]net.Conn{c}) == 0
			})
			works()
		})
	}
}

// A listener's bounds, by themselves: in all and of one address.
func TestBoundedListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	b := &boundedListener{Listener: l, most: 3, mostOf: 2, refused: func() { refused++ }}
	b.mu.of = map[netip.Addr]int{}
	defer b.Close()
	dial := func() net.Conn {
		t.Helper()
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	accept := func() net.Conn {
		t.Helper()
		c, err := b.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dial()
	first := accept()
	dial()
	second := accept()
	third := dial()
	var wg sync.WaitGroup
	wg.Go(func() { // Accept goes on to the next one
		c := accept()
		_ = c.Close()
	})
	if _, err := io.ReadAll(third); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	_ = first.Close()
	_ = first.Close() // counts once
	dial()
	wg.Wait()
	_ = second.Close()
	if b.mu.open != 0 || len(b.mu.of) != 0 || refused != 1 {
		t.Errorf("%d open, %d addresses, %d refused", b.mu.open, len(b.mu.of), refused)
	}
	if unbounded(first) == first || unbounded(third) != third {
		t.Error("the connection within is another")
	}
}

// What one gRPC connection can take: calls at a time, a message's size, a header's size, and pings.
func TestCallsBounded(t *testing.T) {
	n := newRealNode(t, nil)
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
		t.Fatal(err)
	}
	// Streams beyond the bound wait at the client, and begin when others end.
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan error, maxStreams+10)
	var wg sync.WaitGroup
	for range maxStreams + 10 {
		wg.Go(func() {
			stream, err := n.engine.Events(ctx, &pb.EventsRequest{EngineId: "e"})
			if err == nil {
				_, err = stream.Header()
			}
			begun <- err
		})
	}
	for range maxStreams {
		if err := <-begun; err != nil {
			t.Fatal(err)
		}
	}
	other := pb.NewRegionServiceClient(n.dial(n.grpc, clientTLS(t, n.ca, n.ca)))
	if _, err := other.Status(t.Context(), &pb.StatusRequest{}); err != nil { // another connection has its own
		t.Error(err)
	}
	if len(begun) != 0 {
		t.Errorf("%d streams more than %d have begun", len(begun), maxStreams)
	}
	cancel()
	wg.Wait()

	big := &pb.GetMigrationRequest{MigrationId: strings.Repeat("x", maxMessage)}
	mig := pb.NewMigrationServiceClient(n.local)
	if _, err := mig.GetMigration(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of more than %d bytes: %v", maxMessage, err)
	}
	// A name of a megabyte comes back as a refusal of a kilobyte.
	_, err := mig.GetMigration(t.Context(), &pb.GetMigrationRequest{MigrationId: strings.Repeat("x", 1<<20)})
	if f := wantError(t, err, ReasonMigrationNotFound); len(f.Message) > maxFaultText {
		t.Errorf("the message has %d bytes", len(f.Message))
	}
	headed := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("y", 2*maxHeader))
	if _, err := n.region.Status(headed, &pb.StatusRequest{}); err == nil {
		t.Error("a header beyond the bound is taken")
	}
	if _, err := n.region.Status(t.Context(), &pb.StatusRequest{}); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Who connects and never finishes TLS, or has no certificate, is let go in time; a request header that never ends, too.
func TestSlowClients(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for real time-outs of five seconds")
	}
	t.Parallel()
	n := newRealNode(t, nil)
	began := time.Now()
	tcp := openOnes(t, "tcp", n.grpc, 3, []byte{0x16})
	admin := openOnes(t, "tcp", n.admin, 3, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\nX: "))
	conns := append(tcp, admin...)
	defer closeAll(conns)
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	nobody := pb.NewRegionServiceClient(n.dial(n.grpc, credentials.NewTLS(config)))
	if _, err := nobody.Status(t.Context(), &pb.StatusRequest{}, grpc.WaitForReady(false)); err == nil {
		t.Error("a client without a certificate is served")
	}
	for _, c := range conns { // until the daemon closes it
		_ = c.SetReadDeadline(began.Add(3 * openTimeout))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v is not let go within %v", c.RemoteAddr(), 3*openTimeout)
		}
	}
}
