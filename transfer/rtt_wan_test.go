package transfer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

// TestLongerPath has the round trip of a live link's path grow from 20 ms to
// 150 ms: the least one follows, and with it the number of connections.
func TestLongerPath(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is too slow for links of this size")
	}
	if testing.Short() {
		t.Skip("moves gigabytes")
	}
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, "rtt=20ms,rate=1Gbps,loss=0")
		p := newPull(t, f, 64<<20/pageBytes, nil)
		read := func() float64 {
			clear(p.to.b)
			res, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.equal(t)
			return float64(res.BytesTotal) * 8 / res.Duration.Seconds() / 1e9
		}
		read()
		read()
		far, err := wan.Parse("rtt=150ms,rate=1Gbps,loss=0")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.network.SetModel(p.src.ip, p.dst.ip, far); err != nil {
			t.Fatal(err)
		}
		before, share := read(), 0.0
		for start := time.Now(); time.Since(start) < 2*time.Minute && share < 0.4; {
			time.Sleep(8 * time.Second)
			share = read()
		}
		s := p.link.Stats()
		t.Logf("%.3f of the link, then %.3f with %d connections", before, share, s.Stripes)
		if share < 0.4 || s.RTTMin < 150*time.Millisecond || s.Estimates.RTTMin.Value != s.RTTMin.Seconds() {
			t.Errorf("%.3f of the link with %d connections and a round trip of %v, want 0.4 of it and 150 ms", share, s.Stripes, s.RTTMin)
		}
	})
}
