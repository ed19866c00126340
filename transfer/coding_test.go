package transfer

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
)

// TestChooseCodec holds the choice against what each way takes a byte, by brute
// force over the codecs.
func TestChooseCodec(t *testing.T) {
	cores := float64(runtime.GOMAXPROCS(0))
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
			k := coder{mode: tc.mode}
			k.meet(tc.mask)
			if got := k.choose(tc.element, tc.rate); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if tc.mode == CodecAuto && k.choose(tc.element, tc.rate) != tc.want {
				t.Error("chooses otherwise the second time")
			}
		})
	}
	for rate := 1e6; rate < 1e12; rate *= 1.3 {
		k := coder{mode: CodecAuto}
		k.meet(codecMask())
		best, least := codec.Raw, raw.time(rate, cores)
		for _, id := range []codec.ID{codec.Huff, codec.Split4} {
			if d := priors[id].time(rate, cores); d*codedMargin < least {
				best, least = id, d*codedMargin
			}
		}
		if got := k.choose(codec.BF16, rate); got != best {
			t.Errorf("%v at %g bytes a second, want %v", got, rate, best)
		}
	}
}

// TestCodecHysteresis has a choice stay while another one is faster by less than
// the margin, and change beyond.
func TestCodecHysteresis(t *testing.T) {
	cores := float64(runtime.GOMAXPROCS(0))
	h := priors[codec.Huff]
	same := cores / (h.ratio * (h.cost + sendCost/h.ratio)) // where the path and the processors take as long
	even := cores / (h.cost + sendCost/h.ratio)             // and where raw and coded bytes do
	if even < same {
		t.Fatalf("%g and %g", even, same)
	}
	changes := func(from, to float64) (at float64) {
		k := coder{mode: CodecAuto}
		k.meet(1 << codec.Huff)
		was := k.choose(codec.BF16, from)
		for rate := from; ; {
			if rate *= 1.001; from > to {
				rate /= 1.002
			}
			if now := k.choose(codec.BF16, rate); now != was {
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
	k := coder{mode: CodecAuto}
	k.meet(codecMask())
	raws := func() (n int) {
		for ; k.choose(codec.BF16, 10e6) == codec.Raw; n++ {
		}
		return n
	}
	for _, want := range []int{0, 2, 4, 8, 16, 32, 64, 64} {
		if n := raws(); n != want {
			t.Fatalf("%d chunks raw, want %d", n, want)
		}
		if k.coded(codec.BF16, codec.Huff, 1000, 981, time.Microsecond) {
			t.Fatal("a gain of 1.9 % is enough")
		}
	}
	raws()
	if !k.coded(codec.BF16, codec.Huff, 1000, 980, time.Microsecond) {
		t.Fatal("a gain of 2 % is not enough")
	}
	if n := raws(); n != 0 {
		t.Errorf("%d chunks raw after one that shrank", n)
	}
}

// TestCodecLearns moves from what a codec was taken for to what it does.
func TestCodecLearns(t *testing.T) {
	k := coder{mode: CodecAuto}
	k.meet(1<<codec.Huff | 1<<codec.Split4)
	if id := k.choose(codec.BF16, 50e6); id != codec.Huff {
		t.Fatal(id)
	}
	for range 60 { // Huffman turns out to be slower than the link
		k.coded(codec.BF16, codec.Huff, 1e6, 7e5, 200*time.Millisecond)
	}
	if id := k.choose(codec.BF16, 50e6); id != codec.Split4 {
		t.Errorf("%v with Huffman at 5 MB/s, want split4", id)
	}
}
