package wan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	hostA = netip.MustParseAddr("10.0.0.1")
	hostB = netip.MustParseAddr("10.0.0.2")
	hostC = netip.MustParseAddr("10.0.0.3")
)

func mustParse(t testing.TB, s string) Model {
	t.Helper()
	m, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func listen(t testing.TB, n *Network, ip netip.Addr, port uint16) net.PacketConn {
	t.Helper()
	c, err := n.Listen(netip.AddrPortFrom(ip, port))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// send writes count datagrams of size bytes that carry their ordinal.
func send(t testing.TB, from net.PacketConn, to net.Addr, count, size int) {
	t.Helper()
	buf := make([]byte, size)
	for i := range count {
		binary.BigEndian.PutUint32(buf, uint32(i))
		if n, err := from.WriteTo(buf, to); n != size || err != nil {
			t.Fatalf("WriteTo = %d, %v", n, err)
		}
	}
}

type arrival struct {
	ordinal int
	at      time.Duration
}

// collect reads until nothing has arrived for a minute of virtual time.
func collect(t testing.TB, c net.PacketConn, start time.Time) []arrival {
	t.Helper()
	var got []arrival
	buf := make([]byte, 2048)
	for {
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		_, _, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, arrival{int(binary.BigEndian.Uint32(buf)), time.Since(start)})
	}
}

func TestArrivalTimes(t *testing.T) {
	const size = 972 // 1000 bytes with the overhead
	tests := []struct {
		model string
		want  func(i int) time.Duration
	}{
		{"rtt=70ms", func(int) time.Duration { return 35 * time.Millisecond }},
		{"rtt=70ms,rate=8Mbps", func(i int) time.Duration {
			return 35*time.Millisecond + time.Duration(i+1)*time.Millisecond
		}},
		// 8000 bits at 3 Mbit/s is 2.6 recurring ms: rounding must not add up.
		{"rtt=10ms,rate=3Mbps,queue=unlimited", func(i int) time.Duration {
			return 5*time.Millisecond + time.Duration(math.Round(float64(i+1)*8000e9/3e6))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.model, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := NewNetwork(mustParse(t, tt.model))
				defer n.Close()
				a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
				start := time.Now()
				send(t, a, b.LocalAddr(), 25, size)
				var want []arrival
				for i := range 25 {
					want = append(want, arrival{i, tt.want(i)})
				}
				if d := cmp.Diff(want, collect(t, b, start), cmp.AllowUnexported(arrival{})); d != "" {
					t.Errorf("arrivals (-want +got):\n%s", d)
				}
			})
		})
	}
}

// A link that went idle starts a busy period at the next packet.
func TestArrivalAfterIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(mustParse(t, "rtt=2ms,rate=8Mbps"))
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		start := time.Now()
		done := make(chan []arrival)
		go func() { done <- collect(t, b, start) }()
		send(t, a, b.LocalAddr(), 1, 972)
		time.Sleep(500 * time.Microsecond) // half serialised
		send(t, a, b.LocalAddr(), 1, 972)
		time.Sleep(time.Second)
		send(t, a, b.LocalAddr(), 1, 972)
		want := []arrival{{0, 2 * time.Millisecond}, {0, 3 * time.Millisecond}, {0, 1002500 * time.Microsecond}}
		if d := cmp.Diff(want, <-done, cmp.AllowUnexported(arrival{})); d != "" {
			t.Errorf("arrivals (-want +got):\n%s", d)
		}
	})
}

func TestDropTailExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The queue takes ten packets, the one in service included.
		n := NewNetwork(mustParse(t, "rtt=20ms,rate=8Mbps,queue=10000"))
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		start := time.Now()
		send(t, a, b.LocalAddr(), 25, 972)
		time.Sleep(3 * time.Millisecond) // three leave exactly now
		send(t, a, b.LocalAddr(), 5, 972)
		got := collect(t, b, start)
		var ordinals []int
		for _, p := range got {
			ordinals = append(ordinals, p.ordinal)
		}
		if d := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2}, ordinals); d != "" {
			t.Errorf("delivered (-want +got):\n%s", d)
		}
		want := LinkStats{Packets: 13, Bytes: 13000, Delivered: 13, DeliveredBytes: 13000, DroppedQueue: 17, MaxQueueBytes: 10000}
		if d := cmp.Diff(want, n.Stats(hostA, hostB)); d != "" {
			t.Errorf("stats (-want +got):\n%s", d)
		}
		if d := cmp.Diff(LinkStats{}, n.Stats(hostB, hostA)); d != "" {
			t.Errorf("stats of the unused direction (-want +got):\n%s", d)
		}
	})
}

// lost sends count packets over a fresh network and returns which were lost.
func lost(t *testing.T, m Model, count int) map[int]bool {
	gone := map[int]bool{}
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(m)
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		send(t, a, b.LocalAddr(), count, 10)
		for i := range count {
			gone[i] = true
		}
		for _, p := range collect(t, b, time.Now()) {
			delete(gone, p.ordinal)
		}
		s := n.Stats(hostA, hostB)
		if s.DroppedLoss != int64(len(gone)) || s.Delivered != int64(count-len(gone)) || s.Packets != int64(count) {
			t.Errorf("stats %+v with %d of %d lost", s, len(gone), count)
		}
	})
	return gone
}

func TestIndependentLoss(t *testing.T) {
	const count, p = 100_000, 0.02
	m := Model{RTT: time.Millisecond, Loss: p, Seed: 3}
	first := lost(t, m, count)
	// Six standard deviations of the binomial distribution.
	if sigma := math.Sqrt(count * p * (1 - p)); math.Abs(float64(len(first))-count*p) > 6*sigma {
		t.Errorf("%d lost, want %v ± %.0f", len(first), count*p, 6*sigma)
	}
	if !cmp.Equal(first, lost(t, m, count)) {
		t.Error("the same seed lost other packets")
	}
	m.Jitter = time.Millisecond
	if !cmp.Equal(first, lost(t, m, count)) {
		t.Error("jitter changed which packets are lost")
	}
	m.Seed = 4
	if cmp.Equal(first, lost(t, m, count)) {
		t.Error("another seed lost the same packets")
	}
}

func TestGilbertElliott(t *testing.T) {
	const count = 200_000
	g := &GilbertElliott{PGoodToBad: 0.002, PBadToGood: 0.2}
	gone := lost(t, Model{Burst: g}, count)
	bursts := 0
	for i := range gone {
		if !gone[i-1] {
			bursts++
		}
	}
	// Bursts are geometric with mean 5 and deviation √20; about 396 of them.
	mean := float64(len(gone)) / float64(bursts)
	if tol := 6 * math.Sqrt(20/float64(bursts)); math.Abs(mean-5) > tol {
		t.Errorf("mean burst %.2f packets over %d bursts, want 5 ± %.2f", mean, bursts, tol)
	}
	share := float64(len(gone)) / count
	if want := 0.002 / 0.202; math.Abs(share-want) > 0.25*want {
		t.Errorf("share lost %.4f, want %.4f", share, want)
	}
}

func TestJitterKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(mustParse(t, "rtt=20ms,jitter=5ms"))
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		start := time.Now()
		for i := range 200 {
			var buf [4]byte
			binary.BigEndian.PutUint32(buf[:], uint32(i))
			if _, err := a.WriteTo(buf[:], b.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		late := 0
		for i, p := range collect(t, b, start) {
			if p.ordinal != i || p.at < 10*time.Millisecond || p.at > 15*time.Millisecond {
				t.Errorf("arrival %d: %+v", i, p)
			}
			if p.at > 10*time.Millisecond {
				late++
			}
		}
		if late < 150 {
			t.Errorf("%d packets were jittered", late)
		}
	})
}

func TestCutAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(mustParse(t, "rtt=20ms,rate=8Mbps"))
		defer n.Close()
		a, b, c := listen(t, n, hostA, 1), listen(t, n, hostB, 1), listen(t, n, hostC, 1)
		send(t, a, b.LocalAddr(), 3, 972) // lost in flight
		time.Sleep(time.Millisecond)
		n.Cut(hostA, hostB)
		send(t, a, b.LocalAddr(), 2, 972)
		send(t, b, a.LocalAddr(), 2, 972)
		send(t, a, c.LocalAddr(), 2, 972) // another link
		if got := collect(t, b, time.Now()); len(got) != 0 {
			t.Errorf("over a cut link: %v", got)
		}
		if got := collect(t, c, time.Now()); len(got) != 2 {
			t.Errorf("another link carried %v", got)
		}
		n.Heal(hostA, hostB)
		n.CutOneWay(hostB, hostA)
		start := time.Now()
		send(t, a, b.LocalAddr(), 1, 972)
		send(t, b, a.LocalAddr(), 1, 972)
		if d := cmp.Diff([]arrival{{0, 11 * time.Millisecond}}, collect(t, b, start), cmp.AllowUnexported(arrival{})); d != "" {
			t.Errorf("after Heal (-want +got):\n%s", d)
		}
		if got := collect(t, a, start); len(got) != 0 {
			t.Errorf("over a direction that is cut: %v", got)
		}
		if s := n.Stats(hostA, hostB); s.DroppedCut != 5 || s.Delivered != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestSetModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(mustParse(t, "rtt=200ms"))
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		start := time.Now()
		send(t, a, b.LocalAddr(), 1, 972)
		if err := n.SetModel(hostB, hostA, mustParse(t, "rtt=20ms,rate=8Mbps")); err != nil {
			t.Fatal(err)
		}
		send(t, a, b.LocalAddr(), 1, 972) // does not overtake
		got := collect(t, b, start)
		start = time.Now()
		send(t, a, b.LocalAddr(), 1, 972)
		got = append(got, collect(t, b, start)...)
		want := []arrival{{0, 100 * time.Millisecond}, {0, 100 * time.Millisecond}, {0, 11 * time.Millisecond}}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(arrival{})); d != "" {
			t.Errorf("arrivals (-want +got):\n%s", d)
		}
		if err := n.SetModel(hostA, hostB, Model{Loss: 2}); err == nil {
			t.Error("loss 2 was taken")
		}
	})
}

func TestMTUAndReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(mustParse(t, "mtu=1000"))
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		if err := b.(*conn).SetReadBuffer(2000); err != nil {
			t.Fatal(err)
		}
		send(t, a, b.LocalAddr(), 1, 973)                                 // over the MTU
		send(t, a, b.LocalAddr(), 3, 972)                                 // the third finds no room
		send(t, a, &net.UDPAddr{IP: net.IP{10, 0, 0, 2}, Port: 9}, 1, 10) // nobody there
		synctest.Wait()
		if got := collect(t, b, time.Now()); len(got) != 2 {
			t.Errorf("delivered %v", got)
		}
		s := n.Stats(hostA, hostB)
		if s.DroppedMTU != 1 || s.DroppedReceiver != 2 || s.Delivered != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestSocketSemantics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Model{RTT: 70 * time.Millisecond})
		defer n.Close()
		a := listen(t, n, hostA, 0)
		a2 := listen(t, n, hostA, 0)
		if p := a.LocalAddr().(*net.UDPAddr).Port; p != firstEphemeralPort {
			t.Errorf("port %d", p)
		}
		if _, err := n.Listen(a.LocalAddr().(*net.UDPAddr).AddrPort()); !errors.Is(err, ErrAddrInUse) {
			t.Errorf("second Listen: %v", err)
		}
		if _, err := n.Listen(netip.MustParseAddrPort("0.0.0.0:1")); err == nil {
			t.Error("Listen on 0.0.0.0 succeeded")
		}
		// The same host: at once, and cut to the reader's buffer.
		if _, err := a.WriteTo([]byte("hello"), a2.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 3)
		got, from, err := a2.ReadFrom(buf)
		if got != 3 || !bytes.Equal(buf, []byte("hel")) || from.String() != a.LocalAddr().String() || err != nil {
			t.Errorf("ReadFrom = %d %q from %v, %v", got, buf, from, err)
		}
		if _, err := a.WriteTo(nil, &net.TCPAddr{}); err == nil {
			t.Error("WriteTo a TCP address succeeded")
		}

		start := time.Now()
		_ = a.SetReadDeadline(start.Add(time.Second))
		if _, _, err := a.ReadFrom(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("read with a deadline: %v after %v", err, time.Since(start))
		}
		var ne net.Error
		if _, _, err := a.ReadFrom(buf); !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("read past the deadline: %v", err)
		}
		_ = a.SetReadDeadline(time.Time{})
		done := make(chan error)
		go func() { _, _, err := a.ReadFrom(make([]byte, 1)); done <- err }()
		synctest.Wait()
		_ = a.SetReadDeadline(time.Now().Add(-1)) // wakes the reader
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reader woken by a deadline in the past: %v", err)
		}
		_ = a.SetReadDeadline(time.Time{})
		go func() { _, _, err := a.ReadFrom(make([]byte, 1)); done <- err }()
		synctest.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("reader of a closed socket: %v", err)
		}
		_, werr := a.WriteTo(nil, a2.LocalAddr())
		for _, err := range []error{werr, a.Close(), a.SetReadDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		listen(t, n, hostA, firstEphemeralPort) // the address is free again
	})
}

func TestNetworkClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Model{RTT: time.Second})
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		send(t, a, b.LocalAddr(), 10, 10)
		done := make(chan error)
		go func() { _, _, err := b.ReadFrom(make([]byte, 1)); done <- err }()
		synctest.Wait()
		if err := errors.Join(n.Close(), n.Close()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("reader: %v", err)
		}
		if _, err := n.Listen(netip.AddrPortFrom(hostA, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Listen after Close: %v", err)
		}
	})
}

func TestTap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Model{RTT: time.Millisecond})
		defer n.Close()
		a, b := listen(t, n, hostA, 1), listen(t, n, hostB, 1)
		n.Tap(func(p Packet) Verdict {
			i := binary.BigEndian.Uint32(p.Data)
			if i == 1 {
				return Drop
			}
			binary.BigEndian.PutUint32(p.Data, i+100)
			return Pass
		})
		start := time.Now()
		send(t, a, b.LocalAddr(), 3, 8)
		want := []arrival{{100, 500 * time.Microsecond}, {102, 500 * time.Microsecond}}
		if d := cmp.Diff(want, collect(t, b, start), cmp.AllowUnexported(arrival{})); d != "" {
			t.Errorf("arrivals (-want +got):\n%s", d)
		}
	})
}

// BenchmarkNetwork moves full packets at 1 Gbit/s in real time's fastest case:
// an unlimited link.
func BenchmarkNetwork(b *testing.B) {
	n := NewNetwork(Model{})
	defer n.Close()
	src, dst := listen(b, n, hostA, 1), listen(b, n, hostB, 1)
	buf, in := make([]byte, 1280), make([]byte, 1500)
	b.SetBytes(1280)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := src.WriteTo(buf, dst.LocalAddr()); err != nil {
			b.Fatal(err)
		}
		if _, _, err := dst.ReadFrom(in); err != nil {
			b.Fatal(err)
		}
	}
}
