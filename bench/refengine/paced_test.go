package refengine

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestPaced(t *testing.T) {
	paced := func(c *Config) {
		c.Pace = &Pace{PrefillTokensPerSecond: 1000, DecodeTokensPerSecond: 100, Seed: 3}
	}
	a, b := newFakeDaemon(t, 64), newFakeDaemon(t, 64)
	source, dest := open(t, a, paced), open(t, b, paced)
	p := prompt(1, 100, 256)
	start := time.Now()
	want := generate(t, source, Request{Tokens: p, MaxNew: 5, Commit: true, UseCache: true})
	if took := time.Since(start); took < 140*time.Millisecond || !want.Paced {
		t.Errorf("took %v, want 140ms or more; paced %v", took, want.Paced)
	}
	if s := source.Status(); s.PrefillSecondsPerToken != 0.001 {
		t.Errorf("told the daemon %v s a token", s.PrefillSecondsPerToken)
	}
	if distinct(want.Tokens) < 3 {
		t.Errorf("tokens %v", want.Tokens)
	}
	a.move(b, want.Keys)
	got := generate(t, dest, Request{Tokens: p, MaxNew: 5, UseCache: true})
	if !sameSteps(want, got) || got.PrefilledTokens != 4 || got.DamagedPages != 0 {
		t.Errorf("moved: prefilled %d, damaged %d, same steps %v", got.PrefilledTokens, got.DamagedPages, sameSteps(want, got))
	}
	// It checks what it loads, byte for byte.
	b.damage(want.Keys[2], func(block []byte) { block[5]++; block[len(block)-1]++ })
	if err := dest.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := generate(t, dest, Request{Tokens: p, MaxNew: 5, UseCache: true}); got.DamagedPages != 2 {
		t.Errorf("%d damaged pages, want 2", got.DamagedPages)
	}
}

// Virtual time: the pace is exact, and tokens don't depend on batches or on
// what was cached.
func TestPacedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := pacedGPU{cfg: small(), pace: Pace{PrefillTokensPerSecond: 500, DecodeTokensPerSecond: 50, Seed: 1}, root: rootKey("x")}
		tokens := prompt(3, 64, 256)
		keys := BlockKeys("x", 16, tokens)
		start := time.Now()
		one, err := g.newMemory().prefill(t.Context(), tokens, keys, 0, 64, true)
		if err != nil || time.Since(start) != 128*time.Millisecond {
			t.Errorf("prefill: %v, after %v", err, time.Since(start))
		}
		two, _ := g.newMemory().decode(t.Context(), tokens, keys[:3], 63)
		if one != two || time.Since(start) != 148*time.Millisecond {
			t.Errorf("decode: %v and %v, after %v", one, two, time.Since(start))
		}
		tokens[0]++
		if three := g.step(tokens, BlockKeys("x", 16, tokens), 63); three == one {
			t.Error("the first token has no influence")
		}
		whole, parts := make([]byte, g.cfg.blockBytes()), make([]byte, g.cfg.blockBytes())
		g.newMemory().exportBlock(0, keys[0], 0, 1, whole)
		g.newMemory().exportBlock(0, keys[0], 1, 2, parts)
		g.newMemory().exportBlock(0, keys[0], 0, 2, parts)
		if !slices.Equal(whole, parts) {
			t.Error("heads written apart differ")
		}
		for i := 1; i < len(whole); i += 2 {
			if e := whole[i] & 0x7f; e != 0x3e && e != 0x3f {
				t.Fatalf("element %d has exponent bits %#x", i/2, e)
			}
		}
	})
}
