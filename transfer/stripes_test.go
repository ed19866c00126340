package transfer

import (
	"math"
	"testing"
	"time"
)

// modelPath is a path in closed form: n connections deliver n times each, up to
// the rate, at which a queue stands.
type modelPath struct {
	rtt   time.Duration
	rate  float64 // bytes a second
	each  float64 // of one connection
	loss  float64
	short bool // the queue is too short to show: at the rate, loss grows with the connections
}

// reno is what one connection reaches at the loss of a path.
func reno(rtt time.Duration, loss float64) float64 {
	return 1.22 * 1280 / (rtt.Seconds() * math.Sqrt(loss))
}

// windowCap is what one connection reaches at best.
func windowCap(rtt time.Duration) float64 { return windowPackets * 1280 / rtt.Seconds() }

func (m modelPath) sample(n int) pathSample {
	s := pathSample{busy: true, rate: min(float64(n)*m.each, m.rate), packet: 1280, rttMin: m.rtt, rtt: m.rtt, loss: m.loss, stripes: n}
	if s.rate == m.rate && !m.short {
		s.rtt += m.rtt / 2
	}
	loss := m.loss
	// A queue that overflows now and then: of windows of w packets each, Reno loses
	// about 2.7/w².
	if w := m.rate * m.rtt.Seconds() / 1280 / float64(n); s.rate == m.rate && !m.short {
		loss += min(2.7/(w*w), 0.1)
	}
	if m.short && s.rate == m.rate {
		loss = 1e-4 * float64(n)
		s.loss = loss
	}
	s.took = max(m.rtt, minLook)
	s.sent = s.rate * s.took.Seconds() / s.packet
	s.lost = s.sent * loss
	return s
}

// drive runs the policy on a path for d and returns the number of connections at
// the end, the most on the way, and how often it changed.
func drive(p *stripePolicy, from time.Time, d time.Duration, sample func(n int) pathSample) (n, most, changes int) {
	n = p.target
	var best float64
	for at := from; at.Before(from.Add(d)); {
		s := sample(n)
		at = at.Add(s.took)
		s.at = at
		best = max(best, s.rate)
		got := p.decide(s, best)
		if got != n {
			changes++
		}
		n, most = got, max(most, got)
	}
	return n, most, changes
}

// TestStripePolicy holds the number of connections against what the path needs
// in closed form.
func TestStripePolicy(t *testing.T) {
	const ms = time.Millisecond
	capped := func(rtt time.Duration, rate float64) modelPath {
		return modelPath{rtt: rtt, rate: rate, each: windowCap(rtt)}
	}
	lossy := func(rtt time.Duration, rate, loss float64) modelPath {
		return modelPath{rtt: rtt, rate: rate, each: reno(rtt, loss), loss: loss}
	}
	for _, tc := range []struct {
		name     string
		path     modelPath
		low, top int // of the number at the end
		most     int // ever
	}{
		{"1 Mbit/s x 100 ms", capped(100*ms, 125e3), 1, 1, 4},   // 10 packets
		{"20 Mbit/s x 20 ms", capped(20*ms, 2.5e6), 1, 1, 4},    // 39 packets
		{"50 Mbit/s x 20 ms", capped(20*ms, 12.5e6/2), 4, 4, 4}, // 98 packets: enough not to lose many
		{"1 Gbit/s x 100 us", capped(ms/10, 125e6), 4, 4, 8},    // 10 packets, but so near that processors count
		{"100 Mbit/s x 70 ms", capped(70*ms, 12.5e6), 4, 4, 4},
		{"1 Gbit/s x 70 ms", capped(70*ms, 125e6), 4, 4, 4},
		{"1 Gbit/s x 300 ms", capped(300*ms, 125e6), 4, 4, 4},
		// 6.8 connections' windows hold rate times round-trip time.
		{"10 Gbit/s x 70 ms", capped(70*ms, 1.25e9), 7, 12, 12},
		// 29 do.
		{"10 Gbit/s x 300 ms", capped(300*ms, 1.25e9), 30, 48, 48},
		// 1,000 would.
		{"100 Gbit/s x 1 s", capped(time.Second, 12.5e9), 64, 64, 64},
		// 56 Reno connections at 1e-4.
		{"1 Gbit/s x 70 ms, loss 1e-4", lossy(70*ms, 125e6, 1e-4), 56, 64, 64},
		{"100 Mbit/s x 70 ms, loss 1e-4", lossy(70*ms, 12.5e6, 1e-4), 6, 12, 12},
		{"1 Gbit/s x 20 ms, loss 1e-4", lossy(20*ms, 125e6, 1e-4), 16, 32, 32},
		// More connections do not help, and are not kept.
		{"slow source", modelPath{rtt: 70 * ms, rate: 125e6, each: 5e6}, 4, 64, 64},
		{"short queue", modelPath{rtt: 70 * ms, rate: 12.5e6, each: 5e6, short: true}, 4, 4, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newStripePolicy(0, 0)
			sample := tc.path.sample
			if tc.name == "slow source" { // whatever is added
				sample = func(n int) pathSample { s := tc.path.sample(4); s.stripes = n; return s }
				tc.top, tc.most = 4, 6
			}
			n, most, changes := drive(&p, time.Unix(0, 0), 10*time.Minute+30*time.Second, sample)
			t.Logf("%d connections, at most %d, %d changes", n, most, changes)
			if n < tc.low || n > tc.top || most > tc.most {
				t.Errorf("%d connections, at most %d, want %d to %d and at most %d", n, most, tc.low, tc.top, tc.most)
			}
			// Each try that fails is two changes and doubles the pause of 10 s: no
			// more than 6 fit.
			if changes > 14 {
				t.Errorf("%d changes", changes)
			}
		})
	}
}

// TestStripePolicyHolds has what must not move the number not move it.
func TestStripePolicyHolds(t *testing.T) {
	slow := modelPath{rtt: 70 * time.Millisecond, rate: 125e6, each: 5e6}
	starved := func(n int) pathSample { s := slow.sample(n); s.busy = false; return s }
	young := func(n int) pathSample { s := slow.sample(n); s.stripes = n - 1; return s } // one is still being dialled
	looks := 0
	short := func(n int) pathSample { looks++; s := slow.sample(n); s.busy = looks%6 > 0; return s } // each transfer takes five round trips
	blind := func(n int) pathSample { s := slow.sample(n); s.rttMin = 0; return s }
	for _, tc := range []struct {
		name   string
		policy stripePolicy
		sample func(int) pathSample
		want   int
	}{
		{"chunks lack", newStripePolicy(0, 0), starved, 4},
		{"transfers end before a rate can be told", newStripePolicy(0, 0), short, 4},
		{"still dialled", newStripePolicy(0, 0), young, 4},
		{"no round trip known", newStripePolicy(0, 0), blind, 4},
		{"fixed", newStripePolicy(3, 0), slow.sample, 3},
		{"fixed, more remembered", newStripePolicy(3, 20), slow.sample, 3},
		{"remembered", newStripePolicy(0, 20), starved, 20},
		{"less remembered", newStripePolicy(0, 1), starved, 1},
		{"too many remembered", newStripePolicy(0, 1000), starved, 64},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if n, _, changes := drive(&tc.policy, time.Unix(0, 0), time.Minute, tc.sample); n != tc.want || changes != 0 {
				t.Errorf("%d connections after %d changes, want %d", n, changes, tc.want)
			}
		})
	}
}

// TestStripePolicyShrinks goes back to the first number after a quarter of an
// hour without work, not before, and grows again.
func TestStripePolicyShrinks(t *testing.T) {
	p := newStripePolicy(0, 0)
	far := modelPath{rtt: 70 * time.Millisecond, rate: 1.25e9, each: windowCap(70 * time.Millisecond)}
	start := time.Unix(0, 0)
	n, _, _ := drive(&p, start, time.Minute, far.sample)
	idle := func(n int) pathSample { return pathSample{took: time.Minute, stripes: n} }
	if got, _, _ := drive(&p, start.Add(time.Minute), 14*time.Minute, idle); got != n {
		t.Errorf("%d connections after 14 idle minutes, want %d", got, n)
	}
	if got, _, _ := drive(&p, start.Add(15*time.Minute), 2*time.Minute, idle); got != startStripes {
		t.Errorf("%d connections after 16 idle minutes, want %d", got, startStripes)
	}
	if got, _, _ := drive(&p, start.Add(17*time.Minute), time.Minute, far.sample); got != n {
		t.Errorf("%d connections when busy again, want %d", got, n)
	}
}

// TestStripePolicyFar begins with more where slow start takes longest.
func TestStripePolicyFar(t *testing.T) {
	for _, tc := range []struct {
		fixed, remembered int
		rtt               time.Duration
		want              int
	}{
		{0, 0, 99 * time.Millisecond, 4}, {0, 0, 100 * time.Millisecond, 8}, {0, 20, time.Second, 20}, {3, 0, time.Second, 3}, {0, 0, 0, 4},
	} {
		if p := newStripePolicy(tc.fixed, tc.remembered); p.met(tc.rtt) != tc.want {
			t.Errorf("%+v: %d", tc, p.target)
		}
	}
}

// TestWindowStripes is rate times round-trip time over the windows' bound.
func TestWindowStripes(t *testing.T) {
	for _, tc := range []struct {
		rate   float64
		rtt    time.Duration
		packet float64
		want   int
	}{
		{0, time.Second, 1280, 1},
		{1e9, 0, 1280, 1},
		{1e9, time.Second, 0, 1},
		{12.8e6 / 1.5, time.Second, 1280, 1},
		{12.8e6/1.5 + 1, time.Second, 1280, 2},
		{1e12, time.Second, 1280, 64},
	} {
		if got := windowStripes(tc.rate, tc.rtt, tc.packet); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}
