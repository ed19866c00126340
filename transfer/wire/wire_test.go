package wire_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/transfer/wire"
)

func bitmap(n int, set ...int) wire.Bitmap {
	m := wire.NewBitmap(n)
	for _, i := range set {
		m.Set(i)
	}
	return m
}

// form is one frame kind as a pair of functions over bytes and any value.
type form struct {
	name   string
	decode func([]byte) (any, error)
	encode func(any) ([]byte, error)
	values []any
}

var forms = []form{
	{
		"preamble",
		func(b []byte) (any, error) { return wire.DecodePreamble(b) },
		func(v any) ([]byte, error) { return wire.AppendPreamble(nil, v.(wire.Preamble)), nil },
		[]any{wire.Preamble{Version: 1, Length: 40}, wire.Preamble{Version: 65535, Length: wire.MaxHello}, wire.Preamble{}},
	},
	{
		"hello",
		func(b []byte) (any, error) { return wire.DecodeHello(b) },
		func(v any) ([]byte, error) { return wire.AppendHello(nil, v.(wire.Hello)) },
		[]any{
			wire.Hello{Nonce: wire.Nonce{1, 15: 2}, Stripe: 1<<32 - 1, Name: "spiffe://kvferry/region/a/node/b", Incarnation: "x", Repair: wire.Repair{Version: 1, Span: wire.MinSpan}},
			wire.Hello{Name: strings.Repeat("n", wire.MaxName), Incarnation: strings.Repeat("é", 127)},
		},
	},
	{
		"hello answer",
		func(b []byte) (any, error) { return wire.DecodeHelloAnswer(b) },
		func(v any) ([]byte, error) { return wire.AppendHelloAnswer(nil, v.(wire.HelloAnswer)) },
		[]any{
			wire.HelloAnswer{Name: "a", Incarnation: "b", Repair: wire.Repair{Version: 255, Span: wire.MaxSpan}},
			wire.HelloAnswer{Code: 3, Name: "a", Incarnation: "b", Message: strings.Repeat("m", wire.MaxMessage)},
		},
	},
	{
		"frame header",
		func(b []byte) (any, error) { return wire.DecodeFrameHeader(b) },
		func(v any) ([]byte, error) {
			h := v.(wire.FrameHeader)
			b, err := wire.AppendFrame(nil, h.Type, h.Flags, h.ID, make([]byte, h.Length))
			return b[:min(len(b), wire.FrameHeaderBytes)], err
		},
		[]any{
			wire.FrameHeader{Type: wire.TypeMetadata},
			wire.FrameHeader{Type: wire.TypePing, Flags: wire.FlagOwn, ID: 1<<64 - 1},
			wire.FrameHeader{Type: wire.TypeCall, Length: wire.MaxPayload, ID: 3},
		},
	},
	{
		"begin",
		func(b []byte) (any, error) { return wire.DecodeBegin(b) },
		func(v any) ([]byte, error) { return wire.AppendBegin(nil, v.(wire.Begin)) },
		[]any{
			wire.Begin{Op: wire.OpRead, Token: []byte("t"), Notify: []byte{}, Descs: []wire.Desc{{Memory: 1, Pages: 80, Offset: 5 << 20, Generation: 9}}},
			wire.Begin{Op: wire.OpRead, Token: []byte{}, Notify: []byte("n"), Class: wire.ClassReplication, Deadline: 1<<32 - 1, Descs: []wire.Desc{{Pages: 1}}},
			wire.Begin{Op: wire.OpWrite, More: true, First: 7, Token: []byte{}, Notify: []byte{}, Descs: []wire.Desc{{Pages: 1}, {Pages: wire.MaxPages, Offset: 1<<64 - 1}}},
		},
	},
	{
		"again",
		func(b []byte) (any, error) { return wire.DecodeAgain(b) },
		func(v any) ([]byte, error) { return wire.AppendAgain(nil, v.(wire.Again)) },
		[]any{
			wire.Again{Reason: wire.ReasonStripeLost, Stripe: 4, Base: 3, Pages: bitmap(9, 0, 8)},
			wire.Again{Reason: wire.ReasonBadPage, Pages: bitmap(1, 0)},
			wire.Again{Reason: wire.ReasonStalled, Pages: bitmap(1 << 20)},
		},
	},
	{
		"failure",
		func(b []byte) (any, error) { return wire.DecodeFailure(b) },
		func(v any) ([]byte, error) { return wire.AppendFailure(nil, v.(wire.Failure)) },
		[]any{
			wire.Failure{Code: 8, Pair: 3, Page: 79, Message: "stale", Details: []byte{0, 1}},
			wire.Failure{Pair: wire.NoIndex, Page: wire.NoIndex, Details: []byte{}},
		},
	},
	{
		"progress",
		func(b []byte) (any, error) { return wire.DecodeProgress(b) },
		func(v any) ([]byte, error) { return wire.AppendProgress(nil, v.(uint64)), nil },
		[]any{uint64(0), uint64(1<<64 - 1)},
	},
	{
		"path",
		func(b []byte) (any, error) { return wire.DecodePath(b) },
		func(v any) ([]byte, error) { return wire.AppendPath(nil, v.(wire.Path)) },
		[]any{
			wire.Path{},
			wire.Path{Starved: true, PacketBytes: 1280, Window: 12_800_000, Sent: 1<<64 - 1, Lost: 7, RTTMin: time.Nanosecond, RTT: time.Hour},
		},
	},
	{
		"queued",
		func(b []byte) (any, error) { return wire.DecodeQueued(b) },
		func(v any) ([]byte, error) { return wire.AppendQueued(nil, v.(wire.Queued)), nil },
		[]any{wire.Queued{}, wire.Queued{Transfers: 1<<32 - 1, Bytes: 1 << 62}},
	},
	{
		"costs",
		func(b []byte) (any, error) { return wire.DecodeCosts(b) },
		func(v any) ([]byte, error) { return wire.AppendCosts(nil, v.(wire.Costs)) },
		[]any{
			wire.Costs{Cores: 1},
			wire.Costs{Cores: 1<<16 - 1, Codecs: []wire.Cost{{Codec: 0, Encode: 1}, {Codec: 2, Encode: 1<<32 - 1, Decode: 600}, {Codec: wire.MaxCostCodec, Decode: 1}}},
		},
	},
	{
		"metadata",
		func(b []byte) (any, error) { return wire.DecodeMetadata(b) },
		func(v any) ([]byte, error) { return wire.AppendMetadata(nil, v.(wire.Metadata)) },
		[]any{
			wire.Metadata{Version: 1, Name: "a", Incarnation: "b"},
			wire.Metadata{Version: 1, Name: "a", Incarnation: "b", Memories: []wire.Memory{
				{ID: 1, PageBytes: 65536, Readable: true, Length: 1 << 40}, {ID: 5, PageBytes: 1, Writable: true, Length: 1<<63 - 1},
			}},
		},
	},
	{
		"chunk header",
		func(b []byte) (any, error) { return decodeChunk(b) },
		func(v any) ([]byte, error) {
			c := v.(chunk)
			b := make([]byte, c.H.Bytes())
			return b, wire.PutChunkHeader(b, &c.H, c.Sums)
		},
		[]any{
			chunk{wire.ChunkHeader{Codec: wire.CodecPages, Pages: 2, Transfer: 5, RawLength: 200, WireLength: 10}, []uint32{7, 8}},
			chunk{wire.ChunkHeader{Codec: wire.CodecPages, Pages: 2, Transfer: 5, RawLength: 200, WireLength: 208}, []uint32{7, 8}},
			chunk{wire.ChunkHeader{Pages: 1, Transfer: 5, Pair: 2, FirstPage: 3, RawLength: wire.MaxChunkBytes, WireLength: wire.MaxChunkBytes}, []uint32{7}},
			chunk{wire.ChunkHeader{Flags: wire.FlagChunkOwn, Pages: 3, Transfer: 1<<64 - 1, Pair: wire.MaxDescs - 1, FirstPage: wire.MaxPages - 3, RawLength: 3, WireLength: 3}, []uint32{0, 1, 1<<32 - 1}},
		},
	},
}

type chunk struct {
	H    wire.ChunkHeader
	Sums []uint32
}

// decodeChunk takes a header with its checksums and nothing else.
func decodeChunk(b []byte) (chunk, error) {
	var c chunk
	if err := wire.DecodeChunkHeader(&c.H, b[:min(len(b), wire.ChunkFixedBytes)]); err != nil {
		return chunk{}, err
	}
	c.Sums = make([]uint32, c.H.Pages)
	return c, wire.DecodeSums(c.Sums, b[wire.ChunkFixedBytes:])
}

var opts = cmp.AllowUnexported(wire.Bitmap{})

// TestRoundTrip encodes and decodes values at the bounds of every frame, and
// has each decoder refuse every truncation and one byte more.
func TestRoundTrip(t *testing.T) {
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			for _, want := range f.values {
				b, err := f.encode(want)
				if err != nil {
					t.Fatalf("encode %+v: %v", want, err)
				}
				got, err := f.decode(b)
				if err != nil {
					t.Fatalf("decode %+v: %v", want, err)
				}
				if d := cmp.Diff(want, got, opts); d != "" {
					t.Error(d)
				}
				for n := range min(len(b), 4096) {
					if _, err := f.decode(b[:n]); !errors.Is(err, wire.ErrMalformed) {
						t.Fatalf("%d of %d bytes: %v", n, len(b), err)
					}
				}
				if _, err := f.decode(append(bytes.Clone(b), 0)); !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("a byte more: %v", err)
				}
			}
		})
	}
}

// TestRefused has each bound of the encoders hold.
func TestRefused(t *testing.T) {
	chunkWith := func(edit func(*wire.ChunkHeader)) any {
		h := wire.ChunkHeader{Pages: 2, RawLength: 128, WireLength: 128}
		edit(&h)
		return chunk{h, make([]uint32, 2)}
	}
	one := []wire.Desc{{Pages: 1}}
	for _, tc := range []struct {
		form, name string
		value      any
	}{
		{"hello", "no name", wire.Hello{Incarnation: "i"}},
		{"hello", "long name", wire.Hello{Name: strings.Repeat("n", 256), Incarnation: "i"}},
		{"hello", "not UTF-8", wire.Hello{Name: "\xff", Incarnation: "i"}},
		{"hello answer", "long message", wire.HelloAnswer{Name: "a", Incarnation: "b", Message: strings.Repeat("m", 1025)}},
		{"frame header", "type 0", wire.FrameHeader{}},
		{"frame header", "type 19", wire.FrameHeader{Type: 19}},
		{"frame header", "flags", wire.FrameHeader{Type: 1, Flags: 2}},
		{"frame header", "length", wire.FrameHeader{Type: 1, Length: wire.MaxPayload + 1}},
		{"begin", "op", wire.Begin{Op: 3, Descs: one}},
		{"begin", "no descriptor", wire.Begin{Op: 1}},
		{"begin", "token", wire.Begin{Op: 1, Token: make([]byte, 257), Descs: one}},
		{"begin", "notify", wire.Begin{Op: 1, Notify: make([]byte, 65537), Descs: one}},
		{"begin", "token later", wire.Begin{Op: 1, First: 1, Token: []byte{1}, Descs: one}},
		{"begin", "class", wire.Begin{Op: 1, Class: 3, Descs: one}},
		{"begin", "class later", wire.Begin{Op: 1, First: 1, Class: 1, Descs: one}},
		{"begin", "deadline later", wire.Begin{Op: 1, First: 1, Deadline: 1, Descs: one}},
		{"begin", "too many", wire.Begin{Op: 1, First: wire.MaxDescs, Descs: one}},
		{"begin", "too many in a frame", wire.Begin{Op: 1, Descs: make([]wire.Desc, wire.MaxFrameDescs+1)}},
		{"begin", "no pages", wire.Begin{Op: 1, Descs: []wire.Desc{{}}}},
		{"again", "reason", wire.Again{Reason: 4, Pages: bitmap(1)}},
		{"again", "no bits", wire.Again{Reason: 1}},
		{"again", "too many bits", wire.Again{Reason: 1, Pages: bitmap(wire.MaxBits + 1)}},
		{"path", "least round-trip time", wire.Path{RTTMin: -1}},
		{"path", "round-trip time", wire.Path{RTT: time.Hour + 1}},
		{"again", "base", wire.Again{Reason: 1, Base: wire.MaxPages - 1, Pages: bitmap(2)}},
		{"failure", "details", wire.Failure{Details: make([]byte, wire.MaxDetails+1)}},
		{"costs", "no processor", wire.Costs{}},
		{"costs", "codec", wire.Costs{Cores: 1, Codecs: []wire.Cost{{Codec: wire.MaxCostCodec + 1}}}},
		{"costs", "codecs descend", wire.Costs{Cores: 1, Codecs: []wire.Cost{{Codec: 2}, {Codec: 2}}}},
		{"metadata", "ids descend", wire.Metadata{Name: "a", Incarnation: "b", Memories: []wire.Memory{{ID: 2, PageBytes: 1}, {ID: 2, PageBytes: 1}}}},
		{"metadata", "page", wire.Metadata{Name: "a", Incarnation: "b", Memories: []wire.Memory{{PageBytes: wire.MaxChunkBytes + 1}}}},
		{"metadata", "length", wire.Metadata{Name: "a", Incarnation: "b", Memories: []wire.Memory{{PageBytes: 1, Length: 1 << 63}}}},
		{"chunk header", "codec", chunkWith(func(h *wire.ChunkHeader) { h.Codec = 2 })},
		{"chunk header", "flags", chunkWith(func(h *wire.ChunkHeader) { h.Flags = 2 })},
		{"chunk header", "pages", chunkWith(func(h *wire.ChunkHeader) { h.Pages = wire.MaxChunkPages + 1 })},
		{"chunk header", "no pages", chunkWith(func(h *wire.ChunkHeader) { h.Pages = 0 })},
		{"chunk header", "sums", chunkWith(func(h *wire.ChunkHeader) { h.Pages = 1 })},
		{"chunk header", "descriptor", chunkWith(func(h *wire.ChunkHeader) { h.Pair = wire.MaxDescs })},
		{"chunk header", "first page", chunkWith(func(h *wire.ChunkHeader) { h.FirstPage = 1<<32 - 1 })},
		{"chunk header", "raw", chunkWith(func(h *wire.ChunkHeader) { h.RawLength, h.WireLength = 127, 127 })},
		{"chunk header", "too long", chunkWith(func(h *wire.ChunkHeader) { h.RawLength, h.WireLength = 4<<20+2, 4<<20+2 })},
		{"chunk header", "wire", chunkWith(func(h *wire.ChunkHeader) { h.WireLength = 64 })},
		{"chunk header", "coded, short", chunkWith(func(h *wire.ChunkHeader) { h.Codec, h.WireLength = 1, 9 })},
		{"chunk header", "coded, long", chunkWith(func(h *wire.ChunkHeader) { h.Codec, h.WireLength = 1, 128+9 })},
	} {
		t.Run(tc.form+" "+tc.name, func(t *testing.T) {
			for _, f := range forms {
				if f.name != tc.form {
					continue
				}
				_, err := f.encode(tc.value)
				var fe *wire.FormatError
				if !errors.As(err, &fe) || fe.Field == "" || fe.Want == "" || !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("encode: %v", err)
				}
			}
		})
	}
}

// TestBitmap compares with a map.
func TestBitmap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		n := rng.IntN(70)
		m, want := wire.NewBitmap(n), make(map[int]bool)
		for range rng.IntN(100) {
			i := rng.IntN(80) - 5
			in := i >= 0 && i < n
			if got := m.Set(i); got != (in && !want[i]) {
				t.Fatalf("Set(%d) of %d bits = %v", i, n, got)
			}
			if in {
				want[i] = true
			}
		}
		c := m.Clone()
		c.Set(0)
		for i := -5; i < 80; i++ {
			if m.Has(i) != want[i] {
				t.Fatalf("Has(%d) of %d bits = %v", i, n, m.Has(i))
			}
		}
		if m.Count() != len(want) || m.Len() != n {
			t.Fatalf("%d of %d bits, want %d", m.Count(), m.Len(), len(want))
		}
	}
	if _, err := wire.DecodeBitmap([]byte{0x20}, 5); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("a spare bit: %v", err)
	}
}

// TestChunkAllocs holds the hot path to no allocation.
func TestChunkAllocs(t *testing.T) {
	const pages = 16
	h := wire.ChunkHeader{Pages: pages, Transfer: 1, RawLength: 1 << 20, WireLength: 1 << 20}
	b, sums := make([]byte, h.Bytes()), make([]uint32, pages)
	var got wire.ChunkHeader
	if n := testing.AllocsPerRun(100, func() {
		if wire.PutChunkHeader(b, &h, sums) != nil || wire.DecodeChunkHeader(&got, b[:wire.ChunkFixedBytes]) != nil || wire.DecodeSums(sums, b[wire.ChunkFixedBytes:]) != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}

func BenchmarkChunkHeader(b *testing.B) {
	h := wire.ChunkHeader{Pages: 16, Transfer: 1, RawLength: 1 << 20, WireLength: 1 << 20}
	buf, sums := make([]byte, h.Bytes()), make([]uint32, 16)
	b.ReportAllocs()
	for b.Loop() {
		if wire.PutChunkHeader(buf, &h, sums) != nil || wire.DecodeChunkHeader(&h, buf[:wire.ChunkFixedBytes]) != nil {
			b.Fatal("refused")
		}
	}
}

// TestPageHeader has headers come back, and refuses lengths that no coded page has.
func TestPageHeader(t *testing.T) {
	const page = 70_000
	for _, h := range []wire.PageHeader{{Codec: 0, Length: page}, {Codec: 1, Length: 1}, {Codec: 255, Length: page}} {
		b := wire.AppendPageHeader(nil, h)
		if got, err := wire.DecodePageHeader(b, page); got != h || err != nil || len(b) != wire.PageHeaderBytes {
			t.Errorf("%+v came back as %+v: %v", h, got, err)
		}
	}
	for _, b := range [][]byte{
		nil,
		{1, 0, 0},
		{1, 0, 0, 1, 0},
		wire.AppendPageHeader(nil, wire.PageHeader{Codec: 1}),
		wire.AppendPageHeader(nil, wire.PageHeader{Codec: 1, Length: page + 1}), wire.AppendPageHeader(nil, wire.PageHeader{Length: page - 1}),
	} {
		if h, err := wire.DecodePageHeader(b, page); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%x decodes to %+v: %v", b, h, err)
		}
	}
}
