package repair

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"
)

// TestSealedOnly has an attacker who sees every packet: what he makes, cuts,
// changes or sends again changes nothing but the count of rejected packets.
func TestSealedOnly(t *testing.T) {
	c := Wrap(sink{}, Config{})
	defer c.Close()
	addr, other := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 2}
	s, err := c.Attach(SessionConfig{Addr: addr, Send: Token{2}, Receive: Token{1}, SendKey: Key{2}, ReceiveKey: Key{1}, MaxSpan: minSpan})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.stats.Packets = 1 << 40
	r := rand.New(rand.NewPCG(7, 1))
	peer := testSender(5, 2, 1)
	peer.seal = newSeal(Key{1})
	var group []*group
	for range 5 {
		group = peer.add(randomPacket(r, 300), epoch, group)
	}
	parity := split(group)
	good := report{number: 5, groups: 2, packets: 100, lost: 3, repaired: 2, unrepaired: 1, squares: 5, histogram: [lossBins]uint64{0, 1, 1}}
	sealed := peer.seal.add(appendReport(nil, Token{1}, good), 0)
	valid := append(parity, sealed)
	// Before any came, and after all did.
	for _, came := range []bool{false, true} {
		if came {
			for _, b := range valid {
				c.took(bytes.Clone(b), addr, nil)
			}
			if st := s.Stats(); st.ParityReceived != uint64(len(parity)) || st.PeerLost != 3 {
				t.Fatalf("valid packets did not count: %+v", st)
			}
		}
		var bad [][]byte
		far := good
		far.number, far.groups, far.packets, far.histogram = 1<<30, 1000, 100000, [lossBins]uint64{998, 1, 1}
		bad = append(bad, appendReport(nil, Token{1}, far))
		for _, k := range []Key{{2}, {3}} { // the other direction's, and a made up one
			f := newSeal(k)
			f.next = 1000
			bad = append(bad, f.add(appendReport(nil, Token{1}, far), 0))
		}
		for _, b := range valid {
			for n := commonHead; n < len(b); n++ {
				bad = append(bad, b[:n])
			}
			bad = append(bad, append(bytes.Clone(b), 0))
			for bit := 8 * commonHead; bit < 8*len(b); bit++ {
				f := bytes.Clone(b)
				f[bit/8] ^= 1 << (bit % 8)
				bad = append(bad, f)
			}
			if came {
				bad = append(bad, b)
			}
		}
		before, estimator, seals := s.Stats(), s.estimator.advice(), s.mu.receive
		for i, b := range bad {
			c.took(bytes.Clone(b), other, nil)
			if got := s.Stats(); got.Rejected != before.Rejected+uint64(i)+1 {
				t.Fatalf("packet %d of %d, %x: not rejected", i, len(bad), b)
			}
		}
		after := s.Stats()
		after.Rejected = before.Rejected
		if after != before || s.estimator.advice() != estimator || s.mu.receive.highest != seals.highest || s.mu.receive.seen != seals.seen {
			t.Errorf("changed: %+v, was %+v", after, before)
		}
		if a, _ := addrPort(addr); s.mu.addr != a {
			t.Errorf("moved to %v", s.mu.addr)
		}
	}
}

// TestReplayWindow compares the window to a set of all numbers that came.
func TestReplayWindow(t *testing.T) {
	const count = 20000
	from, to := newSeal(Key{1}), newSeal(Key{1})
	packets := make([][]byte, count)
	for i := range packets {
		packets[i] = from.add([]byte{1, 2, 3}, 0)
	}
	r := rand.New(rand.NewPCG(7, 2))
	came, highest, taken := map[int]bool{}, -1, 0
	at := 0
	for at < count {
		at += r.IntN(3)
		if r.IntN(500) == 0 {
			at += r.IntN(3 * replayWindow)
		}
		n := at - r.IntN(3*replayWindow/2)
		if n < 0 || n >= count {
			continue
		}
		want := !came[n] && n > highest-replayWindow
		if p, ok := to.open(packets[n]); ok != want || ok && !bytes.Equal(p, []byte{1, 2, 3}) {
			t.Fatalf("number %d with highest %d: %v, want %v", n, highest, ok, want)
		}
		if want {
			came[n], highest, taken = true, max(highest, n), taken+1
		}
	}
	if taken < 1000 {
		t.Fatalf("only %d taken", taken)
	}
}

// BenchmarkSeal is what authentication costs a parity packet at each end.
func BenchmarkSeal(b *testing.B) {
	packet := make([]byte, MaxParityPacket-sealBytes, MaxParityPacket)
	b.Run("add", func(b *testing.B) {
		s := newSeal(Key{1})
		b.SetBytes(MaxParityPacket)
		b.ReportAllocs()
		for b.Loop() {
			s.add(packet, 0)
		}
	})
	b.Run("open", func(b *testing.B) {
		s, f := newSeal(Key{1}), newSeal(Key{1})
		sealed := f.add(packet, 0)
		b.SetBytes(MaxParityPacket)
		b.ReportAllocs()
		for b.Loop() {
			s.highest, s.seen[0] = 0, 0
			if _, ok := s.open(sealed); !ok {
				b.Fatal("refused")
			}
		}
	})
}
