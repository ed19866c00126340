package repair

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// randomPacket is one of QUIC's: the fixed bit set, the rest uniform.
func randomPacket(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	b[0] |= 0x40
	return b
}

// testSender has a plan of fixed size, and no limit on overhead.
func testSender(packets, symbols, depth int) *sender {
	s := newSender(Token{1})
	s.plan = plan{packets: packets, depth: depth, overhead: 100000, wait: time.Hour}
	s.plan.fixed(symbols)
	return &s
}

// split cuts the packets of closed groups.
func split(closed []*group) (out [][]byte) {
	for _, g := range closed {
		for b := g.packets; len(b) > 0; b = b[g.size:] {
			out = append(out, bytes.Clone(b[:g.size]))
		}
	}
	return out
}

// testReceiver collects what it rebuilds. It judges the first group too.
type testReceiver struct {
	receiver
	t   *testing.T
	got [][]byte
}

func newTestReceiver(t *testing.T) *testReceiver {
	r := &testReceiver{t: t}
	r.maxSpan = MaxSpan
	r.active = true
	r.ring.grow(256)
	return r
}

func (r *testReceiver) packet(b []byte) {
	if isRepair(b) {
		p, f, s, err := decodeParity(b)
		if err != nil {
			r.t.Fatal(err)
		}
		r.take(p, f, s, epoch, r.collect)
		return
	}
	r.keep(b, r.collect)
}

func (r *testReceiver) collect(p []byte) { r.got = append(r.got, bytes.Clone(p)) }

// TestEveryLoss loses every subset of small groups, packets and parity alike: what
// the arithmetic says can be repaired comes back byte for byte, and nothing else
// comes.
func TestEveryLoss(t *testing.T) {
	for _, sizes := range [][]int{{1280, 1280, 1280, 1280}, {1280, 20, 641, 639}, {638, 40, 20}, {639, 30, 30}, {670, 669, 20}, {671, 670, 20}, {20}, {1279, 1278, 700, 20, 21}} {
		for symbols := 1; symbols <= 6; symbols++ {
			t.Run(fmt.Sprint(sizes, symbols), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, uint64(symbols)))
				longest := 0
				for _, n := range sizes {
					longest = max(longest, n)
				}
				single := longest <= 670
				s := testSender(len(sizes), symbols, 1)
				for i := range s.plan.by { // of single groups too, as many as asked for
					s.plan.by[i] = uint8(symbols)
				}
				var packets [][]byte
				var closed []*group
				for _, n := range sizes {
					p := randomPacket(r, n)
					packets = append(packets, p)
					closed = s.add(p, epoch, closed)
				}
				if len(closed) != 1 {
					t.Fatalf("%d groups closed", len(closed))
				}
				parity := split(closed)
				all := append(packets[:len(packets):len(packets)], parity...)
				for lost := range 1 << len(all) {
					rx := newTestReceiver(t)
					var missing [][]byte
					have := 0
					for i, b := range all {
						switch {
						case lost>>i&1 == 0:
							rx.packet(b)
							if i >= len(packets) {
								have++
							}
						case i < len(packets):
							missing = append(missing, b)
						}
					}
					need := 2 * len(missing)
					if single {
						need = len(missing)
					}
					var want [][]byte
					if have >= need {
						want = missing
					}
					if have == 0 {
						want = nil
					}
					if len(rx.got) != len(want) {
						t.Fatalf("lost %b of %d packets and %d parity: %d rebuilt, want %d", lost, len(packets), len(parity), len(rx.got), len(want))
					}
					for i := range want {
						if !bytes.Equal(rx.got[i], want[i]) {
							t.Fatalf("lost %b: another packet rebuilt", lost)
						}
					}
					rx.stop()
					c := rx.counts
					if have > 0 && (c.groups != 1 || c.packets != uint64(len(packets)) || c.lost != uint64(len(missing)) || c.repaired != uint64(len(want)) || c.unrepaired != uint64(len(missing)-len(want))) {
						t.Fatalf("lost %b: counted %+v", lost, c)
					}
					if have == 0 && c.groups != 0 {
						t.Fatalf("lost %b: counted %+v", lost, c)
					}
				}
			})
		}
	}
}

// TestDisorder gives a receiver the packets of many groups, interleaved, out of
// order, some twice and some not at all. All that was lost within what the parity
// repairs comes, and nothing that was not sent.
func TestDisorder(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		depth := 1 << r.IntN(4)
		s := testSender(1+r.IntN(MaxGroup), 2+r.IntN(10), depth)
		rx := newTestReceiver(t)
		rx.ring.grow(4096)
		sent := map[string]bool{}
		lost := 0
		var flight [][]byte
		var closed []*group
		for range 4000 {
			p := randomPacket(r, minPacket+r.IntN(firstPacket-minPacket+1))
			sent[string(p)] = true
			closed = s.add(p, epoch, closed[:0])
			if r.IntN(50) > 0 {
				flight = append(flight, p)
			} else {
				lost++
			}
			for _, b := range split(closed) {
				if r.IntN(20) > 0 {
					flight = append(flight, b)
				}
				if r.IntN(20) == 0 {
					flight = append(flight, b)
				}
			}
			s.free = append(s.free, closed...)
			for len(flight) > 20 {
				i := r.IntN(8)
				rx.packet(flight[i])
				if r.IntN(50) > 0 {
					flight = append(flight[:i], flight[i+1:]...)
				}
			}
		}
		for _, b := range flight {
			rx.packet(b)
		}
		rx.stop()
		for _, p := range rx.got {
			if !sent[string(p)] {
				t.Fatalf("seed %d: a packet that was not sent", seed)
			}
		}
		c := rx.counts
		if int(c.repaired) != len(rx.got) || c.lost != c.repaired+c.unrepaired || c.groups == 0 {
			t.Errorf("seed %d: %+v, %d rebuilt", seed, c, len(rx.got))
		}
		t.Logf("seed %d depth %d group %d symbols %d: lost %d, %+v", seed, depth, s.plan.packets, s.plan.symbols, lost, c)
	}
}

// TestConfigValidate has each bad field named with what is allowed.
func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, nil},
		{Config{Parity: -5}, nil},
		{Config{Parity: 40, Group: 108, Depth: 8, MaxOverhead: 100, MaxSpan: 4096}, nil},
		{Config{Parity: 1, Group: -1, Depth: 9, MaxOverhead: 101, MaxSpan: 127}, []string{"Parity is 1", "Group is -1", "Depth is 9", "MaxOverhead is 101", "MaxSpan is 127", "2 to 40"}},
	} {
		err := tc.cfg.Validate()
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v does not say %q", tc.cfg, err, w)
			}
		}
	}
}
