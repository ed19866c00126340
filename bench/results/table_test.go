package results

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		v    float64
		unit string
		want string
	}{
		{4.123e8, "bps", "412.3 Mbps"},
		{3 << 20, "B", "3 MiB"},
		{0.0123, "s", "12.3 ms"},
		{0.5, "1", "0.5"},
		{8192, "tokens", "8192 tokens"},
		{999.96, "bps", "1 kbps"},
		{999.94, "bps", "999.9 bps"},
		{1023.6, "B", "0.9996 KiB"},
		{0, "s", "0 s"},
		{1, "s", "1 s"},
		{0.99999, "s", "1 s"},
		{1.5e-6, "s", "1.5 µs"},
		{2e-9, "s", "2 ns"},
		{1e-12, "s", "0.001 ns"},
		{-0.02, "s", "-20 ms"},
		{7200, "s", "7200 s"},
		{math.NaN(), "s", "-"},
		{math.Inf(1), "bps", "-"},
		{1234567.8, "1", "1234568"},
		{0.00001234, "1", "1.234e-05"},
		{3.14159, "1", "3.142"},
		{100, "%", "100 %"},
		{1e18, "bps", "1000 Pbps"},
		{9.9996, "1", "10"},
		{-2.5e9, "Hz", "-2.5 GHz"},
		{12.345, "s/GB", "12.35 s/GB"},
		{99.995, "1", "100"},
	} {
		if got := Format(test.v, test.unit); got != test.want {
			t.Errorf("Format(%v, %q) = %q, want %q", test.v, test.unit, got, test.want)
		}
	}
}

func sampleTable() *Table {
	t := &Table{Title: "Links", Columns: []Column{{Name: "link", Left: true}, {Name: "goodput", Unit: "bps"}, {Name: "rtt", Unit: "s"}, {Name: "n"}}}
	t.Row("eu-west|1", 4.5e8, Estimate{Value: 0.07, Low: 0.069, High: 0.08, Level: 0.95}, 12)
	t.Row("us\nlong name", 1e9, Estimate{Value: 0.1}, uint8(3), "too many")
	t.Row("µ")
	t.Notes = []string{"a note"}
	return t
}

func TestTableText(t *testing.T) {
	var b strings.Builder
	if err := sampleTable().Write(&b); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
Links
link           goodput                    rtt   n
------------  --------  ---------------------  --
eu-west|1     450 Mbps  70 ms [69 ms, 80 ms]  12
us long name    1 Gbps                 100 ms   3
µ
a note
`, "\n")
	// The widths follow from the cells; the literal above is checked line by line without runs of spaces.
	squeeze := func(s string) string {
		var lines []string
		for l := range strings.Lines(s) {
			l = strings.ReplaceAll(strings.TrimSpace(l), "-", "")
			lines = append(lines, strings.Join(strings.Fields(l), " "))
		}
		return strings.Join(lines, "\n")
	}
	if d := cmp.Diff(squeeze(want), squeeze(b.String())); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
	// Right-aligned columns end where their heads end.
	lines := strings.Split(b.String(), "\n")
	for _, pair := range [][2]string{{"goodput", "450 Mbps"}, {"rtt", "80 ms]"}} {
		if at, want := endOf(lines[3], pair[1]), endOf(lines[1], pair[0]); at != want {
			t.Errorf("%q ends at %d, its head %q at %d:\n%s", pair[1], at, pair[0], want, b.String())
		}
	}
	for _, l := range lines {
		if l != strings.TrimRight(l, " ") {
			t.Errorf("line %q ends in spaces", l)
		}
	}
}

func endOf(line, s string) int { return width(line[:strings.Index(line, s)+len(s)]) }

func TestTableMarkdown(t *testing.T) {
	var b strings.Builder
	if err := sampleTable().Markdown(&b); err != nil {
		t.Fatal(err)
	}
	want := `**Links**

| link | goodput | rtt | n |
| --- | --: | --: | --: |
| eu-west\|1 | 450 Mbps | 70 ms [69 ms, 80 ms] | 12 |
| us long name | 1 Gbps | 100 ms | 3 |
| µ |  |  |  |

- a note
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("Markdown (-want +got):\n%s", d)
	}
}

func TestTableCSV(t *testing.T) {
	var b strings.Builder
	if err := sampleTable().CSV(&b); err != nil {
		t.Fatal(err)
	}
	want := "link,goodput (bps),rtt (s),n\neu-west|1,4.5e+08,0.07,12\n\"us\nlong name\",1e+09,0.1,3\nµ,,,\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("CSV (-want +got):\n%s", d)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWritersFail(t *testing.T) {
	tab := sampleTable()
	f := sample(t)
	for name, write := range map[string]func() error{
		"text": func() error { return tab.Write(brokenWriter{}) }, "markdown": func() error { return tab.Markdown(brokenWriter{}) },
		"csv": func() error { return tab.CSV(brokenWriter{}) }, "flat": func() error { return f.WriteFlat(brokenWriter{}) },
	} {
		if err := write(); !errors.Is(err, errBroken) {
			t.Errorf("%s: error is %v, want the writer's", name, err)
		}
	}
}
