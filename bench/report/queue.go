package report

import (
	"fmt"

	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/results"
)

func queuePart(f *results.File, id string) (*part, error) {
	var r queue.Result
	if err := f.DecodeBody(&r); err != nil {
		return nil, err
	}
	p := &part{rank: 3, section: section{
		Title: "Queue", Tables: tablesOf(r.Tables(), r.Conclusion), Lead: r.Conclusion,
	}}
	if r.Link != nil {
		p.link = r.Link.WAN
	}
	if c := r.Crossover; c != nil {
		p.tiles = []tile{{"Fetch stops paying at", fmt.Sprintf("%.0f %% busy", 100*c.Measured.Mean), fmt.Sprintf("M/M/1, predicted %.1f %%", 100*c.Predicted)}}
		p.say = []conclusion{sayQueue(c)}
	}
	if len(r.Points) == 0 {
		return p, nil
	}
	fig, err := draw(r.Plot(), id+"-plot", "Wait behind other fetches by utilization", queueWords(&r))
	if err != nil {
		return nil, err
	}
	p.section.Plots = []figure{fig}
	return p, nil
}

// sayQueue turns the crossover utilization into a rule.
func sayQueue(c *queue.Crossover) conclusion {
	low, high := c.Measured.Mean, c.Measured.Mean
	lowest, highest := "M/M/1", "M/M/1"
	for _, l := range c.Laws {
		if l.Measured.Mean < low {
			low, lowest = l.Measured.Mean, l.Law
		}
		if l.Measured.Mean > high {
			high, highest = l.Measured.Mean, l.Law
		}
	}
	s := fmt.Sprintf("For the base model's fetch of %s against a recompute of %s, waiting eats the gain once the source's link is %.0f %% busy by M/M/1 (measured %.4f, predicted %.4f).",
		results.Format(c.FetchSeconds, "s"), results.Format(c.RecomputeSeconds, "s"), 100*c.Measured.Mean, c.Measured.Mean, c.Predicted)
	if high > low {
		s += fmt.Sprintf(" Other laws put it from %.0f %% (%s) to %.0f %% (%s).", 100*low, lowest, 100*high, highest)
	}
	return conclusion{General: true, Head: fmt.Sprintf("Let no link be more than %.0f %% busy with fetches", 100*low), Text: s + " A daemon that knows its backlog need not guess: it charges the bytes that wait."}
}

func queueWords(r *queue.Result) string {
	s := fmt.Sprintf("Mean waits of %d queues, in service times and on a logarithmic scale, rise with utilization as the laws M/M/1, M/D/1 and M/G/1 do.", len(r.Points))
	if c := r.Crossover; c != nil {
		s += fmt.Sprintf(" A vertical line marks the crossover utilization, %.4f.", c.Measured.Mean)
	}
	return s
}
