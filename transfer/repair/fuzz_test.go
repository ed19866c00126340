package repair

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"
)

// FuzzParity has the decoder refuse or take any bytes, and what it takes encode to
// the same.
func FuzzParity(f *testing.F) {
	s := testSender(5, 3, 1)
	r := rand.New(rand.NewPCG(2, 1))
	for _, n := range []int{20, 600, 1280} {
		var closed []*group
		for range 5 {
			closed = s.add(randomPacket(r, n), epoch, closed)
		}
		for _, b := range split(closed) {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, token, err := head(b)
		if err != nil || kind != kindParity {
			return
		}
		p, names, symbol, err := decodeParity(b)
		if err != nil {
			return
		}
		again := append(append(appendParity(nil, token, p), names...), symbol...)
		if !bytes.Equal(b, again) {
			t.Fatalf("%x encodes to %x", b, again)
		}
		if len(names) != 3*p.n || len(symbol) > maxSymbol {
			t.Fatalf("%+v with %d bytes of names, %d of symbol", p, len(names), len(symbol))
		}
	})
}

// FuzzReport is the same for reports.
func FuzzReport(f *testing.F) {
	f.Add(appendReport(nil, Token{1}, report{number: 3, groups: 2, packets: 100, lost: 3, repaired: 2, unrepaired: 1, squares: 5, histogram: [lossBins]uint64{0, 1, 1}}))
	f.Add(appendReport(nil, Token{}, report{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, token, err := head(b)
		if err != nil || kind != kindReport {
			return
		}
		r, err := decodeReport(b)
		if err != nil {
			return
		}
		if again := appendReport(nil, token, r); !bytes.Equal(b, again) {
			t.Fatalf("%x encodes to %x", b, again)
		}
	})
}

// sink is a socket that takes everything and gives nothing.
type sink struct{ net.PacketConn }

func (sink) WriteTo(b []byte, _ net.Addr) (int, error) { return len(b), nil }
func (sink) LocalAddr() net.Addr                       { return &net.UDPAddr{} }
func (sink) Close() error                              { return nil }

// FuzzReceive gives a session any sequence of packets, repair's with the right
// token among them: it neither panics nor keeps more than its bounds, and what it
// rebuilds fits a packet.
func FuzzReceive(f *testing.F) {
	s := testSender(5, 3, 2)
	r := rand.New(rand.NewPCG(2, 2))
	var seed []byte
	add := func(b []byte) { seed = append(append(seed, byte(len(b)>>8), byte(len(b))), b...) }
	for range 20 {
		p := randomPacket(r, 40)
		closed := s.add(p, epoch, nil)
		add(p)
		for _, b := range split(closed) {
			add(b)
		}
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, script []byte) {
		c := Wrap(sink{}, Config{MaxSpan: 256})
		defer c.Close()
		addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
		session, err := c.Attach(SessionConfig{Addr: addr, Send: Token{2}, Receive: Token{1}, SendKey: Key{2}, ReceiveKey: Key{1}, MaxSpan: minSpan})
		if err != nil {
			t.Fatal(err)
		}
		peer := newSeal(Key{1})
		for len(script) > 2 {
			n := min(int(script[0])<<8|int(script[1]), len(script)-2, 2000)
			b := bytes.Clone(script[2 : 2+n])
			script = script[2+n:]
			if isRepair(b) {
				b = peer.add(b, 0)
			}
			c.took(b, addr, nil)
			for c.out.pop(func(p *rebuiltPacket) {
				if len(p.data) < minPacket || len(p.data) > MaxPacket {
					t.Fatalf("%d bytes rebuilt", len(p.data))
				}
			}) {
			}
		}
		session.mu.Lock()
		defer session.mu.Unlock()
		rx := &session.mu.recv
		if len(rx.ring.prev) > ringSize(256) || len(rx.pending) > maxPending || len(rx.free) > maxPending+1 {
			t.Fatalf("%d packets, %d groups, %d spare", len(rx.ring.prev), len(rx.pending), len(rx.free))
		}
	})
}

// TestCorruption flips bits in parity and data on the way: nothing that was not
// sent is handed out, and what could not be rebuilt is counted so.
func TestCorruption(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	s := testSender(20, 8, 1)
	rx := newTestReceiver(t)
	sent := map[string]bool{}
	for range 20000 {
		p := randomPacket(r, 60)
		sent[string(p)] = true
		closed := s.add(p, epoch, nil)
		flip := func(b []byte) []byte {
			b = bytes.Clone(b)
			b[parityHead+r.IntN(len(b)-parityHead)] ^= 1 << r.IntN(8)
			return b
		}
		switch r.IntN(20) {
		case 0:
		case 1:
			rx.packet(flip(p))
		default:
			rx.packet(p)
		}
		for _, b := range split(closed) {
			if r.IntN(10) == 0 {
				b = flip(b)
			}
			rx.packet(b)
		}
		s.free = append(s.free, closed...)
	}
	rx.stop()
	for _, p := range rx.got {
		if !sent[string(p)] {
			t.Fatal("a packet that was not sent was handed out")
		}
	}
	c := rx.counts
	if c.repaired < 100 || c.unrepaired == 0 || int(c.repaired) != len(rx.got) {
		t.Errorf("%+v, %d handed out", c, len(rx.got))
	}
}

// TestReports has reports that are old, or of more than was sent, change nothing.
func TestReports(t *testing.T) {
	c := Wrap(sink{}, Config{})
	defer c.Close()
	addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	s, err := c.Attach(SessionConfig{Addr: addr, Send: Token{2}, Receive: Token{1}, SendKey: Key{2}, ReceiveKey: Key{1}, MaxSpan: minSpan})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.stats.Packets = 1000
	peer := newSeal(Key{1})
	good := report{number: 5, groups: 2, packets: 100, lost: 3, repaired: 2, unrepaired: 1, squares: 5, histogram: [lossBins]uint64{0, 1, 1}}
	send := func(r report) Stats {
		c.took(peer.add(appendReport(nil, Token{1}, r), 0), addr, nil)
		return s.Stats()
	}
	want := send(good)
	if want.PeerLost != 3 || want.PeerRepaired != 2 || want.PeerUnrepaired != 1 {
		t.Fatalf("%+v", want)
	}
	for name, edit := range map[string]func(*report){
		"the same again": func(*report) {},
		"older":          func(r *report) { r.number, r.lost, r.unrepaired = 4, 4, 2 },
		"more than sent": func(r *report) { r.number, r.groups, r.packets, r.histogram = 6, 100, 1001, [lossBins]uint64{99, 0, 1} },
		"less than before": func(r *report) {
			r.number, r.lost, r.repaired, r.unrepaired, r.squares = 6, 1, 1, 0, 1
		},
	} {
		r := good
		edit(&r)
		if got := send(r); got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestAttach has each field that cannot be used named, and a closed Conn refuse.
func TestAttach(t *testing.T) {
	c := Wrap(sink{}, Config{})
	addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	good := SessionConfig{Addr: addr, Send: Token{2}, Receive: Token{1}, SendKey: Key{2}, ReceiveKey: Key{1}, MaxSpan: minSpan}
	s, err := c.Attach(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*SessionConfig){
		"SendKey":    func(c *SessionConfig) { c.SendKey = Key{} },
		"ReceiveKey": func(c *SessionConfig) { c.ReceiveKey = c.SendKey },
		"Addr":       func(c *SessionConfig) { c.Addr = &net.TCPAddr{} },
		"MaxSpan":    func(c *SessionConfig) { c.MaxSpan = minSpan - 1 },
		"Receive":    func(*SessionConfig) {},
	} {
		cfg := good
		edit(&cfg)
		if _, err := c.Attach(cfg); err == nil || !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s2, err := c.Attach(good); err != nil {
		t.Errorf("after Close: %v", err)
	} else if err := s2.Close(); err != nil {
		t.Error(err)
	}
	if n := len(*c.byToken.Load()) + len(*c.byAddr.Load()); n != 0 {
		t.Errorf("%d left", n)
	}
	_ = c.Close()
	if _, err := c.Attach(good); err == nil {
		t.Error("a closed Conn attaches")
	}
	if _, err := Wrap(sink{}, Config{Parity: -1}).Attach(good); err == nil {
		t.Error("off attaches")
	}
}
