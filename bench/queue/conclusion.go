package queue

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// conclude makes the paragraph from the numbers. Parts that were not measured are left out.
func (r *Result) conclude() string {
	var say []string
	for _, part := range []string{r.concludeLink(), r.concludeLaws(), r.concludeCrossover(), r.concludeBacklog(), r.verdict()} {
		if part != "" {
			say = append(say, part)
		}
	}
	if len(say) == 0 {
		return "Nothing was measured that a conclusion could rest on."
	}
	return strings.Join(say, " ")
}

// concludeLink says which order the sender keeps.
func (r *Result) concludeLink() string {
	var b strings.Builder
	var slopes []string
	overlaps, points, conclusive, late := 0, 0, 0, false
	coarsest := 0.0
	for _, p := range r.Points {
		if p.QUIC == nil {
			continue
		}
		points++
		late = late || p.late()
		if p.QUIC.Conclusive {
			conclusive++
			coarsest = max(coarsest, p.QUIC.Detectable)
			if p.QUIC.Overlaps {
				overlaps++
			}
		}
		if p.SizeSlope != nil {
			slopes = append(slopes, fmt.Sprintf("%.2f at %v (%.2f if the link were shared at every instant, 0 if first come were first served)", *p.SizeSlope, p.Utilization, p.Utilization/(1-p.Utilization)))
		}
	}
	if points == 0 {
		return ""
	}
	if !r.Link.Calibrated {
		return "Real QUIC says nothing here: a lone transfer did not behave like one server of the link's rate (see the warnings)."
	}
	if conclusive == 0 {
		fmt.Fprintf(&b, "Real QUIC decides nothing here: %d of %d utilizations are inconclusive (see the warnings).", points, points)
		return b.String()
	}
	what := map[string]string{
		"fifo":   "first come, first served",
		"ps":     "processor sharing",
		"sender": "processor sharing by chunks (transfers in turn, a chunk each)",
	}[r.Link.Discipline]
	fmt.Fprintf(&b, "Over real QUIC the sender's order is nearest to %s", what)
	if len(slopes) > 0 {
		fmt.Fprintf(&b, ": each second of a job's own service adds %s seconds of wait", strings.Join(slopes, ", "))
	}
	fmt.Fprintf(&b, ". The measured mean wait overlaps that of the law fixed beforehand (the sender's own order, simulated) at %d of %d utilizations, where a difference of %.0f %% would mostly have shown.",
		overlaps, conclusive, 100*coarsest)
	if conclusive < points {
		fmt.Fprintf(&b, " %d of %d utilizations are inconclusive (see the warnings).", points-conclusive, points)
	}
	if late {
		b.WriteString(" This machine was too busy at times, so take that with care.")
	}
	return b.String()
}

// concludeLaws counts which laws hold in the simulator.
func (r *Result) concludeLaws() string {
	points, held := 0, 0
	for _, p := range r.Points {
		if p.Source == SourceSimulator {
			points++
			if p.WaitInterval.contains(p.law()) {
				held++
			}
		}
	}
	if points == 0 {
		return ""
	}
	return fmt.Sprintf("In the simulator the law of its own queue lies within the measured 95 %% interval at %d of %d points.", held, points)
}

// law is the theory of the point's own queue.
func (p Point) law() float64 {
	if p.Discipline == "fifo" {
		return p.Wait.MG1
	}
	return p.Wait.PS
}

// concludeCrossover says which law holds and what it changes.
func (r *Result) concludeCrossover() string {
	c := r.Crossover
	if c == nil {
		return ""
	}
	var b strings.Builder
	agrees := "agrees with"
	if c.Predicted < c.Measured.Low || c.Predicted > c.Measured.High {
		agrees = "differs from"
	}
	fmt.Fprintf(&b, "Fetch stops paying at a utilization of %.4f [%.4f, %.4f] under M/M/1, which %s the predicted %.4f.", c.Measured.Mean, c.Measured.Low, c.Measured.High, agrees, c.Predicted)
	var others []string
	for _, l := range c.Laws {
		if l.Law != "M/M/1" {
			others = append(others, fmt.Sprintf("%.3f under %s", l.Measured.Mean, l.Law))
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, " It is %s.", strings.Join(others, ", "))
	}
	shared, ok1 := c.law("processor sharing, lognormal")
	own, ok2 := c.law("processor sharing, own size")
	if ok1 && ok2 {
		near := "the same crossover as M/M/1 within its interval"
		if shared.Measured.Low > c.Predicted || shared.Measured.High < c.Predicted {
			near = fmt.Sprintf("a crossover %.3f from that of M/M/1", math.Abs(shared.Measured.Mean-c.Predicted))
		}
		fmt.Fprintf(&b, " Sharing gives the mean job %s, whatever the spread of sizes; a fetch that keeps the link busy for %.1f ms among jobs of %.0f ms waits in proportion to its own size, so for it the crossover moves from %.2f to %.2f.",
			near, 1e3*c.TransmissionSeconds, 1e3/c.ServiceRate, c.Predicted, own.Measured.Mean)
	}
	return b.String()
}

func (c *Crossover) law(name string) (LawCrossover, bool) {
	for _, l := range c.Laws {
		if l.Law == name {
			return l, true
		}
	}
	return LawCrossover{}, false
}

// concludeBacklog says how good the backlog is as a predictor.
func (r *Result) concludeBacklog() string {
	worst := map[string]float64{} // mean absolute error over mean wait, by discipline, over the simulated points
	for _, p := range r.Points {
		if p.Source == SourceSimulator && p.Wait.Measured > 0 {
			worst[p.Discipline] = max(worst[p.Discipline], p.Backlog.MeanAbsolute/p.Wait.Measured)
		}
	}
	fifo, ok1 := worst["fifo"]
	ps, ok2 := worst["ps"]
	if !ok1 || !ok2 {
		return ""
	}
	exact := "exactly"
	if fifo > 1e-6 {
		exact = fmt.Sprintf("to %.1g of the mean wait", fifo)
	}
	return fmt.Sprintf("The bytes queued at arrival predict each wait %s under first come, first served, and miss it by up to %.0f %% of the mean wait "+
		"under processor sharing, where the job's own size and later arrivals decide.", exact, 100*ps)
}

// verdict says which law a planner should use for this sender.
func (r *Result) verdict() string {
	decided := slices.ContainsFunc(r.Points, func(p Point) bool { return p.QUIC != nil && p.QUIC.Conclusive })
	if r.Link == nil || !r.Link.Calibrated || r.Crossover == nil || !decided {
		return ""
	}
	switch r.Link.Discipline {
	case "ps", "sender":
		return "So for this sender the base model's formula gives the wait of the mean fetch, by sharing and not because sizes are exponential; " +
			"a single fetch is better priced at its own service time times ρ/(1−ρ)."
	case "fifo":
		return "So for this sender all fetches wait alike: the bytes queued ahead are the best price, and M/G/1 with the spread of sizes where they cannot be seen."
	}
	return ""
}
