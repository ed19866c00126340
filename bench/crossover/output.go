package crossover

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kvferry/kvferry/bench/results"
)

// File makes the result one that can be saved and compared. command is the command line. Error: those of results.File.SetBody.
func (r *Result) File(command []string) (*results.File, error) {
	f := results.New(results.KindCrossover, command, r.params)
	f.Finish(r.interrupted)
	if !r.started.at.IsZero() {
		f.Started, f.Seconds, f.Machine = r.started.at, r.started.seconds, r.machine
	}
	for _, w := range r.warnings {
		f.Warn("%s", w)
	}
	for _, c := range f.Machine.Cautions() {
		if !strings.HasPrefix(c, "net.core.") { // the in-memory link has no socket buffers of the system's
			f.Warn("%s", c)
		}
	}
	if x := r.Measured.Crossover; x != nil {
		f.Add(results.Metric{Name: "crossover", Unit: "tokens", Better: results.Neither, Median: x.Mean, Low: x.Low, High: x.High})
	}
	// One calibration is one sample: shown, and too little to call a difference.
	f.Add(results.Metric{Name: "goodput", Unit: "bps", Better: results.Higher, Samples: []float64{r.Calibration.GoodputBps}})
	for _, p := range r.Points {
		f.Add(results.Metric{Name: fmt.Sprintf("fetch.seconds/%d", p.PrefixTokens), Unit: "s", Better: results.Lower, Samples: p.FetchSamples})
		f.Add(results.Metric{Name: fmt.Sprintf("recompute.seconds/%d", p.PrefixTokens), Unit: "s", Better: results.Lower, Samples: p.RecomputeSamples})
	}
	return f, f.SetBody(r)
}

// Interrupted says that the run was cut short.
func (r *Result) Interrupted() bool { return r.interrupted }

// Warnings say what to know before believing the numbers. The caller owns the slice.
func (r *Result) Warnings() []string { return slices.Clone(r.warnings) }

// pointTable has a row a length.
func (r *Result) pointTable() *results.Table {
	t := &results.Table{
		Title: "Fetch against recompute by prefix length",
		Columns: []results.Column{
			{Name: "tokens"},
			{Name: "bytes", Unit: "B"},
			{Name: "fetch", Unit: "s"},
			{Name: "predicted", Unit: "s"},
			{Name: "error", Unit: "%"},
			{Name: "recompute", Unit: "s"},
			{Name: "predicted", Unit: "s"},
			{Name: "error", Unit: "%"},
			{Name: "faster", Left: true},
		},
		Notes: []string{fmt.Sprintf("medians of %d rounds with their intervals (the extremes with fewer than six rounds); predicted before the sweep", r.Rounds)},
	}
	for _, p := range r.Points {
		faster := "recompute"
		if p.Fetch.Median < p.Recompute.Median {
			faster = "fetch"
		}
		t.Row(fmt.Sprint(p.PrefixTokens), float64(p.Bytes), p.Fetch.estimate(), p.PredictedFetch, signed(p.PredictedFetch, p.Fetch.Median),
			p.Recompute.estimate(), p.PredictedRecompute, signed(p.PredictedRecompute, p.Recompute.Median), faster)
	}
	return t
}

func (s Spread) estimate() results.Estimate {
	return results.Estimate{Value: s.Median, Low: s.Low, High: s.High, Level: results.DefaultLevel}
}

func signed(predicted, measured float64) string {
	if !(measured > 0) {
		return "-"
	}
	return fmt.Sprintf("%+.1f", 100*(predicted-measured)/measured)
}

// Tables are the result for people: the lengths, then the crossover with what it rests on.
func (r *Result) Tables() []*results.Table {
	c, p, m := r.Calibration, r.Predicted, r.Measured
	t := &results.Table{
		Title:   "Crossover",
		Columns: []results.Column{{Name: "", Left: true}, {Name: "measured"}, {Name: "predicted"}},
	}
	t.Row("crossover, tokens", r.crossoverText(), optional(p.Crossover, "%.1f"))
	t.Row("fetch: fixed", results.Format(m.Fetch.FixedSeconds, "s"), results.Format(p.RoundTrips*p.RTTSeconds+p.MigrationFixedSeconds, "s"))
	t.Row("fetch: a token", results.Format(m.Fetch.SecondsPerToken, "s"), results.Format(p.FetchSecondsPerToken, "s"))
	t.Row("recompute: fixed", results.Format(m.Recompute.FixedSeconds, "s"), results.Format(p.PrefillFixedSeconds, "s"))
	t.Row("recompute: a token", results.Format(m.Recompute.SecondsPerToken, "s"), results.Format(p.PrefillSecondsPerToken, "s"))
	t.Notes = []string{
		fmt.Sprintf("link %s, %d connections; model %s, %d bytes a token; recompute: %s", r.WAN, c.Stripes, r.Model, p.BytesPerToken, r.EngineWhat),
		fmt.Sprintf("prediction from RTT %s (%s), goodput %s (%s), %g round trips and %s a migration, prefill %s; base model (one round trip): %s tokens",
			results.Format(p.RTTSeconds, "s"), p.RTTSource, results.Format(p.GoodputBps, "bps"), p.GoodputSource, p.RoundTrips, results.Format(p.MigrationFixedSeconds, "s"), p.PrefillSource, optional(p.BaseCrossover, "%.1f")),
		fmt.Sprintf("limit %s: %s", r.LimitedBy, r.Why), "", r.Conclusion,
	}
	return []*results.Table{r.pointTable(), t}
}

func (r *Result) crossoverText() string {
	x := r.Measured.Crossover
	if x == nil {
		return "none: " + strings.ReplaceAll(string(r.Measured.Verdict), "_", " ")
	}
	return fmt.Sprintf("%.1f (%.1f..%.1f)", x.Mean, x.Low, x.High)
}

func optional(v *float64, format string) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf(format, *v)
}

// CSV writes the lengths as RFC 4180 text, seconds and bytes as they are.
func (r *Result) CSV(w io.Writer) error {
	names := []string{
		"prefix_tokens", "blocks", "bytes", "fetch_seconds", "fetch_seconds_low", "fetch_seconds_high", "recompute_seconds", "recompute_seconds_low", "recompute_seconds_high",
		"predicted_fetch_seconds", "predicted_recompute_seconds", "daemon_fetch_seconds",
	}
	if _, err := fmt.Fprintln(w, strings.Join(names, ",")); err != nil {
		return err
	}
	for _, p := range r.Points {
		_, err := fmt.Fprintf(w, "%d,%d,%d,%g,%g,%g,%g,%g,%g,%g,%g,%g\n", p.PrefixTokens, p.Blocks, p.Bytes, p.Fetch.Median, p.Fetch.Low, p.Fetch.High,
			p.Recompute.Median, p.Recompute.Low, p.Recompute.High, p.PredictedFetch, p.PredictedRecompute, p.DaemonFetch)
		if err != nil {
			return err
		}
	}
	return nil
}

// Plot draws both times over the prefix length, measured and predicted, with the crossovers as vertical lines.
func (r *Result) Plot() results.Plot {
	p := results.Plot{
		Title: fmt.Sprintf("Fetch or recompute: %s over %s", r.Model, r.WAN),
		X:     results.Axis{Label: "prefix", Unit: "tokens"}, Y: results.Axis{Label: "time until the prefix is there", Unit: "s"},
	}
	series := func(name string, style results.Style, like int, of func(Point) results.Point) {
		s := results.Series{Name: name, Style: style, Like: like}
		for _, q := range r.Points {
			s.Points = append(s.Points, of(q))
		}
		p.Series = append(p.Series, s)
	}
	mark := func(n int64, s Spread) results.Point {
		return results.Point{X: float64(n), Y: s.Median, Low: s.Low, High: s.High}
	}
	series("fetch, measured", results.LinesAndMarks, 0, func(q Point) results.Point { return mark(q.PrefixTokens, q.Fetch) })
	series("recompute, measured", results.LinesAndMarks, 0, func(q Point) results.Point { return mark(q.PrefixTokens, q.Recompute) })
	series("fetch, predicted", results.DashedLine, 1, func(q Point) results.Point { return results.Point{X: float64(q.PrefixTokens), Y: q.PredictedFetch} })
	series("recompute, predicted", results.DashedLine, 2, func(q Point) results.Point { return results.Point{X: float64(q.PrefixTokens), Y: q.PredictedRecompute} })
	last := float64(r.Points[len(r.Points)-1].PrefixTokens)
	if x := r.Measured.Crossover; x != nil && x.Mean <= 1.2*last {
		p.Markers = append(p.Markers, results.Marker{Label: fmt.Sprintf("crossover measured %.0f", x.Mean), X: x.Mean, Low: x.Low, High: min(x.High, 1.2*last)})
	}
	if x := r.Predicted.Crossover; x != nil && *x <= 1.2*last {
		p.Markers = append(p.Markers, results.Marker{Label: fmt.Sprintf("predicted %.0f", *x), X: *x, Dashed: true})
	}
	return p
}

// conclude makes the paragraph from the numbers.
func (r *Result) conclude() string {
	say := []string{r.concludeCrossover()}
	if r.ErrorPct != nil {
		e := *r.ErrorPct
		say = append(say, fmt.Sprintf("The planner predicts %.0f, %s.", *r.Predicted.Crossover, offBy(e)))
	} else if r.Predicted.Crossover != nil {
		say = append(say, fmt.Sprintf("The planner predicts a crossover at %.0f tokens.", *r.Predicted.Crossover))
	} else {
		say = append(say, "The planner predicts no crossover either: "+fmt.Sprintf("a token takes %s to fetch and %s to recompute.",
			results.Format(r.Predicted.FetchSecondsPerToken, "s"), results.Format(r.Predicted.PrefillSecondsPerToken, "s")))
		if r.Measured.Crossover != nil {
			say[len(say)-1] = "The planner predicts none."
		}
	}
	f := r.TimeErrorPct.Fetch
	say = append(say, fmt.Sprintf("Its fetch times are off by %.1f %% in the median and %+.1f %% at worst (%d tokens).", f.MedianAbsolute, f.Worst, f.WorstTokens))
	if r.LimitedBy == LimitMachine {
		say = append(say, "The machine, not the link, set the time of a fetch: on an idle machine the crossover is shorter.")
	}
	return strings.Join(say, " ")
}

func (r *Result) concludeCrossover() string {
	m, last := r.Measured, r.Points[len(r.Points)-1]
	switch m.Verdict {
	case Crosses:
		gain := last.Recompute.Median / last.Fetch.Median
		s := fmt.Sprintf("On this link fetching %s is faster than recomputing it from %.0f tokens on (%.0f to %.0f).", r.Model, m.Crossover.Mean, m.Crossover.Low, m.Crossover.High)
		if m.Extrapolated {
			s += " That lies outside of the lengths measured."
		} else if gain > 1 {
			s += fmt.Sprintf(" At %d tokens it takes %.2f of the time.", last.PrefixTokens, 1/gain)
		}
		return s
	case AlwaysPays:
		return fmt.Sprintf("On this link fetching %s is faster at every length: a prefill costs more to start than a migration.", r.Model)
	case PaysToLimit:
		return fmt.Sprintf("On this link fetching %s is faster up to %.0f tokens only: it is slower a token than prefill, which costs more to start.", r.Model, m.Crossover.Mean)
	default:
		return fmt.Sprintf("On this link fetching %s never pays: a token takes %s to fetch and %s to recompute.", r.Model,
			results.Format(m.Fetch.SecondsPerToken, "s"), results.Format(m.Recompute.SecondsPerToken, "s"))
	}
}

// offBy says how far a prediction is off.
func offBy(pct float64) string {
	switch {
	case math.Abs(pct) < 0.5:
		return "right within half a percent"
	case pct > 0:
		return fmt.Sprintf("%.1f %% more", pct)
	}
	return fmt.Sprintf("%.1f %% less", -pct)
}
