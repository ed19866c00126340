package steady

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// codecCosts are measured with "kvferry bench codec", on one core (Zen 5).
var codecCosts = map[codec.ID]Cost{
	codec.Huff:   {Encode: 1.05e-9, Decode: 0.6e-9},
	codec.Split4: {Encode: 0.75e-9, Decode: 0.35e-9},
}

// times multiplies all costs.
func times(c map[codec.ID]Cost, encode, decode float64) map[codec.ID]Cost {
	out := map[codec.ID]Cost{}
	for id, v := range c {
		out[id] = Cost{encode * v.Encode, decode * v.Decode}
	}
	return out
}

// ratios of the pages of a cell.
var ratios = map[codec.ID]float64{codec.Raw: 1, codec.Huff: 1.47, codec.Split4: 1.33}

// bound is the most that pages can land at with a codec, bytes a second, by docs/decisions/005-codecs.md: what path carries, or what
// the processors of either end do, which code or decode each byte and send or receive what is left of it. path is page bytes a second
// of those that travel raw. Acknowledgements cost nothing here.
func (c Cell) bound(id codec.ID, path float64) float64 {
	packet := c.PacketCost.Seconds() / 1250 / ratios[id] // a byte
	return min(path*ratios[id], float64(c.Cores)/(c.Costs[id].Encode+packet), float64(c.Cores)/(c.Costs[id].Decode+packet))
}

// codecGain measures a cell with and without codecs.
func codecGain(t *testing.T, c Cell) (off, auto *Measure) {
	t.Helper()
	began := time.Now()
	c.Codec = transfer.CodecOff
	off = inBubble(t, c)
	c.Codec = transfer.CodecAuto
	auto = inBubble(t, c)
	t.Logf("off %.3f of the link, auto %.3f with %.2f of the pages coded to %.3f of the link: %.3f times as much, in %v",
		off.Share, auto.Share, auto.codedShare(), auto.wireShare(c), auto.Share/off.Share, time.Since(began).Round(time.Millisecond))
	return off, auto
}

// codedShare is the part of page bytes that came coded.
func (m *Measure) codedShare() float64 { return float64(m.CodedBytes) / float64(m.Bytes) }

// wireShare is what pages took of the link.
func (m *Measure) wireShare(c Cell) float64 {
	return float64(m.WireBytes) * 8 / m.Seconds / c.WAN.Rate
}

// leastOfRaw is what pages must land at with codecs, of what they do without: never slower, but for what a window of measurement
// blurs.
const leastOfRaw = 0.98

// TestCodecNeverSlower: whatever the path, the processors and the codecs' cost, pages land as fast as raw ones and, where a codec
// can make them faster, as fast as the best one can, by the closed form.
func TestCodecNeverSlower(t *testing.T) {
	for _, tc := range []struct {
		name  string
		link  string
		cores int
		costs map[codec.ID]Cost
		least float64 // of the bound of the best way
		short bool    // run under the race detector, too
	}{
		{"slow link", "rtt=20ms,rate=200Mbps,loss=1e-4", 2, codecCosts, 0.9, true},
		{"fast link, where raw is best", "rtt=5ms,rate=10Gbps,loss=0", 2, codecCosts, 0.9, false},
		{"slow processor, where raw is best", "rtt=5ms,rate=1Gbps,loss=0,queue=unlimited", 1, times(codecCosts, 12, 1), 0.9, false},
		{"slow processor, about as fast as the link", "rtt=5ms,rate=1Gbps,loss=0,queue=unlimited", 1, times(codecCosts, 4, 1), 0.85, false},
		{"slow decoder, where raw is best", "rtt=5ms,rate=2Gbps,loss=0,queue=unlimited", 1, times(codecCosts, 1, 10), 0.9, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if testing.Short() && !tc.short {
				t.Skip("hundreds of megabytes, which take long under the race detector")
			}
			c := Cell{WAN: model(t, tc.link+",seed=1"), PacketCost: packetCost, Cores: tc.cores, Costs: tc.costs}
			if c.WAN.Loss == 0 { // what a late processor makes look lost would be given parity
				c.Agents = func(c *transfer.Config) { c.Repair.Parity = -1 }
			}
			c.Warm = 60 * c.WAN.RTT
			c.Measure = c.Warm / 2
			off, auto := codecGain(t, c)
			path := off.Ceiling * c.WAN.Rate / 8
			raw, best, id := c.bound(codec.Raw, path), 0.0, codec.Raw
			for i := range ratios {
				if b := c.bound(i, path); b > best {
					best, id = b, i
				}
			}
			rate := func(m *Measure) float64 { return float64(m.Bytes) / m.Seconds }
			t.Logf("bounds: raw %.3f of the link, best %.3f with %v", raw*8/c.WAN.Rate, best*8/c.WAN.Rate, id)
			if r := rate(off) / raw; r < 0.85 || r > 1.03 || off.CodedBytes != 0 {
				t.Errorf("raw pages: %.3f of their bound, %d bytes coded", r, off.CodedBytes)
			}
			if rate(auto) < leastOfRaw*rate(off) {
				t.Errorf("%.0f bytes a second with codecs, %.0f without", rate(auto), rate(off))
			}
			if r := rate(auto) / best; r < tc.least || r > 1.03 {
				t.Errorf("%.3f of what the best codec can do, %v, want %.2f", r, id, tc.least)
			}
		})
	}
}
