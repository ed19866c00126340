package kvdump

import (
	"context"
	_ "embed" // text.txt
	"fmt"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/refengine"
)

//go:embed text.txt
var defaultText []byte

// Engine says what the reference engine computes. Zero means the documented default.
type Engine struct {
	// Model is the transformer. All zero: refengine.DemoModel, whose KV has the shape of Llama-3.1-70B's.
	Model refengine.ModelConfig
	// Text is prefilled: each byte is a token, modulo the vocabulary. It is not changed. Default: some 1,500 bytes of prose and code.
	Text []byte
}

// Compute has the reference engine prefill a text and records the blocks of its cache. Errors: *InputError; fs.ErrExist for a file that is there;
// those of the model, of the file system; ctx's cause.
func Compute(ctx context.Context, c Config, e Engine) (*Summary, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.MaxBytes > MaxComputeBytes {
		return nil, &InputError{"max bytes", fmt.Sprint(c.MaxBytes), fmt.Sprintf("at most %d for what is computed here, in twice as much memory", int64(MaxComputeBytes))}
	}
	if (e.Model == refengine.ModelConfig{}) {
		e.Model = refengine.DemoModel()
	}
	if len(e.Text) == 0 {
		e.Text = defaultText
	}
	m := e.Model.Defaults()
	if err := m.Validate(); err != nil {
		return nil, &InputError{"model", "not a transformer that can be", err.Error()}
	}
	h := kvfile.Header{
		Model: "kvferry/refengine", Weights: fmt.Sprintf("hidden=%d,ffn=%d,vocab=%d,seed=%d", m.Hidden, m.FFN, m.Vocab, m.Seed), DType: kvfile.BF16, Kind: kvfile.GQA,
		Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Tokens: m.BlockTokens, PageBytes: m.PageBytes(),
	}
	have := len(e.Text) / m.BlockTokens
	if have == 0 {
		return nil, &InputError{"text", fmt.Sprintf("%d bytes", len(e.Text)), fmt.Sprintf("at least a block of %d", m.BlockTokens)}
	}
	n, err := c.blocks(h, have)
	if err != nil {
		return nil, err
	}
	tokens := make([]int, n*m.BlockTokens)
	for i := range tokens {
		tokens[i] = int(e.Text[i]) % m.Vocab
	}
	m.MaxTokens = max(m.MaxTokens, len(tokens))
	h.Source = fmt.Sprintf("reference engine, prefill of %d tokens", len(tokens))
	r, err := c.begin(h, n)
	if err != nil {
		return nil, err
	}
	s, err := r.end(refengine.Prefill(ctx, m, tokens, r.block))
	if s != nil {
		s.Left = have - n
	}
	return s, err
}
