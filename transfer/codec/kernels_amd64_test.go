//go:build !purego && !invariants

package codec

import (
	"bytes"
	"testing"
)

// TestKernels has the assembly do what the Go code does, which builds without it use.
func TestKernels(t *testing.T) {
	if !hasAVX2 {
		t.Skip("this processor has no AVX2")
	}
	for _, k := range []struct {
		name             string
		split, merge     func(a, b, c *byte, n int)
		splitGo, mergeGo func(a, b, c []byte, first, end int)
	}{
		{"BF16", splitBF16AVX2, mergeBF16AVX2, splitBF16Words, mergeBF16Words},
		{"FP16", splitFP16AVX2, mergeFP16AVX2, splitFP16Words, mergeFP16Words},
	} {
		for _, page := range [][]byte{patterns(), noise(1, 64), noise(2, 64*5), kvPages(t, 1)[0]} {
			n := len(page) / group
			const guard = 32
			filled := func(n int) []byte { return bytes.Repeat([]byte{0xa5}, n+guard) }
			coded, other, codedGo, otherGo := filled(len(page)/2), filled(len(page)/2), filled(len(page)/2), filled(len(page)/2)
			k.split(&coded[0], &other[0], &page[0], n/4)
			k.splitGo(codedGo, otherGo, page, 0, n)
			if !bytes.Equal(coded, codedGo) || !bytes.Equal(other, otherGo) {
				t.Fatalf("%s: %d bytes are split another way", k.name, len(page))
			}
			back, backGo := filled(len(page)), filled(len(page))
			k.merge(&back[0], &coded[0], &other[0], n/4)
			k.mergeGo(backGo, coded, other, 0, n)
			if !bytes.Equal(back, backGo) || !bytes.Equal(back[:len(page)], page) {
				t.Fatalf("%s: %d bytes are merged another way", k.name, len(page))
			}
		}
	}
}

// TestUnpackKernel has the assembly leave streams and bytes as the Go code does, after any number of steps and on any bits.
func TestUnpackKernel(t *testing.T) {
	if !hasBMI {
		t.Skip("this processor has no BMI")
	}
	var h huffScratch
	for seed := range uint64(100) {
		b := skewed(seed, 4000+int(seed), 3+int(seed*5%200), []float64{0.2, 0.5, 0.6, 0.9, 0.97}[seed%5])
		if out := h.appendHuffman(nil, b, histogram(&h.counts, b), tableLog); len(out) == 0 || len(out) >= len(b) {
			continue
		} else if err := h.block(make([]byte, len(b)), out, blockHuffman); err != nil { // fills the table
			t.Fatal(err)
		}
		src, dst, dstGo := noise(seed, 2000), make([]byte, 4*1000), make([]byte, 4*1000)
		var streams [4]stream
		for i := range streams {
			streams[i] = stream{in: 500*i + 400 + int(seed%50), used: (int(seed) + i) % 8, from: 500 * i, at: 1000 * i, end: 1000 * (i + 1)}
		}
		streamsGo, n := streams, 1+int(seed%40)
		for i := range streams {
			n = min(n, streams[i].steps())
		}
		unpackBMI2(&streams, &h.out.many, &dst[0], &src[0], n)
		for i := range streamsGo {
			for range n {
				streamsGo[i].step(&h.out.many, dstGo, src)
			}
		}
		if streams != streamsGo {
			t.Fatalf("seed %d, %d steps: %+v, want %+v", seed, n, streams, streamsGo)
		}
		for i, s := range streams { // what stands behind at is undefined
			if !bytes.Equal(dst[1000*i:s.at], dstGo[1000*i:s.at]) {
				t.Fatalf("seed %d, %d steps: stream %d has other bytes", seed, n, i)
			}
		}
	}
}

// TestPackKernel has the assembly write what the Go code does and no more than seven bytes behind that, for bytes that have no code as well.
func TestPackKernel(t *testing.T) {
	if !hasBMI {
		t.Skip("this processor has no BMI")
	}
	var h huffScratch
	for seed := range uint64(200) {
		b := skewed(seed, 5000, 2+int(seed*5%255), []float64{0.2, 0.5, 0.6, 0.9, 0.999}[seed%5])
		counts := histogram(&h.counts, b)
		if counts[b[0]] == uint32(len(b)) {
			continue
		}
		h.codes.lengths(counts, tableLog+int(seed%2)*3, &h.sorter)
		h.codes.assign()
		seg := b[:8+8*int(seed)]
		if seed%3 == 0 {
			seg = noise(seed, len(seg))
		}
		room := 2*len(seg) + 16
		buf, bufGo := bytes.Repeat([]byte{0xa5}, room), bytes.Repeat([]byte{0xa5}, room)
		p := packer{bits: seed << 57, n: seed % 8}
		pGo := p
		n := packBMI2(&p, &h.codes, &buf[0], &seg[0], len(seg)/8)
		if nGo := pGo.words(&h.codes, bufGo, seg); n != nGo || p.n != pGo.n || p.bits>>(64-p.n) != pGo.bits>>(64-p.n) || !bytes.Equal(buf[:n], bufGo[:n]) {
			t.Fatalf("seed %d: %d bytes and %+v, want %d and %+v", seed, n, p, nGo, pGo)
		}
		if !bytes.Equal(buf[n+8:], bytes.Repeat([]byte{0xa5}, room-n-8)) {
			t.Fatalf("seed %d: bytes behind %d changed", seed, n)
		}
	}
}
