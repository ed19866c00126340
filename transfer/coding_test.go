package transfer

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// cores is what tests take a node for.
const cores = 2.0

// seen is a probe that saw no more than the windows let through, which leaves the formula alone.
var seen = probe{rate: 1, until: start.Add(time.Hour)}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestChooseCodec holds the choice against what each way takes a byte, by brute
// force over the codecs.
func TestChooseCodec(t *testing.T) {
	for _, tc := range []struct {
		name    string
		mode    string
		element codec.Element
		rate    float64 // bytes a second; 0: unknown
		mask    uint64
		want    codec.ID
	}{
		{"slow link", CodecAuto, codec.BF16, 10e6, codecMask(), codec.Huff},
		{"slow link, FP8", CodecAuto, codec.FP8, 10e6, codecMask(), codec.Huff8},
		{"slow link, FP16", CodecAuto, codec.FP16, 10e6, codecMask(), codec.Huff16},
		{"slow link, no floats", CodecAuto, codec.Opaque, 10e6, codecMask(), codec.Zstd},
		{"nothing known of the pages", CodecAuto, codec.Unknown, 10e6, codecMask(), codec.Raw},
		{"faster than the processors", CodecAuto, codec.BF16, 1e12, codecMask(), codec.Raw},
		{"nothing known of the link: the processors are all there is", CodecAuto, codec.BF16, 0, codecMask(), codec.Raw},
		{"the peer decodes nothing", CodecAuto, codec.BF16, 10e6, 0, codec.Raw},
		{"the peer decodes split4", CodecAuto, codec.BF16, 10e6, 1 << codec.Split4, codec.Split4},
		{"off", CodecOff, codec.BF16, 10e6, codecMask(), codec.Raw},
		{"by name", "split4", codec.BF16, 1e12, codecMask(), codec.Split4},
		{"by name, which the peer does not decode", "split4", codec.BF16, 10e6, 1 << codec.Huff, codec.Raw},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := coder{mode: tc.mode, cores: cores}
			k.meet(tc.mask)
			if got := k.choose(tc.element, pathRate{rate: tc.rate}, start); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if tc.mode == CodecAuto && k.choose(tc.element, pathRate{rate: tc.rate}, start) != tc.want {
				t.Error("chooses otherwise the second time")
			}
		})
	}
	for rate := 1e6; rate < 1e12; rate *= 1.3 {
		k := coder{mode: CodecAuto, cores: cores, probe: seen}
		k.meet(codecMask())
		w := ways{rate: rate, cores: cores}
		best, least := codec.Raw, w.time(raw)
		for _, id := range []codec.ID{codec.Huff, codec.Split4} {
			if d := w.time(priors[id]); d*codedMargin < least {
				best, least = id, d*codedMargin
			}
		}
		if got := k.choose(codec.BF16, pathRate{rate: rate}, start); got != best {
			t.Errorf("%v at %g bytes a second, want %v", got, rate, best)
		}
	}
}

// TestCodecHysteresis has a choice stay while another one is faster by less than
// the margin, and change beyond.
func TestCodecHysteresis(t *testing.T) {
	h := priors[codec.Huff]
	same := cores / (h.ratio * (h.cost + sendCost/h.ratio)) // where the path and the processors take as long
	even := cores / (h.cost + sendCost/h.ratio)             // and where raw and coded bytes do
	if even < same {
		t.Fatalf("%g and %g", even, same)
	}
	changes := func(from, to float64) (at float64) {
		k := coder{mode: CodecAuto, cores: cores}
		k.meet(1 << codec.Huff)
		was := k.choose(codec.BF16, pathRate{rate: from}, start)
		for rate := from; ; {
			if rate *= 1.001; from > to {
				rate /= 1.002
			}
			k.probe = seen
			if now := k.choose(codec.BF16, pathRate{rate: rate}, start); now != was {
				return rate
			}
			if (rate > to) == (from < to) {
				t.Fatalf("%v from %g to %g", was, from, to)
			}
		}
	}
	up, down := changes(even/4, even*4), changes(even*4, even/4)
	if up < even*1.02 || down > even*0.98 {
		t.Errorf("raw from %g on, coded again below %g; both take as long at %g", up, down, even)
	}
}

// TestCodecGivesUp has chunks that do not shrink make the next ones go raw, unseen,
// for twice as many each time, until one does shrink.
func TestCodecGivesUp(t *testing.T) {
	k := coder{mode: CodecAuto, cores: cores}
	k.meet(codecMask())
	raws := func() (n int) {
		for ; k.choose(codec.BF16, pathRate{rate: 10e6}, start) == codec.Raw; n++ {
		}
		return n
	}
	for _, want := range []int{0, 2, 4, 8, 16, 32, 64, 64} {
		if n := raws(); n != want {
			t.Fatalf("%d chunks raw, want %d", n, want)
		}
		if k.coded(codec.BF16, codec.Huff, 1000, 981, time.Microsecond, start) {
			t.Fatal("a gain of 1.9 % is enough")
		}
	}
	raws()
	if !k.coded(codec.BF16, codec.Huff, 1000, 980, time.Microsecond, start) {
		t.Fatal("a gain of 2 % is not enough")
	}
	if n := raws(); n != 0 {
		t.Errorf("%d chunks raw after one that shrank", n)
	}
}

// TestCodecLearns moves from what a codec was taken for to what it does.
func TestCodecLearns(t *testing.T) {
	k := coder{mode: CodecAuto, cores: cores}
	k.meet(1<<codec.Huff | 1<<codec.Split4)
	if id := k.choose(codec.BF16, pathRate{rate: 50e6}, start); id != codec.Huff {
		t.Fatal(id)
	}
	for range 60 { // Huffman turns out to be slower than the link
		k.coded(codec.BF16, codec.Huff, 1e6, 7e5, 200*time.Millisecond, start)
	}
	if id := k.choose(codec.BF16, pathRate{rate: 50e6}, start); id != codec.Split4 {
		t.Errorf("%v with Huffman at 5 MB/s, want split4", id)
	}
}

// TestCodecTriedAgain has a codec that was too slow coded with once more in time, and believed.
func TestCodecTriedAgain(t *testing.T) {
	k := coder{mode: CodecAuto, cores: cores}
	k.meet(1 << codec.Huff)
	const chunk, coded = 1_000_000, 700_000
	k.choose(codec.BF16, pathRate{rate: 50e6}, start)
	for range 60 {
		k.coded(codec.BF16, codec.Huff, chunk, coded, 200*time.Millisecond, start)
	}
	tries := func(from, to time.Duration) (n int) {
		for at := from; at < to; at += 100 * time.Millisecond {
			if k.choose(codec.BF16, pathRate{rate: 50e6}, start.Add(at)) == codec.Huff {
				n++
				k.coded(codec.BF16, codec.Huff, chunk, coded, 200*time.Millisecond, start.Add(at))
			}
		}
		return n
	}
	if n := tries(0, retryAfter); n != 0 {
		t.Errorf("%d chunks coded while it is too slow", n)
	}
	if n := tries(retryAfter, 3*retryAfter); n != 2 {
		t.Errorf("%d tries in twice the time between them", n)
	}
	at := start.Add(4 * retryAfter)
	for range 2 { // the second is chosen before the first is coded
		k.choose(codec.BF16, pathRate{rate: 50e6}, at)
	}
	if id := k.choose(codec.BF16, pathRate{rate: 50e6}, at); id != codec.Raw {
		t.Errorf("tried with %v while a try is under way", id)
	}
	k.coded(codec.BF16, codec.Huff, chunk, coded, chunk*time.Nanosecond, at) // the processors are free again
	for range 20 {
		if id := k.choose(codec.BF16, pathRate{rate: 50e6}, at); id != codec.Huff {
			t.Fatalf("%v after a chunk that was coded as fast as at first", id)
		}
	}
	if id := k.choose(codec.BF16, pathRate{rate: 1e12}, at.Add(retryAfter)); id != codec.Raw {
		t.Errorf("tried with %v where it cannot pay", id)
	}
}

// TestCodecProbes: where the processors hold the flow of coded pages, the windows say no more of the path than that. The choice is still
// the best one by brute force over what the path really carries, and looking costs less than one percent.
func TestCodecProbes(t *testing.T) {
	const step, rtt, slow = 10 * time.Millisecond, 70 * time.Millisecond, 0.02
	for _, path := range []float64{50e6, 400e6, 600e6, 800e6, 1e9, 1.5e9, 3e9} {
		for _, decode := range []float64{0.4e-9, 2e-9, 4e-9, 20e-9} {
			k := coder{mode: CodecAuto, cores: 4}
			k.meet(1<<codec.Huff | wire.TakesCosts)
			k.heed(wire.Costs{Cores: 4, Codecs: []wire.Cost{{Codec: uint8(codec.Huff), Decode: picoseconds(decode)}}})
			h := priors[codec.Huff]
			h.decode = decode
			real := ways{rate: path, cores: 4, peerCores: 4}
			rates := map[codec.ID]float64{codec.Raw: 1 / real.time(raw), codec.Huff: 1 / real.time(h)} // page bytes a second
			travels := map[codec.ID]float64{codec.Raw: rates[codec.Raw], codec.Huff: rates[codec.Huff] / h.ratio}
			window, landed := 20e6, 0.0
			const settle, whole = 60 * time.Second, 900 * time.Second
			for at := time.Duration(0); at < whole; at += step {
				id := k.choose(codec.BF16, pathRate{window, rtt}, start.Add(at))
				if at >= settle {
					landed += rates[id] * step.Seconds()
				}
				// Windows grow while they hold the flow, and only then: by a fiftieth a round trip, as where connections come one by one.
				if travels[id] >= window {
					window = min(path, window*(1+slow*float64(step)/float64(rtt)))
				}
			}
			best := max(rates[codec.Raw], rates[codec.Huff])
			got := landed / (whole - settle).Seconds()
			if got < 0.94*best { // what is in use keeps a margin of 5 %
				t.Errorf("path %g, decode %g: %.3g bytes a second, raw %.3g, coded %.3g", path, decode, got, rates[codec.Raw], rates[codec.Huff])
			}
			if rates[codec.Huff] > codedMargin*rates[codec.Raw] && got < 0.99*rates[codec.Huff] || rates[codec.Raw] > codedMargin*rates[codec.Huff] && got < 0.99*rates[codec.Raw] {
				t.Errorf("path %g, decode %g: %.4g bytes a second of %.4g", path, decode, got, best)
			}
		}
	}
}
