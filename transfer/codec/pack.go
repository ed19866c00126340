package codec

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/fse"
)

const (
	// tableLog is the length of the longest code that one look at a table decodes. Exponents lose 0.3 % by it.
	tableLog = 8
	// longestCode is that of the format, which bytes of more even values need.
	longestCode = 11
	// fseLog is the most that a table of weights may take.
	fseLog = 6
	// clean is how many bits a container of pack may hold before the lengths in its low bits get among them.
	clean = 60
)

// A codeTable has the codes of bytes: the code in the highest bits, its length in the lowest byte, 0 for a byte that has none.
type codeTable [256]uint64

// A sorter is what lengths needs besides its arguments.
type sorter struct {
	keys    [256]uint32 // bytes that occur, by count
	weights [256]uint32
}

// lengths gives each byte that counts is not zero for, at least two, a code of 1 to most bits, which are 8 to longestCode, within 1 % as few
// in all as can be. It returns the longest length.
func (t *codeTable) lengths(counts *[256]uint32, most int, s *sorter) (longest int) {
	n, total := 0, uint32(0)
	for b, c := range counts {
		if c > 0 {
			s.keys[n] = c<<8 | uint32(255-b)
			total += c
			n++
		}
	}
	keys, depth := s.keys[:n], s.weights[:n]
	slices.Sort(keys) // rare ones first, among equals the higher byte
	// Rare bytes count for more until none is too deep. That ends: 256 that count the same have 8 bits.
	for floor := total >> most; ; floor += floor/8 + 1 {
		for i, k := range keys {
			depth[i] = max(k>>8, floor)
		}
		depths(depth)
		if int(depth[0]) <= most {
			break
		}
	}
	clear(t[:])
	for i, k := range keys {
		t[byte(255-k)] = uint64(depth[i])
	}
	return int(depth[0])
}

// depths replaces weights, ascending and at least two, by the depths of their leaves in a Huffman tree, in
// place: Moffat and Katajainen, "In-place calculation of minimum-redundancy codes", 1995.
func depths(w []uint32) {
	// Inner nodes, from the lightest: first their weights, then their parents.
	n, leaf, root := len(w), 0, 0
	lightest := func(next int) uint32 {
		if leaf < n && (root == next || w[leaf] <= w[root]) {
			leaf++
			return w[leaf-1]
		}
		v := w[root]
		w[root] = uint32(next)
		root++
		return v
	}
	for next := range n - 1 {
		v := lightest(next)
		w[next] = v + lightest(next)
	}
	// Their depths.
	w[n-2] = 0
	for i := n - 3; i >= 0; i-- {
		w[i] = w[w[i]] + 1
	}
	// What is free at a depth besides inner nodes are leaves.
	next, root := n-1, n-2
	for free, depth := 1, uint32(0); free > 0; depth++ {
		inner := 0
		for ; root >= 0 && w[root] == depth; root-- {
			inner++
		}
		for ; free > inner; free-- {
			w[next] = depth
			next--
		}
		free = 2 * inner
	}
}

// assign turns lengths into codes: the longest first, ascending, bytes of one length in their order.
func (t *codeTable) assign() {
	var next [longestCode + 1]uint64
	for _, e := range t {
		next[e]++
	}
	code := uint64(0)
	for bits := longestCode; bits > 0; bits-- {
		n := next[bits]
		next[bits] = code
		code = (code + n) >> 1
	}
	for b, bits := range t {
		if bits > 0 {
			t[b] = next[bits]<<(64-bits) | bits
			next[bits]++
		}
	}
}

// appendWeights appends the table as huff0 writes it: the weight of each byte, longest + 1 - length, up to the last byte that
// has a code, whose weight follows from the others. It returns nil when they cannot be said.
func (h *huffScratch) appendWeights(dst []byte, longest int) []byte {
	last := 255
	for h.codes[last] == 0 {
		last--
	}
	weights := &h.weights
	clear(weights[:])
	hist := h.fse.Histogram()
	clear(hist)
	for b, bits := range h.codes[:last] {
		if bits > 0 {
			weights[b] = byte(longest + 1 - int(bits))
		}
		hist[weights[b]]++
	}
	if last >= 2 {
		top, most := 0, uint32(0)
		for w, c := range hist[:longestCode+1] {
			if c > 0 {
				top, most = w, max(most, c)
			}
		}
		h.fse.HistogramFinished(uint8(top), int(most))
		h.fse.TableLog, h.fse.Out = fseLog, h.table[:0]
		b, err := fse.Compress(weights[:last], &h.fse)
		h.fse.Out = nil
		if err == nil && len(b) < (last+1)/2 {
			return append(append(dst, byte(len(b))), b...)
		}
	}
	if last > 128 {
		return nil
	}
	dst = append(dst, byte(127+last))
	for i := 0; i < last; i += 2 {
		dst = append(dst, weights[i]<<4|weights[i+1])
	}
	return dst
}

// appendHuffman appends table and streams of b, whose bytes, of at least two values, are counted. It returns nil where that cannot
// be or clearly is not shorter. b may not change meanwhile: nothing is written beyond what its counts say.
func (h *huffScratch) appendHuffman(dst, b []byte, counts *[256]uint32, most int) []byte {
	if len(b) < leastHuffman {
		return nil
	}
	longest := h.codes.lengths(counts, most, &h.sorter)
	bits := 0
	for i, c := range counts {
		bits += int(c) * int(h.codes[i])
	}
	if bits/8+jumpBytes >= len(b) {
		return nil
	}
	if dst = h.appendWeights(dst, longest); dst == nil {
		return nil
	}
	h.codes.assign()
	jump := len(dst)
	dst = slices.Grow(dst, jumpBytes+bits/8+4+8)
	buf, pos := dst[:cap(dst)], jump+jumpBytes
	segment := (len(b) + 3) / 4
	for i := range 3 {
		n := h.codes.pack(buf[pos:], b[:segment])
		binary.LittleEndian.PutUint16(buf[jump+2*i:], uint16(n))
		b, pos = b[segment:], pos+n
	}
	pos += h.codes.pack(buf[pos:], b)
	return buf[:pos]
}

// pack writes the codes of seg, the last first, and a bit that marks the end to buf, and returns how many bytes that is. Bits
// fill bytes from the lowest. buf has room for eight bytes more.
func (t *codeTable) pack(buf, seg []byte) int {
	var p packer
	pos, seg := p.odd(t, buf, seg)
	if hasBMI && len(seg) > 0 {
		pos += packBMI2(&p, t, &buf[pos], &seg[0], len(seg)/8)
	} else {
		pos += p.words(t, buf[pos:], seg)
	}
	buf[pos] = byte((p.bits>>1 | 1<<63) >> (63 - p.n))
	return pos + 1
}

// A packer has bits at the top, where the next code pushes them down. What its low bits hold besides is lengths and old
// bits, which never get to a buffer as long as there are no more than clean bits.
type packer struct {
	bits uint64
	n    uint64 // how many; below 8 between calls
}

// odd writes the bytes of seg that are more than a multiple of eight. It returns how many bytes that is and what is left of seg.
func (p *packer) odd(t *codeTable, buf, seg []byte) (pos int, rest []byte) {
	for len(seg)%8 != 0 {
		e := t[seg[len(seg)-1]]
		if p.n+e&0xff > clean { // seven of the longest codes are more
			pos += p.flush(buf[pos:])
		}
		seg = seg[:len(seg)-1]
		p.bits, p.n = p.bits>>(e&63)|e, p.n+e&0xff
	}
	pos += p.flush(buf[pos:])
	return pos, seg
}

// flush writes whole bytes and returns how many.
func (p *packer) flush(buf []byte) (bytes int) {
	binary.LittleEndian.PutUint64(buf, p.bits>>1>>(63-p.n))
	bytes, p.n = int(p.n>>3), p.n&7
	return bytes
}

// words writes seg, a multiple of eight bytes, and returns how many bytes that is.
func (p *packer) words(t *codeTable, buf, seg []byte) (pos int) {
	c, n := p.bits, p.n
	for len(seg) >= 8 {
		s := (*[8]byte)(seg[len(seg)-8:])
		seg = seg[:len(seg)-8]
		a, e6, e5, e4 := t[s[7]], t[s[6]], t[s[5]], t[s[4]]
		an := (a + e6 + e5 + e4) & 0xff
		a = a>>(e6&63) | e6
		a = a>>(e5&63) | e5
		a = a>>(e4&63) | e4
		b, e2, e1, e0 := t[s[3]], t[s[2]], t[s[1]], t[s[0]]
		bn := (b + e2 + e1 + e0) & 0xff
		b = b>>(e2&63) | e2
		b = b>>(e1&63) | e1
		b = b>>(e0&63) | e0
		c = c>>(an&63) | a
		if n += an; n+bn > clean {
			binary.LittleEndian.PutUint64(buf[pos:], c>>((64-n)&63))
			pos, n = pos+int(n>>3), n&7
		}
		c = c>>(bn&63) | b
		n += bn
		binary.LittleEndian.PutUint64(buf[pos:], c>>((64-n)&63))
		pos, n = pos+int(n>>3), n&7
	}
	p.bits, p.n = c, n
	return pos
}
