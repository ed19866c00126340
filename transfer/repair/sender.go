package repair

import "time"

const (
	// firstPacket is QUIC's packet size until it has found a larger one to pass.
	firstPacket = 1280
	// trustAfter packets of one size in a row, larger than any before, are not
	// probes for a larger size: QUIC sends three of those at most. A probe must
	// not be repaired, or QUIC would take a size that does not pass.
	trustAfter = 4
)

// sender folds the packets that go out into the parity of open groups. It keeps
// none. The session's lock guards it.
type sender struct {
	token   Token
	seal    seal
	plan    plan
	trusted int // largest packet that is covered
	larger  int // the size that is on trial, and how often it was seen in a row
	seen    int

	number   uint32 // of the next packet
	open     [maxDepth]*group
	opened   int // groups among them
	free     []*group
	deadline time.Time // of the oldest open group
	budget   int       // bytes of parity that may be sent
	folder   folder
	scratch  [slotBytes]byte
	table    [MaxParity][]byte // views of a group's parity
}

// group is parity in the making, and then as packets.
type group struct {
	first, last  uint32
	n, longest   int
	bytes        int // of the packets
	symbols      int
	check        uint32
	half         int
	fingerprints [fingerprintBytes * MaxGroup]byte
	parity       [MaxParity][]byte
	packets      []byte // size each
	size, count  int
	oob          []byte // to send them with
}

func newSender(token Token) sender {
	return sender{token: token, trusted: firstPacket, budget: burstBudget}
}

// half is the size of a symbol: two hold the largest packet with its length.
func (s *sender) half() int { return min(padded(s.trusted/2), maxSymbol) }

// covers says whether a packet is to be covered, and learns what sizes pass.
func (s *sender) covers(n int) (ok, grown bool) {
	switch {
	case n < minPacket || n > MaxPacket:
		return false, false
	case n < s.trusted:
		return true, false
	case n == s.trusted:
		s.seen = 0
		return true, false
	case n != s.larger:
		s.larger, s.seen = n, 1
		return false, false
	}
	if s.seen++; s.seen < trustAfter {
		return false, false
	}
	s.trusted, s.seen = n, 0
	return true, true
}

// add folds a packet in, and appends a group that it completes to closed.
func (s *sender) add(packet []byte, now time.Time, closed []*group) []*group {
	ok, grown := s.covers(len(packet))
	if !ok {
		return closed
	}
	if grown { // symbols are larger from here on
		closed = s.closeAll(closed)
	}
	at := int(s.number) % s.plan.depth
	g := s.open[at]
	if g == nil {
		g = s.begin()
		s.open[at] = g
		if s.opened++; s.opened == 1 {
			s.deadline = now.Add(s.plan.wait)
		}
	}
	slot := s.scratch[:padded(len(packet))]
	slot[0], slot[1] = byte(len(packet)>>8), byte(len(packet))
	clear(slot[lengthBytes+copy(slot[lengthBytes:], packet):])
	s.folder.fold(encoders[g.symbols-1](), slot, len(packet), g.n, g.half, false, s.views(g))
	fp := fingerprint(packet)
	f := g.fingerprints[fingerprintBytes*g.n:]
	f[0], f[1], f[2] = byte(fp>>16), byte(fp>>8), byte(fp)
	g.n++
	g.last = s.number
	g.longest = max(g.longest, len(packet))
	g.bytes += len(packet) + ipBytes
	g.check ^= check(packet)
	s.number++
	if g.n >= s.plan.packets {
		s.open[at] = nil
		s.opened--
		closed = append(closed, s.close(g))
	}
	return closed
}

func (s *sender) views(g *group) [][]byte {
	v := s.table[:g.symbols]
	for i := range v {
		v[i] = g.parity[i][:g.half]
	}
	return v
}

func (s *sender) begin() *group {
	var g *group
	if n := len(s.free); n > 0 {
		g, s.free = s.free[n-1], s.free[:n-1]
	} else {
		g = new(group)
	}
	g.first, g.n, g.longest, g.bytes, g.check, g.half = s.number, 0, 0, 0, 0, s.half()
	g.symbols = s.plan.symbols
	for i := range g.symbols {
		if g.parity[i] == nil {
			g.parity[i] = make([]byte, maxSymbol)
		}
		clear(g.parity[i][:g.half])
	}
	return g
}

// expired closes the open groups when the oldest is due.
func (s *sender) expired(now time.Time, closed []*group) []*group {
	if s.opened == 0 || now.Before(s.deadline) {
		return closed
	}
	return s.closeAll(closed)
}

func (s *sender) closeAll(closed []*group) []*group {
	if s.opened == 0 {
		return closed
	}
	for i, g := range s.open {
		if g != nil {
			s.open[i] = nil
			closed = append(closed, s.close(g))
		}
	}
	s.opened = 0
	return closed
}

// close makes the parity packets of a group, as many as its size and the budget
// ask for.
func (s *sender) close(g *group) *group {
	single := lengthBytes+g.longest <= g.half
	bytes, symbols := g.half, s.plan.symbolsOf(g.n, single)
	if single {
		bytes = lengthBytes + g.longest
	}
	g.size = parityHead + fingerprintBytes*g.n + bytes + s.seal.size()
	s.budget = min(s.budget, burstBudget) + g.bytes*s.plan.overhead/100
	symbols = min(symbols, g.symbols, s.budget/(g.size+ipBytes))
	s.budget -= symbols * (g.size + ipBytes)
	g.count = symbols
	g.packets = g.packets[:0]
	for i := range symbols {
		g.packets = appendParity(g.packets, s.token, parity{
			first: g.first, span: int(g.last-g.first) + 1, n: g.n, symbols: symbols, index: i, single: single, half: g.half, check: g.check,
		})
		g.packets = append(g.packets, g.fingerprints[:fingerprintBytes*g.n]...)
		g.packets = append(g.packets, g.parity[i][:bytes]...)
		g.packets = s.seal.add(g.packets, i*g.size)
	}
	return g
}
