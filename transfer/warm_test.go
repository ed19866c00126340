package transfer_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// TestWarmAfterIdle moves 64 MiB, idles for ten minutes and moves them again: the
// windows have stayed open.
func TestWarmAfterIdle(t *testing.T) {
	pages := 1024
	if raceEnabled {
		pages = 128
	}
	synctest.Test(t, func(t *testing.T) {
		// A fixed number: one that is added in the last read costs it more than the
		// idle time does.
		p := newPull(t, overWAN(t, "rtt=70ms,rate=1Gbps,loss=0"), pages, func(_ int, c *transfer.Config) { c.Stripes = 4 })
		read := func() time.Duration {
			clear(p.to.b)
			res, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.equal(t)
			return res.Duration
		}
		cold, warm := read(), read()
		time.Sleep(10 * time.Minute)
		later := read()
		t.Logf("cold %v, warm %v, after ten idle minutes %v, %d connections", cold, warm, later, p.link.Stats().Stripes)
		if later > warm*11/10 {
			t.Errorf("%v after ten idle minutes, %v before", later, warm)
		}
		if !raceEnabled && warm > cold*9/10 {
			t.Errorf("warm %v, cold %v: nothing to stay warm", warm, cold)
		}
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
	})
}

// TestShrinks has a link begin with the remembered number of connections, move
// pages while it has them, and go back to the first number when it has idled for a
// quarter of an hour, without losing what runs meanwhile.
func TestShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 64, func(_ int, c *transfer.Config) {
			c.Recall = func(transfer.PeerID) transfer.Estimates { return transfer.Estimates{Stripes: 12} }
		})
		read := func() {
			t.Helper()
			clear(p.to.b)
			if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
				t.Fatal(err)
			}
			p.equal(t)
		}
		read()
		if n := p.link.Stats().Stripes; n != 12 {
			t.Errorf("%d connections at first, want the 12 remembered", n)
		}
		time.Sleep(14 * time.Minute)
		if n := p.link.Stats().Stripes; n != 12 {
			t.Errorf("%d connections after 14 idle minutes", n)
		}
		time.Sleep(2 * time.Minute)
		read() // while the others may still drain
		time.Sleep(10 * time.Second)
		for _, l := range []*transfer.Link{p.link, p.src.Links()[0]} {
			if n := l.Stats().Stripes; n < 4 || n > 6 { // two may be on trial when the read ends
				t.Errorf("%d connections after 16 idle minutes, want 4 to 6", n)
			}
		}
		read()
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
	})
}

// rebindable is a socket whose address can be changed under its user, as by a
// translator that forgot the old one or a host that moved.
type rebindable struct {
	mu     sync.Mutex
	conn   net.PacketConn
	closed bool
}

func (r *rebindable) now() net.PacketConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conn
}

func (r *rebindable) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		conn := r.now()
		n, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) && r.now() != conn {
			continue
		}
		return n, from, err
	}
}

func (r *rebindable) WriteTo(b []byte, to net.Addr) (int, error) {
	for {
		conn := r.now()
		n, err := conn.WriteTo(b, to)
		if errors.Is(err, net.ErrClosed) && r.now() != conn {
			continue
		}
		return n, err
	}
}

func (r *rebindable) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.conn.Close()
}

// LocalAddr says nothing of the change, as behind a translator.
func (r *rebindable) LocalAddr() net.Addr                { return &net.UDPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 1} }
func (r *rebindable) SetDeadline(t time.Time) error      { return r.now().SetDeadline(t) }
func (r *rebindable) SetReadDeadline(t time.Time) error  { return r.now().SetReadDeadline(t) }
func (r *rebindable) SetWriteDeadline(t time.Time) error { return r.now().SetWriteDeadline(t) }

// The model's sockets have buffers of their own.
func (r *rebindable) SetReadBuffer(int) error  { return nil }
func (r *rebindable) SetWriteBuffer(int) error { return nil }

// rebind moves to another socket.
func (r *rebindable) rebind(t *testing.T, listen func() (net.PacketConn, error)) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	next, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	old := r.conn
	r.conn = next
	if err := old.Close(); err != nil {
		t.Error(err)
	}
}

// TestAddressChange changes the address of the dialling side in the middle of a
// read: another port, as when a translator rebinds, and another host, as when a
// machine moves. The connections survive, every byte arrives, and the link stays
// what it is.
func TestAddressChange(t *testing.T) {
	for _, tc := range []struct {
		name string
		to   netip.AddrPort
	}{
		{"another port", netip.MustParseAddrPort("10.0.0.2:0")},
		{"another host", netip.MustParseAddrPort("10.0.0.77:0")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, slow)
				var mu sync.Mutex
				var socks []*rebindable
				p := newPull(t, f, 256, func(i int, c *transfer.Config) {
					if i != 2 {
						return
					}
					c.Stripes = 4 // none is added for the sake of speed
					c.DialPacket = func(context.Context) (net.PacketConn, error) {
						conn, err := f.network.Listen(netip.MustParseAddrPort("10.0.0.2:0"))
						if err != nil {
							return nil, err
						}
						s := &rebindable{conn: conn}
						mu.Lock()
						defer mu.Unlock()
						socks = append(socks, s)
						return s, nil
					}
				})
				x := p.post(t, transfer.TransferOptions{})
				defer x.Release()
				time.Sleep(600 * time.Millisecond)
				before := x.Progress()
				if before.PagesDone == 0 || before.State != transfer.Running {
					t.Fatalf("before the change %+v", before)
				}
				mu.Lock()
				n := len(socks)
				for _, s := range socks {
					s.rebind(t, func() (net.PacketConn, error) { return f.network.Listen(tc.to) })
				}
				mu.Unlock()
				res, err := x.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p.equal(t)
				t.Logf("%d of %d pages before the change; %v in all, %d pages twice", before.PagesDone, res.PagesTotal, res.Duration, res.PagesDouble)
				if res.Duration > 6*time.Second { // 1.5 s of link, slow start anew, and the losses of the change
					t.Errorf("took %v", res.Duration)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(socks) != n {
					t.Errorf("%d connections were dialled, %d at first: they did not survive", len(socks), n)
				}
				if back := p.src.Links(); len(back) != 1 || back[0].Stats().Stripes != n || p.link.Err() != nil {
					t.Errorf("links %v, ours ended with %v", back, p.link.Err())
				}
			})
		})
	}
}
