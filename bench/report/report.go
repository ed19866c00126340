package report

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	_ "embed" // the page

	"github.com/kvferry/kvferry/bench/results"
)

// Input is one result with the name that errors call it by, such as its file's.
type Input struct {
	Name string
	File *results.File
}

// MaxInputs bounds the results of a report, so that it can be read.
const MaxInputs = 16

// ErrNothing is returned by Build without results.
var ErrNothing = errors.New("a report needs a result at least")

// Report is a page that is ready to be written.
type Report struct{ page page }

// page is what the template shows.
type page struct {
	Title     string
	Lead      string
	When      string
	Tiles     []tile
	Say       []conclusion
	Notes     []string // about the report as a whole
	Sections  []section
	Machines  []machine
	Runs      []runs
	Schema    string
	Generator string
}

// tile is a number that a reader comes for.
type tile struct{ Label, Value, Note string }

// conclusion is a sentence or a few about one matter.
type conclusion struct {
	Head, Text string
	Doubt      bool // it is about a number that is not to be relied upon
	General    bool // it is about links as such: what is said of a link of this page takes its place
	Busy       bool // it says how busy a link of this page may be
}

// section is one result.
type section struct {
	ID, Title, Lead string
	Link            string // empty: none of the model's
	Command         string // that measures it again
	Plots           []figure
	Tables          []table
	Warnings        []string
}

// figure is a plot with words for those who do not see it.
type figure struct {
	SVG         template.HTML
	Caption     string
	Description string
}

// table is a results.Table for the template.
type table struct {
	Title   string
	Columns []column
	Rows    [][]cell
	Notes   []string
}

type column struct {
	Name string
	Left bool
}

type cell struct {
	Text       string
	Left, Head bool
}

// machine is one machine with what was measured on it.
type machine struct {
	Title string
	Rows  [][2]string
}

// runs is how a result came about.
type runs struct{ Title, When, Took, Commit, Versions string }

// part is what one kind of result gives to the page.
type part struct {
	tiles   []tile
	say     []conclusion
	section section
	link    string // the model link, empty for none
	rank    int    // order on the page
}

// Build makes the report of up to MaxInputs results, which it does not keep. Errors: ErrNothing, a result that does not
// validate or whose body is not its kind's, named by its input; a plot that cannot be drawn.
func Build(inputs []Input) (*Report, error) {
	if len(inputs) == 0 {
		return nil, ErrNothing
	}
	if len(inputs) > MaxInputs {
		return nil, fmt.Errorf("%d results: want at most %d in one report", len(inputs), MaxInputs)
	}
	var parts []*part
	kinds := map[string]int{}
	for i, in := range inputs {
		if in.File == nil {
			return nil, fmt.Errorf("%s: no result", in.Name)
		}
		if err := in.File.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
		id := fmt.Sprintf("%s-%d", in.File.Kind, i+1)
		p, err := partOf(in.File, id)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
		kinds[in.File.Kind]++
		if n := kinds[in.File.Kind]; n > 1 {
			p.section.Title += fmt.Sprintf(" (%d)", n)
		}
		p.section.ID, p.section.Warnings, p.section.Command = id, warningsOf(in.File), shell(in.File.Command)
		if p.link != "" {
			p.section.Link = linkText(p.link)
		}
		parts = append(parts, p)
	}
	r := &Report{}
	r.fill(inputs, parts)
	return r, nil
}

func partOf(f *results.File, id string) (*part, error) {
	switch f.Kind {
	case results.KindGoodput:
		return goodputPart(f, id)
	case results.KindCrossover:
		return crossoverPart(f, id)
	case results.KindQueue:
		return queuePart(f, id)
	case results.KindHybrid:
		return hybridPart(f, id)
	}
	return metricsPart(f), nil
}

func warningsOf(f *results.File) []string {
	out := slices.Clone(f.Warnings)
	if f.Interrupted {
		out = append([]string{"The run was cut short: this is what was measured until then."}, out...)
	}
	return out
}

// fill puts the parts in order on the page.
func (r *Report) fill(inputs []Input, parts []*part) {
	p := &r.page
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(parts[a].rank, parts[b].rank) })
	var links []string
	for _, i := range order {
		q := parts[i]
		p.Tiles = append(p.Tiles, q.tiles...)
		p.Say = append(p.Say, q.say...)
		p.Sections = append(p.Sections, q.section)
		p.Runs = append(p.Runs, runOf(q.section.Title, inputs[i].File))
		if q.link != "" && !slices.Contains(links, q.link) {
			links = append(links, q.link)
		}
	}
	p.Machines = machinesOf(order, inputs, parts)
	if slices.ContainsFunc(p.Say, func(c conclusion) bool { return c.Busy }) {
		p.Say = slices.DeleteFunc(p.Say, func(c conclusion) bool { return c.General })
	}
	if len(p.Machines) > 1 {
		p.Notes = append(p.Notes, fmt.Sprintf("These results come from %d machines. Numbers of different machines are not to be compared.", len(p.Machines)))
	}
	p.Title = "Bench report"
	switch len(links) {
	case 0:
		p.Lead = "Measured between daemons."
	case 1:
		p.Lead = "Link " + linkText(links[0])
	default:
		p.Lead = "Several links: " + strings.Join(mapped(links, linkText), "; ") + ". Each section names its own."
	}
	last := inputs[0].File.Started
	for _, in := range inputs {
		if in.File.Started.After(last) {
			last = in.File.Started
		}
	}
	p.When = last.UTC().Format("2 January 2006, 15:04 UTC")
	p.Schema = results.Schema
}

func mapped(in []string, f func(string) string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = f(s)
	}
	return out
}

// linkText is a model link for people: rtt=70ms,rate=1Gbps,loss=0 as "70ms round trip, 1Gbps, loss 0".
func linkText(s string) string {
	var out []string
	for pair := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "rtt":
			out = append(out, value+" round trip")
		case "rate":
			out = append(out, value)
		case "loss":
			if value == "0" {
				out = append(out, "no random loss")
			} else {
				out = append(out, "loss "+value)
			}
		default:
			out = append(out, key+" "+value)
		}
	}
	return strings.Join(out, ", ")
}

func runOf(title string, f *results.File) runs {
	var versions []string
	for _, k := range slices.Sorted(mapKeys(f.Versions)) {
		versions = append(versions, k+" "+f.Versions[k])
	}
	return runs{
		Title: title, When: f.Started.UTC().Format("2006-01-02 15:04:05 UTC"), Took: (time.Duration(f.Seconds*10) * time.Second / 10).String(),
		Commit: orText(f.Commit, "unknown"), Versions: strings.Join(versions, ", "),
	}
}

func mapKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// shell quotes a command line for a POSIX shell.
func shell(args []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=,./:@%"
	out := make([]string, len(args))
	for i, a := range args {
		if a == "" || strings.Trim(a, plain) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out[i] = a
	}
	return orText(strings.Join(out, " "), "(not recorded)")
}

// machinesOf lists each machine once, with the sections measured on it when there are several.
func machinesOf(order []int, inputs []Input, parts []*part) []machine {
	type seen struct {
		m      results.Machine
		titles []string
	}
	var all []seen
	for _, i := range order {
		m, title := inputs[i].File.Machine, parts[i].section.Title
		m.Load1 = 0 // of the moment
		if k := slices.IndexFunc(all, func(s seen) bool { return s.m == m }); k >= 0 {
			all[k].titles = append(all[k].titles, title)
			continue
		}
		all = append(all, seen{m, []string{title}})
	}
	out := make([]machine, len(all))
	for i, s := range all {
		out[i] = machineOf(s.m)
		if len(all) > 1 {
			out[i].Title = strings.Join(s.titles, ", ")
		}
	}
	return out
}

func machineOf(m results.Machine) machine {
	var out machine
	add := func(name, value string) {
		if value != "" {
			out.Rows = append(out.Rows, [2]string{name, value})
		}
	}
	number := func(v float64, unit string) string {
		if v == 0 {
			return ""
		}
		return results.Format(v, unit)
	}
	add("Processor", m.CPU)
	cores := number(float64(m.Cores), "cores")
	if m.CPUQuota > 0 {
		cores += fmt.Sprintf(", of which %g may be used", m.CPUQuota)
	}
	add("Processors", cores)
	add("Frequency governor", m.Governor)
	add("Memory", number(float64(m.MemoryBytes), "B"))
	add("System", strings.TrimSpace(m.OS+" "+m.Arch+", kernel "+orText(m.Kernel, "unknown")))
	add("Clock source", m.Clocksource)
	if m.UDPRecvBufferMax > 0 {
		add("UDP buffers, at most", results.Format(float64(m.UDPRecvBufferMax), "B")+" to receive, "+results.Format(float64(m.UDPSendBufferMax), "B")+" to send")
	}
	add("Go", fmt.Sprintf("%s, GOMAXPROCS %d", m.GoVersion, m.GoMaxProcs))
	return out
}

// Conclusions are the sentences of the report, in its order. The caller owns the slice.
func (r *Report) Conclusions() []string {
	out := make([]string, len(r.page.Say))
	for i, c := range r.page.Say {
		out[i] = c.Text
	}
	return out
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// WriteHTML writes the page. Its errors are w's.
func (r *Report) WriteHTML(w io.Writer) error { return pageTemplate.Execute(w, r.page) }
