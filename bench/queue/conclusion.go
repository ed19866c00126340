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

// senderText is how a sender of that law runs.
func senderText(law string) string {
	if law == LinkLaw {
		return "the sender as daemons run it (of transfers without a deadline the one with the least left)"
	}
	return "a sender that serves all transfers in turn, a chunk each, which daemons do not do by default,"
}

// orderText names an order.
func orderText(discipline string) string {
	switch discipline {
	case orderFIFO:
		return "first come, first served"
	case orderPS:
		return "processor sharing"
	case orderLeast:
		return "least left first, behind what is on its way"
	}
	return "processor sharing by chunks (transfers in turn, a chunk each)"
}

// concludeLink says what the waits over QUIC are with each sender.
func (r *Result) concludeLink() string {
	var say []string
	for _, l := range []*Link{r.Link, r.Sharing} {
		if l == nil {
			continue
		}
		if text := r.concludeSender(l); text != "" {
			say = append(say, text)
		}
	}
	return strings.Join(say, " ")
}

// concludeSender is of one sender.
func (r *Result) concludeSender(l *Link) string {
	var means, slopes []string
	overlaps, points, conclusive, late := 0, 0, 0, false
	coarsest := 0.0
	for _, p := range r.pointsOf(l.Law) {
		points++
		late = late || p.late()
		if p.QUIC.Conclusive {
			conclusive++
			coarsest = max(coarsest, p.QUIC.Detectable)
			if p.QUIC.Overlaps {
				overlaps++
			}
			means = append(means, fmt.Sprintf("%.2f of M/M/1's at %v", p.Wait.Measured/p.Wait.MM1, p.Utilization))
		}
		if p.SizeSlope != nil && l.Law == SharingLaw {
			slopes = append(slopes, fmt.Sprintf("%.2f at %v (%.2f if the link were shared at every instant, 0 if first come were first served)", *p.SizeSlope, p.Utilization, p.Utilization/(1-p.Utilization)))
		}
	}
	who := "Over real QUIC, with " + senderText(l.Law)
	switch {
	case points == 0:
		return ""
	case !l.Calibrated:
		return who + " nothing can be said here: a lone transfer did not behave like one server of the link's rate (see the warnings)."
	case conclusive == 0:
		return fmt.Sprintf("%s nothing is decided here: %d of %d utilizations are inconclusive (see the warnings).", who, points, points)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s the mean wait is %s. The order is nearest to %s", who, strings.Join(means, ", "), orderText(l.Discipline))
	if len(slopes) > 0 {
		fmt.Fprintf(&b, ": each second of a job's own service adds %s seconds of wait", strings.Join(slopes, ", "))
	}
	fmt.Fprintf(&b, ". The mean overlaps that of the law fixed beforehand (%s, simulated) at %d of %d utilizations, where a difference of %.0f %% would mostly have shown.",
		orderText(l.Law), overlaps, conclusive, 100*coarsest)
	if conclusive < points {
		fmt.Fprintf(&b, " %d of %d utilizations are inconclusive (see the warnings).", points-conclusive, points)
	}
	if late {
		b.WriteString(" This machine was too busy at times, so take that with care.")
	}
	return b.String()
}

// pointsOf are the points over QUIC with the sender of that law.
func (r *Result) pointsOf(law string) []Point {
	var out []Point
	for _, p := range r.Points {
		if p.QUIC != nil && p.QUIC.Law == law {
			out = append(out, p)
		}
	}
	return out
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
	if text := c.concludeSharing(); text != "" {
		b.WriteString(" " + text)
	}
	return b.String()
}

// concludeSharing says what sharing does to the crossover of the mean job, for each spread of sizes by its own numbers, and of one
// fetch.
func (c *Crossover) concludeSharing() string {
	var same, off []string
	for _, kind := range []Service{Exponential, Lognormal} {
		l, ok := c.law("processor sharing, " + string(kind))
		if !ok {
			continue
		}
		if d := l.Measured.Mean - c.Predicted; l.Measured.Low <= c.Predicted && c.Predicted <= l.Measured.High {
			same = append(same, string(kind))
		} else {
			off = append(off, fmt.Sprintf("%+.4f from it for %s ones ([%.4f, %.4f])", d, kind, l.Measured.Low, l.Measured.High))
		}
	}
	var b strings.Builder
	if len(same)+len(off) > 0 {
		b.WriteString("Under sharing the mean job's crossover is ")
		if len(same) > 0 {
			fmt.Fprintf(&b, "that of M/M/1 within its interval for %s sizes", strings.Join(same, " and "))
		}
		if len(same) > 0 && len(off) > 0 {
			b.WriteString(", and ")
		}
		if len(off) > 0 {
			text := strings.Join(off, " and ")
			if len(same) == 0 {
				text = strings.NewReplacer(" from it for", " from that of M/M/1 for", " ones (", " sizes (").Replace(text)
			}
			b.WriteString(text)
		}
		b.WriteString(".")
	}
	if own, ok := c.law("processor sharing, own size"); ok {
		fmt.Fprintf(&b, " There a fetch that keeps the link busy for %.1f ms among jobs of %.0f ms waits in proportion to its own size: for it the crossover is %.2f, not %.2f.",
			1e3*c.TransmissionSeconds, 1e3/c.ServiceRate, own.Measured.Mean, c.Predicted)
	}
	return strings.TrimSpace(b.String())
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

// verdict says which law a planner should use for daemons as they run.
func (r *Result) verdict() string {
	if r.Link == nil || !r.Link.Calibrated || r.Crossover == nil {
		return ""
	}
	points := slices.DeleteFunc(r.pointsOf(LinkLaw), func(p Point) bool { return !p.QUIC.Conclusive })
	if len(points) == 0 {
		return ""
	}
	low, high := math.Inf(1), 0.0
	for _, p := range points {
		ratio := p.Wait.Measured / p.Wait.MM1
		low, high = min(low, ratio), max(high, ratio)
	}
	share := fmt.Sprintf("%.2f", low)
	if high-low >= .005 {
		share = fmt.Sprintf("%.2f to %.2f", low, high)
	}
	switch r.Link.Discipline {
	case orderLeast:
		return "So for daemons as they run by default the mean fetch waits " + share + " times what the base model's formula says: a fetch waits for what is smaller than " +
			"itself and for what is on its way, a small one little and a large one longest, and the bytes that go before it (a ticket's) are its price."
	case orderPS, orderSharing:
		return "So here the mean fetch waits " + share + " times what the base model's formula says, and the link is nearer to sharing than to the order that daemons ask for: " +
			"what is on its way outweighs it."
	case orderFIFO:
		return "So here the mean fetch waits " + share + " times what the base model's formula says, and all fetches wait alike, since what is on its way outweighs the sender's order."
	}
	return ""
}
