package refengine

import (
	"errors"
	"fmt"
)

// ModelConfig is the shape of the transformer. Hidden is independent of
// KVHeads × HeadDim, so that a narrow model can have the KV cache of a large
// one.
type ModelConfig struct {
	Layers      int     `json:"layers"`       // 1 to 1024; zero is 2
	Hidden      int     `json:"hidden"`       // width of the residual stream, 1 to 65536; zero is 64
	QueryHeads  int     `json:"query_heads"`  // a multiple of KVHeads, to 1024; zero is KVHeads
	KVHeads     int     `json:"kv_heads"`     // 1 to 1024; zero is 2
	HeadDim     int     `json:"head_dim"`     // even, 2 to 1024; zero is 32
	FFN         int     `json:"ffn"`          // width of the SwiGLU layer, 1 to 262144; zero is 2 × Hidden
	Vocab       int     `json:"vocab"`        // tokens are 0 to Vocab-1, 2 to 2^20; zero is 512
	RopeBase    float64 `json:"rope_base"`    // base of the rotary frequencies, above 1; zero is 500000
	Seed        uint64  `json:"seed"`         // of the weights; every value is a seed
	MaxTokens   int     `json:"max_tokens"`   // longest sequence, to 2^20; zero is 2048
	BlockTokens int     `json:"block_tokens"` // a power of two, 1 to 64; zero is 16
	TiedHead    bool    `json:"tied_head"`    // the embedding is also the output matrix
}

// DemoModel has the KV shape of Llama-3.1-70B (80 layers, 8 KV heads of 128,
// BF16, 16 tokens a block: 64 KiB pages, 5 MiB blocks) and a residual stream
// of 64. Its weights take about 93 MiB, its cache 640 KiB a token.
func DemoModel() ModelConfig {
	return ModelConfig{
		Layers: 80, Hidden: 64, QueryHeads: 8, KVHeads: 8, HeadDim: 128, FFN: 128,
		Vocab: 512, RopeBase: 500000, Seed: 1, MaxTokens: 2048, BlockTokens: 16,
	}
}

func (c ModelConfig) withDefaults() ModelConfig {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Layers, 2)
	def(&c.Hidden, 64)
	def(&c.KVHeads, 2)
	def(&c.QueryHeads, c.KVHeads)
	def(&c.HeadDim, 32)
	def(&c.FFN, 2*c.Hidden)
	def(&c.Vocab, 512)
	def(&c.MaxTokens, 2048)
	def(&c.BlockTokens, 16)
	if c.RopeBase == 0 {
		c.RopeBase = 500000
	}
	return c
}

// maxBlocks is how many block keys one call to the daemon carries.
const maxBlocks = 1 << 16

// maxParameters bounds the weights, 4 bytes each.
const maxParameters = 1 << 30

// Validate reports every field out of range, joined. Zero fields are judged by
// their defaults.
func (c ModelConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("refengine: model %s %d: want %d to %d, or 0 for the default", field, v, low, high))
		}
	}
	check("layers", c.Layers, 1, 1024)
	check("hidden", c.Hidden, 1, 1<<16)
	check("query_heads", c.QueryHeads, 1, 1024)
	check("kv_heads", c.KVHeads, 1, 1024)
	check("head_dim", c.HeadDim, 2, 1024)
	check("ffn", c.FFN, 1, 1<<18)
	check("vocab", c.Vocab, 2, 1<<20)
	check("max_tokens", c.MaxTokens, 1, 1<<20)
	check("block_tokens", c.BlockTokens, 1, segmentTokens)
	if c.HeadDim%2 != 0 {
		errs = append(errs, fmt.Errorf("refengine: model head_dim %d: want an even number, rotary embedding turns pairs", c.HeadDim))
	}
	if c.BlockTokens&(c.BlockTokens-1) != 0 {
		errs = append(errs, fmt.Errorf("refengine: model block_tokens %d: want a power of two up to %d", c.BlockTokens, segmentTokens))
	}
	if c.KVHeads > 0 && c.QueryHeads%c.KVHeads != 0 {
		errs = append(errs, fmt.Errorf("refengine: model query_heads %d: want a multiple of kv_heads %d", c.QueryHeads, c.KVHeads))
	}
	if c.BlockTokens > 0 && c.MaxTokens/c.BlockTokens > maxBlocks {
		errs = append(errs, fmt.Errorf("refengine: model max_tokens %d: want at most %d blocks of %d tokens", c.MaxTokens, maxBlocks, c.BlockTokens))
	}
	if !(c.RopeBase > 1) || c.RopeBase > 1e12 {
		errs = append(errs, fmt.Errorf("refengine: model rope_base %v: want above 1, at most 1e12, or 0 for 500000", c.RopeBase))
	}
	if len(errs) == 0 && c.parameters() > maxParameters {
		errs = append(errs, fmt.Errorf("refengine: model of %d parameters: at most %d are held in memory; make it narrower", c.parameters(), maxParameters))
	}
	return errors.Join(errs...)
}

// parameters is the number of weights, for a config with defaults.
func (c ModelConfig) parameters() int {
	q, kv := c.QueryHeads*c.HeadDim, c.KVHeads*c.HeadDim
	layer := 2*c.Hidden + c.Hidden*(2*q+2*kv) + 3*c.Hidden*c.FFN
	n := c.Layers*layer + c.Vocab*c.Hidden + c.Hidden
	if !c.TiedHead {
		n += c.Vocab * c.Hidden
	}
	return n
}

// pageBytes is the size of one block's K and V of one layer in BF16.
func (c ModelConfig) pageBytes() int { return 2 * c.KVHeads * c.BlockTokens * c.HeadDim * 2 }

func (c ModelConfig) blockBytes() int { return c.Layers * c.pageBytes() }

// weightsVersion names everything that decides the weights and is not in the
// KV shape, for the layout pin.
func (c ModelConfig) weightsVersion() string {
	head := "separate"
	if c.TiedHead {
		head = "tied"
	}
	return fmt.Sprintf("recipe=%d,seed=%d,hidden=%d,query_heads=%d,ffn=%d,vocab=%d,head=%s", weightsRecipe, c.Seed, c.Hidden, c.QueryHeads, c.FFN, c.Vocab, head)
}
