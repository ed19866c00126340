package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvferry/kvferry/bench/results"
)

// Tables returns the result for people: the points, the crossovers, and how the simulated orders fit the link. Those of
// parts that were not measured are left out.
func (r *Result) Tables() []*results.Table {
	var out []*results.Table
	if len(r.Points) > 0 {
		out = append(out, r.pointTable())
	}
	if r.Crossover != nil {
		out = append(out, r.Crossover.table())
	}
	if slices.ContainsFunc(r.Points, func(p Point) bool { return p.QUIC != nil }) {
		out = append(out, r.replayTable())
	}
	if len(out) > 0 {
		last := out[len(out)-1]
		last.Notes = append(last.Notes, "", r.Conclusion)
	}
	return out
}

func (r *Result) pointTable() *results.Table {
	t := &results.Table{
		Title: "Mean wait behind other jobs, measured and by law",
		Columns: []results.Column{
			{Name: "source", Left: true},
			{Name: "order", Left: true},
			{Name: "service", Left: true},
			{Name: "utilization"},
			{Name: "measured", Unit: "s"},
			{Name: "M/M/1", Unit: "s"},
			{Name: "M/G/1", Unit: "s"},
			{Name: "sharing", Unit: "s"},
			{Name: "backlog", Unit: "s"},
			{Name: "its error", Unit: "s"},
			{Name: "size slope"},
		},
		Notes: []string{
			"measured: with its 95 % interval. sharing: processor sharing, in the mean the same as M/M/1 for any service.",
			"backlog: bytes queued at each arrival over the rate; its error: mean absolute. size slope: wait a second of own service.",
			"",
		},
	}
	for _, p := range r.Points {
		slope := "-"
		if p.SizeSlope != nil {
			slope = strings.Replace(fmt.Sprintf("%.2f", *p.SizeSlope), "-0.00", "0.00", 1)
		}
		source := string(p.Source)
		if p.QUIC != nil {
			source += ", " + p.QUIC.sender()
		}
		t.Row(source, p.Discipline, string(p.Service), p.Utilization,
			results.Estimate{Value: p.Wait.Measured, Low: p.WaitInterval.Low, High: p.WaitInterval.High, Level: p.WaitInterval.Level},
			p.Wait.MM1, p.Wait.MG1, p.Wait.PS, p.Wait.Backlog, p.Backlog.MeanAbsolute, slope)
	}
	return t
}

func (c *Crossover) table() *results.Table {
	t := &results.Table{
		Title:   "Utilization of the source's link at which fetch stops paying (base model, utilization preset)",
		Columns: []results.Column{{Name: "law", Left: true}, {Name: "measured", Unit: "1"}, {Name: "by theory", Unit: "1"}},
		Notes: []string{
			fmt.Sprintf("fetch %.2f ms + its wait against recompute %.2f ms + its wait at %v; both queues %v jobs a second; the planner predicts %.4f", 1e3*c.FetchSeconds, 1e3*c.RecomputeSeconds, c.ComputeUtilization, c.ServiceRate, c.Predicted),
			"own size: the fetch waits as a job of its own size, the others as the mean job of the queue", "",
		},
	}
	for _, l := range c.Laws {
		t.Row(l.Law, results.Estimate{Value: l.Measured.Mean, Low: l.Measured.Low, High: l.Measured.High, Level: results.DefaultLevel}, l.Predicted)
	}
	return t
}

func (r *Result) replayTable() *results.Table {
	t := &results.Table{
		Title: "Real QUIC against the simulator with the same arrivals, nearest order first",
		Columns: []results.Column{
			{Name: "sender", Left: true},
			{Name: "utilization"},
			{Name: "offered"},
			{Name: "order", Left: true},
			{Name: "simulated", Unit: "s"},
			{Name: "measured less simulated", Unit: "s"},
			{Name: "RMS", Unit: "s"},
			{Name: "correlation"},
			{Name: "law overlaps", Left: true}, // of the law that counts
		},
	}
	for _, p := range r.Points {
		if p.QUIC == nil {
			continue
		}
		for _, y := range p.QUIC.Replays {
			overlaps := ""
			if y.Discipline == p.QUIC.Law {
				overlaps = p.QUIC.verdict()
			}
			t.Row(p.QUIC.sender(), p.Utilization, p.QUIC.Offered, y.Discipline, y.Mean,
				results.Estimate{Value: y.Difference.Mean, Low: y.Difference.Low, High: y.Difference.High, Level: results.DefaultLevel}, y.RMS, y.Correlation, overlaps)
		}
	}
	t.Notes = append(t.Notes,
		"default: the sender as daemons run it, whose law, fixed beforehand, is least-left: the transfer with the least left, behind what is on its way",
		"in turn: a sender that serves all transfers at a time, whose law is sender: transfers in turn, a chunk each, as many chunks at a time as are being written")
	for _, l := range []*Link{r.Link, r.Sharing} {
		if l != nil {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: link %s, %d connections, chunks of %s: a lone transfer takes %s and its bytes at %s (R² %.4f)%s",
				senderName(l.Law), l.WAN, l.Stripes, results.Format(float64(l.ChunkBytes), "B"), results.Format(l.UnloadedSeconds, "s"), results.Format(l.RateBps, "bps"), l.R2,
				l.aheadText()))
		}
	}
	for _, p := range r.Points {
		if q := p.QUIC; q != nil {
			t.Notes = append(t.Notes, fmt.Sprintf("%s, at %v: %d jobs in %.0f s, mean wait to ±%.0f %%, neighbouring batches correlate by %.2f; power: a mean wait off by %.0f %% or more would be found apart in four of five runs",
				q.sender(), p.Utilization, p.Jobs, q.Seconds, 100*q.HalfWidth, p.WaitInterval.Lag1, 100*q.Detectable))
		}
	}
	return t
}

// senderName is what tables call the sender of a law.
func senderName(law string) string {
	if law == LinkLaw {
		return "default"
	}
	return "in turn"
}

func (q *LinkPoint) sender() string { return senderName(q.Law) }

// aheadText says how much is on its way; "" where it is not needed.
func (l *Link) aheadText() string {
	if l.Law != LinkLaw {
		return ""
	}
	return "; a small one beside a large one waits " + results.Format(l.AheadSeconds, "s")
}

// verdict is what the overlap says.
func (q *LinkPoint) verdict() string {
	switch {
	case !q.Conclusive:
		return "inconclusive"
	case q.Overlaps:
		return "yes"
	}
	return "no"
}

// plotFrom and plotTo are the utilizations over which laws are drawn.
const plotFrom, plotTo = 0.02, 0.94

// Plot draws waits over utilization, in mean service times, with the laws as lines and the crossover as a marker.
func (r *Result) Plot() results.Plot {
	p := results.Plot{
		Title: "Wait behind other jobs: measured, and what the laws say",
		X:     results.Axis{Label: "utilization", Max: 1},
		Y:     results.Axis{Label: "mean wait, in mean service times", Log: true},
	}
	spread := r.cfg.withDefaults().Spread
	law := func(name string, scv float64) {
		s := results.Series{Name: name, Style: results.LineOnly}
		for i := range 93 {
			rho := plotFrom + (plotTo-plotFrom)*float64(i)/92
			s.Points = append(s.Points, results.Point{X: rho, Y: lawsAt(rho, 1, scv).MG1})
		}
		p.Series = append(p.Series, s)
	}
	law("M/M/1 and processor sharing", 1)
	law("M/D/1", 0)
	law(fmt.Sprintf("M/G/1, C² = %v", spread), spread)
	for _, kind := range []struct {
		name       string
		source     Source
		discipline string // over QUIC the law
		service    Service
	}{
		{"FIFO, exponential", SourceSimulator, "fifo", Exponential},
		{"FIFO, equal", SourceSimulator, "fifo", Deterministic},
		{"FIFO, lognormal", SourceSimulator, "fifo", Lognormal},
		{"sharing, lognormal", SourceSimulator, "ps", Lognormal},
		{"real QUIC, as daemons", SourceQUIC, LinkLaw, Exponential},
		{"real QUIC, in turn", SourceQUIC, SharingLaw, Exponential},
	} {
		s := results.Series{Name: kind.name, Style: results.MarksOnly}
		for _, q := range r.Points {
			if q.Source != kind.source || q.metricDiscipline() != kind.discipline || q.Service != kind.service || !(q.Wait.Measured > 0) {
				continue // a logarithm needs a positive wait; over QUIC noise can make one negative
			}
			u := q.ServiceSeconds
			s.Points = append(s.Points, results.Point{X: q.Utilization, Y: q.Wait.Measured / u, Low: q.WaitInterval.Low / u, High: q.WaitInterval.High / u})
		}
		if len(s.Points) > 0 {
			p.Series = append(p.Series, s)
		}
	}
	if c := r.Crossover; c != nil {
		p.Markers = append(p.Markers,
			results.Marker{Label: fmt.Sprintf("crossover measured %.4f", c.Measured.Mean), X: c.Measured.Mean, Low: c.Measured.Low, High: c.Measured.High},
			results.Marker{Label: fmt.Sprintf("predicted %.4f", c.Predicted), X: c.Predicted, Dashed: true})
	}
	return p
}
