package crossover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/kvstore"
)

// prefiller recomputes prefixes that it has not seen before.
type prefiller interface {
	// prefill takes what n tokens take, and returns the time in seconds.
	prefill(ctx context.Context, n int64) (seconds float64, err error)
	// speed is what is known before anything is measured; ok is false when that is nothing.
	speed() (secondsPerToken float64, ok bool)
	// describe says what recomputes, for people.
	describe() string
	close() error
}

// openPrefiller opens the engine that c names. The destination's daemon is that of the bed.
func openPrefiller(ctx context.Context, c Config, preset kvstore.Preset, destination *bed.Node) (prefiller, error) {
	var p prefiller
	var err error
	switch c.Engine {
	case EngineReal:
		p, err = openReal(ctx, c, preset, destination)
	case EngineOpenAI:
		p, err = openOpenAI(ctx, c)
	default:
		p = paced(c.PrefillSecondsPerToken)
	}
	if err != nil {
		return nil, err // not p, which holds a nil pointer and is not nil
	}
	return p, nil
}

// paced takes the time of a GPU and computes nothing: seconds a token.
type paced float64

func (p paced) prefill(ctx context.Context, n int64) (float64, error) {
	began := time.Now()
	err := pause(ctx, time.Duration(float64(p)*float64(n)*float64(time.Second)))
	return time.Since(began).Seconds(), err
}

func (p paced) speed() (float64, bool) { return float64(p), true }

func (p paced) describe() string { return fmt.Sprintf("paced, %.6g us a token", float64(p)*1e6) }

func (p paced) close() error { return nil }

// realVocab and realHidden are of the reference engine's narrow model, whose KV cache is as large as the preset's.
const (
	realVocab  = 512
	realHidden = 64
)

// realEngine computes every prefix with the reference engine.
type realEngine struct {
	e   *refengine.Engine
	rng *rand.Rand
	max int64
}

func openReal(ctx context.Context, c Config, preset kvstore.Preset, destination *bed.Node) (*realEngine, error) {
	l := preset.Layout
	longest := c.MaxPrefix
	if n := len(c.Lengths); n > 0 {
		longest = max(longest, c.Lengths[n-1])
	}
	e, err := refengine.Open(ctx, refengine.Config{
		Addr: destination.Target(), DialOptions: destination.DialOptions(), EngineID: engineID + "-real", ArenaBytes: l.BlockBytes(), KeepSequences: -1,
		PrefillSecondsPerToken: -1,
		Model: refengine.ModelConfig{
			Layers: l.Layers, Hidden: realHidden, QueryHeads: l.KVHeads, KVHeads: l.KVHeads, HeadDim: l.HeadDim, Vocab: realVocab, Seed: c.Seed + 1,
			BlockTokens: l.BlockTokens, MaxTokens: int(longest) + leastHeldOut*l.BlockTokens + 1, // the calibration goes beyond the sweep
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open the reference engine: %w", err)
	}
	return &realEngine{e: e, rng: rand.New(rand.NewPCG(c.Seed, 7)), max: longest}, nil
}

func (r *realEngine) prefill(ctx context.Context, n int64) (float64, error) {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = r.rng.IntN(realVocab)
	}
	res, err := r.e.Generate(ctx, refengine.Request{Tokens: tokens, MaxNew: 1})
	if err != nil {
		return 0, fmt.Errorf("prefill %d tokens: %w", n, err)
	}
	return res.PrefillSeconds, nil
}

func (r *realEngine) speed() (float64, bool) { return 0, false }

func (r *realEngine) describe() string {
	return fmt.Sprintf("reference engine, width %d, on this processor", realHidden)
}

func (r *realEngine) close() error { return r.e.Close() }
