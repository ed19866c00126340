package report

import (
	"fmt"
	"slices"

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
	p.tiles = []tile{{"Goodput", results.Format(best.GoodputBps, "bps"), goodputNote(best)}}
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

// goodputNote says what the headline number is worth: what set it, of what it is a share, how far its repeats lie apart.
func goodputNote(o *goodput.Outcome) string {
	note := "over " + connectionsOf(o)
	if o.LinkShare != nil {
		note = fmt.Sprintf("%.0f %% of the link's rate, %s", 100**o.LinkShare, connectionsOf(o))
	}
	if o.LimitedBy == goodput.LimitMachine {
		note = "set by this machine, not the link; " + note
	}
	if v := goodputs(o); len(v) > 1 {
		note += fmt.Sprintf("; repeats from %s to %s", results.Format(slices.Min(v), "bps"), results.Format(slices.Max(v), "bps"))
	}
	return note
}

// goodputs are those of the whole measured transfers.
func goodputs(o *goodput.Outcome) []float64 {
	var v []float64
	for _, m := range o.Runs {
		if m.Complete {
			v = append(v, m.GoodputBps)
		}
	}
	return v
}

// connectionsOf is a configuration's connections.
func connectionsOf(o *goodput.Outcome) string {
	if o.Adaptive {
		return connections(o.Stripes) + " (the link's choice)"
	}
	return connections(o.Stripes)
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
	text := fmt.Sprintf("The link gives pages %s%s over %s.", results.Format(o.GoodputBps, "bps"), share, connectionsOf(o))
	c := conclusion{Head: "Plan with this goodput"}
	switch o.LimitedBy {
	case goodput.LimitLink:
		text += " The link itself is the limit: more connections or processors change nothing."
	case goodput.LimitMachine:
		c.Head, c.Doubt = "Measure the goodput again", true
		text += " The machine, not the link, set this number: " + o.Why + ". It is no figure of the link."
	case goodput.LimitLoss:
		text += " Losses that are no congestion hold it down: " + lossText(o)
	case goodput.LimitWindow:
		if text += " The connections' windows hold it down"; o.Adaptive {
			text += ": longer transfers give the link time to add some."
		} else {
			text += ": more would give more; with link.stripes 0, the default, daemons use as many as the path needs."
		}
	case goodput.LimitMaxRate:
		text += " The bound that was asked for set it; the link may give more."
	case goodput.LimitCongestion:
		c.Head, c.Doubt = "Measure the goodput with longer transfers", true
		text += " Congestion control had not opened its windows, or lost them to a queue overflow: longer transfers would get more."
	}
	c.Text = text
	return c
}

// lossText says what became of lost packets.
func lossText(o *goodput.Outcome) string {
	if o.Loss == nil || o.LossUnrepaired == nil || *o.Loss <= 0 {
		return "congestion control gives way at each that parity does not rebuild."
	}
	return fmt.Sprintf("of the packets %.2g are lost, of which parity rebuilt %.0f %%; congestion control gives way at the others, and parity takes its share of the link.",
		*o.Loss, 100*(1 - *o.LossUnrepaired / *o.Loss))
}

// sayStripes compares the best with the worst, as far as their repeats tell them apart and the link, not the machine, set both.
func sayStripes(r *goodput.Result, best *goodput.Outcome) []conclusion {
	if len(r.Configurations) < 2 {
		return nil
	}
	var worst *goodput.Outcome
	for _, o := range r.Configurations {
		if o.LimitedBy == goodput.LimitMachine {
			return nil // it is said to be measured again
		}
		if worst == nil || o.GoodputBps < worst.GoodputBps {
			worst = o
		}
	}
	if worst == best || worst.GoodputBps <= 0 {
		return nil
	}
	c := apart(goodputs(worst), goodputs(best))
	switch c.Verdict {
	case results.Better:
	case results.Same:
		return []conclusion{{
			Head: "Leave the number of connections alone",
			Text: fmt.Sprintf("It made no difference here: %s gave what %s gave. With link.stripes 0, the default, daemons use as many as the path needs.", connectionsOf(best), connectionsOf(worst)),
		}}
	default:
		return []conclusion{{
			Head: "Do not choose a number of connections from this", Doubt: true,
			Text: fmt.Sprintf("%s gave %.2f times what %s gave, but the repeats do not tell them apart (%s): measure more of them.", connectionsOf(best), best.GoodputBps/worst.GoodputBps, connectionsOf(worst), c.Why),
		}}
	}
	head := "Use " + connections(best.Stripes)
	if best.Adaptive {
		head = "Let the link choose its connections"
	}
	return []conclusion{{
		Head: head,
		Text: fmt.Sprintf("Of those compared, %s gave the most, %.2f times what %s gave, more than the repeats differ.", connectionsOf(best), best.GoodputBps/worst.GoodputBps, connectionsOf(worst)),
	}}
}

// apart compares two series of goodputs as --diff does.
func apart(old, fresh []float64) results.Change {
	of := func(v []float64) *results.File {
		f := results.New(results.KindGoodput, nil, nil)
		f.Add(results.Metric{Name: "goodput", Unit: "bps", Better: results.Higher, Samples: v})
		return f
	}
	c, err := results.Diff(of(old), of(fresh))
	if err != nil || len(c.Changes) != 1 {
		return results.Change{Verdict: results.Unclear, Why: "too few repeats"}
	}
	return c.Changes[0]
}

// warmSeconds are the times of the whole measured transfers.
func warmSeconds(o *goodput.Outcome) []float64 {
	var all []float64
	for _, m := range o.Runs {
		if m.Complete {
			all = append(all, m.Seconds)
		}
	}
	return all
}

// fewWarm is how many warm transfers it takes to tell a cold one from them.
const fewWarm = 3

// sayCold is of a cold transfer that took longer than any warm one, when the link and not the machine set both.
func sayCold(o *goodput.Outcome) []conclusion {
	all := warmSeconds(o)
	if o.Cold == nil || len(all) < fewWarm || o.LimitedBy == goodput.LimitMachine {
		return nil
	}
	warm := results.Median(all)
	if o.Cold.Seconds < coldCosts*warm || o.Cold.Seconds <= slices.Max(all) {
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
	if o.LimitedBy == goodput.LimitMachine {
		return []conclusion{{
			Head: "Leave processors for it", Doubt: true,
			Text: fmt.Sprintf("A GB cost %.2f processor seconds at the source and %.2f at the destination on a machine at its limit, which may be more than it costs on one that is not.",
				*o.CPU.Source, *o.CPU.Destination),
		}}
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
		s := results.Series{Name: connectionsOf(o)}
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
