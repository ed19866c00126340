package results

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Verdict is what comparing a metric comes to.
type Verdict string

// The verdicts of a comparison.
const (
	Better  Verdict = "better"
	Worse   Verdict = "worse"
	Same    Verdict = "same"    // whatever difference there may be is within the tolerance
	Changed Verdict = "changed" // differs, and neither direction is the better
	Unclear Verdict = "unclear" // the noise is larger than what would matter: measure more
	Missing Verdict = "missing" // in one of the results only
)

// Parts of a result that [DiffConfig].Allow may name.
const (
	AllowParams  = "params"
	AllowMachine = "machine"
	AllowUnits   = "units"
)

// DiffConfig says how two results are compared. The zero value is what [Diff] uses.
type DiffConfig struct {
	// Allow are parts that may differ, of AllowParams, AllowMachine, AllowUnits; the differences then stand in the Comparison.
	// Metrics of different units or directions are never compared: allowed, they are missing.
	Allow []string
	// Level is the confidence of the intervals, in 0..1 (both excluded); 0 is 0.95.
	Level float64
	// Tolerance is the share of change that does not matter; 0 is 0.02, negative is none: then only equal numbers without
	// noise are the same.
	Tolerance float64
}

// Difference is one thing in which two results are unlike.
type Difference struct {
	Field string `json:"field"` // "params.rtt", "machine.cpu"
	Old   string `json:"old"`   // parameters as JSON; empty for absent
	New   string `json:"new"`
}

// UnlikeError says that two results cannot be compared, and why.
type UnlikeError struct {
	Differences []Difference // at least one
	// Allow are the parts to allow in DiffConfig to compare them all the same; empty when nothing helps, as for kinds.
	Allow []string
}

// Error names every difference.
func (e *UnlikeError) Error() string {
	var b strings.Builder
	b.WriteString("compare unlike results: ")
	for i, d := range e.Differences {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s is %s in the old and %s in the new", d.Field, orNone(d.Old), orNone(d.New))
	}
	if len(e.Allow) > 0 {
		fmt.Fprintf(&b, ": measure with the same, or allow %s to differ", strings.Join(e.Allow, ", "))
	}
	return b.String()
}

func orNone(s string) string {
	if s == "" {
		return "absent"
	}
	return s
}

// Change is what became of one metric.
type Change struct {
	Name     string
	Unit     string
	Better   Direction
	Old, New Estimate // medians with their intervals; zero when missing
	// Ratio is new over old: that of the medians, with an interval that holds the true one. Level 0 says that there is none:
	// a number is zero or negative, or nothing is known about its noise.
	Ratio Estimate
	// P is the chance of samples as different as these when nothing changed (Mann-Whitney); NaN without samples.
	P float64
	// Adjusted is P corrected for all metrics of the two results that were tested, by Holm's method; NaN without samples.
	Adjusted float64
	Verdict  Verdict
	Why      string // what the verdict rests on, one phrase
}

// Comparison is what became of every metric of two results.
type Comparison struct {
	Kind string
	// Unlike are differences that were allowed; Notes what else a reader must know, as that a result was cut short.
	Unlike  []Difference
	Notes   []string
	Changes []Change // in the new result's order, then what only the old one has
}

// Count returns how many metrics have the verdict.
func (c Comparison) Count(v Verdict) int {
	n := 0
	for _, ch := range c.Changes {
		if ch.Verdict == v {
			n++
		}
	}
	return n
}

// Diff compares two results with the defaults of [DiffConfig]. The error is an [*UnlikeError] when they are not of the same
// kind, parameters, machine (os, arch, cpu, cores, CPU quota) and units; it is another one when a result is invalid.
// Neither is changed.
//
// A metric with samples on both sides is better or worse when Mann-Whitney's p, corrected by Holm's method for the number of metrics
// so tested, is at most 0.05, the intervals of the
// medians are disjoint, and the change exceeds the tolerance; it is the same when the whole interval of the ratio is
// within the tolerance. Without samples the intervals alone decide. Everything else is unclear.
func Diff(old, fresh *File) (Comparison, error) { return DiffConfig{}.Diff(old, fresh) }

// Diff compares two results as the function [Diff] does.
func (cfg DiffConfig) Diff(old, fresh *File) (Comparison, error) {
	if err := cfg.validate(); err != nil {
		return Comparison{}, err
	}
	if err := old.Validate(); err != nil {
		return Comparison{}, fmt.Errorf("compare: the old result: %w", err)
	}
	if err := fresh.Validate(); err != nil {
		return Comparison{}, fmt.Errorf("compare: the new result: %w", err)
	}
	c := Comparison{Kind: fresh.Kind}
	unlike := &UnlikeError{}
	for _, u := range unlikes(old, fresh) {
		switch {
		case u.part != "" && slices.Contains(cfg.Allow, u.part):
			c.Unlike = append(c.Unlike, u.Difference)
			continue
		case u.part != "" && !slices.Contains(unlike.Allow, u.part):
			unlike.Allow = append(unlike.Allow, u.part)
		}
		unlike.Differences = append(unlike.Differences, u.Difference)
	}
	if len(unlike.Differences) > 0 {
		if old.Kind != fresh.Kind {
			unlike.Allow = nil
		}
		return Comparison{}, unlike
	}
	c.Notes = notes(old, fresh)
	adjusted := holm(testable(old, fresh))
	for _, m := range fresh.Metrics {
		o, ok := old.Metric(m.Name)
		if !ok || o.Unit != m.Unit || o.Better != m.Better {
			c.Changes = append(c.Changes, missing(m, Estimate{}, estimateOf(m), "only in the new"))
			continue
		}
		c.Changes = append(c.Changes, cfg.compare(o, m, adjusted))
	}
	for _, m := range old.Metrics {
		if _, ok := fresh.Metric(m.Name); !ok {
			c.Changes = append(c.Changes, missing(m, estimateOf(m), Estimate{}, "only in the old"))
		}
	}
	return c, nil
}

func (cfg DiffConfig) validate() error {
	for _, a := range cfg.Allow {
		if a != AllowParams && a != AllowMachine && a != AllowUnits {
			return fmt.Errorf("compare: allow is %q, want %s, %s or %s", a, AllowParams, AllowMachine, AllowUnits)
		}
	}
	if cfg.Level != 0 && !(cfg.Level > 0 && cfg.Level < 1) {
		return fmt.Errorf("compare: level is %v, want 0 (0.95) or between 0 and 1", cfg.Level)
	}
	if !finite(cfg.Tolerance) || cfg.Tolerance >= 1 {
		return fmt.Errorf("compare: tolerance is %v, want less than 1; 0 is 0.02, negative is none", cfg.Tolerance)
	}
	return nil
}

func (cfg DiffConfig) tolerance() float64 {
	if cfg.Tolerance == 0 {
		return 0.02
	}
	return max(0, cfg.Tolerance)
}

func missing(m Metric, old, fresh Estimate, why string) Change {
	return Change{Name: m.Name, Unit: m.Unit, Better: m.Better, Old: old, New: fresh, P: math.NaN(), Adjusted: math.NaN(), Verdict: Missing, Why: why}
}

// estimateOf returns a metric's interval; a single sample's has no level.
func estimateOf(m Metric) Estimate {
	e := Estimate{Value: m.Median, Low: m.Low, High: m.High, Level: DefaultLevel}
	if n := len(m.Samples); n > 0 {
		e.Level = min(DefaultLevel, rankCoverage(n, 0))
	}
	return e
}

// unlikeness is a difference and the part that must be allowed for it, or nothing.
type unlikeness struct {
	Difference
	part string
}

func unlikes(old, fresh *File) []unlikeness {
	var us []unlikeness
	add := func(part, field, o, n string) {
		if o != n {
			us = append(us, unlikeness{Difference{Field: field, Old: o, New: n}, part})
		}
	}
	add("", "kind", old.Kind, fresh.Kind)
	names := slices.Collect(maps.Keys(old.Params))
	for name := range fresh.Params {
		if _, ok := old.Params[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		add(AllowParams, "params."+name, paramText(old.Params, name), paramText(fresh.Params, name))
	}
	machine := func(name string, o, n Machine) {
		add(AllowMachine, name+".os", o.OS, n.OS)
		add(AllowMachine, name+".arch", o.Arch, n.Arch)
		add(AllowMachine, name+".cpu", o.CPU, n.CPU)
		add(AllowMachine, name+".cores", strconv.Itoa(o.Cores), strconv.Itoa(n.Cores))
		add(AllowMachine, name+".cpu_quota", formatNumber(o.CPUQuota), formatNumber(n.CPUQuota))
	}
	machine("machine", old.Machine, fresh.Machine)
	roles := maps.Clone(old.Remote)
	if roles == nil {
		roles = map[string]Machine{}
	}
	maps.Copy(roles, fresh.Remote)
	for _, role := range slices.Sorted(maps.Keys(roles)) { // one that is missing is a machine that nothing is known of
		machine("remote."+role, old.Remote[role], fresh.Remote[role])
	}
	for _, m := range fresh.Metrics {
		if om, ok := old.Metric(m.Name); ok {
			add(AllowUnits, m.Name+" unit", om.Unit, m.Unit)
			add(AllowUnits, m.Name+" better", string(om.Better), string(m.Better))
		}
	}
	return us
}

// paramText returns a parameter as JSON, nothing if there is none.
func paramText(params map[string]any, name string) string {
	v, ok := params[name]
	if !ok {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func notes(old, fresh *File) []string {
	var ns []string
	if old.Interrupted {
		ns = append(ns, "the old run was cut short")
	}
	if fresh.Interrupted {
		ns = append(ns, "the new run was cut short")
	}
	if old.Machine.Kernel != fresh.Machine.Kernel {
		ns = append(ns, fmt.Sprintf("kernel %s, then %s", orNone(old.Machine.Kernel), orNone(fresh.Machine.Kernel)))
	}
	if o, n := old.Versions["go"], fresh.Versions["go"]; o != n {
		ns = append(ns, fmt.Sprintf("go %s, then %s", orNone(o), orNone(n)))
	}
	for _, w := range old.Warnings { // a verdict is worth what the numbers are
		if slices.Contains(fresh.Warnings, w) {
			ns = append(ns, "warning of both: "+w)
		} else {
			ns = append(ns, "warning of the old: "+w)
		}
	}
	for _, w := range fresh.Warnings {
		if !slices.Contains(old.Warnings, w) {
			ns = append(ns, "warning of the new: "+w)
		}
	}
	return append(ns, limits(old, fresh)...)
}

// limits say which results name the machine as what set their numbers: a difference may then be the machine's.
func limits(old, fresh *File) []string {
	o, n := machineLimited(old.Body), machineLimited(fresh.Body)
	switch {
	case o && n:
		return []string{"the machine set numbers of both: a difference may be the machine's"}
	case o:
		return []string{"the machine set numbers of the old: a difference may be the machine's"}
	case n:
		return []string{"the machine set numbers of the new: a difference may be the machine's"}
	}
	return nil
}

// machineLimits are what benchmarks write into a field limited_by when the machine set a number, and not what is measured.
var machineLimits = []string{"machine", "processors", "others"}

// machineLimited looks for one in a body, which is of any kind.
func machineLimited(body json.RawMessage) bool {
	var v any
	if len(body) == 0 || json.Unmarshal(body, &v) != nil {
		return false
	}
	var in func(v any) bool
	in = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			by, _ := v["limited_by"].(string)
			return slices.Contains(machineLimits, by) || slices.ContainsFunc(slices.Collect(maps.Values(v)), in)
		case []any:
			return slices.ContainsFunc(v, in)
		}
		return false
	}
	return in(v)
}

// corrected are a metric's p by Mann-Whitney, as it is and by Holm's method, of so many.
type corrected struct {
	p, adjusted float64
	of          int
}

// text is both, or one when they are the same.
func (c corrected) text() string {
	if c.of < 2 {
		return fmt.Sprintf("p = %.2g", c.p)
	}
	return fmt.Sprintf("p = %.2g, %.2g corrected for %d metrics", c.p, c.adjusted, c.of)
}

// testable are the p of metrics that both results have samples of, by name.
func testable(old, fresh *File) map[string]float64 {
	out := map[string]float64{}
	for _, m := range fresh.Metrics {
		o, ok := old.Metric(m.Name)
		if ok && o.Unit == m.Unit && o.Better == m.Better && len(o.Samples) > 0 && len(m.Samples) > 0 {
			if p := mannWhitney(o.Samples, m.Samples); !math.IsNaN(p) {
				out[m.Name] = p
			}
		}
	}
	return out
}

// holm adjusts p of several tests so that the chance that any of them finds a difference where there is none stays what one's would be
// (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979).
func holm(p map[string]float64) map[string]corrected {
	names := slices.SortedFunc(maps.Keys(p), func(a, b string) int { return cmp.Or(cmp.Compare(p[a], p[b]), cmp.Compare(a, b)) })
	out := map[string]corrected{}
	most := 0.0
	for i, name := range names {
		most = max(most, min(1, float64(len(names)-i)*p[name]))
		out[name] = corrected{p[name], most, len(names)}
	}
	return out
}

// compare gives the verdict on a metric that both results have.
func (cfg DiffConfig) compare(old, fresh Metric, tests map[string]corrected) Change {
	c := Change{Name: fresh.Name, Unit: fresh.Unit, Better: fresh.Better, Old: estimateOf(old), New: estimateOf(fresh), P: math.NaN(), Adjusted: math.NaN()}
	test, tested := tests[fresh.Name]
	if tested {
		c.P, c.Adjusted = test.p, test.adjusted
	}
	level, tol := levelOr(cfg.Level), cfg.tolerance()
	sampled := len(old.Samples) > 0 && len(fresh.Samples) > 0
	var shift Estimate
	if sampled {
		shift = pairInterval(thin(old.Samples), thin(fresh.Samples), level, func(n, o float64) float64 { return n - o })
		if slices.Min(old.Samples) > 0 && slices.Min(fresh.Samples) > 0 {
			c.Ratio = pairInterval(thin(old.Samples), thin(fresh.Samples), level, func(n, o float64) float64 { return n / o })
		}
	} else {
		shift = Estimate{Low: fresh.Low - old.High, High: fresh.High - old.Low, Level: level}
		if old.Low > 0 && fresh.Low > 0 {
			c.Ratio = Estimate{Low: fresh.Low / old.High, High: fresh.High / old.Low, Level: level}
		}
	}
	if !finite(c.Ratio.Low) || !finite(c.Ratio.High) || !finite(fresh.Median/old.Median) {
		c.Ratio = Estimate{}
	}
	if c.Ratio.Level > 0 {
		// The ratio of the medians may lie outside of the pairs' interval, which is about their middle: hold both.
		c.Ratio.Value = fresh.Median / old.Median
		c.Ratio.Low, c.Ratio.High = min(c.Ratio.Low, c.Ratio.Value), max(c.Ratio.High, c.Ratio.Value)
	} else {
		c.Ratio = Estimate{}
	}
	// What does not matter, as a shift: the share tol of the larger median.
	slack := tol * max(math.Abs(old.Median), math.Abs(fresh.Median))
	delta := fresh.Median - old.Median
	disjoint := !c.Old.Overlaps(c.New)
	within := shift.Low >= -slack && shift.High <= slack
	sure := shift.Level >= 0.9*level
	switch {
	case within && (sure || !sampled):
		c.Verdict, c.Why = Same, fmt.Sprintf("the difference is within %.3g %%", 100*tol)
	case sampled && !sure:
		c.Verdict, c.Why = Unclear, fmt.Sprintf("too few samples (%d and %d)", len(old.Samples), len(fresh.Samples))
	case !disjoint:
		c.Verdict, c.Why = Unclear, "the intervals overlap"
	case tested && c.Adjusted > 0.05:
		c.Verdict, c.Why = Unclear, test.text()
	case math.Abs(delta) <= slack:
		c.Verdict, c.Why = Unclear, fmt.Sprintf("differs, by about the tolerance of %.3g %%", 100*tol)
	default:
		c.Verdict, c.Why = direction(fresh.Better, delta), "the intervals are apart"
		if tested {
			c.Why += ", " + test.text()
		}
	}
	return c
}

func direction(better Direction, delta float64) Verdict {
	switch {
	case better == Neither:
		return Changed
	case (delta > 0) == (better == Higher):
		return Better
	}
	return Worse
}

// thin returns at most 1,000 of the samples, evenly over their order in size, so that the pairs stay countable.
func thin(x []float64) []float64 {
	const most = 1000
	if len(x) <= most {
		return x
	}
	s := slices.Sorted(slices.Values(x))
	t := make([]float64, most)
	for i := range t {
		t[i] = quantileSorted(s, (float64(i)+0.5)/most)
	}
	return t
}

// Table writes the comparison as text, and below it what a reader must know.
func (c Comparison) Table(w io.Writer) error {
	t := Table{Columns: []Column{
		{Name: "metric", Left: true}, {Name: "old"}, {Name: "new"}, {Name: "ratio"}, {Name: "verdict", Left: true}, {Name: "why", Left: true},
	}}
	for _, ch := range c.Changes {
		ratio := "-"
		if ch.Ratio.Level > 0 {
			ratio = fmt.Sprintf("%.3f [%.3f, %.3f]", ch.Ratio.Value, ch.Ratio.Low, ch.Ratio.High)
		}
		cell := func(e Estimate) string {
			if e == (Estimate{}) {
				return "-"
			}
			return Format(e.Value, ch.Unit)
		}
		t.Row(ch.Name, cell(ch.Old), cell(ch.New), ratio, string(ch.Verdict), ch.Why)
	}
	for _, d := range c.Unlike {
		t.Notes = append(t.Notes, fmt.Sprintf("unlike: %s is %s in the old and %s in the new", d.Field, orNone(d.Old), orNone(d.New)))
	}
	t.Notes = append(t.Notes, c.Notes...)
	return t.Write(w)
}
