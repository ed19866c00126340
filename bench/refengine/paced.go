package refengine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// pacedGPU takes the time of a GPU and computes nothing. A block's pages are a
// function of its key, a token one of the tokens before it.
type pacedGPU struct {
	cfg  ModelConfig
	pace Pace
	root []byte
}

func (g pacedGPU) newMemory() memory { return &pacedMemory{gpu: g} }

func (g pacedGPU) prefillSecondsPerToken(context.Context) float64 {
	return 1 / g.pace.PrefillTokensPerSecond
}

type pacedMemory struct{ gpu pacedGPU }

func (m *pacedMemory) prefill(ctx context.Context, tokens []int, keys [][]byte, from, to int, step bool) (Step, error) {
	if err := sleep(ctx, float64(to-from)/m.gpu.pace.PrefillTokensPerSecond); err != nil || !step {
		return Step{}, err
	}
	return m.gpu.step(tokens, keys, to-1), nil
}

func (m *pacedMemory) decode(ctx context.Context, tokens []int, keys [][]byte, at int) (Step, error) {
	if err := sleep(ctx, 1/m.gpu.pace.DecodeTokensPerSecond); err != nil {
		return Step{}, err
	}
	return m.gpu.step(tokens, keys, at), nil
}

func (m *pacedMemory) evaluate(ctx context.Context, tokens []int, keys [][]byte, at int) (Step, error) {
	return m.prefill(ctx, tokens, keys, at, at+1, true)
}

func (m *pacedMemory) truncate(int) {}

func (m *pacedMemory) perturb(int, []byte, Watermark) {}

func (m *pacedMemory) exportBlock(_ int, key []byte, rank, world int, dst []byte) {
	cache := kvCache{cfg: m.gpu.cfg}
	page := m.gpu.block(key)
	heads := m.gpu.cfg.KVHeads
	for layer := range m.gpu.cfg.Layers {
		for head := rank * heads / world; head < (rank+1)*heads/world; head++ {
			k, v := cache.headPages(page, layer, head)
			kTo, vTo := cache.headPages(dst, layer, head)
			copy(kTo, k)
			copy(vTo, v)
		}
	}
}

func (m *pacedMemory) importBlock(_ int, key []byte, src []byte) (damaged int) {
	want, size := m.gpu.block(key), m.gpu.cfg.pageBytes()
	for at := 0; at < len(want); at += size {
		if !bytes.Equal(want[at:at+size], src[at:at+size]) {
			damaged++
		}
	}
	return damaged
}

// block is the content of a block's pages: finite bfloat16 values between 0.25
// and 2 in size.
func (g pacedGPU) block(key []byte) []byte {
	r := keyed(g.pace.Seed, key)
	b := make([]byte, (g.cfg.blockBytes()+7)&^7)
	const signMantissa, exponents = 0x80ff_80ff_80ff_80ff, 0x3e80_3e80_3e80_3e80
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], r.Uint64()&signMantissa+exponents)
	}
	return b[:g.cfg.blockBytes()]
}

// step is the token after position at: a function of the key of the whole
// blocks before it and of the tokens since.
func (g pacedGPU) step(tokens []int, keys [][]byte, at int) Step {
	whole := at / g.cfg.BlockTokens
	parent := g.root
	if whole > 0 {
		parent = keys[whole-1]
	}
	state := nextKey(parent, tokens[whole*g.cfg.BlockTokens:at+1])
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(state, g.pace.Seed))
	return Step{Token: int(binary.LittleEndian.Uint64(sum[:]) % uint64(g.cfg.Vocab)), LogitsHash: hex.EncodeToString(sum[:])}
}

// sleep waits for s seconds or for ctx, whose cause it returns.
func sleep(ctx context.Context, s float64) error {
	t := time.NewTimer(time.Duration(s * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
