package main

import (
	"fmt"
	"io"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// planView is a decision with everything that led to it.
type planView struct {
	Winner          string                  `json:"winner"`
	RunnerUp        string                  `json:"runner_up"`
	MarginSeconds   float64                 `json:"margin_seconds"`
	MarginRatio     float64                 `json:"margin_ratio"`
	Reason          string                  `json:"reason"`
	LinkSource      string                  `json:"link_source"`
	ComputeSource   string                  `json:"compute_source"`
	CrossoverTokens *float64                `json:"crossover_tokens"`
	RankedByP95     bool                    `json:"ranked_by_p95"`
	Confidence      *float64                `json:"confidence"` // null when it is not known
	Flips           []planFlipView          `json:"flips"`
	Modes           map[string]modePlanView `json:"modes"`
}

// modePlanView is one mode, priced.
type modePlanView struct {
	// Seconds is null when an input is missing and the mode has no price.
	Seconds *float64 `json:"seconds"`
	// SigmaSeconds and P95Seconds are null when the spread is not known.
	SigmaSeconds  *float64       `json:"sigma_seconds"`
	P95Seconds    *float64       `json:"p95_seconds"`
	Terms         []planTermView `json:"terms"`
	Eligible      bool           `json:"eligible"`
	Reason        string         `json:"reason"`
	Bytes         int64          `json:"bytes"`
	PrefillTokens int64          `json:"prefill_tokens"`
}

// planTermView is one addend.
type planTermView struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Note    string  `json:"note"`
}

// planFlipView is a figure that, changed alone, changes the winner.
type planFlipView struct {
	Figure string  `json:"figure"` // goodput, bit/s; prefill, tokens a second; prefix, tokens
	Now    float64 `json:"now"`
	At     float64 `json:"at"`
	Winner string  `json:"winner"`
}

func (f planFlipView) text() string {
	number := func(v float64) string {
		switch f.Figure {
		case planner.FigureGoodput.String():
			return rateText(v)
		case planner.FigurePrefill.String():
			return fmt.Sprintf("%.4g tokens/s", v)
		default:
			return fmt.Sprintf("%.0f tokens", v)
		}
	}
	return fmt.Sprintf("%s from a %s of %s on (now %s)", f.Winner, f.Figure, number(f.At), number(f.Now))
}

// confident is nil for a confidence of 0.
func confident(confidence float64) *float64 {
	if confidence == 0 {
		return nil
	}
	return &confidence
}

// planModes are the modes that are shown, in order.
var planModes = []planner.Mode{planner.ModeRedirect, planner.ModeFetch, planner.ModeRecompute, planner.ModeHybrid}

// viewPlan reads a daemon's plan; nil for none.
func viewPlan(p *pb.Plan) *planView {
	if p == nil {
		return nil
	}
	v := &planView{
		Winner: modeName(p.GetWinner()), RunnerUp: modeName(p.GetRunnerUp()), MarginSeconds: p.GetMarginSeconds(), MarginRatio: p.GetMarginRatio(),
		Reason: p.GetReason(), LinkSource: p.GetLinkSource(), ComputeSource: p.GetComputeSource(), CrossoverTokens: p.CrossoverTokens,
		RankedByP95: p.GetRankedByP95(), Confidence: confident(p.GetConfidence()), Flips: []planFlipView{}, Modes: map[string]modePlanView{},
	}
	for _, f := range p.GetFlips() {
		v.Flips = append(v.Flips, planFlipView{f.GetFigure(), f.GetNow(), f.GetAt(), modeName(f.GetWinner())})
	}
	for _, m := range p.GetModes() {
		mv := modePlanView{Eligible: m.GetEligible(), Reason: m.GetReason(), Bytes: m.GetBytes(), PrefillTokens: m.GetPrefillTokens(), Terms: []planTermView{}}
		for _, t := range m.GetTerms() {
			mv.Terms = append(mv.Terms, planTermView{t.GetName(), t.GetSeconds(), t.GetNote()})
		}
		if len(mv.Terms) > 0 {
			s := m.GetSeconds()
			mv.Seconds, mv.SigmaSeconds, mv.P95Seconds = &s, m.SigmaSeconds, m.P95Seconds
		}
		v.Modes[modeName(m.GetMode())] = mv
	}
	return v
}

// viewDecision reads a decision made in this process.
func viewDecision(d planner.Decision, flips []planner.Flip, computeSource string, crossover *float64) *planView {
	name := func(m planner.Mode) string {
		if m == planner.ModeNone {
			return ""
		}
		return m.String()
	}
	v := &planView{
		Winner: name(d.Winner), RunnerUp: name(d.RunnerUp), MarginSeconds: d.MarginSeconds, MarginRatio: d.MarginRatio,
		Reason: d.Reason, LinkSource: d.LinkSource, ComputeSource: computeSource, CrossoverTokens: crossover,
		RankedByP95: d.RankedByP95, Confidence: confident(d.Confidence), Flips: []planFlipView{}, Modes: map[string]modePlanView{},
	}
	for _, f := range flips {
		if f.Found {
			v.Flips = append(v.Flips, planFlipView{f.Figure.String(), f.Now, f.At, name(f.Winner)})
		}
	}
	for _, m := range planModes {
		p, ok := d.Plan(m)
		if !ok {
			continue
		}
		mv := modePlanView{Eligible: p.Eligible, Reason: p.Reason, Bytes: int64(p.Bytes), PrefillTokens: p.Tokens, Terms: []planTermView{}}
		for _, t := range p.Terms {
			mv.Terms = append(mv.Terms, planTermView{t.Name, t.Seconds, t.Note})
		}
		if p.Priced {
			mv.Seconds = &p.Seconds
			if p.SigmaSeconds > 0 {
				mv.SigmaSeconds, mv.P95Seconds = &p.SigmaSeconds, &p.P95Seconds
			}
		}
		v.Modes[m.String()] = mv
	}
	return v
}

// table writes a plan for a person: the modes, then the terms of each, then why.
func (v *planView) table(w io.Writer) {
	row(w, "MODE", "TIME", "MOVES", "PREFILLS", "")
	for _, m := range planModes {
		p, ok := v.Modes[m.String()]
		if !ok {
			continue
		}
		note := p.Reason
		if m.String() == v.Winner {
			note = "<- chosen"
		} else if p.Eligible && note == "" {
			note = "possible"
		}
		price := "unknown"
		if p.Seconds != nil {
			price = secondsText(*p.Seconds)
		}
		if p.P95Seconds != nil {
			price += " (P95 " + secondsText(*p.P95Seconds) + ")"
		}
		row(w, m, price, bytesText(p.Bytes), fmt.Sprintf("%d tokens", p.PrefillTokens), note)
		for _, t := range p.Terms {
			row(w, "  "+t.Name, secondsText(t.Seconds), "", "", t.Note)
		}
	}
	row(w)
	if v.RunnerUp != "" {
		at := ""
		if v.RankedByP95 {
			at = ", by P95"
		}
		row(w, "margin:", fmt.Sprintf("%s before %s%s", secondsText(v.MarginSeconds), v.RunnerUp, at))
	}
	if v.Confidence != nil {
		row(w, "confidence:", fmt.Sprintf("%.0f %% that it is no slower", 100**v.Confidence))
	}
	for i, f := range v.Flips {
		row(w, []string{"instead:", ""}[min(i, 1)], f.text())
	}
	row(w, "why:", v.Reason)
	row(w, "link:", dash(v.LinkSource))
	row(w, "compute:", dash(v.ComputeSource))
	if v.CrossoverTokens != nil {
		row(w, "crossover:", fmt.Sprintf("%.0f tokens: longer prefixes are cheaper to fetch", *v.CrossoverTokens))
	} else {
		row(w, "crossover:", "none: fetching is never cheaper on these numbers, or one is unknown")
	}
}
