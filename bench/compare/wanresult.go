package compare

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// A WANResult is what RunWAN measured.
type WANResult struct {
	// Cells in the order of the links; those of which nothing was measured are left out.
	Cells []*WANCell
	// Interrupted: ctx ended before everything was measured.
	Interrupted bool

	started time.Time
	machine results.Machine
	seconds float64
	params  map[string]any
	warned  []string
}

// A WANCell is one link.
type WANCell struct {
	WAN     string        `json:"wan"`
	Results []*WANOutcome `json:"results"`
	// Ratios are the shares of kvferry, raw and coded, over the others', cold and warm.
	Ratios []Ratio `json:"ratios"`
	// DeviceDrops are packets that did not reach the link because this machine was late: its loss, not the link's.
	DeviceDrops int64 `json:"device_drops"`
	// BusyShare is the most of the machine's processors that was in use during a turn, by anything; nil where unknown.
	BusyShare *float64 `json:"busy_share"`

	rate   float64
	series []*wanSeries
}

// A WANOutcome is what one way made of one link: shares of its rate that verified bytes had.
type WANOutcome struct {
	Name string `json:"name"`
	What string `json:"what"`
	// Cold is over fresh connections, Warm once more over the same ones; nil where there is none.
	Cold *WANShare `json:"cold"`
	Warm *WANShare `json:"warm"`
	// CutShort counts transfers that were ended by the limit: what had landed by then counts.
	CutShort int     `json:"cut_short"`
	ColdRuns []*Turn `json:"cold_runs"`
	WarmRuns []*Turn `json:"warm_runs"`
}

// WANShare is shares of a link's rate over the rounds.
type WANShare struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// The quantities of a Ratio of a WANCell.
const (
	QuantityCold = "cold"
	QuantityWarm = "warm"
)

func (b *wanBench) result(interrupted bool) *WANResult {
	for _, c := range b.cells {
		c.sumUp(b.cfg.Bytes)
	}
	var links []string
	for _, l := range b.cfg.Links {
		links = append(links, l.String())
	}
	return &WANResult{
		Cells: b.cells, Interrupted: interrupted, started: b.began, machine: b.machine, seconds: time.Since(b.began).Seconds(), warned: b.warned,
		params: map[string]any{
			"form": "wan", "links": links, "bytes": b.cfg.Bytes, "page_bytes": b.cfg.PageBytes, "repeats": b.cfg.Repeats, "peers": b.cfg.Peers, "limit_seconds": b.cfg.Limit.Seconds(),
		},
	}
}

func (c *WANCell) sumUp(bytes int64) {
	share := func(runs []*Turn) *WANShare {
		var v []float64
		for _, r := range runs {
			v = append(v, r.Gbps*1e9/c.rate)
		}
		if len(v) == 0 {
			return nil
		}
		return &WANShare{Median: results.Median(v), Min: slices.Min(v), Max: slices.Max(v)}
	}
	var ours []*wanSeries
	for _, s := range c.series {
		if s.name == NameKvferry || s.name == nameCoded {
			ours = append(ours, s)
		}
	}
	for _, s := range c.series {
		if len(s.cold) == 0 {
			continue
		}
		o := &WANOutcome{Name: s.name, What: whatOf(s.name), Cold: share(s.cold), Warm: share(s.warm), ColdRuns: s.cold, WarmRuns: s.warm}
		for _, r := range slices.Concat(s.cold, s.warm) {
			if r.Bytes < bytes {
				o.CutShort++
			}
			if r.BusyShare != nil && (c.BusyShare == nil || *r.BusyShare > *c.BusyShare) {
				c.BusyShare = r.BusyShare
			}
		}
		c.Results = append(c.Results, o)
		for _, our := range ours {
			if slices.Contains(ours, s) {
				continue
			}
			for _, q := range []struct {
				name         string
				ours, theirs []*Turn
			}{{QuantityCold, our.cold, s.cold}, {QuantityWarm, our.warm, s.warm}} {
				if v := roundRatios(q.ours, q.theirs); len(v) > 0 {
					r := newRatio(s.name, q.name, v)
					if our.name != NameKvferry {
						r.Of = our.name
					}
					if s.name == nameBBR {
						r.judge(1, v)
					}
					c.Ratios = append(c.Ratios, r)
				}
			}
		}
	}
}

func whatOf(name string) string {
	if name == nameRsync {
		return "rsync over ssh, BBR below, connecting included"
	}
	if p, err := findPeer(name); err == nil {
		return p.what
	}
	return ""
}

func roundRatios(ours, theirs []*Turn) []float64 {
	var out []float64
	for _, a := range ours {
		for _, b := range theirs {
			if a.round == b.round && b.Gbps > 0 {
				out = append(out, a.Gbps/b.Gbps)
			}
		}
	}
	return out
}

// WANBody is the body of a results.File of kind compare over emulated links.
type WANBody struct {
	Cells []*WANCell `json:"cells"`
}

// File makes the result a file of kind results.KindCompare. command is the command line. Errors: ErrNothing, and those of
// results.File.SetBody.
func (r *WANResult) File(command []string) (*results.File, error) {
	if len(r.Cells) == 0 {
		return nil, ErrNothing
	}
	f := results.New(results.KindCompare, command, r.params)
	f.Finish(r.Interrupted)
	f.Started, f.Seconds, f.Machine = r.started, r.seconds, r.machine
	for _, w := range r.warned {
		f.Warn("%s", w)
	}
	for _, c := range r.Cells {
		for _, o := range c.Results {
			for what, runs := range map[string][]*Turn{QuantityCold: o.ColdRuns, QuantityWarm: o.WarmRuns} {
				var v []float64
				for _, x := range runs {
					v = append(v, x.Gbps*1e9/c.rate)
				}
				if len(v) > 0 {
					f.Add(results.Metric{Name: "share/" + what + "/" + o.Name + "/" + c.WAN, Unit: "1", Better: results.Higher, Samples: v})
				}
			}
		}
		if c.BusyShare != nil && *c.BusyShare > 0.95 {
			f.Warn("over %s the processors were %.0f %% busy: the machine, which also is the link, may set the numbers", c.WAN, 100**c.BusyShare)
		}
		if c.DeviceDrops > 0 {
			f.Warn("over %s this machine lost %d packets before they reached the link", c.WAN, c.DeviceDrops)
		}
	}
	slices.SortFunc(f.Metrics, func(a, b results.Metric) int { return strings.Compare(a.Name, b.Name) })
	for _, w := range f.Machine.Cautions() {
		f.Warn("%s", w)
	}
	return f, f.SetBody(WANBody{Cells: r.Cells})
}

// Tables are the result for people: a row a link.
func (r *WANResult) Tables() []*results.Table {
	t := &results.Table{
		Columns: []results.Column{{Name: "Link", Left: true}, {Name: "Way", Left: true}, {Name: "Cold"}, {Name: "Low..High", Left: true}, {Name: "Warm"}, {Name: "Low..High", Left: true}, {Name: "kvferry over it", Left: true}, {Name: "Coded over it", Left: true}, {Name: "Cut short"}},
		Notes: []string{
			"shares of the link's rate that verified bytes had; cold: over fresh connections; warm: once more over the same ones",
			"kvferry over it: ratio of shares within each round, median, cold and warm; at least 1 over " + nameBBR + " is the aim",
			"Coded over it: the same of " + nameCoded + ", whose pages may travel coded: its share is of the bytes before coding",
			"Cut short: transfers ended by the limit, with what had landed",
		},
	}
	for _, c := range r.Cells {
		link := c.WAN
		for _, o := range c.Results {
			ratio := map[string]string{}
			for _, x := range c.Ratios {
				if x.To == o.Name {
					ratio[x.Of] = strings.TrimSpace(ratio[x.Of] + " " + fmt.Sprintf("%.2f", x.Median))
				}
			}
			cold, coldSpread := o.Cold.cells()
			warm, warmSpread := o.Warm.cells()
			t.Row(link, o.Name, cold, coldSpread, warm, warmSpread, ratio[""], ratio[nameCoded], o.CutShort)
			link = ""
		}
	}
	return []*results.Table{t}
}

func (s *WANShare) cells() (median, spread string) {
	if s == nil {
		return "-", "-"
	}
	return fmt.Sprintf("%.3f", s.Median), fmt.Sprintf("%.3f..%.3f", s.Min, s.Max)
}
