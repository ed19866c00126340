package kvgen

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/kvferry/kvferry/transfer/codec"
)

func make16(t testing.TB, c Config) []byte {
	t.Helper()
	b := make([]byte, c.Bytes())
	if err := Generate(b, c); err != nil {
		t.Fatal(err)
	}
	return b
}

func entropy(counts []float64) float64 {
	n, bits := 0.0, 0.0
	for _, c := range counts {
		n += c
	}
	for _, c := range counts {
		if c > 0 {
			bits -= c / n * math.Log2(c/n)
		}
	}
	return bits
}

// statistics returns bits an element at order 0, exponents and the rest apart, the share of exponents outside the sixteen
// commonest, and how much smaller the variance of the difference to the token before is.
func statistics(b []byte, c Config) (bits, escapes, delta float64) {
	exps, rest := make([]float64, 256), make([]float64, 256)
	n := len(b) / 2
	value := func(i int) float64 {
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
	}
	var sum, square, diff float64
	pairs := 0
	for i := range n {
		v := binary.LittleEndian.Uint16(b[2*i:])
		exps[v>>7&0xff]++
		rest[v>>8&0x80|v&0x7f]++
		x := value(i)
		sum, square = sum+x, square+x*x
		if i/c.HeadDim%c.Tokens > 0 {
			dx := x - value(i-c.HeadDim)
			diff, pairs = diff+dx*dx, pairs+1
		}
	}
	bits = entropy(exps) + entropy(rest)
	slices.SortFunc(exps, func(a, b float64) int { return cmp.Compare(b, a) })
	for _, e := range exps[16:] {
		escapes += e / float64(n)
	}
	return bits, escapes, (square/float64(n) - sum*sum/float64(n*n)) / (diff / float64(pairs))
}

// TestStatistics holds the values to what is known of real caches.
func TestStatistics(t *testing.T) {
	for _, tt := range []struct {
		name               string
		kind               Kind
		bits, lower, upper float64
	}{{"V", V, 10.69, 0.8, 1.1}, {"K", K, 10.85, 2.3, 3.4}} {
		c := Config{Kind: tt.kind, Tokens: 256, Heads: 64, HeadDim: 128, Layer: 20, Layers: 40, Seed: 1}
		bits, escapes, delta := statistics(make16(t, c), c)
		t.Logf("%s: %.3f bits, escapes %.4f %%, Var(x)/Var(delta) %.2f", tt.name, bits, 100*escapes, delta)
		if math.Abs(bits-tt.bits) > 0.05 {
			t.Errorf("%s: %.3f bits an element, want %.2f ± 0.05", tt.name, bits, tt.bits)
		}
		if escapes <= 0 || escapes > 0.001 {
			t.Errorf("%s: %.4f %% escapes, want a few hundredths", tt.name, 100*escapes)
		}
		if delta < tt.lower || delta > tt.upper {
			t.Errorf("%s: Var(x)/Var(delta) %.2f, want %.1f to %.1f", tt.name, delta, tt.lower, tt.upper)
		}
	}
}

// TestGenerate has the same configuration give the same bytes, and any other one others.
func TestGenerate(t *testing.T) {
	base := Config{Kind: K, Tokens: 16, Heads: 2, HeadDim: 64, Layers: 4, Seed: 7}
	want := make16(t, base)
	if !bytes.Equal(want, make16(t, base)) {
		t.Error("one configuration gave two results")
	}
	for name, edit := range map[string]func(*Config){
		"seed": func(c *Config) { c.Seed++ }, "layer": func(c *Config) { c.Layer++ }, "kind": func(c *Config) { c.Kind = V }, "first": func(c *Config) { c.First = 16 },
	} {
		c := base
		edit(&c)
		if bytes.Equal(want, make16(t, c)) {
			t.Errorf("another %s gave the same", name)
		}
	}
	for name, edit := range map[string]func(*Config){
		"kind": func(c *Config) { c.Kind = 2 }, "element": func(c *Config) { c.Element = 4 }, "channels": func(c *Config) { c.HeadDim = 63 },
		"tokens": func(c *Config) { c.Tokens = 0 }, "layer": func(c *Config) { c.Layer = 4 }, "first": func(c *Config) { c.First = -1 }, "length": func(c *Config) { c.Heads = 3 },
	} {
		c := base
		edit(&c)
		if Generate(make([]byte, len(want)), c) == nil {
			t.Errorf("a bad %s was taken", name)
		}
	}
}

// TestSmall has every finite pattern of the small floats come back from its own value, and halves go to even.
func TestSmall(t *testing.T) {
	for _, f := range []struct {
		exponent, mantissa int
		most               uint32
	}{{4, 3, 0x7e}, {5, 2, 0x7b}, {5, 10, 0x7bff}} {
		value := func(b uint32) float64 {
			e, m := int(b>>f.mantissa), float64(b&(1<<f.mantissa-1))
			bias := 1<<(f.exponent-1) - 1
			if e == 0 {
				return math.Ldexp(m, 1-bias-f.mantissa)
			}
			return math.Ldexp(m+float64(int(1)<<f.mantissa), e-bias-f.mantissa)
		}
		sign := uint32(1) << (f.exponent + f.mantissa)
		for b := range f.most + 1 {
			if got := small(float32(value(b)), f.exponent, f.mantissa, f.most); got != b {
				t.Fatalf("%v: %#x became %#x", f, b, got)
			}
			if got := small(float32(math.Copysign(value(b), -1)), f.exponent, f.mantissa, f.most); got != b|sign {
				t.Fatalf("%v: -%#x became %#x", f, b, got)
			}
			if b < f.most {
				if got := small(float32((value(b)+value(b+1))/2), f.exponent, f.mantissa, f.most); got != b+b&1 {
					t.Fatalf("%v: half above %#x became %#x", f, b, got)
				}
			}
		}
		if got := small(1e30, f.exponent, f.mantissa, f.most); got != f.most {
			t.Errorf("%v: 1e30 became %#x", f, got)
		}
	}
}

// TestCodecs has the codecs reach on these values what their entropy allows.
func TestCodecs(t *testing.T) {
	var s codec.Scratch
	for _, kind := range []Kind{K, V} {
		c := Config{Kind: kind, Tokens: 64, Heads: 8, HeadDim: 128, Layer: 3, Layers: 8, Seed: 3}
		page := make16(t, c)
		bits, _, _ := statistics(page, c)
		coded, err := codec.Encode(codec.Huff, nil, page, &s)
		if err != nil {
			t.Fatal(err)
		}
		got, bound := float64(len(page))/float64(len(coded)), 16/bits
		t.Logf("kind %d: huff %.4f of a bound of %.4f", kind, got, bound)
		if got < 0.97*bound || got > 1.001*bound {
			t.Errorf("kind %d: huff %.4f of a bound of %.4f", kind, got, bound)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	for name, kind := range map[string]Kind{"K": K, "V": V} {
		b.Run(name, func(b *testing.B) {
			c := Config{Kind: kind, Tokens: 64, Heads: 8, HeadDim: 128}
			dst := make([]byte, c.Bytes())
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				if err := Generate(dst, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestElements: the elements are roundings of the same values, and have the entropy that leaves the codecs what they make of them:
// FP16 1.16 to 1.18, E4M3 1.16 to 1.22 at order 0.
func TestElements(t *testing.T) {
	for _, kind := range []Kind{K, V} {
		for _, layer := range []int{0, 20, 39} {
			c := Config{Kind: kind, Tokens: 64, Heads: 8, HeadDim: 128, Layer: layer, Layers: 40, Seed: 1}
			bf := make16(t, c)
			c.Element = FP16
			fp16 := make16(t, c)
			c.Element = E4M3
			fp8 := make16(t, c)
			if len(fp16) != len(bf) || len(fp8) != len(bf)/2 {
				t.Fatalf("%d, %d and %d bytes", len(bf), len(fp16), len(fp8))
			}
			high, low, bytes8 := make([]float64, 256), make([]float64, 256), make([]float64, 256)
			clipped, gain, most := 0, 0.0, 0.0
			for i := range fp8 {
				x := float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(bf[2*i:])) << 16))
				y := float(uint32(binary.LittleEndian.Uint16(fp16[2*i:])), 5, 10)
				if math.Abs(x-y) > math.Abs(x)/200+1e-6 {
					t.Fatalf("kind %d layer %d: value %d is %g as BF16 and %g as FP16", kind, layer, i, x, y)
				}
				z := float(uint32(fp8[i]), 4, 3)
				if most = max(most, math.Abs(z)); math.Abs(z) > 32 && math.Abs(z) < 448 {
					if gain == 0 {
						gain = z / x
					}
					if r := z / x / gain; r < 0.87 || r > 1.15 { // two roundings of at most 1/16 each
						t.Fatalf("kind %d layer %d: value %d is %g as E4M3, %g times as much, not %g", kind, layer, i, z, z/x, gain)
					}
				}
				high[fp16[2*i+1]]++
				low[fp16[2*i]]++
				bytes8[fp8[i]]++
				if fp8[i]&0x7f == 0x7e {
					clipped++
				}
			}
			bits16, bits8 := entropy(high)+entropy(low), entropy(bytes8)
			t.Logf("kind %d layer %2d: FP16 %.3f bits (%.3f), E4M3 %.3f bits (%.3f), %d of %d at its end", kind, layer, bits16, 16/bits16, bits8, 8/bits8, clipped, len(fp8))
			if bits16 < 13.55 || bits16 > 13.85 {
				t.Errorf("kind %d layer %d: FP16 has %.3f bits, want 13.55 to 13.85", kind, layer, bits16)
			}
			if bits8 < 6.55 || bits8 > 6.9 {
				t.Errorf("kind %d layer %d: E4M3 has %.3f bits, want 6.55 to 6.9", kind, layer, bits8)
			}
			if most < 200 || clipped > len(fp8)/1000 {
				t.Errorf("kind %d layer %d: values to %g, %d of %d clipped: want a scale that uses the range", kind, layer, most, clipped, len(fp8))
			}
		}
	}
}

// float is the value of a small float's bits.
func float(b uint32, exponent, mantissa int) float64 {
	sign := 1.0
	if b>>(exponent+mantissa) == 1 {
		sign, b = -1, b&^(1<<(exponent+mantissa))
	}
	e, m := int(b>>mantissa), float64(b&(1<<mantissa-1))
	bias := 1<<(exponent-1) - 1
	if e == 0 {
		return sign * math.Ldexp(m, 1-bias-mantissa)
	}
	return sign * math.Ldexp(m+float64(int(1)<<mantissa), e-bias-mantissa)
}
