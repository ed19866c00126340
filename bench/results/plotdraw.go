package results

import (
	"image/color"
	"math"
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
		{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
		{230, 159, 0, 255}, {86, 180, 233, 255}, {0, 0, 0, 255},
	}
	seriesGlyphs = [...]draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{},
	}
)

func seriesColour(i int) color.NRGBA { return seriesColours[i%len(seriesColours)] }

// seriesGlyph changes with the colour, and by one more each time the colours begin again.
func seriesGlyph(i int) draw.GlyphStyle {
	shape := seriesGlyphs[(i+i/len(seriesColours))%len(seriesGlyphs)]
	return draw.GlyphStyle{Color: seriesColour(i), Radius: vg.Points(3), Shape: shape}
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

// lineStyle is the stroke of a series.
func lineStyle(i int, s Style) draw.LineStyle {
	l := draw.LineStyle{Color: seriesColour(i), Width: vg.Points(1.5)}
	if s == DashedLine {
		l.Dashes = dashes
	}
	return l
}

// drawTitle draws the title over as many lines as it needs and returns what is left below.
func drawTitle(c draw.Canvas, title string) draw.Canvas {
	if title == "" {
		return c
	}
	sty := textStyle(12, true, ink)
	sty.YAlign = draw.YTop
	var lines []string
	for _, word := range strings.Fields(title) {
		if n := len(lines); n > 0 && sty.Width(lines[n-1]+" "+word) <= c.Size().X {
			lines[n-1] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	for _, l := range lines[:min(len(lines), 3)] {
		c.FillText(sty, vg.Point{X: c.Min.X, Y: c.Max.Y}, l)
		c.Max.Y -= vg.Points(14.5)
	}
	c.Max.Y -= vg.Points(3)
	return c
}

// drawLegend draws the series' names in rows and returns what is left below.
func (p Plot) drawLegend(c draw.Canvas) draw.Canvas {
	const sample, gap, between, rowHeight = 20, 4, 10, 13
	sty := textStyle(10, false, ink)
	sty.YAlign = draw.YCenter
	x, any := c.Min.X, false
	y := c.Max.Y - rowHeight/2
	for i, s := range p.Series {
		if s.Name == "" {
			continue
		}
		name := clean(s.Name)
		w := sample + gap + sty.Width(name)
		if any && x+w > c.Max.X {
			x, y = c.Min.X, y-rowHeight
		}
		if s.Style.line() {
			c.StrokeLine2(lineStyle(i, s.Style), x, y, x+sample, y)
		}
		if s.Style.marks() {
			c.DrawGlyphNoClip(seriesGlyph(i), vg.Point{X: x + sample/2, Y: y})
		}
		c.FillText(sty, vg.Point{X: x + sample + gap, Y: y}, name)
		x += w + between
		any = true
	}
	if any {
		c.Max.Y = y - rowHeight/2 - vg.Points(4)
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
	sty := lineStyle(s.i, se.Style)
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
			c.DrawGlyph(seriesGlyph(s.i), at)
		}
	}
}

func (p Plot) markerColour(m Marker) color.NRGBA {
	if m.Series == 0 {
		return ink
	}
	return seriesColour(m.Series - 1)
}

// bandPlotter shades a marker's interval, under everything else.
type bandPlotter struct {
	p Plot
	i int
}

func (b bandPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	m := b.p.Markers[b.i]
	if m.Low == 0 && m.High == 0 {
		return
	}
	x, _ := p.Transforms(&c)
	lo, hi := c.Min.X, c.Max.X
	if m.Low > p.X.Min {
		lo = min(x(m.Low), hi)
	}
	if m.High < p.X.Max {
		hi = max(x(m.High), lo)
	}
	shade := b.p.markerColour(m)
	shade.A = 40
	c.FillPolygon(shade, []vg.Point{{X: lo, Y: c.Min.Y}, {X: hi, Y: c.Min.Y}, {X: hi, Y: c.Max.Y}, {X: lo, Y: c.Max.Y}})
}

// markerPlotter draws a vertical line and its label, each marker's a line lower than the one before.
type markerPlotter struct {
	p Plot
	i int
}

func (mp markerPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	m := mp.p.Markers[mp.i]
	x, _ := p.Transforms(&c)
	at := x(m.X)
	if !c.ContainsX(at) || math.IsNaN(float64(at)) {
		return
	}
	line := draw.LineStyle{Color: mp.p.markerColour(m), Width: vg.Points(1.2)}
	if m.Dashed {
		line.Dashes = dashes
	}
	c.StrokeLine2(line, at, c.Min.Y, at, c.Max.Y)
	if m.Label == "" {
		return
	}
	const rowHeight, gap = 13, 3
	sty := textStyle(10, false, line.Color)
	sty.YAlign = draw.YTop
	label := clean(m.Label)
	w := sty.Width(label)
	left := at + gap
	if left+w > c.Max.X && at-gap-w >= c.Min.X {
		left = at - gap - w
	}
	top := c.Max.Y - 2 - vg.Length(mp.i)*rowHeight
	back := paper
	back.A = 215
	c.FillPolygon(back, []vg.Point{
		{X: left - 1, Y: top + 1}, {X: left + w + 1, Y: top + 1}, {X: left + w + 1, Y: top - rowHeight + 2}, {X: left - 1, Y: top - rowHeight + 2},
	})
	c.FillText(sty, vg.Point{X: left, Y: top}, label)
}
