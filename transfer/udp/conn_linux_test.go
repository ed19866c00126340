package udp_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/transfer/udp"
)

// appendControl appends a control message as the kernel lays it out.
func appendControl(b []byte, level, kind int, body []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, unix.CmsgSpace(len(body)))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[start]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(body)))
	copy(b[start+unix.CmsgLen(0):], body)
	return b
}

// segmented sends data as datagrams of size bytes, the last as long as it comes,
// in one system call; extra are more control messages.
func segmented(t testing.TB, s *net.UDPConn, to net.Addr, data []byte, size int, extra []byte) {
	t.Helper()
	oob := appendControl(extra, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(size)))
	n, _, err := s.WriteMsgUDP(data, oob, to.(*net.UDPAddr))
	if err != nil || n != len(data) {
		t.Fatalf("send %d bytes in datagrams of %d: %d, %v", len(data), size, n, err)
	}
}

// cut is the oracle: where datagrams begin and end.
func cut(data []byte, size int) [][]byte {
	var out [][]byte
	for len(data) > 0 {
		n := min(size, len(data))
		out, data = append(out, data[:n]), data[n:]
	}
	return out
}

// Bursts of random numbers and sizes, the last datagram of a burst shorter, arrive
// cut exactly where the sender had cut them.
func TestSegmentBoundaries(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		if c.GRO() == cfg.NoGRO {
			t.Skipf("GRO is %v: this kernel has none", c.GRO())
		}
		r := rand.New(rand.NewPCG(3, 4))
		for round := range 60 {
			var want [][]byte
			for burst := range 1 + r.IntN(6) {
				size := 1 + r.IntN(1452)
				n := 1 + r.IntN(64)
				n = min(n, 65000/size)
				last := 1 + r.IntN(size)
				data := datagram(6, uint64(round*100+burst), (n-1)*size+last)
				segmented(t, s, c.LocalAddr(), data, size, nil)
				want = append(want, cut(data, size)...)
			}
			same(t, readAll(t, c, len(want), 1+r.IntN(16)), want)
		}
	})
}

// Each datagram of a burst has the burst's ECN mark and local address, and the
// kernel's segment size is gone.
func TestControlMessages(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			for _, opt := range []int{unix.IP_RECVTOS, unix.IP_PKTINFO} {
				if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, opt, 1); err != nil {
					t.Error(err)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		setDeadline(t, c)
		for ecn := range byte(4) {
			mark := appendControl(nil, unix.IPPROTO_IP, unix.IP_TOS, []byte{ecn})
			segmented(t, s, c.LocalAddr(), make([]byte, 4*100+50), 100, mark)
			for i := 0; i < 5; {
				ms := messages(3, 1452, 128)
				n, err := c.ReadBatch(ms, 0)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range ms[:n] {
					parsed, err := unix.ParseSocketControlMessage(m.OOB[:m.NN])
					if err != nil {
						t.Fatal(err)
					}
					kinds := map[int32][]byte{}
					for _, p := range parsed {
						if p.Header.Level != unix.IPPROTO_IP {
							t.Fatalf("control message %d of level %d was left", p.Header.Type, p.Header.Level)
						}
						kinds[p.Header.Type] = p.Data
					}
					if len(parsed) != 2 || len(kinds[unix.IP_TOS]) != 1 || kinds[unix.IP_TOS][0] != ecn {
						t.Fatalf("datagram %d: %v, want ECN %d and the local address", i, parsed, ecn)
					}
					if info := kinds[unix.IP_PKTINFO]; len(info) != 12 || net.IP(info[8:12]).String() != "127.0.0.1" {
						t.Fatalf("local address %v", info)
					}
					if want := min(100, 450-100*i); m.N != want || m.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
						t.Fatalf("datagram %d has %d bytes, flags %#x", i, m.N, m.Flags)
					}
					i++
				}
			}
		}
	})
}

// What does not fit is cut and said to be, and the next datagram is whole.
func TestTruncated(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg udp.Config) {
		c, s := listen(t, cfg), plainSender(t)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		}); err != nil {
			t.Fatal(err)
		}
		data := datagram(7, 0, 500)
		setDeadline(t, c)
		segmented(t, s, c.LocalAddr(), data, 100, nil)
		ms := []ipv4.Message{
			{Buffers: [][]byte{make([]byte, 40)}, OOB: make([]byte, 128)},
			{Buffers: [][]byte{make([]byte, 30), make([]byte, 30), make([]byte, 100)}, OOB: make([]byte, 40)},
		}
		for got := 0; got < 2; {
			n, err := c.ReadBatch(ms[got:], 0)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		if m := ms[0]; m.N != 40 || m.Flags&unix.MSG_TRUNC == 0 || m.Flags&unix.MSG_CTRUNC != 0 {
			t.Errorf("short buffer: %d bytes, flags %#x", m.N, m.Flags)
		}
		m := ms[1]
		if m.N != 100 || m.Flags&unix.MSG_TRUNC != 0 || m.Flags&unix.MSG_CTRUNC == 0 || m.NN > 40 {
			t.Errorf("short control: %d bytes, %d of control, flags %#x", m.N, m.NN, m.Flags)
		}
		if p, err := unix.ParseSocketControlMessage(m.OOB[:m.NN]); err != nil || len(p) != 1 {
			t.Errorf("cut control messages: %v, %v", p, err)
		}
		same(t, [][]byte{append(append(m.Buffers[0][:30:30], m.Buffers[1]...), m.Buffers[2][:40]...)}, [][]byte{data[100:200]})
		buf, oob := make([]byte, 99), make([]byte, 10)
		n, oobn, flags, _, err := c.ReadMsgUDP(buf, oob)
		if err != nil || n != 99 || oobn != 0 || flags&unix.MSG_TRUNC == 0 || flags&unix.MSG_CTRUNC == 0 {
			t.Errorf("ReadMsgUDP: %d, %d, %#x, %v", n, oobn, flags, err)
		}
		same(t, readAll(t, c, 2, 8), cut(data[300:], 100))
	})
}

// Reading and writing allocate nothing a datagram, nothing a call.
func TestAllocations(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			c := listen(t, m.cfg)
			data := datagram(8, 0, 40*1200)
			ms := messages(8, 1452, 128)
			oob := appendControl(nil, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, 1200))
			to := c.LocalAddr().(*net.UDPAddr)
			buf := make([]byte, 1452)
			setDeadline(t, c)
			perRound := testing.AllocsPerRun(200, func() {
				if _, _, err := c.WriteMsgUDP(data, oob, to); err != nil {
					t.Fatal(err)
				}
				if _, _, err := c.ReadFrom(buf); err != nil {
					t.Fatal(err)
				}
				for n := 1; n < 40; {
					k, err := c.ReadBatch(ms, 0)
					if err != nil {
						t.Fatal(err)
					}
					n += k
				}
			})
			if perRound > 0 {
				t.Errorf("%v allocations for 40 datagrams", perRound)
			}
		})
	}
}

// The same sender has the same address value, and many senders don't pile up.
func TestAddresses(t *testing.T) {
	c := listen(t, udp.Config{})
	setDeadline(t, c)
	buf := make([]byte, 100)
	var last net.Addr
	s := plainSender(t)
	for range 3 {
		if _, err := s.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_, a, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && a != last {
			t.Error("another value for the same address")
		}
		last = a
	}
}

// Zones of link-local addresses are as package net has them.
func TestZone(t *testing.T) {
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.IsLinkLocalUnicast() || n.IP.To4() != nil {
				continue
			}
			c, err := udp.Listen("["+n.IP.String()+"%"+i.Name+"]:0", udp.Config{})
			if err != nil {
				continue
			}
			defer c.Close()
			if _, err := c.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
				continue
			}
			setDeadline(t, c)
			_, from, err := c.ReadFrom(make([]byte, 10))
			if err != nil {
				t.Fatal(err)
			}
			if from.String() != c.LocalAddr().String() {
				t.Errorf("from %v, want %v", from, c.LocalAddr())
			}
			return
		}
	}
	t.Skip("no interface here has a link-local IPv6 address")
}

// What the kernel says it gave is what Buffers says; the fix names the limit.
func TestBuffersOfTheKernel(t *testing.T) {
	c := listen(t, udp.Config{ReadBuffer: 1 << 20, WriteBuffer: 1<<30 - 1})
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for opt, b := range map[int]udp.Buffer{unix.SO_RCVBUF: c.Buffers().Read, unix.SO_SNDBUF: c.Buffers().Write} {
			v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, opt)
			if err != nil || v/2 != b.Got {
				t.Errorf("the kernel has %d, %v; want twice %d", v, err, b.Got)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if b := c.Buffers().Write; b.Short() && !strings.HasPrefix(b.Fix, "sysctl -w net.core.wmem_max="+strconv.Itoa(b.Asked)) {
		t.Errorf("fix is %q", b.Fix)
	}
}

// BenchmarkLoopback moves datagrams of quic-go's batches, 14 x 1452 bytes a system
// call, to a reader on the other side.
func BenchmarkLoopback(b *testing.B) {
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			c, s := listen(b, m.cfg), plainSender(b)
			const size, segments = 1452, 14
			data := make([]byte, segments*size)
			oob := appendControl(nil, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, size))
			to := c.LocalAddr().(*net.UDPAddr)
			ms := messages(8, size, 128)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			b.SetBytes(8 * int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				for range 8 {
					if _, _, err := s.WriteMsgUDP(data, oob, to); err != nil {
						b.Fatal(err)
					}
				}
				for n := 0; n < 8*segments; {
					k, err := c.ReadBatch(ms, 0)
					if err != nil {
						b.Fatal(err)
					}
					n += k
				}
			}
		})
	}
}
