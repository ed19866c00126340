package report

import (
	"bytes"
	"errors"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/hybrid"
	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/results"
)

func render(t *testing.T, inputs []Input) string {
	t.Helper()
	r, err := Build(inputs)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	headings = regexp.MustCompile(`<h([1-6])`)
	ids      = regexp.MustCompile(` id="([^"]+)"`)
	refs     = regexp.MustCompile(` (?:aria-labelledby|href)="#?([^"]+)"`)
	svgs     = regexp.MustCompile(`(?s)<svg class="plot" role="img" aria-labelledby="[^"]+" viewBox="0 0 [0-9.]+ [0-9.]+"[^>]*><title id="[^"]+">[^<]+</title><desc id="[^"]+">[^<]+</desc>`)
	loads    = regexp.MustCompile(`(?i)<(script|iframe|img|object|embed|base|form)\b|@import|url\(|<link rel="(?:stylesheet|preload)|\bon\w+=`)
	address  = regexp.MustCompile(`https?://[^"'\s<]+`)
)

// One page, whole: nothing is loaded, headings nest, what is referred to exists, each plot has its words.
func TestPage(t *testing.T) {
	page := render(t, all(t))
	if page != render(t, all(t)) {
		t.Error("the same results give another page")
	}
	if m := loads.FindString(page); m != "" {
		t.Errorf("the page has %q", m)
	}
	for _, a := range address.FindAllString(page, -1) {
		if a != "http://www.w3.org/2000/svg" && a != "http://www.w3.org/1999/xlink" {
			t.Errorf("the page names %s", a)
		}
	}
	level := byte('0')
	for _, m := range headings.FindAllStringSubmatch(page, -1) {
		if m[1][0] > level+1 || level == '0' && m[1] != "1" || level != '0' && m[1] == "1" {
			t.Errorf("heading %s after %c", m[1], level)
		}
		level = m[1][0]
	}
	var have []string
	for _, m := range ids.FindAllStringSubmatch(page, -1) {
		if slices.Contains(have, m[1]) {
			t.Errorf("two elements are %q", m[1])
		}
		have = append(have, m[1])
	}
	for _, m := range refs.FindAllStringSubmatch(page, -1) {
		for id := range strings.FieldsSeq(m[1]) {
			if !strings.HasPrefix(id, "data:") && !slices.Contains(have, id) {
				t.Errorf("nothing is %q", id)
			}
		}
	}
	if n := len(svgs.FindAllString(page, -1)); n != 3 {
		t.Errorf("%d plots with words, want 3", n)
	}
	for _, want := range []string{
		"120 tokens", "940 Mbps", "72 % busy", "Some Processor", "abc123", "kvferry bench goodput --wan=rtt=70ms,rate=1Gbps '--note=it'\\''s'", "caution 3",
		"70ms round trip, 1Gbps, no random loss", "encode", "36.9s", "Fetch what is longer than 144 tokens", "29 November 2026, 23:50 UTC", `lang="en"`, "var(--blue)",
	} {
		if !strings.Contains(page, want) && !strings.Contains(html.UnescapeString(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if at := func(s string) int { return strings.Index(page, `>`+s+`</h2>`) }; !(at("Crossover") < at("Goodput") && at("Goodput") < at("Queue") && at("Queue") < at("Codec") && at("Crossover") > 0) {
		t.Error("sections are out of order")
	}
}

// What comes from a file cannot become markup.
func TestHostile(t *testing.T) {
	const evil = `</title></desc></svg></pre><script>alert(1)</script>"'<b onload=x>`
	c := crossing()
	c.Model, c.WAN, c.EngineWhat, c.Why, c.Conclusion = evil, evil, evil, evil, evil
	g := flowing()
	g.WAN = evil
	w := waiting()
	w.Conclusion, w.Crossover.Laws[1].Law = evil, evil
	inputs := []Input{{evil, file(t, results.KindCrossover, c)}, {evil, file(t, results.KindGoodput, g)}, {evil, file(t, results.KindQueue, w)}, {evil, file(t, results.KindWAN, map[string]any{})}}
	for _, in := range inputs {
		in.File.Command, in.File.Commit, in.File.Machine.CPU = []string{evil}, evil, evil
		in.File.Versions[evil] = evil
		in.File.Warn("%s", evil)
	}
	inputs[1].File.Machine.Kernel = evil
	page := render(t, inputs)
	if strings.Contains(page, "<script") || strings.Contains(page, "<b onload") {
		t.Errorf("markup got through: %s", page[max(0, strings.Index(page, "<script")-200):][:400])
	}
	if strings.Count(page, "<svg") != strings.Count(page, "</svg>") || strings.Count(page, "<title") != strings.Count(page, "</title>") {
		t.Error("tags are not balanced")
	}
	if !strings.Contains(page, "from 2 machines") {
		t.Error("two machines are not told")
	}
}

// Sentences follow the numbers.
func TestConclusions(t *testing.T) {
	say := func(kind string, body any) (heads []string, doubts int, text string) {
		r, err := Build([]Input{{kind, file(t, kind, body)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.page.Say {
			heads = append(heads, c.Head)
			if c.Doubt {
				doubts++
			}
		}
		return heads, doubts, strings.Join(r.Conclusions(), " ")
	}
	cross := func(edit func(*crossover.Result)) *crossover.Result {
		c := crossing()
		edit(c)
		return c
	}
	flow := func(edit func(*goodput.Outcome)) goodput.Body {
		b := flowing()
		b.Configurations = b.Configurations[1:]
		edit(b.Configurations[0])
		b.Outcome = *b.Configurations[0]
		return b
	}
	pair := func(edit func(one, eight *goodput.Outcome)) goodput.Body {
		b := flowing()
		edit(b.Configurations[0], b.Configurations[1])
		b.Outcome = *b.Configurations[1]
		return b
	}
	// 672 ms of recompute less 464 ms of fetch are 0.93 of the 224 ms on the link: rho/(1-rho) = 0.93.
	const busy = "Let this link be no more than 48 % busy with fetches"
	for _, tc := range []struct {
		name   string
		kind   string
		body   any
		heads  []string
		doubts int
		says   string
	}{
		{"crosses", results.KindCrossover, crossing(), []string{"Fetch what is longer than 144 tokens", "Trust the planner here", "What a migration costs to start", busy}, 0, "from 144 tokens on, recompute those below 96"},
		{"far off", results.KindCrossover, cross(func(c *crossover.Result) { c.ErrorPct = ptr(-40.0) }), []string{"Fetch what is longer than 144 tokens", "Do not trust the planner here", "What a migration costs to start", busy}, 1, "off by -40.0 %"},
		{"within a block", results.KindCrossover, cross(func(c *crossover.Result) { c.ErrorPct = ptr(13.0) }), []string{"Fetch what is longer than 144 tokens", "Trust the planner here", "What a migration costs to start", busy}, 0, "+13.0 %"},
		{"times off", results.KindCrossover, cross(func(c *crossover.Result) { c.TimeErrorPct.Fetch = crossover.ErrorPct{Worst: -17.8, WorstTokens: 48} }), []string{"Fetch what is longer than 144 tokens", "Trust the planner's crossover, not each of its times", "What a migration costs to start", busy}, 1, "but its fetch times were off by 0.0 % in the median and -17.8 % at worst, at 48 tokens"},
		{"recompute times off", results.KindCrossover, cross(func(c *crossover.Result) { c.TimeErrorPct.Recompute = crossover.ErrorPct{Worst: 10.1, WorstTokens: 32} }), []string{"Fetch what is longer than 144 tokens", "Trust the planner's crossover, not each of its times", "What a migration costs to start", busy}, 1, "its recompute times by +10.1 % at worst, at 32 tokens"},
		{"never, times off", results.KindCrossover, cross(func(c *crossover.Result) {
			c.Measured.Verdict, c.Measured.Crossover, c.Predicted.Crossover, c.ErrorPct = crossover.NeverPays, nil, nil, nil
			c.TimeErrorPct.Fetch.Worst = 11
		}), []string{"Recompute", "Trust the planner's verdict, not each of its times", "What a migration costs to start"}, 1, "but its fetch times"},
		{"fixed cost charged", results.KindCrossover, cross(func(c *crossover.Result) {
			c.Measured.Fetch.FixedSeconds, c.Predicted.MigrationFixedSeconds = 0.35, 0.14
		}), []string{"Fetch what is longer than 144 tokens", "Trust the planner here", "What a migration costs to start", busy}, 0, "the planner charges 350 ms: 3 round trips and 140 ms"},
		{"machine", results.KindCrossover, cross(func(c *crossover.Result) { c.LimitedBy = crossover.LimitMachine }), []string{"Fetch what is longer than 144 tokens", "Trust the planner here", busy}, 2, "The machine, not the link"},
		{"never", results.KindCrossover, cross(func(c *crossover.Result) {
			c.Measured.Verdict, c.Measured.Crossover, c.Predicted.Crossover, c.ErrorPct = crossover.NeverPays, nil, nil, nil
		}), []string{"Recompute", "Trust the planner here", "What a migration costs to start"}, 0, "Fetch never pays here"},
		{"disagree", results.KindCrossover, cross(func(c *crossover.Result) {
			c.Measured.Verdict, c.Measured.Crossover, c.ErrorPct = crossover.NeverPays, nil, nil
		}), []string{"Recompute", "Do not trust the planner here", "What a migration costs to start"}, 1, "disagree"},
		{"dear start", results.KindCrossover, cross(func(c *crossover.Result) { c.Measured.Fetch.FixedSeconds = 0.35 }), []string{"Fetch what is longer than 144 tokens", "Trust the planner here", "What a migration costs to start", busy}, 0, "Setting link.round_trips to 5.0"},
		{"goodput", results.KindGoodput, flowing(), []string{"Plan with this goodput", "Use 8 connections", "Keep the connections up", "Leave processors for it"}, 0, "2.35 times what 1 connection gave"},
		{"goodput by machine", results.KindGoodput, flow(func(o *goodput.Outcome) { o.LimitedBy = goodput.LimitMachine }), []string{"Measure the goodput again", "Leave processors for it"}, 2, "on a machine at its limit"},
		{"one of two by machine", results.KindGoodput, pair(func(one, _ *goodput.Outcome) { one.LimitedBy = goodput.LimitMachine }), []string{"Plan with this goodput", "Keep the connections up", "Leave processors for it"}, 0, "940 Mbps"},
		{"two in the noise", results.KindGoodput, pair(func(one, eight *goodput.Outcome) {
			one.GoodputBps = 900e6
			for i, v := range []float64{.7e9, 1e9, .9e9, .8e9, 1e9} {
				one.Runs[i].GoodputBps, eight.Runs[i].GoodputBps = v, v*1.04
			}
		}), []string{"Plan with this goodput", "Do not choose a number of connections from this", "Keep the connections up", "Leave processors for it"}, 1, "do not tell them apart"},
		{"two alike", results.KindGoodput, pair(func(one, eight *goodput.Outcome) {
			one.GoodputBps = 939.9e6
			for i, v := range []float64{940e6, 940.1e6, 939.8e6, 940.2e6, 939.9e6} {
				one.Runs[i].GoodputBps, eight.Runs[i].GoodputBps = v, v+1e4
			}
		}), []string{"Plan with this goodput", "Leave the number of connections alone", "Keep the connections up", "Leave processors for it"}, 0, "made no difference here"},
		{"adaptive is best", results.KindGoodput, pair(func(_, eight *goodput.Outcome) { eight.Adaptive = true }), []string{"Plan with this goodput", "Let the link choose its connections", "Keep the connections up", "Leave processors for it"}, 0, "8 connections (the link's choice) gave the most"},
		{"cold like the slowest", results.KindGoodput, flow(func(o *goodput.Outcome) { o.Cold.Seconds = o.Runs[0].Seconds * 1.2; o.Runs[1].Seconds *= 1.3 }), []string{"Plan with this goodput", "Leave processors for it"}, 0, "940 Mbps"},
		{"loss", results.KindGoodput, flow(func(o *goodput.Outcome) {
			o.LimitedBy, o.Loss, o.LossUnrepaired = goodput.LimitLoss, ptr(0.01), ptr(0.001)
		}), []string{"Plan with this goodput", "Keep the connections up", "Leave processors for it"}, 0, "parity rebuilt 90 %"},
		{"unknown ends", results.KindGoodput, flow(func(o *goodput.Outcome) { o.CPU, o.Cold, o.LinkShare = goodput.CPU{}, nil, nil }), []string{"Plan with this goodput"}, 0, "940 Mbps over 8 connections"},
		{"queue", results.KindQueue, waiting(), []string{"Let no link be more than 54 % busy with fetches"}, 0, "72 % busy by M/M/1"},
		{"hybrid", results.KindHybrid, bothEnds(.9), []string{"Prefill and fetch at once where the engine can"}, 0, "up to 1.50 times shorter"},
		{"hybrid, dear pieces", results.KindHybrid, bothEnds(1.2), []string{"Do not rely on hybrid's worst case"}, 0, "in 1 of 1 settings"},
		{"other", results.KindCodec, map[string]any{}, nil, 0, ""},
	} {
		heads, doubts, text := say(tc.kind, tc.body)
		if d := cmp.Diff(tc.heads, heads); d != "" || doubts != tc.doubts || !strings.Contains(text, tc.says) {
			t.Errorf("%s: %d doubts, heads (-want +got):\n%s\n%s", tc.name, doubts, d, text)
		}
	}
}

// Advice is about the link of the page: what the base model says of links as such gives way to what was measured of this one.
// Each section names its own link and carries the command that measures it again.
func TestAdviceIsForThisLink(t *testing.T) {
	w := waiting()
	w.Link = &queue.Link{WAN: "rtt=10ms,rate=120Mbps,loss=0"}
	inputs := []Input{{"queue", file(t, results.KindQueue, w)}, {"crossover", file(t, results.KindCrossover, crossing())}}
	inputs[0].File.Command = []string{"kvferry", "bench", "queue", "--quick"}
	inputs[1].File.Command = []string{"kvferry", "bench", "crossover", "--wan=rtt=70ms,rate=1Gbps"}
	page := render(t, inputs)
	if !strings.Contains(page, "Let this link be no more than 48 % busy") || strings.Contains(page, "Let no link be") {
		t.Error("the base model's advice is given beside, or in place of, this link's")
	}
	sections := regexp.MustCompile(`(?s)<section id="(\w+)-\d".*?</section>`).FindAllStringSubmatch(page, -1)
	want := map[string][2]string{
		"queue":     {"Link: 10ms round trip, 120Mbps", "<code>kvferry bench queue --quick</code>"},
		"crossover": {"Link: 70ms round trip, 1Gbps", "<code>kvferry bench crossover --wan=rtt=70ms,rate=1Gbps</code>"},
	}
	if len(sections) != len(want) {
		t.Fatalf("%d sections", len(sections))
	}
	for _, s := range sections {
		for _, text := range want[s[1]] {
			if !strings.Contains(s[0], text) {
				t.Errorf("the section %s lacks %q", s[1], text)
			}
		}
		if strings.Count(s[0], "<code>") != 1 {
			t.Errorf("the section %s has another's command: %s", s[1], s[0])
		}
	}
	// Without a link of its own to speak of, the base model's is said.
	if alone := render(t, inputs[:1]); !strings.Contains(alone, "Let no link be") {
		t.Error("the queue alone concludes nothing")
	}
}

func TestBuildFaults(t *testing.T) {
	if _, err := Build(nil); !errors.Is(err, ErrNothing) {
		t.Errorf("error %v", err)
	}
	many := make([]Input, MaxInputs+1)
	for i := range many {
		many[i] = all(t)[0]
	}
	broken := file(t, results.KindGoodput, map[string]any{})
	broken.Schema = "other"
	for name, in := range map[string][]Input{
		"no file":         {{"x.json", nil}},
		"wrong schema":    {{"x.json", broken}},
		"strange body":    {{"x.json", file(t, results.KindCrossover, map[string]any{"strange": 1})}},
		"empty crossover": {{"x.json", file(t, results.KindCrossover, &crossover.Result{})}},
		"empty goodput":   {{"x.json", file(t, results.KindGoodput, goodput.Body{})}},
		"strange hybrid":  {{"x.json", file(t, results.KindHybrid, map[string]any{"cells": 1})}},
	} {
		if _, err := Build(in); err == nil || !strings.Contains(err.Error(), "x.json") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := Build(many); err == nil {
		t.Error("too many were taken")
	}
	twice := all(t)[2]
	r, err := Build([]Input{twice, twice})
	if err != nil || r.page.Sections[1].Title != "Crossover (2)" || r.page.Sections[0].ID == r.page.Sections[1].ID {
		t.Errorf("two of a kind: %v", err)
	}
}

// A result of hybrid has its section, whatever it says of its cells.
func TestHybridSection(t *testing.T) {
	r := bothEnds(.9)
	r.Aims[0].WorstCell = 17
	for _, body := range []*hybrid.Result{r, {Conclusion: "Nothing was simulated."}} {
		built, err := Build([]Input{{"hybrid.json", file(t, results.KindHybrid, body)}})
		if err != nil {
			t.Fatal(err)
		}
		s := built.page.Sections[0]
		if s.Title != "Hybrid" || s.Lead != body.Conclusion || len(s.Plots) != len(body.Cells) {
			t.Errorf("%+v", s)
		}
	}
}

// The headline says what its number is worth.
func TestHeadline(t *testing.T) {
	b := flowing()
	if note := goodputNote(b.Configurations[1]); note != "94 % of the link's rate, 8 connections; repeats from 930.6 Mbps to 949.4 Mbps" {
		t.Errorf("note %q", note)
	}
	b.Configurations[1].LimitedBy = goodput.LimitMachine
	if note := goodputNote(b.Configurations[1]); !strings.HasPrefix(note, "set by this machine, not the link; ") {
		t.Errorf("note %q", note)
	}
}
