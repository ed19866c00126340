package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/huff0"

	"github.com/kvferry/kvferry/bench/kvgen"
)

// plain is the format written down the plain way, element by element and with huff0: the oracle of what is fast here.
type plain struct {
	enc, dec           huff0.Scratch
	longest            uint8 // table log that huff0 is asked for
	coded, other, tail []byte
}

// perm is the place in a plane of each of a group's elements.
var perm = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

func (p *plain) split(page []byte) {
	n := len(page) / group * group
	p.coded, p.other, p.tail = make([]byte, n/2), make([]byte, n/2), page[n:]
	for i := range n / 2 {
		v := binary.LittleEndian.Uint16(page[2*i:])
		at := i/8*8 + perm[i%8]
		p.coded[at], p.other[at] = byte(v>>7), byte(v>>8)&0x80|byte(v)&0x7f
	}
}

func (p *plain) merge(page []byte) {
	for i := range p.coded {
		at := i/8*8 + perm[i%8]
		e, m := uint16(p.coded[at]), uint16(p.other[at])
		binary.LittleEndian.PutUint16(page[2*i:], m&0x80<<8|e<<7|m&0x7f)
	}
	copy(page[2*len(p.coded):], p.tail)
}

// huff appends page as the codec Huff has it.
func (p *plain) huff(dst, page []byte) []byte {
	p.split(page)
	dst = binary.LittleEndian.AppendUint32(append(dst, version), uint32(len(page)))
	for b := range slices.Chunk(p.coded, max(1, blockSize(len(p.coded)))) {
		dst = p.block(dst, b)
	}
	return append(append(dst, p.other...), p.tail...)
}

func (p *plain) block(dst, b []byte) []byte {
	p.enc.Reuse, p.enc.TableLog = huff0.ReusePolicyNone, p.longest
	out, _, err := huff0.Compress4X(b, &p.enc)
	switch {
	case errors.Is(err, huff0.ErrUseRLE):
		return append(appendBlock(dst, blockOne, 1), b[0])
	case err != nil || len(out) >= len(b):
		return append(appendBlock(dst, blockRaw, len(b)), b...)
	}
	return append(appendBlock(dst, blockHuffman, len(out)), out...)
}

// split4 appends page as the codec Split4 has it.
func (p *plain) split4(dst, page []byte) []byte {
	p.split(page)
	var counts [256]int
	for _, e := range p.coded {
		counts[e]++
	}
	order := make([]byte, 256)
	for i := range order {
		order[i] = byte(i)
	}
	slices.SortStableFunc(order, func(a, b byte) int { return counts[b] - counts[a] })
	dst = binary.LittleEndian.AppendUint32(append(dst, version), uint32(len(page)))
	dst = append(dst, order[:codes]...)
	var special, pairs []byte
	for i, e := range p.coded {
		c := slices.Index(order[:codes], e)
		if c < 0 {
			special, c = append(special, byte(i), byte(i>>8), byte(i>>16), e), 0
		}
		if i%2 == 0 {
			pairs = append(pairs, byte(c))
		} else {
			pairs[i/2] |= byte(c) << 4
		}
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(special)/escapeBytes))
	return slices.Concat(dst, special, pairs, p.other, p.tail)
}

// unblock decodes table and streams.
func (p *plain) unblock(dst, src []byte) error {
	s, rest, err := huff0.ReadTable(src, &p.dec)
	if err != nil {
		return err
	}
	out, err := s.Decoder().Decompress4X(dst[:0:len(dst)], rest)
	if err != nil {
		return err
	}
	if len(out) != len(dst) {
		return errors.New("short")
	}
	copy(dst, out)
	return nil
}

// decode decodes a page of the codec Huff whose blocks are all Huffman.
func (p *plain) decode(page, src []byte) error {
	n := len(page) / group * group
	p.coded, src = make([]byte, n/2), src[headerBytes:]
	for b := range slices.Chunk(p.coded, max(1, blockSize(n/2))) {
		kind, n := src[0], int(src[1])|int(src[2])<<8|int(src[3])<<16
		if kind != blockHuffman {
			return fmt.Errorf("block of kind %d", kind)
		}
		if err := p.unblock(b, src[blockHeaderBytes:blockHeaderBytes+n]); err != nil {
			return err
		}
		src = src[blockHeaderBytes+n:]
	}
	p.other, p.tail = src[:n/2], src[n/2:]
	p.merge(page)
	return nil
}

// kvPages returns n pages of 64 KiB as of a model's layers, first to last: K, then V.
func kvPages(tb testing.TB, n int) [][]byte {
	tb.Helper()
	pages := make([][]byte, n)
	for i := range pages {
		for _, k := range []kvgen.Kind{kvgen.K, kvgen.V} {
			c := kvgen.Config{Kind: k, Tokens: 16, Heads: 8, HeadDim: 128, Layer: i, Layers: n}
			half := make([]byte, c.Bytes())
			if err := kvgen.Generate(half, c); err != nil {
				tb.Fatal(err)
			}
			pages[i] = append(pages[i], half...)
		}
	}
	return pages
}

// TestAgainstPlain has what is fast and what is plain read one another's pages: huff0's tables of all lengths, so also those of
// builds that code longer.
func TestAgainstPlain(t *testing.T) {
	pages := kvPages(t, 8)
	pages = append(pages, patterns(), append(normals(1, 70_001, 0.1), 1, 2, 3), normals(5, 133, 1))
	var s Scratch
	for i, page := range pages {
		got := make([]byte, len(page))
		coded, err := Encode(Huff, nil, page, &s)
		if err != nil {
			t.Fatalf("page %d: %v", i, err)
		}
		var p plain
		if want := p.split4(nil, page); len(want) < len(page) {
			if four, err := Encode(Split4, nil, page, &s); err != nil || !bytes.Equal(four, want) {
				t.Errorf("page %d: split4 makes other bytes than it plainly does: %v", i, err)
			}
		}
		if err := p.decode(got, coded); err != nil || !bytes.Equal(got, page) {
			t.Errorf("page %d is another when read plainly: %v", i, err)
		}
		for p.longest = 5; p.longest <= 11; p.longest++ {
			clear(got)
			theirs := p.huff(nil, page)
			if err := Decode(Huff, got, theirs, &s); err != nil || !bytes.Equal(got, page) {
				t.Errorf("page %d with plain codes of up to %d bits is another: %v", i, p.longest, err)
			}
			if float64(len(coded)) > 1.005*float64(len(theirs)) {
				t.Errorf("page %d has %d bytes, huff0 makes %d of it with up to %d bits", i, len(coded), len(theirs), p.longest)
			}
		}
	}
}

// TestEvenBytes has bytes that are more even than exponents be as short as huff0 makes them, whose codes are as long as the format has them.
func TestEvenBytes(t *testing.T) {
	for id, e := range map[ID]kvgen.Element{Huff16: kvgen.FP16, Huff8: kvgen.E4M3} {
		for layer := range 8 {
			c := kvgen.Config{Kind: kvgen.Kind(layer % 2), Tokens: 32, Heads: 8, HeadDim: 128, Layer: layer, Layers: 8, Element: e}
			page := make([]byte, c.Bytes())
			if err := kvgen.Generate(page, c); err != nil {
				t.Fatal(err)
			}
			plane, rest := page, 0
			if id == Huff16 {
				rest = len(page) / 2
				plane = make([]byte, 0, rest)
				for i := 0; i < len(page); i += 2 { // their order within a block does not matter
					plane = append(plane, page[i+1])
				}
			}
			want := make([]byte, headerBytes)
			p := plain{longest: longestCode}
			for b := range slices.Chunk(plane, blockSize(len(plane))) {
				want = p.block(want, b)
			}
			var s Scratch
			if got := roundTrip(t, id, page, &s); float64(got) > 1.0005*float64(len(want)+rest) {
				t.Errorf("%v, layer %d: %d bytes of %d, huff0 makes %d", id, layer, got, len(page), len(want)+rest)
			} else {
				t.Logf("%v, layer %d: %d bytes of %d, huff0 makes %d", id, layer, got, len(page), len(want)+rest)
			}
		}
	}
}

// skewed returns n bytes, each value about ratio times as common as the one before, of at most values.
func skewed(seed uint64, n, values int, ratio float64) []byte {
	rng := noise(seed, 8*n)
	b := make([]byte, n)
	for i := range b {
		u := (float64(binary.LittleEndian.Uint64(rng[8*i:])>>11) + 1) / (1 << 53)
		b[i] = byte(min(values-1, int(math.Log(u)/math.Log(ratio)))*37) + byte(seed)
	}
	return b
}

// seeds is n, and a fifth of that in short runs.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 5
	}
	return n
}

// TestBlocks has Huffman blocks of all shapes come back, from huff0 as well.
func TestBlocks(t *testing.T) {
	var h huffScratch
	var p plain
	made, seeds := 0, seeds(240)
	for seed := range seeds {
		n := int(seed*seed*seed%mostBlock) + leastHuffman
		if seed < 64 {
			n = leastHuffman + int(seed)
		}
		b := skewed(seed, min(n, mostBlock), 2+int(seed*7%255), []float64{0.1, 0.5, 0.8, 0.95, 0.999}[seed%5])
		counts, most := histogram(&h.counts, b), tableLog+int(seed%2)*3
		if counts[b[0]] == uint32(len(b)) {
			continue
		}
		out := h.appendHuffman(nil, b, counts, most)
		if len(out) == 0 || len(out) >= len(b) {
			continue
		}
		made++
		got := make([]byte, len(b)+1)
		got[len(b)] = 99
		if err := h.block(got[:len(b):len(b)+1], out, blockHuffman); err != nil || !bytes.Equal(got[:len(b)], b) {
			t.Fatalf("seed %d, %d bytes: %v", seed, len(b), err)
		}
		if got[len(b)] != 99 {
			t.Fatalf("seed %d: a byte behind the block changed", seed)
		}
		clear(got)
		if err := p.unblock(got[:len(b)], out); err != nil || !bytes.Equal(got[:len(b)], b) {
			t.Fatalf("seed %d, %d bytes, by huff0: %v", seed, len(b), err)
		}
	}
	if made < int(seeds)/2 {
		t.Errorf("%d of %d blocks are Huffman", made, seeds)
	}
}

// TestDamagedBlocks flips each bit of blocks: what huff0 makes of them, or both refuse.
func TestDamagedBlocks(t *testing.T) {
	var h huffScratch
	refused := 0
	for _, most := range []int{tableLog, longestCode} {
		b := skewed(3, 900, 60, 0.75)
		out := h.appendHuffman(nil, b, histogram(&h.counts, b), most)
		for i := range 8 * len(out) {
			bad := bytes.Clone(out)
			bad[i/8] ^= 1 << (i % 8)
			var p plain
			got, want := make([]byte, len(b)), make([]byte, len(b))
			err, theirs := h.block(got, bad, blockHuffman), p.unblock(want, bad)
			if (err == nil) != (theirs == nil) || err == nil && !bytes.Equal(got, want) {
				t.Fatalf("codes of up to %d bits, bit %d: %v, huff0 %v", most, i, err, theirs)
			}
			if err != nil {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no damage is refused")
	}
}

// leastCost is the fewest bits that codes of at most most bits take: package-merge, Larmore and Hirschberg, "A fast algorithm for optimal
// length-limited Huffman codes", 1990.
func leastCost(counts *[256]uint32, most int) int {
	var leaves []int
	for _, c := range counts {
		if c > 0 {
			leaves = append(leaves, int(c))
		}
	}
	slices.Sort(leaves)
	list := leaves
	for range most - 1 {
		var pairs []int
		for i := 0; i+1 < len(list); i += 2 {
			pairs = append(pairs, list[i]+list[i+1])
		}
		list = slices.Sorted(slices.Values(append(pairs, leaves...)))
	}
	sum := 0
	for _, c := range list[:2*len(leaves)-2] {
		sum += c
	}
	return sum
}

// TestLengths has codes be complete and nearly the best that their length allows.
func TestLengths(t *testing.T) {
	var box sorter
	for seed := range seeds(300) {
		b := skewed(seed, 100+int(seed*131%60_000), 2+int(seed*11%255), []float64{0.05, 0.4, 0.618, 0.9, 0.99, 0.9999}[seed%6])
		var counts [8][256]uint32
		c := histogram(&counts, b)
		values := 0
		for _, n := range c {
			if n > 0 {
				values++
			}
		}
		if values < 2 {
			continue
		}
		var table codeTable
		most := tableLog + int(seed%4)
		longest := table.lengths(c, most, &box)
		kraft, bits, top := 0, 0, 0
		for v, n := range c {
			l := int(table[v])
			if (l == 0) != (n == 0) || l > most {
				t.Fatalf("seed %d: byte %d, %d times, has %d bits", seed, v, n, l)
			}
			if l > 0 {
				kraft += 1 << (most - l)
			}
			bits, top = bits+l*int(n), max(top, l)
		}
		if kraft != 1<<most || top != longest {
			t.Fatalf("seed %d: codes fill %d of %d, longest %d, said %d", seed, kraft, 1<<most, top, longest)
		}
		if least := leastCost(c, most); bits < least || float64(bits) > 1.01*float64(least) {
			t.Errorf("seed %d: %d bits, %d values, the least is %d", seed, bits, values, least)
		}
	}
}

// FuzzBlock decodes any bytes as a Huffman block: what huff0 makes of them, or both refuse.
func FuzzBlock(f *testing.F) {
	var h huffScratch
	for seed := range uint64(6) {
		b := skewed(seed, 200<<seed, 40, 0.6)
		f.Add(uint16(len(b)), h.appendHuffman(nil, b, histogram(&h.counts, b), tableLog))
		p := plain{longest: 11}
		f.Add(uint16(len(b)), p.block(nil, b)[blockHeaderBytes:])
	}
	f.Fuzz(func(t *testing.T, n uint16, src []byte) {
		if n < leastHuffman || len(src) >= int(n) {
			return
		}
		got, want := make([]byte, n), make([]byte, n)
		err := h.block(got, src, blockHuffman)
		var p plain
		theirs := p.unblock(want, src)
		if (err == nil) != (theirs == nil) {
			t.Fatalf("%v, huff0 %v", err, theirs)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Fatal("huff0 decodes other bytes")
		}
	})
}

// BenchmarkKV codes pages of KV values, and says what the fastest of all tries makes a second.
func BenchmarkKV(b *testing.B) {
	pages := kvPages(b, 32)
	bench := func(name string, f func(i int)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(pages[0])))
			b.ReportAllocs()
			least := time.Duration(math.MaxInt64)
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				f(i % len(pages))
				least = min(least, time.Since(start))
			}
			b.ReportMetric(float64(len(pages[0]))/float64(least), "best-GB/s")
		})
	}
	for _, id := range []ID{Huff, Split4} {
		var s Scratch
		coded := make([][]byte, len(pages))
		for i, page := range pages {
			coded[i], _ = Encode(id, nil, page, &s)
		}
		dst, got := make([]byte, 0, MaxEncoded(len(pages[0]))), make([]byte, len(pages[0]))
		bench("encode/"+id.String(), func(i int) { _, _ = Encode(id, dst, pages[i], &s) })
		bench("decode/"+id.String(), func(i int) { _ = Decode(id, got, coded[i], &s) })
	}
}
