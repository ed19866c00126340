package report

import (
	"fmt"

	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// coldCosts is from which factor on a cold transfer is worth a sentence.
const coldCosts = 1.1

func goodputPart(f *results.File, id string) (*part, error) {
	var b goodput.Body
	if err := f.DecodeBody(&b); err != nil {
		return nil, err
	}
	res := &goodput.Result{Form: b.Form, WAN: b.WAN, Configurations: b.Configurations}
	best := res.Best()
	if best == nil {
		return nil, goodput.ErrNothing
	}
	p := &part{rank: 2, link: b.WAN, section: section{
		Title: "Goodput", Tables: tablesOf(res.Tables()),
		Lead: "What the link gives to pages: bytes of verified pages over the time from the request to the last of them.",
	}}
	p.tiles = []tile{{"Goodput", results.Format(best.GoodputBps, "bps"), fmt.Sprintf("over %s", connections(best.Stripes))}}
	if best.LinkShare != nil {
		p.tiles[0].Note = fmt.Sprintf("%.0f %% of the link's rate, %s", 100**best.LinkShare, connections(best.Stripes))
	}
	p.say = append(p.say, sayGoodput(best))
	p.say = append(p.say, sayStripes(res, best)...)
	p.say = append(p.say, sayCold(best)...)
	p.say = append(p.say, sayCPU(best)...)
	fig, err := goodputFigure(&b, id)
	if err != nil {
		return nil, err
	}
	if fig != nil {
		p.section.Plots = append(p.section.Plots, *fig)
	}
	return p, nil
}

func connections(n int) string {
	switch n {
	case 0:
		return "an unknown number of connections"
	case 1:
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

func sayGoodput(o *goodput.Outcome) conclusion {
	share := ""
	if o.LinkShare != nil {
		share = fmt.Sprintf(", %.2f of its rate (headers leave about 0.95)", *o.LinkShare)
	}
	text := fmt.Sprintf("The link gives pages %s%s over %s.", results.Format(o.GoodputBps, "bps"), share, connections(o.Stripes))
	c := conclusion{Head: "Plan with this goodput"}
	switch o.LimitedBy {
	case goodput.LimitLink:
		text += " The link itself is the limit: more connections or processors change nothing."
	case goodput.LimitMachine:
		c.Head, c.Doubt = "Measure the goodput again", true
		text += " The machine, not the link, set this number: " + o.Why + ". It is no figure of the link."
	case goodput.LimitLoss:
		text += " Losses that are no congestion hold it down, since congestion control gives way at each: more connections share them out."
	case goodput.LimitWindow:
		text += " The connections' windows hold it down: more connections would give more."
	case goodput.LimitMaxRate:
		text += " The bound that was asked for set it; the link may give more."
	case goodput.LimitCongestion:
		c.Head, c.Doubt = "Measure the goodput with longer transfers", true
		text += " Congestion control had not opened its windows, or lost them to a queue overflow: longer transfers would get more."
	}
	c.Text = text
	return c
}

func sayStripes(r *goodput.Result, best *goodput.Outcome) []conclusion {
	if len(r.Configurations) < 2 {
		return nil
	}
	var worst *goodput.Outcome
	for _, o := range r.Configurations {
		if worst == nil || o.GoodputBps < worst.GoodputBps {
			worst = o
		}
	}
	if worst == best || worst.GoodputBps <= 0 {
		return nil
	}
	return []conclusion{{
		Head: fmt.Sprintf("Use %s", connections(best.Stripes)),
		Text: fmt.Sprintf("Of those compared, %s gave the most, %.2f times what %s gave.", connections(best.Stripes), best.GoodputBps/worst.GoodputBps, connections(worst.Stripes)),
	}}
}

// warmSeconds is the median time of a whole measured transfer.
func warmSeconds(o *goodput.Outcome) float64 {
	var all []float64
	for _, m := range o.Runs {
		if m.Complete {
			all = append(all, m.Seconds)
		}
	}
	if len(all) == 0 {
		return 0
	}
	return results.Median(all)
}

func sayCold(o *goodput.Outcome) []conclusion {
	warm := warmSeconds(o)
	if o.Cold == nil || warm <= 0 || o.Cold.Seconds < coldCosts*warm {
		return nil
	}
	return []conclusion{{
		Head: "Keep the connections up",
		Text: fmt.Sprintf("The first transfer of %s took %s, a warm one %s: slow start and its first losses cost %s, which no session should pay.",
			results.Format(float64(o.Bytes), "B"), results.Format(o.Cold.Seconds, "s"), results.Format(warm, "s"), results.Format(o.Cold.Seconds-warm, "s")),
	}}
}

func sayCPU(o *goodput.Outcome) []conclusion {
	if o.CPU.Source == nil || o.CPU.Destination == nil {
		return nil
	}
	gbps := o.GoodputBps / 8e9
	return []conclusion{{
		Head: "Leave processors for it",
		Text: fmt.Sprintf("A GB costs %.2f processor seconds at the source and %.2f at the destination: at this goodput %.2f and %.2f of a core.",
			*o.CPU.Source, *o.CPU.Destination, *o.CPU.Source*gbps, *o.CPU.Destination*gbps),
	}}
}

// goodputFigure draws each transfer, the cold one first; nil when there is only one.
func goodputFigure(b *goodput.Body, id string) (*figure, error) {
	p := results.Plot{X: results.Axis{Label: "transfer, the cold one being 0"}, Y: results.Axis{Label: "goodput", Unit: "bps"}}
	points := 0
	for _, o := range b.Configurations[:min(len(b.Configurations), results.MaxSeries-1)] {
		s := results.Series{Name: connections(o.Stripes)}
		if o.Cold != nil {
			s.Points = append(s.Points, results.Point{X: 0, Y: o.Cold.GoodputBps})
		}
		for i, m := range o.Runs {
			s.Points = append(s.Points, results.Point{X: float64(i + 1), Y: m.GoodputBps})
		}
		points = max(points, len(s.Points))
		if len(s.Points) > 0 {
			p.Series = append(p.Series, s)
		}
	}
	if points < 2 {
		return nil, nil
	}
	words := fmt.Sprintf("Goodput of %d transfers.", points)
	if m, err := wan.Parse(b.WAN); err == nil && m.Rate > 0 {
		p.Series = append(p.Series, results.Series{Name: "the link's rate", Style: results.DashedLine, Points: []results.Point{{X: 0, Y: m.Rate}, {X: float64(points - 1), Y: m.Rate}}})
		words = fmt.Sprintf("Goodput of %d transfers below the link's rate of %s.", points, results.Format(m.Rate, "bps"))
	}
	if c := b.Cold; c != nil {
		words += fmt.Sprintf(" The cold one got %s, the median warm one %s.", results.Format(c.GoodputBps, "bps"), results.Format(b.GoodputBps, "bps"))
	}
	for _, x := range p.Series {
		for _, q := range x.Points {
			p.Y.Max = max(p.Y.Max, 1.05*q.Y) // from zero: half as high is half as much
		}
	}
	fig, err := draw(p, id+"-plot", "Goodput by transfer", words)
	return &fig, err
}
