package codec

import (
	"testing"

	"github.com/kvferry/kvferry/bench/kvgen"
)

func kvPages(tb testing.TB, n int) [][]byte {
	var pages [][]byte
	for i := range n {
		var p []byte
		for _, k := range []kvgen.Kind{kvgen.K, kvgen.V} {
			g := kvgen.Config{Kind: k, Tokens: 16, Heads: 8, HeadDim: 128, Layer: i, Layers: n}
			h := make([]byte, g.Bytes())
			if err := kvgen.Generate(h, g); err != nil {
				tb.Fatal(err)
			}
			p = append(p, h...)
		}
		pages = append(pages, p)
	}
	return pages
}

func BenchmarkKV(b *testing.B) {
	pages := kvPages(b, 32)
	for _, id := range []ID{Huff, Split4} {
		var s Scratch
		var coded [][]byte
		for _, p := range pages {
			c, err := Encode(id, nil, p, &s)
			if err != nil {
				b.Fatal(err)
			}
			coded = append(coded, c)
		}
		b.Run("encode/"+id.String(), func(b *testing.B) {
			b.SetBytes(int64(len(pages[0])))
			dst := make([]byte, 0, MaxEncoded(len(pages[0])))
			i := 0
			for b.Loop() {
				_, _ = Encode(id, dst, pages[i%len(pages)], &s)
				i++
			}
		})
		b.Run("decode/"+id.String(), func(b *testing.B) {
			b.SetBytes(int64(len(pages[0])))
			got := make([]byte, len(pages[0]))
			i := 0
			for b.Loop() {
				_ = Decode(id, got, coded[i%len(pages)], &s)
				i++
			}
		})
	}
}
