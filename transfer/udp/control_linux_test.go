package udp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func cmsg(level, kind int, body ...byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(body)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(body)))
	copy(b[unix.CmsgLen(0):], body)
	return b
}

func gro(n uint32) []byte {
	return cmsg(unix.IPPROTO_UDP, unix.UDP_GRO, binary.NativeEndian.AppendUint32(nil, n)...)
}

func TestSplitControl(t *testing.T) {
	tos, info := cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2), cmsg(unix.IPPROTO_IP, unix.IP_PKTINFO, make([]byte, 12)...)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	unpadded := tos[:unix.CmsgLen(1)]
	short := cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2)
	(*unix.Cmsghdr)(unsafe.Pointer(&short[0])).SetLen(3)
	long := cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2)
	(*unix.Cmsghdr)(unsafe.Pointer(&long[0])).SetLen(1 << 20)
	for _, tt := range []struct {
		name    string
		in      []byte
		want    []byte
		segment int
		bad     bool
	}{
		{name: "none"},
		{name: "no GRO", in: join(tos, info), want: join(tos, info)},
		{name: "first", in: join(gro(1200), tos, info), want: join(tos, info), segment: 1200},
		{name: "between", in: join(tos, gro(1452), info), want: join(tos, info), segment: 1452},
		{name: "last", in: join(tos, gro(1)), want: tos, segment: 1},
		{name: "alone", in: gro(65535), want: []byte{}, segment: 65535},
		{name: "16 bits", in: cmsg(unix.IPPROTO_UDP, unix.UDP_GRO, binary.NativeEndian.AppendUint16(nil, 999)...), want: []byte{}, segment: 999},
		{name: "without padding at the end", in: join(gro(7), unpadded), want: unpadded, segment: 7},
		{name: "same number of another level", in: cmsg(unix.IPPROTO_IP, unix.UDP_GRO, 1, 2, 3, 4), want: cmsg(unix.IPPROTO_IP, unix.UDP_GRO, 1, 2, 3, 4)},
		{name: "zero", in: gro(0), bad: true},
		{name: "negative", in: gro(1 << 31), bad: true},
		{name: "beyond a datagram", in: gro(1<<16 + 1), bad: true},
		{name: "8 bytes", in: cmsg(unix.IPPROTO_UDP, unix.UDP_GRO, make([]byte, 8)...), bad: true},
		{name: "half a header", in: tos[:unix.SizeofCmsghdr-1], bad: true},
		{name: "shorter than its header", in: short, bad: true},
		{name: "longer than it is", in: long, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rest, segment, err := splitControl(bytes.Clone(tt.in))
			if (err != nil) != tt.bad || segment != tt.segment || !bytes.Equal(rest, tt.want) {
				t.Errorf("%x, %d, %v; want %x, %d", rest, segment, err, tt.want, tt.segment)
			}
		})
	}
}

func TestCopyControl(t *testing.T) {
	tos, info := cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2), cmsg(unix.IPPROTO_IP, unix.IP_PKTINFO, make([]byte, 12)...)
	src := append(bytes.Clone(tos), info...)
	for room := range len(src) + 8 {
		dst := make([]byte, room)
		n, fits := copyControl(dst, src)
		want := 0
		if room >= len(tos) {
			want = len(tos)
		}
		if room >= len(src) {
			want = len(src)
		}
		if n != want || fits != (room >= len(src)) || !bytes.Equal(dst[:n], src[:n]) {
			t.Errorf("room for %d: %d, %v", room, n, fits)
		}
	}
}

// Addresses are remembered, but not without bound.
func TestAddrBound(t *testing.T) {
	r := reader{addrs: make(map[addrKey]*net.UDPAddr)}
	for i := range 3 * maxAddrs {
		name := unix.RawSockaddrInet6{Family: unix.AF_INET6}
		name.Addr[0], name.Addr[14], name.Addr[15] = 0xfd, byte(i>>8), byte(i)
		a := r.addr(&name)
		if want := netip.AddrFrom16(name.Addr).String(); a.IP.String() != want || r.addr(&name) != a {
			t.Fatalf("%v, want %s, the same each time", a, want)
		}
		if len(r.addrs) > maxAddrs {
			t.Fatalf("%d addresses are kept", len(r.addrs))
		}
	}
	if a := r.addr(new(unix.RawSockaddrInet6)); a.IP != nil || a.Port != 0 {
		t.Errorf("no address: %v", a)
	}
}

// FuzzSplitControl holds the parser to the one of x/sys: what it accepts are the
// same messages but the kernel's own, and it keeps their bytes.
func FuzzSplitControl(f *testing.F) {
	f.Add([]byte{})
	f.Add(gro(1200))
	f.Add(append(gro(1200), cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2)...))
	f.Add(append(cmsg(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, make([]byte, 20)...), gro(0)...))
	f.Add(cmsg(unix.IPPROTO_IP, unix.IP_TOS, 2)[:unix.CmsgLen(1)])
	f.Fuzz(func(t *testing.T, in []byte) {
		buf := bytes.Clone(in)
		rest, segment, err := splitControl(buf)
		if err != nil {
			return
		}
		if segment < 0 || segment > messageBytes || len(rest) > len(in) {
			t.Fatalf("segment %d, %d bytes left of %d", segment, len(rest), len(in))
		}
		var want []byte
		wantSegment := 0
		for b := in; len(b) > 0; {
			h, body, after, err := unix.ParseOneSocketControlMessage(b)
			if err != nil {
				t.Fatalf("x/sys refuses what was accepted: %v", err)
			}
			if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO {
				if wantSegment, err = groSegment(body); err != nil {
					t.Fatal(err)
				}
			} else {
				want = append(want, b[:len(b)-len(after)]...)
			}
			b = after
		}
		if segment != wantSegment || !bytes.Equal(rest, want) {
			t.Fatalf("%x, %d; want %x, %d", rest, segment, want, wantSegment)
		}
		again, none, err := splitControl(bytes.Clone(rest))
		if err != nil || none != 0 || !bytes.Equal(again, rest) {
			t.Fatalf("what is left does not parse to itself: %x, %d, %v", again, none, err)
		}
		for room := 0; room <= len(rest); room += 7 {
			if n, _ := copyControl(make([]byte, room), rest); n > room {
				t.Fatalf("%d bytes copied where %d fit", n, room)
			}
		}
	})
}
