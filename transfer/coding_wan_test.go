package transfer_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// bf16 is normal values, which lose a third of their bytes.
func bf16(seed uint64, bytes int) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, 0, bytes)
	for len(b) < bytes {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
	}
	return b
}

// TestCoded moves pages of BF16 over a slow link: they land bit for bit, in the time
// and bytes that their entropy allows; and raw where coding is off, or does not pay.
func TestCoded(t *testing.T) {
	pages := 128
	if raceEnabled {
		pages = 16
	}
	for _, tc := range []struct {
		name     string
		codec    string
		element  codec.Element
		content  func(seed uint64, n int) []byte
		low, top float64 // of page bytes over those on the wire, where a late last chunk may have gone twice
	}{
		{"auto", "", codec.BF16, bf16, 1.42, 1.52},
		{"split4", "split4", codec.BF16, bf16, 1.27, 1.34},
		{"off", transfer.CodecOff, codec.BF16, bf16, 0.95, 1},
		{"not known to be floats", "", codec.Unknown, bf16, 0.95, 1},
		{"noise", "", codec.BF16, func(seed uint64, n int) []byte { return random(seed, n) }, 0.95, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, "rtt=20ms,rate=100Mbps,loss=0")
				edit := func(c *transfer.Config) { c.Codec = tc.codec }
				p := &pull{src: f.open(1, edit), dst: f.open(2, edit), from: newProbe(tc.content(5, pages*pageBytes)), to: newProbe(make([]byte, pages*pageBytes))}
				from, to := p.from.memory(), p.to.memory()
				from.Element = tc.element
				theirs, mine := register(t, p.src, from), register(t, p.dst, to)
				link := connect(t, p.dst, p.src)
				var res transfer.Result
				for range 3 { // the first opens the windows, and another number is known from two on
					clear(p.to.b)
					var err error
					if res, err = readAll(t, link, mine, theirs, uint32(pages), transfer.TransferOptions{}); err != nil {
						t.Fatal(err)
					}
					p.equal(t)
				}
				ratio := float64(res.BytesTotal) / float64(res.WireBytes)
				est := link.Stats().Estimates
				t.Logf("ratio %.3f, estimated %.3f, %v, goodput %.1f MB/s", ratio, est.Ratio.Value, res.Duration, est.Goodput.Value/1e6)
				if ratio < tc.low || ratio > tc.top {
					t.Errorf("ratio %.3f, want %.2f to %.2f", ratio, tc.low, tc.top)
				}
				if !raceEnabled {
					ideal := 20*time.Millisecond + time.Duration(float64(res.WireBytes)*8/95e6*float64(time.Second))
					if res.Duration > ideal*5/4 || est.Ratio.Value < ratio-0.02 || est.Ratio.Value > ratio+0.06 {
						t.Errorf("took %v, ideally %v; ratio estimated %.3f", res.Duration, ideal, est.Ratio.Value)
					}
				}
			})
		})
	}
}

// TestCodedUnderACap: a rate holds what travels, so that coded pages land faster than it.
func TestCodedUnderACap(t *testing.T) {
	const pages, rate = 160, 2_000_000
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, "rtt=20ms,rate=100Mbps,loss=0")
		edit := func(c *transfer.Config) { c.MaxRate = rate }
		p := &pull{src: f.open(1, edit), dst: f.open(2, edit), from: newProbe(bf16(5, pages*pageBytes)), to: newProbe(make([]byte, pages*pageBytes))}
		from, to := p.from.memory(), p.to.memory()
		from.Element = codec.BF16
		theirs, mine := register(t, p.src, from), register(t, p.dst, to)
		res, err := readAll(t, connect(t, p.dst, p.src), mine, theirs, pages, transfer.TransferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.equal(t)
		// The last chunk is not waited for, and round trips are little.
		most := time.Duration(float64(res.WireBytes)/rate*1e9) + 200*time.Millisecond
		least := time.Duration(float64(res.WireBytes-2<<20)/rate*1e9) - 50*time.Millisecond
		if res.Duration < least || res.Duration > most || res.WireBytes*14 > res.BytesTotal*10 {
			t.Errorf("%d of %d bytes in %v, want %v to %v", res.WireBytes, res.BytesTotal, res.Duration, least, most)
		}
	})
}

// TestCodecName refuses codecs that do not exist.
func TestCodecName(t *testing.T) {
	err := transfer.Config{Codec: "lz4"}.Validate()
	fe, ok := errors.AsType[*transfer.FieldError](err)
	for e := err; !ok || fe.Field != "Config.Codec"; {
		joined, isJoined := e.(interface{ Unwrap() []error })
		if !isJoined {
			t.Fatalf("%v", err)
		}
		for _, one := range joined.Unwrap() {
			if f, is := errors.AsType[*transfer.FieldError](one); is && f.Field == "Config.Codec" {
				fe, ok = f, true
			}
		}
		if !ok {
			t.Fatalf("%v", err)
		}
	}
}

// timedCodecs take their time a page.
type timedCodecs struct{ encode, decode time.Duration }

func (c timedCodecs) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	time.Sleep(c.encode)
	return codec.Encode(id, dst, src, s)
}

func (c timedCodecs) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	time.Sleep(c.decode)
	return codec.Decode(id, dst, src, s)
}

// TestCodecRate: the receiving side knows what the slower end of the two codes or decodes, from what it measures and what it is told,
// and both count the same pages.
func TestCodecRate(t *testing.T) {
	const pages = 64
	for name, tc := range map[string]struct {
		src, dst timedCodecs
		slower   func(ratio float64) float64 // raw bytes a second
	}{
		// 3 processors code, 2 decode; a byte costs 2 ns to send or receive.
		"source":      {timedCodecs{3 * time.Millisecond, 0}, timedCodecs{0, time.Millisecond}, func(r float64) float64 { return 3 / (3e-3/pageBytes + 2e-9/r) }},
		"destination": {timedCodecs{time.Millisecond, 0}, timedCodecs{0, 2 * time.Millisecond}, func(r float64) float64 { return 2 / (2e-3/pageBytes + 2e-9/r) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, "rtt=20ms,rate=20Mbps,loss=0")
				p := &pull{
					src:  f.open(1, func(c *transfer.Config) { c.Codecs, c.Cores = tc.src, 3 }),
					dst:  f.open(2, func(c *transfer.Config) { c.Codecs, c.Cores = tc.dst, 2 }),
					from: newProbe(bf16(5, pages*pageBytes)), to: newProbe(make([]byte, pages*pageBytes)),
				}
				from, to := p.from.memory(), p.to.memory()
				from.Element = codec.BF16
				theirs, mine := register(t, p.src, from), register(t, p.dst, to)
				link := connect(t, p.dst, p.src)
				if got := link.Stats().Estimates.CodecRate; got.Known() {
					t.Errorf("before anything was coded: %+v", got)
				}
				for range 2 {
					clear(p.to.b)
					if _, err := readAll(t, link, mine, theirs, pages, transfer.TransferOptions{}); err != nil {
						t.Fatal(err)
					}
					p.equal(t)
				}
				st := link.Stats()
				got, want := st.Estimates.CodecRate, tc.slower(st.Estimates.Ratio.Value)
				if math.Abs(got.Value-want) > 0.01*want || got.Basis != transfer.Measured {
					t.Errorf("%+v, want %.0f", got, want)
				}
				theirLink := p.src.Links()[0].Stats()
				in, out := st.Received, theirLink.Sent
				// Late chunks go twice.
				if in.PageBytes < 2*pages*pageBytes || in.PageBytes > 3*pages*pageBytes || in.CodedBytes != in.PageBytes || in.Codec != codec.Huff || in.Busy < 2*pages*tc.dst.decode {
					t.Errorf("received %+v", in)
				}
				if out.PageBytes < 2*pages*pageBytes || out.PageBytes > 3*pages*pageBytes || out.CodedBytes != out.PageBytes || out.Codec != in.Codec {
					t.Errorf("sent %+v, received %+v", out, in)
				}
				for _, c := range []transfer.Coding{in, out} {
					if r := float64(c.PageBytes) / float64(c.WireBytes); math.Abs(r-st.Estimates.Ratio.Value) > 0.01 {
						t.Errorf("%.3f by the counts, %.3f by the estimate", r, st.Estimates.Ratio.Value)
					}
				}
			})
		})
	}
}
