package hybrid

import (
	"math"
	"math/rand/v2"
	"testing"
)

// uniform is a prefill of so many blocks that take as long each.
func uniform(blocks int, each float64) []float64 {
	cum := make([]float64, blocks+1)
	for k := range cum {
		cum[k] = float64(k) * each
	}
	return cum
}

// world is a random migration.
func world(rng *rand.Rand) draw {
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, rng.Float64()) }
	d := draw{
		cum: uniform(1+rng.IntN(2000), between(1e-4, 1e-1)), blockBytes: between(1e4, 1e7), rtt: between(1e-3, .5),
		rate: between(1e5, 1e11), want: 1 + rng.IntN(64), claim: 1e-6,
	}
	for k := range d.cum { // attention
		d.cum[k] += 1e-6 * rng.Float64() * float64(k) * float64(k) / float64(len(d.cum)) * d.cum[1]
	}
	d.lead = d.rtt * float64(1+rng.IntN(4))
	d.believed = d.rate * math.Exp(rng.NormFloat64())
	for k := 1; k < len(d.cum); k++ { // no block for nothing
		d.cum[k] = max(d.cum[k], d.cum[k-1]+1e-9)
	}
	return d
}

// least is the shortest time that any split into whole blocks takes, without claims, windows and take-overs.
func (d draw) least() float64 {
	n := len(d.cum) - 1
	best := math.Inf(1)
	for s := range n + 1 {
		took := d.cum[s]
		if s < n {
			took = max(took, d.lead+float64(n-s)*d.blockBytes/d.rate)
		}
		best = min(best, took)
	}
	return best
}

// Whatever the link does: every block comes from exactly one end, nothing is faster than the best split, and nothing takes longer than
// recompute, the claims, and the round trip for which blocks are waited for that were to come sooner.
func TestMeetingAlways(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var m meeting
	takeovers := 0
	for range 20_000 {
		d := world(rng)
		n := len(d.cum) - 1
		out := m.run(d)
		below := n
		for _, u := range m.units {
			if u.end != below || u.first >= u.end || u.finish < u.start || u.start < d.lead {
				t.Fatalf("units %+v of %d blocks", m.units, n)
			}
			below = u.first
		}
		if below != out.front || out.front != m.computed {
			t.Fatalf("the front has %d blocks, the tail those from %d: %+v", out.front, below, d)
		}
		if least := d.least(); out.seconds < least*(1-1e-9) {
			t.Fatalf("%v s, the best split takes %v s: %+v", out.seconds, least, out)
		}
		if limit := d.cum[n]*1.05 + float64(n)*d.claim + d.rtt; out.seconds > limit {
			t.Fatalf("%v s, recompute %v s, a round trip %v s: %+v\n%d blocks, %v s each, rate %v, believed %v, lead %v, block %v", out.seconds, d.cum[n], d.rtt, out, n, d.cum[1], d.rate, d.believed, d.lead, d.blockBytes)
		}
		if limit := 2*max(d.rate, d.believed)*max(d.rtt, leastWindow.Seconds()) + d.blockBytes; out.duplicate > limit {
			t.Fatalf("%v duplicate bytes, at most %v: %+v", out.duplicate, limit, out)
		}
		takeovers += out.takeovers
	}
	if takeovers < 1000 {
		t.Errorf("only %d take-overs", takeovers)
	}
}

// By hand.
func TestMeetingByHand(t *testing.T) {
	t.Parallel()
	base := draw{cum: uniform(100, .01), blockBytes: 1e6, rtt: .02, lead: .02, rate: 1e8, believed: 1e8, want: 1, claim: 0}
	var m meeting
	// A block takes 10 ms at either end, the link starts 20 ms late: 51 blocks against 49.
	if out := m.run(base); math.Abs(out.seconds-.51) > 1e-9 || out.front != 51 || out.takeovers > 2 {
		t.Errorf("equal ends: %+v", out)
	}
	dead := base
	dead.rate = 1 // nothing ever lands, and 100 MB/s are believed
	if out := m.run(dead); math.Abs(out.seconds-1) > .021 || out.front != 100 || out.duplicate > 1 {
		t.Errorf("a dead link: %+v", out)
	}
	fast := base
	fast.rate, fast.believed = 1e12, 1e12
	if out := m.run(fast); math.Abs(out.seconds-.0201) > 1e-9 || out.front != 0 {
		t.Errorf("a link for nothing: %+v", out) // all is asked for at once, and lands sooner than the front could prefill any
	}
	slow := base
	slow.cum = uniform(100, 10)
	if out := m.run(slow); out.front != 1 || math.Abs(out.seconds-10) > 1e-9 {
		t.Errorf("a slow front: %+v", out) // it claims one block at once
	}
	one := base
	one.cum = uniform(1, .01)
	if out := m.run(one); out.seconds != .01 || out.front != 1 {
		t.Errorf("one block: %+v", out)
	}
	late := base
	late.lead = 5 // the front is done before the first byte
	if out := m.run(late); math.Abs(out.seconds-1) > 1e-9 || out.front != 100 || len(m.units) != 0 {
		t.Errorf("a late tail: %+v", out)
	}
}

// A meeting allocates nothing once its list has grown, whatever is drawn.
func TestMeetingIsReused(t *testing.T) {
	d := draw{cum: uniform(1000, .001), blockBytes: 1e6, rtt: .02, lead: .06, rate: 1e9, believed: 1e9, want: 32, claim: 1e-4}
	var m meeting
	first := m.run(d)
	if n := testing.AllocsPerRun(20, func() { m.run(d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if again := m.run(d); again != first {
		t.Errorf("%+v, then %+v", first, again)
	}
}
