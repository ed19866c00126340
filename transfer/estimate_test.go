package transfer

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/transfer/codec"
)

// near compares within a relative error.
func near(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if math.Abs(got-want) > rel*math.Abs(want)+1e-12 {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// TestGoodputEstimate holds the average to its closed form: the second read
// replaces a cold first one, and what lacked chunks is left out.
func TestGoodputEstimate(t *testing.T) {
	now := time.Unix(1000, 0)
	read := func(m *estimator, rate, starved float64) {
		now = now.Add(time.Second)
		m.transferEnded(int64(rate), time.Second, starved, now)
	}
	m := newEstimator(Estimates{}, now)
	if e := m.estimates(now, 0, 0); e != (Estimates{}) {
		t.Errorf("at first %+v", e)
	}
	read(m, 1e6, 0) // cold
	if e := m.goodput.estimate(now); e != (Estimate{Value: 1e6, Spread: 5e5, Samples: 1, Basis: Measured}) {
		t.Errorf("cold %+v", e)
	}
	read(m, 1e5, 0.9) // lacked chunks
	near(t, "goodput after one that lacked chunks", m.goodput.value, 1e6, 0)
	read(m, 10e6, 0)
	if e := m.goodput.estimate(now); e.Value != 10e6 || e.Samples != 1 {
		t.Errorf("the first warm one %+v", e)
	}
	read(m, 11e6, 0)
	near(t, "mean of two", m.goodput.value, 10e6+0.3*1e6, 1e-12)
	near(t, "spread of two", m.goodput.estimate(now).Spread, 1e6/math.Sqrt2, 1e-12)
	// Alternating samples: value and spread settle at what the recursion has for
	// fixed points.
	for range 200 {
		read(m, 9e6, 0.4)
		read(m, 11e6, 0)
	}
	// After 11: v = 11 - 0.7·(11-u), u = 9 + 0.7·(v-9).
	v := (11 - 0.7*11 + 0.7*(9-0.7*9)) / (1 - 0.49)
	near(t, "mean of many", m.goodput.value, v*1e6, 1e-9)
	if s := m.goodput.estimate(now).Spread; s < 0.9e6 || s > 1.1e6 {
		t.Errorf("spread of many %g, the samples lie 1e6 from their mean", s)
	}
	if e := m.goodput.estimate(now.Add(time.Minute)); e.Age != time.Minute || e.Samples != 402 {
		t.Errorf("a minute later %+v", e)
	}
}

// TestPersistedEstimates begins with what was remembered, older by then, and lets
// measurements replace it one by one.
func TestPersistedEstimates(t *testing.T) {
	now := time.Unix(1000, 0)
	old := func(v float64, age time.Duration) Estimate {
		return Estimate{Value: v, Spread: v / 8, Samples: 9, Age: age, Basis: Measured}
	}
	in := Estimates{
		Goodput: old(1e8, time.Hour), Capacity: old(1.2e8, time.Minute), RTTMin: old(0.07, time.Second), RTTSmoothed: old(0.1, 2*time.Second),
		Loss: old(1e-3, time.Hour), Ramp: old(0.6, 5*time.Hour), Stripes: 9,
	}
	m := newEstimator(in, now)
	want := in
	for _, e := range []*Estimate{&want.Goodput, &want.Capacity, &want.RTTMin, &want.RTTSmoothed, &want.Loss, &want.Ramp} {
		e.Basis, e.Age = Persisted, e.Age+time.Minute
	}
	now = now.Add(time.Minute)
	if d := cmp.Diff(want, m.estimates(now, 0, 0)); d != "" {
		t.Error(d)
	}
	// A cold read says less than a remembered one.
	m.transferEnded(1e6, time.Second, 0, now)
	if e := m.goodput.estimate(now); e.Value != 1e8 || e.Basis != Persisted {
		t.Errorf("after a cold read %+v", e)
	}
	m.transferEnded(2e6, time.Second, 0, now)
	if e := m.goodput.estimate(now); e.Value != 2e6 || e.Basis != Measured {
		t.Errorf("after a warm read %+v", e)
	}
	e := m.estimates(now, 20*time.Millisecond, 30*time.Millisecond)
	if e.RTTMin.Basis != Measured || e.RTTMin.Age != 0 || e.Capacity.Basis != Persisted || e.Loss.Basis != Persisted {
		t.Errorf("with a live connection %+v", e)
	}
	near(t, "least round trip", e.RTTMin.Value, 0.02, 1e-12)
	near(t, "smoothed round trip", e.RTTSmoothed.Value, 0.03, 1e-12)
	near(t, "spread of the round trip", e.RTTMin.Spread, 0.01, 1e-9)
}

// TestPathEstimates takes capacity, loss and ramp from windows.
func TestPathEstimates(t *testing.T) {
	const tick = 70 * time.Millisecond
	now := time.Unix(1000, 0)
	m := newEstimator(Estimates{}, now)
	look := func(rate, lost float64, busy, full bool) {
		now = now.Add(tick)
		s := pathSample{at: now, took: tick, busy: busy, rate: rate, packet: 1280, sent: 1000, lost: lost, rttMin: tick, rtt: tick}
		if full {
			s.rtt *= 2
		}
		m.observe(s)
	}
	// Slow start doubles six times, overflows, and the rate is reached.
	for i := range 6 {
		look(float64(int(1)<<i), 0, true, false)
	}
	look(60, 0, true, true)
	look(59, 900, true, true)
	look(60, 200, true, false) // losses of the queue that stood just before
	look(60, 0, true, false)
	look(30, 0, false, false) // chunks lack
	m.transferEnded(100, time.Second, 0, now)
	e := m.estimates(now, 0, 0)
	if c := e.Capacity; c.Value != 60 || c.Basis != Measured || c.Samples != 10 || c.Age != tick {
		t.Errorf("capacity %+v", c) // the last of those at 60
	}
	if r := e.Ramp; r.Basis != Measured {
		t.Errorf("ramp %+v", r)
	}
	near(t, "ramp", e.Ramp.Value, 7*tick.Seconds(), 1e-9) // the seventh look is the first at 0.9 of 60
	if l := e.Loss; l.Value != 0 || l.Basis != Measured || l.Samples != 7000 {
		t.Errorf("loss %+v", l)
	}
	// Losses without a queue are the path's.
	for range 10 {
		look(60, 2, true, false)
	}
	near(t, "loss", m.loss(now).Value, 20.0/17000, 1e-9)
	near(t, "loss that the policy sees", m.randomLoss(), 20.0/17000, 1e-9)
	near(t, "spread of the loss", m.loss(now).Spread, math.Sqrt(20.0/17000*(1-20.0/17000)/17000), 1e-9)
	// The fastest window outlives the others by ten minutes.
	for range windowsKept {
		look(40, 0, true, false)
	}
	near(t, "capacity past the ring", m.capacity(now).Value, 60, 0)
	now = now.Add(bestKept)
	look(40, 0, true, false)
	near(t, "capacity ten minutes later", m.capacity(now).Value, 40, 0)
	if len(m.windows) != windowsKept || m.loss(now).Value != 0 {
		t.Errorf("%d windows, loss %v", len(m.windows), m.loss(now))
	}
	// A transfer that ended in slow start has no ramp.
	short := newEstimator(Estimates{}, now)
	m = short
	for i := range 5 {
		look(float64(int(1)<<i), 0, true, false)
	}
	m.transferEnded(100, time.Second, 0, now)
	if r := m.estimates(now, 0, 0).Ramp; r.Known() {
		t.Errorf("ramp of a transfer that ended in it %+v", r)
	}
}

// TestBases names each.
func TestBases(t *testing.T) {
	for b, want := range map[Basis]string{Unknown: "unknown", Measured: "measured", Persisted: "persisted", Configured: "configured", 99: "unknown"} {
		if b.String() != want || (Estimate{Basis: b}).Known() != (b != Unknown) {
			t.Errorf("%d is %q", b, b)
		}
	}
}

// TestCodingEstimates: what codecs make of one kind of page does not go into another's, and a read of several kinds into none's.
func TestCodingEstimates(t *testing.T) {
	now := time.Unix(1000, 0)
	m := newEstimator(Estimates{}, now)
	m.coded(codec.BF16, true, 1.5, 1e9, now)
	m.coded(codec.FP8, true, 1.1, 5e8, now)
	m.coded(codec.Unknown, false, 3, 2e9, now)
	m.coded(codec.FP8, true, 1.2, 0, now) // its rate is not known
	e := m.estimates(now, 0, 0)
	near(t, "ratio of BF16", e.Coding[codec.BF16].Ratio.Value, 1.5, 1e-9)
	near(t, "ratio of FP8", e.Coding[codec.FP8].Ratio.Value, 1.13, 1e-9) // 1.1 + 0.3 (1.2 - 1.1)
	near(t, "rate of FP8", e.Coding[codec.FP8].CodecRate.Value, 5e8, 1e-9)
	near(t, "ratio of all", e.Ratio.Value, 1.5+0.3*(1.1-1.5)+0.3*(3-1.38)+0.3*(1.2-1.866), 1e-9)
	if e.Coding[codec.FP16].Ratio.Known() || e.Coding[codec.Unknown].Ratio.Known() || e.Coding[codec.FP8].CodecRate.Samples != 1 {
		t.Errorf("%+v", e.Coding)
	}
	again := newEstimator(e, now).estimates(now.Add(time.Second), 0, 0)
	if c := again.Coding[codec.FP8]; c.Ratio.Value != e.Coding[codec.FP8].Ratio.Value || c.Ratio.Basis != Persisted || c.CodecRate.Basis != Persisted || again.Coding[codec.FP16].Ratio.Known() {
		t.Errorf("recalled %+v", again.Coding)
	}
}

// TestElementOfPairs: a transfer has a kind where all its memories do.
func TestElementOfPairs(t *testing.T) {
	of := func(kinds ...codec.Element) pairs {
		var p pairs
		for _, k := range kinds {
			p.mems = append(p.mems, &memory{Memory: Memory{Element: k}})
		}
		return p
	}
	for _, tc := range []struct {
		p    pairs
		want codec.Element
		ok   bool
	}{
		{of(codec.BF16, codec.BF16), codec.BF16, true},
		{of(codec.BF16, codec.FP8), codec.Unknown, false},
		{of(codec.Unknown, codec.FP8), codec.Unknown, false},
		{of(codec.Element(200)), 200, false},
		{of(codec.Opaque), codec.Opaque, true},
	} {
		if e, ok := tc.p.element(); e != tc.want && ok || ok != tc.ok {
			t.Errorf("%v, %v, want %v, %v", e, ok, tc.want, tc.ok)
		}
	}
}
