package refengine

import (
	"math"
	"math/rand/v2"
)

// model is a decoder-only transformer of the Llama shape: RMSNorm before
// attention and before a SwiGLU layer, rotary positions, grouped-query
// attention. Immutable after newModel, so safe for concurrent use.
type model struct {
	cfg       ModelConfig
	embedding []float32 // [vocab][hidden]
	head      []float32 // [vocab][hidden]
	norm      []float32 // [hidden]
	layers    []layer
	ropeCos   []float32 // [maxTokens][headDim/2]
	ropeSin   []float32
}

// layer holds matrices as [rows out][columns in].
type layer struct {
	attnNorm, ffnNorm []float32 // [hidden]
	q                 []float32 // [queryHeads*headDim][hidden]
	k, v              []float32 // [kvHeads*headDim][hidden]
	o                 []float32 // [hidden][queryHeads*headDim]
	gate, up          []float32 // [ffn][hidden]
	down              []float32 // [hidden][ffn]
}

// weightsRecipe changes whenever the same seed gives other weights.
const weightsRecipe = 1

// Scales of the random weights. Attention scores have a deviation of about
// queryGain, so that a position is neither ignored (its weight never vanishes
// in float32) nor the only one heard. All attention layers together add about
// attentionGain times the embedding to the residual stream, all SwiGLU layers
// about ffnGain times. Over a long context attention is nearly the same at every
// position: at 4 the greedy text of the demo model sticks to one token, at 1 it
// repeats seldom and still changes within a few tokens when the KV does.
const (
	queryGain     = 2.0
	attentionGain = 1.0
	ffnGain       = 2.0
	logitGain     = 3.0
	// tiedEmbedding shrinks the embedding where it is also the output matrix: a
	// token that fills the residual stream would predict itself for ever.
	tiedEmbedding = 0.2
)

// newModel draws the weights from the config's seed. The config must be valid.
func newModel(cfg ModelConfig) *model {
	cfg = cfg.withDefaults()
	m := &model{cfg: cfg, layers: make([]layer, cfg.Layers)}
	hidden := float64(cfg.Hidden)
	r := rand.New(rand.NewPCG(cfg.Seed, 0))
	// The gain of the last norm carries the scale of the logits.
	gain := logitGain / math.Sqrt(hidden)
	if cfg.TiedHead {
		m.embedding = normal(r, cfg.Vocab*cfg.Hidden, tiedEmbedding)
		m.head = m.embedding
		gain /= tiedEmbedding
	} else {
		m.embedding = normal(r, cfg.Vocab*cfg.Hidden, 1)
		m.head = normal(r, cfg.Vocab*cfg.Hidden, 1)
	}
	m.norm = normal(r, cfg.Hidden, 0.1)
	for i := range m.norm {
		m.norm[i] = (1 + m.norm[i]) * float32(gain)
	}
	split(cfg.Layers, cfg.parameters(), func(low, high int) {
		for l := low; l < high; l++ {
			m.layers[l] = newLayer(cfg, l)
		}
	})
	m.ropeCos, m.ropeSin = rope(cfg)
	return m
}

func newLayer(cfg ModelConfig, index int) layer {
	r := rand.New(rand.NewPCG(cfg.Seed, uint64(index)+1))
	q, kv := cfg.QueryHeads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim
	in := 1 / math.Sqrt(float64(cfg.Hidden))
	depth := 2 / math.Sqrt(2*float64(cfg.Layers)) // averages shrink what a branch adds: 2 makes up for it
	l := layer{
		attnNorm: normal(r, cfg.Hidden, 0.1),
		ffnNorm:  normal(r, cfg.Hidden, 0.1),
		q:        normal(r, q*cfg.Hidden, queryGain*in),
		k:        normal(r, kv*cfg.Hidden, in),
		v:        normal(r, kv*cfg.Hidden, in),
		o:        normal(r, cfg.Hidden*q, attentionGain*depth/math.Sqrt(float64(q))),
		gate:     normal(r, cfg.FFN*cfg.Hidden, in),
		up:       normal(r, cfg.FFN*cfg.Hidden, in),
		down:     normal(r, cfg.Hidden*cfg.FFN, ffnGain*depth/math.Sqrt(float64(cfg.FFN))),
	}
	for i := range l.attnNorm {
		l.attnNorm[i]++
		l.ffnNorm[i]++
	}
	return l
}

func normal(r *rand.Rand, n int, deviation float64) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(r.NormFloat64() * deviation)
	}
	return w
}

// rope tabulates the rotary angles. Source: Su et al., "RoFormer", 2021, eq.
// 15; pairs are (i, i+headDim/2) as in Llama's published code.
func rope(cfg ModelConfig) (cos, sin []float32) {
	half := cfg.HeadDim / 2
	cos, sin = make([]float32, cfg.MaxTokens*half), make([]float32, cfg.MaxTokens*half)
	for i := range half {
		frequency := math.Pow(cfg.RopeBase, -float64(i)/float64(half))
		for p := range cfg.MaxTokens {
			s, c := math.Sincos(float64(p) * frequency)
			cos[p*half+i], sin[p*half+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
