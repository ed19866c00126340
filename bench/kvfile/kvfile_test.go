package kvfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func header(layers ...int) Header {
	return Header{
		Model: "tiny <&>", Revision: "r1", Source: "a test", DType: BF16, Kind: GQA, Layers: 4, KVHeads: 2, HeadDim: 8, Tokens: 4, PageLayers: layers,
	}
}

// page is 2 × 2 heads × 4 tokens × 8 channels of 2 bytes.
const page = 256

func pages(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = bytes.Repeat([]byte{byte(i), byte(i >> 8), 0xa5, 0x3f}, page/4)
	}
	return out
}

func encode(t testing.TB, h Header, ps [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if err := w.WritePage(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode(r io.Reader) (h Header, ps [][]byte, err error) {
	rd, err := NewReader(r)
	if err != nil {
		return h, nil, err
	}
	h = rd.Header()
	for {
		p := make([]byte, h.PageBytes)
		if err := rd.ReadPage(p); errors.Is(err, io.EOF) {
			return h, ps, nil
		} else if err != nil {
			return h, ps, err
		}
		ps = append(ps, p)
	}
}

// TestFormat holds the format to its table, byte by byte, without the package's own encoder.
func TestFormat(t *testing.T) {
	const head = `{"model":"m","revision":"","weights":"w","source":"s","dtype":"fp8_e4m3","kind":"mla","layers":2,"kv_heads":1,"head_dim":3,"block_tokens":2,` +
		`"pages":2,"page_bytes":6,"page_layers":[1,0]}`
	sum := func(b []byte) []byte {
		return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	want := append([]byte("KVPAGES\n\x01\x00\x00\x00"), byte(len(head)), 0, 0, 0)
	want = append(want, head...)
	want = append(want, sum(want)...)
	for _, p := range []string{"abcdef", "ghijkl"} {
		want = append(append(want, sum([]byte(p))...), p...)
	}
	h := Header{Model: "m", Weights: "w", Source: "s", DType: FP8E4M3, Kind: MLA, Layers: 2, KVHeads: 1, HeadDim: 3, Tokens: 2, PageLayers: []int{1, 0}}
	if got := encode(t, h, [][]byte{[]byte("abcdef"), []byte("ghijkl")}); !bytes.Equal(got, want) {
		t.Errorf("encoded as\n%q, want\n%q", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	h, ps := header(0, 1, 2, 3, 0, 1), pages(6)
	b := encode(t, h, ps)
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(b), "bytes": iotest.OneByteReader(bytes.NewReader(b)), "halves": iotest.HalfReader(bytes.NewReader(b)), "data and EOF": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		got, back, err := decode(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := h
		want.Pages, want.PageBytes = 6, page
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: header: %s", name, d)
		}
		if d := cmp.Diff(ps, back); d != "" {
			t.Errorf("%s: pages: %s", name, d)
		}
	}
}

// TestDamage has every truncation be an unexpected end, every flipped bit and every added byte an error, and no page pass that is not the
// one written.
func TestDamage(t *testing.T) {
	ps := pages(2)
	b := encode(t, header(3, 1), ps)
	for n := range b {
		if _, _, err := decode(bytes.NewReader(b[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1 << (i % 8)
		_, got, err := decode(bytes.NewReader(bad))
		if err == nil {
			t.Fatalf("byte %d of %d was changed unnoticed", i, len(b))
		}
		for j, p := range got {
			if !bytes.Equal(p, ps[j]) {
				t.Fatalf("byte %d: page %d came as another", i, j)
			}
		}
	}
	if _, _, err := decode(bytes.NewReader(append(bytes.Clone(b), 0))); !errors.Is(err, ErrTrailing) {
		t.Errorf("a byte more: %v", err)
	}
	failing := errors.New("the disk is gone")
	if _, _, err := decode(io.MultiReader(bytes.NewReader(b), iotest.ErrReader(failing))); !errors.Is(err, failing) {
		t.Errorf("a reader that fails at the end: %v", err)
	}
}

// sealed is a file with that text as a header, and a checksum that is right.
func sealed(head string) []byte {
	b := append([]byte(magic), Version, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	b = append(b, head...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func TestHeaderRefused(t *testing.T) {
	good, err := header(0).withDefaults().encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(bytes.NewReader(sealed(string(good)))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"tiny <&>"`, `""`, "model"},
		{`"tiny <&>"`, `"` + strings.Repeat("x", 257) + `"`, "model"},
		{`"r1"`, `"\n"`, "revision"},
		{`"bf16"`, `"int4"`, "dtype"},
		{`"gqa"`, `"opaque"`, "kind"},
		{`"gqa"`, `"mla"`, "kv_heads"},
		{`"layers":4`, `"layers":0`, "layers"},
		{`"layers":4`, `"layers":1025`, "layers"},
		{`"kv_heads":2`, `"kv_heads":-2`, "kv_heads"},
		{`"head_dim":8`, `"head_dim":8193`, "head_dim"},
		{`"block_tokens":4`, `"block_tokens":5`, "page_bytes"},
		{`"page_bytes":256`, `"page_bytes":257`, "page_bytes"},
		{`"page_bytes":256`, `"page_bytes":0`, "page_bytes"},
		{`"pages":1`, `"pages":2`, "pages"},
		{`"pages":1`, `"pages":1000000000000`, "pages"},
		{`[0]`, `[4]`, "page_layers[0]"},
		{`[0]`, `[-1]`, "page_layers[0]"},
		{`[0]`, `[]`, "pages"},
		{`[0]`, `[0.5]`, "header"},
		{`"kind"`, `"other"`, "unknown field"},
		{`"layers":4`, `"layers": 4`, "white space"},
		{`"layers":4`, `"layers":4,"layers":4`, "each once"},
		{`tiny <&>`, "tiny \xff", "not encoded"},
		{`{`, ``, "header"},
	} {
		bad := strings.Replace(string(good), tt.old, tt.new, 1)
		if bad == string(good) {
			t.Fatalf("%s is not there", tt.old)
		}
		_, err := NewReader(bytes.NewReader(sealed(bad)))
		if !errors.Is(err, ErrHeader) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s for %s: %v, want %q", tt.new, tt.old, err, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		b    []byte
		want error
	}{
		"another file":    {bytes.Repeat([]byte("GIF89a"), 20), ErrFormat},
		"another version": {append([]byte(magic), 2, 0, 0, 0, 2, 0, 0, 0), ErrFormat},
		"a huge header":   {append([]byte(magic), 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff), ErrHeader},
		"nothing":         {nil, io.ErrUnexpectedEOF},
	} {
		if _, err := NewReader(bytes.NewReader(tt.b)); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestLargest: the most pages there may be have a header that fits.
func TestLargest(t *testing.T) {
	h := header(make([]int, MaxPages)...)
	h.Layers = maxLayers
	for i := range h.PageLayers {
		h.PageLayers[i] = maxLayers - 1
	}
	w, err := NewWriter(io.Discard, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); !errors.Is(err, ErrPages) {
		t.Errorf("no page: %v", err)
	}
	h.PageLayers = append(h.PageLayers, 0)
	if _, err := NewWriter(io.Discard, h); !errors.Is(err, ErrHeader) {
		t.Errorf("a page more: %v", err)
	}
}

func TestWriterRefuses(t *testing.T) {
	w, err := NewWriter(io.Discard, header(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WritePage(make([]byte, page-1)); !errors.Is(err, ErrPages) {
		t.Errorf("a short page: %v", err)
	}
	if err := w.WritePage(make([]byte, page)); err != nil {
		t.Error(err)
	}
	if err := w.WritePage(make([]byte, page)); !errors.Is(err, ErrPages) {
		t.Errorf("a page too many: %v", err)
	}
	if err := w.Finish(); err != nil {
		t.Error(err)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

// TestFile: a file has its name when it is whole and not before, and nothing is left of one that is not.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.kv")
	h, ps := header(0, 1), pages(2)
	create := func(force bool) *File {
		f, err := Create(path, h, force)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	write := func(f *File) {
		for _, p := range ps {
			if err := f.WritePage(p); err != nil {
				t.Fatal(err)
			}
		}
	}

	f := create(false)
	write(f)
	if got := names(t, dir); len(got) != 1 || got[0] == "a.kv" {
		t.Errorf("before the commit there is %v", got)
	}
	if err := errors.Join(f.Commit(), f.Abort()); err != nil {
		t.Fatal(err)
	}
	if f.Commit() == nil {
		t.Error("a second commit passed")
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(b, encode(t, h, ps)) {
		t.Errorf("the file holds something else: %v", err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", fi.Mode(), err)
	}
	if _, err := Create(path, h, false); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}

	// With force, cut short: the old one stays.
	f = create(true)
	if err := f.WritePage(make([]byte, page)); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, ErrPages) {
		t.Errorf("half of the pages: %v", err)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, b) || len(names(t, dir)) != 1 {
		t.Errorf("half a file did not leave what was there, or left %v", names(t, dir))
	}
	ps[1][0] ^= 1
	f = create(true)
	write(f)
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(path); bytes.Equal(now, b) || len(names(t, dir)) != 1 {
		t.Errorf("it was not replaced, or there is more: %v", names(t, dir))
	}

	// Behind a link its target is replaced; what came in between is not.
	link := filepath.Join(dir, "link.kv")
	if err := os.Symlink("a.kv", link); err != nil {
		t.Fatal(err)
	}
	if f, err = Create(link, h, true); err != nil {
		t.Fatal(err)
	}
	write(f)
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is a link no more: %v", err)
	}
	path = filepath.Join(dir, "b.kv")
	f = create(false)
	write(f)
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that came in between: %v", err)
	}
	if now, _ := os.ReadFile(path); string(now) != "mine" || len(names(t, dir)) != 3 {
		t.Errorf("it holds %q beside %v", now, names(t, dir))
	}
	for _, bad := range []string{dir, filepath.Join(dir, "none", "a.kv")} {
		if f, err := Create(bad, h, true); err == nil {
			t.Errorf("%s was created", f.path)
		}
	}
	h.Layers = 0
	if _, err := Create(filepath.Join(dir, "c.kv"), h, false); !errors.Is(err, ErrHeader) || len(names(t, dir)) != 3 {
		t.Errorf("a bad header: %v, %v", err, names(t, dir))
	}
}

// FuzzReader: no input panics or takes more memory than its length and the bounds allow; one that is accepted is encoded to itself.
func FuzzReader(f *testing.F) {
	b := encode(f, header(0, 3), pages(2))
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(sealed(`{}`))
	f.Add([]byte(magic))
	mla := Header{Model: "m", DType: FP8E5M2, Kind: MLA, Layers: 1, KVHeads: 1, HeadDim: 1, Tokens: 1, PageLayers: []int{0}}
	f.Add(encode(f, mla, [][]byte{{7}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ps, err := decode(bytes.NewReader(b))
		if err != nil {
			return
		}
		if got := encode(t, h, ps); !bytes.Equal(got, b) {
			t.Errorf("%q was accepted and is encoded as %q", b, got)
		}
	})
}

// FuzzHeader does the same with the checksum made to match, which a fuzzer does not find.
func FuzzHeader(f *testing.F) {
	good, err := header(0, 3).withDefaults().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(`{"model":"m","pages":1e9}`)
	f.Fuzz(func(t *testing.T, head string) {
		r, err := NewReader(bytes.NewReader(sealed(head)))
		if err != nil {
			return
		}
		again, err := r.Header().encode()
		if err != nil || string(again) != head {
			t.Errorf("%q was accepted and is encoded as %q, %v", head, again, err)
		}
	})
}
