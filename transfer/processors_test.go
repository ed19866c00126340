package transfer

import (
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// slowCodecs take their time, and count how many work at once.
type slowCodecs struct {
	packageCodecs
	encode, decode time.Duration // a page
	busy, most     atomic.Int64
}

func (c *slowCodecs) work(d time.Duration) {
	if n := c.busy.Add(1); n > c.most.Load() {
		c.most.Store(n)
	}
	time.Sleep(d)
	c.busy.Add(-1)
}

func (c *slowCodecs) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	c.work(c.encode)
	return c.packageCodecs.Encode(id, dst, src, s)
}

func (c *slowCodecs) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	c.work(c.decode)
	return c.packageCodecs.Decode(id, dst, src, s)
}

// TestProcessorsTakeTurns: no more pages are coded at once than there are processors, and what one is found to cost does not depend on
// how many wait.
func TestProcessorsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page, many = 64 << 10, 40
		raw := make([]byte, page)
		slow := &slowCodecs{encode: 3 * time.Millisecond, decode: time.Millisecond}
		p := newProcessors(Config{Codecs: slow, Cores: 3})
		for range many {
			go func() {
				out := &codedChunk{}
				if took, err := p.encode(out, codec.Huff, raw, page); err != nil || took != slow.encode {
					t.Errorf("coded in %v: %v", took, err)
				}
				c := &codedPage{b: out.b[wire.PageHeaderBytes:]}
				if took, err := p.decode(codec.Huff, make([]byte, page), c); err != nil || took != slow.decode {
					t.Errorf("decoded in %v: %v", took, err)
				}
			}()
		}
		time.Sleep(time.Second)
		if n := slow.most.Load(); n != 3 {
			t.Errorf("%d at once on 3 processors", n)
		}
		want := wire.Costs{Cores: 3, Codecs: []wire.Cost{{
			Codec: uint8(codec.Huff), Encode: picoseconds(slow.encode.Seconds() / page), Decode: picoseconds(slow.decode.Seconds() / page),
		}}}
		got := p.costs()
		for i := range got.Codecs { // averages of equal numbers
			if d := math.Abs(float64(got.Codecs[i].Encode) - float64(want.Codecs[i].Encode)); d > 1 {
				t.Errorf("encode %d", got.Codecs[i].Encode)
			}
			got.Codecs[i].Encode = want.Codecs[i].Encode
			if d := math.Abs(float64(got.Codecs[i].Decode) - float64(want.Codecs[i].Decode)); d > 1 {
				t.Errorf("decode %d", got.Codecs[i].Decode)
			}
			got.Codecs[i].Decode = want.Codecs[i].Decode
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		// After a pause the last sample is all that counts.
		time.Sleep(retryAfter)
		slow.encode = 9 * time.Millisecond
		if _, err := p.encode(&codedChunk{}, codec.Huff, raw, page); err != nil {
			t.Error(err)
		}
		if got, want := p.costs().Codecs[0].Encode, picoseconds(slow.encode.Seconds()/page); got != want {
			t.Errorf("%d ps a byte after a pause, want %d", got, want)
		}
	})
}

// TestCostsChanged: only what differs by a tenth is told again.
func TestCostsChanged(t *testing.T) {
	was := wire.Costs{Cores: 2, Codecs: []wire.Cost{{Codec: 2, Encode: 1000, Decode: 600}, {Codec: 3, Encode: 500}}}
	with := func(edit func(*wire.Costs)) wire.Costs {
		c := wire.Costs{Cores: was.Cores, Codecs: append([]wire.Cost(nil), was.Codecs...)}
		edit(&c)
		return c
	}
	for name, tc := range map[string]struct {
		now  wire.Costs
		want bool
	}{
		"same":                {was, false},
		"nothing told":        {wire.Costs{}, true},
		"processors":          {with(func(c *wire.Costs) { c.Cores = 3 }), true},
		"a tenth":             {with(func(c *wire.Costs) { c.Codecs[0].Encode = 1100 }), false},
		"more":                {with(func(c *wire.Costs) { c.Codecs[0].Encode = 1101 }), true},
		"less":                {with(func(c *wire.Costs) { c.Codecs[0].Decode = 545 }), true},
		"a cost became known": {with(func(c *wire.Costs) { c.Codecs[1].Decode = 1 }), true},
		"another codec":       {with(func(c *wire.Costs) { c.Codecs[1].Codec = 4 }), true},
		"one codec more":      {with(func(c *wire.Costs) { c.Codecs = append(c.Codecs, wire.Cost{Codec: 5, Encode: 1}) }), true},
	} {
		if got := costsChanged(was, tc.now); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestCostsOnlyToThoseWhoTakeThem: a peer that does not know the frame never gets one.
func TestCostsOnlyToThoseWhoTakeThem(t *testing.T) {
	frames := func(mask uint64) (n int) {
		l := testLink()
		l.out.init()
		l.agent.processors = newProcessors(l.agent.cfg)
		l.coder.meet(mask)
		l.tellCosts(false)
		l.tellCosts(false)
		l.tellCosts(true)
		for _, f := range l.out.takeAll() {
			h, err := wire.DecodeFrameHeader(f.b[:wire.FrameHeaderBytes])
			if err != nil || h.Type != wire.TypeCosts {
				t.Fatalf("%+v: %v", h, err)
			}
			n++
		}
		return n
	}
	if n := frames(codecMask() &^ wire.TakesCosts); n != 0 {
		t.Errorf("%d frames to a peer that does not take them", n)
	}
	if n := frames(codecMask()); n != 2 {
		t.Errorf("%d frames to one that does, want one, and another when told again", n)
	}
}

// TestChooseByThePeer: a peer that decodes slower than raw pages come has them raw, by brute force over what it may cost.
func TestChooseByThePeer(t *testing.T) {
	for _, rate := range []float64{50e6, 500e6, 1e9} {
		for _, peerCores := range []uint16{1, 2, 16} {
			for decode := 0.1e-9; decode < 100e-9; decode *= 1.7 {
				k := coder{mode: CodecAuto, cores: 16, probe: seen}
				k.meet(1<<codec.Huff | wire.TakesCosts)
				k.heed(wire.Costs{Cores: peerCores, Codecs: []wire.Cost{{Codec: uint8(codec.Huff), Decode: picoseconds(decode)}}})
				h := priors[codec.Huff]
				rawTime := max(1/rate, sendCost/16, sendCost/float64(peerCores))
				codedTime := max(1/(h.ratio*rate), (h.cost+sendCost/h.ratio)/16, (float64(picoseconds(decode))/1e12+sendCost/h.ratio)/float64(peerCores))
				want := codec.Raw
				if codedTime*codedMargin < rawTime {
					want = codec.Huff
				}
				if got := k.choose(codec.BF16, pathRate{rate: rate}, start); got != want {
					t.Errorf("%v at %g bytes a second to %d processors that take %g s a byte, want %v", got, rate, peerCores, decode, want)
				}
			}
		}
	}
}
