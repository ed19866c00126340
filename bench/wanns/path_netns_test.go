//go:build netns && linux

package wanns

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
)

// open makes a path with names of this process, or skips.
func open(t *testing.T, link string, edit func(*Config)) *Path {
	t.Helper()
	m, err := wan.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("kvf%d-%s-", os.Getpid(), strings.ToLower(t.Name()[4:]))
	cfg := Config{A: name + "a", B: name + "b", Model: m}
	if edit != nil {
		edit(&cfg)
	}
	p, err := Open(cfg)
	if errors.Is(err, ErrNotPermitted) || errors.Is(err, ErrNoTUN) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for _, n := range []string{cfg.A, cfg.B} {
			if _, err := os.Stat(filepath.Join(netnsDir, n)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("namespace %s is left: %v", n, err)
			}
		}
	})
	return p
}

// ping sends one ICMP echo request (RFC 792) of n bytes of payload from A to B and returns the round trip.
func ping(t *testing.T, p *Path, n int, wait time.Duration) (time.Duration, error) {
	t.Helper()
	var conn net.PacketConn
	err := p.Do(A, func() (err error) {
		conn, err = net.ListenPacket("ip4:icmp", p.Addr(A).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	msg := make([]byte, 8+n)
	id := uint16(rand.Uint32())
	msg[0] = 8 // echo request
	binary.BigEndian.PutUint16(msg[4:], id)
	var sum uint32
	for i := 0; i+1 < len(msg); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(msg[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(msg[2:], ^uint16(sum+sum>>16))
	began := time.Now()
	if _, err := conn.WriteTo(msg, &net.IPAddr{IP: p.Addr(B).AsSlice()}); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(began.Add(wait)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return 0, err
		}
		if n == len(msg) && buf[0] == 0 && binary.BigEndian.Uint16(buf[4:]) == id && bytes.Equal(buf[8:n], msg[8:]) {
			return time.Since(began), nil
		}
	}
}

// An echo takes the round trip of the link, and its serialisation both ways.
func TestPing(t *testing.T) {
	p := open(t, "rtt=70ms,rate=1Mbps,loss=0", nil)
	for _, size := range []int{56, 1472} {
		least := time.Hour
		for range 5 {
			rtt, err := ping(t, p, size, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			least = min(least, rtt)
		}
		want := 70*time.Millisecond + 2*time.Duration(float64(28+size)*8e9/1e6)
		if least < want-time.Millisecond || least > want+10*time.Millisecond {
			t.Errorf("%d bytes: round trip %v, want %v", size, least, want)
		}
	}
	st := p.Stats()
	if st.AToB.Packets != 10 || st.BToA.Packets != 10 || st.AToB.Bytes != 5*(28+56+28+1472) {
		t.Errorf("%+v: want 10 packets each way, and nothing else on the link", st)
	}
}

// The link that is cut carries nothing; healed and with another model, it does again.
func TestCut(t *testing.T) {
	p := open(t, "rtt=10ms,rate=unlimited,loss=0", func(c *Config) { c.Net = netip.MustParsePrefix("10.99.8.0/30") })
	if p.Addr(A).String() != "10.99.8.1" || p.Addr(B).String() != "10.99.8.2" {
		t.Errorf("addresses %v, %v", p.Addr(A), p.Addr(B))
	}
	p.Cut()
	if _, err := ping(t, p, 56, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while cut: %v", err)
	}
	p.Heal()
	if err := p.SetModel(wan.Model{RTT: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if rtt, err := ping(t, p, 56, 5*time.Second); err != nil || rtt < 100*time.Millisecond {
		t.Errorf("healed: %v, %v", rtt, err)
	}
	if st := p.Stats(); st.AToB.DroppedCut != 1 {
		t.Errorf("%+v", st)
	}
}

// The kernel's TCP carries bytes unchanged, at the link's rate and not above.
func TestTCP(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		bytes  int
		least  float64 // share of the rate
		mtu    int
		header int // IPv4 and TCP with timestamps
	}{{50e6, 8 << 20, 0.5, 1500, 52}, {400e6, 64 << 20, 0.3, 9000, 52}} {
		t.Run(strconv.Itoa(c.mtu), func(t *testing.T) {
			p := open(t, fmt.Sprintf("rtt=20ms,rate=%gbps,loss=0,mtu=%d", c.rate, c.mtu), func(cfg *Config) {
				cfg.A, cfg.B = fmt.Sprintf("kvf%d-tcp%d-a", os.Getpid(), c.mtu), fmt.Sprintf("kvf%d-tcp%d-b", os.Getpid(), c.mtu)
			})
			data := make([]byte, c.bytes)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
			seconds := transfer(t, p, data)
			share := float64(8*c.bytes) / seconds / c.rate
			t.Logf("%d bytes in %.3f s: %.3f of %g bit/s; %+v", c.bytes, seconds, share, c.rate, p.Stats())
			if most := float64(c.mtu-c.header) / float64(c.mtu); share > most || share < c.least {
				t.Errorf("share of the link %.3f, want %.2f to %.3f", share, c.least, most)
			}
			if st := p.Stats(); st.DeviceDropsA != 0 || st.DeviceDropsB != 0 {
				t.Errorf("the devices dropped: %+v", st)
			}
		})
	}
}

// transfer sends data from B to A by TCP and returns how long it took, from dialling to the last byte.
func transfer(t *testing.T, p *Path, data []byte) float64 {
	t.Helper()
	var lis net.Listener
	at := netip.AddrPortFrom(p.Addr(B), 9000).String()
	if err := p.Do(B, func() (err error) { lis, err = net.Listen("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	sent := make(chan error, 1) // capacity 1: the sender's end is looked at last
	go func() {
		conn, err := lis.Accept()
		if err == nil {
			_, err = conn.Write(data)
			err = errors.Join(err, conn.Close())
		}
		sent <- err
	}()
	began := time.Now()
	var conn net.Conn
	if err := p.Do(A, func() (err error) { conn, err = net.Dial("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	n, err := io.Copy(h, conn)
	took := time.Since(began).Seconds()
	if err := errors.Join(err, <-sent); err != nil || n != int64(len(data)) {
		t.Fatalf("%d of %d bytes: %v", n, len(data), err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
		t.Error("other bytes arrived")
	}
	return took
}

// Nothing of the host's networks is in a namespace.
func TestFresh(t *testing.T) {
	p := open(t, "", nil)
	for _, s := range []Side{A, B} {
		err := p.Do(s, func() error {
			ifs, err := net.Interfaces()
			if err == nil && (len(ifs) != 2 || ifs[0].Name != "lo" || ifs[1].Name != Device || ifs[1].MTU != 1500) {
				err = fmt.Errorf("interfaces %v", ifs)
			}
			return err
		})
		if err != nil {
			t.Errorf("side %v: %v", s, err)
		}
	}
	// A name that is taken is not taken over, and what was made before it goes away again.
	_, err := Open(Config{A: p.cfg.A + "x", B: p.cfg.B})
	if !errors.Is(err, ErrExists) {
		t.Errorf("%v, want %v", err, ErrExists)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, p.cfg.A+"x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, p.cfg.B)); err != nil {
		t.Errorf("the namespace of another is gone: %v", err)
	}
}

func TestCloseTwice(t *testing.T) {
	p := open(t, "rtt=10ms", nil)
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Do(A, func() error { return nil }); err == nil {
		t.Error("entered a namespace that is gone")
	}
}
