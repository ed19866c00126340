package kvdump

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/refengine"
)

// small has blocks of 3 pages of 4 KiB.
func small() refengine.ModelConfig {
	return refengine.ModelConfig{Layers: 3, Hidden: 48, QueryHeads: 4, KVHeads: 2, HeadDim: 32, FFN: 64, Vocab: 256, Seed: 5, MaxTokens: 64}.Defaults()
}

const blockBytes = 3 * 4096

func load(t *testing.T, path string) (kvfile.Header, [][]byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := kvfile.NewReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	var ps [][]byte
	for {
		p := make([]byte, r.Header().PageBytes)
		if err := r.ReadPage(p); errors.Is(err, io.EOF) {
			return r.Header(), ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}

// blocksOf are the pages of the blocks that prefilling tokens makes.
func blocksOf(t *testing.T, m refengine.ModelConfig, tokens []int) (ps [][]byte) {
	t.Helper()
	if err := refengine.Prefill(t.Context(), m, tokens, func(b []byte) error {
		for p := range m.Layers {
			ps = append(ps, bytes.Clone(b[p*m.PageBytes():(p+1)*m.PageBytes()]))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ps
}

func tokensOf(text []byte) []int {
	tokens := make([]int, len(text))
	for i, b := range text {
		tokens[i] = int(b)
	}
	return tokens
}

// TestCompute records what the engine computes of the text, as many whole blocks as fit.
func TestCompute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages.kv")
	text := defaultText[:100] // 6 blocks and 4 bytes; more than the model's longest sequence
	s, err := Compute(t.Context(), Config{Path: path, MaxBytes: 5*blockBytes + 100}, Engine{Model: small(), Text: text})
	if err != nil {
		t.Fatal(err)
	}
	h, ps := load(t, path)
	m := small()
	m.MaxTokens = 80
	if want := blocksOf(t, m, tokensOf(text[:80])); len(want) != 15 || !cmp.Equal(ps, want) {
		t.Errorf("%d pages are not the %d that the engine computes", len(ps), len(want))
	}
	want := kvfile.Header{
		Model: "kvferry/refengine", Weights: "hidden=48,ffn=64,vocab=256,seed=5", Source: "reference engine, prefill of 80 tokens", DType: kvfile.BF16, Kind: kvfile.GQA,
		Layers: 3, KVHeads: 2, HeadDim: 32, Tokens: 16, Pages: 15, PageBytes: 4096, PageLayers: []int{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2},
	}
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
	want.PageLayers = nil
	if d := cmp.Diff(&Summary{Path: path, Bytes: 5 * blockBytes, Blocks: 5, Left: 1, Header: want}, s); d != "" {
		t.Error(d)
	}
}

func TestComputeRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pages.kv")
	for name, tt := range map[string]struct {
		c    Config
		e    Engine
		want string
	}{
		"no file":         {Config{}, Engine{}, "file"},
		"negative bytes":  {Config{Path: path, MaxBytes: -1}, Engine{}, "max bytes"},
		"too many bytes":  {Config{Path: path, MaxBytes: MaxComputeBytes + 1}, Engine{Model: small()}, "at most 4294967296"},
		"less than a one": {Config{Path: path, MaxBytes: blockBytes - 1}, Engine{Model: small()}, "at least 12288"},
		"a short text":    {Config{Path: path}, Engine{Model: small(), Text: []byte("too short")}, "at least a block of 16"},
		"a bad model":     {Config{Path: path}, Engine{Model: refengine.ModelConfig{Layers: -1}}, "layers"},
	} {
		_, err := Compute(t.Context(), tt.c, tt.e)
		if in, ok := errors.AsType[*InputError](err); !ok || !strings.Contains(in.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Compute(t.Context(), Config{Path: path}, Engine{Model: small()}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := Compute(ctx, Config{Path: path, Force: true}, Engine{Model: small()}); !errors.Is(err, stop) {
		t.Errorf("cancelled: %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("it holds %q, %v", b, err)
	}
	if left, err := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
}
