package refengine

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

// TestPrefill: the blocks that Prefill gives are those of a cache that was filled in one step, to the last whole block.
func TestPrefill(t *testing.T) {
	cfg := small()
	tokens := prompt(3, 5*cfg.BlockTokens+3, cfg.Vocab)
	m, cache := newModel(cfg), newKVCache(cfg)
	m.forward(cache, tokens, 0, true, false)
	n := 0
	want := make([]byte, cfg.blockBytes())
	if err := Prefill(t.Context(), cfg, tokens, func(block []byte) error {
		cache.exportBlock(n, 0, cfg.KVHeads, want)
		if !bytes.Equal(block, want) {
			t.Errorf("block %d differs", n)
		}
		if len(block) != cfg.Layers*cfg.PageBytes() || bytes.Count(block, []byte{0}) > len(block)/10 {
			t.Errorf("block %d has %d bytes, %d of them zero", n, len(block), bytes.Count(block, []byte{0}))
		}
		n++
		return nil
	}); err != nil || n != 5 {
		t.Errorf("%d blocks, %v", n, err)
	}
}

func TestPrefillEnds(t *testing.T) {
	cfg := small()
	tokens := prompt(3, 4*cfg.BlockTokens, cfg.Vocab)
	calls := 0
	count := func([]byte) error { calls++; return nil }

	ctx, cancel := context.WithCancelCause(t.Context())
	stop, full := errors.New("stop"), errors.New("full")
	if err := Prefill(ctx, cfg, tokens, func([]byte) error { calls++; cancel(stop); return nil }); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("cancelled in the first block: %v after %d", err, calls)
	}
	if err := Prefill(t.Context(), cfg, tokens, func([]byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("a yield that fails: %v", err)
	}
	calls = 0
	for _, tt := range []struct {
		cfg    ModelConfig
		tokens []int
		want   string
	}{
		{ModelConfig{Layers: -1}, tokens, "layers"},
		{cfg, []int{cfg.Vocab}, "token 256"},
		{cfg, nil, "empty"},
		{cfg, make([]int, cfg.MaxTokens+1), "max_tokens"},
	} {
		if err := Prefill(t.Context(), tt.cfg, tt.tokens, count); err == nil || !strings.Contains(err.Error(), tt.want) || calls > 0 {
			t.Errorf("%v, want %q; %d blocks", err, tt.want, calls)
		}
	}
}
