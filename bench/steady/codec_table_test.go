package steady

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/transfer/codec"
)

// codecRow is a line of the codecs' table.
type codecRow struct {
	Name  string   `json:"name"`
	WAN   string   `json:"wan"`
	Cores int      `json:"cores"`
	Off   *Measure `json:"off"`
	Auto  *Measure `json:"auto"`
	Gain  float64  `json:"gain"` // what lands with codecs over what lands without

	cell Cell
}

func codecRows(t *testing.T) []*codecRow {
	var rs []*codecRow
	add := func(name, link string, cores int, costs map[codec.ID]Cost) {
		c := Cell{WAN: model(t, link+",seed=1"), Cores: cores, PacketCost: packetCost, Costs: costs}
		c.Measure = max(20*c.WAN.RTT, 3*time.Second/2)
		rs = append(rs, &codecRow{Name: fmt.Sprintf("%s/%d", name, cores), WAN: c.WAN.String(), Cores: cores, cell: c})
	}
	for _, rtt := range []int{20, 70, 150, 300} {
		for _, loss := range []string{"0", "1e-4", "1e-3", "1e-2"} {
			add(fmt.Sprintf("1Gbps/%dms/%s", rtt, loss), fmt.Sprintf("rate=1Gbps,rtt=%dms,loss=%s", rtt, loss), 2, codecCosts)
		}
	}
	for _, cores := range []int{2, 4, 8} {
		add("10Gbps/70ms/0", "rate=10Gbps,rtt=70ms,loss=0", cores, codecCosts)
	}
	add("10Gbps/70ms/0/slow-decode", "rate=10Gbps,rtt=70ms,loss=0", 4, times(codecCosts, 1, 6))
	return rs
}

// TestCodecTable prints what codecs make of links, and fails where pages land slower with them. "make bench-codec-wan" runs it.
func TestCodecTable(t *testing.T) {
	if !*table {
		t.Skip("a quarter of an hour of two cores: run it with make bench-codec-wan")
	}
	var rs []*codecRow
	for _, r := range codecRows(t) {
		if strings.Contains(r.Name, *cells) {
			rs = append(rs, r)
		}
	}
	f := results.New(results.KindWAN, []string{"make", "bench-codec-wan"}, map[string]any{"cells": *cells})
	var mu sync.Mutex
	t.Run("cells", func(t *testing.T) {
		for _, r := range rs {
			t.Run(r.Name, func(t *testing.T) {
				t.Parallel()
				off, auto := codecGain(t, r.cell)
				mu.Lock()
				defer mu.Unlock()
				r.Off, r.Auto, r.Gain = off, auto, auto.Share/off.Share
				if r.Gain < leastOfRaw {
					t.Errorf("%.3f of what lands without codecs", r.Gain)
				}
			})
		}
	})
	tab := &results.Table{
		Title: "Pages of BF16 values with and without codecs, as shares of the link, steady state, virtual time",
		Columns: []results.Column{
			{Name: "Cell", Left: true},
			{Name: "Raw lands"},
			{Name: "Auto lands"},
			{Name: "Gain"},
			{Name: "Auto travels"},
			{Name: "Pages coded"},
			{Name: "k raw"},
			{Name: "k auto"},
		},
		Notes: []string{
			"Cell: rate, round trip, loss, processors of each end; slow-decode: six times what decoding takes; travels: bytes of pages as they came; k: stripes at the end",
			fmt.Sprintf("Charged to the processors of an end, in order of arrival: %v a full packet; a byte of a page by huff %.2f ns to code and %.2f to decode, by split4 %.2f and %.2f", packetCost,
				1e9*codecCosts[codec.Huff].Encode, 1e9*codecCosts[codec.Huff].Decode, 1e9*codecCosts[codec.Split4].Encode, 1e9*codecCosts[codec.Split4].Decode),
		},
	}
	body := struct {
		Cells []*codecRow `json:"codec_cells"`
	}{}
	for _, r := range rs {
		if r.Auto == nil {
			continue // it failed, and said so
		}
		body.Cells = append(body.Cells, r)
		tab.Row(r.Name, fmt.Sprintf("%.3f", r.Off.Share), fmt.Sprintf("%.3f", r.Auto.Share), fmt.Sprintf("%.3f", r.Gain), fmt.Sprintf("%.3f", r.Auto.wireShare(r.cell)),
			fmt.Sprintf("%.2f", r.Auto.codedShare()), r.Off.Stripes, r.Auto.Stripes)
		f.Add(results.Metric{Name: "gain/" + r.Name, Unit: "1", Better: results.Higher, Median: r.Gain, Low: r.Gain, High: r.Gain})
	}
	save(t, f, body, tab)
}
