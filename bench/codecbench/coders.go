package codecbench

import (
	"errors"
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/transfer/codec"
)

// coder is a way to make a page shorter. encode appends to dst, which has room, and may give codec.ErrIncompressible; decode fills
// dst, which has the page's length.
type coder struct {
	name   string
	encode func(dst, src []byte) ([]byte, error)
	decode func(dst, src []byte) error
}

var elements = map[kvfile.DType]codec.Element{kvfile.BF16: codec.BF16, kvfile.FP16: codec.FP16, kvfile.FP8E4M3: codec.FP8, kvfile.FP8E5M2: codec.FP8}

// codersOf returns what pages of that element are coded with: the codecs that a transfer would take, zstd and s2 on pages as they are,
// and where an element has two bytes on planes of bytes.
func codersOf(d kvfile.DType) ([]coder, error) {
	var cs []coder
	for _, id := range codec.For(elements[d]) {
		s := new(codec.Scratch)
		cs = append(cs, coder{
			id.String(),
			func(dst, src []byte) ([]byte, error) { return codec.Encode(id, dst, src, s) },
			func(dst, src []byte) error { return codec.Decode(id, dst, src, s) },
		})
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	for _, g := range []coder{
		{
			"zstd", func(dst, src []byte) ([]byte, error) { return enc.EncodeAll(src, dst), nil },
			func(dst, src []byte) error { return filled(dst)(dec.DecodeAll(src, dst[:0])) },
		},
		{
			"s2", func(dst, src []byte) ([]byte, error) { return s2.Encode(dst[:cap(dst)], src), nil },
			func(dst, src []byte) error { return filled(dst)(s2.Decode(dst, src)) },
		},
	} {
		cs = append(cs, g)
		if d.Bytes() == 2 {
			cs = append(cs, onPlanes(g))
		}
	}
	return cs, nil
}

// filled says whether a decoder has filled dst and nothing else.
func filled(dst []byte) func(out []byte, err error) error {
	return func(out []byte, err error) error {
		if err == nil && (len(out) != len(dst) || len(out) > 0 && &out[0] != &dst[0]) {
			err = errors.New("a page came back with another length")
		}
		return err
	}
}

// onPlanes has g code the high bytes of all elements, then the low ones.
func onPlanes(g coder) coder {
	plane := make([]byte, 0)
	grow := func(n int) []byte {
		plane = slices.Grow(plane[:0], n)[:n]
		return plane
	}
	return coder{g.name + "-planes", func(dst, src []byte) ([]byte, error) {
		p := grow(len(src))
		for i := range len(src) / 2 {
			p[i], p[len(src)/2+i] = src[2*i+1], src[2*i]
		}
		return g.encode(dst, p)
	}, func(dst, src []byte) error {
		p := grow(len(dst))
		if err := g.decode(p, src); err != nil {
			return err
		}
		for i := range len(dst) / 2 {
			dst[2*i+1], dst[2*i] = p[i], p[len(dst)/2+i]
		}
		return nil
	}}
}
