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
			name = fmt.Sprintf("/stripes=%d", o.asked())
		}
		o.metrics(f, name)
		for _, w := range o.Warnings {
			if len(r.Configurations) > 1 {
				w = count(o.asked()) + ": " + w
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
	cpu := func(part func(cpuSplit) float64, end int) func(*Measure) *float64 {
		return func(m *Measure) *float64 {
			switch {
			case m.Bytes == 0:
				return nil
			case m.cpu.split:
				return ptr(part(m.cpu) / m.gb())
			case m.daemonCPU[end] > 0: // 0: of no daemon
				return ptr(m.daemonCPU[end] / m.gb())
			}
			return nil
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
		{"repaired", "packets", results.Neither, func(m *Measure) *float64 { return asFloat(m.PacketsRepaired) }},
		{"wire_bytes", "B", results.Lower, func(m *Measure) *float64 {
			if m.WireBytes == 0 {
				return nil
			}
			return ptr(float64(m.WireBytes))
		}},
		{"cpu_source", "s/GB", results.Lower, cpu(func(c cpuSplit) float64 { return c.source }, 0)},
		{"cpu_destination", "s/GB", results.Lower, cpu(func(c cpuSplit) float64 { return c.destination }, 1)},
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
			{Name: "Rebuilt"},
			{Name: "Resent"},
			{Name: "Parity"},
			{Name: "CPU src"},
			{Name: "CPU dst"},
			{Name: "Resume"},
			{Name: "Limit", Left: true},
		},
		Notes: []string{"Share: page bytes over the link's rate; Loss: of the path, before repair; Rebuilt: packets a transfer that parity made good; Resent: those that QUIC sent again; Parity: its share of the bytes sent; CPU: processor seconds a GB; Resume: bytes sent again after a cut"},
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
			o.stripes(), o.GoodputBps, o.spread(), text(o.LinkShare, "%.3f"), seconds(o.RampSeconds), rtt, text(o.Loss, "%.2g"), text(o.RepairedPackets, "%.0f"), text(o.RetransmittedPackets, "%.0f"), o.parity(),
			text(o.CPU.Source, "%.2f"), text(o.CPU.Destination, "%.2f"), resume, o.LimitedBy,
		)
		ours.Notes = append(ours.Notes, fmt.Sprintf("%s, limit %s: %s", count(o.asked()), o.LimitedBy, o.Why))
		if s := o.Path.text(); s != "" {
			ours.Notes = append(ours.Notes, fmt.Sprintf("%s, the path as the destination knows it: %s", count(o.asked()), s))
		}
		if r.Form == FormDaemons && o.ChunkLatency == nil {
			ours.Notes = append(ours.Notes, "latency of chunks is not known between daemons: they share no clock and tell of no chunk")
		}
	}
	return []*results.Table{known, ours}
}

func (o *Outcome) stripes() string {
	if o.Stripes == 0 {
		return "?"
	}
	if o.Adaptive {
		return fmt.Sprintf("%d (adaptive)", o.Stripes)
	}
	return fmt.Sprint(o.Stripes)
}

// asked is the number of stripes that was asked for; 0 for an adaptive one.
func (o *Outcome) asked() int {
	if o.Adaptive {
		return 0
	}
	return o.Stripes
}

// parity is the share of parity in the bytes sent.
func (o *Outcome) parity() string {
	wire := o.medianOf(func(m *Measure) *float64 { return ptr(float64(m.WireBytes)) })
	if o.ParityBytes == nil || wire == nil || *wire == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100**o.ParityBytes / *wire)
}

// text names what is known; "" for nothing.
func (p *Path) text() string {
	if p == nil {
		return ""
	}
	var say []string
	for _, x := range []struct {
		name, unit string
		v          *float64
	}{{"goodput", "bps", p.GoodputBps}, {"capacity", "bps", p.CapacityBps}, {"ramp when cold", "s", p.RampSeconds}} {
		if x.v != nil {
			say = append(say, x.name+" "+results.Format(*x.v, x.unit))
		}
	}
	if p.Loss != nil {
		say = append(say, fmt.Sprintf("loss after repair %.2g", *p.Loss))
	}
	return strings.Join(say, ", ")
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
