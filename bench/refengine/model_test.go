package refengine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is quick and still has grouped queries, several layers and a hidden
// size apart from the heads.
func small() ModelConfig {
	return ModelConfig{Layers: 3, Hidden: 48, QueryHeads: 4, KVHeads: 2, HeadDim: 32, FFN: 64, Vocab: 256, Seed: 5, MaxTokens: 512}.withDefaults()
}

func prompt(seed uint64, n, vocab int) []int {
	r := rand.New(rand.NewPCG(seed, 99))
	p := make([]int, n)
	for i := range p {
		p[i] = r.IntN(vocab)
	}
	return p
}

func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func TestBF16(t *testing.T) {
	tests := []struct {
		in   uint32
		want uint16
	}{
		{0x3f800000, 0x3f80}, // 1
		{0x3f808000, 0x3f80}, // a tie goes to even
		{0x3f818000, 0x3f82},
		{0x3f808001, 0x3f81},
		{0x7f7fffff, 0x7f80}, // the largest float rounds to infinity
		{0x80000000, 0x8000},
		{0x7f800001, 0x7fc0}, // not a number
		{0xff800000, 0xff80},
	}
	for _, tt := range tests {
		if got := bf16(math.Float32frombits(tt.in)); got != tt.want {
			t.Errorf("bf16(%#08x) = %#04x, want %#04x", tt.in, got, tt.want)
		}
	}
	for b := range 1 << 16 {
		if f := fromBF16(uint16(b)); bf16(f) != uint16(b) {
			t.Fatalf("bf16(fromBF16(%#04x)) = %#04x", b, bf16(f))
		}
	}
}

// A token's logits, keys and values do not depend on the batches before it.
func TestBatchingInvariance(t *testing.T) {
	m := newModel(small())
	tokens := prompt(1, 150, m.cfg.Vocab)
	var want []float32
	var wantPages []byte
	for _, batch := range []int{1, 7, 16, 64, 150} {
		c := newKVCache(m.cfg)
		var logits []float32
		for at := 0; at < len(tokens); at += batch {
			end := min(at+batch, len(tokens))
			logits = m.forward(c, tokens[at:end], at, true, end == len(tokens))
		}
		var pages []byte
		for b := range len(tokens) / m.cfg.BlockTokens {
			p := make([]byte, m.cfg.blockBytes())
			c.exportBlock(b, 0, m.cfg.KVHeads, p)
			pages = append(pages, p...)
		}
		if want == nil {
			want, wantPages = logits, pages
		}
		if !sameBits(want, logits) || !bytes.Equal(wantPages, pages) {
			t.Errorf("batches of %d differ from batches of 1", batch)
		}
		// Evaluating the last token again without writing changes nothing.
		again := m.forward(c, tokens[149:], 149, false, true)
		if !sameBits(want, again) {
			t.Errorf("batches of %d: the last token evaluated again differs", batch)
		}
	}
}

// The fast forward pass against a plain one in float64 that follows the
// published formulas.
func TestForwardAgainstPlain(t *testing.T) {
	m := newModel(small())
	tokens := prompt(2, 40, m.cfg.Vocab)
	got := m.forward(newKVCache(m.cfg), tokens, 0, true, true)
	want := plainForward(m, tokens)
	for i := range want {
		if math.Abs(float64(got[i])-want[i]) > 2e-3*(1+math.Abs(want[i])) {
			t.Fatalf("logit %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func plainForward(m *model, tokens []int) []float64 {
	cfg := m.cfg
	matvec := func(w []float32, x []float64) []float64 {
		y := make([]float64, len(w)/len(x))
		for r := range y {
			for c, v := range x {
				y[r] += float64(w[r*len(x)+c]) * v
			}
		}
		return y
	}
	norm := func(x []float64, g []float32) []float64 {
		var s float64
		for _, v := range x {
			s += v * v
		}
		y := make([]float64, len(x))
		for i := range x {
			y[i] = x[i] / math.Sqrt(s/float64(len(x))+1e-5) * float64(g[i])
		}
		return y
	}
	turn := func(x []float64, pos int) {
		for h := 0; h < len(x); h += cfg.HeadDim {
			for i := range cfg.HeadDim / 2 {
				a := float64(pos) * math.Pow(cfg.RopeBase, -2*float64(i)/float64(cfg.HeadDim))
				p, q := x[h+i], x[h+i+cfg.HeadDim/2]
				x[h+i], x[h+i+cfg.HeadDim/2] = p*math.Cos(a)-q*math.Sin(a), p*math.Sin(a)+q*math.Cos(a)
			}
		}
	}
	round := func(x []float64) []float64 {
		for i := range x {
			x[i] = float64(roundBF16(float32(x[i])))
		}
		return x
	}
	var xs [][]float64
	for _, t := range tokens {
		x := make([]float64, cfg.Hidden)
		for i := range x {
			x[i] = float64(m.embedding[t*cfg.Hidden+i])
		}
		xs = append(xs, x)
	}
	for l := range m.layers {
		w := &m.layers[l]
		var ks, vs [][]float64
		for p, x := range xs {
			h := norm(x, w.attnNorm)
			q, k := matvec(w.q, h), matvec(w.k, h)
			turn(q, p)
			turn(k, p)
			ks, vs = append(ks, round(k)), append(vs, round(matvec(w.v, h)))
			out := make([]float64, cfg.QueryHeads*cfg.HeadDim)
			for head := range cfg.QueryHeads {
				kv := head / (cfg.QueryHeads / cfg.KVHeads) * cfg.HeadDim
				var sum float64
				acc := make([]float64, cfg.HeadDim)
				for t := range ks {
					var s float64
					for i := range cfg.HeadDim {
						s += q[head*cfg.HeadDim+i] * ks[t][kv+i]
					}
					e := math.Exp(s / math.Sqrt(float64(cfg.HeadDim)))
					sum += e
					for i := range acc {
						acc[i] += e * vs[t][kv+i]
					}
				}
				for i := range acc {
					out[head*cfg.HeadDim+i] = acc[i] / sum
				}
			}
			for i, v := range matvec(w.o, out) {
				x[i] += v
			}
			h = norm(x, w.ffnNorm)
			g, u := matvec(w.gate, h), matvec(w.up, h)
			for i := range g {
				g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
			}
			for i, v := range matvec(w.down, g) {
				x[i] += v
			}
		}
	}
	return matvec(m.head, norm(xs[len(xs)-1], m.norm))
}

// continuation decodes greedily after a prompt, without blocks.
func continuation(m *model, tokens []int, n int) []int {
	c := newKVCache(m.cfg)
	logits := m.forward(c, tokens, 0, true, true)
	var out []int
	for pos := len(tokens); len(out) < n; pos++ {
		out = append(out, argmax(logits))
		logits = m.forward(c, out[len(out)-1:], pos, true, true)
	}
	return out
}

func distinct(tokens []int) int {
	seen := map[int]bool{}
	for _, t := range tokens {
		seen[t] = true
	}
	return len(seen)
}

func TestGreedyTextIsVaried(t *testing.T) {
	for _, tied := range []bool{false, true} {
		cfg := small()
		cfg.TiedHead = tied
		m := newModel(cfg)
		for seed := range uint64(4) {
			got := continuation(m, prompt(seed, 50, cfg.Vocab), 64)
			t.Logf("tied %v, prompt %d: %d distinct of 64", tied, seed, distinct(got))
			if distinct(got) < 16 {
				t.Errorf("tied %v, prompt %d: %d distinct tokens: %v", tied, seed, distinct(got), got)
			}
		}
	}
}

// A long context does not pull the deep demo model to one token.
func TestDemoTextIsVaried(t *testing.T) {
	if testing.Short() {
		t.Skip("prefills 256 tokens of the demo model")
	}
	m := newModel(DemoModel())
	got := continuation(m, prompt(0, 256, m.cfg.Vocab), 24)
	if distinct(got) < 16 {
		t.Errorf("%d distinct tokens of 24: %v", distinct(got), got)
	}
}

func TestBlockRoundTrip(t *testing.T) {
	m := newModel(small())
	tokens := prompt(3, 96, m.cfg.Vocab)
	src := newKVCache(m.cfg)
	m.forward(src, tokens, 0, true, false)
	dst := newKVCache(m.cfg)
	for b := range 6 {
		whole, parts := make([]byte, m.cfg.blockBytes()), make([]byte, m.cfg.blockBytes())
		src.exportBlock(b, 0, 2, whole)
		src.exportBlock(b, 1, 2, parts)
		src.exportBlock(b, 0, 1, parts)
		if !bytes.Equal(whole, parts) {
			t.Fatalf("block %d: heads written apart differ", b)
		}
		// The page layout, from its definition.
		seg := src.segments[b*16/segmentTokens]
		for layer := range m.cfg.Layers {
			for kv := range 2 {
				for h := range 2 {
					for n := range 16 {
						for c := range 32 {
							at := layer*m.cfg.pageBytes() + (((kv*2+h)*16+n)*32+c)*2
							k, v := src.head(seg, layer, h)
							want := k[(b*16%64+n)*32+c]
							if kv == 1 {
								want = v[c*64+b*16%64+n]
							}
							if got := fromBF16(binary.LittleEndian.Uint16(whole[at:])); got != want {
								t.Fatalf("block %d layer %d kv %d head %d token %d element %d: %v, want %v", b, layer, kv, h, n, c, got, want)
							}
						}
					}
				}
			}
		}
		dst.importBlock(b, whole)
		back := make([]byte, m.cfg.blockBytes())
		dst.exportBlock(b, 0, 2, back)
		if !bytes.Equal(whole, back) {
			t.Fatalf("block %d: import and export differ", b)
		}
	}
	a, b := m.forward(src, tokens[95:], 95, false, true), m.forward(dst, tokens[95:], 95, false, true)
	if !sameBits(a, b) {
		t.Error("logits over the imported cache differ")
	}
}

// Any bits can land in an arena; they are taken and given back as they are.
func FuzzImportBlock(f *testing.F) {
	cfg := ModelConfig{Layers: 1, Hidden: 4, KVHeads: 2, HeadDim: 4, Vocab: 8, BlockTokens: 2, MaxTokens: 8}.withDefaults()
	m := newModel(cfg)
	f.Add([]byte{0x81, 0x7f, 0xff, 0xff, 0x80, 0x7f}, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, block uint8) {
		src := make([]byte, cfg.blockBytes())
		copy(src, b)
		c := newKVCache(cfg)
		c.importBlock(int(block%4), src)
		back := make([]byte, len(src))
		c.exportBlock(int(block%4), 0, cfg.KVHeads, back)
		if !bytes.Equal(src, back) {
			t.Fatalf("imported %x, exported %x", src, back)
		}
		stepOf(m.forward(c, []int{1}, 7, false, true))
	})
}

func TestPerturb(t *testing.T) {
	m := newModel(small())
	tokens := prompt(4, 64, m.cfg.Vocab)
	export := func(c *kvCache, b int) []byte {
		p := make([]byte, m.cfg.blockBytes())
		c.exportBlock(b, 0, 2, p)
		return p
	}
	one, two, clean := newKVCache(m.cfg), newKVCache(m.cfg), newKVCache(m.cfg)
	for _, c := range []*kvCache{one, two, clean} {
		m.forward(c, tokens, 0, true, false)
	}
	one.perturb(1, rand.New(rand.NewPCG(1, 2)), 0.5)
	two.perturb(1, rand.New(rand.NewPCG(1, 2)), 0.5)
	if !bytes.Equal(export(one, 1), export(two, 1)) {
		t.Error("the same noise twice differs")
	}
	if !bytes.Equal(export(one, 0), export(clean, 0)) || !bytes.Equal(export(one, 2), export(clean, 2)) {
		t.Error("noise in one block touched another")
	}
	changed := 0
	got, was := export(one, 1), export(clean, 1)
	for i := 0; i < len(got); i += 2 {
		d := fromBF16(binary.LittleEndian.Uint16(got[i:])) - fromBF16(binary.LittleEndian.Uint16(was[i:]))
		if math.Abs(float64(d)) > 0.52 {
			t.Fatalf("element %d moved by %v", i/2, d)
		}
		if d != 0 {
			changed++
		}
	}
	if changed < len(got)/2*9/10 {
		t.Errorf("%d of %d elements changed", changed, len(got)/2)
	}
}

// What a damaged block leaves behind does not reach a sequence that was cut
// before it.
func TestTruncateForgets(t *testing.T) {
	m := newModel(small())
	tokens := prompt(5, 40, m.cfg.Vocab)
	want := m.forward(newKVCache(m.cfg), tokens, 0, true, true)
	c := newKVCache(m.cfg)
	m.forward(c, tokens[:32], 0, true, false)
	c.importBlock(2, bytes.Repeat([]byte{0xff}, m.cfg.blockBytes())) // not numbers
	c.importBlock(5, bytes.Repeat([]byte{0xff}, m.cfg.blockBytes()))
	c.truncate(32)
	if got := m.forward(c, tokens[32:], 32, true, true); !sameBits(want, got) {
		t.Error("logits differ after truncate")
	}
}

func TestBlockKeys(t *testing.T) {
	tokens := []int{1, 2, 3, 4, 5}
	root := sha256.Sum256([]byte("seed"))
	first := sha256.Sum256(append(root[:], 1, 0, 0, 0, 2, 0, 0, 0))
	second := sha256.Sum256(append(first[:], 3, 0, 0, 0, 4, 0, 0, 0))
	if d := cmp.Diff([][]byte{first[:], second[:]}, BlockKeys("seed", 2, tokens)); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
	if got := BlockKeys("seed", 8, tokens); len(got) != 0 {
		t.Errorf("%d keys of no whole block", len(got))
	}
}

func TestModelConfigValidate(t *testing.T) {
	if err := (ModelConfig{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := DemoModel().Validate(); err != nil || DemoModel().pageBytes() != 64<<10 || DemoModel().blockBytes() != 5<<20 {
		t.Errorf("demo model: %v, pages of %d, blocks of %d", err, DemoModel().pageBytes(), DemoModel().blockBytes())
	}
	tests := []struct {
		cfg  ModelConfig
		want string
	}{
		{ModelConfig{Layers: -1}, "layers -1: want 1 to 1024"},
		{ModelConfig{HeadDim: 7}, "head_dim 7: want an even number"},
		{ModelConfig{BlockTokens: 24}, "block_tokens 24: want a power of two"},
		{ModelConfig{QueryHeads: 3}, "query_heads 3: want a multiple of kv_heads 2"},
		{ModelConfig{RopeBase: math.NaN()}, "rope_base NaN"},
		{ModelConfig{Layers: 1024, Hidden: 65536}, "parameters"},
	}
	for _, tt := range tests {
		if err := tt.cfg.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

// BenchmarkDemo reports the demo model's seconds a token.
func BenchmarkDemo(b *testing.B) {
	m := newModel(DemoModel())
	tokens := prompt(1, 256, m.cfg.Vocab)
	b.Run("prefill", func(b *testing.B) {
		for b.Loop() {
			c := newKVCache(m.cfg)
			for at := 0; at < 256; at += 64 {
				m.forward(c, tokens[at:at+64], at, true, false)
			}
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N)/256, "ms/token")
	})
	b.Run("decode", func(b *testing.B) {
		c := newKVCache(m.cfg)
		m.forward(c, tokens, 0, true, false)
		for b.Loop() {
			m.forward(c, tokens[:1], 256, true, true)
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N), "ms/token")
	})
	b.Run("weights", func(b *testing.B) {
		for b.Loop() {
			newModel(DemoModel())
		}
	})
	b.Run("export", func(b *testing.B) {
		c := newKVCache(m.cfg)
		c.grow(16)
		block := make([]byte, m.cfg.blockBytes())
		b.SetBytes(int64(len(block)))
		for b.Loop() {
			c.exportBlock(0, 0, 8, block)
		}
	})
	b.Run("import", func(b *testing.B) {
		c := newKVCache(m.cfg)
		block := make([]byte, m.cfg.blockBytes())
		b.SetBytes(int64(len(block)))
		for b.Loop() {
			c.importBlock(0, block)
		}
	})
	b.Run("perturb", func(b *testing.B) {
		c := newKVCache(m.cfg)
		c.grow(16)
		b.SetBytes(int64(m.cfg.blockBytes()))
		for b.Loop() {
			c.perturb(0, rand.New(rand.NewPCG(1, 2)), 0.5)
		}
	})
}
