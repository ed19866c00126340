package results

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// crossoverPlot is like what the crossover benchmark draws.
func crossoverPlot() Plot {
	fetch := Series{Name: "fetch, measured"}
	recompute := Series{Name: "recompute, measured"}
	lawF := Series{Name: "fetch, predicted", Style: DashedLine, Like: 1}
	lawR := Series{Name: "recompute, predicted", Style: DashedLine, Like: 2}
	for _, n := range []float64{256, 512, 1024, 2048, 4096, 8192, 16384, 32768} {
		f, r := 0.14+n*0.00105, n*0.003
		fetch.Points = append(fetch.Points, Point{X: n, Y: f, Low: f * 0.9, High: f * 1.12})
		recompute.Points = append(recompute.Points, Point{X: n, Y: r, Low: r * 0.95, High: r * 1.05})
		lawF.Points = append(lawF.Points, Point{X: n, Y: f * 1.04})
		lawR.Points = append(lawR.Points, Point{X: n, Y: r * 0.98})
	}
	return Plot{
		Title:  "Fetch and recompute, llama-3.1-8b at 1 Gbps and 70 ms",
		X:      Axis{Label: "prefix", Unit: "tokens", Log: true},
		Y:      Axis{Label: "time to first token", Unit: "s", Log: true},
		Series: []Series{fetch, recompute, lawF, lawR},
		Markers: []Marker{
			{Label: "measured crossover, 720 tokens", X: 720, Low: 600, High: 850},
			{Label: "predicted", X: 790, Dashed: true},
		},
	}
}

func goodputPlot() Plot {
	s := Series{Name: "goodput"}
	for i := range 30 {
		s.Points = append(s.Points, Point{X: float64(i) * 0.1, Y: 4.5e8 * (1 - math.Exp(-float64(i)/4))})
	}
	return Plot{
		Title: "Goodput", X: Axis{Label: "time", Unit: "s"}, Y: Axis{Label: "goodput", Unit: "bps"}, Series: []Series{s},
		Markers: []Marker{{Label: "at 0.95 of the link", X: 2.9, Series: 1}},
	}
}

func TestPlotPNG(t *testing.T) {
	for name, p := range map[string]Plot{"crossover": crossoverPlot(), "goodput": goodputPlot()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := p.PNG()
			if err != nil {
				t.Fatal(err)
			}
			if dir := t.ArtifactDir(); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			img, err := png.Decode(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			if s := img.Bounds().Size(); s.X != 1080 || s.Y != 810 {
				t.Errorf("size is %v, want 1080 x 810", s)
			}
			counts := map[color.NRGBA]int{}
			for y := range img.Bounds().Dy() {
				for x := range img.Bounds().Dx() {
					counts[color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA)]++
				}
			}
			if share := float64(counts[paper]) / (1080 * 810); share < 0.6 || share > 0.98 {
				t.Errorf("%.2f of the picture is background, want most of it", share)
			}
			for i := range p.Series {
				if n := counts[p.colour(i)]; n < 500 {
					t.Errorf("series %d has %d dots of its colour, want 500 or more", i, n)
				}
			}
			again, err := p.PNG()
			if err != nil || !bytes.Equal(b, again) {
				t.Errorf("drawn again it differs (%v)", err)
			}
		})
	}
}

// svgDoc is what the tests look at in an SVG.
type svgDoc struct {
	texts, strokes, fills []string
	viewBox               string
}

func readSVG(t *testing.T, b []byte) svgDoc {
	t.Helper()
	var doc svgDoc
	d := xml.NewDecoder(bytes.NewReader(b))
	inText := false
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return doc
		}
		if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			inText = e.Name.Local == "text"
			for _, a := range e.Attr {
				switch {
				case a.Name.Local == "viewBox":
					doc.viewBox = a.Value
				case a.Name.Local == "style" && e.Name.Local == "path":
					if strings.Contains(a.Value, "stroke:") {
						doc.strokes = append(doc.strokes, a.Value)
					} else {
						doc.fills = append(doc.fills, a.Value)
					}
				}
			}
		case xml.CharData:
			if inText {
				doc.texts = append(doc.texts, string(e))
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func TestPlotSVG(t *testing.T) {
	p := crossoverPlot()
	b, err := p.SVG()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "crossover.svg"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	doc := readSVG(t, b)
	if doc.viewBox != "0 0 360 270" {
		t.Errorf("viewBox is %q, want 0 0 360 270", doc.viewBox)
	}
	all := strings.Join(doc.texts, "\n")
	for _, want := range []string{"Fetch and recompute", "prefix (tokens)", "time to first token", "1k", "2k", "10k", "1 s", "10 s", "fetch, measured", "predicted"} {
		if !strings.Contains(all, want) {
			t.Errorf("no text has %q; there are:\n%s", want, all)
		}
	}
	for i, hex := range []string{"#0072B2", "#D55E00"} {
		n := 0
		for _, s := range doc.strokes {
			if strings.Contains(s, hex) {
				n++
			}
		}
		if want := 2 + 2 + 3*8; n != want {
			t.Errorf("series %d has %d strokes, want %d: two lines, two in the legend, three a bar", i, n, want)
		}
	}
	if again, err := p.SVG(); err != nil || !bytes.Equal(b, again) {
		t.Errorf("drawn again it differs (%v)", err)
	}
	if !bytes.Contains(b, []byte("Liberation Sans,Arial,Helvetica,sans-serif")) {
		t.Error("the font has no fall-back")
	}
}

// TestPlotFull draws as much as is allowed: everything stays on the canvas and no legend eats the data's place.
func TestPlotFull(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("Wide title ", 18)
	p := Plot{Title: long, X: Axis{Label: long, Unit: "tokens"}, Y: Axis{Label: long, Unit: "B"}}
	for i := range MaxSeries {
		p.Series = append(p.Series, Series{Name: long, Style: Style(i % 4), Points: []Point{{X: 1, Y: float64(i)}, {X: 9, Y: float64(2 * i)}}})
	}
	for i := range MaxMarkers {
		p.Markers = append(p.Markers, Marker{Label: long, X: float64(i), Low: float64(i) - 1, High: float64(i) + 2, Series: i})
	}
	b, err := p.PNG()
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "full.png"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	size := img.Bounds().Size()
	if size.X != 1080 || size.Y < 1500 || size.Y > 2200 {
		t.Errorf("size is %v, want 1080 wide and 22 rows of legend higher than usual", size)
	}
	for y := range size.Y {
		for _, x := range []int{0, size.X - 1} {
			if c := color.NRGBAModel.Convert(img.At(x, y)); c != paper {
				t.Fatalf("at (%d, %d) the edge is %v, want nothing drawn there", x, y, c)
			}
		}
	}
}

// TestPlotRanges draws what could upset an axis.
func TestPlotRanges(t *testing.T) {
	pts := func(xy ...float64) []Point {
		var ps []Point
		for i := 0; i < len(xy); i += 2 {
			ps = append(ps, Point{X: xy[i], Y: xy[i+1]})
		}
		return ps
	}
	tests := []struct {
		name string
		x, y Axis
		pts  []Point
		want []string // texts that must be there
	}{
		{"one point", Axis{}, Axis{}, pts(3, 7), []string{"3", "8"}},
		{"one point log", Axis{Log: true}, Axis{Log: true}, pts(3, 7), []string{"3", "7"}},
		{"zero", Axis{}, Axis{}, pts(0, 0), []string{"0"}},
		{"negative", Axis{}, Axis{}, pts(-5, -7, -1, -2), []string{"-5", "-1"}},
		{"narrow", Axis{}, Axis{}, pts(1e9, 1, 1e9+1, 1), nil},
		{"too narrow to tell apart", Axis{}, Axis{}, pts(1, 1, math.Nextafter(1, 2), 1), nil},
		{"huge", Axis{}, Axis{}, pts(-1e100, -1e100, 1e100, 1e100), nil},
		{"huge log", Axis{Log: true}, Axis{Log: true}, pts(1e-99, 1e-99, 1e100, 1e100), nil},
		{"tiny", Axis{Unit: "s"}, Axis{Unit: "s"}, pts(1e-9, 1e-12, 5e-9, 5e-12), []string{"(ns)", "2"}},
		{"gbps", Axis{Unit: "s"}, Axis{Label: "rate", Unit: "bps"}, pts(1, 1e9, 2, 9e9), []string{"rate (Gbps)", "8"}},
		{"bytes", Axis{Unit: "B"}, Axis{Unit: "B", Log: true}, pts(1<<20, 1<<10, 8<<20, 1<<30), []string{"(MiB)", "8"}},
		{"given range", Axis{Min: 10, Max: 20}, Axis{}, pts(0, 1, 30, 2), []string{"12", "20"}},
		{"short log", Axis{Log: true}, Axis{}, pts(5000, 1, 8000, 2), []string{"6k", "7k"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := Plot{X: test.x, Y: test.y, Series: []Series{{Points: test.pts}}}
			b, err := p.SVG()
			if err != nil {
				t.Fatal(err)
			}
			doc := readSVG(t, b)
			for _, want := range test.want {
				found := false
				for _, s := range doc.texts {
					found = found || s == want || strings.Contains(s, "(") && strings.Contains(s, want)
				}
				if !found {
					t.Errorf("no text is %q; there are %q", want, doc.texts)
				}
			}
			if bytes.Contains(b, []byte("NaN")) || bytes.Contains(b, []byte("Inf")) {
				t.Error("it draws at NaN or infinity")
			}
			if strings.Contains(test.name, "huge") {
				if _, err := p.PNG(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestPlotRefuses(t *testing.T) {
	ok := func() Plot { return Plot{Series: []Series{{Name: "s", Points: []Point{{X: 1, Y: 1}}}}} }
	tests := []struct {
		name   string
		change func(*Plot)
		want   string
	}{
		{"no series", func(p *Plot) { p.Series = nil }, "0 series"},
		{"many series", func(p *Plot) { p.Series = make([]Series, 15) }, "15 series"},
		{"no points", func(p *Plot) { p.Series[0].Points = nil }, "0 points"},
		{"nan", func(p *Plot) { p.Series[0].Points[0].Y = math.NaN() }, "y is NaN"},
		{"zero on log", func(p *Plot) { p.X.Log = true; p.Series[0].Points[0].X = 0 }, "more than 0 on a logarithmic axis"},
		{"bar beside its point", func(p *Plot) { p.Series[0].Points[0].Low, p.Series[0].Points[0].High = 2, 3 }, "must be finite and hold y 1"},
		{"upside down", func(p *Plot) { p.Y.Min, p.Y.Max = 2, 1 }, "y axis from 2 to 1"},
		{"like", func(p *Plot) { p.Series[0].Like = 2 }, "like series 2"},
		{"style", func(p *Plot) { p.Series[0].Style = 9 }, "style 9"},
		{"marker", func(p *Plot) { p.Markers = []Marker{{X: math.Inf(1)}} }, "want a finite number"},
		{"marker's band", func(p *Plot) { p.Markers = []Marker{{X: 1, Low: 2, High: 1}} }, "low first"},
		{"marker's series", func(p *Plot) { p.Markers = []Marker{{X: 1, Series: 2}} }, "series 2, want 0 to 1"},
		{"title", func(p *Plot) { p.Title = strings.Repeat("x", 201) }, "at most 200 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := ok()
			test.change(&p)
			_, err := p.SVG()
			_, err2 := p.PNG()
			if err == nil || !strings.Contains(err.Error(), test.want) || err2 == nil {
				t.Errorf("errors are %v and %v, want one with %q", err, err2, test.want)
			}
		})
	}
}
