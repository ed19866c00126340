package kvgen

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

// A Kind is the half of a page.
type Kind uint8

// The kinds.
const (
	K Kind = iota // keys, rotated by position
	V
)

// An Element is how values are stored, little-endian.
type Element uint8

// The elements, all of the same values, rounded to nearest, ties to even. Those of FP8 are divided by one scale a kind and layer first, so
// that the largest that calibration finds is the element's largest, as engines do it. Values beyond become the largest finite one.
const (
	BF16 Element = iota
	FP16
	E4M3 // finite to ±448
	E5M2 // finite to ±57344
)

// Bytes returns the size of an element.
func (e Element) Bytes() int {
	if e == E4M3 || e == E5M2 {
		return 1
	}
	return 2
}

// Config says what to generate.
type Config struct {
	// Kind is K or V.
	Kind Kind
	// Tokens, Heads and HeadDim are the shape, each at least 1. HeadDim is even.
	Tokens, Heads, HeadDim int
	// First is the position of the first token. The first two tokens of a session are attention sinks with small keys.
	First int
	// Layer, of Layers, sets the scale of values, which grows with depth. Zero Layers means 1.
	Layer, Layers int
	// Seed is of everything random. Seed, Kind, Layer and head fix the channels; First changes the tokens.
	Seed uint64
	// Element is how values are stored. The zero value is BF16.
	Element Element
}

// Bytes returns how long what Generate fills is.
func (c Config) Bytes() int { return c.Tokens * c.Heads * c.HeadDim * c.Element.Bytes() }

func (c Config) check(n int) error {
	switch {
	case c.Kind > V:
		return fmt.Errorf("kvgen: kind %d, want K or V", c.Kind)
	case c.Element > E5M2:
		return fmt.Errorf("kvgen: element %d, want BF16, FP16, E4M3 or E5M2", c.Element)
	case c.Tokens < 1 || c.Heads < 1 || c.HeadDim < 2 || c.HeadDim%2 != 0:
		return fmt.Errorf("kvgen: %d tokens, %d heads of %d channels, want at least 1, 1 and an even number", c.Tokens, c.Heads, c.HeadDim)
	case c.First < 0 || c.Layer < 0 || c.Layer >= max(c.Layers, 1):
		return fmt.Errorf("kvgen: first token %d, layer %d of %d, want none negative and a layer below the number of layers", c.First, c.Layer, max(c.Layers, 1))
	case n != c.Bytes():
		return fmt.Errorf("kvgen: %d bytes to fill, want %d", n, c.Bytes())
	}
	return nil
}

// shape is the statistics of a kind.
type shape struct {
	low, high       float64 // scale of the first and the last layer
	spread, mean    float64 // of the channels' log scale, of their means in scales
	outliers, far   float64 // share of the channels far off, and how far, in scales
	alike, loudness float64 // correlation of a token with the one before, deviation of the tokens' log scale
}

var shapes = [...]shape{
	K: {low: 0.8, high: 3, spread: 0.5, mean: 0.5, outliers: 0.03, far: 8, alike: 0.6, loudness: 0.1},
	V: {low: 0.05, high: 1.5, spread: 0.35, mean: 0.1, alike: 0.5, loudness: 0.25},
}

const (
	ropeBase  = 5e5
	sinks     = 2
	sinkScale = 0.3
)

// Generate fills dst, whose length is c.Bytes(), with heads × tokens × channels. The same Config gives the same bytes on one
// architecture. Errors: a Config or a length that is not allowed, with dst as it was.
func Generate(dst []byte, c Config) error {
	if err := c.check(len(dst)); err != nil {
		return err
	}
	sh, d := shapes[c.Kind], c.HeadDim
	scale := sh.low * math.Pow(sh.high/sh.low, float64(c.Layer)/float64(max(c.Layers-1, 1)))
	mean, dev := make([]float32, d), make([]float32, d)
	state, x := make([]float32, d), make([]float32, d)
	var cos, sin []float32
	if c.Kind == K {
		cos, sin = rotations(c.First, c.Tokens, d)
	}
	alike, fresh := float32(sh.alike), float32(math.Sqrt(1-sh.alike*sh.alike))
	at, gain := 0, c.gain(scale)
	for h := range c.Heads {
		stream := c.stream(h)
		channels(mean, dev, sh, scale, rand.New(rand.NewPCG(c.Seed, stream)))
		rng := rand.New(rand.NewPCG(c.Seed^0x9e3779b97f4a7c15*uint64(c.First+1), stream))
		for i := range state {
			state[i] = float32(rng.NormFloat64())
		}
		for n := range c.Tokens {
			loud := float32(math.Exp(sh.loudness * rng.NormFloat64()))
			if c.Kind == K && c.First+n < sinks {
				loud *= sinkScale
			}
			for i := range x {
				state[i] = alike*state[i] + fresh*float32(rng.NormFloat64())
				x[i] = loud * (mean[i] + dev[i]*state[i])
			}
			if c.Kind == K {
				rotate(x, cos[n*d/2:], sin[n*d/2:])
			}
			for i := range x {
				x[i] *= gain
			}
			at += store(dst[at:], x, c.Element)
		}
	}
	return nil
}

// stream names the random numbers of a head.
func (c Config) stream(head int) uint64 {
	return uint64(c.Layer)<<32 | uint64(head)<<1 | uint64(c.Kind)
}

// reach is how far a channel is taken to go from its mean, in deviations, when scales are calibrated. Loud tokens of a few channels go
// beyond and are clipped, as in engines that calibrate on a sample.
const reach = 4

// gain is what values are multiplied with before they are rounded: 1 but for FP8.
func (c Config) gain(scale float64) float32 {
	largest := map[Element]float32{E4M3: 448, E5M2: 57344}[c.Element]
	if largest == 0 {
		return 1
	}
	mean, dev := make([]float32, c.HeadDim), make([]float32, c.HeadDim)
	var most float32
	for h := range c.Heads {
		channels(mean, dev, shapes[c.Kind], scale, rand.New(rand.NewPCG(c.Seed, c.stream(h))))
		for i, m := range mean {
			most = max(most, max(m, -m)+reach*max(dev[i], -dev[i]))
		}
	}
	return largest / most
}

// channels draws the channels of a head.
func channels(mean, dev []float32, sh shape, scale float64, rng *rand.Rand) {
	d := len(mean)
	for i := range mean {
		s := scale * math.Exp(sh.spread*rng.NormFloat64())
		m := sh.mean * s * rng.NormFloat64()
		// Channels far off are among those that turn slowly.
		if far := rng.Float64(); i%(d/2) >= d/4 && far < 2*sh.outliers {
			m = (0.6 + 0.8*rng.Float64()) * sh.far * scale
			s = 0.15 * m
			if rng.Uint64()&1 == 0 {
				m = -m
			}
		}
		mean[i], dev[i] = float32(m), float32(s)
	}
}

// rotations returns, token by token, cosine and sine of the angle of each pair of channels.
func rotations(first, tokens, d int) (cos, sin []float32) {
	cos, sin = make([]float32, tokens*d/2), make([]float32, tokens*d/2)
	for i := range d / 2 {
		step := math.Pow(ropeBase, -2*float64(i)/float64(d))
		for n := range tokens {
			s, c := math.Sincos(step * float64(first+n))
			cos[n*d/2+i], sin[n*d/2+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}

// rotate turns each channel of the first half with its partner of the second.
func rotate(x, cos, sin []float32) {
	half := len(x) / 2
	for i := range half {
		a, b := x[i], x[half+i]
		x[i], x[half+i] = a*cos[i]-b*sin[i], a*sin[i]+b*cos[i]
	}
}

// store writes x to dst and returns how many bytes that was.
func store(dst []byte, x []float32, e Element) int {
	for i, v := range x {
		switch e {
		case BF16:
			b := math.Float32bits(v)
			binary.LittleEndian.PutUint16(dst[2*i:], uint16((b+0x7fff+b>>16&1)>>16))
		case FP16:
			binary.LittleEndian.PutUint16(dst[2*i:], uint16(small(v, 5, 10, 0x7bff)))
		case E4M3:
			dst[i] = byte(small(v, 4, 3, 0x7e))
		case E5M2:
			dst[i] = byte(small(v, 5, 2, 0x7b))
		}
	}
	return len(x) * e.Bytes()
}

// small rounds v, to even, to a float of so many bits of exponent and mantissa whose largest finite one is most.
func small(v float32, exponent, mantissa int, most uint32) uint32 {
	if v == 0 {
		return math.Float32bits(v) >> 31 << (exponent + mantissa)
	}
	least := 2 - 1<<(exponent-1) // exponent of the smallest normal value
	_, e := math.Frexp(math.Abs(float64(v)))
	e = max(e-1, least)
	q := math.RoundToEven(math.Ldexp(math.Abs(float64(v)), mantissa-e))
	b := min(uint32(e-least)<<mantissa+uint32(q), most)
	return b | math.Float32bits(v)>>31<<(exponent+mantissa)
}
