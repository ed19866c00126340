package repair

import (
	"sync"

	"github.com/klauspost/reedsolomon"
)

// The code is one Reed-Solomon code over 216 data symbols, Cauchy matrix. A group
// of n packets is that code with all other symbols zero. Its parity symbol i does
// not depend on how many there are, so the encoder of p symbols makes the first p
// of any larger one.

// encoders holds the encoder of p symbols at p-1, made when first used.
var encoders [MaxParity]func() reedsolomon.Encoder

// field holds the arithmetic of GF(2^8), made when first used: the few products
// of a small system do not need more.
var field = sync.OnceValue(newGalois)

//nolint:gochecknoinits // fills a constant table of lazy values
func init() {
	for i := range encoders {
		encoders[i] = sync.OnceValue(func() reedsolomon.Encoder {
			// One goroutine, and inputs below the size from which it would build a plan: no allocation a call.
			e, err := reedsolomon.New(dataSymbols, i+1, reedsolomon.WithCauchyMatrix(), reedsolomon.WithMaxGoroutines(1))
			if err != nil {
				panic("BUG: repair: encoder: " + err.Error())
			}
			return e
		})
	}
}

// A folder adds packets to parity; it holds the views that the encoder wants.
type folder struct{ views [MaxParity][]byte }

// fold adds the packet of n bytes and number index in its group, as a ring's slot
// has it, to parity, symbols that are equally long: the whole to one data symbol, or
// what is beyond half bytes to a second. False: it is too long.
func (f *folder) fold(e reedsolomon.Encoder, slot []byte, n, index, half int, single bool, parity [][]byte) bool {
	room := 2 * half
	if single {
		room = min(half, len(parity[0]))
	}
	if lengthBytes+n > room {
		return false
	}
	slot = slot[:min(len(slot), room)]
	f.part(e, slot[:min(half, len(slot))], index, parity)
	if len(slot) > half {
		f.part(e, slot[half:], MaxGroup+index, parity)
	}
	return true
}

func (f *folder) part(e reedsolomon.Encoder, symbol []byte, index int, parity [][]byte) {
	views := f.views[:len(parity)]
	for i, p := range parity {
		views[i] = p[:len(symbol)]
	}
	if err := e.EncodeIdx(symbol, index, views); err != nil {
		panic("BUG: repair: encode: " + err.Error())
	}
}

type galois struct {
	log [256]int
	exp [510]byte
	// matrix[i][j] is the coefficient of data symbol j in parity symbol i.
	matrix [MaxParity][dataSymbols]byte
}

func newGalois() *galois {
	g := new(galois)
	x := 1
	for i := range 255 {
		g.exp[i], g.exp[i+255] = byte(x), byte(x)
		g.log[x] = i
		if x <<= 1; x > 255 {
			x ^= 0x11d
		}
	}
	parity := make([][]byte, MaxParity)
	var f folder
	for j := range dataSymbols {
		for i := range parity {
			parity[i] = []byte{0}
		}
		f.part(encoders[MaxParity-1](), []byte{1}, j, parity)
		for i := range parity {
			g.matrix[i][j] = parity[i][0]
		}
	}
	return g
}

func (g *galois) mul(a, b byte) byte {
	if a == 0 || b == 0 {
		return 0
	}
	return g.exp[g.log[a]+g.log[b]]
}

func (g *galois) inverse(a byte) byte { return g.exp[255-g.log[a]] }

// addMul adds c·src to dst, as long as src.
func (g *galois) addMul(dst, src []byte, c byte) {
	if c == 0 {
		return
	}
	var table [256]byte
	for v := 1; v < 256; v++ {
		table[v] = g.exp[g.log[byte(v)]+g.log[c]]
	}
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] ^= table[v]
	}
}

// solve makes of syndromes, the parity symbols of the given rows with all known
// symbols taken off, the data symbols of the given columns, in place and in order.
// Every square part of a Cauchy matrix has an inverse.
func (g *galois) solve(rows, columns []int, syndromes [][]byte) {
	n := len(rows)
	a := make([][]byte, n)
	for i := range a {
		a[i] = make([]byte, n)
		for j := range a[i] {
			a[i][j] = g.matrix[rows[i]][columns[j]]
		}
	}
	for c := range n {
		pivot := c
		for a[pivot][c] == 0 {
			pivot++
		}
		a[c], a[pivot] = a[pivot], a[c]
		syndromes[c], syndromes[pivot] = syndromes[pivot], syndromes[c]
		if inv := g.inverse(a[c][c]); inv != 1 {
			for j := c; j < n; j++ {
				a[c][j] = g.mul(a[c][j], inv)
			}
			g.scale(syndromes[c], inv)
		}
		for i := range n {
			f := a[i][c]
			if i == c || f == 0 {
				continue
			}
			for j := c; j < n; j++ {
				a[i][j] ^= g.mul(f, a[c][j])
			}
			g.addMul(syndromes[i], syndromes[c], f)
		}
	}
}

func (g *galois) scale(b []byte, c byte) {
	for i, v := range b {
		b[i] = g.mul(v, c)
	}
}
