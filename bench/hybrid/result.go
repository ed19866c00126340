package hybrid

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Result is what Run simulated: the body of a results.File of kind "hybrid".
type Result struct {
	Cells []Cell `json:"cells"`
	Draws int    `json:"draws"` // a cell
	// Real are migrations with real bytes, where they were asked for.
	Real []Real `json:"real"`
	// Aims are what hybrid is held to.
	Aims []Aim `json:"aims"`
	// Conclusion is one paragraph made from the numbers.
	Conclusion string `json:"conclusion"`

	interrupted bool
	warnings    []string
	cfg         Config
	started     time.Time
	machine     results.Machine
}

// Aim is one thing that hybrid is held to in every cell that it is about.
type Aim struct {
	Name string `json:"name"`
	// Limit is what Worst must not exceed. Both are shares: a regret, or what is compared over what it may be at most.
	Limit float64 `json:"limit"`
	// Cells is how many the aim is about, and Met in how many it holds.
	Cells int `json:"cells"`
	Met   int `json:"met"`
	// Median is over those cells.
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
	// WorstCell is the place of the worst in Result.Cells; -1 when the aim is about no cell.
	WorstCell int `json:"worst_cell"`
}

// The aims, by name.
const (
	AimRegret0  = "regret at sigma 0"
	AimRegret50 = "regret at sigma 0.5"
	AimGain     = "gain where fetch and recompute are equal, asked over had"
	AimP99      = "p99 over 1.05 recompute + one RTT"
)

// judge fills in the aims and the conclusion.
func (r *Result) judge() {
	trips := r.cfg.RoundTrips
	r.Aims = []Aim{
		r.aim(AimRegret0, .05, func(c *Cell) (float64, bool) { return c.Regret, c.Sigma == 0 }),
		r.aim(AimRegret50, .10, func(c *Cell) (float64, bool) { return c.Regret, c.Sigma == .5 }),
		r.aim(AimGain, 1, func(c *Cell) (float64, bool) {
			return .95 * (2 - trips*c.RTTSeconds/c.Recompute.Mean) / c.Gain, c.Equal && c.Sigma == 0
		}),
		r.aim(AimP99, 1, func(c *Cell) (float64, bool) { return c.Hybrid.P99 / (1.05*c.Recompute.P99 + c.RTTSeconds), true }),
	}
	r.Conclusion = r.conclude()
}

// aim looks at the cells that about is true of.
func (r *Result) aim(name string, limit float64, about func(*Cell) (float64, bool)) Aim {
	a := Aim{Name: name, Limit: limit, Worst: math.Inf(-1), WorstCell: -1}
	var all []float64
	for i := range r.Cells {
		v, ok := about(&r.Cells[i])
		if !ok {
			continue
		}
		a.Cells++
		if v <= limit {
			a.Met++
		}
		if v > a.Worst {
			a.Worst, a.WorstCell = v, i
		}
		all = append(all, v)
	}
	if a.Cells == 0 {
		a.Worst = 0
		return a
	}
	a.Median = results.Median(all)
	return a
}

// Aim returns the aim of that name; ok is false when there is none.
func (r *Result) Aim(name string) (a Aim, ok bool) {
	i := slices.IndexFunc(r.Aims, func(a Aim) bool { return a.Name == name })
	if i < 0 {
		return Aim{}, false
	}
	return r.Aims[i], true
}

// conclude is one paragraph.
func (r *Result) conclude() string {
	if len(r.Cells) == 0 {
		return "Nothing was simulated."
	}
	best, wins, static, worse := 0.0, 0, 0, 0.0
	const share = .01
	for i := range r.Cells {
		c := &r.Cells[i]
		best = max(best, c.Gain)
		if c.Hybrid.Mean <= (1+share)*min(c.Fetch.Mean, c.Recompute.Mean) {
			wins++
		}
		if c.StaticSplit.P99 > c.Recompute.P99*1.0001 {
			static++
			worse = max(worse, c.StaticSplit.P99/c.Recompute.P99)
		}
	}
	out := fmt.Sprintf("In the mean hybrid takes at most %g %% longer than the better of fetch and recompute in %d of %d cells; its largest gain over it is %.2f.", 100*share, wins, len(r.Cells), best)
	for _, a := range r.Aims {
		if a.Cells > 0 {
			out += fmt.Sprintf(" %s: at most %.3g wanted, %.3g at worst, held in %d of %d.", upper(a.Name), a.Limit, a.Worst, a.Met, a.Cells)
		}
	}
	if static > 0 {
		out += fmt.Sprintf(" A split fixed in advance has a p99 above recompute's in %d cells, up to %.1f times it.", static, worse)
	}
	return out
}

func upper(s string) string { return string(s[0]-'a'+'A') + s[1:] }

// File makes the result one that can be saved and compared. Its metrics are hybrid's mean and p99 in each cell, without noise: the same seed
// gives the same. command is the command line. It works on what Run returned, not on a Result that was decoded.
func (r *Result) File(command []string) (*results.File, error) {
	f := results.New(results.KindHybrid, command, r.cfg.params())
	f.Started, f.Machine = r.started, r.machine
	if err := f.SetBody(r); err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, r.warnings...)
	for i := range r.Cells {
		c := &r.Cells[i]
		for name, v := range map[string]float64{"mean": c.Hybrid.Mean, "p99": c.Hybrid.P99} {
			if len(f.Metrics) < results.MaxMetrics {
				f.Add(results.Metric{Name: "hybrid." + name + "/" + c.name(), Unit: "s", Better: results.Lower, Median: v, Low: v, High: v})
			}
		}
	}
	slices.SortFunc(f.Metrics, func(a, b results.Metric) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	f.Finish(r.interrupted)
	return f, nil
}

// Interrupted says that the run was cut short.
func (r *Result) Interrupted() bool { return r.interrupted }

// Warnings say what to know before believing the numbers. The caller owns the slice.
func (r *Result) Warnings() []string { return slices.Clone(r.warnings) }

func (r *Result) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}
