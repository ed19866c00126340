package repair

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// road is a path for an estimator: groups of 100 packets, a report each ten, 12,000 packets a second.
type road struct {
	e    *Estimator
	now  time.Time
	r    *rand.Rand
	rtt  time.Duration
	lose func() int // packets of a group
}

func newRoad(lose func(r *rand.Rand) int) *road {
	r := &road{e: NewEstimator(), now: epoch, r: rand.New(rand.NewPCG(4, 1)), rtt: 70 * time.Millisecond}
	r.lose = func() int { return lose(r.r) }
	return r
}

// drive sends groups, with parity or without it, as the estimator says.
func (r *road) drive(groups int) advice {
	for i := 0; i < groups; i += 10 {
		r.now = r.now.Add(80 * time.Millisecond)
		var d report
		for range 10 {
			x := r.lose()
			d.groups++
			d.packets += 100
			d.lost += uint64(x)
			d.squares += uint64(x * x)
		}
		if r.e.advice().off {
			r.e.path(r.now, r.rtt, r.rtt, 70*time.Millisecond, d.packets, d.lost)
			continue
		}
		r.e.path(r.now, r.rtt, r.rtt, 70*time.Millisecond, 0, 0)
		r.e.add(d)
	}
	return r.e.advice()
}

func independent(p float64) func(*rand.Rand) int {
	return func(r *rand.Rand) int {
		n := 0
		for range 100 {
			if r.Float64() < p {
				n++
			}
		}
		return n
	}
}

// TestEstimate has rates of independent loss known within a factor after 300,000
// packets, without depth, and a change followed.
func TestEstimate(t *testing.T) {
	for _, p := range []float64{1e-4, 1e-3, 1e-2} {
		r := newRoad(independent(p))
		a := r.drive(3000)
		if a.off || a.cold || a.loss < p/2 || a.loss > 2.5*p || a.clump != 1 {
			t.Errorf("loss %g: %+v", p, a)
		}
		r.lose = func() int { return independent(10 * p)(r.r) }
		if a = r.drive(500); a.loss < 10*p/3 {
			t.Errorf("loss %g after %g: %+v", 10*p, p, a)
		}
	}
}

// TestCleanGoesOff has parity end after about 1e5 packets without loss, come back at
// a loss, and end later the next time.
func TestCleanGoesOff(t *testing.T) {
	losses := 0
	r := newRoad(func(*rand.Rand) int { n := losses; losses = 0; return n })
	if a := r.drive(10); !a.cold || a.off {
		t.Errorf("at first: %+v", a)
	}
	if a := r.drive(900); a.off {
		t.Errorf("off after 91,000 packets: %+v", a)
	}
	if a := r.drive(200); !a.off {
		t.Errorf("on after 111,000 packets: %+v", a)
	}
	losses = 1
	if a := r.drive(10); a.off || a.loss < 1e-5 {
		t.Errorf("a loss does not bring it back: %+v", a)
	}
	if a := r.drive(1500); a.off {
		t.Errorf("off again after 150,000: %+v", a)
	}
	if a := r.drive(700); !a.off {
		t.Errorf("on after 220,000: %+v", a)
	}
}

// TestQueueDoesNotCount has a path lose packets only while its queue is full: parity
// ends all the same, and does not come back for them.
func TestQueueDoesNotCount(t *testing.T) {
	r := newRoad(independent(0))
	wave := func() advice {
		var a advice
		for _, rtt := range []time.Duration{80, 95, 110, 125, 139} {
			r.rtt, r.lose = rtt*time.Millisecond, func() int { return 0 }
			if rtt > 120 {
				r.lose = func() int { return independent(0.01)(r.r) }
			}
			a = r.drive(100)
		}
		return a
	}
	// In slow start the queue has shown how long it gets.
	r.rtt = 140 * time.Millisecond
	r.drive(50)
	r.rtt = 72 * time.Millisecond
	r.drive(500)
	for range 20 {
		wave()
	}
	a := wave()
	if a.loss > 1e-4 || a.clump != 1 {
		t.Errorf("%+v", a)
	}
	// The same losses without a queue count.
	r.rtt, r.lose = 71*time.Millisecond, func() int { return independent(0.01)(r.r) }
	if a = r.drive(1000); a.off || a.loss < 3e-3 {
		t.Errorf("without a queue: %+v", a)
	}
}

// TestBurstsSpread has losses in runs ask for depth, and then be met as runs.
func TestBurstsSpread(t *testing.T) {
	r := newRoad(nil)
	r.lose = func() int {
		if r.r.Float64() > 0.01 {
			return 0
		}
		depth := r.e.advice().depth
		n := 1
		for r.r.Float64() < 0.9 {
			n++
		}
		return (n + depth - 1) / depth
	}
	a := r.drive(20000)
	if a.depth != maxDepth || a.clump < 1.25 {
		t.Errorf("%+v", a)
	}
	if a.loss > 0.02 || math.IsNaN(a.clump) {
		t.Errorf("%+v", a)
	}
}

// TestShallowQueueDoesNotCount has RTTs move by less than a queue is told by. Losses
// at their peaks are hardly counted, losses at any time are.
func TestShallowQueueDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		name        string
		at          time.Duration // RTTs from which packets are lost
		loss        float64
		least, most float64 // of what is advised
	}{
		{"overflow", 74 * time.Millisecond, 0.01, 0, 2e-4},
		{"random", 0, 2e-3, 1e-3, 4e-3},
	} {
		r := newRoad(independent(0))
		var a advice
		for range 40 {
			for _, rtt := range []time.Duration{70, 71, 72, 73, 74} {
				r.rtt, r.lose = rtt*time.Millisecond, func() int { return 0 }
				if r.rtt >= c.at {
					r.lose = func() int { return independent(c.loss)(r.r) }
				}
				a = r.drive(100)
			}
		}
		if !a.off && a.loss > c.most || a.loss < c.least || c.least > 0 && a.off {
			t.Errorf("%s: %+v, want a loss of %g to %g", c.name, a, c.least, c.most)
		}
	}
}
