package transfer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/wire"
)

// besieged is a server that is attacked, a client that wants in, and their network.
type besieged struct {
	t              *testing.T
	ca             *testCA
	net            *wan.Network
	server, client *Agent
}

var serverAddr = netip.MustParseAddrPort("10.0.0.1:4433")

func besiege(t *testing.T, edit func(*Config)) *besieged {
	t.Helper()
	b := &besieged{t: t, ca: newTestCA(t), net: wan.NewNetwork(wan.Model{RTT: 20 * time.Millisecond, Rate: 1e9})}
	echo := func(_ context.Context, _ Peer, p []byte) ([]byte, error) { return p, nil }
	b.server = openTest(t, b.net, serverAddr, Config{Name: "spiffe://test/a", TLS: b.ca.node("a"), Handler: echo}, edit)
	b.client = openTest(t, b.net, netip.MustParseAddrPort("10.0.0.2:4433"), Config{Name: "spiffe://test/b", TLS: b.ca.node("b")}, nil)
	return b
}

func (b *besieged) close() {
	if err := errors.Join(b.client.Close(), b.server.Close(), b.net.Close()); err != nil {
		b.t.Error(err)
	}
}

// letIn has the honest client connect and call, and says how long that took.
func (b *besieged) letIn() time.Duration {
	b.t.Helper()
	began := time.Now()
	l, err := b.client.Connect(b.t.Context(), serverAddr.String(), b.server.cfg.Name)
	if err != nil {
		b.t.Fatalf("the honest peer: %v", err)
	}
	if out, err := l.Call(b.t.Context(), []byte("hi")); err != nil || string(out) != "hi" {
		b.t.Fatalf("call: %q, %v", out, err)
	}
	return time.Since(began)
}

func (b *besieged) refused(why refusal) float64 {
	return testutil.ToFloat64(b.server.metrics.refused.WithLabelValues(string(why)))
}

// clientOf returns the TLS of one who dials with a certificate of ca and looks at nothing.
func clientOf(ca *testCA, name string) *tls.Config {
	t := ca.node(name)
	t.InsecureSkipVerify, t.NextProtos = true, []string{ALPN}
	return t
}

// attacker dials the server from one address, any number of times.
type attacker struct {
	transport *quic.Transport
	tls       *tls.Config
}

func (b *besieged) attacker(ip netip.Addr, t *tls.Config) *attacker {
	b.t.Helper()
	conn, err := b.net.Listen(netip.AddrPortFrom(ip, 0))
	if err != nil {
		b.t.Fatal(err)
	}
	return &attacker{transport: &quic.Transport{Conn: conn}, tls: t}
}

func (x *attacker) dial(ctx context.Context) (*quic.Conn, error) {
	return x.transport.Dial(ctx, b4433, x.tls, &quic.Config{HandshakeIdleTimeout: time.Minute, MaxIdleTimeout: time.Minute, KeepAlivePeriod: time.Second})
}

func (x *attacker) close() { _ = errors.Join(x.transport.Close(), x.transport.Conn.Close()) }

var b4433 = net.UDPAddrFromAddrPort(serverAddr)

// hello says hello over a connection, as an agent would, and returns the control stream.
func (x *attacker) hello(ctx context.Context, conn *quic.Conn, name string, nonce wire.Nonce, stripe uint32) (*quic.Stream, error) {
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	body, err := wire.AppendHello(nil, wire.Hello{Nonce: nonce, Stripe: stripe, Name: "spiffe://test/" + name, Incarnation: "liar"})
	if err != nil {
		return nil, err
	}
	if err := writeHello(stream, wire.Version, body); err != nil {
		return nil, err
	}
	_, body, err = readHello(stream)
	if err != nil {
		return nil, err
	}
	a, err := wire.DecodeHelloAnswer(body)
	if err == nil && a.Code != uint16(CodeOK) {
		err = &RemoteError{Code: Code(a.Code), Message: a.Message}
	}
	return stream, err
}

// floodSize is less under the race detector.
func floodSize(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

// Thousands of handshakes without a good certificate, which never go on after their first packet, from a dozen hosts: what is on its
// way here is bounded in all and an address, newcomers must show their address, and an honest peer gets in meanwhile.
func TestFloodOfHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		// What the attackers are sent is lost: their handshakes hang.
		b.net.Tap(func(p wan.Packet) wan.Verdict {
			if p.From == serverAddr && p.To.Addr().As4()[2] == 9 {
				return wan.Drop
			}
			return wan.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		other := newTestCA(t)
		const hosts = 12
		each := floodSize(1200) / hosts
		for h := range hosts {
			x := b.attacker(netip.AddrFrom4([4]byte{10, 0, 9, byte(h + 1)}), clientOf(other, "x"))
			defer x.close()
			for range each {
				wg.Go(func() { _, _ = x.dial(ctx) })
			}
		}
		most := 0
		for range 40 {
			time.Sleep(10 * time.Millisecond)
			n, _ := b.server.door.onTheWay()
			most = max(most, n)
		}
		if took := b.letIn(); took > time.Second {
			t.Errorf("the honest peer took %v", took)
		}
		if most < retryAbove || most > maxArriving {
			t.Errorf("%d on their way, at most %d may be", most, maxArriving)
		}
		if got := testutil.ToFloat64(b.server.metrics.retried); got == 0 {
			t.Error("nobody had to show their address")
		}
		t.Logf("%d handshakes hang, %d on their way at most, %v checks of addresses", hosts*each, most, testutil.ToFloat64(b.server.metrics.retried))
		cancel()
		wg.Wait()
		time.Sleep(time.Minute)
		if n, inside := b.server.door.onTheWay(); n != 0 || inside == 0 {
			t.Errorf("%d on their way after the flood, %d inside", n, inside)
		}
	})
}

// Handshakes of hosts that answer, and so show their address, and then hang at their last step: one address has its bound, and the
// honest peer, of another, gets in.
func TestFloodOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		// The attacker's handshake packets are lost, its first ones are not.
		b.net.Tap(func(p wan.Packet) wan.Verdict {
			if p.To == serverAddr && p.From.Addr().As4()[2] == 9 && len(p.Data) > 0 && p.Data[0]&0xf0 == 0xe0 {
				return wan.Drop
			}
			return wan.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		x := b.attacker(netip.MustParseAddr("10.0.9.1"), clientOf(newTestCA(t), "x"))
		defer x.close()
		var wg sync.WaitGroup
		for range floodSize(640) {
			wg.Go(func() { _, _ = x.dial(ctx) })
		}
		most := 0
		for range 20 {
			time.Sleep(10 * time.Millisecond)
			n, _ := b.server.door.onTheWay()
			most = max(most, n)
		}
		if took := b.letIn(); took > time.Second {
			t.Errorf("the honest peer took %v", took)
		}
		if most != maxArrivingAddr || b.refused(refusedAddress) == 0 {
			t.Errorf("%d on their way, want %d; %v refused", most, maxArrivingAddr, b.refused(refusedAddress))
		}
		cancel()
		wg.Wait()
		time.Sleep(time.Minute)
		if n, _ := b.server.door.onTheWay(); n != 0 {
			t.Errorf("%d on their way after the flood", n)
		}
	})
}

// A peer with a good certificate that opens connections and never says hello has 32 of them at a time, each for the hello's time.
func TestFloodWithoutHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		var mu sync.Mutex
		busy, kept := 0, 0
		n := floodSize(240)
		for h := range 4 {
			x := b.attacker(netip.AddrFrom4([4]byte{10, 0, 9, byte(h + 1)}), clientOf(b.ca, "c"))
			defer x.close()
			for range n / 4 {
				wg.Go(func() {
					conn, err := x.dial(ctx)
					if err != nil {
						return
					}
					<-conn.Context().Done()
					re, ok := errors.AsType[*RemoteError](connError(context.Cause(conn.Context())))
					mu.Lock()
					defer mu.Unlock()
					if ok && re.Code == CodeBusy {
						busy++
					} else {
						kept++
					}
				})
			}
		}
		time.Sleep(time.Second)
		if took := b.letIn(); took > time.Second {
			t.Errorf("the honest peer took %v", took)
		}
		if arriving, _ := b.server.door.onTheWay(); arriving > maxGreeted+maxDials {
			t.Errorf("%d wait with their hello", arriving)
		}
		wg.Wait() // nobody is kept for longer than the hello's time
		if kept > maxGreeted || busy == 0 || b.refused(refusedPeer) != float64(busy) || b.refused(refusedHello) != float64(kept) {
			t.Errorf("%d waited, at most %d may; %d were busy; %v and %v are counted", kept, maxGreeted, busy, b.refused(refusedHello), b.refused(refusedPeer))
		}
	})
}

// Where many are on their way, each gets less time: those that go nowhere make room for those that don't.
func TestCrowdIsHurried(t *testing.T) {
	for _, tc := range []struct {
		arriving      int
		timeout, want time.Duration
	}{
		{crowdAbove - 1, 5 * time.Second, 5 * time.Second},
		{crowdAbove, 5 * time.Second, crowdTimeout},
		{crowdAbove, time.Second, time.Second},
	} {
		d := newDoor(Config{HandshakeTimeout: tc.timeout}, mustMetrics(t))
		d.mu.arriving = tc.arriving
		if got := d.patience(); got != tc.want {
			t.Errorf("%d on their way get %v of %v, want %v", tc.arriving, got, tc.timeout, tc.want)
		}
	}
}

// A hello that comes byte by byte, or is announced longer than it is, is waited for no longer than any other.
func TestSlowHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		x := b.attacker(netip.MustParseAddr("10.0.9.1"), clientOf(b.ca, "c"))
		defer x.close()
		began := time.Now()
		conn, err := x.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stream, err := conn.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hello := wire.AppendPreamble(nil, wire.Preamble{Version: wire.Version, Length: wire.MaxHello})
		for i := 0; conn.Context().Err() == nil; i++ {
			_, _ = stream.Write([]byte{hello[min(i, len(hello)-1)]})
			time.Sleep(300 * time.Millisecond)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("waited %v", took)
		}
		if b.refused(refusedHello) != 1 {
			t.Error("it is not counted")
		}
		b.letIn()
	})
}

// One peer's links and stripes are bounded together, and so are those of all peers; both are told so in the hello's answer.
func TestConnectionsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, func(c *Config) { c.MaxConnections = maxPeerConns + 10 })
		defer b.close()
		fill := func(name string, host byte) (n int, err error) {
			x := b.attacker(netip.AddrFrom4([4]byte{10, 0, 9, host}), clientOf(b.ca, name))
			b.t.Cleanup(x.close)
			for n = 0; n <= maxPeerConns; n++ {
				conn, err := x.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := x.hello(t.Context(), conn, name, wire.Nonce{host, byte(n / 100)}, uint32(n)); err != nil {
					return n, err
				}
			}
			return n, nil
		}
		if n, err := fill("c", 1); n != maxPeerConns || !errors.Is(err, ErrBusy) || b.refused(refusedPeer) != 1 {
			t.Errorf("one peer has %d: %v", n, err)
		}
		b.letIn() // four
		if n, err := fill("d", 2); n != 6 || !errors.Is(err, ErrBusy) || b.refused(refusedConnections) != 1 {
			t.Errorf("another has %d: %v", n, err)
		}
	})
}

// A control frame that is announced and not sent takes no memory for its length.
func TestFrameAnnounced(t *testing.T) {
	const readers = 256
	var release []*io.PipeWriter
	var wg sync.WaitGroup
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range readers {
		r, w := io.Pipe()
		release = append(release, w)
		wg.Go(func() {
			if _, err := readPayload(r, wire.MaxPayload); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read: %v", err)
			}
		})
	}
	for _, w := range release {
		_, _ = w.Write(make([]byte, 100))
	}
	if took := int64(heap()) - int64(before); took > readers*64<<10 {
		t.Errorf("%d frames of %d bytes, of which 100 have come, take %d bytes", readers, wire.MaxPayload, took)
	}
	for _, w := range release {
		_ = w.Close()
	}
	wg.Wait()
	want := make([]byte, wire.MaxPayload)
	_, _ = rand.Read(want)
	for _, n := range []int{0, 1, 16 << 10, 16<<10 + 1, wire.MaxPayload} {
		r, w := io.Pipe()
		go func() { _, _ = w.Write(want); _ = w.Close() }()
		if got, err := readPayload(r, n); err != nil || string(got) != string(want[:n]) {
			t.Errorf("payload of %d bytes: %d, %v", n, len(got), err)
		}
		_ = r.Close()
	}
}

// What accepted connections hold unread is bounded, however much their peer sends: their windows are small and grow from one budget.
func TestUnreadBounded(t *testing.T) {
	d := newDoor(Config{}.withDefaults(), mustMetrics(t))
	var guests []*guest
	for i := range 200 {
		g := &guest{door: d}
		if why := d.admit(g); why != "" {
			t.Fatal(why)
		}
		if err := g.greet(PeerID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		guests = append(guests, g)
	}
	granted := int64(0)
	for _, g := range guests {
		for g.grow(16 << 20) {
			granted += 16 << 20
		}
	}
	if granted != maxGrown || guests[0].grow(1) || guests[0].grow(1<<63) {
		t.Errorf("windows grew by %d, at most %d", granted, maxGrown)
	}
	for _, g := range guests {
		g.leave()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.grown != 0 || d.mu.arriving != 0 || len(d.mu.crowd) != 0 || len(d.mu.peers) != 0 {
		t.Errorf("left behind: %+v", &d.mu.peers)
	}
}

func mustMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
