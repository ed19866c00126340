package refengine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"time"
)

// computer is what an engine runs on: the transformer, or an imitation of a
// GPU.
type computer interface {
	newMemory() memory
	// prefillSecondsPerToken measures, or 0 if it can't.
	prefillSecondsPerToken(ctx context.Context) float64
}

// memory is the KV of one sequence. Positions are those of tokens, which is
// the whole sequence as far as it is known; keys are the keys of its first
// whole blocks, at least those before from.
type memory interface {
	// prefill evaluates tokens[from:to] and keeps their KV. It returns the step
	// after the last one if step is set.
	prefill(ctx context.Context, tokens []int, keys [][]byte, from, to int, step bool) (Step, error)
	// decode is prefill of one generated token, always with a step.
	decode(ctx context.Context, tokens []int, keys [][]byte, at int) (Step, error)
	// evaluate returns the step after position at from the KV that is there.
	evaluate(ctx context.Context, tokens []int, keys [][]byte, at int) (Step, error)
	// truncate forgets positions from n on.
	truncate(n int)
	// perturb applies a watermark to a block.
	perturb(block int, key []byte, w Watermark)
	// exportBlock writes the share of rank in world of a block's pages.
	exportBlock(block int, key []byte, rank, world int, dst []byte)
	// importBlock takes a block's pages and returns how many are known bad.
	importBlock(block int, key []byte, src []byte) (damaged int)
}

// transformer computes.
type transformer struct{ model *model }

func (t transformer) newMemory() memory {
	return &tensorMemory{model: t.model, cache: newKVCache(t.model.cfg)}
}

// warmupTokens is the length of the prefill that is measured at Open.
const warmupTokens = 64

func (t transformer) prefillSecondsPerToken(ctx context.Context) float64 {
	n := min(warmupTokens, t.model.cfg.MaxTokens)
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = i % t.model.cfg.Vocab
	}
	cache := newKVCache(t.model.cfg)
	var took float64
	for range 2 { // the first touches the memory
		start := time.Now()
		t.model.forward(cache, tokens, 0, true, false)
		took = time.Since(start).Seconds()
		if ctx.Err() != nil {
			break
		}
	}
	return took / float64(n)
}

type tensorMemory struct {
	model *model
	cache *kvCache
}

func (m *tensorMemory) prefill(ctx context.Context, tokens []int, _ [][]byte, from, to int, step bool) (Step, error) {
	if ctx.Err() != nil {
		return Step{}, context.Cause(ctx)
	}
	logits := m.model.forward(m.cache, tokens[from:to], from, true, step)
	if !step {
		return Step{}, nil
	}
	return stepOf(logits), nil
}

func (m *tensorMemory) decode(ctx context.Context, tokens []int, keys [][]byte, at int) (Step, error) {
	return m.prefill(ctx, tokens, keys, at, at+1, true)
}

func (m *tensorMemory) evaluate(ctx context.Context, tokens []int, _ [][]byte, at int) (Step, error) {
	if ctx.Err() != nil {
		return Step{}, context.Cause(ctx)
	}
	return stepOf(m.model.forward(m.cache, tokens[at:at+1], at, false, true)), nil
}

func (m *tensorMemory) truncate(n int) { m.cache.truncate(n) }

func (m *tensorMemory) perturb(block int, key []byte, w Watermark) {
	m.cache.perturb(block, keyed(w.Seed, key), float32(w.Scale))
}

func (m *tensorMemory) exportBlock(block int, _ []byte, rank, world int, dst []byte) {
	heads := m.model.cfg.KVHeads
	m.cache.exportBlock(block, rank*heads/world, (rank+1)*heads/world, dst)
}

func (m *tensorMemory) importBlock(block int, _ []byte, src []byte) int {
	m.cache.importBlock(block, src)
	return 0
}

// stepOf picks the greedy token and hashes the logits.
func stepOf(logits []float32) Step {
	b := make([]byte, 0, 4*len(logits))
	for _, v := range logits {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	sum := sha256.Sum256(b)
	return Step{Token: argmax(logits), LogitsHash: hex.EncodeToString(sum[:])}
}

// keyed is a generator that is a function of seed and key.
func keyed(seed uint64, key []byte) *rand.Rand {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(append([]byte("kvferry keyed "), key...), seed))
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
}
