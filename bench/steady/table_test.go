package steady

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

var (
	table = flag.Bool("table", false, "run TestTable: a good half hour of two cores")
	cells = flag.String("cells", "", "only the cells of the table whose name contains this")
	out   = flag.String("out", "", "write the table's result to this file, JSON, and as Markdown beside it")
)

// packetCost is what a full packet costs an end. Measured with "kvferry bench compare" on two shared cores (Zen 5), sockets included: 1.8
// s/GB an end at 1,452 bytes a packet, which is 2.5 us, and 0.3 s/GB more with six symbols of parity a group.
const packetCost = 3 * time.Microsecond

// row is a line of the table.
type row struct {
	Name string `json:"name"`
	WAN  string `json:"wan"`
	// Simulated seconds before the span, and the span itself; of a cold row only the second.
	WarmSeconds float64 `json:"warm_seconds"`
	PacketCost  float64 `json:"packet_cost_seconds"`
	*Measure
	// Aim is the least OfCeiling that is asked for; nil for none.
	Aim *float64 `json:"aim"`

	cell Cell
}

// aims by loss; of cells without a burst, at 1 Gbit/s.
var aims = map[string]float64{"0": 0.97, "1e-5": 0.97, "1e-4": 0.97, "1e-3": 0.95, "1e-2": 0.90}

func rows(t *testing.T) []*row {
	var rs []*row
	add := func(name, link string, c Cell, aim float64) {
		c.WAN = model(t, link+",seed=1")
		r := &row{Name: name, WAN: c.WAN.String(), cell: c, PacketCost: c.PacketCost.Seconds()}
		if aim > 0 {
			r.Aim = &aim
		}
		rs = append(rs, r)
	}
	for _, rtt := range []int{20, 70, 150, 300} {
		for _, loss := range []string{"0", "1e-5", "1e-4", "1e-3", "1e-2"} {
			add(fmt.Sprintf("1Gbps/%dms/%s", rtt, loss), fmt.Sprintf("rate=1Gbps,rtt=%dms,loss=%s", rtt, loss), Cell{}, aims[loss])
		}
		// Bursts of 10 packets in the mean, all lost, a thousandth of all packets: PGoodToBad / (PGoodToBad + PBadToGood) = 1e-3.
		add(fmt.Sprintf("1Gbps/%dms/bursts", rtt), fmt.Sprintf("rate=1Gbps,rtt=%dms,loss=0,burst=0.0001001/0.1/1", rtt), Cell{}, 0)
	}
	for _, loss := range []string{"0", "1e-4", "1e-3"} {
		add("10Gbps/70ms/"+loss, "rate=10Gbps,rtt=70ms,loss="+loss, Cell{PacketCost: packetCost}, aims[loss])
	}
	add("1Gbps/70ms/0/cold-1GiB", "rate=1Gbps,rtt=70ms,loss=0", Cell{Cold: 1 << 30}, 0.90)
	return rs
}

// TestTable prints how full links stay. "make bench-wan" runs it.
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("half an hour of two cores: run it with make bench-wan")
	}
	var rs []*row
	for _, r := range rows(t) {
		if strings.Contains(r.Name, *cells) {
			rs = append(rs, r)
		}
	}
	f := results.New(results.KindWAN, []string{"make", "bench-wan"}, map[string]any{"cells": *cells})
	var mu sync.Mutex
	t.Run("cells", func(t *testing.T) {
		for _, r := range rs {
			t.Run(r.Name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				m := inBubble(t, r.cell)
				mu.Lock()
				defer mu.Unlock()
				r.Measure = m
				if c := r.cell.withDefaults(); c.Cold == 0 {
					r.WarmSeconds = c.Warm.Seconds()
				}
				t.Logf("%s: %.3f of the link, %.3f of the ceiling, %d stripes %s, in %v", r.Name, m.Share, m.OfCeiling, m.Stripes, m.Repair, time.Since(began).Round(time.Second))
			})
		}
	})
	tab := &results.Table{
		Title: "Share of the link that verified pages get, steady state, virtual time",
		Columns: []results.Column{
			{Name: "Cell", Left: true},
			{Name: "Simulated"},
			{Name: "Of link"},
			{Name: "Ceiling"},
			{Name: "Of ceiling"},
			{Name: "Aim", Left: true},
			{Name: "k"},
			{Name: "Repair", Left: true},
			{Name: "QUIC lost"},
			{Name: "Queue drops"},
			{Name: "Ramp"},
		},
		Notes: []string{
			"Simulated: warm-up + span, seconds; Ceiling: what headers and parity leave; k: stripes at the end; QUIC lost: packets that QUIC took for lost over those sent",
			fmt.Sprintf("Packets of 1,280 bytes, queues of one BDP, drop-tail; bursts: 10 packets in the mean, 1e-3 of all; 10 Gbit/s is charged %v of processor time a full packet an end", packetCost),
		},
	}
	body := struct {
		Cells []*row `json:"cells"`
	}{}
	for _, r := range rs {
		if r.Measure == nil {
			continue // it failed, and said so
		}
		body.Cells = append(body.Cells, r)
		aim := ""
		if r.Aim != nil {
			verdict := "met"
			if r.OfCeiling < *r.Aim {
				verdict = "missed"
			}
			aim = fmt.Sprintf("%.2f %s", *r.Aim, verdict)
		}
		tab.Row(r.Name, fmt.Sprintf("%.1f + %.1f", r.WarmSeconds, r.Seconds), fmt.Sprintf("%.3f", r.Share), fmt.Sprintf("%.3f", r.Ceiling), fmt.Sprintf("%.3f", r.OfCeiling), aim,
			r.Stripes, r.Repair, fmt.Sprintf("%.1e", float64(r.PacketsLost)/float64(max(r.PacketsSent, 1))), r.DroppedQueue, fmt.Sprintf("%.1f s", r.RampSeconds))
		f.Add(results.Metric{Name: "share/" + r.Name, Unit: "1", Better: results.Higher, Median: r.Share, Low: r.Share, High: r.Share})
		f.Add(results.Metric{Name: "of_ceiling/" + r.Name, Unit: "1", Better: results.Higher, Median: r.OfCeiling, Low: r.OfCeiling, High: r.OfCeiling})
	}
	save(t, f, body, tab)
}

// save prints a table and, where -out says so, writes it and its data.
func save(t *testing.T, f *results.File, body any, tab *results.Table) {
	t.Helper()
	f.Finish(false)
	if err := f.SetBody(body); err != nil {
		t.Fatal(err)
	}
	if err := tab.Write(os.Stdout); err != nil {
		t.Error(err)
	}
	if *out == "" {
		return
	}
	if err := f.Save(*out); err != nil {
		t.Error(err)
	}
	md, err := os.Create(strings.TrimSuffix(*out, ".json") + ".md")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := md.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := tab.Markdown(md); err != nil {
		t.Error(err)
	}
}
