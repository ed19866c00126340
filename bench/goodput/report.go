package goodput

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvferry/kvferry/bench/results"
)

// Body is the body of a results.File of kind goodput: the best configuration's fields at the top, then all of them.
type Body struct {
	Form string `json:"form"` // FormWAN or FormDaemons
	WAN  string `json:"wan"`  // the model link; empty between daemons
	Outcome
	Configurations []*Outcome `json:"configurations"` // at least one, in the order they were asked for
}

// ErrNothing is returned by Result.File when no page was measured.
var ErrNothing = errors.New("nothing was measured")

// File makes the result a file of kind results.KindGoodput. command is the command line. Errors: ErrNothing, and those of
// results.File.SetBody.
func (r *Result) File(command []string) (*results.File, error) {
	best := r.Best()
	if best == nil {
		return nil, ErrNothing
	}
	f := results.New(results.KindGoodput, command, r.params)
	f.Finish(r.Interrupted || r.Failure != "")
	f.Started, f.Seconds, f.Machine, f.Remote = r.started, r.seconds, r.machine, r.remote
	maps.Copy(f.Versions, r.versions)
	if r.Failure != "" {
		f.Warn("cut short by a failure, so that repeats are missing: %s", r.Failure)
	}
	for _, w := range r.Warnings {
		f.Warn("%s", w)
	}
	for _, o := range r.Configurations {
		name := ""
		if len(r.Configurations) > 1 {
			name = fmt.Sprintf("/stripes=%d", o.Stripes)
		}
		o.metrics(f, name)
		for _, w := range o.Warnings {
			if len(r.Configurations) > 1 {
				w = count(o.Stripes) + ": " + w
			}
			f.Warn("%s", w)
		}
	}
	for _, c := range f.Machine.Cautions() {
		if r.Form == FormDaemons || !strings.HasPrefix(c, "net.core.") { // the in-memory link has no socket buffers of the system's
			f.Warn("%s", c)
		}
	}
	return f, f.SetBody(Body{Form: r.Form, WAN: r.WAN, Outcome: *best, Configurations: r.Configurations})
}

// metrics adds what --diff compares; suffix tells configurations apart.
func (o *Outcome) metrics(f *results.File, suffix string) {
	cpu := func(part func(cpuSplit) float64) func(*Measure) *float64 {
		return func(m *Measure) *float64 {
			if !m.cpu.split || m.Bytes == 0 {
				return nil
			}
			return ptr(part(m.cpu) / m.gb())
		}
	}
	for _, x := range []struct {
		name, unit string
		better     results.Direction
		of         func(*Measure) *float64
	}{
		{"goodput", "bps", results.Higher, func(m *Measure) *float64 { return &m.GoodputBps }},
		{"ramp", "s", results.Lower, func(m *Measure) *float64 { return m.RampSeconds }},
		{"chunk_latency_p50", "s", results.Lower, func(m *Measure) *float64 { return m.ChunkP50 }},
		{"chunk_latency_p99", "s", results.Lower, func(m *Measure) *float64 { return m.ChunkP99 }},
		{"rtt_smoothed", "s", results.Neither, func(m *Measure) *float64 { return m.RTTSmoothed }},
		{"retransmitted", "packets", results.Lower, func(m *Measure) *float64 { return asFloat(m.PacketsLost) }},
		{"cpu_source", "s/GB", results.Lower, cpu(func(c cpuSplit) float64 { return c.source })},
		{"cpu_destination", "s/GB", results.Lower, cpu(func(c cpuSplit) float64 { return c.destination })},
	} {
		if v := o.samples(x.of); len(v) > 0 {
			f.Add(results.Metric{Name: x.name + suffix, Unit: x.unit, Better: x.better, Samples: v})
		}
	}
}

// Tables are the result for people: the columns that users of nixlbench know, then ours.
func (r *Result) Tables() []*results.Table {
	known := &results.Table{
		Columns: []results.Column{{Name: "Stripes"}, {Name: "Block Size (B)"}, {Name: "Batch Size"}, {Name: "B/W (GB/Sec)"}, {Name: "Avg Lat. (us)"}, {Name: "P99 Lat. (us)"}},
		Notes:   []string{"Batch Size: blocks a transfer; Lat.: of a chunk, from the source's queue to verified at the destination"},
	}
	ours := &results.Table{
		Columns: []results.Column{
			{Name: "Stripes"},
			{Name: "Goodput", Unit: "bps"},
			{Name: "Low..High", Left: true},
			{Name: "Share"},
			{Name: "Ramp"},
			{Name: "RTT"},
			{Name: "Loss"},
			{Name: "Resent"},
			{Name: "CPU src"},
			{Name: "CPU dst"},
			{Name: "Resume"},
			{Name: "Limit", Left: true},
		},
		Notes: []string{"Share: page bytes over the link's rate; Resent: packets a transfer; CPU: processor seconds a GB; Resume: bytes sent again after a cut"},
	}
	for _, o := range r.Configurations {
		lat, p99 := "-", "-"
		if l := o.ChunkLatency; l != nil {
			lat, p99 = fmt.Sprintf("%.0f", l.Mean*1e6), fmt.Sprintf("%.0f", l.P99*1e6)
		}
		known.Row(o.stripes(), fmt.Sprint(o.BlockBytes), fmt.Sprint(o.Blocks), fmt.Sprintf("%.4f", o.GoodputBps/8e9), lat, p99)
		rtt, resume := "-", "-"
		if o.RTT != nil {
			rtt = results.Format(o.RTT.Smoothed, "s")
		}
		if o.ResumeCost != nil {
			resume = results.Format(float64(o.ResumeCost.Bytes), "B")
		}
		ours.Row(
			o.stripes(), o.GoodputBps, o.spread(), text(o.LinkShare, "%.3f"), seconds(o.RampSeconds), rtt, text(o.Loss, "%.2g"), text(o.RetransmittedPackets, "%.0f"),
			text(o.CPU.Source, "%.2f"), text(o.CPU.Destination, "%.2f"), resume, o.LimitedBy,
		)
		ours.Notes = append(ours.Notes, fmt.Sprintf("%s, limit %s: %s", count(o.Stripes), o.LimitedBy, o.Why))
	}
	return []*results.Table{known, ours}
}

func (o *Outcome) stripes() string {
	if o.Stripes == 0 {
		return "?"
	}
	return fmt.Sprint(o.Stripes)
}

// spread is the range of the repeats; an interval needs more of them than most runs have.
func (o *Outcome) spread() string {
	v := o.samples(func(m *Measure) *float64 { return &m.GoodputBps })
	if len(v) < 2 {
		return "-"
	}
	return results.Format(slices.Min(v), "bps") + ".." + results.Format(slices.Max(v), "bps")
}

func text(v *float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return results.Format(*v, "s")
}
