package planner

import "math"

// Figure is an input of which [Flips] looks for another value.
type Figure int

// The figures, in the order of the answer.
const (
	FigureGoodput Figure = iota // of the link, bits a second
	FigurePrefill               // of the replica, tokens a second over the whole prefix
	FigurePrefix                // Request.PrefixTokens, tokens
	figures
)

var figureNames = [...]string{"goodput", "prefill", "prefix"}

// String is the figure's lower-case name.
func (f Figure) String() string {
	if f < 0 || f >= figures {
		return "figure"
	}
	return figureNames[f]
}

// Flip says what one figure alone would have to be for another mode to win.
type Flip struct {
	Figure Figure
	// Known says that the figure has a value, so that there is something to vary.
	Known bool
	// Now is the figure's value: bits a second, tokens a second, tokens.
	Now float64
	// Found says that another mode wins at some value between a thousandth and a thousandfold of Now. At is the value nearest to Now, by
	// ratio, at which one does, to one part in 10⁶ (tokens: to one token), and Winner is who wins there. 0 and [ModeNone] if not.
	Found  bool
	At     float64
	Winner Mode
}

// flipSteps halves and doubles of the square root of two: 2^(20/2) is about a thousand.
const flipSteps = 20

// Flips returns, one a [Figure] and in their order, what would change the winner of [Decide]. Every figure is varied alone: with
// the prefix also what is present stays (and is at most the prefix), and MissingBytes, where it was given, grows with the missing
// tokens. Request.Previous does not count. It evaluates some hundreds of decisions, which takes about a millisecond; a range in
// which another mode wins that is narrower than 41 % of its value may be missed, as the last partial block makes of the prefix. Errors: those of Decide.
func Flips(r Request, m Model, c Compute, l Link) ([3]Flip, error) {
	var out [figures]Flip
	if err := check(&r, &m, &c, &l); err != nil {
		return out, err
	}
	r.Previous = ModeNone
	v := varied{r, m, c, l}
	winner := v.winner(FigureGoodput, 1)
	for f := range figures {
		out[f] = v.flip(f, winner)
	}
	return out, nil
}

// varied is a decision that is taken again with a figure changed.
type varied struct {
	r Request
	m Model
	c Compute
	l Link
}

// now is the figure's value; 0 if it is unknown.
func (v *varied) now(f Figure) float64 {
	switch f {
	case FigureGoodput:
		return float64(v.l.goodput())
	case FigurePrefill:
		p := priceRecompute(&v.r, &v.m, &v.c)
		if work := p.Terms[atPrefillLinear] + p.Terms[atPrefillAttention]; work > 0 {
			return float64(p.Tokens) / work
		}
	case FigurePrefix:
		return float64(v.r.PrefixTokens)
	case figures:
	}
	return 0
}

// winner is who wins with the figure k times what it is; ModeNone too where it is out of range.
func (v *varied) winner(f Figure, k float64) Mode {
	r, c, l := v.r, v.c, v.l
	switch f {
	case FigureGoodput:
		l.Goodput, l.PriorGoodput = l.Goodput*Rate(k), l.PriorGoodput*Rate(k)
	case FigurePrefill:
		c.SecondsPerToken /= k
		c.SecondsPerTokenSquared /= k
		c.PeakFLOPS *= k
	case FigurePrefix:
		r.PrefixTokens = int64(math.Round(float64(r.PrefixTokens) * k))
		r.PresentTokens = min(r.PresentTokens, r.PrefixTokens)
		if before := v.r.PrefixTokens - v.r.PresentTokens; r.MissingBytes > 0 && before > 0 {
			r.MissingBytes = Bytes(math.Round(float64(r.MissingBytes) * float64(r.PrefixTokens-r.PresentTokens) / float64(before)))
			if r.MissingBytes == 0 {
				r.MissingBytes = -1 // none; 0 would have it derived
			}
		}
	case figures:
	}
	if check(&r, &v.m, &c, &l) != nil {
		return ModeNone
	}
	var e Evaluation
	e.evaluate(&r, &v.m, &c, &l)
	return e.Winner
}

// flip looks up and down from what the figure is, the nearest steps first, and closes in on the first that flips.
func (v *varied) flip(f Figure, winner Mode) Flip {
	out := Flip{Figure: f, Now: v.now(f)}
	out.Known = out.Now > 0
	if !out.Known || winner == ModeNone {
		return out
	}
	at := func(step float64) Mode { return v.winner(f, math.Pow(2, step/2)) }
	flips := func(m Mode) bool { return m != winner && m != ModeNone }
	for i := 1.0; i <= flipSteps && !out.Found; i++ {
		for _, sign := range []float64{1, -1} {
			if !flips(at(sign * i)) {
				continue
			}
			near, far := i-1, i
			for range 40 {
				if mid := (near + far) / 2; flips(at(sign * mid)) {
					far = mid
				} else {
					near = mid
				}
			}
			value := out.Now * math.Pow(2, sign*far/2)
			if f == FigurePrefix {
				value = math.Round(value)
			}
			if !out.Found || math.Abs(math.Log(value/out.Now)) < math.Abs(math.Log(out.At/out.Now)) {
				out.Found, out.At, out.Winner = true, value, at(sign*far)
			}
		}
	}
	return out
}
