package udp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/kvferry/kvferry/transfer/udp"
)

// modes are the two ways to read; a test that goes through them holds both to the
// same.
var modes = []struct {
	name string
	cfg  udp.Config
}{
	{"gro", udp.Config{}},
	{"plain", udp.Config{NoGRO: true}},
}

func bothModes(t *testing.T, f func(t *testing.T, cfg udp.Config)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			f(t, m.cfg)
		})
	}
}

func listen(t testing.TB, cfg udp.Config) *udp.Conn {
	t.Helper()
	c, err := udp.Listen("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// plainSender opens an ordinary socket to send from.
func plainSender(t testing.TB) *net.UDPConn {
	t.Helper()
	s, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// messages returns n messages as quic-go has them.
func messages(n, bytes, oob int) []ipv4.Message {
	ms := make([]ipv4.Message, n)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, bytes)}
		ms[i].OOB = make([]byte, oob)
	}
	return ms
}

// datagram returns the i-th datagram of a seed: n bytes that begin with as much of
// the number as fits.
func datagram(seed, i uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], i)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func setDeadline(t testing.TB, c *udp.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
}

// readAll reads n datagrams by ReadBatch, k at most at a time.
func readAll(t testing.TB, c *udp.Conn, n, k int) [][]byte {
	t.Helper()
	setDeadline(t, c)
	ms := messages(k, 65536, 128)
	var got [][]byte
	for len(got) < n {
		m, err := c.ReadBatch(ms, 0)
		if err != nil {
			t.Fatalf("after %d of %d datagrams: %v", len(got), n, err)
		}
		if m < 1 || m > k {
			t.Fatalf("ReadBatch returned %d of %d", m, k)
		}
		for i := range m {
			got = append(got, bytes.Clone(ms[i].Buffers[0][:ms[i].N]))
		}
	}
	return got
}

func same(t testing.TB, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d datagrams, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("datagram %d: %d bytes, want %d, or other bytes", i, len(got[i]), len(want[i]))
		}
	}
}

// Datagrams of every size, one send each, arrive as they were sent; loopback keeps
// the order.
func TestRandomSizes(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		r := rand.New(rand.NewPCG(1, 2))
		sizes := []int{0, 1, 1, 1200, 1200, 1199, 1452, 65507, 0}
		for range 300 {
			sizes = append(sizes, r.IntN(3000))
		}
		var want [][]byte
		for i := 0; i < len(sizes); {
			burst := min(1+r.IntN(20), len(sizes)-i)
			for ; burst > 0; burst-- {
				d := datagram(1, uint64(i), sizes[i])
				if _, err := s.WriteTo(d, c.LocalAddr()); err != nil {
					t.Fatal(err)
				}
				want = append(want, d)
				i++
			}
		}
		same(t, readAll(t, c, len(want), 8), want)
	})
}

// Every other call takes a datagram out of the same messages, so ReadFrom and
// ReadMsgUDP see what ReadBatch would.
func TestReadOneByOne(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		var want [][]byte
		for i := range 30 {
			d := datagram(2, uint64(i), 100+i%3)
			if _, err := s.WriteTo(d, c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			want = append(want, d)
		}
		setDeadline(t, c)
		var got [][]byte
		buf := make([]byte, 2000)
		for len(got) < len(want) {
			var (
				n   int
				a   net.Addr
				err error
			)
			if len(got)%2 == 0 {
				n, a, err = c.ReadFrom(buf)
			} else {
				n, _, _, a, err = c.ReadMsgUDP(buf, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.String() != s.LocalAddr().String() {
				t.Fatalf("from %v, want %v", a, s.LocalAddr())
			}
			got = append(got, bytes.Clone(buf[:n]))
		}
		same(t, got, want)
	})
}

// A Conn's own writes arrive, over IPv6 and from an IPv6 socket to an IPv4 peer.
func TestWrite(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		for _, addrs := range [][2]string{{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "::1"}, {":0", "127.0.0.1"}} {
			c, err := udp.Listen(addrs[0], cfg)
			if err != nil {
				t.Logf("no %s here: %v", addrs[0], err)
				continue
			}
			defer c.Close()
			to := &net.UDPAddr{IP: net.ParseIP(addrs[1]), Port: c.LocalAddr().(*net.UDPAddr).Port}
			setDeadline(t, c)
			for i := range 2 {
				d := datagram(3, uint64(i), 500)
				if i == 0 {
					_, err = c.WriteTo(d, to)
				} else {
					_, _, err = c.WriteMsgUDP(d, nil, to)
				}
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 600)
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					t.Fatal(err)
				}
				if u := from.(*net.UDPAddr); !u.IP.Equal(to.IP) || u.Port != to.Port {
					t.Errorf("from %v, want %v", u, to)
				}
				if !bytes.Equal(buf[:n], d) {
					t.Error("other bytes")
				}
			}
		}
	})
}

// Several readers: each datagram goes to exactly one, whole.
func TestConcurrentReads(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		const total = 400
		c, s := listen(t, cfg), plainSender(t)
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			seen = map[uint64]int{}
		)
		for k := range 4 {
			wg.Go(func() {
				ms := messages(1+k, 2000, 64)
				for {
					n, err := c.ReadBatch(ms, 0)
					if err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					for _, m := range ms[:n] {
						b := m.Buffers[0][:m.N]
						i := binary.LittleEndian.Uint64(b)
						if !bytes.Equal(b[8:], datagram(4, i, len(b)-8)) {
							t.Errorf("datagram %d: other bytes", i)
						}
						seen[i]++
					}
					done := len(seen) == total
					mu.Unlock()
					if done {
						_ = c.Close()
					}
				}
			})
		}
		for i := range uint64(total) {
			d := append(binary.LittleEndian.AppendUint64(nil, i), datagram(4, i, 500+int(i/20))...)
			if _, err := s.WriteTo(d, c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		for i, n := range seen {
			if n != 1 {
				t.Errorf("datagram %d was read %d times", i, n)
			}
		}
	})
}

// Close and a deadline end blocked reads, and later ones, whatever is at hand.
func TestUnblock(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		reads := map[string]func(*udp.Conn) error{
			"ReadBatch":  func(c *udp.Conn) error { _, err := c.ReadBatch(messages(2, 100, 64), 0); return err },
			"ReadFrom":   func(c *udp.Conn) error { _, _, err := c.ReadFrom(make([]byte, 10)); return err },
			"ReadMsgUDP": func(c *udp.Conn) error { _, _, _, _, err := c.ReadMsgUDP(make([]byte, 10), nil); return err },
		}
		ends := map[string]struct {
			end  func(*udp.Conn) error
			want error
		}{
			"close":    {(*udp.Conn).Close, net.ErrClosed},
			"deadline": {func(c *udp.Conn) error { return c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		}
		for how, end := range ends {
			c := listen(t, cfg)
			var (
				wg      sync.WaitGroup
				started atomic.Int32
			)
			for name, read := range reads {
				wg.Go(func() {
					started.Add(1)
					err := read(c)
					if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "read" || !errors.Is(err, end.want) {
						t.Errorf("%s, %s while it waits: %v", name, how, err)
					}
				})
			}
			for started.Load() < int32(len(reads)) {
				runtime.Gosched()
			}
			if err := end.end(c); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			for name, read := range reads {
				if err := read(c); !errors.Is(err, end.want) {
					t.Errorf("%s after %s: %v", name, how, err)
				}
			}
		}
	})
}

// A deadline holds although datagrams are at hand, and they are there after it.
func TestDeadlineKeepsDatagrams(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		var want [][]byte
		for i := range 5 {
			d := datagram(5, uint64(i), 200)
			if _, err := s.WriteTo(d, c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			want = append(want, d)
		}
		got := readAll(t, c, 1, 1)
		if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		ms := messages(3, 300, 0)
		ms[0].N, ms[0].NN = 77, 7
		if n, err := c.ReadBatch(ms, 0); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
		if ms[0].N != 0 || ms[0].NN != 0 {
			t.Errorf("an error left N = %d, NN = %d", ms[0].N, ms[0].NN)
		}
		same(t, append(got, readAll(t, c, 3, 3)...), want[:4])
		if err := c.Close(); err != nil { // with one at hand, in the process or in the kernel
			t.Fatal(err)
		}
		if _, _, err := c.ReadFrom(make([]byte, 300)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
	})
}

func TestBadInput(t *testing.T) {
	c := listen(t, udp.Config{})
	if n, err := c.ReadBatch(nil, 0); n != 0 || err != nil {
		t.Errorf("no messages: %d, %v", n, err)
	}
	if _, err := c.ReadBatch(messages(1, 10, 0), 2); err == nil {
		t.Error("flags were taken")
	}
	if _, err := udp.Listen("127.0.0.1:0", udp.Config{ReadBuffer: 1 << 30, WriteBuffer: 1 << 31}); err == nil {
		t.Error("buffers were taken")
	} else {
		for _, want := range []string{"ReadBuffer", "WriteBuffer", "1073741824"} {
			if !bytes.Contains([]byte(err.Error()), []byte(want)) {
				t.Errorf("%q does not say %s", err, want)
			}
		}
	}
	if _, err := udp.Listen("nonsense", udp.Config{}); err == nil {
		t.Error("an address was taken")
	}
	u := plainSender(t)
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := udp.Wrap(u, udp.Config{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("wrap a closed socket: %v", err)
	}
}

func TestBuffers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   udp.Config
		asked int
	}{
		{"default", udp.Config{}, 8 << 20},
		{"small", udp.Config{ReadBuffer: 1, WriteBuffer: 1}, 1},
		{"large", udp.Config{ReadBuffer: 1<<30 - 1, WriteBuffer: 1<<30 - 1}, 1<<30 - 1},
		{"the system's", udp.Config{ReadBuffer: -1, WriteBuffer: -1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := listen(t, tt.cfg)
			for _, b := range []udp.Buffer{c.Buffers().Read, c.Buffers().Write} {
				t.Log(b)
				if b.Asked != tt.asked {
					t.Errorf("asked %d, want %d", b.Asked, tt.asked)
				}
				if b.Short() != (b.Got < b.Asked) || b.Short() != (b.Fix != "") {
					t.Errorf("%+v", b)
				}
			}
		})
	}
}

func TestBufferString(t *testing.T) {
	for want, b := range map[string]udp.Buffer{
		"8388608 bytes":                       {Asked: 8 << 20, Got: 8 << 20},
		"212992 bytes, the system's default":  {Got: 212992},
		"1000 bytes of 2000 asked for; do so": {Asked: 2000, Got: 1000, Fix: "do so"},
	} {
		if got := b.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func Example() {
	c, err := udp.Listen("127.0.0.1:0", udp.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	// quic.Transport{Conn: c} reads and writes as fast as the system allows. By hand:
	for _, s := range []string{"one", "two"} {
		if _, err := c.WriteTo([]byte(s), c.LocalAddr()); err != nil {
			fmt.Println(err)
			return
		}
	}
	buf := make([]byte, 100)
	for range 2 {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(buf[:n]))
	}
	// Output:
	// one
	// two
}
