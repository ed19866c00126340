package repair

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/udp"
)

// end is one of two Conns that are joined by a model link, with a session.
type end struct {
	conn    *Conn
	packet  net.PacketConn
	addr    *net.UDPAddr
	session *Session
	writes  atomic.Pointer[net.PacketConn] // what is written through
	mu      sync.Mutex
	got     map[string]int
	done    chan struct{}
}

// elsewhere writes through the socket that its end says.
type elsewhere struct {
	net.PacketConn
	e *end
}

func (w elsewhere) WriteTo(b []byte, addr net.Addr) (int, error) {
	return (*w.e.writes.Load()).WriteTo(b, addr)
}

// pair joins two ends; edit changes what the session of end i is made from.
func pair(t *testing.T, n *wan.Network, cfg Config, edit func(i int, c *SessionConfig)) [2]*end {
	t.Helper()
	var ends [2]*end
	for i := range ends {
		pc, err := n.Listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 4433))
		if err != nil {
			t.Fatal(err)
		}
		e := &end{addr: pc.LocalAddr().(*net.UDPAddr), got: map[string]int{}, done: make(chan struct{})}
		e.writes.Store(&pc)
		e.conn = Wrap(elsewhere{pc, e}, cfg)
		e.packet = e.conn.PacketConn()
		ends[i] = e
	}
	for i, e := range ends {
		sc := SessionConfig{Addr: ends[1-i].addr, Send: Token{byte(i)}, Receive: Token{byte(1 - i)}, SendKey: Key{byte(1 + i)}, ReceiveKey: Key{byte(2 - i)}, MaxSpan: defaultMaxSpan}
		if edit != nil {
			edit(i, &sc)
		}
		var err error
		if e.session, err = e.conn.Attach(sc); err != nil {
			t.Fatal(err)
		}
		go e.read()
		t.Cleanup(func() {
			_ = e.packet.Close()
			<-e.done
		})
	}
	return ends
}

func (e *end) read() {
	defer close(e.done)
	b := make([]byte, MaxPacket)
	for {
		n, _, err := e.packet.ReadFrom(b)
		if err != nil {
			return
		}
		e.mu.Lock()
		e.got[string(b[:n])]++
		e.mu.Unlock()
	}
}

func (e *end) has(p []byte) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[string(p)]
}

func (e *end) send(t *testing.T, to *end, p []byte) {
	t.Helper()
	if _, err := e.packet.WriteTo(p, to.addr); err != nil {
		t.Fatal(err)
	}
}

// bubble runs a test in virtual time over a link.
func bubble(t *testing.T, m wan.Model, f func(t *testing.T, n *wan.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := wan.NewNetwork(m)
		t.Cleanup(func() { _ = n.Close() })
		f(t, n)
	})
}

// TestCleanPathIsUntouched sends over a path that loses nothing until parity ends:
// from then on the packets that are sent are the packets on the link, byte for byte, in order.
func TestCleanPathIsUntouched(t *testing.T) {
	bubble(t, wan.Model{RTT: 10 * time.Millisecond, Rate: 1e9}, func(t *testing.T, n *wan.Network) {
		ends := pair(t, n, Config{}, nil)
		r := rand.New(rand.NewPCG(1, 1))
		p := randomPacket(r, 100)
		send := func(count int) {
			for i := range count {
				binary.BigEndian.PutUint32(p[1:], uint32(i))
				binary.BigEndian.PutUint32(p[90:], r.Uint32())
				p[99]++
				ends[0].send(t, ends[1], p)
				if i%10 == 9 {
					time.Sleep(20 * time.Microsecond)
				}
			}
		}
		send(cleanAtFirst / 2)
		if st := ends[0].session.Stats(); st.Symbols == 0 || st.ParityPackets == 0 {
			t.Fatalf("not on at first: %+v", st)
		}
		send(cleanAtFirst)
		time.Sleep(time.Second)
		before := ends[0].session.Stats()
		if before.Symbols != 0 || before.Packets < cleanAtFirst || before.PeerLost != 0 {
			t.Fatalf("still on: %+v", before)
		}
		var sent, seen [][]byte
		n.Tap(func(pk wan.Packet) wan.Verdict {
			seen = append(seen, bytes.Clone(pk.Data))
			return wan.Pass
		})
		for range 1000 {
			b := randomPacket(r, 1200)
			sent = append(sent, b)
			ends[0].send(t, ends[1], b)
		}
		time.Sleep(time.Second)
		if len(seen) != len(sent) {
			t.Fatalf("%d packets on the link, %d sent", len(seen), len(sent))
		}
		for i := range sent {
			if !bytes.Equal(seen[i], sent[i]) {
				t.Fatalf("packet %d is another", i)
			}
		}
		if after := ends[0].session.Stats(); after.Packets != before.Packets || after.ParityPackets != before.ParityPackets {
			t.Errorf("counted %+v, before %+v", after, before)
		}
	})
}

// TestEarlyClose loses one of a few packets of which nothing follows: it comes
// when the group has waited.
func TestEarlyClose(t *testing.T) {
	bubble(t, wan.Model{RTT: 40 * time.Millisecond}, func(t *testing.T, n *wan.Network) {
		path := func() Path { return Path{RTT: 40 * time.Millisecond, Least: 40 * time.Millisecond} }
		ends := pair(t, n, Config{Parity: 4, Depth: 1, MaxOverhead: 100}, func(_ int, c *SessionConfig) { c.Path = path })
		r := rand.New(rand.NewPCG(1, 2))
		var first []byte
		for i := range 7 {
			if i == 0 { // the receiver begins with a first group
				for range 3 {
					ends[0].send(t, ends[1], randomPacket(r, 1000))
				}
				time.Sleep(time.Second)
			}
			p := randomPacket(r, 900+i)
			if i == 3 {
				first = p
				n.Tap(func(wan.Packet) wan.Verdict { return wan.Drop })
			}
			ends[0].send(t, ends[1], p)
			n.Tap(nil)
		}
		start := time.Now()
		for ends[1].has(first) == 0 {
			time.Sleep(100 * time.Microsecond)
			if time.Since(start) > time.Second {
				t.Fatalf("not repaired: %+v", ends[1].session.Stats())
			}
		}
		if d := time.Since(start); d < 40*time.Millisecond || d > 41*time.Millisecond {
			t.Errorf("repaired after %v, want half a round trip of waiting and half one under way", d)
		}
	})
}

// TestBurst loses runs of packets: depth groups of s symbols repair s/2·depth in a row.
func TestBurst(t *testing.T) {
	for _, depth := range []int{1, 2, 4, 8} {
		bubble(t, wan.Model{RTT: 10 * time.Millisecond}, func(t *testing.T, n *wan.Network) {
			const group, symbols = 20, 6
			ends := pair(t, n, Config{Parity: symbols, Group: group, Depth: depth, MaxOverhead: 100}, nil)
			r := rand.New(rand.NewPCG(1, 3))
			burst := symbols / 2 * depth
			for round := range 30 {
				var lost [][]byte
				from := r.IntN(group*depth - burst + 1)
				over := 0
				if round >= 20 { // one more than can be repaired: of the group that has it nothing comes
					from, over = 0, 1
				}
				for i := range group * depth {
					p := randomPacket(r, 200+r.IntN(1000))
					drop := round > 0 && i >= from && i < from+burst+over
					if drop {
						lost = append(lost, p)
						n.Tap(func(wan.Packet) wan.Verdict { return wan.Drop })
					}
					// Parity of a full group follows its last packet and is not to be lost with it.
					ends[0].send(t, ends[1], p)
					n.Tap(nil)
				}
				time.Sleep(time.Second)
				want := len(lost)
				if over > 0 {
					want -= symbols/2 + 1
				}
				got := 0
				for _, p := range lost {
					got += ends[1].has(p)
				}
				if from+burst+over <= group*depth-depth && got != want {
					t.Fatalf("depth %d round %d: %d of %d lost came, want %d: %+v", depth, round, got, len(lost), want, ends[1].session.Stats())
				}
			}
			if st := ends[1].session.Stats(); st.Repaired == 0 || st.Unrepaired == 0 {
				t.Errorf("depth %d: %+v", depth, st)
			}
		})
	}
}

// TestStrangers sends what is of no session, or does not decode: it is dropped,
// counted, and leaves nothing behind.
func TestStrangers(t *testing.T) {
	bubble(t, wan.Model{}, func(t *testing.T, n *wan.Network) {
		ends := pair(t, n, Config{}, nil)
		out, err := n.Listen(netip.MustParseAddrPort("10.0.0.9:1"))
		if err != nil {
			t.Fatal(err)
		}
		s := testSender(4, 2, 1)
		s.token = Token{77}
		r := rand.New(rand.NewPCG(1, 4))
		var closed []*group
		for range 4 {
			closed = s.add(randomPacket(r, 500), epoch, closed)
		}
		valid := split(closed)[0]
		for _, b := range [][]byte{
			valid,
			append([]byte{kindReport, Version}, make([]byte, 8)...),
			{kindParity},
			{0},
			{kindParity, Version + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
			append([]byte{kindParity, Version}, make([]byte, 8)...),
			append([]byte{kindParity, Version}, make([]byte, 1000)...), appendReport(nil, Token{0}, report{number: 1, packets: 1}),
		} {
			if _, err := out.WriteTo(b, ends[1].addr); err != nil {
				t.Fatal(err)
			}
		}
		data := randomPacket(r, 100)
		if _, err := out.WriteTo(data, ends[1].addr); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		st := ends[1].conn.Stats()
		if st.Strangers != 1 || st.Malformed != 3 || st.Rejected != 4 {
			t.Errorf("%+v", st)
		}
		if ends[1].has(data) != 1 || len(ends[1].got) != 1 {
			t.Errorf("%d packets handed out", len(ends[1].got))
		}
		if ends[1].conn.keeping.Load() != 0 || len(*ends[1].conn.byAddr.Load()) != 1 {
			t.Error("a stranger left something behind")
		}
	})
}

// TestAddressChange has one side's address change, as a NAT does: what it sends is
// repaired from its next parity on, and what it is sent from the next word of QUIC's on.
func TestAddressChange(t *testing.T) {
	bubble(t, wan.Model{RTT: 10 * time.Millisecond}, func(t *testing.T, n *wan.Network) {
		moved, err := n.Listen(netip.MustParseAddrPort("10.0.0.7:9999"))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var now net.Addr
		ends := pair(t, n, Config{Parity: 4, Group: 10, Depth: 1, MaxOverhead: 100}, func(i int, c *SessionConfig) {
			if i == 1 {
				c.Path = func() Path {
					mu.Lock()
					defer mu.Unlock()
					return Path{Addr: now}
				}
			}
		})
		r := rand.New(rand.NewPCG(1, 5))
		round := func(e, o *end, to net.Addr, drop bool) (lost []byte) {
			for i := range 10 {
				p := randomPacket(r, 300)
				if drop && i == 4 {
					lost = p
					n.Tap(func(wan.Packet) wan.Verdict { return wan.Drop })
				}
				if _, err := e.packet.WriteTo(p, to); err != nil {
					t.Fatal(err)
				}
				n.Tap(nil)
			}
			time.Sleep(100 * time.Millisecond)
			return lost
		}
		round(ends[0], ends[1], ends[1].addr, false)
		if lost := round(ends[0], ends[1], ends[1].addr, true); ends[1].has(lost) != 1 {
			t.Fatal("not repaired before")
		}
		// The same session goes on over another socket.
		ends[0].writes.Store(&moved)
		round(ends[0], ends[1], ends[1].addr, false)
		if lost := round(ends[0], ends[1], ends[1].addr, true); ends[1].has(lost) != 1 {
			t.Errorf("not repaired from the new address: %+v", ends[1].session.Stats())
		}
		mu.Lock()
		now = moved.LocalAddr()
		mu.Unlock()
		before := ends[1].session.Stats()
		round(ends[1], ends[0], now, false)
		if after := ends[1].session.Stats(); after.Packets < before.Packets+10 || after.ParityPackets == before.ParityPackets {
			t.Errorf("nothing covered towards the new address: %+v", after)
		}
	})
}

// TestProbesAreNotRepaired has larger packets come one at a time, as QUIC probes a
// path: parity does not cover them, and does once the size is in use.
func TestProbesAreNotRepaired(t *testing.T) {
	s := testSender(MaxGroup, 2, 1)
	r := rand.New(rand.NewPCG(1, 6))
	number := func(n int) uint32 {
		before := s.number
		s.add(randomPacket(r, n), epoch, nil)
		return s.number - before
	}
	for _, step := range []struct {
		bytes   int
		covered uint32
	}{
		{1280, 1},
		{1400, 0},
		{1280, 1},
		{1400, 0},
		{1280, 1},
		{1400, 0},
		{1366, 0},
		{1366, 0},
		{1366, 0},
		{1280, 1},
		{1366, 0},
		{1366, 0},
		{1366, 0},
		{1366, 1},
		{1366, 1},
		{1280, 1},
		{1452, 0},
		{1453, 0},
		{19, 0},
		{20, 1},
	} {
		if got := number(step.bytes); got != step.covered {
			t.Errorf("a packet of %d bytes: covered %d, want %d", step.bytes, got, step.covered)
		}
	}
	if s.trusted != 1366 {
		t.Errorf("trusted is %d", s.trusted)
	}
}

// TestAllocations sends and receives in steady state, with and without loss.
func TestAllocations(t *testing.T) {
	s := testSender(20, 4, 1)
	r := rand.New(rand.NewPCG(1, 7))
	rx := &receiver{maxSpan: MaxSpan}
	packets := make([][]byte, 256)
	for i := range packets {
		packets[i] = randomPacket(r, 1280)
	}
	var room [4]*group
	i := 0
	drop := func([]byte) {}
	step := func() {
		i++
		p := packets[i%len(packets)]
		binary.BigEndian.PutUint32(p[len(p)-4:], r.Uint32()) // another name
		closed := s.add(p, epoch, room[:0])
		rx.keep(p, drop)
		for _, g := range closed {
			for b := g.packets; len(b) > 0; b = b[g.size:] {
				h, f, sym, err := decodeParity(b[:g.size])
				if err != nil {
					t.Fatal(err)
				}
				rx.take(h, f, sym, epoch, drop)
			}
		}
		s.free = append(s.free, closed...)
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(10000, step); n != 0 {
		t.Errorf("%v allocations a packet, want 0", n)
	}
	if rx.counts.groups < 500 || rx.counts.lost != 0 {
		t.Errorf("%+v", rx.counts)
	}
}

// lossy is a socket that drops what comes in, packets and parity alike.
type lossy struct {
	oobConn
	mu   sync.Mutex
	r    *rand.Rand
	lost int
}

func (l *lossy) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		n, err := l.oobConn.ReadBatch(ms, flags)
		if err != nil {
			return n, err
		}
		kept := 0
		l.mu.Lock()
		for i := range ms[:n] {
			if l.r.IntN(50) == 0 {
				l.lost++
				continue
			}
			if kept != i {
				fill(&ms[kept], ms[i].Buffers[0][:ms[i].N], ms[i].OOB[:ms[i].NN], ms[i].Addr)
			}
			kept++
		}
		l.mu.Unlock()
		if kept > 0 {
			return kept, nil
		}
	}
}

// TestSockets sends batches through segmentation offload where there is some over
// real sockets that lose: every packet comes, once or from parity, with its
// sender's address.
func TestSockets(t *testing.T) {
	var ends [2]*Conn
	var below [2]*udp.Conn
	var addrs [2]*net.UDPAddr
	for i := range ends {
		u, err := udp.Listen("127.0.0.1:0", udp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		below[i], addrs[i] = u, u.LocalAddr().(*net.UDPAddr)
		ends[i] = Wrap(&lossy{oobConn: u, r: rand.New(rand.NewPCG(6, 1))}, Config{Parity: 12, Group: 28, Depth: 1, MaxOverhead: 100})
		defer ends[i].Close()
	}
	var sessions [2]*Session
	for i, c := range ends {
		var err error
		if sessions[i], err = c.Attach(SessionConfig{Addr: addrs[1-i], Send: Token{byte(i)}, Receive: Token{byte(1 - i)}, SendKey: Key{byte(1 + i)}, ReceiveKey: Key{byte(2 - i)}, MaxSpan: defaultMaxSpan}); err != nil {
			t.Fatal(err)
		}
	}
	from, to := ends[0].PacketConn().(oobConn), ends[1].PacketConn().(oobConn)
	oob := segmentMessage(1200)
	r := rand.New(rand.NewPCG(6, 2))
	sent := map[string]bool{}
	ms := make([]ipv4.Message, 8)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, MaxPacket)}, make([]byte, 128)
	}
	if err := to.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const rounds, batch = 100, 14
	for range rounds {
		var b []byte
		for range 2 { // a whole group
			b = b[:0]
			for range batch {
				p := randomPacket(r, 1200)
				sent[string(p)] = true
				b = append(b, p...)
			}
			if oob == nil {
				for p := b; len(p) > 0; p = p[1200:] {
					if _, _, err := from.WriteMsgUDP(p[:1200], nil, addrs[1]); err != nil {
						t.Fatal(err)
					}
				}
			} else if _, _, err := from.WriteMsgUDP(b, oob, addrs[1]); err != nil {
				t.Fatal(err)
			}
		}
		for len(sent) > batch { // some may be lost for good
			n, err := to.ReadBatch(ms, 0)
			if err != nil {
				t.Fatalf("%v with %d packets missing: %+v", err, len(sent), sessions[1].Stats())
			}
			for _, m := range ms[:n] {
				p := m.Buffers[0][:m.N]
				if isRepair(p) || m.Addr.(*net.UDPAddr).Port != addrs[0].Port {
					t.Fatalf("%d bytes from %v", m.N, m.Addr)
				}
				delete(sent, string(p))
			}
		}
	}
	st := sessions[1].Stats()
	if st.Repaired < 10 || len(sent) > batch {
		t.Errorf("%d never came: %+v", len(sent), st)
	}
	t.Logf("GRO %v, segments %v: %+v", below[1].GRO(), oob != nil, st)
}
