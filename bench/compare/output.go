package compare

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/bench/results"
)

// Body is the body of a results.File of kind compare.
type Body struct {
	Results []*Outcome `json:"results"`
	Floor   *Outcome   `json:"floor"`
	Ratios  []Ratio    `json:"ratios"`
}

// ErrNothing is returned by Result.File when no transfer was measured.
var ErrNothing = errors.New("nothing was measured")

// File makes the result a file of kind results.KindCompare. command is the command line. Errors: ErrNothing, and those of
// results.File.SetBody.
func (r *Result) File(command []string) (*results.File, error) {
	if len(r.Results) == 0 {
		return nil, ErrNothing
	}
	f := results.New(results.KindCompare, command, r.params)
	f.Finish(r.Interrupted)
	f.Started, f.Seconds, f.Machine = r.started, r.seconds, r.machine
	bytes := float64(0)
	if b, ok := r.params["bytes"].(int64); ok {
		bytes = float64(b)
	}
	for _, o := range append(append([]*Outcome{}, r.Results...), r.Floor) {
		if o == nil {
			continue
		}
		var bps, cpu []float64
		for _, x := range o.Runs {
			bps, cpu = append(bps, x.Gbps*1e9), append(cpu, x.cpu()/(bytes/1e9))
		}
		f.Add(results.Metric{Name: "goodput/" + o.Name, Unit: "bps", Better: results.Higher, Samples: bps})
		f.Add(results.Metric{Name: "cpu/" + o.Name, Unit: "s/GB", Better: results.Lower, Samples: cpu})
	}
	for _, w := range r.cautions() {
		f.Warn("%s", w)
	}
	body := Body{Results: r.Results, Floor: r.Floor, Ratios: r.Ratios}
	if body.Ratios == nil {
		body.Ratios = []Ratio{}
	}
	return f, f.SetBody(body)
}

// Tables are the result for people.
func (r *Result) Tables() []*results.Table {
	t := &results.Table{
		Columns: []results.Column{
			{Name: "Way", Left: true},
			{Name: "Gbit/s"},
			{Name: "Low..High", Left: true},
			{Name: "CPU src"},
			{Name: "CPU dst"},
			{Name: "CPU both"},
			{Name: "Limit", Left: true},
			{Name: "What", Left: true},
		},
		Notes: []string{"CPU: processor seconds a GB (1e9 bytes) of pages"},
	}
	row := func(o *Outcome) {
		t.Row(o.Name, fmt.Sprintf("%.2f", o.GbpsMedian), fmt.Sprintf("%.2f..%.2f", o.GbpsMin, o.GbpsMax), seconds(o.CPU.Source), seconds(o.CPU.Destination),
			fmt.Sprintf("%.2f", o.CPU.Total), o.LimitedBy, o.What)
	}
	for _, o := range r.Results {
		row(o)
	}
	if r.Floor != nil {
		row(r.Floor)
		t.Notes = append(t.Notes, r.Floor.Name+" is the floor: QUIC without sockets; its CPU counts, its rate does not")
	}
	for _, o := range r.Results {
		if o.Name == NameKvferry {
			t.Notes = append(t.Notes, NameKvferry+", limit "+o.LimitedBy+": "+o.Why)
		}
	}
	if len(r.Ratios) == 0 {
		return []*results.Table{t}
	}
	u := &results.Table{
		Columns: []results.Column{{Name: "kvferry over", Left: true}, {Name: "Goodput"}, {Name: "Low..High", Left: true}, {Name: "CPU"}, {Name: "Low..High", Left: true}, {Name: "Aim", Left: true}},
		Notes:   []string{"ratios within each round: median, low and high; an aim is " + AnswerUnclear + " when the interval of the median holds it"},
	}
	for i := 0; i < len(r.Ratios); {
		g, c := ratioCells{"-", "-", ""}, ratioCells{"-", "-", ""}
		to := r.Ratios[i].To
		for ; i < len(r.Ratios) && r.Ratios[i].To == to; i++ {
			if r.Ratios[i].Quantity == QuantityGoodput {
				g = r.Ratios[i].cells("goodput >=")
			} else {
				c = r.Ratios[i].cells("CPU <=")
			}
		}
		aim := g.aim
		if aim == "" {
			aim = c.aim
		}
		u.Row(to, g.median, g.spread, c.median, c.spread, aim)
	}
	return []*results.Table{t, u}
}

type ratioCells struct{ median, spread, aim string }

func (r Ratio) cells(relation string) ratioCells {
	c := ratioCells{median: fmt.Sprintf("%.2f", r.Median), spread: fmt.Sprintf("%.2f..%.2f", r.Min, r.Max)}
	if r.Aim != nil {
		c.aim = fmt.Sprintf("%s %.2g: %s", relation, *r.Aim, r.Answer)
	}
	return c
}

func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

// Plot draws goodput over processor time, a mark for each way: up and to the left is better.
func (r *Result) Plot() results.Plot {
	p := results.Plot{
		Title: "The same bytes over loopback: up and to the left is better",
		X:     results.Axis{Label: "processor time, both ends", Unit: "s/GB"}, Y: results.Axis{Label: "goodput", Unit: "bps"},
	}
	for _, o := range r.Results {
		p.Series = append(p.Series, results.Series{
			Name: o.Name, Style: results.MarksOnly,
			Points: []results.Point{{X: o.CPU.Total, Y: o.GbpsMedian * 1e9, Low: o.GbpsMin * 1e9, High: o.GbpsMax * 1e9}},
		})
	}
	if r.Floor != nil {
		p.Markers = append(p.Markers, results.Marker{Label: "QUIC without sockets", X: r.Floor.CPU.Total, Dashed: true})
	}
	return p
}
