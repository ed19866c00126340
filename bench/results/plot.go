package results

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Bounds of a plot, so that it can be drawn and read.
const (
	MaxSeries      = 14
	MaxMarkers     = 8
	MaxPlotPoints  = 100_000
	maxLabelLength = 200
)

// The size of a plot in points (1/72 inch): 480 x 360 CSS pixels, so that at 360 pixels the smallest text is 10 high. A long
// title or legend makes it higher.
const (
	plotWidth  = 360 * vg.Length(1)
	plotHeight = 270 * vg.Length(1)
	plotDPI    = 216 // of the PNG: 1080 x 810 pixels
)

// Plot is a picture of a few series over one pair of axes, in the one style of all benchmarks. It is a value: set the
// fields, then draw. The same Plot gives the same bytes.
type Plot struct {
	Title   string // above the picture, wrapped; may be empty
	X, Y    Axis
	Series  []Series // 1 to MaxSeries; from the eighth on colours repeat with other marks
	Markers []Marker // at most MaxMarkers
}

// Axis is one axis of a plot.
type Axis struct {
	Label string // without the unit
	Unit  string // see the package's Units; axes show bps, B, s and Hz with the prefix that suits them
	Log   bool   // a logarithmic scale; all values must be > 0
	// Min and Max are the range shown, in the unit; both zero: that of the data, from zero where that costs little.
	Min, Max float64
}

// Series is points of one kind in one colour.
type Series struct {
	Name   string // in the legend; empty for none
	Points []Point
	Style  Style
	// Like gives it the colour of that series, counted from 1, as for the prediction of what that one measures; 0 is its own.
	Like int
}

// Style says how a series is drawn.
type Style int

// The styles of a series.
const (
	LinesAndMarks Style = iota // measured, in order of x
	MarksOnly                  // measured, in no order
	LineOnly                   // a law or a fit
	DashedLine                 // a prediction
)

// Point is one point with its error bar.
type Point struct {
	X, Y float64
	// Low and High are the ends of the error bar about Y; both zero for none. On a logarithmic axis a bar that reaches
	// zero or below ends at the axis.
	Low, High float64
}

// Marker is a vertical line at an x, as the crossover.
type Marker struct {
	Label string // in the legend; empty for none
	X     float64
	// Low and High are a shaded band about X, its interval; both zero for none.
	Low, High float64
	// Series gives the line the colour of that series, counted from 1; 0 is dark grey.
	Series int
	Dashed bool
}

// Validate returns every violation joined, nil if there is none. SVG and PNG do it first.
func (p Plot) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(p.Series) == 0 || len(p.Series) > MaxSeries {
		bad("plot: %d series, want 1 to %d", len(p.Series), MaxSeries)
	}
	if len(p.Markers) > MaxMarkers {
		bad("plot: %d markers, want at most %d", len(p.Markers), MaxMarkers)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	text := func(what, s string) {
		if len(s) > maxLabelLength || !utf8.ValidString(s) {
			bad("plot: %s is %.40q..., want valid UTF-8 of at most %d bytes", what, s, maxLabelLength)
		}
	}
	text("title", p.Title)
	for _, a := range []struct {
		name string
		Axis
	}{{"x axis", p.X}, {"y axis", p.Y}} {
		text(a.name+" label", a.Label)
		text(a.name+" unit", a.Unit)
		if (a.Min != 0 || a.Max != 0) && !(a.holds(a.Min) == nil && a.holds(a.Max) == nil && a.Min < a.Max) {
			bad("plot: %s from %v to %v, want min < max, and > 0 if logarithmic", a.name, a.Min, a.Max)
		}
	}
	points := 0
	for i, s := range p.Series {
		text(fmt.Sprintf("name of series %d", i), s.Name)
		points += len(s.Points)
		if s.Style < LinesAndMarks || s.Style > DashedLine {
			bad("plot: series %q has style %d, want one of the four", s.Name, s.Style)
		}
		if s.Like < 0 || s.Like > len(p.Series) {
			bad("plot: series %q is like series %d, want 0 to %d", s.Name, s.Like, len(p.Series))
		}
	}
	if points == 0 || points > MaxPlotPoints {
		bad("plot: %d points, want 1 to %d", points, MaxPlotPoints)
		return errors.Join(errs...)
	}
	errs = append(errs, p.validatePoints()...)
	for _, m := range p.Markers {
		text("label of a marker", m.Label)
		if err := p.X.holds(m.X); err != nil {
			bad("plot: marker %q at x %w", m.Label, err)
		}
		if !drawable(m.Low) || !drawable(m.High) || m.Low > m.High {
			bad("plot: marker %q has the band %v to %v, want finite numbers, low first", m.Label, m.Low, m.High)
		}
		if m.Series < 0 || m.Series > len(p.Series) {
			bad("plot: marker %q has series %d, want 0 to %d", m.Label, m.Series, len(p.Series))
		}
	}
	return errors.Join(errs...)
}

// validatePoints returns the first violation in each series.
func (p Plot) validatePoints() []error {
	var errs []error
	for _, s := range p.Series {
		for i, pt := range s.Points {
			if err := p.X.holds(pt.X); err != nil {
				errs = append(errs, fmt.Errorf("plot: series %q point %d: x %w", s.Name, i, err))
				break
			}
			if err := p.Y.holds(pt.Y); err != nil {
				errs = append(errs, fmt.Errorf("plot: series %q point %d: y %w", s.Name, i, err))
				break
			}
			if pt.bar() && !(drawable(pt.Low) && drawable(pt.High) && pt.Low <= pt.Y && pt.Y <= pt.High) {
				errs = append(errs, fmt.Errorf("plot: series %q point %d: bar %v to %v must be finite and hold y %v", s.Name, i, pt.Low, pt.High, pt.Y))
				break
			}
		}
	}
	return errs
}

// largestDrawn bounds what is drawn, its inverse what a logarithmic axis shows: ranges are padded, subtracted, divided.
const largestDrawn = 1e100

func drawable(v float64) bool { return math.Abs(v) <= largestDrawn }

// holds says why an axis cannot show a value.
func (a Axis) holds(v float64) error {
	if !drawable(v) {
		return fmt.Errorf("is %v, want a finite number of at most %v", v, largestDrawn)
	}
	if a.Log && v < 1/largestDrawn {
		return fmt.Errorf("is %v, want more than 0 on a logarithmic axis", v)
	}
	return nil
}

func (pt Point) bar() bool { return pt.Low != 0 || pt.High != 0 }

// SVG draws the plot as an SVG document, 480 x 360 CSS pixels (higher with a long title or legend) and scalable. Fonts are named, not embedded: Liberation
// Sans or what is like it.
func (p Plot) SVG() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := vgsvg.New(plotWidth, p.height())
	p.draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("draw plot: %w", err)
	}
	return bytes.ReplaceAll(b.Bytes(),
		[]byte("font-family:Liberation Sans;font-variant"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;font-variant")), nil
}

// PNG draws the plot as a PNG of 1080 x 810 pixels (higher with a long title or legend).
func (p Plot) PNG() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := vgimg.NewWith(vgimg.UseWH(plotWidth, p.height()), vgimg.UseDPI(plotDPI))
	p.draw(draw.New(c))
	var b bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: c}).WriteTo(&b); err != nil {
		return nil, fmt.Errorf("draw plot: %w", err)
	}
	return b.Bytes(), nil
}

// The margins of a plot, in points.
const (
	marginLeft, marginRight, marginBottom, marginTop = 5, 10, 5, 6

	innerWidth = plotWidth - marginLeft - marginRight
)

// height leaves room for the data below a title of more than a line and a legend of more than legendFreeRows.
func (p Plot) height() vg.Length {
	_, rows := p.legend(innerWidth)
	lines := len(titleLines(clean(p.Title), innerWidth))
	return plotHeight + legendRowHeight*vg.Length(max(0, rows-legendFreeRows)+max(0, lines-1))
}

// draw draws title, legend, axes and data, from the top down.
func (p Plot) draw(c draw.Canvas) {
	c.SetColor(paper)
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, marginLeft, -marginRight, marginBottom, -marginTop)
	c = drawTitle(c, clean(p.Title))
	c = p.drawLegend(c)

	x, y := p.scale()
	c = drawLabels(c, clean(x.label), clean(y.label))
	g := plot.New()
	g.BackgroundColor = nil
	x.apply(&g.X)
	y.apply(&g.Y)
	g.Add(gridLines{})
	for i := range p.Markers {
		g.Add(bandPlotter{p, i})
	}
	for i := range p.Series {
		g.Add(seriesPlotter{p, i})
	}
	for i := range p.Markers {
		g.Add(markerPlotter{p, i})
	}
	g.Draw(c)
}

// clean makes text drawable: one line, and nothing that XML forbids.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ':
			return ' '
		case r == 0xFFFE || r == 0xFFFF || r == utf8.RuneError:
			return -1
		}
		return r
	}, s)
}
