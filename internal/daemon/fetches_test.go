package daemon

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Whatever was added, the cost is within its bounds; of migrations that all take the same beyond their price it is that.
func TestFetchesSum(t *testing.T) {
	now := time.Now()
	tenth := func(bytes int64) float64 { return float64(bytes) / 10 }
	of := func(n int, actual func(i int) float64) pastFetches {
		f := &fetches{}
		for i := range n {
			f.add(3, actual(i), now)
		}
		return f.sum(now, tenth)
	}
	same := func(int) float64 { return 0.32 }
	for _, tc := range []struct {
		name          string
		n             int
		actual        func(i int) float64
		fixed, spread float64
	}{
		{"none", 0, same, 0, 0},
		{"too few", 2, same, 0, 0},
		{"three", 3, same, 0.02, 0},
		{"five", 5, same, 0.02, 0.01},
		{"faster than priced", 9, func(int) float64 { return 0.2 }, 0, 1.4826 / 3},
		{"far slower", 9, func(int) float64 { return 1e6 }, 1.3, 1},
		{"a few outliers", 9, func(i int) float64 {
			if i < 4 {
				return 9
			}
			return 0.33
		}, 0.03, 0.01},
		{"old ones go", 4 + keptFetches, func(i int) float64 {
			if i < 4 {
				return 9
			}
			return 0.33
		}, 0.03, 0.01},
		{"spread", 9, func(i int) float64 { return 0.32 + 0.032*float64(i-4) }, 0.02, 1.4826 * 0.064 / 0.32},
	} {
		got := of(tc.n, tc.actual)
		if math.Abs(got.fixed-tc.fixed) > 1e-9 || math.Abs(got.spread-tc.spread) > 1e-9 || (got.source != "") != (tc.n >= leastFixed) {
			t.Errorf("%s: %+v, want %v and %v", tc.name, got, tc.fixed, tc.spread)
		}
	}
	f := &fetches{}
	for range 5 {
		f.add(3, 0.4, now.Add(-fetchMaxAge-time.Second))
	}
	if got := f.sum(now, tenth); got != (pastFetches{}) {
		t.Errorf("of an hour ago: %+v", got)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		f := &fetches{}
		for range rng.IntN(40) {
			f.add(1+rng.Int64N(1<<40), math.Exp(20*rng.Float64()-10), now)
		}
		got := f.sum(now, func(bytes int64) float64 { return 1e-9 * float64(bytes) })
		if err := (planner.Link{FixedSeconds: got.fixed, Spread: got.spread}).Validate(); err != nil || got.spread > 1 {
			t.Fatalf("%+v: %v", got, err)
		}
	}
}

// Of normally distributed times the spread is about their standard deviation.
func TestFetchesSpreadAgainstDraws(t *testing.T) {
	now := time.Now()
	rng := rand.New(rand.NewPCG(3, 4))
	var all []float64
	for range 400 {
		f := &fetches{}
		for range keptFetches {
			f.add(10, 1+0.1+0.11*rng.NormFloat64(), now)
		}
		all = append(all, f.sum(now, func(int64) float64 { return 1 }).spread)
	}
	if got := median(all); math.Abs(got-0.1) > 0.015 {
		t.Errorf("spread %v, want 0.1", got)
	}
}

// What migrations take beyond their price is learned and charged as a term: then the price holds. Nothing is learned from one that
// moves nothing, that shares the link, or that replicates blocks.
func TestFixedCostIsLearned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(_ string, c *Config, _ *Parts) {
			c.Link.RoundTrips = 1 // of the three that there are: the rest is constant
		})
		term := func(p *pb.Plan) *pb.PlanTerm {
			for _, m := range p.GetModes() {
				for _, tm := range m.GetTerms() {
					if m.GetMode() == pb.Mode_MODE_FETCH && tm.GetName() == planner.TermFixed {
						return tm
					}
				}
			}
			t.Fatalf("no term in %v", p)
			return nil
		}
		plan := func(session string) *pb.Plan {
			req := request(session)
			req.Mode = pb.Mode_MODE_FETCH
			resp, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: req})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetPlan()
		}
		const blocks = 300 // more than what a goodput is measured from
		for i := range 9 {
			name := string(rune('a' + i))
			r.settle() // the source keeps the blocks until it hears of the end
			r.ea.session(name, blocks)
			if got := term(plan(name)); i < 4 && got.GetSeconds() != 0 { // the first is cold, three are too few
				t.Errorf("before migration %d: %v", i, got)
			}
			req := request(name)
			req.Mode = pb.Mode_MODE_FETCH
			rep := r.b.mustEnd(req, committed, "", moved)
			took := rep.GetTotal().AsDuration().Seconds()
			if e := math.Abs(rep.GetPredictedSeconds()-took) / took; i >= 5 && e > 0.1 {
				t.Errorf("migration %d took %v s, predicted %v s", i, took, rep.GetPredictedSeconds())
			}
		}
		r.settle()
		r.ea.session("last", blocks)
		last := plan("last")
		if got := term(last); got.GetSeconds() < 0.04 || got.GetSeconds() > 0.08 || !strings.Contains(got.GetNote(), "migrations") {
			t.Errorf("two round trips of 20 ms are not charged, and learned as %v", got)
		}
		for _, m := range last.GetModes() { // one round trip, without the queue that the transfers made
			for _, tm := range m.GetTerms() {
				if st := r.b.d.agent.Links()[0].Stats(); tm.GetName() == planner.TermRTT && (tm.GetSeconds() != st.RTTMin.Seconds() || st.RTTSmoothed == st.RTTMin) {
					t.Errorf("round trip %v, least %v, smoothed %v", tm, st.RTTMin, st.RTTSmoothed)
				}
			}
		}
		for _, m := range last.GetModes() {
			if m.GetMode() == pb.Mode_MODE_FETCH && (m.SigmaSeconds == nil || m.GetP95Seconds() <= m.GetSeconds()) {
				t.Errorf("no spread after nine migrations: %v", m)
			}
		}
		noted := r.b.d.links.mu.fetches["a"].count
		if noted != 8 {
			t.Errorf("%d migrations noted of 9, of which one was cold", noted)
		}
		req := request("")
		req.Session, req.SourceHint, req.Mode = &pb.SessionRef{}, "a", pb.Mode_MODE_FETCH
		req.Keys = chain("last", blocks)
		r.b.mustEnd(req, committed, "", nobody)
		req = request("last")
		req.Mode = pb.Mode_MODE_FETCH
		r.b.mustEnd(req, committed, "", moved)
		if got := r.b.d.links.mu.fetches["a"].count; got != noted {
			t.Errorf("%d migrations noted: named blocks, or one that moved nothing, count", got)
		}
		r.settle()
	})
}

// A line through fetches of several sizes is theirs, whatever a quarter of them took; few, old, or of about one size give none.
func TestFetchesSlope(t *testing.T) {
	now := time.Now()
	rng := rand.New(rand.NewPCG(5, 6))
	of := func(n int, size func(i int) int64, at time.Time, spoil int) *fetches {
		f := &fetches{}
		bad := rng.Perm(n)[:spoil]
		for i := range n {
			b := size(i)
			s := 0.25 + float64(b)/1e8
			for _, k := range bad {
				if k == i {
					s *= 1 + 3*rng.Float64()
				}
			}
			f.add(b, s, at)
		}
		return f
	}
	several := func(i int) int64 { return int64(i%11+1) << 20 }
	same := func(int) int64 { return 1 << 20 }
	narrow := func(i int) int64 { return 16<<20 + int64(i)<<20 }
	for _, tc := range []struct {
		name string
		f    *fetches
		ok   bool
	}{
		{"several", of(6, several, now, 0), true},
		{"many", of(40, several, now, 0), true},
		{"few", of(5, several, now, 0), false},
		{"old", of(9, several, now.Add(-2*fetchMaxAge), 0), false},
		{"one size", of(9, same, now, 0), false},
		{"about one size", of(9, narrow, now, 0), false},
	} {
		got, ok := tc.f.slope(now)
		if ok != tc.ok || ok && math.Abs(got*1e8-1) > 1e-9 {
			t.Errorf("%s: %v, %v", tc.name, got, ok)
		}
	}
	for range 200 {
		if got, ok := of(keptFetches, several, now, 4).slope(now); !ok || math.Abs(got*1e8-1) > 0.15 {
			t.Fatalf("with outliers: %v, %v", got, ok)
		}
	}
}

// The line prices fetches of every size right where the goodput alone does not; it is left where the link has changed since.
func TestPastFetches(t *testing.T) {
	l := newLinks(Config{Peers: []PeerConfig{{Node: "a"}}, Link: LinkConfig{RoundTrips: 3}}, nil, nil)
	link := planner.Link{RTT: 70 * time.Millisecond, Goodput: 9e8, WindowPackets: -1}
	if got := l.past("a", link); got != (pastFetches{}) {
		t.Errorf("before any: %+v", got)
	}
	const fixed, rate = 0.03, 7e8
	takes := func(bytes int64) float64 { return 0.21 + fixed + 8*float64(bytes)/rate }
	for i := range 10 {
		b := int64(1+i) << 20
		l.took("a", b, takes(b), 0, 0)
		l.took("stranger", b, 9, 0, 0)
	}
	got := l.past("a", link)
	if math.Abs(float64(got.rate)/rate-1) > 1e-9 || math.Abs(got.fixed-fixed) > 1e-9 || got.spread != leastFetchSpread {
		t.Errorf("%+v, want %v and %v", got, rate, fixed)
	}
	link.FixedSeconds, link.EgressBacklog = 5, 1<<30 // neither is part of what is learned
	if again := l.past("a", link); again != got {
		t.Errorf("%+v, then %+v", got, again)
	}
	link.Goodput = 3e8
	if changed := l.past("a", link); changed.rate != 0 || changed.spread == 0 {
		t.Errorf("at a third of the goodput: %+v", changed)
	}
	for _, unknown := range []planner.Link{{RTT: 70 * time.Millisecond}, {Goodput: 9e8}} {
		if got := l.past("a", unknown); got != (pastFetches{}) {
			t.Errorf("unmeasured: %+v", got)
		}
	}
	if got := l.past("stranger", planner.Link{RTT: time.Millisecond, Goodput: 9e8}); got != (pastFetches{}) {
		t.Errorf("a peer that is not configured is remembered: %+v", got)
	}
}

// A path that takes another time than predicted for good is told once, and what was before that is dropped; noise is not.
func TestFetchesDrift(t *testing.T) {
	t.Parallel()
	for _, noise := range []float64{0, 0.05, 0.1, 0.3} {
		rng := rand.New(rand.NewPCG(3, uint64(100*noise)))
		f := &fetches{}
		took := func(factor float64) int {
			s := factor * math.Exp(noise*rng.NormFloat64())
			f.add(int64(f.count), s, time.Now())
			return f.changed(s, 1, noise)
		}
		for range 200 {
			if since := took(1); since != 0 {
				t.Errorf("noise %v: told after %d although nothing changed", noise, since)
			}
		}
		told, n := 0, 0
		for told == 0 && n < 40 {
			n++
			told = took(1.6)
		}
		if told < 2 || told > n+12 || n > 5+int(60*noise) {
			t.Errorf("noise %v: %d fetches until it is told, of %d", noise, n, told)
		}
		if f.count != told {
			t.Errorf("noise %v: %d are kept, want %d", noise, f.count, told)
		}
		if got := f.sum(time.Now(), func(int64) float64 { return 1 }); noise == 0 && (math.Abs(got.fixed-0.6) > 1e-9) {
			t.Errorf("kept: %+v", got)
		}
	}
	f := &fetches{}
	if f.changed(1, 0, 0) != 0 || f.changed(0, 1, 0) != 0 || !f.drift.Quiet() {
		t.Error("what was not predicted counts")
	}
	for i := range 33 {
		f.add(int64(i), 1, time.Now())
	}
	f.keep(4)
	for i := range 4 {
		if f.ring[i].bytes != int64(29+i) {
			t.Errorf("kept %+v", f.ring[:5])
		}
	}
}

// A path that changes for good is told, counted, and planned with: what was before does not linger.
func TestPathDrift(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		var off []float64
		run := func(n int) {
			t.Helper()
			for range n {
				s := fmt.Sprint("s", len(off))
				r.settle()
				r.ea.session(s, 200)
				req := request(s)
				req.Mode = pb.Mode_MODE_FETCH
				rep := r.b.mustEnd(req, committed, "", moved)
				off = append(off, rep.GetTotal().AsDuration().Seconds()/rep.GetPredictedSeconds()-1)
			}
		}
		drifts := func() float64 { return r.b.samples()[`kvferry_planner_drift_total{what="path"}`] }
		steady := thinned(14, 9)
		run(steady)
		if drifts() != 0 {
			t.Errorf("%v drifts of a path that is what it was: %.3v", drifts(), off)
		}
		late := fast
		late.Rate /= 20
		if err := r.net.SetModel(r.a.ip, r.b.ip, late); err != nil {
			t.Fatal(err)
		}
		run(thinned(12, 9))
		t.Logf("off by %.2v, %v drifts", off, drifts())
		for i, o := range off[steady:] {
			if i >= 6 && math.Abs(o) > 0.2 {
				t.Errorf("migration %d after the change is off by %v", i+1, o)
			}
		}
		if drifts() != 1 {
			t.Errorf("%v drifts after one change", drifts())
		}
	})
}
