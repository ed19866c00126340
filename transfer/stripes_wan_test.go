package transfer_test

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

var table = flag.Bool("stripes-table", false, "run the cells of TestStripesTable, which take minutes")

// cell is one link and what is moved over it.
type cell struct {
	model   string
	mib     int
	runs    int
	stripes int // 0: adaptive

	cold, warm float64 // least shares of the link of the first run, and the median of those after it
	low, top   int     // bounds of the number of connections at the end; 0: any
}

// share runs reads over a cell and returns each one's share of the link and the
// number of connections after it.
func (c cell) share(t *testing.T) (shares []float64, stripes []int) {
	t.Helper()
	m, err := wan.Parse(c.model)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, c.model), c.mib<<20/pageBytes, func(_ int, cfg *transfer.Config) { cfg.Stripes = c.stripes })
		for range c.runs {
			clear(p.to.b)
			res, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p.from.b, p.to.b) {
				t.Fatal("bytes differ")
			}
			shares = append(shares, float64(res.BytesTotal)*8/res.Duration.Seconds()/m.Rate)
			stripes = append(stripes, p.link.Stats().Stripes)
		}
	})
	return shares, stripes
}

// TestAdaptiveStripes moves pages over links of all kinds with as many
// connections as the policy chooses: slow ones do not choke on them, far ones get
// more.
func TestAdaptiveStripes(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is too slow for links of this size; TestChaos runs the code")
	}
	for _, c := range []cell{
		{model: "rtt=100ms,rate=1Mbps,loss=0", mib: 1, runs: 6, cold: 0.35, warm: 0.75, low: 1, top: 8},
		{model: "rtt=20ms,rate=20Mbps,loss=0", mib: 4, runs: 4, cold: 0.7, warm: 0.75, low: 1, top: 4},
		{model: "rtt=70ms,rate=100Mbps,loss=0", mib: 8, runs: 2, cold: 0.6, warm: 0.8, low: 4, top: 4},
		{model: "rtt=300ms,rate=200Mbps,loss=0", mib: 32, runs: 2, cold: 0.3, warm: 0.6, low: 8, top: 16},
	} {
		t.Run(c.model, func(t *testing.T) {
			shares, stripes := c.share(t)
			last := len(shares) - 1
			t.Logf("%.3f of the link with %v connections", shares, stripes)
			later := slices.Sorted(slices.Values(shares[1:]))
			warm := later[(len(later)-1)/2] // one in which the number changes is worth half of the others
			if shares[0] < c.cold || warm < c.warm || stripes[last] < c.low || stripes[last] > c.top {
				t.Errorf("%.3f of the link with %v connections, want %.2f cold, %.2f warm with %d to %d", shares, stripes, c.cold, c.warm, c.low, c.top)
			}
		})
	}
}

// TestStripesTable prints what fixed numbers of connections reach, and what the
// policy does: go test ./transfer -run TestStripesTable -v -stripes-table.
func TestStripesTable(t *testing.T) {
	if !*table {
		t.Skip("takes minutes: -stripes-table runs it")
	}
	for _, c := range []cell{
		{model: "rtt=100ms,rate=1Mbps,loss=0", mib: 4, runs: 3},
		{model: "rtt=20ms,rate=20Mbps,loss=0", mib: 16, runs: 3},
		{model: "rtt=70ms,rate=100Mbps,loss=0", mib: 64, runs: 3},
		{model: "rtt=1ms,rate=1Gbps,loss=0", mib: 64, runs: 3},
		{model: "rtt=20ms,rate=1Gbps,loss=0", mib: 256, runs: 3},
		{model: "rtt=70ms,rate=1Gbps,loss=0", mib: 256, runs: 3},
		{model: "rtt=150ms,rate=1Gbps,loss=0", mib: 256, runs: 3},
		{model: "rtt=300ms,rate=1Gbps,loss=0", mib: 256, runs: 3},
		{model: "rtt=20ms,rate=1Gbps,loss=1e-4", mib: 256, runs: 4},
		{model: "rtt=70ms,rate=1Gbps,loss=1e-4", mib: 256, runs: 4},
		{model: "rtt=150ms,rate=1Gbps,loss=1e-4", mib: 256, runs: 4},
		{model: "rtt=300ms,rate=1Gbps,loss=1e-4", mib: 256, runs: 4},
		{model: "rtt=70ms,rate=1Gbps,loss=0", mib: 1024, runs: 1},
	} {
		for _, n := range []int{0, 1, 2, 4, 8} {
			c.stripes = n
			name := "adaptive"
			if n > 0 {
				name = fmt.Sprint(n)
			}
			t.Run(fmt.Sprintf("%s/%d MiB/%s", c.model, c.mib, name), func(t *testing.T) {
				start := time.Now()
				shares, stripes := c.share(t)
				t.Logf("%-36s %5d MiB %-9s share %s connections %v, %.0f s", c.model, c.mib, name, strings.Trim(fmt.Sprintf("%.3f", shares), "[]"), stripes, time.Since(start).Seconds())
			})
		}
	}
}
