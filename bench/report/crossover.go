package report

import (
	"fmt"
	"math"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/planner"
)

func crossoverPart(f *results.File, id string) (*part, error) {
	var r crossover.Result
	if err := f.DecodeBody(&r); err != nil {
		return nil, err
	}
	if len(r.Points) == 0 {
		return nil, crossover.ErrNothing
	}
	p := &part{rank: 1, link: r.WAN, section: section{
		Title: "Crossover", Tables: tablesOf(r.Tables(), r.Conclusion),
		Lead: fmt.Sprintf("From which prefix length on a fetch of %s beats a prefill (%s), whole migrations between two daemons.", r.Model, r.EngineWhat),
	}}
	p.tiles = []tile{crossoverTile(&r)}
	p.say = append(p.say, sayCrossover(&r), sayPrediction(&r))
	if s := sayRoundTrips(&r); s != nil {
		p.say = append(p.say, *s)
	}
	if s := sayBusy(&r); s != nil {
		p.say = append(p.say, *s)
	}
	fig, err := draw(r.Plot(), id+"-plot", fmt.Sprintf("Fetch and recompute of %s by prefix length", r.Model), crossoverWords(&r))
	if err != nil {
		return nil, err
	}
	p.section.Plots = []figure{fig}
	return p, nil
}

func crossoverTile(r *crossover.Result) tile {
	t := tile{Label: "Crossover", Value: "none", Note: "fetch never pays"}
	switch x := r.Measured.Crossover; {
	case x != nil:
		t.Value, t.Note = fmt.Sprintf("%.0f tokens", x.Mean), fmt.Sprintf("%.0f to %.0f", x.Low, x.High)
		if c := r.Predicted.Crossover; c != nil {
			t.Note += fmt.Sprintf("; predicted %.0f", *c)
		}
	case r.Measured.Verdict == crossover.AlwaysPays:
		t.Note = "fetch always pays"
	}
	return t
}

func sayCrossover(r *crossover.Result) conclusion {
	c := conclusion{Doubt: r.LimitedBy == crossover.LimitMachine}
	m := r.Measured
	switch m.Verdict {
	case crossover.Crosses:
		n := float64(r.BlockTokens)
		low, high := math.Floor(m.Crossover.Low/n)*n, math.Ceil(m.Crossover.High/n)*n
		c.Head = fmt.Sprintf("Fetch what is longer than %.0f tokens", high)
		c.Text = fmt.Sprintf("Fetch prefixes of %s from %.0f tokens on, recompute those below %.0f; between them both take about as long.", r.Model, high, low)
		if last := r.Points[len(r.Points)-1]; last.Fetch.Median > 0 && !m.Extrapolated {
			c.Text += fmt.Sprintf(" At %d tokens fetch takes %s and recompute %s.", last.PrefixTokens, results.Format(last.Fetch.Median, "s"), results.Format(last.Recompute.Median, "s"))
		}
		if m.Extrapolated {
			c.Doubt = true
			c.Text += " The crossover lies outside of the lengths measured, so measure there before relying on it."
		}
	case crossover.AlwaysPays:
		c.Head, c.Text = "Fetch everything", r.Conclusion
	case crossover.PaysToLimit:
		c.Head, c.Text = fmt.Sprintf("Fetch what is shorter than %.0f tokens", m.Crossover.Mean), r.Conclusion
	default:
		c.Head = "Recompute"
		c.Text = fmt.Sprintf("Fetch never pays here: a token of %s takes %s to fetch and %s to recompute. A faster link, or a slower or busier GPU, would change that.",
			r.Model, results.Format(m.Fetch.SecondsPerToken, "s"), results.Format(m.Recompute.SecondsPerToken, "s"))
	}
	if r.LimitedBy == crossover.LimitMachine {
		c.Text += " The machine, not the link, set the time of a fetch, so on an idle one fetch pays earlier."
	}
	return c
}

// trusted is the error, in hundredths, up to which a prediction is called right.
const trusted = 10

func sayPrediction(r *crossover.Result) conclusion {
	f := r.TimeErrorPct.Fetch
	times := fmt.Sprintf("its fetch times were off by %.1f %% in the median and %+.1f %% at worst, at %d tokens", f.MedianAbsolute, f.Worst, f.WorstTokens)
	block := 0.0
	if x := r.Measured.Crossover; x != nil && x.Mean > 0 {
		block = 100 * float64(r.BlockTokens) / x.Mean
	}
	c := r.TimeErrorPct.Recompute
	right := math.Abs(f.Worst) <= trusted && math.Abs(c.Worst) <= trusted
	if math.Abs(c.Worst) > trusted {
		times += fmt.Sprintf("; its recompute times by %+.1f %% at worst, at %d tokens", c.Worst, c.WorstTokens)
	}
	switch e := r.ErrorPct; {
	case e != nil && math.Abs(*e) <= max(trusted, block) && !right:
		return conclusion{
			Head: "Trust the planner's crossover, not each of its times", Doubt: true,
			Text: fmt.Sprintf("The planner's crossover, %.0f tokens, was off by %+.1f %%, but %s.", *r.Predicted.Crossover, *e, times),
		}
	case e != nil && math.Abs(*e) <= max(trusted, block):
		return conclusion{Head: "Trust the planner here", Text: fmt.Sprintf("The planner's crossover, %.0f tokens, was off by %+.1f %%, and %s.", *r.Predicted.Crossover, *e, times)}
	case e != nil:
		return conclusion{Head: "Do not trust the planner here", Doubt: true, Text: fmt.Sprintf("The planner's crossover, %.0f tokens, was off by %+.1f %%, and %s.", *r.Predicted.Crossover, *e, times)}
	case (r.Predicted.Crossover == nil) == (r.Measured.Crossover == nil) && !right:
		return conclusion{Head: "Trust the planner's verdict, not each of its times", Doubt: true, Text: "The planner predicts no crossover either, but " + times + "."}
	case (r.Predicted.Crossover == nil) == (r.Measured.Crossover == nil):
		return conclusion{Head: "Trust the planner here", Text: "The planner predicts no crossover either; " + times + "."}
	}
	return conclusion{Head: "Do not trust the planner here", Doubt: true, Text: "The planner and the measurement disagree on whether there is a crossover; " + times + "."}
}

// sayRoundTrips compares the fixed cost of a migration with what the planner charges; nil where machine or lengths blur it.
func sayRoundTrips(r *crossover.Result) *conclusion {
	p := r.Predicted
	if p.RTTSeconds <= 0 || p.RTTSource != "measured" || r.LimitedBy == crossover.LimitMachine || r.Measured.Fetch.FixedSeconds <= 0 {
		return nil
	}
	trips := r.Measured.Fetch.FixedSeconds / p.RTTSeconds
	charged := p.RoundTrips*p.RTTSeconds + p.MigrationFixedSeconds
	s := fmt.Sprintf("Besides its bytes a migration takes %s, %.2f round trips; the planner charges %s: %g round trips and %s that earlier migrations took besides.",
		results.Format(r.Measured.Fetch.FixedSeconds, "s"), trips, results.Format(charged, "s"), p.RoundTrips, results.Format(p.MigrationFixedSeconds, "s"))
	if math.Abs(r.Measured.Fetch.FixedSeconds-charged) > 0.5*p.RTTSeconds {
		s += fmt.Sprintf(" Setting link.round_trips to %.1f would bring it nearer, until the daemon has learned it from its own migrations.", trips)
	}
	return &conclusion{Head: "What a migration costs to start", Text: s}
}

// sayBusy says how busy the measured link may be with fetches before recompute is the faster one: by the planner's law, for
// the longest prefix that was measured, among fetches of that length. Nil where fetch does not pay even alone.
func sayBusy(r *crossover.Result) *conclusion {
	last := r.Points[len(r.Points)-1]
	fetch, recompute, onLink := last.Fetch.Median, last.Recompute.Median, r.Measured.Fetch.SecondsPerToken*float64(last.PrefixTokens)
	pays := r.Measured.Verdict == crossover.Crosses || r.Measured.Verdict == crossover.AlwaysPays
	if !pays || !(fetch > 0) || !(onLink > 0) || recompute <= fetch {
		return nil
	}
	rho, ok := planner.CrossoverUtilization(recompute, fetch, planner.MM1{ServiceRate: 1 / recompute}, 1/onLink)
	if !ok {
		return nil
	}
	return &conclusion{
		Busy: true, Doubt: r.LimitedBy == crossover.LimitMachine, Head: fmt.Sprintf("Let this link be no more than %.0f %% busy with fetches", 100*rho),
		Text: fmt.Sprintf("A fetch of %d tokens keeps this link busy for %s and is %s ahead of a recompute on an idle GPU. Among fetches of that length that arrive at random, waiting eats that up once the link is %.0f %% busy (M/M/1, and processor sharing, which has the same mean). A daemon that knows its backlog need not guess: it charges the bytes that wait.",
			last.PrefixTokens, results.Format(onLink, "s"), results.Format(recompute-fetch, "s"), 100*rho),
	}
}

// crossoverWords say what the plot shows.
func crossoverWords(r *crossover.Result) string {
	a, b := r.Points[0], r.Points[len(r.Points)-1]
	s := fmt.Sprintf("Two rising lines over prefixes from %d to %d tokens. Fetch goes from %s to %s, recompute from %s to %s.", a.PrefixTokens, b.PrefixTokens,
		results.Format(a.Fetch.Median, "s"), results.Format(b.Fetch.Median, "s"), results.Format(a.Recompute.Median, "s"), results.Format(b.Recompute.Median, "s"))
	if x := r.Measured.Crossover; x != nil {
		s += fmt.Sprintf(" They cross at %.0f tokens.", x.Mean)
	} else {
		s += " They do not cross."
	}
	if c := r.Predicted.Crossover; c != nil {
		s += fmt.Sprintf(" The predicted lines cross at %.0f.", *c)
	}
	return s
}
