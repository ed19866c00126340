package results

import (
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The legend's measures, in points.
const (
	legendSample    = 20 // width of the picture before a name
	legendGap       = 4
	legendBetween   = 10
	legendRowHeight = 13
	legendFreeRows  = 3 // rows beyond make the plot higher
)

// legendEntry is one name of the legend with its picture.
type legendEntry struct {
	name    string
	x       vg.Length // from the left
	row     int       // from the top
	picture func(c draw.Canvas, x, y vg.Length)
}

// legend lays out the names of series and markers in rows of the width.
func (p Plot) legend(width vg.Length) (entries []legendEntry, rows int) {
	sty := textStyle(10, false, ink)
	x := vg.Length(0)
	add := func(name string, picture func(c draw.Canvas, x, y vg.Length)) {
		name = shorten(clean(name), func(s string) bool { return legendSample+legendGap+sty.Width(s) <= width })
		if name == "" {
			return
		}
		w := legendSample + legendGap + sty.Width(name)
		if len(entries) == 0 {
			rows = 1
		} else if x+w > width {
			x = 0
			rows++
		}
		entries = append(entries, legendEntry{name, x, rows - 1, picture})
		x += w + legendBetween
	}
	for i, s := range p.Series {
		add(s.Name, func(c draw.Canvas, x, y vg.Length) {
			if s.Style.line() {
				c.StrokeLine2(p.line(i), x, y, x+legendSample, y)
			}
			if s.Style.marks() {
				c.DrawGlyphNoClip(p.glyph(i), vg.Point{X: x + legendSample/2, Y: y})
			}
		})
	}
	for _, m := range p.Markers {
		add(m.Label, func(c draw.Canvas, x, y vg.Length) {
			if m.band() {
				c.FillPolygon(p.shade(m), rectangle(x+legendSample/2-5, x+legendSample/2+5, y-5, y+5))
			}
			l := p.markerLine(m)
			if m.Dashed {
				l.Dashes = []vg.Length{2.5, 1.25} // more than one fits
			}
			c.StrokeLine2(l, x+legendSample/2, y-5, x+legendSample/2, y+5)
		})
	}
	return entries, rows
}

// drawLegend draws the legend and returns what is left below.
func (p Plot) drawLegend(c draw.Canvas) draw.Canvas {
	entries, rows := p.legend(c.Size().X)
	if rows == 0 {
		return c
	}
	sty := textStyle(10, false, ink)
	sty.YAlign = draw.YCenter
	for _, e := range entries {
		x, y := c.Min.X+e.x, c.Max.Y-legendRowHeight/2.0-vg.Length(e.row)*legendRowHeight
		e.picture(c, x, y)
		// A little higher than centred: most letters have no descent.
		c.FillText(sty, vg.Point{X: x + legendSample + legendGap, Y: y + 1}, e.name)
	}
	c.Max.Y -= vg.Length(rows)*legendRowHeight + 3
	return c
}

// shorten cuts text from its end until it fits, with an ellipsis.
func shorten(s string, fits func(string) bool) string {
	if fits(s) {
		return s
	}
	r := []rune(s)
	for len(r) > 0 && !fits(string(r)+"…") {
		r = r[:len(r)-1]
	}
	return string(r) + "…"
}
