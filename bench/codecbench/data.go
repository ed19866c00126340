package codecbench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/kvgen"
)

// set is pages of one element.
type set struct {
	dtype kvfile.DType
	pages [][]byte
	bound float64 // ratio that the entropy allows
	from  Data
}

// sets makes or reads the pages.
func (c Config) sets(ctx context.Context) ([]*set, error) {
	if c.File != nil {
		s, err := read(ctx, c.File, c.Pages)
		if err != nil {
			return nil, fmt.Errorf("pages: %w", err)
		}
		return []*set{s}, nil
	}
	var out []*set
	for _, d := range c.DTypes {
		s, err := generate(ctx, c, d)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// The shape of generated pages.
const (
	genTokens = 64
	genHeads  = 8
	genDim    = 128
)

var generated = map[kvfile.DType]kvgen.Element{kvfile.BF16: kvgen.BF16, kvfile.FP16: kvgen.FP16, kvfile.FP8E4M3: kvgen.E4M3, kvfile.FP8E5M2: kvgen.E5M2}

// generate makes pages, K and V in turn.
func generate(ctx context.Context, c Config, d kvfile.DType) (*set, error) {
	s := &set{dtype: d, from: Data{DType: rowDType(d), Source: fmt.Sprintf("kvgen, seed %d", c.Seed)}}
	for i := range c.Pages {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		g := kvgen.Config{
			Kind: kvgen.Kind(i % 2), Tokens: genTokens, Heads: genHeads, HeadDim: genDim, Layer: i / 2, Layers: c.Pages/2 + 1, Seed: c.Seed, Element: generated[d],
		}
		p := make([]byte, g.Bytes())
		if err := kvgen.Generate(p, g); err != nil {
			return nil, err
		}
		s.pages = append(s.pages, p)
	}
	s.finish(c.Pages)
	return s, nil
}

// read takes n pages of a file, spread evenly; 0: as many as fit in fileBytes. All of the file is read, so that all of it is verified.
func read(ctx context.Context, r *kvfile.Reader, n int) (*set, error) {
	h := r.Header()
	if n == 0 {
		n = min(h.Pages, max(1, fileBytes/h.PageBytes))
	}
	s := &set{dtype: h.DType, from: Data{DType: rowDType(h.DType), Source: h.Source, Model: h.Model, Kind: string(h.Kind)}}
	p := make([]byte, h.PageBytes)
	for i := 0; ; i++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		err := r.ReadPage(p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if i*n/h.Pages != (i+1)*n/h.Pages { // n of all i
			s.pages = append(s.pages, p)
			p = make([]byte, h.PageBytes)
		}
	}
	if len(s.pages) == 0 {
		return nil, errors.New("the file has been read already")
	}
	s.finish(h.Pages)
	return s, nil
}

// finish works out what is said of the pages.
func (s *set) finish(all int) {
	sum := sha256.New()
	raw, least := 0.0, 0.0
	for _, p := range s.pages {
		_, _ = sum.Write(p) // documented never to fail
		raw += 8 * float64(len(p))
		least += entropy(p, s.dtype)
	}
	s.bound = math.Inf(1)
	if least > 0 {
		s.bound = raw / least
	}
	s.from.Pages, s.from.Of, s.from.PageBytes = len(s.pages), all, len(s.pages[0])
	s.from.BitsPerElement = least / raw * 8 * float64(s.dtype.Bytes())
	s.from.SHA256 = hex.EncodeToString(sum.Sum(nil))
}

// entropy is the bits that order-0 codes of a page need at least, each half of it having its own, since a page holds K and then V: of
// BF16 the exponents and the rest apart, of FP16 the high and the low bytes, of FP8 the bytes.
func entropy(p []byte, d kvfile.DType) (bits float64) {
	half := len(p) / 2 / d.Bytes() * d.Bytes()
	for _, part := range [][]byte{p[:half], p[half:]} {
		var counts [2][256]float64
		switch d {
		case kvfile.BF16:
			for j := 0; j < len(part); j += 2 {
				counts[0][part[j+1]<<1|part[j]>>7]++
				counts[1][part[j+1]&0x80|part[j]&0x7f]++
			}
		case kvfile.FP16:
			for j := 0; j < len(part); j += 2 {
				counts[0][part[j+1]]++
				counts[1][part[j]]++
			}
		case kvfile.FP8E4M3, kvfile.FP8E5M2:
			for _, b := range part {
				counts[0][b]++
			}
		}
		n := float64(len(part) / d.Bytes())
		for _, h := range counts {
			for _, k := range h {
				if k > 0 {
					bits -= k * math.Log2(k/n)
				}
			}
		}
	}
	return bits
}

// rowDType is the element's name in results: fp8 is E4M3, as engines have it.
func rowDType(d kvfile.DType) string {
	if d == kvfile.FP8E4M3 {
		return "fp8"
	}
	return string(d)
}
