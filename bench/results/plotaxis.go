package results

import (
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

// scale is an axis ready to draw: its range, ticks and label.
type scale struct {
	label    string
	log      bool
	min, max float64
	ticks    []plot.Tick
}

// scale works out both axes from what is drawn.
func (p Plot) scale() (x, y scale) {
	xs, ys := newExtent(p.X), newExtent(p.Y)
	for _, s := range p.Series {
		for _, pt := range s.Points {
			xs.add(pt.X)
			ys.add(pt.Y)
			if pt.bar() {
				ys.add(pt.Low)
				ys.add(pt.High)
			}
		}
	}
	for _, m := range p.Markers {
		xs.add(m.X)
	}
	return xs.scale(6), ys.scale(5)
}

// extent is the range of what an axis has to show.
type extent struct {
	axis     Axis
	min, max float64
}

func newExtent(a Axis) *extent { return &extent{a, math.Inf(1), math.Inf(-1)} }

func (e *extent) add(v float64) {
	if e.axis.Log && v < 1/largestDrawn {
		return
	}
	e.min, e.max = min(e.min, v), max(e.max, v)
}

// scale pads the range, chooses ticks (about so many on a linear axis) and a prefix for the unit.
func (e *extent) scale(about int) scale {
	s := scale{log: e.axis.Log, min: e.axis.Min, max: e.axis.Max}
	if s.min == 0 && s.max == 0 {
		s.min, s.max = e.padded()
	}
	unit, divisor := axisUnit(e.axis.Unit, max(math.Abs(s.min), math.Abs(s.max)))
	if s.log && math.Log10(s.max/s.min) >= 0.7 {
		s.ticks = logTicks(s.min, s.max)
		for i, t := range s.ticks {
			if t.Label != "" && prefixable(e.axis.Unit) {
				s.ticks[i].Label = Format(t.Value, e.axis.Unit)
			}
		}
		if prefixable(e.axis.Unit) {
			unit = ""
		}
	} else {
		s.ticks = linearTicks(s.min/divisor, s.max/divisor, about)
		for i := range s.ticks {
			s.ticks[i].Value *= divisor
		}
	}
	s.label = e.axis.Label
	if unit != "" && unit != "1" {
		s.label = strings.TrimSpace(s.label + " (" + unit + ")")
	}
	return s
}

// padded returns the data's range with a little room, from zero when the data comes near it.
func (e *extent) padded() (lo, hi float64) {
	lo, hi = e.min, e.max
	if lo > hi {
		return 0, 1
	}
	if e.axis.Log {
		room := math.Pow(hi/lo, 0.05)
		if room < 1.05 {
			room = 1.05
		}
		return lo / room, hi * room
	}
	if lo == hi {
		room := max(math.Abs(lo)/2, 1e-9)
		return lo - room, hi + room
	}
	room := 0.05 * (hi - lo)
	switch {
	case lo >= 0 && lo < 0.4*hi:
		return 0, hi + room
	case hi <= 0 && hi > 0.4*lo:
		return lo - room, 0
	}
	return lo - room, hi + room
}

func prefixable(unit string) bool {
	return unit == "bps" || unit == "B" || unit == "s" || unit == "Hz"
}

// axisUnit returns the unit with the prefix for numbers up to largest, and what one of it is in the unit.
func axisUnit(unit string, largest float64) (prefixed string, divisor float64) {
	if !prefixable(unit) || largest == 0 {
		return unit, 1
	}
	text := Format(largest, unit)
	_, prefixed, _ = strings.Cut(text, " ")
	switch prefix := strings.TrimSuffix(prefixed, unit); prefix {
	case "k":
		return prefixed, 1e3
	case "M":
		return prefixed, 1e6
	case "G":
		return prefixed, 1e9
	case "T":
		return prefixed, 1e12
	case "P":
		return prefixed, 1e15
	case "Ki":
		return prefixed, 1 << 10
	case "Mi":
		return prefixed, 1 << 20
	case "Gi":
		return prefixed, 1 << 30
	case "Ti":
		return prefixed, 1 << 40
	case "Pi":
		return prefixed, 1 << 50
	case "m":
		return prefixed, 1e-3
	case "µ":
		return prefixed, 1e-6
	case "n":
		return prefixed, 1e-9
	}
	return unit, 1
}

// linearTicks are at multiples of 1, 2, 2.5 or 5 times a power of ten, about so many of them.
func linearTicks(lo, hi float64, about int) []plot.Tick {
	raw := (hi - lo) / float64(about)
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * power
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*power >= raw*0.999 {
			step = m * power
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+1e-9*step && len(ticks) < 50; i++ {
		v := i * step
		ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
		if i+1 == i { // the range is narrower than the numbers can tell apart
			break
		}
	}
	return ticks
}

// logTicks are at the decades with minor ones between; with few decades 2 and 5 have labels too.
func logTicks(lo, hi float64) []plot.Tick {
	decades := math.Log10(hi / lo)
	every := max(1, int(math.Ceil(decades/8)))
	var ticks []plot.Tick
	for d := int(math.Floor(math.Log10(lo))); d <= int(math.Ceil(math.Log10(hi))) && d <= 308; d++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow(10, float64(d))
			if v < lo*(1-1e-9) || v > hi*(1+1e-9) {
				continue
			}
			t := plot.Tick{Value: v}
			switch {
			case m == 1 && d%every == 0, (m == 2 || m == 5) && decades <= 2.5:
				t.Label = tickLabel(v)
			case every > 1:
				continue
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// tickLabel is short: 16k, 2.5M, 0.001.
func tickLabel(v float64) string {
	if a := math.Abs(v); a >= 999.5 && a < 1e15 {
		return strings.Replace(prefixed(v, "", 1000, []string{"", "k", "M", "G", "T", "P"}), " ", "", 1)
	}
	return formatNumber(round4(v))
}

// apply sets a gonum axis.
func (s scale) apply(a *plot.Axis) {
	a.Min, a.Max = s.min, s.max
	a.Tick.Marker = plot.ConstantTicks(s.ticks)
	if s.log {
		a.Scale = plot.LogScale{}
	}
	a.Padding = 0
	a.LineStyle.Color, a.LineStyle.Width = ink, vg.Points(0.7)
	a.Tick.LineStyle = a.LineStyle
	a.Tick.Length = vg.Points(4)
	a.Tick.Label.Font = typeface(11, false)
	a.Tick.Label.Color = ink
}
