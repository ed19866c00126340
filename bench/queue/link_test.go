package queue

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
)

// inVirtualTime measures the link in a bubble, where no machine is slow.
func inVirtualTime(t *testing.T, cfg Config) (res *Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg = cfg.withDefaults()
		res = &Result{cfg: cfg}
		if err := measureLink(t.Context(), cfg, res); err != nil {
			t.Fatal(err)
		}
	})
	return res
}

// TestEndsWhenKnown: a measurement with the defaults ends before its time, as soon as its mean is known, and holds what that look
// saw.
func TestEndsWhenKnown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("the same as the next, for longer")
	}
	res := inVirtualTime(t, Config{Jobs: 100_000, Seed: 4, LinkUtilizations: []float64{.3}})
	p := res.Points[0]
	if q := p.QUIC; !q.Conclusive || !q.Overlaps || q.HalfWidth > .1 || q.Seconds > 72 || p.Jobs < 200 || len(res.warnings) != 0 {
		t.Errorf("%d jobs, %+v, warnings %q", p.Jobs, *q, res.warnings)
	}
}

// TestLinkFollowsTheLaw: waits over QUIC overlap the simulator's at 0.3 and 0.6, whose means are known well, with each sender under
// its own law; daemons' sender keeps the mean below M/M/1's, and serving in turn keeps it.
func TestLinkFollowsTheLaw(t *testing.T) {
	t.Parallel()
	cfg := Config{Jobs: 100_000, Seed: 1, Precision: -1, Duration: 40 * time.Second}
	if testing.Short() {
		cfg.Jobs, cfg.Duration = 50_000, 10*time.Second
	}
	res := inVirtualTime(t, cfg)
	for _, l := range []*Link{res.Link, res.Sharing} {
		if !l.Calibrated || l.R2 < .999 || l.RateBps < .85*60e6 || l.RateBps > 60e6 || l.UnloadedSeconds < .0095 || l.UnloadedSeconds > .015 {
			t.Errorf("lone transfers: %+v", *l)
		}
	}
	// A window of the path and its queue, of one round trip, is on its way.
	if a := res.Link.AheadSeconds; a < .002 || a > .03 {
		t.Errorf("%v s are on their way", a)
	}
	for _, p := range res.Points {
		q := p.QUIC
		best := q.Replays[0]
		if !q.Overlaps {
			t.Errorf("at %v: measured %v %+v, simulated %+v", p.Utilization, p.Wait.Measured, p.WaitInterval, q.Simulated)
		}
		ratio := p.Wait.Measured / p.Wait.MM1
		switch {
		case q.Law == LinkLaw && (best.Discipline != LinkLaw || ratio > .85):
			t.Errorf("at %v: nearest %+v, %.2f of M/M/1", p.Utilization, best, ratio)
		case q.Law == SharingLaw && (ratio < .85 || ratio > 1.15):
			t.Errorf("at %v in turn: %.2f of M/M/1", p.Utilization, ratio)
		}
		if best.Discipline == "fifo" || best.Correlation < .85 || math.Abs(best.Difference.Mean) > .15*p.ServiceSeconds {
			t.Errorf("at %v: nearest %+v", p.Utilization, best)
		}
		if !testing.Short() && (!q.Conclusive || q.HalfWidth > .1 || q.Detectable > .2 || q.Detectable <= q.HalfWidth || p.Jobs < 200 || q.Seconds > 45) {
			t.Errorf("at %v: %d jobs, %+v", p.Utilization, p.Jobs, *q)
		}
		if q.LateSeconds != 0 {
			t.Errorf("at %v: late by %v in virtual time", p.Utilization, q.LateSeconds)
		}
		if rho := p.Utilization; q.Law == SharingLaw && rho > .5 && *p.SizeSlope < .15*rho/(1-rho) { // first come, first served has none; at 0.3 too few jobs meet for a slope
			t.Errorf("at %v: slope %v, want a good part of %v", rho, *p.SizeSlope, rho/(1-rho))
		}
		// The backlog at the source leaves out what is in flight, so it is a little low.
		if b, w := p.Wait.Backlog, q.Raw.Mean; q.Law == SharingLaw && (b < .4*w || b > 1.5*w) {
			t.Errorf("at %v: mean backlog %v, wait %v", p.Utilization, b, w)
		}
	}
	if len(res.Points) != 4 || len(res.warnings) != 0 {
		t.Errorf("%d points, warnings %q", len(res.Points), res.warnings)
	}
}

// TestWindowsTooSmall: a link whose windows a lone small transfer cannot fill is no single server, and that is said.
func TestWindowsTooSmall(t *testing.T) {
	t.Parallel()
	m, err := wan.Parse("rtt=20ms,rate=400Mbps,queue=64KiB")
	if err != nil {
		t.Fatal(err)
	}
	res := inVirtualTime(t, Config{WAN: m, JobBytes: 512 << 10, ChunkBytes: 1 << 20, Stripes: 8, Duration: time.Second, LinkUtilizations: []float64{.3}, Jobs: 10_000})
	if res.Link.Calibrated {
		t.Errorf("taken for one server: %+v", *res.Link)
	}
	if say := res.conclude(); !strings.Contains(say, "nothing can be said") {
		t.Errorf("concluded %q", say)
	}
	if len(res.warnings) == 0 || !strings.Contains(res.warnings[0], "not comparable with the laws") {
		t.Errorf("warnings %q", res.warnings)
	}
}

func TestInterruptedLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("that will do")
		// The simulator takes no virtual time, and the calibration about five seconds.
		timer := time.AfterFunc(22*time.Second, func() { cancel(stop) })
		defer timer.Stop()
		res, err := Run(ctx, Config{Quick: true, Jobs: 2000, Replications: 3, Duration: 12 * time.Second, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		if !res.Interrupted() || res.Crossover == nil || res.Link == nil {
			t.Errorf("interrupted %v, crossover %v, link %v", res.Interrupted(), res.Crossover, res.Link)
		}
		got := 0
		for _, p := range res.Points {
			if p.QUIC != nil {
				got++
			}
		}
		if got != 1 {
			t.Errorf("%d points over QUIC, want the first of two", got)
		}
		f, err := res.File([]string{"test"})
		if err != nil || f.Validate() != nil || !f.Interrupted {
			t.Errorf("file %v, %v", err, f.Validate())
		}
	})
}

// TestLostLink: a fault of the link is an error that comes with what was measured before.
func TestLostLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := DefaultWAN()
		m.Loss = 1
		res, err := Run(t.Context(), Config{Quick: true, Jobs: 2000, Replications: 3, WAN: m})
		if err == nil || !strings.Contains(err.Error(), "set up link") {
			t.Errorf("error %v", err)
		}
		if res == nil || len(res.Points) == 0 || res.Crossover == nil || res.Interrupted() {
			t.Errorf("result %+v", res)
		}
	})
}
