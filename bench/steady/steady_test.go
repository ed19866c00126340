package steady

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

func model(t *testing.T, s string) wan.Model {
	t.Helper()
	m, err := wan.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// inBubble measures in virtual time.
func inBubble(t *testing.T, c Cell) (m *Measure) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if m, err = Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	})
	return m
}

// TestPacketPayload holds the constant: on a link without loss, a bound of its queue or repair, what lands over what the link carried.
func TestPacketPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Cell{WAN: model(t, "rtt=10ms,rate=100Mbps,loss=0,queue=unlimited"), Cold: 64 << 20, Agents: func(c *transfer.Config) { c.Repair.Parity = -1 }}.withDefaults()
		r, err := newRig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.close(); err != nil {
				t.Error(err)
			}
		}()
		before := r.count()
		x, err := r.start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := r.count()
		lost := float64(after.link.DroppedQueue-before.link.DroppedQueue) + float64(after.source.PacketsLost-before.source.PacketsLost)
		sent := float64(after.link.Packets - before.link.Packets)
		got := float64(after.landed-before.landed) / (float64(after.link.Bytes-before.link.Bytes) * (1 - lost/sent))
		t.Logf("%.4f of the link's bytes are page bytes, %v of %v packets lost, %+v", got, lost, sent, after.source)
		// Stream ids are a byte shorter at first; acknowledgements and the ends of chunks take a little.
		if got < 0.995*PacketPayload || got > 1.001*PacketPayload {
			t.Errorf("page bytes are %.4f of the link's, PacketPayload is %.4f", got, PacketPayload)
		}
	})
}

// bbr is what kernel TCP with BBR makes of a link by loss, as a share: 500 Mbit/s, 70 ms, 256 MiB from cold, measured over namespaces
// that bench/wanns joins.
var bbr = map[string]float64{"0": 0.84, "1e-4": 0.84, "1e-3": 0.82, "1e-2": 0.76}

// TestShortCells: never below kernel BBR.
func TestShortCells(t *testing.T) {
	losses := []string{"0", "1e-4", "1e-3", "1e-2"}
	rate := 100
	if testing.Short() { // under the race detector
		losses, rate = []string{"0", "1e-3"}, 50
	}
	for _, rtt := range []int{20, 70} {
		for _, loss := range losses {
			t.Run(fmt.Sprintf("%dms_%s", rtt, loss), func(t *testing.T) {
				began := time.Now()
				m := inBubble(t, Cell{WAN: model(t, fmt.Sprintf("rtt=%dms,rate=%dMbps,loss=%s,seed=1", rtt, rate, loss)), Warm: 3 * time.Second})
				t.Logf("%.3f of the link, %.3f of the ceiling, %d stripes %s, in %v", m.Share, m.OfCeiling, m.Stripes, m.Repair, time.Since(began))
				if m.Share > 1.1*PacketPayload || // pages of several streams may end together
					m.Seconds < 50*float64(rtt)/1000 {
					t.Errorf("more than the link carries, or too short a span: %+v", m)
				}
				if m.Share < bbr[loss] {
					t.Errorf("%.3f of the link, BBR has %.2f: %+v", m.Share, bbr[loss], m)
				}
			})
		}
	}
}

// TestProcessorTime: a charged packet bounds a connection: 40 us for 1,250 bytes of pages are 250 Mbit/s, and
// acknowledgements take a part of the rest.
func TestProcessorTime(t *testing.T) {
	m := inBubble(t, Cell{
		WAN: model(t, "rtt=2ms,rate=4Gbps,loss=0"), Warm: 500 * time.Millisecond, Measure: 500 * time.Millisecond, PacketCost: 40 * time.Microsecond,
		Agents: func(c *transfer.Config) { c.Stripes = 1 },
	})
	const bound = 1250 * 8 / 40e-6 / 4e9
	if m.Share > 1.05*bound || m.Share < 0.5*bound {
		t.Errorf("%.4f of the link, processor time leaves %.4f: %+v", m.Share, bound, m)
	}
}

// TestCold: a whole transfer, and the ramp of a long one.
func TestCold(t *testing.T) {
	c := Cell{WAN: model(t, "rtt=20ms,rate=100Mbps,loss=0"), Cold: 16 << 20}
	m := inBubble(t, c)
	if m.Bytes < 16<<20 || m.Share > PacketPayload || m.Share < 0.5 || m.RampSeconds != 0 {
		t.Errorf("cold: %+v", m)
	}
	c = Cell{WAN: c.WAN, Warm: time.Second, Measure: time.Second}
	if m := inBubble(t, c); m.RampSeconds <= 0 || m.RampSeconds > 1 {
		t.Errorf("ramp of %v s: %+v", m.RampSeconds, m)
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]Cell{
		"rate":            {},
		"warm":            {Warm: -1},
		"measure":         {Measure: -1},
		"cold":            {Cold: -1},
		"packet cost":     {PacketCost: time.Second},
		"page":            {PageBytes: 1},
		"pages per block": {PagesPerBlock: 5000},
		"loss":            {WAN: wan.Model{Loss: 2}},
	} {
		if name != "rate" {
			c.WAN.Rate = 1e9
		}
		if err := c.Validate(); err == nil || !strings.Contains(strings.ToLower(err.Error()), name) {
			t.Errorf("%s: error %v", name, err)
		}
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: Run took it", name)
		}
	}
}

// TestPages: what a sink must refuse.
func TestPages(t *testing.T) {
	p, err := newPages(4096, true)
	if err != nil {
		t.Fatal(err)
	}
	d := transfer.Desc{Offset: 8 * 4096, Pages: 4}
	b, sums := make([]byte, 2*4096), make([]uint32, 2)
	if err := p.ReadPages(nil, 0, d, 1, b, sums); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.LandPage(0, d, 1, b[:4096], sums[0]), p.LandPage(0, d, 2, b[4096:], sums[1])); err != nil || p.landed.Load() != 2*4096 {
		t.Fatalf("good pages: %v, %d bytes landed", err, p.landed.Load())
	}
	if err := p.LandPage(0, d, 2, b[:4096], sums[0]); err == nil {
		t.Error("a page in another's place is taken")
	}
	if err := p.LandPage(0, d, 1, b[:4096], sums[1]); !errors.Is(err, transfer.ErrChecksumMismatch) {
		t.Errorf("a wrong checksum: %v", err)
	}
	b[100] ^= 1
	if err := p.LandPage(0, d, 1, b[:4096], crc32.Checksum(b[:4096], castagnoli)); err == nil || errors.Is(err, transfer.ErrChecksumMismatch) {
		t.Errorf("other bytes with their own checksum: %v", err)
	}
	if p.landed.Load() != 2*4096 {
		t.Error("what was refused has landed")
	}
}
