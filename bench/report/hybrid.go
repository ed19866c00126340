package report

import (
	"fmt"

	"github.com/kvferry/kvferry/bench/hybrid"
	"github.com/kvferry/kvferry/bench/results"
)

func hybridPart(f *results.File, id string) (*part, error) {
	var r hybrid.Result
	if err := f.DecodeBody(&r); err != nil {
		return nil, err
	}
	p := &part{rank: 4, section: section{
		Title: "Hybrid", Tables: tablesOf(r.Tables(), r.Conclusion), Lead: r.Conclusion,
	}}
	if len(r.Cells) == 0 {
		return p, nil
	}
	p.say = []conclusion{sayHybrid(&r)}
	if a, ok := r.Aim(hybrid.AimRegret50); ok && a.Cells > 0 {
		p.tiles = []tile{{"Hybrid loses at most", fmt.Sprintf("%.1f %%", 100*a.Worst), "to knowing the link, at sigma 0.5; simulated"}}
	}
	fig, err := draw(r.Plot(), id+"-plot", "Seconds until a session is warm, by the goodput that is believed", hybridWords(&r))
	if err != nil {
		return nil, err
	}
	p.section.Plots = []figure{fig}
	return p, nil
}

// sayHybrid says what to do about hybrid, by its worst case beside recompute's.
func sayHybrid(r *hybrid.Result) conclusion {
	best, worst, fixed := 0.0, 0.0, 0.0
	for _, c := range r.Cells {
		best = max(best, c.Gain)
		worst = max(worst, c.Hybrid.P99/c.Recompute.P99)
		fixed = max(fixed, c.StaticSplit.P99/c.Recompute.P99)
	}
	out := conclusion{General: true, Head: "Prefill and fetch at once where the engine can", Text: fmt.Sprintf(
		"In %d simulated settings hybrid's mean was up to %.2f times shorter than that of the better of fetch and recompute, and its p99 at most %.2f times recompute's. A split fixed in advance had up to %.1f times recompute's.",
		len(r.Cells), best, worst, fixed)}
	if a, ok := r.Aim(hybrid.AimP99); ok && a.Met < a.Cells {
		out.Head = "Do not rely on hybrid's worst case"
		out.Text += fmt.Sprintf(" It went above 1.05 times recompute and a round trip in %d of %d settings: an engine that pays so much for prefilling in pieces gains too little.", a.Cells-a.Met, a.Cells)
	}
	return out
}

func hybridWords(r *hybrid.Result) string {
	return fmt.Sprintf("Mean and p99 of hybrid, fetch, recompute, a fixed split and an oracle over the goodput believed of the link, both scales logarithmic. Hybrid follows the oracle. %s", r.Conclusion)
}
