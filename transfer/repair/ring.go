package repair

// slotBytes holds a packet with its length before it, as the code sees it.
const slotBytes = 2 * maxSymbol

// ring remembers the last packets of a session, found by their fingerprints. A
// position counts the packets put in since it was made, from len(prev) on, so that
// 0 is none.
type ring struct {
	next uint32   // position of the next packet
	data []byte   // slotBytes a packet
	fps  []uint32 // fingerprint of each
	prev []uint32 // position of the packet before with the same head
	head []uint32 // by the low bits of the fingerprint: position of the last packet
}

// grow makes room for size packets, a power of two. What was in it is kept.
func (r *ring) grow(size int) {
	if size <= len(r.prev) {
		return
	}
	old := *r
	*r = ring{
		next: uint32(size),
		data: make([]byte, size*slotBytes), fps: make([]uint32, size), prev: make([]uint32, size), head: make([]uint32, 4*size),
	}
	for p := old.next - uint32(min(int(old.next), len(old.prev))); p != old.next; p++ {
		if b := old.packet(p); len(b) > 0 {
			r.put(b)
		}
	}
}

func (r *ring) mask() uint32 { return uint32(len(r.prev) - 1) }

// put remembers a packet of minPacket to MaxPacket bytes and returns its
// fingerprint and position.
func (r *ring) put(packet []byte) (fp, position uint32) {
	if r.next < uint32(len(r.prev)) { // positions have wrapped: start over
		clear(r.head)
		clear(r.prev)
		r.next = uint32(len(r.prev))
	}
	position = r.next
	r.next++
	i := position & r.mask()
	slot := r.data[int(i)*slotBytes : int(i+1)*slotBytes]
	slot[0], slot[1] = byte(len(packet)>>8), byte(len(packet))
	clear(slot[lengthBytes+copy(slot[lengthBytes:], packet) : padded(len(packet))])
	fp = fingerprint(packet)
	h := &r.head[fp&uint32(len(r.head)-1)]
	r.fps[i], r.prev[i] = fp, *h
	*h = position
	return fp, position
}

// holds says that the packet of a position has not been overwritten.
func (r *ring) holds(position uint32) bool {
	return position != 0 && r.next-position <= uint32(len(r.prev))
}

// slot returns a packet of n bytes with its length before it and zeros behind, to
// whole units.
func (r *ring) slot(position uint32) (b []byte, n int) {
	i := int(position&r.mask()) * slotBytes
	n = int(r.data[i])<<8 | int(r.data[i+1])
	return r.data[i : i+padded(n)], n
}

func (r *ring) packet(position uint32) []byte {
	b, n := r.slot(position)
	return b[lengthBytes : lengthBytes+n]
}

// find returns the position of the packet with a fingerprint, 0: none. Of several
// it is the one nearest to near, where its neighbour in the group is; near = 0:
// the last.
func (r *ring) find(fp, near uint32) uint32 {
	best := uint32(0)
	last := r.next
	for p := r.head[fp&uint32(len(r.head)-1)]; r.holds(p) && p < last; p = r.prev[p&r.mask()] {
		last = p
		if r.fps[p&r.mask()] != fp {
			continue
		}
		if best == 0 || near != 0 && distance(p, near) < distance(best, near) {
			best = p
		}
		if near == 0 {
			break
		}
	}
	return best
}

func distance(a, b uint32) uint32 {
	if a < b {
		return b - a
	}
	return a - b
}
