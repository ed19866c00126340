package planner

import (
	"errors"
	"fmt"
	"math"
)

// Split is where the two ends of hybrid are expected to meet. It is for ranking, admission and the first request: what happens is
// settled block by block, by who comes first.
type Split struct {
	// FrontTokens is s*, what the destination prefills from Request.PresentTokens on. It need not be a whole number of tokens.
	FrontTokens float64
	// TailTokens is what arrives over the link.
	TailTokens float64
	// FrontSeconds is when the front is done, and TailSeconds when the tail has landed; 0 for an end that has nothing to do.
	// They are equal wherever both have and slow start does not make the tail jump.
	FrontSeconds, TailSeconds float64
}

// Hybrid prices prefilling from the front while blocks arrive from the back, until they meet at s*:
//
//	T = T_c(s*) = T_f(s*)
//	T_c(s) = q_c + t0 + a·s + b·s²             a = 2P/F + 2b·i, b = 2·L·Hq·d/F, F = PeakFLOPS·MFU, i = Request.PresentTokens
//	T_f(s) = q_f + n_rtt·RTT + fixed + ramp + (n−s)·τ
//	s* = 2c / ((a+τ) + √((a+τ)² + 4bc))        c = q_f + n_rtt·RTT + fixed + ramp + nτ − q_c − t0
//
// and 0 if c ≤ 0, at most n. n is the tokens that are not present, and τ the bytes of the missing blocks at the slowest stage
// of link and codec, over n: they count as evenly spread. ramp is that of the bytes that do move. With a
// measured time a token b is 0, where the form is exact. It never takes longer than recompute or than fetch.
//
// On a link whose goodput is unknown, or whose RTT is, hybrid is priced at its bound, as recompute of the same tokens: a tail that never
// lands costs nothing, since the front computes on.
//
// P95 is exact where one of the two spreads is 0 (the time is monotonic in each); with both it is that of the first-order
// reliability method (Hasofer and Lind, 1974), some percent of the excess off. It is at most recompute's. It is known where both spreads are, or, on an unknown link, that of recompute.
//
// It does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func Hybrid(r Request, m Model, c Compute, l Link) ModePlan {
	if err := check(&r, &m, &c, &l); err != nil {
		return invalid(ModeHybrid, err)
	}
	fetch, recompute := priceFetch(&r, &m, &l), priceRecompute(&r, &m, &c)
	p, s := priceHybrid(&r, &m, &c, &l, &fetch, &recompute)
	return describeHybrid(&p, s, &r, &m, &c, &l)
}

// front is prefill: start + a·s + b·s² seconds for s tokens.
type front struct{ start, a, b float64 }

func (f front) seconds(s float64) float64 { return f.start + (f.a+f.b*s)*s }

// scaled is a front that takes k times as long.
func (f front) scaled(k float64) front { return front{k * f.start, k * f.a, k * f.b} }

// tail is fetch: lead + ramp + each·t seconds for t tokens.
type tail struct {
	lead, each float64 // seconds before the first byte at full pace, and a token
	// The slow start of a cold link: windows of bytes that double each round trip until they fill the path, seconds a round trip
	// and a byte, bytes a token. A window of 0 is warm.
	window, fill, rtt, perByte, wire float64
}

// scaled is a tail that takes k times as long.
func (t tail) scaled(k float64) tail {
	t.lead, t.each, t.rtt, t.perByte = k*t.lead, k*t.each, k*t.rtt, k*t.perByte
	return t
}

// balance is the s in 0..n at which the front and a tail of that lead, the ramp with it, end together.
func balance(f front, lead, each, n float64) float64 {
	c := lead + n*each - f.start
	if c <= 0 {
		return 0
	}
	k := f.a + each
	return min(n, 2*c/(k+math.Sqrt(k*k+4*f.b*c)))
}

// meet splits n tokens between the two ends so that the later of them ends first, and says when each does. Every round trip of
// slow start makes the tail longer by a step, so it tries them in turn: at most as many as windows double until they fill the path.
func meet(f front, t tail, n float64) (s float64, out Split) {
	sent, window, ramp := 0.0, t.window, 0.0 // bytes before this round trip; its window; what slow start has cost
	for rounds := 0.0; ; {
		s = balance(f, t.lead+ramp, t.each, n)
		if window == 0 || window >= t.fill || (n-s)*t.wire <= sent+window {
			break
		}
		sent, window, rounds = sent+window, 2*window, rounds+1
		next := max(ramp, rounds*t.rtt-sent*t.perByte)
		if later := balance(f, t.lead+next, t.each, n); (n-later)*t.wire < sent {
			// One more round trip does not pay: the tail is what the windows before it carry.
			s = n - sent/t.wire
			break
		}
		ramp = next
	}
	out = Split{FrontTokens: s, TailTokens: n - s}
	if s > 0 {
		out.FrontSeconds = f.seconds(s)
	}
	if s < n {
		out.TailSeconds = t.lead + ramp + (n-s)*t.each
	}
	return s, out
}

// seconds is when both ends are done.
func (s Split) seconds() float64 {
	if s.FrontTokens > 0 {
		return s.FrontSeconds
	}
	return s.TailSeconds
}

// priceHybrid prices valid inputs, from what fetch and recompute of the same inputs cost.
func priceHybrid(r *Request, m *Model, c *Compute, l *Link, fetch, recompute *Price) (Price, Split) {
	p := Price{Mode: ModeHybrid, Bytes: fetch.Bytes}
	n := float64(r.PrefixTokens - r.PresentTokens)
	_, _, unknown := r.wire(m)
	switch {
	case !recompute.Priced:
		p.refuse(recompute.Refusal)
		return p, Split{}
	case unknown != "":
		p.refuse(RefusalMissingInput)
		return p, Split{}
	case n <= 0 || p.Bytes == 0:
		p.refuse(RefusalNothingToDo)
		return p, Split{}
	case fetch.Refusal == RefusalUnstable:
		p.refuse(RefusalUnstable)
		return p, Split{}
	}
	linear, quadratic, _ := c.prefill(m)
	i := float64(r.PresentTokens)
	f := c.front(linear, quadratic, i)
	s, split := n, Split{FrontTokens: n, FrontSeconds: f.seconds(n)}
	var t tail
	if fetch.Priced {
		t = tailOf(l, fetch, n)
		s, split = meet(f, t, n)
		p.Bytes = Bytes(math.Round(float64(fetch.Bytes) * (n - s) / n))
	}
	p.Tokens = int64(math.Round(s))
	if s > 0 {
		attention := quadratic * (s * (2*i + s)) // with all tokens recompute's, bit for bit
		wait, _ := c.Queue.wait(c.FixedSeconds + linear*s + attention)
		p.price(c.QueueSeconds+wait, c.FixedSeconds, linear*s, attention, 0)
	} else {
		p.price(0, 0, 0, 0, fetch.Seconds)
	}
	p.spreadHybrid(f, t, n, c.spread(), l.spread(), recompute.P95Seconds, fetch)
	switch {
	case !r.Hybrid:
		p.refuse(RefusalUnsupported)
	case c.PrefillUnavailable:
		p.refuse(RefusalUnavailable)
	}
	return p, split
}

// front is the prefill from position i on at those prices; its queue is stable.
func (c *Compute) front(linear, quadratic, i float64) front {
	k := c.Queue.stretch()
	f := front{start: c.QueueSeconds + k*c.FixedSeconds, a: k * (linear + 2*quadratic*i), b: k * quadratic}
	if k == 1 { // else the wait is in each token
		wait, _ := c.Queue.wait(0)
		f.start += wait
	}
	return f
}

// tailOf is the tail of n tokens that a fetch moves. It is priced, and of some bytes.
func tailOf(l *Link, fetch *Price, n float64) tail {
	rate, _ := l.rate()
	wire, moved := l.moving(fetch.Bytes, rate)
	t := tail{
		lead: fetch.Terms[atEgressQueue] + fetch.Terms[atRTT] + fetch.Terms[atFetchFixed],
		each: moved * l.Queue.stretch() / n,
	}
	if l.Queue.stretch() == 1 { // else the wait is in each
		t.lead += fetch.Terms[atFetchQueue]
	}
	if l.Cold {
		t.window, _ = l.windows()
		t.rtt, t.perByte, t.wire = l.RTT.Seconds(), rate.seconds(1), float64(wire)/n
		t.fill = t.rtt / t.perByte
	}
	return t
}

// spreadHybrid sets the deviation from those of the two ends, 0 for unknown, and the P95 of recompute and fetch, which
// bound it.
func (p *Price) spreadHybrid(f front, t tail, n, compute, link, bound float64, fetch *Price) {
	if compute == 0 || fetch.Priced && link == 0 {
		return
	}
	p.P95Seconds = bound
	if fetch.Priced {
		// The two deviates that make it longest, among those as unlikely together as one of 1.645 sigma is alone.
		const steps = 8
		worst := p.Seconds
		for i := range steps + 1 {
			sin, cos := math.Sincos(math.Pi / 2 * float64(i) / steps)
			_, s := meet(f.scaled(1+z95*compute*cos), t.scaled(1+z95*link*sin), n)
			worst = max(worst, s.seconds())
		}
		if worst = min(worst, fetch.P95Seconds); worst < bound*(1-1e-12) { // else it is the same but for rounding
			p.P95Seconds = worst
		}
	}
	p.P95Seconds = max(p.P95Seconds, p.Seconds)
	p.SigmaSeconds = (p.P95Seconds - p.Seconds) / z95
}

// describeHybrid is p in words.
func describeHybrid(p *Price, s Split, r *Request, m *Model, c *Compute, l *Link) ModePlan {
	linear, attention := prefillNotes(p.Tokens, r.PresentTokens, m, c)
	queue, fixed := backlogNote(c.QueueKnown, c.QueueSeconds > 0)+c.Queue.note(), "constant cost of a prefill"
	var wait string
	rate, _ := l.rate()
	switch {
	case !p.Priced:
	case rate == 0 || l.RTT == 0:
		wait = fmt.Sprintf("the link is unknown: at most recompute, and less as blocks of the %v arrive", p.Bytes)
	case s.TailTokens == 0:
		wait = "no block can land before the front is done"
	case s.FrontTokens == 0:
		queue, fixed, linear, attention = "not waited for", "not waited for", "every block lands before prefill could start", "none"
		wait = l.movingNote(p.Bytes)
		if wire, moved := l.moving(p.Bytes, rate); moved > rate.seconds(float64(wire)) {
			wait += ", " + l.codecNote(moved)
		}
	default:
		wait = fmt.Sprintf("%v for the last %.0f tokens land by then", p.Bytes, s.TailTokens)
	}
	out := p.plan(queue, fixed, linear, attention, wait)
	out.Split = s
	switch p.Refusal { //nolint:exhaustive // those that pricing gives
	case RefusalMissingInput:
		out.Reason = unknown(missingHybrid(r, m, c))
	case RefusalUnstable:
		out.Reason = "a queue has no steady state"
		if _, stable := l.Queue.wait(0); !stable {
			out.Reason = unstable("Link.Queue", l.Queue)
		} else if _, stable := c.Queue.wait(0); !stable {
			out.Reason = unstable("Compute.Queue", c.Queue)
		}
	case RefusalNothingToDo:
		out.Reason = "no whole block is missing"
	case RefusalUnavailable:
		out.Reason = "the destination cannot prefill"
	case RefusalUnsupported:
		out.Reason = "the engine does not claim blocks before it prefills them"
	}
	return out
}

// missingHybrid names the inputs that hybrid lacks: those of prefill, and what the blocks weigh.
func missingHybrid(r *Request, m *Model, c *Compute) []string {
	var missing []string
	if _, _, known := c.prefill(m); !known {
		missing = c.missing(m)
	}
	if _, _, unknown := r.wire(m); unknown != "" {
		missing = append(missing, unknown)
	}
	return missing
}

// check joins the faults of all inputs.
func check(r *Request, m *Model, c *Compute, l *Link) error {
	return errors.Join(r.Validate(), m.Validate(), c.Validate(), l.Validate())
}
