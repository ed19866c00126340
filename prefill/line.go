package prefill

import "math"

// line is seconds over computed tokens, fitted by least squares in relative errors: a long request does not drown what the
// short ones say of the overhead. Its zero value is empty.
type line struct {
	w, wx, wy, wxx, wxy float64
	least               float64 // seconds of the shortest request
	min, max            float64 // tokens
}

// add takes in a request that computed so many tokens in so many seconds.
func (l *line) add(tokens int, seconds float64) {
	x, y := float64(tokens), max(seconds, 1e-9)
	if l.w == 0 {
		l.least, l.min, l.max = y, x, x
	}
	l.least, l.min, l.max = min(l.least, y), min(l.min, x), max(l.max, x)
	w := 1 / (y * y)
	l.w += w
	l.wx += w * x
	l.wy += w * y
	l.wxx += w * x * x
	l.wxy += w * x * y
}

// fit is the overhead of a request and the time of a token, neither negative, the overhead no more than the shortest request
// took; ok is false until there are two lengths.
func (l *line) fit() (overhead, perToken float64, ok bool) {
	det := l.w*l.wxx - l.wx*l.wx
	if l.max <= l.min || !(det > 1e-12*l.w*l.wxx) {
		return 0, 0, false
	}
	overhead = (l.wxx*l.wy - l.wx*l.wxy) / det
	switch clamped := math.Min(math.Max(overhead, 0), l.least); {
	case clamped != overhead: // the best slope through that
		overhead = clamped
		perToken = (l.wxy - overhead*l.wx) / l.wxx
	default:
		perToken = (l.w*l.wxy - l.wx*l.wy) / det
	}
	return overhead, math.Max(perToken, 0), true
}
