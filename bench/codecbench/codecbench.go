// Package codecbench measures what the codecs of transfer/codec make of KV values, beside zstd and s2 on the same pages.
//
// # Usage
//
// [Run] with a [Config]. Codecs take turns, a round each, and the medians of the rounds count.
//
// # Concurrency
//
// One Run at a time: it measures the processor's time.
//
// # Limitations
//
// One goroutine, pages from bench/kvgen, half K and half V.
package codecbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/kvferry/kvferry/bench/kvgen"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/transfer/codec"
)

// Config says what to measure. Zero means the documented default.
type Config struct {
	Pages  int    `json:"pages"`  // of 64 tokens, 8 heads and 128 channels, BF16: 128 KiB. Default 64
	Rounds int    `json:"rounds"` // Default 7
	Seed   uint64 `json:"seed"`
}

// Codec is one codec's medians. A GB is 1e9 bytes of pages before coding.
type Codec struct {
	Name            string  `json:"name"`
	Ratio           float64 `json:"ratio"`
	BoundRatio      float64 `json:"bound_ratio"` // what order-0 entropy of exponents and of the rest allows
	EncodeGBps      float64 `json:"encode_gbps_core"`
	DecodeGBps      float64 `json:"decode_gbps_core"`
	CPUSecondsPerGB float64 `json:"cpu_seconds_per_gb"` // both ends

	encode, decode, cpu []float64
}

// Result is what Run measured.
type Result struct {
	Codecs []Codec `json:"codecs"`

	cfg         Config
	interrupted bool
}

type coder struct {
	name   string
	encode func(dst, src []byte) ([]byte, error)
	decode func(dst, src []byte) error
}

func coders() ([]coder, error) {
	var cs []coder
	for _, id := range []codec.ID{codec.Huff, codec.Split4} {
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
	general := []coder{
		{
			"zstd", func(dst, src []byte) ([]byte, error) { return enc.EncodeAll(src, dst), nil },
			func(dst, src []byte) error { _, err := dec.DecodeAll(src, dst[:0]); return err },
		},
		{
			"s2", func(dst, src []byte) ([]byte, error) { return s2.Encode(dst[:cap(dst)], src), nil },
			func(dst, src []byte) error { _, err := s2.Decode(dst, src); return err },
		},
	}
	for _, g := range general {
		plane := make([]byte, 0)
		cs = append(cs, g, coder{g.name + "-planes", func(dst, src []byte) ([]byte, error) {
			plane = slices.Grow(plane[:0], len(src))[:len(src)]
			for i := range len(src) / 2 {
				plane[i], plane[len(src)/2+i] = src[2*i+1], src[2*i]
			}
			return g.encode(dst, plane)
		}, func(dst, src []byte) error {
			plane = slices.Grow(plane[:0], len(dst))[:len(dst)]
			if err := g.decode(plane, src); err != nil {
				return err
			}
			for i := range len(dst) / 2 {
				dst[2*i+1], dst[2*i] = plane[i], plane[len(dst)/2+i]
			}
			return nil
		}})
	}
	return cs, nil
}

// Run measures. When ctx ends it returns what whole rounds gave, and no error; the Result is nil when there is none.
func Run(ctx context.Context, c Config) (*Result, error) {
	c.Pages, c.Rounds = max(c.Pages, 0), max(c.Rounds, 0)
	if c.Pages == 0 {
		c.Pages = 64
	}
	if c.Rounds == 0 {
		c.Rounds = 7
	}
	cs, err := coders()
	if err != nil {
		return nil, err
	}
	pages, bound, err := generate(c)
	if err != nil {
		return nil, err
	}
	res := &Result{Codecs: make([]Codec, len(cs)), cfg: c}
	for range c.Rounds {
		for i, cd := range cs {
			if err := res.Codecs[i].round(cd, pages); err != nil {
				return nil, fmt.Errorf("%s: %w", cd.name, err)
			}
		}
		if res.interrupted = ctx.Err() != nil; res.interrupted {
			break
		}
	}
	for i := range res.Codecs {
		m := &res.Codecs[i]
		m.BoundRatio = bound
		m.EncodeGBps, m.DecodeGBps, m.CPUSecondsPerGB = results.Median(m.encode), results.Median(m.decode), results.Median(m.cpu)
	}
	return res, nil
}

func (m *Codec) round(cd coder, pages [][]byte) error {
	coded, total, short := make([][]byte, len(pages)), 0, 0
	room := make([][]byte, len(pages))
	for i, p := range pages {
		total += len(p)
		room[i] = make([]byte, 0, s2.MaxEncodedLen(len(p))+len(p)/8+256)
	}
	got := make([]byte, len(pages[0]))
	cpu, start := results.ProcessCPU(), time.Now()
	for i, p := range pages {
		b, err := cd.encode(room[i], p)
		if err != nil {
			return err
		}
		coded[i] = b
		short += len(b)
	}
	encoded := time.Now()
	for _, b := range coded {
		if err := cd.decode(got, b); err != nil {
			return err
		}
	}
	end := time.Now()
	spent := results.ProcessCPU() - cpu
	if !bytes.Equal(got, pages[len(pages)-1]) {
		return errors.New("a page came back as another")
	}
	gb := float64(total) / 1e9
	m.Name, m.Ratio = cd.name, float64(total)/float64(short)
	m.encode = append(m.encode, gb/encoded.Sub(start).Seconds())
	m.decode = append(m.decode, gb/end.Sub(encoded).Seconds())
	m.cpu = append(m.cpu, spent/gb)
	return nil
}

// generate makes pages, K and V in turn, and the ratio that the entropy of each page allows.
func generate(c Config) (pages [][]byte, bound float64, err error) {
	raw, least := 0.0, 0.0
	for i := range c.Pages {
		g := kvgen.Config{Kind: kvgen.Kind(i % 2), Tokens: 64, Heads: 8, HeadDim: 128, Layer: i / 2, Layers: c.Pages/2 + 1, Seed: c.Seed}
		p := make([]byte, g.Bytes())
		if err := kvgen.Generate(p, g); err != nil {
			return nil, 0, err
		}
		var counts [2][256]float64
		for j := 0; j < len(p); j += 2 {
			counts[0][p[j+1]<<1|p[j]>>7]++
			counts[1][p[j+1]&0x80|p[j]&0x7f]++
		}
		n := float64(len(p) / 2)
		for _, h := range counts {
			for _, k := range h {
				if k > 0 {
					least -= k * math.Log2(k/n) / 8
				}
			}
		}
		raw += float64(len(p))
		pages = append(pages, p)
	}
	return pages, raw / least, nil
}

// File returns the result in the schema of all benchmarks.
func (r *Result) File(command []string) (*results.File, error) {
	f := results.New(results.KindCodec, command, r.cfg)
	if err := f.SetBody(r); err != nil {
		return nil, err
	}
	for _, m := range r.Codecs {
		f.Add(results.Metric{Name: "encode/" + m.Name, Unit: "GB/s", Better: results.Higher, Samples: m.encode})
		f.Add(results.Metric{Name: "decode/" + m.Name, Unit: "GB/s", Better: results.Higher, Samples: m.decode})
	}
	f.Finish(r.interrupted)
	return f, nil
}

// Table shows the medians.
func (r *Result) Table() *results.Table {
	t := &results.Table{Title: "codecs on KV values, one core, GB are 1e9 bytes before coding"}
	for _, name := range []string{"codec", "ratio", "bound", "encode GB/s", "decode GB/s", "CPU s/GB"} {
		t.Columns = append(t.Columns, results.Column{Name: name})
	}
	for _, m := range r.Codecs {
		t.Row(m.Name, m.Ratio, m.BoundRatio, m.EncodeGBps, m.DecodeGBps, m.CPUSecondsPerGB)
	}
	return t
}
