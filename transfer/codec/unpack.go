package codec

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/klauspost/compress/fse"
)

const (
	// looks is how many times a container of 64 bits is looked at between loads: 7 of its bits may be used and a look takes at most tableLog.
	looks = 7
	// mostALook is how many bytes a look gives at most.
	mostALook = 3
	// window is what a step may write to: what it gives, and what a look writes besides one byte.
	window = looks*mostALook + 1
)

// An unpackTable decodes by the next tableLog bits.
type unpackTable struct {
	// one has the first byte and, below it, the length of its code.
	one [1 << tableLog]uint16
	// many has the length of one code or more, as many as the bits hold whole up to mostALook, from bit 0; what they
	// stand for from bit 6; and how many they are from bit 30.
	many [1 << tableLog]uint32
}

// readWeights reads the table of weights that src begins with into the scratch. It returns how many there are, the last and implied one
// included, their log, and what follows. The weights are complete: a code of that log.
func (h *huffScratch) readWeights(src []byte) (n, log int, rest []byte, err error) {
	weights := &h.weights
	if len(src) < 2 {
		return 0, 0, nil, corrupt("table of %d bytes", len(src))
	}
	size := int(src[0])
	src = src[1:]
	if size >= 128 {
		n = size - 127
		if size = (n + 1) / 2; size > len(src) {
			return 0, 0, nil, corrupt("table of %d bytes, %d left", size, len(src))
		}
		for i, b := range src[:size] {
			weights[2*i], weights[2*i+1] = b>>4, b&15
		}
	} else {
		if size > len(src) {
			return 0, 0, nil, corrupt("table of %d bytes, %d left", size, len(src))
		}
		if log := int(src[0]&15) + 5; log > fseLog {
			return 0, 0, nil, corrupt("table of weights with log %d, at most %d", log, fseLog)
		}
		h.fse.DecompressLimit, h.fse.Out = 255, weights[:0]
		b, err := fse.Decompress(src[:size], &h.fse)
		h.fse.Out = nil
		if err != nil || len(b) > 255 {
			return 0, 0, nil, corrupt("table of %d weights: %v", len(b), err)
		}
		n = copy(weights[:], b)
	}
	sum, ones := uint(0), 0
	for _, w := range weights[:n] {
		if w > 12 {
			return 0, 0, nil, corrupt("weight %d", w)
		}
		sum += 1 << w >> 1
		if w == 1 {
			ones++
		}
	}
	log = bits.Len(sum)
	left := uint(1)<<log - sum
	if sum == 0 || left&(left-1) != 0 {
		return 0, 0, nil, corrupt("weights of %d, %d left of a power of two", sum, left)
	}
	last := bits.Len(left)
	if last == 1 {
		ones++
	}
	if ones < 2 || ones%2 != 0 {
		return 0, 0, nil, corrupt("%d longest codes", ones)
	}
	weights[n] = byte(last)
	return n + 1, log, src[size:], nil
}

// fill makes the table from weights that are complete, of a log of at most tableLog.
func (t *unpackTable) fill(weights []byte, log int) {
	var next [tableLog + 2]int
	for _, w := range weights {
		next[w]++
	}
	at := 0
	for w := 1; w <= log; w++ {
		n := next[w]
		next[w] = at
		at += n << (tableLog - log + w - 1)
	}
	for b, w := range weights {
		if w == 0 {
			continue
		}
		span := 1 << (tableLog - log + int(w) - 1)
		e := uint16(b<<8 | (log + 1 - int(w)))
		run := t.one[next[w] : next[w]+span]
		for i := range run {
			run[i] = e
		}
		next[w] += span
	}
	for i := range t.many {
		e := uint32(t.one[i])
		n, out, count := e&15, e>>8, uint32(1)
		for count < mostALook {
			e = uint32(t.one[byte(i<<n)])
			if n+e&15 > tableLog {
				break
			}
			n += e & 15
			out |= e >> 8 << (8 * count)
			count++
		}
		t.many[i] = count<<30 | out<<6 | n
	}
}

// A stream is one of the four of a block.
type stream struct {
	in   int // offset in the block of the 8 bytes that are looked at
	used int // of their bits, from the highest
	from int // offset of the stream
	at   int // offset in the output
	end  int
}

// steps returns how many times step is safe.
func (s *stream) steps() int {
	return min((s.end-s.at-window+looks*mostALook)/(looks*mostALook), s.in/looks)
}

// step decodes what looks looks give.
func (s *stream) step(t *[1 << tableLog]uint32, dst, src []byte) {
	v := binary.LittleEndian.Uint64(src[s.in:]) << (s.used & 63)
	w := unsafe.Pointer((*[window]byte)(dst[s.at:]))

	e := t[v>>56]
	put(w, 0, e>>6)
	v <<= e & 63
	k, used := e>>30, uint32(s.used)+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	v <<= e & 63
	k, used = k+e>>30, used+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	v <<= e & 63
	k, used = k+e>>30, used+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	v <<= e & 63
	k, used = k+e>>30, used+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	v <<= e & 63
	k, used = k+e>>30, used+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	v <<= e & 63
	k, used = k+e>>30, used+e&63

	e = t[v>>56]
	put(w, k, e>>6)
	k, used = k+e>>30, used+e&63

	s.at += int(k)
	s.in -= int(used >> 3)
	s.used = int(used & 7)
}

// put writes e i bytes behind w.
func put(w unsafe.Pointer, i, e uint32) {
	binary.LittleEndian.PutUint32((*[4]byte)(unsafe.Add(w, i))[:], e)
}

// unpack does the steps that are safe for all streams.
func (t *unpackTable) unpack(streams *[4]stream, dst, src []byte) {
	a, b, c, d := &streams[0], &streams[1], &streams[2], &streams[3]
	for {
		n := min(a.steps(), b.steps(), c.steps(), d.steps())
		if n <= 0 {
			return
		}
		if hasBMI {
			unpackBMI2(streams, &t.many, &dst[0], &src[0], n)
			continue
		}
		for range n {
			a.step(&t.many, dst, src)
			b.step(&t.many, dst, src)
			c.step(&t.many, dst, src)
			d.step(&t.many, dst, src)
		}
	}
}

// finish decodes the rest of a stream byte by byte.
func (s *stream) finish(t *[1 << tableLog]uint16, dst, src []byte) error {
	left := (s.in-s.from)*8 + 64 - s.used // bits of the stream
	src = src[s.from:]
	for ; s.at < s.end && left > 0; s.at++ {
		var next byte
		if low := left - tableLog; low >= 0 {
			next = byte(uint(binary.LittleEndian.Uint16(src[low>>3:])) >> (low & 7))
		} else {
			next = src[0] << -low
		}
		e := t[next]
		left -= int(e & 15)
		dst[s.at] = byte(e >> 8)
	}
	if left != 0 || s.at < s.end {
		return corrupt("stream with %d bits left and %d bytes missing", left, s.end-s.at)
	}
	return nil
}

// decodeHuffman fills dst, at least leastHuffman bytes, from src, table and streams.
func (h *huffScratch) decodeHuffman(dst, src []byte) error {
	n, log, rest, err := h.readWeights(src)
	if err != nil {
		return err
	}
	if log > tableLog {
		return h.decodeLong(dst, src)
	}
	h.out.fill(h.weights[:n], log)
	src = rest
	if len(src) < jumpBytes {
		return corrupt("%d bytes of streams", len(src))
	}
	var streams [4]stream
	from, segment := jumpBytes, (len(dst)+3)/4
	for i := range streams {
		to := len(src)
		if i < 3 {
			to = from + int(binary.LittleEndian.Uint16(src[2*i:]))
		}
		if to <= from || to > len(src) || src[to-1] == 0 {
			return corrupt("stream %d from %d to %d of %d has no end", i, from, to, len(src))
		}
		s := &streams[i]
		*s = stream{in: to - 8, used: 9 - bits.Len8(src[to-1]), from: from, at: i * segment, end: min((i+1)*segment, len(dst))}
		if s.used == 8 {
			s.in, s.used = s.in-1, 0
		}
		from = to
	}
	h.out.unpack(&streams, dst, src)
	for i := range streams {
		s := &streams[i]
		for s.steps() > 0 {
			s.step(&h.out.many, dst, src)
		}
		if err := s.finish(&h.out.one, dst, src); err != nil {
			return err
		}
	}
	return nil
}
