package report

import (
	"fmt"
	"html"
	"html/template"
	"regexp"
	"slices"
	"strings"

	"github.com/kvferry/kvferry/bench/results"
)

// plotColours are the colours of package results and the page's variables for them, which differ in the dark. Fonts of the same
// widths are added for systems that lack the named ones.
var plotColours = strings.NewReplacer(
	"font-family:Liberation Sans,Arial,Helvetica,sans-serif", "font-family:Liberation Sans,Arial,Helvetica,Arimo,Nimbus Sans,FreeSans,DejaVu Sans Condensed,sans-serif",
	"#FFFFFF", "var(--plot)", "#3C3C3C", "var(--ink)", "#3B3B3B", "var(--ink)", "#000000", "var(--ink)", "#E1E1E1", "var(--grid)",
	"#0072B2", "var(--blue)", "#D55E00", "var(--red)", "#009E73", "var(--green)", "#CC79A7", "var(--pink)", "#E69F00", "var(--amber)", "#56B4E9", "var(--sky)",
)

var svgHead = regexp.MustCompile(`(?s)^.*?<svg[^>]*?viewBox="([0-9. ]+)"[^>]*>`)

// draw makes a figure of a plot: inside the page, in its colours, with a name and words.
func draw(p results.Plot, id, caption, description string) (figure, error) {
	p.Title = "" // the caption says it
	b, err := p.SVG()
	if err != nil {
		return figure{}, fmt.Errorf("draw %q: %w", caption, err)
	}
	head := svgHead.FindSubmatchIndex(b)
	if head == nil {
		return figure{}, fmt.Errorf("draw %q: BUG: no SVG", caption)
	}
	open := fmt.Sprintf(`<svg class="plot" role="img" aria-labelledby="%[1]s-t %[1]s-d" viewBox="%[2]s" xmlns="http://www.w3.org/2000/svg"><title id="%[1]s-t">%[3]s</title><desc id="%[1]s-d">%[4]s</desc>`,
		id, b[head[2]:head[3]], html.EscapeString(caption), html.EscapeString(description))
	// The rest is drawn by package results, which escapes the texts in it.
	return figure{SVG: template.HTML(open + plotColours.Replace(string(b[head[1]:]))), Caption: caption, Description: description}, nil
}

// tableOf takes over a table; notes that the page says elsewhere are left out.
func tableOf(t *results.Table, without ...string) table {
	out := table{Title: t.Title}
	for _, c := range t.Columns {
		out.Columns = append(out.Columns, column{c.Name, c.Left})
	}
	for _, row := range t.Cells() {
		cells := make([]cell, len(row))
		for j, s := range row {
			cells[j] = cell{Text: s, Left: t.Columns[j].Left, Head: j == 0}
		}
		out.Rows = append(out.Rows, cells)
	}
	for _, n := range t.Notes {
		if n != "" && !slices.Contains(without, n) {
			out.Notes = append(out.Notes, n)
		}
	}
	return out
}

func tablesOf(ts []*results.Table, without ...string) []table {
	out := make([]table, len(ts))
	for i, t := range ts {
		out[i] = tableOf(t, without...)
	}
	return out
}

// metricsPart shows what every result has.
func metricsPart(f *results.File) *part {
	t := &results.Table{Columns: []results.Column{{Name: "metric", Left: true}, {Name: "value"}, {Name: "samples"}, {Name: "better", Left: true}}}
	for _, m := range f.Metrics {
		value := results.Format(m.Median, m.Unit)
		if m.Low != m.High {
			value += " [" + results.Format(m.Low, m.Unit) + ", " + results.Format(m.High, m.Unit) + "]"
		}
		t.Row(m.Name, value, fmt.Sprint(len(m.Samples)), string(m.Better))
	}
	return &part{rank: 9, section: section{Title: strings.ToUpper(f.Kind[:1]) + f.Kind[1:], Lead: "Metrics of the result, each with its interval.", Tables: []table{tableOf(t)}}}
}
