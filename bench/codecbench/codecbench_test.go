package codecbench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/results"
)

// TestRun has a short run give every codec's numbers of every element; ratios are exact, speeds only positive.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Config{Pages: 4, Rounds: 2, DTypes: []kvfile.DType{kvfile.BF16, kvfile.FP16, kvfile.FP8E4M3}})
	if err != nil {
		t.Fatal(err)
	}
	least := map[string]float64{"bf16/huff": 1.44, "bf16/split4": 1.32, "fp16/huff16": 1.14, "fp8/huff8": 1.12}
	var names []string
	for _, m := range r.Codecs {
		t.Logf("%+v", m)
		name := m.DType + "/" + m.Name
		names = append(names, name)
		if m.EncodeGBps <= 0 || m.DecodeGBps <= 0 || m.Ratio > m.BoundRatio*1.001 || m.Ratio < max(1, least[name]) {
			t.Errorf("%+v, want a ratio of at least %g", m, least[name])
		}
		if m.Name == "s2" && (m.Ratio != 1 || m.RawPages != 4) { // it finds nothing, and a page that grows goes as it is
			t.Errorf("%+v, want all pages as they are", m)
		}
	}
	want := []string{
		"bf16/huff", "bf16/split4", "bf16/zstd", "bf16/zstd-planes", "bf16/s2", "bf16/s2-planes", "fp16/huff16", "fp16/zstd", "fp16/zstd-planes", "fp16/s2", "fp16/s2-planes",
		"fp8/huff8", "fp8/zstd", "fp8/s2",
	}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	for i, bits := range []float64{10.75, 13.7, 6.7} {
		if d := r.Data[i]; math.Abs(d.BitsPerElement-bits) > 0.15 || d.Pages != 4 || d.PageBytes != []int{128 << 10, 128 << 10, 64 << 10}[i] {
			t.Errorf("%+v, want %g bits", d, bits)
		}
	}
	f, err := r.File([]string{"x"})
	if err != nil || f.Validate() != nil || len(f.Metrics) != 4*len(want) {
		t.Fatalf("%v, %v, %d metrics", err, f.Validate(), len(f.Metrics))
	}
	if m, ok := f.Metric("cpu/bf16/huff"); !ok || m.Unit != "s/GB" || m.Better != results.Lower || len(m.Samples) != 2 || m.Median != r.Codecs[0].CPUSecondsPerGB {
		t.Errorf("cpu metric: %+v", m)
	}
	// The body has these fields and no others.
	var b struct {
		Codecs []map[string]any `json:"codecs"`
		Data   []map[string]any `json:"data"`
	}
	if err := f.DecodeBody(&b); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"name", "dtype", "ratio", "bound_ratio", "encode_gbps_core", "decode_gbps_core", "cpu_seconds_per_gb", "raw_pages"} {
		if _, ok := b.Codecs[0][field]; !ok || len(b.Codecs[0]) != 8 {
			t.Errorf("no %s in %v, or others", field, b.Codecs[0])
		}
	}
}

// TestEntropy holds it to closed forms.
func TestEntropy(t *testing.T) {
	zeros := make([]byte, 4096)
	halves := append(make([]byte, 2048), bytes.Repeat([]byte{0xff, 0x40}, 1024)...) // K of one value, V of another
	all := make([]byte, 2*65536*2)                                                  // each bit pattern once, in each half
	for i := range len(all) / 2 {
		all[2*i], all[2*i+1] = byte(i), byte(i>>8)
	}
	for _, tt := range []struct {
		name string
		page []byte
		d    kvfile.DType
		want float64
	}{
		{"zeros", zeros, kvfile.BF16, 0},
		{"halves", halves, kvfile.BF16, 0},
		{"halves of bytes", halves, kvfile.FP8E4M3, 2048},
		{"all BF16", all, kvfile.BF16, 16 * 2 * 65536},
		{"all FP16", all, kvfile.FP16, 16 * 2 * 65536},
		{"all bytes", all, kvfile.FP8E5M2, 8 * float64(len(all))},
	} {
		if got := entropy(tt.page, tt.d); math.Abs(got-tt.want) > 1e-6*(1+tt.want) {
			t.Errorf("%s: %g bits, want %g", tt.name, got, tt.want)
		}
	}
}

// fileOf is a file of those pages, each of 2 × 1 head × 4 tokens × 64 channels: 1 KiB of BF16.
func fileOf(t *testing.T, d kvfile.DType, pages [][]byte) *kvfile.Reader {
	t.Helper()
	var b bytes.Buffer
	h := kvfile.Header{Model: "m", Source: "a test", DType: d, Kind: kvfile.GQA, Layers: 1, KVHeads: 1, HeadDim: 64, Tokens: 4, PageLayers: make([]int, len(pages))}
	w, err := kvfile.NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if err := w.WritePage(p); err != nil {
			t.Fatal(err)
		}
	}
	r, err := kvfile.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFile: pages of a file are measured with the codecs of its element; those that cannot become shorter count as they are.
func TestFile(t *testing.T) {
	noise, zeros := make([]byte, 1024), make([]byte, 1024)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	r, err := Run(t.Context(), Config{File: fileOf(t, kvfile.BF16, [][]byte{noise, zeros, noise, noise}), Rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Codecs {
		if m.RawPages != 3 || m.Ratio <= 1 || m.Ratio > 4./3 || m.DType != "bf16" {
			t.Errorf("%+v, want the noise as it is", m)
		}
	}
	if d := r.Data[0]; d.Pages != 4 || d.Of != 4 || d.Model != "m" || d.Kind != "gqa" || d.Source != "a test" {
		t.Errorf("%+v", d)
	}

	// Noise alone, and zeros alone: no number that JSON cannot say.
	for name, page := range map[string][]byte{"noise": noise[:512], "zeros": zeros[:512]} {
		r, err := Run(t.Context(), Config{File: fileOf(t, kvfile.FP8E5M2, [][]byte{page}), Rounds: 1})
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.File(nil)
		if err != nil || f.Validate() != nil {
			t.Errorf("%s: %v, %v", name, err, f.Validate())
		}
		if m := r.Codecs[0]; m.Name != "huff8" || m.DType != "fp8_e5m2" || (m.RawPages == 1) != (name == "noise") || (m.Ratio == 1) != (name == "noise") {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// TestSpread: so many pages as are asked for, from all over the file.
func TestSpread(t *testing.T) {
	pages := make([][]byte, 10)
	for i := range pages {
		pages[i] = bytes.Repeat([]byte{byte(i)}, 1024)
	}
	for n, want := range map[int]string{0: "0123456789", 1: "9", 3: "369", 10: "0123456789"} {
		s, err := read(t.Context(), fileOf(t, kvfile.BF16, pages), n)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range s.pages {
			got += string('0' + rune(p[0]))
		}
		if got != want || s.from.Of != 10 {
			t.Errorf("%d pages of ten: %s, want %s", n, got, want)
		}
	}
	r := fileOf(t, kvfile.BF16, pages)
	if _, err := io.Copy(io.Discard, readerOf(r)); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Config{File: r}); err == nil {
		t.Error("a file that was read already was measured")
	}
}

func readerOf(r *kvfile.Reader) io.Reader {
	return readFunc(func(b []byte) (int, error) { return 0, r.ReadPage(make([]byte, r.Header().PageBytes)) })
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

func TestRefuses(t *testing.T) {
	file := fileOf(t, kvfile.BF16, [][]byte{make([]byte, 1024)})
	for want, c := range map[string]Config{
		"rounds is -1":            {Rounds: -1},
		"rounds is 1001":          {Rounds: 1001},
		"number of pages is 1":    {Pages: 1},
		"number of pages is 4097": {Pages: 4097},
		"number of pages is 2":    {Pages: 2, File: file},
		"number of pages is -1":   {Pages: -1, File: file},
		"dtypes is [int4]":        {DTypes: []kvfile.DType{"int4"}},
		"dtypes is [bf16 bf16]":   {DTypes: []kvfile.DType{kvfile.BF16, kvfile.BF16}},
		"dtypes is [fp16]":        {DTypes: []kvfile.DType{kvfile.FP16}, File: file},
	} {
		_, err := Run(t.Context(), c)
		if in, ok := errors.AsType[*InputError](err); !ok || !strings.HasPrefix(in.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// countdown ends after so many looks.
type countdown struct {
	context.Context
	looks int
}

func (c *countdown) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestInterrupted ends a run at every place where it looks: before a whole round there is no result, after that one of whole rounds, and
// never an error.
func TestInterrupted(t *testing.T) {
	rounds := map[int]int{}
	for looks := 0; ; looks += 3 {
		r, err := Run(&countdown{t.Context(), looks}, Config{Pages: 2, Rounds: 3})
		if err != nil {
			t.Fatalf("after %d looks: %v", looks, err)
		}
		if r == nil {
			rounds[0]++
			continue
		}
		rounds[r.rounds]++
		for i, m := range r.runs {
			if len(m.encode) != r.rounds || len(m.decode) != r.rounds || len(m.cpu) != r.rounds || r.Codecs[i].Ratio < 1 {
				t.Fatalf("%d rounds, %+v", r.rounds, r.Codecs[i])
			}
		}
		if !r.interrupted {
			break
		}
		f, err := r.File(nil)
		if err != nil || !f.Interrupted {
			t.Fatalf("%v, interrupted %v", err, f.Interrupted)
		}
	}
	if rounds[0] == 0 || rounds[1] == 0 || rounds[2] == 0 || rounds[3] == 0 {
		t.Errorf("runs by whole rounds: %v", rounds)
	}
}

// TestPagesAreCompared: a coder that gives back something else is found out on any page.
func TestPagesAreCompared(t *testing.T) {
	s := &set{dtype: kvfile.BF16, pages: [][]byte{{1, 2, 3, 4}, {5, 6, 7, 8}}}
	s.finish(2)
	bad := coder{"bad", func(dst, src []byte) ([]byte, error) { return append(dst, src[0]), nil }, func(dst, src []byte) error {
		copy(dst, []byte{src[0], 2, 3, 4})
		return nil
	}}
	b := newBench([]*set{s}, nil)
	if err := b.check(t.Context(), &run{set: s, coder: bad}); err == nil || !strings.Contains(err.Error(), "page 1 came back as another") {
		t.Errorf("%v", err)
	}
}
