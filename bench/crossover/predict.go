package crossover

import (
	"slices"
	"time"

	"github.com/kvferry/kvferry/planner"
)

// inputs are what a prediction rests on.
type inputs struct {
	bytesPerToken int64
	blockTokens   int
	rtt           time.Duration
	goodput       float64 // bit/s
	stripes       int
	trips         float64 // round trips of a migration besides its bytes
	migration     float64 // seconds of each migration besides
	perToken      float64 // seconds of prefill
	fixed         float64 // seconds of each prefill besides
}

func (in inputs) link() planner.Link {
	return planner.Link{RTT: in.rtt, Goodput: planner.Rate(in.goodput), Stripes: in.stripes, FixedSeconds: in.migration}
}

func (in inputs) compute() planner.Compute {
	return planner.Compute{SecondsPerToken: in.perToken, FixedSeconds: in.fixed, QueueKnown: true}
}

// model has the preset's block, or tokens that move singly, for a crossover between blocks.
func (in inputs) model(singly bool) planner.Model {
	m := planner.Model{BytesPerToken: planner.Bytes(in.bytesPerToken), BlockTokens: in.blockTokens}
	if singly {
		m.BlockTokens = 0
	}
	return m
}

// at is the planner's price of both modes for n tokens, seconds; ok is false when it cannot price one.
func (in inputs) at(n int64, singly bool) (fetch, recompute float64, ok bool) {
	r, m := planner.Request{PrefixTokens: n, RoundTrips: in.trips}, in.model(singly)
	f, c := planner.Fetch(r, m, in.link()), planner.Recompute(r, m, in.compute())
	return f.Seconds, c.Seconds, f.Priced && c.Priced
}

// crossover is the prefix length, in tokens, from which the planner's fetch is faster than its recompute; ok is false when
// there is none up to a million tokens.
func (in inputs) crossover() (tokens float64, ok bool) {
	gain := func(n int64) float64 {
		f, c, priced := in.at(n, true)
		if !priced {
			return -1
		}
		return c - f
	}
	lo, hi := int64(0), int64(maxTokens) // recompute is cheaper at lo, fetch at hi
	if gain(hi) <= 0 {
		return 0, false
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if gain(mid) <= 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0, true
	}
	a, b := gain(lo), gain(hi)
	return float64(lo) - a/(b-a), true
}

// Shares of the predicted crossover that are measured.
var (
	fullShares  = []float64{0.25, 0.5, 0.75, 1, 1.5, 2, 3}
	quickShares = []float64{0.5, 0.75, 1, 1.5, 2}
)

// shortBlocks is how many blocks a short crossover has at most.
const shortBlocks = 4

// lengths chooses the sweep: multiples of the block about the crossover, at most longest tokens. Without a crossover they double
// from one block on. There are at least two when longest leaves room.
func lengths(in inputs, quick bool, longest int64) []int64 {
	n := int64(in.blockTokens)
	longest = longest / n * n
	shares := fullShares
	if quick {
		shares = quickShares
	}
	var out []int64
	add := func(v int64) {
		if v = min(max(v, n), longest); v > 0 && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	x, ok := in.crossover()
	if !ok || x > 2*float64(longest) {
		for v := n; len(out) < len(shares) && v <= longest; v *= 2 {
			add(v)
		}
	} else {
		for _, s := range shares {
			add(int64(s*x/float64(n)+0.5) * n)
		}
	}
	if ok && x < float64(shortBlocks*n) && len(out) < len(shares)-1 { // it rounds to few blocks: every other one leaves some for the calibration
		out = out[:0]
		for v := n; len(out) < len(shares)-1 && v <= longest; v += 2 * n {
			add(v)
		}
	}
	for v := n; len(out) < len(shares)-1 && v <= longest; v += n {
		add(v)
	}
	slices.Sort(out)
	return out
}

// beyond is how far above the crossover, as a multiple of it, the longest length stays if it can: the lines should be known on both
// sides.
const beyond = 1.4

// afford drops lengths until a round takes at most seconds by the prediction: first those that the crossover can do without, down to
// three, then the longest, down to two. all is sorted and not changed.
func afford(in inputs, all []int64, seconds float64) []int64 {
	out := slices.Clone(all)
	x, _ := in.crossover()
	for len(out) > 3 && in.round(out) > seconds {
		n := len(out)
		switch {
		case float64(out[n-2]) >= beyond*x:
			out = out[:n-1]
		case float64(out[n-2]) > x:
			out = slices.Delete(out, n-2, n-1)
		default:
			out = slices.Delete(out, 1, 2)
		}
	}
	for len(out) > 2 && in.round(out) > seconds {
		out = out[:len(out)-1]
	}
	return out
}

// writeRate is what is taken for the rate, bytes a second, at which a prefix is written, published and compared besides its
// migration.
const writeRate = 250e6

// cost is about what a length takes of a round, seconds.
func (in inputs) cost(n int64) float64 {
	fetch, recompute, ok := in.at(n, false)
	if !ok {
		return 0
	}
	return fetch + recompute + float64(n*in.bytesPerToken)/writeRate
}

func (in inputs) round(all []int64) (seconds float64) {
	for _, n := range all {
		seconds += in.cost(n)
	}
	return seconds
}
