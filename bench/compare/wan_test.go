package compare

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/codec"
)

// TestWANRatios: shares of the rate, and ratios within rounds, against numbers by hand.
func TestWANRatios(t *testing.T) {
	turn := func(round int, gbps float64, bytes int64) *Turn { return &Turn{Gbps: gbps, Bytes: bytes, round: round} }
	busy := 0.99
	c := &WANCell{WAN: "rtt=70ms,rate=1Gbps,loss=0", rate: 1e9, DeviceDrops: 3, series: []*wanSeries{
		{name: NameKvferry, cold: []*Turn{turn(0, 0.8, 100), turn(1, 0.6, 100), turn(2, 0.7, 100)}, warm: []*Turn{turn(0, 0.9, 100)}},
		{name: nameCoded, cold: []*Turn{turn(0, 1.2, 100), turn(1, 0.9, 100)}},
		{name: nameBBR, cold: []*Turn{turn(0, 0.4, 100), turn(1, 0.6, 100)}, warm: []*Turn{turn(0, 1.0, 100)}},
		{name: nameRsync, cold: []*Turn{turn(0, 0, 0), turn(1, 0.1, 50)}},
		{name: nameCUBIC},
	}}
	c.series[0].cold[1].BusyShare = &busy
	b := &wanBench{cfg: WANConfig{Bytes: 100}, cells: []*WANCell{c}, warned: []string{"a way is left out"}}
	res := b.result(true)
	one, yes := 1.0, true
	want := []Ratio{
		{To: nameBBR, Quantity: QuantityCold, Median: 1.5, Min: 1, Max: 2, Aim: &one, Met: &yes, Answer: AnswerMet},
		{To: nameBBR, Quantity: QuantityWarm, Median: 0.9, Min: 0.9, Max: 0.9, Aim: &one, Answer: AnswerUnclear},
		{Of: nameCoded, To: nameBBR, Quantity: QuantityCold, Median: 2.25, Min: 1.5, Max: 3, Aim: &one, Met: &yes, Answer: AnswerMet},
		{To: nameRsync, Quantity: QuantityCold, Median: 6, Min: 6, Max: 6},
		{Of: nameCoded, To: nameRsync, Quantity: QuantityCold, Median: 9, Min: 9, Max: 9},
	}
	if diff := cmp.Diff(want, c.Ratios, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
	if len(c.Results) != 4 || *c.Results[0].Cold != (WANShare{0.7, 0.6, 0.8}) || c.Results[3].Warm != nil || c.Results[3].CutShort != 2 {
		t.Errorf("results %+v", c.Results)
	}
	f, err := res.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(f.Warnings, "\n")
	for _, w := range []string{"left out", "99 % busy", "lost 3 packets"} {
		if !strings.Contains(text, w) {
			t.Errorf("no warning with %q in %s", w, text)
		}
	}
	if m, ok := f.Metric("share/cold/kvferry/rtt=70ms,rate=1Gbps,loss=0"); !ok || m.Median != 0.7 {
		t.Errorf("metric %+v, %v", m, ok)
	}
	var out strings.Builder
	if err := res.Tables()[0].Write(&out); err != nil || !strings.Contains(out.String(), "1.50 0.90") {
		t.Errorf("table %s, %v", out.String(), err)
	}
	if _, err := (&WANResult{}).File(nil); !errors.Is(err, ErrNothing) {
		t.Errorf("file of nothing: %v", err)
	}
}

func TestWANValidate(t *testing.T) {
	link := wan.Model{Rate: 1e9, RTT: time.Millisecond}
	for _, tc := range []struct {
		name string
		edit func(*WANConfig)
		want string // "" for none
	}{
		{"good", func(*WANConfig) {}, ""},
		{"no links", func(c *WANConfig) { c.Links = nil }, "links 0: must be 1 to 100"},
		{"no rate", func(c *WANConfig) { c.Links[0].Rate = 0 }, "must be one with a rate"},
		{"loss", func(c *WANConfig) { c.Links[0].Loss = 2 }, "loss"},
		{"limit", func(c *WANConfig) { c.Limit = -1 }, "limit -1ns: must be above 0"},
		{"peer", func(c *WANConfig) { c.Peers = []string{NameKvferry, nameHTTP2} }, `peer "http2": must be one of kvferry, kvferry-coded, tcp-bbr`},
		{"without kvferry", func(c *WANConfig) { c.Peers = []string{nameBBR} }, "kvferry and what it is compared with"},
		{"bytes", func(c *WANConfig) { c.Bytes = -1 }, "bytes -1"},
		{"no command", func(c *WANConfig) { c.Command = nil }, "command empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := WANConfig{Command: []string{"x"}, Links: []wan.Model{link}}
			tc.edit(&c)
			err := c.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(strings.ToLower(err.Error()), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if _, rerr := RunWAN(t.Context(), c); tc.want != "" && rerr == nil {
				t.Error("RunWAN took it")
			}
		})
	}
}

// TestKernelTCP: the plain TCP ends, on loopback; a move that is cut short counts what landed.
func TestKernelTCP(t *testing.T) {
	from, to := newMemory(4<<20, 64<<10), newMemory(4<<20, 64<<10)
	if err := from.fill(1, true); err != nil {
		t.Fatal(err)
	}
	cfg := &endConfig{Host: "127.0.0.1"}
	addr, source, err := serveKernel("cubic")(cfg, from)
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	}()
	cfg.Addr = addr
	m, err := dialKernel("cubic")(t.Context(), cfg, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := m.move(t.Context()); err != nil || m.landed() != 4<<20 || from.digest() != to.digest() {
		t.Errorf("%d bytes, %v", m.landed(), err)
	}
	if _, _, err := serveKernel("pigeon")(cfg, from); err == nil || !strings.Contains(err.Error(), `congestion control "pigeon"`) {
		t.Errorf("an unknown congestion control: %v", err)
	}
}

// TestFill: the bytes are seeded, no two pages are alike, and values have the entropy of KV cache wherever they are.
func TestFill(t *testing.T) {
	const page = 64 << 10
	m, again := newMemory(20<<20, page), newMemory(20<<20, page)
	if err := errors.Join(m.fill(3, true), again.fill(3, true)); err != nil || m.digest() != again.digest() {
		t.Fatalf("the same seed gives other bytes, %v", err)
	}
	if err := again.fill(4, true); err != nil || m.digest() == again.digest() {
		t.Errorf("another seed gives the same bytes, %v", err)
	}
	seen := map[uint32]bool{}
	for at := 0; at < len(m.b); at += page {
		p := m.b[at : at+page]
		if sum := pageSum(0, p); seen[sum] {
			t.Fatalf("page %d is like another", at/page)
		} else {
			seen[sum] = true
		}
		coded, err := codec.Encode(codec.Huff, nil, p, new(codec.Scratch))
		if err != nil || len(coded)*14 > page*10 || len(coded)*16 < page*10 {
			t.Fatalf("page %d: %d bytes coded, %v", at/page, len(coded), err)
		}
	}
}
