package wan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func udp(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func read(t testing.TB, c *net.UDPConn, within time.Duration) (string, netip.AddrPort, error) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	return string(buf[:n]), from, err
}

func write(t testing.TB, c *net.UDPConn, s string, to netip.AddrPort) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort([]byte(s), to); err != nil {
		t.Fatal(err)
	}
}

func openRelay(t testing.TB, cfg RelayConfig) *Relay {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	r, err := OpenRelay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// awaitStats polls: a packet is counted as delivered just after it is handed
// over.
func awaitStats(t testing.TB, r *Relay, want RelayStats) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !cmp.Equal(want, r.Stats()) {
		if time.Now().After(deadline) {
			t.Fatalf("stats (-want +got):\n%s", cmp.Diff(want, r.Stats()))
		}
		runtime.Gosched()
	}
}

func TestRelayNAT(t *testing.T) {
	server := udp(t)
	r := openRelay(t, RelayConfig{Target: server.LocalAddr().String(), Model: Model{RTT: 20 * time.Millisecond}})
	clients := []*net.UDPConn{udp(t), udp(t)}
	seen := map[netip.AddrPort]bool{}
	for i, c := range clients {
		start := time.Now()
		write(t, c, fmt.Sprint("ping ", i), r.Addr())
		got, from, err := read(t, server, 5*time.Second)
		if err != nil || got != fmt.Sprint("ping ", i) {
			t.Fatalf("server read %q, %v", got, err)
		}
		if seen[from] || from.Port() == clients[i].LocalAddr().(*net.UDPAddr).AddrPort().Port() {
			t.Errorf("client %d appears as %v", i, from)
		}
		seen[from] = true
		write(t, server, fmt.Sprint("pong ", i), from)
		got, from, err = read(t, c, 5*time.Second)
		if err != nil || got != fmt.Sprint("pong ", i) || from != r.Addr() {
			t.Fatalf("client read %q from %v, %v", got, from, err)
		}
		if d := time.Since(start); d < 20*time.Millisecond {
			t.Errorf("round trip in %v, want 20ms or more", d)
		}
	}
	way := LinkStats{Packets: 2, Bytes: 2 * (6 + Overhead), Delivered: 2, DeliveredBytes: 2 * (6 + Overhead)}
	awaitStats(t, r, RelayStats{Flows: 2, Up: way, Down: way})
}

func TestRelayCutAndTargetGone(t *testing.T) {
	server, client := udp(t), udp(t)
	r := openRelay(t, RelayConfig{Target: server.LocalAddr().String()})
	r.Cut()
	write(t, client, "lost", r.Addr())
	deadline := time.Now().Add(5 * time.Second)
	for r.Stats().Up.DroppedCut == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the cut link saw nothing")
		}
		if _, _, err := read(t, server, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the server read something over a cut link: %v", err)
		}
	}
	r.Heal()
	write(t, client, "kept", r.Addr())
	if got, _, err := read(t, server, 5*time.Second); got != "kept" {
		t.Fatalf("after Heal the server read %q, %v", got, err)
	}
	// A target that is gone and comes back is reached again by the same flow.
	addr := server.LocalAddr().(*net.UDPAddr)
	_ = server.Close()
	for range 3 {
		write(t, client, "to nobody", r.Addr())
	}
	for r.Stats().Up.DroppedReceiver+r.Stats().Up.Delivered < 4 {
		if time.Now().After(deadline) {
			t.Fatalf("stats %+v", r.Stats())
		}
		_, _, _ = read(t, client, time.Millisecond)
	}
	again, err := net.ListenUDP("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for {
		write(t, client, "back", r.Addr())
		if got, _, _ := read(t, again, 50*time.Millisecond); got == "back" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the target was not reached again")
		}
	}
}

// Two relays share a pair of links: what A sends as a client of B and what A
// answers as a server of B leave by the same link.
func TestRelaySharedLinks(t *testing.T) {
	a, b := udp(t), udp(t)
	east, west := OpenLink(Model{RTT: 2 * time.Millisecond}, "east"), OpenLink(Model{RTT: 2 * time.Millisecond}, "west")
	defer east.Close()
	defer west.Close()
	toB := openRelay(t, RelayConfig{Target: b.LocalAddr().String(), Up: east, Down: west})
	toA := openRelay(t, RelayConfig{Target: a.LocalAddr().String(), Up: west, Down: east})
	ping := func(from, to *net.UDPConn, via *Relay) {
		t.Helper()
		write(t, from, "ping", via.Addr())
		_, back, err := read(t, to, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		write(t, to, "pong", back)
		if _, _, err := read(t, from, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	ping(a, b, toB)
	ping(b, a, toA)
	want := RelayStats{Flows: 1}
	want.Up = LinkStats{Packets: 2, Bytes: 2 * 32, Delivered: 2, DeliveredBytes: 2 * 32}
	want.Down = want.Up
	awaitStats(t, toB, want)
	awaitStats(t, toA, want)
}

func TestRelayMaxFlows(t *testing.T) {
	server := udp(t)
	r := openRelay(t, RelayConfig{Target: server.LocalAddr().String(), MaxFlows: 2})
	var clients []*net.UDPConn
	for i := range 3 {
		clients = append(clients, udp(t))
		write(t, clients[i], "hello", r.Addr())
		if _, _, err := read(t, server, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.Stats(); s.Flows != 2 || s.Evicted != 1 {
		t.Errorf("stats %+v, want 2 flows and 1 evicted", s)
	}
	write(t, clients[0], "again", r.Addr()) // a new mapping
	if got, _, err := read(t, server, 5*time.Second); got != "again" {
		t.Errorf("the evicted client's next datagram: %q, %v", got, err)
	}
}

// In real time the rate is held by computed departures, not by timers: 1,250
// packets of 1000 bytes at 100 Mbit/s take 100 ms. No more are on their way than
// the smallest buffers hold, whoever has to wait for a processor: all arrive.
func TestRelayRate(t *testing.T) {
	server, client := udp(t), udp(t)
	r := openRelay(t, RelayConfig{Target: server.LocalAddr().String(), Model: Model{Rate: 1e8, QueueBytes: -1}})
	payload := strings.Repeat("x", 972)
	start := time.Now()
	const count, ahead = 1250, 32
	for i := range count + ahead {
		if i < count {
			write(t, client, payload, r.Addr())
		}
		if i >= ahead {
			if _, _, err := read(t, server, 10*time.Second); err != nil {
				t.Fatalf("after %d of %d packets: %v; %+v", i-ahead, count, err, r.Stats())
			}
		}
	}
	if elapsed := time.Since(start); elapsed < 99*time.Millisecond {
		t.Errorf("%d packets in %v, faster than the link", count, elapsed)
	}
}

func TestOpenRelayErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  RelayConfig
		want string
	}{
		{"no target", RelayConfig{Listen: "127.0.0.1:0"}, `relay target ""`},
		{"no host", RelayConfig{Listen: "127.0.0.1:0", Target: ":1"}, "host or port is missing"},
		{"bad listen", RelayConfig{Listen: "nonsense", Target: "127.0.0.1:1"}, `relay listen address "nonsense"`},
		{"bad model", RelayConfig{Listen: "127.0.0.1:0", Target: "127.0.0.1:1", Model: Model{Loss: 3}}, "loss 3"},
	}
	for _, tt := range tests {
		_, err := OpenRelay(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
