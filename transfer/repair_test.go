package transfer_test

import (
	"bytes"
	"context"
	"flag"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// full runs the cells of the tests below at their full size: minutes instead of seconds.
var full = flag.Bool("full", false, "run repair's cells of 0.5 and 1 Gbit/s too")

// TestRepairGoodput reads over paths that lose packets, cold and then warm, and holds the share
// of the link that is page bytes. The short cells have the window a connection of the full ones,
// and one connection: how often slow start's losses halve its window, and so what a few seconds can
// be worth, is chance (0.34 to 0.85 at 1e-2; 0.03 without repair). That repair leaves little unrepaired is not.
func TestRepairGoodput(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is too slow for links of this size; TestChaos runs the code")
	}
	for _, c := range []struct {
		model       string
		full        bool
		mib         int
		cold, share float64 // least shares, the warm reads' mean
	}{
		{model: "rate=250Mbps,loss=1e-3", mib: 24, share: 0.65},
		{model: "rate=250Mbps,loss=1e-2", mib: 24, share: 0.25},
		{model: "rate=1Gbps,loss=0", full: true, mib: 480, cold: 0.8, share: 0.90},
		{model: "rate=1Gbps,loss=1e-4", full: true, mib: 480, cold: 0.8, share: 0.90},
		{model: "rate=1Gbps,loss=1e-3", full: true, mib: 480, cold: 0.8, share: 0.90},
		{model: "rate=1Gbps,loss=1e-2", full: true, mib: 480, cold: 0.7, share: 0.82},
		{model: "rate=1Gbps,loss=0,burst=1e-4/0.1", full: true, mib: 480, cold: 0.5, share: 0.5},
		{model: "rate=10Gbps,loss=0", full: true, mib: 2400, share: 0.7},
		{model: "rate=10Gbps,loss=1e-3", full: true, mib: 2400, share: 0.7},
	} {
		if c.full && !*full {
			continue
		}
		t.Run(c.model, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := wan.Parse("rtt=70ms,seed=1," + c.model)
				if err != nil {
					t.Fatal(err)
				}
				p := newPull(t, overWAN(t, "rtt=70ms,seed=1,"+c.model), c.mib<<20/pageBytes, func(_ int, cfg *transfer.Config) {
					cfg.Stripes = max(1, int(m.Rate/250e6))
					if m.Rate > 2e9 {
						cfg.Stripes = 16
					}
				})
				warm := 4
				if c.full {
					warm = 1
				}
				var sum float64
				var cold repair.Stats
				for i := range 1 + warm {
					clear(p.to.b)
					res, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{})
					if err != nil {
						t.Fatal(err)
					}
					share := float64(res.BytesTotal) * 8 / res.Duration.Seconds() / m.Rate
					s := p.src.Links()[0].Stats()
					t.Logf("read %d: %.3f of the link in %v; QUIC lost %d of %d; repair %+v", i, share, res.Duration, s.PacketsLost, s.PacketsSent, s.Repair)
					if i > 0 {
						sum += share
					} else if cold = s.Repair; share < c.cold {
						t.Errorf("cold: %.3f of the link, want %.2f", share, c.cold)
					}
					if !bytes.Equal(p.from.b, p.to.b) {
						t.Fatal("bytes differ")
					}
				}
				all := p.src.Links()[0].Stats().Repair
				lost, unrepaired := all.PeerLost-cold.PeerLost, all.PeerUnrepaired-cold.PeerUnrepaired
				if !c.full && m.Loss >= 1e-2 && (lost < 300 || unrepaired > lost/8) {
					t.Errorf("warm: the peer lost %d packets and could not repair %d, want 300 and at most an eighth", lost, unrepaired)
				}
				if mean := sum / float64(warm); mean < c.share {
					t.Errorf("warm: %.3f of the link, want %.2f", mean, c.share)
				} else {
					t.Logf("warm: %.3f of the link", mean)
				}
			})
		})
	}
}

// rival is a pull between the two hosts of a network, beside another one.
func rival(t *testing.T, n *wan.Network, port uint16, parity int, pages int) (*transfer.Transfer, transfer.MemoryID, *node) {
	t.Helper()
	open := func(i int) *node {
		ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		region := string(rune('a'+i)) + "x"
		cfg := transfer.Config{Name: transfertest.Name(region, "n"), TLS: ca.Node(region, "n"), Stripes: 4}
		cfg.Repair.Parity = parity
		var err error
		if cfg.Conn, err = n.Listen(netip.AddrPortFrom(ip, port)); err != nil {
			t.Fatal(err)
		}
		cfg.DialPacket = func(context.Context) (net.PacketConn, error) { return n.Listen(netip.AddrPortFrom(ip, 0)) }
		a, err := transfer.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return &node{Agent: a, name: cfg.Name, addr: a.Addr().String(), ip: ip}
	}
	src, dst := open(1), open(2)
	from, to := newProbe(make([]byte, pages*pageBytes)), newProbe(make([]byte, pages*pageBytes))
	theirs, mine := register(t, src, from.memory()), register(t, dst, to.memory())
	l := connect(t, dst, src)
	x, err := l.Prepare(transfer.Read, []transfer.Desc{{Memory: mine, Pages: uint32(pages)}}, []transfer.Desc{{Memory: theirs, Pages: uint32(pages)}}, transfer.TransferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return x, mine, src
}

// TestRepairFairness has a pull with repair and one without share a link that loses
// nothing but what its queue drops, four connections each: the one without keeps
// 0.8 of what it has beside another without. Which flow slow start favours is chance
// with a shallow queue, so those cells are means of several runs.
func TestRepairFairness(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is too slow for links of this size")
	}
	for _, c := range []struct {
		model string
		full  bool // only with -full
		short bool // only without
		runs  int
	}{
		{model: "rtt=70ms,rate=100Mbps", short: true, runs: 1},
		{model: "rtt=20ms,rate=10Mbps,queue=6kB", runs: 8},
		{model: "rtt=70ms,rate=500Mbps", full: true, runs: 1},
		{model: "rtt=70ms,rate=100Mbps,queue=54kB", full: true, runs: 16}, // RTT/16
		{model: "rtt=70ms,rate=100Mbps,queue=27kB", full: true, runs: 16}, // RTT/32
	} {
		if c.full && !*full || c.short && *full {
			continue
		}
		t.Run(c.model, func(t *testing.T) {
			var twin, plain, other float64
			for range c.runs {
				x, _ := sharesOf(t, "loss=0,seed=1,"+c.model, -1)
				twin += x / float64(c.runs)
				x, y := sharesOf(t, "loss=0,seed=1,"+c.model, 0)
				plain, other = plain+x/float64(c.runs), other+y/float64(c.runs)
			}
			t.Logf("plain has %.3f beside repair, %.3f beside plain; repair has %.3f", plain, twin, other)
			if plain < 0.8*twin {
				t.Errorf("plain has %.3f beside repair, %.3f beside plain", plain, twin)
			}
		})
	}
}

// sharesOf is what a pull without repair, and one with so much parity, have of a link in 10 s.
func sharesOf(t *testing.T, model string, parity int) (plain, other float64) {
	t.Helper()
	m, err := wan.Parse(model)
	if err != nil {
		t.Fatal(err)
	}
	const span = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, model)
		pages := int(m.Rate/8*span.Seconds()) / pageBytes
		x, _, _ := rival(t, f.network, 4433, -1, pages)
		y, _, _ := rival(t, f.network, 4434, parity, pages)
		for _, tr := range []*transfer.Transfer{x, y} {
			defer tr.Release()
			if err := tr.Post(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(span)
		share := func(tr *transfer.Transfer) float64 {
			return float64(tr.Progress().PagesDone) * pageBytes * 8 / span.Seconds() / m.Rate
		}
		plain, other = share(x), share(y)
		x.Cancel()
		y.Cancel()
	})
	return plain, other
}
