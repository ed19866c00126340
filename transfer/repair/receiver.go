package repair

import "time"

const (
	maxPending   = 32 // groups that wait for packets or parity
	maxDone      = 64 // groups that are remembered as over
	reportPeriod = 50 * time.Millisecond
	// quietPackets, times the ring, without parity end the copying of packets.
	quietPackets = 4
	// patience is how long a group may wait for what is out of order.
	patience = 100 * time.Millisecond
	// slack is how many packets may come between the last of a group and its parity.
	slack = 64
)

// receiver finds what a group lacks and rebuilds it. It keeps packets only while
// parity arrives. The session's lock guards it.
type receiver struct {
	maxSpan int
	ring    ring
	active  bool
	quiet   int    // packets since the last parity
	from    uint32 // groups that begin before are not judged: their packets were not kept
	pending []*pending
	free    []*pending
	done    [maxDone]uint32 // numbers of the first packets, of groups that are over
	doneN   int
	counts  report
	changed bool // counts, since the last report
	sent    time.Time
	scratch decoder
}

// pending is a group that lacks packets.
type pending struct {
	parity
	positions [MaxGroup]uint32 // in the ring; 0: missing
	fps       [MaxGroup]uint32
	missing   int
	symbols   [MaxParity][]byte // nil: not arrived
	have      int
	buffers   [MaxParity][]byte // reused
	bytes     int               // of a symbol
	since     time.Time
}

// decoder is room for one group's decoding.
type decoder struct {
	syndromes [MaxParity][maxSymbol]byte
	views     [MaxParity][]byte
	folder    folder
	packet    [2 * maxSymbol]byte
}

// keep remembers a packet that arrived, if parity does too. rebuilt takes what a
// group that waited for it then yields.
func (r *receiver) keep(packet []byte, rebuilt func([]byte)) {
	if !r.active || len(packet) < minPacket || len(packet) > MaxPacket {
		return
	}
	if r.quiet++; r.quiet > quietPackets*len(r.ring.prev) {
		r.stop()
		return
	}
	fp, at := r.ring.put(packet)
	for _, g := range r.pending {
		if g.arrive(fp, at) {
			r.advance(g, rebuilt)
			return
		}
	}
}

// stop ends the keeping of packets, and frees their memory, until parity arrives again.
func (r *receiver) stop() {
	for len(r.pending) > 0 {
		r.finish(r.pending[0], false)
	}
	r.active = false
	r.ring, r.free = ring{}, nil
}

// late says that nothing more is to be expected for a group, when one that begins
// with packet first is heard of: losses are to be reported while they are news.
func (g *pending) late(first uint32, now time.Time) bool {
	return int32(first-g.first) > int32(2*g.span+slack) || now.Sub(g.since) > patience
}

// locate looks up the packets of the group.
func (g *pending) locate(r *ring) {
	g.missing = 0
	near := uint32(0)
	for i, fp := range g.fps[:g.n] {
		at := r.find(fp, near)
		g.positions[i] = at
		if at == 0 {
			g.missing++
		} else {
			near = at
		}
	}
}

func (g *pending) arrive(fp, at uint32) bool {
	for i := range g.n {
		if g.positions[i] == 0 && g.fps[i] == fp {
			g.positions[i] = at
			g.missing--
			return true
		}
	}
	return false
}

// take takes a parity packet of the session; it returns false for one that it has
// no use for.
func (r *receiver) take(p parity, fingerprints, symbol []byte, now time.Time, rebuilt func([]byte)) bool {
	if p.span > r.maxSpan {
		return false
	}
	r.quiet = 0
	if n := ringSize(p.span); n > len(r.ring.prev) {
		r.ring.grow(n)
		for _, g := range r.pending { // positions are others
			g.locate(&r.ring)
		}
	}
	if !r.active {
		r.active = true
		r.from = p.first + uint32(p.span)
	}
	if int32(p.first-r.from) < 0 || r.isDone(p.first) {
		return true
	}
	g := r.find(p)
	if g == nil {
		if g = r.open(p, fingerprints, len(symbol), now); g == nil {
			return true
		}
	}
	if g.n != p.n || g.parity.symbols != p.symbols || g.single != p.single || g.half != p.half || g.check != p.check || g.bytes != len(symbol) || g.symbols[p.index] != nil {
		return g.symbols[p.index] != nil
	}
	g.buffers[p.index] = append(g.buffers[p.index][:0], symbol...)
	g.symbols[p.index] = g.buffers[p.index]
	g.have++
	r.advance(g, rebuilt)
	return true
}

// ringSize is a power of two that holds a group twice over, and more.
func ringSize(span int) int {
	n := 256
	for n < 2*span+slack {
		n *= 2
	}
	return n
}

func (r *receiver) isDone(first uint32) bool {
	for _, f := range r.done[:min(r.doneN, maxDone)] {
		if f == first {
			return true
		}
	}
	return false
}

func (r *receiver) find(p parity) *pending {
	for _, g := range r.pending {
		if g.first == p.first {
			return g
		}
	}
	return nil
}

// open looks up the packets of a group. One that lacks none is over at once.
func (r *receiver) open(p parity, fingerprints []byte, bytes int, now time.Time) *pending {
	for len(r.pending) > 0 && (len(r.pending) >= maxPending || r.pending[0].late(p.first, now)) {
		r.finish(r.pending[0], false)
	}
	var g *pending
	if n := len(r.free); n > 0 {
		g, r.free = r.free[n-1], r.free[:n-1]
	} else {
		g = new(pending)
	}
	g.parity, g.have, g.bytes, g.since = p, 0, bytes, now
	clear(g.symbols[:])
	for i := range p.n {
		f := fingerprints[fingerprintBytes*i:]
		g.fps[i] = uint32(f[0])<<16 | uint32(f[1])<<8 | uint32(f[2])
	}
	g.locate(&r.ring)
	r.pending = append(r.pending, g)
	if g.missing == 0 {
		r.finish(g, true)
		return nil
	}
	return g
}

// finish ends a group: whole, as what was missing has come, or not.
func (r *receiver) finish(g *pending, whole bool) {
	if whole {
		g.missing = 0
	}
	r.count(g, g.missing, 0)
	r.drop(g)
}

func (r *receiver) count(g *pending, lost, repaired int) {
	c := &r.counts
	c.groups++
	c.packets += uint64(g.n)
	c.lost += uint64(lost)
	c.repaired += uint64(repaired)
	c.unrepaired += uint64(lost - repaired)
	c.squares += uint64(lost * lost)
	c.histogram[bin(lost)]++
	r.changed = true
}

func (r *receiver) drop(g *pending) {
	r.done[r.doneN%maxDone] = g.first
	if r.doneN++; r.doneN == 2*maxDone {
		r.doneN = maxDone
	}
	for i, o := range r.pending {
		if o == g {
			r.pending = append(r.pending[:i], r.pending[i+1:]...)
			break
		}
	}
	r.free = append(r.free, g)
}

// advance ends a group that lacks nothing, or whose parity suffices.
func (r *receiver) advance(g *pending, rebuilt func([]byte)) {
	if g.missing == 0 {
		r.finish(g, true)
		return
	}
	need := 2 * g.missing
	if g.single {
		need = g.missing
	}
	if g.have < need {
		return
	}
	repaired := r.decode(g, need, rebuilt)
	r.count(g, g.missing, repaired)
	r.drop(g)
}

// decode rebuilds the missing packets of a group and returns how many: all or, if
// what comes out is not what was sent, none.
func (r *receiver) decode(g *pending, need int, rebuilt func([]byte)) int {
	rows, columns := make([]int, 0, need), make([]int, 0, need)
	for i, s := range g.symbols {
		if s != nil && len(rows) < need {
			rows = append(rows, i)
		}
	}
	for i := range g.n {
		if g.positions[i] == 0 {
			columns = append(columns, i)
		} else if !r.ring.holds(g.positions[i]) {
			return 0
		}
	}
	if !g.single {
		for _, i := range columns[:g.missing] {
			columns = append(columns, MaxGroup+i)
		}
	}
	d := &r.scratch
	top := rows[need-1] + 1
	for i := range top {
		d.views[i] = d.syndromes[i][:g.bytes]
		clear(d.views[i])
		if g.symbols[i] != nil {
			copy(d.views[i], g.symbols[i])
		}
	}
	e, sum := encoders[top-1](), uint32(0)
	for i, at := range g.positions[:g.n] {
		if at == 0 {
			continue
		}
		slot, n := r.ring.slot(at)
		sum ^= check(slot[lengthBytes : lengthBytes+n])
		if !d.folder.fold(e, slot, n, i, g.half, g.single, d.views[:top]) {
			return 0
		}
	}
	syndromes := make([][]byte, need)
	for i, row := range rows {
		syndromes[i] = d.syndromes[row][:g.bytes]
	}
	field().solve(rows, columns, syndromes)
	missing := func(j int) []byte {
		n := copy(d.packet[:], syndromes[j])
		if !g.single {
			n += copy(d.packet[n:], syndromes[g.missing+j])
		}
		return unpad(d.packet[:n])
	}
	for j := range g.missing {
		p := missing(j)
		if p == nil || fingerprint(p) != g.fps[columns[j]] {
			return 0
		}
		sum ^= check(p)
	}
	if sum != g.check {
		return 0
	}
	for j := range g.missing {
		rebuilt(missing(j))
	}
	return g.missing
}

// unpad takes a packet out of its symbols, nil if they do not hold one: a length
// that fits, zeros behind.
func unpad(b []byte) []byte {
	if len(b) < lengthBytes {
		return nil
	}
	n := int(b[0])<<8 | int(b[1])
	b = b[lengthBytes:]
	if n < minPacket || n > MaxPacket || n > len(b) {
		return nil
	}
	for _, v := range b[n:] {
		if v != 0 {
			return nil
		}
	}
	return b[:n]
}

// due returns a report to send, at most once a period and when there is something
// to tell.
func (r *receiver) due(now time.Time) (report, bool) {
	if !r.changed || now.Sub(r.sent) < reportPeriod {
		return report{}, false
	}
	r.changed, r.sent = false, now
	r.counts.number++
	return r.counts, true
}
