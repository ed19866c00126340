package refengine

import (
	"context"
	"errors"
	"fmt"
)

// PageBytes is the size of one block's K and V of one layer in BF16. Zero fields have their defaults.
func (c ModelConfig) PageBytes() int { return c.withDefaults().pageBytes() }

// Defaults returns the config with the defaults of zero fields filled in.
func (c ModelConfig) Defaults() ModelConfig { return c.withDefaults() }

// Prefill computes tokens from the first on, without a daemon, and gives each whole block's pages to yield, in order:
// [layers][K,V][kvHeads][blockTokens][headDim] bf16 little-endian, valid until yield returns. Tokens after the last whole block
// are left out. Errors: of the config, of tokens out of range or too many, yield's own, wrapped, and ctx's cause. It holds the model and the
// sequence's cache in memory.
func Prefill(ctx context.Context, cfg ModelConfig, tokens []int, yield func(block []byte) error) error {
	if err := errors.Join(cfg.Validate(), Request{Tokens: tokens}.validate(cfg.withDefaults())); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m := newModel(cfg)
	size := m.cfg.BlockTokens
	cache := newKVCache(m.cfg)
	block := make([]byte, m.cfg.blockBytes())
	for at := 0; at+size <= len(tokens); at += size {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.forward(cache, tokens[at:at+size], at, true, false)
		cache.exportBlock(at/size, 0, m.cfg.KVHeads, block)
		if err := yield(block); err != nil {
			return fmt.Errorf("block %d: %w", at/size, err)
		}
	}
	return nil
}
