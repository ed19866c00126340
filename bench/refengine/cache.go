package refengine

import (
	"encoding/binary"
	"math/rand/v2"
)

// segmentTokens is how many positions one piece of a cache holds. Attention
// sums values segment by segment, so the order of additions depends on the
// position alone.
const segmentTokens = 64

// kvCache is the engine's own KV memory of one sequence, its "GPU memory":
// float32 values that bfloat16 holds exactly. It grows by segments. Not safe
// for concurrent use.
type kvCache struct {
	cfg      ModelConfig
	segments []*segment
}

// segment holds 64 positions. K is [layers][kvHeads][64][headDim]; V is
// transposed, [layers][kvHeads][headDim][64], so that both products of
// attention are dot products over contiguous memory.
type segment struct {
	k, v []float32
}

func newKVCache(cfg ModelConfig) *kvCache { return &kvCache{cfg: cfg} }

// grow makes room for positions below n.
func (c *kvCache) grow(n int) {
	size := c.cfg.Layers * c.cfg.KVHeads * segmentTokens * c.cfg.HeadDim
	for len(c.segments)*segmentTokens < n {
		c.segments = append(c.segments, &segment{k: make([]float32, size), v: make([]float32, size)})
	}
}

// truncate forgets the positions from n on and zeroes their values: attention
// reads values in groups of 32 with weight 0 beyond the sequence, and 0 times
// what a damaged block may hold is not always 0.
func (c *kvCache) truncate(n int) {
	keep := (n + segmentTokens - 1) / segmentTokens
	if keep < len(c.segments) {
		clear(c.segments[keep:])
		c.segments = c.segments[:keep]
	}
	from := n % segmentTokens
	if from == 0 || keep > len(c.segments) {
		return
	}
	v := c.segments[keep-1].v
	for row := 0; row < len(v); row += segmentTokens {
		clear(v[row+from : row+segmentTokens])
	}
}

// head returns the keys [64][headDim] and values [headDim][64] of one head.
func (c *kvCache) head(seg *segment, layer, head int) (k, v []float32) {
	size := segmentTokens * c.cfg.HeadDim
	at := (layer*c.cfg.KVHeads + head) * size
	return seg.k[at : at+size], seg.v[at : at+size]
}

// store writes one position of one head, rounded to bfloat16.
func (c *kvCache) store(layer, head, pos int, key, value []float32) {
	k, v := c.head(c.segments[pos/segmentTokens], layer, head)
	t := pos % segmentTokens
	row := k[t*c.cfg.HeadDim : (t+1)*c.cfg.HeadDim]
	for i := range row {
		row[i] = roundBF16(key[i])
		v[i*segmentTokens+t] = roundBF16(value[i])
	}
}

// exportBlock writes the heads [low, high) of a block into its pages, laid out
// [layers][K,V][kvHeads][blockTokens][headDim] bf16 little-endian. dst is one
// whole block.
func (c *kvCache) exportBlock(block, low, high int, dst []byte) {
	n, dim := c.cfg.BlockTokens, c.cfg.HeadDim
	seg, first := c.segments[block*n/segmentTokens], block*n%segmentTokens
	for layer := range c.cfg.Layers {
		for head := low; head < high; head++ {
			k, v := c.head(seg, layer, head)
			kPage, vPage := c.headPages(dst, layer, head)
			for t := range n {
				row := k[(first+t)*dim : (first+t+1)*dim]
				for i, x := range row {
					binary.LittleEndian.PutUint16(kPage[(t*dim+i)*2:], bf16(x))
				}
				for i := range dim {
					binary.LittleEndian.PutUint16(vPage[(t*dim+i)*2:], bf16(v[i*segmentTokens+first+t]))
				}
			}
		}
	}
}

// importBlock is the inverse of exportBlock for all heads. Any bits are taken.
func (c *kvCache) importBlock(block int, src []byte) {
	n, dim := c.cfg.BlockTokens, c.cfg.HeadDim
	c.grow((block + 1) * n)
	seg, first := c.segments[block*n/segmentTokens], block*n%segmentTokens
	for layer := range c.cfg.Layers {
		for head := range c.cfg.KVHeads {
			k, v := c.head(seg, layer, head)
			kPage, vPage := c.headPages(src, layer, head)
			for t := range n {
				row := k[(first+t)*dim : (first+t+1)*dim]
				for i := range row {
					row[i] = fromBF16(binary.LittleEndian.Uint16(kPage[(t*dim+i)*2:]))
					v[i*segmentTokens+first+t] = fromBF16(binary.LittleEndian.Uint16(vPage[(t*dim+i)*2:]))
				}
			}
		}
	}
}

// headPages are the bytes of one head's keys and values, [blockTokens][headDim]
// each, in the pages of a block.
func (c *kvCache) headPages(block []byte, layer, head int) (k, v []byte) {
	size := c.cfg.BlockTokens * c.cfg.HeadDim * 2
	at := layer*c.cfg.pageBytes() + head*size
	half := c.cfg.KVHeads * size
	return block[at : at+size], block[at+half : at+half+size]
}

// perturb adds noise, uniform in ±scale, to every value of a block, in the
// order of its pages, and rounds to bfloat16.
func (c *kvCache) perturb(block int, noise *rand.Rand, scale float32) {
	n, dim := c.cfg.BlockTokens, c.cfg.HeadDim
	seg, first := c.segments[block*n/segmentTokens], block*n%segmentTokens
	add := func(x *float32) {
		u := float32(int32(noise.Uint32())) / (1 << 31)
		*x = roundBF16(*x + scale*u)
	}
	for layer := range c.cfg.Layers {
		for head := range c.cfg.KVHeads {
			k, _ := c.head(seg, layer, head)
			for i := first * dim; i < (first+n)*dim; i++ {
				add(&k[i])
			}
		}
		for head := range c.cfg.KVHeads {
			_, v := c.head(seg, layer, head)
			for t := first; t < first+n; t++ {
				for i := range dim {
					add(&v[i*segmentTokens+t])
				}
			}
		}
	}
}
