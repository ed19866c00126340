package refengine

import (
	"math"
	"runtime"
	"sync"

	"github.com/viterin/vek/vek32"
)

// parallelWork is the number of multiplications from which a step is spread
// over processors; below it starting goroutines costs more than it saves.
const parallelWork = 1 << 16

// split calls f over [0, n) in at most GOMAXPROCS contiguous pieces, at once if
// the work is worth it, and returns when all are done. What f computes for an
// index must not depend on the pieces.
func split(n, work int, f func(low, high int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	if workers < 2 || work < parallelWork {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { f(w*n/workers, (w+1)*n/workers) })
	}
	f(0, n/workers)
	wg.Wait()
}

// forward evaluates tokens at positions pos, pos+1, ... against the cache and
// returns the logits of the last one, or nil if logits is false. With write it
// first stores their keys and values, rounded to bfloat16, and reads them
// back; without it the cache must hold these positions.
//
// Every number of a token is computed in an order that depends on its position
// alone, so the result does not depend on how tokens are batched.
func (m *model) forward(c *kvCache, tokens []int, pos int, write, logits bool) []float32 {
	cfg, n := m.cfg, len(tokens)
	c.grow(pos + n)
	queryDim, kvDim := cfg.QueryHeads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim
	x := make([]float32, n*cfg.Hidden) // the residual stream
	h := make([]float32, n*cfg.Hidden)
	q := make([]float32, n*queryDim)
	k, v := make([]float32, n*kvDim), make([]float32, n*kvDim)
	attended := make([]float32, n*queryDim)
	gate, up := make([]float32, n*cfg.FFN), make([]float32, n*cfg.FFN)
	for i, t := range tokens {
		copy(x[i*cfg.Hidden:(i+1)*cfg.Hidden], m.embedding[t*cfg.Hidden:])
	}
	for l := range m.layers {
		w := &m.layers[l]
		rmsNorm(h, x, w.attnNorm)
		multiply(q, w.q, h, n, queryDim, cfg.Hidden)
		if write {
			multiply(k, w.k, h, n, kvDim, cfg.Hidden)
			multiply(v, w.v, h, n, kvDim, cfg.Hidden)
		}
		for i := range n {
			m.rotate(q[i*queryDim:(i+1)*queryDim], pos+i)
			if !write {
				continue
			}
			m.rotate(k[i*kvDim:(i+1)*kvDim], pos+i)
			for head := range cfg.KVHeads {
				at := i*kvDim + head*cfg.HeadDim
				c.store(l, head, pos+i, k[at:at+cfg.HeadDim], v[at:at+cfg.HeadDim])
			}
		}
		m.attend(attended, q, c, l, n, pos)
		multiply(h, w.o, attended, n, cfg.Hidden, queryDim)
		addTo(x, h)

		rmsNorm(h, x, w.ffnNorm)
		multiply(gate, w.gate, h, n, cfg.FFN, cfg.Hidden)
		multiply(up, w.up, h, n, cfg.FFN, cfg.Hidden)
		for i, g := range gate {
			gate[i] = g / (1 + float32(math.Exp(-float64(g)))) * up[i]
		}
		multiply(h, w.down, gate, n, cfg.Hidden, cfg.FFN)
		addTo(x, h)
	}
	if !logits {
		return nil
	}
	last := h[:cfg.Hidden]
	rmsNorm(last, x[(n-1)*cfg.Hidden:], m.norm)
	out := make([]float32, cfg.Vocab)
	multiply(out, m.head, last, 1, cfg.Vocab, cfg.Hidden)
	return out
}

// multiply sets y[i] = w·x[i] for n vectors: w is [rows][columns], x is
// [n][columns], y is [n][rows].
func multiply(y, w, x []float32, n, rows, columns int) {
	split(rows, n*rows*columns, func(low, high int) {
		for r := low; r < high; r++ {
			row := w[r*columns : (r+1)*columns]
			for i := range n {
				y[i*rows+r] = vek32.Dot(row, x[i*columns:(i+1)*columns])
			}
		}
	})
}

func addTo(x, y []float32) {
	for i := range x {
		x[i] += y[i]
	}
}

// rmsNorm normalises vectors of len(gain). Source: Zhang and Sennrich, "Root
// Mean Square Layer Normalization", 2019, eq. 4.
func rmsNorm(dst, src, gain []float32) {
	for len(src) >= len(gain) {
		var sum float64
		for _, v := range src[:len(gain)] {
			sum += float64(v) * float64(v)
		}
		scale := float32(1 / math.Sqrt(sum/float64(len(gain))+1e-5))
		for i, g := range gain {
			dst[i] = src[i] * scale * g
		}
		dst, src = dst[len(gain):], src[len(gain):]
	}
}

// rotate applies rotary positions to whole heads in place.
func (m *model) rotate(x []float32, pos int) {
	half := m.cfg.HeadDim / 2
	cos, sin := m.ropeCos[pos*half:(pos+1)*half], m.ropeSin[pos*half:(pos+1)*half]
	for ; len(x) > 0; x = x[2*half:] {
		for i := range half {
			a, b := x[i], x[i+half]
			x[i], x[i+half] = a*cos[i]-b*sin[i], a*sin[i]+b*cos[i]
		}
	}
}

// attend computes causal attention of n tokens from pos on, each over the
// cache up to and including itself.
func (m *model) attend(dst, q []float32, c *kvCache, layer, n, pos int) {
	cfg := m.cfg
	heads, dim := cfg.QueryHeads, cfg.HeadDim
	work := 2 * n * heads * dim * (pos + n)
	// Heads are the outer index: a piece walks few heads over all tokens, so
	// their keys and values stay in cache.
	split(heads*n, work, func(low, high int) {
		scores := make([]float32, len(c.segments)*segmentTokens)
		for u := low; u < high; u++ {
			head, i := u/n, u%n
			at := i*heads*dim + head*dim
			m.attendOne(dst[at:at+dim], q[at:at+dim], c, layer, head/(heads/cfg.KVHeads), pos+i+1, scores)
		}
	})
}

// attendOne is attention of one query over the first n positions of one KV
// head. scores is scratch space for whole segments.
func (m *model) attendOne(dst, q []float32, c *kvCache, layer, kvHead, n int, scores []float32) {
	dim := m.cfg.HeadDim
	scale := float32(1 / math.Sqrt(float64(dim)))
	top := float32(math.Inf(-1))
	for s, t := 0, 0; t < n; s++ {
		k, _ := c.head(c.segments[s], layer, kvHead)
		for end := min(n, t+segmentTokens); t < end; t++ {
			row := t % segmentTokens * dim
			scores[t] = vek32.Dot(q, k[row:row+dim]) * scale
			top = max(top, scores[t])
		}
	}
	var sum float64
	for t, v := range scores[:n] {
		e := math.Exp(float64(v - top))
		scores[t] = float32(e)
		sum += e
	}
	// Dot takes 32 elements at a time: the tail is padded with weight 0.
	padded := (n + 31) &^ 31
	clear(scores[n:padded])
	clear(dst)
	for s, t := 0, 0; t < padded; s++ {
		_, v := c.head(c.segments[s], layer, kvHead)
		width := min(padded-t, segmentTokens)
		weights := scores[t : t+width]
		for i := range dst {
			dst[i] += vek32.Dot(weights, v[i*segmentTokens:i*segmentTokens+width])
		}
		t += width
	}
	for i := range dst {
		dst[i] *= float32(1 / sum)
	}
}

// argmax is the greedy token: the first of the largest logits; what is not a
// number never wins.
func argmax(logits []float32) int {
	best, at := float32(math.Inf(-1)), 0
	for i, v := range logits {
		if v > best {
			best, at = v, i
		}
	}
	return at
}
