package results

import (
	"image/color"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The colours: those of series are told apart with every kind of colour blindness (Okabe and Ito, "Color universal
// design", 2008), without the yellow, which does not show on white.
var (
	paper = color.NRGBA{255, 255, 255, 255}
	ink   = color.NRGBA{60, 60, 60, 255}
	faint = color.NRGBA{225, 225, 225, 255}

	seriesColours = [...]color.NRGBA{
		{0, 114, 178, 255},
		{213, 94, 0, 255},
		{0, 158, 115, 255},
		{204, 121, 167, 255},
		{230, 159, 0, 255},
		{86, 180, 233, 255},
		{0, 0, 0, 255},
	}
	seriesGlyphs = [...]draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{},
	}
)

func seriesColour(i int) color.NRGBA { return seriesColours[i%len(seriesColours)] }

// colour is that of the series i, or of the one it is like.
func (p Plot) colour(i int) color.NRGBA {
	if like := p.Series[i].Like; like > 0 {
		return seriesColour(like - 1)
	}
	return seriesColour(i)
}

// glyph changes with each series, and by one more each time the colours begin again.
func (p Plot) glyph(i int) draw.GlyphStyle {
	shape := seriesGlyphs[(i+i/len(seriesColours))%len(seriesGlyphs)]
	return draw.GlyphStyle{Color: p.colour(i), Radius: vg.Points(3), Shape: shape}
}

func typeface(size float64, bold bool) font.Font {
	f := font.Font{Typeface: "Liberation", Variant: "Sans"}
	if bold {
		f.Weight = xfont.WeightBold
	}
	return font.From(f, vg.Points(size))
}

func textStyle(size float64, bold bool, c color.Color) text.Style {
	return text.Style{Color: c, Font: typeface(size, bold), Handler: plot.DefaultTextHandler}
}

var dashes = []vg.Length{vg.Points(5), vg.Points(3)}

func (s Style) line() bool  { return s != MarksOnly }
func (s Style) marks() bool { return s == LinesAndMarks || s == MarksOnly }

// line is the stroke of a series.
func (p Plot) line(i int) draw.LineStyle {
	l := draw.LineStyle{Color: p.colour(i), Width: vg.Points(1.5)}
	if p.Series[i].Style == DashedLine {
		l.Dashes = dashes
	}
	return l
}

// titleLines wraps a title, over three lines at most.
func titleLines(title string, width vg.Length) []string {
	sty := textStyle(12, true, ink)
	fits := func(s string) bool { return sty.Width(s) <= width }
	var lines []string
	for word := range strings.FieldsSeq(title) {
		if n := len(lines); n > 0 && (fits(lines[n-1]+" "+word) || n == 3) {
			lines[n-1] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	for i, l := range lines {
		lines[i] = shorten(l, fits)
	}
	return lines
}

// drawTitle draws the title and returns what is left below.
func drawTitle(c draw.Canvas, title string) draw.Canvas {
	if title == "" {
		return c
	}
	sty := textStyle(12, true, ink)
	sty.YAlign = draw.YTop
	for _, l := range titleLines(title, c.Size().X) {
		c.FillText(sty, vg.Point{X: c.Min.X, Y: c.Max.Y}, l)
		c.Max.Y -= 14.5
	}
	c.Max.Y -= 3
	return c
}

// drawLabels draws the axes' labels, that of y above the data, where it takes no width, and returns what is left.
func drawLabels(c draw.Canvas, x, y string) draw.Canvas {
	sty := textStyle(11, false, ink)
	fits := func(s string) bool { return sty.Width(s) <= c.Size().X }
	if x != "" {
		sty.XAlign, sty.YAlign = draw.XCenter, draw.YBottom
		c.FillText(sty, vg.Point{X: c.Center().X, Y: c.Min.Y}, shorten(x, fits))
		c.Min.Y += 15
	}
	if y != "" {
		sty.XAlign, sty.YAlign = draw.XLeft, draw.YTop
		c.FillText(sty, vg.Point{X: c.Min.X, Y: c.Max.Y}, shorten(y, fits))
		c.Max.Y -= 17
	}
	return c
}

// gridLines draws a faint line at each tick with a label.
type gridLines struct{}

func (gridLines) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	sty := draw.LineStyle{Color: faint, Width: vg.Points(0.5)}
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if at := x(t.Value); t.Label != "" && c.ContainsX(at) {
			c.StrokeLine2(sty, at, c.Min.Y, at, c.Max.Y)
		}
	}
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if at := y(t.Value); t.Label != "" && c.ContainsY(at) {
			c.StrokeLine2(sty, c.Min.X, at, c.Max.X, at)
		}
	}
}

// seriesPlotter draws one series: bars, line, marks.
type seriesPlotter struct {
	p Plot
	i int
}

func (s seriesPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	se := s.p.Series[s.i]
	sty := s.p.line(s.i)
	if se.Style.line() {
		pts := make([]vg.Point, len(se.Points))
		for i, pt := range se.Points {
			pts[i] = vg.Point{X: x(pt.X), Y: y(pt.Y)}
		}
		c.StrokeLines(sty, c.ClipLinesXY(pts)...)
	}
	bar := draw.LineStyle{Color: sty.Color, Width: vg.Points(1)}
	for _, pt := range se.Points {
		at := vg.Point{X: x(pt.X), Y: y(pt.Y)}
		if pt.bar() && c.ContainsX(at.X) {
			lo, hi := c.Min.Y, c.Max.Y
			if pt.Low > p.Y.Min {
				lo = min(y(pt.Low), hi)
			}
			if pt.High < p.Y.Max {
				hi = max(y(pt.High), lo)
			}
			const cap = 2.5
			c.StrokeLine2(bar, at.X, lo, at.X, hi)
			c.StrokeLine2(bar, at.X-cap, lo, at.X+cap, lo)
			c.StrokeLine2(bar, at.X-cap, hi, at.X+cap, hi)
		}
		if se.Style.marks() {
			c.DrawGlyph(s.p.glyph(s.i), at)
		}
	}
}

func (m Marker) band() bool { return m.Low != 0 || m.High != 0 }

func (p Plot) markerColour(m Marker) color.NRGBA {
	if m.Series > 0 {
		return p.colour(m.Series - 1)
	}
	return ink
}

func (p Plot) markerLine(m Marker) draw.LineStyle {
	l := draw.LineStyle{Color: p.markerColour(m), Width: vg.Points(1.2)}
	if m.Dashed {
		l.Dashes = dashes
	}
	return l
}

// shade is the colour of a marker's band.
func (p Plot) shade(m Marker) color.NRGBA {
	c := p.markerColour(m)
	c.A = 40
	return c
}

func rectangle(x0, x1, y0, y1 vg.Length) []vg.Point {
	return []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}

// bandPlotter shades a marker's interval, under everything else.
type bandPlotter struct {
	p Plot
	i int
}

func (b bandPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	m := b.p.Markers[b.i]
	if !m.band() || m.High < p.X.Min || m.Low > p.X.Max {
		return
	}
	x, _ := p.Transforms(&c)
	lo, hi := c.Min.X, c.Max.X
	if m.Low > p.X.Min {
		lo = x(m.Low)
	}
	if m.High < p.X.Max {
		hi = x(m.High)
	}
	c.FillPolygon(b.p.shade(m), rectangle(lo, hi, c.Min.Y, c.Max.Y))
}

// markerPlotter draws a vertical line.
type markerPlotter struct {
	p Plot
	i int
}

func (mp markerPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	m := mp.p.Markers[mp.i]
	x, _ := p.Transforms(&c)
	if at := x(m.X); c.ContainsX(at) {
		c.StrokeLine2(mp.p.markerLine(m), at, c.Min.Y, at, c.Max.Y)
	}
}
