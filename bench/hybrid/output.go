package hybrid

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// shown is the setting that tables and the plot are about: of each list the one in the middle, but for the goodput and sigma.
func (r *Result) shown() (cells []Cell) {
	if len(r.Cells) == 0 {
		return nil
	}
	middle := func(of func(Cell) float64) float64 {
		var all []float64
		for _, c := range r.Cells {
			if v := of(c); c.GPU == r.Cells[0].GPU && !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	rtt := middle(func(c Cell) float64 { return c.RTTSeconds })
	tokens := middle(func(c Cell) float64 { return float64(c.PrefixTokens) })
	for _, c := range r.Cells {
		if c.GPU == r.Cells[0].GPU && c.RTTSeconds == rtt && float64(c.PrefixTokens) == tokens {
			cells = append(cells, c)
		}
	}
	slices.SortStableFunc(cells, func(a, b Cell) int {
		if a.GoodputBps < b.GoodputBps {
			return -1
		} else if a.GoodputBps > b.GoodputBps {
			return 1
		}
		return 0
	})
	return cells
}

// about names the setting of cells.
func about(c Cell) string {
	return fmt.Sprintf("%s, %d tokens, %v", c.GPU, c.PrefixTokens, time.Duration(math.Round(1e9*c.RTTSeconds)))
}

// Tables returns the result for people: one setting in the middle of the grid, and the aims over all cells. The JSON has every cell.
func (r *Result) Tables() []*results.Table {
	cells := r.shown()
	if len(cells) == 0 {
		return nil
	}
	out := []*results.Table{r.cellTable(cells), r.aimTable()}
	if len(r.Real) > 0 {
		out = append(out, r.realTable())
	}
	return out
}

// realTable shows the migrations with real bytes.
func (r *Result) realTable() *results.Table {
	t := &results.Table{
		Title: "Migrations with real bytes: two daemons, the link model, an engine that takes the time of a GPU",
		Columns: []results.Column{
			{Name: "link", Unit: "bps"},
			{Name: "RTT", Unit: "s"},
			{Name: "tokens"},
			{Name: "prefill", Unit: "us/token"},
			{Name: "planned", Unit: "s"},
			{Name: "simulated", Unit: "s"},
			{Name: "took", Unit: "s"},
			{Name: "off simulated", Unit: "%"},
			{Name: "prefilled"},
			{Name: "moved"},
			{Name: "twice", Unit: "B"},
		},
		Notes: []string{"took: until every block was there. off simulated: took over simulated, less 1. prefilled, moved: blocks. twice: asked for and prefilled."},
	}
	for i := range r.Real {
		x := &r.Real[i]
		t.Row(x.RateBps, x.RTTSeconds, x.PrefixTokens, x.PrefillUsPerToken, x.Predicted, x.Simulated, x.Actual, 100*(x.Actual/x.Simulated-1), x.BlocksComputed, x.BlocksMoved, x.DuplicateBytes)
	}
	return t
}

func (r *Result) cellTable(cells []Cell) *results.Table {
	t := &results.Table{
		Title: "Seconds until a session is warm, mean and p99: " + about(cells[0]),
		Columns: []results.Column{
			{Name: "believed", Unit: "bps"},
			{Name: "sigma"},
			{Name: "fetch", Unit: "s"},
			{Name: "p99", Unit: "s"},
			{Name: "recompute", Unit: "s"},
			{Name: "fixed split", Unit: "s"},
			{Name: "p99", Unit: "s"},
			{Name: "hybrid", Unit: "s"},
			{Name: "p99", Unit: "s"},
			{Name: "oracle", Unit: "s"},
			{Name: "regret", Unit: "%"},
			{Name: "gain"},
			{Name: "duplicate", Unit: "B"},
		},
		Notes: []string{
			"sigma: of the logarithm of the true goodput. fixed split: the best for the believed goodput. oracle: the best for the true one.",
			"regret: hybrid's mean over the oracle's. gain: the better mean of fetch and recompute over hybrid's. duplicate: landed after a take-over.",
			fmt.Sprintf("%d cells were simulated, %d draws each; -o json has them all.", len(r.Cells), r.Draws),
			"",
		},
	}
	for _, c := range cells {
		t.Row(c.GoodputBps, c.Sigma, c.Fetch.Mean, c.Fetch.P99, c.Recompute.Mean, c.StaticSplit.Mean, c.StaticSplit.P99, c.Hybrid.Mean, c.Hybrid.P99,
			c.Oracle.Mean, 100*c.Regret, fmt.Sprintf("%.2f", c.Gain), c.DuplicateBytes)
	}
	return t
}

func (r *Result) aimTable() *results.Table {
	t := &results.Table{
		Title: "What hybrid is held to, over all cells",
		Columns: []results.Column{
			{Name: "aim", Left: true},
			{Name: "at most"},
			{Name: "median"},
			{Name: "worst"},
			{Name: "held"},
			{Name: "the worst", Left: true},
		},
	}
	for _, a := range r.Aims {
		worst, held := "-", fmt.Sprintf("%d of %d", a.Met, a.Cells)
		if a.WorstCell >= 0 && a.WorstCell < len(r.Cells) { // a result that was read may say anything
			worst = r.Cells[a.WorstCell].name()
		}
		t.Row(a.Name, a.Limit, fmt.Sprintf("%.4f", a.Median), fmt.Sprintf("%.4f", a.Worst), held, worst)
	}
	t.Notes = []string{
		"asked over had: 0.95 (2 - round trips x RTT / T) over the gain there, T being what fetch and recompute take alone",
		"", r.Conclusion,
	}
	return t
}

// Plot draws seconds over the believed goodput in the setting that the tables show, at the largest sigma up to 0.5: the mean of each way, and
// its p99 dashed.
func (r *Result) Plot() results.Plot {
	cells := r.shown()
	sigma := 0.0
	for _, c := range cells {
		if c.Sigma <= .5 || sigma == 0 {
			sigma = max(sigma, c.Sigma)
		}
	}
	cells = slices.DeleteFunc(cells, func(c Cell) bool { return c.Sigma != sigma })
	p := results.Plot{
		Title: "Nothing was simulated",
		X:     results.Axis{Label: "believed goodput of the link", Unit: "bps", Log: true},
		Y:     results.Axis{Label: "until warm: mean, and p99 dashed", Unit: "s", Log: true},
	}
	if len(cells) == 0 {
		p.Series = []results.Series{{Points: []results.Point{{X: 1, Y: 1}}}}
		return p
	}
	p.Title = fmt.Sprintf("Fetch, recompute, and both at once where the link's goodput is off by sigma %g: %s", sigma, about(cells[0]))
	for i, way := range []struct {
		name string
		of   func(Cell) Seconds
	}{
		{"oracle", func(c Cell) Seconds { return c.Oracle }}, // first, so that hybrid is drawn over it
		{"fetch", func(c Cell) Seconds { return c.Fetch }},
		{"recompute", func(c Cell) Seconds { return c.Recompute }},
		{"split fixed in advance", func(c Cell) Seconds { return c.StaticSplit }},
		{"hybrid", func(c Cell) Seconds { return c.Hybrid }},
	} {
		mean := results.Series{Name: way.name, Like: i + 1}
		p99 := results.Series{Style: results.DashedLine, Like: i + 1}
		if way.name == "oracle" {
			mean.Style = results.LineOnly
		}
		for _, c := range cells {
			mean.Points = append(mean.Points, results.Point{X: c.GoodputBps, Y: way.of(c).Mean})
			p99.Points = append(p99.Points, results.Point{X: c.GoodputBps, Y: way.of(c).P99})
		}
		p.Series = append(p.Series, mean, p99)
	}
	return p
}
