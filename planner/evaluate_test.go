package planner

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Decide says what Evaluate does, and the other way round.
func TestEvaluateIsDecide(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(21, 22))
	for range 2000 {
		s := world(rng)
		s.r.Hybrid, s.r.Previous = rng.IntN(2) == 0, Mode(rng.IntN(6))
		e, err := Evaluate(s.r, s.m, s.c, s.l)
		if err != nil {
			t.Fatal(err)
		}
		d := s.decide(t)
		if e.Winner != d.Winner || e.RunnerUp != d.RunnerUp || e.MarginSeconds != d.MarginSeconds || e.MarginRatio != d.MarginRatio ||
			e.RankedByP95 != d.RankedByP95 || e.Held != d.Held || e.Confidence != d.Confidence || e.DeadlineMissed != d.DeadlineMissed ||
			e.Unconfirmed != d.Unconfirmed {
			t.Fatalf("%+v\n%+v", e, d)
		}
		for _, p := range d.Modes {
			q := e.Price(p.Mode)
			if q.Mode != p.Mode || q.Priced != p.Priced || q.Eligible != p.Eligible || q.Refusal != p.Refusal || q.Seconds != p.Seconds ||
				q.SigmaSeconds != p.SigmaSeconds || q.P95Seconds != p.P95Seconds || q.Bytes != p.Bytes || q.Tokens != p.Tokens {
				t.Fatalf("%+v\n%+v", q, p)
			}
			for _, term := range p.Terms {
				if got, ok := q.Term(term.Name); !ok || got != term.Seconds {
					t.Fatalf("%v of %v: %v, %v", term.Name, p.Mode, got, term.Seconds)
				}
			}
			if _, ok := q.Term("no such term"); ok {
				t.Fatal("a term of any name")
			}
			if p.Mode == ModeHybrid && p.Split != e.Split {
				t.Fatalf("%+v, %+v", p.Split, e.Split)
			}
		}
	}
	if _, err := Evaluate(Request{}, Model{BlockTokens: -1}, Compute{}, Link{}); len(fields(err)) != 1 {
		t.Errorf("%v", err)
	}
	if p := (&Evaluation{}).Price(ModeNone); p != (Price{}) {
		t.Errorf("%+v", p)
	}
}

// busy is a decision with everything in it: hybrid, spreads, queues, a cold link, a deadline, a mode chosen before.
func busy() *script {
	s := newScript()
	s.r.PrefixTokens, s.r.PresentTokens, s.r.Hybrid, s.r.Previous, s.r.Deadline = 8000, 64, true, ModeFetch, 10*time.Second
	s.r.Redirect = Redirect{Allowed: true, ExpectedTurns: 40}
	s.l.Goodput, s.l.Spread, s.l.Cold, s.l.Stripes, s.l.CodecRatio, s.l.EgressBacklog = 5e9, .3, true, 16, 1.33, 1<<26
	s.c.Spread, s.c.QueueSeconds = .1, .05
	s.l.Queue, s.c.Queue = &Queue{Law: LawPS, Utilization: .3}, &Queue{Law: LawMG1, ServiceRate: 20, Utilization: .3, SCV: 2}
	return s
}

func TestEvaluateAllocatesNothing(t *testing.T) {
	unmeasured := busy()
	unmeasured.l.Goodput, unmeasured.m.ParamsActive = 0, 0
	for name, s := range map[string]*script{"busy": busy(), "plain": newScript(), "unknown": unmeasured} {
		var e Evaluation
		var err error
		if n := testing.AllocsPerRun(200, func() { e, err = Evaluate(s.r, s.m, s.c, s.l) }); n != 0 || err != nil || e.Prices[1].Mode != ModeFetch {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for name, s := range map[string]*script{"busy": busy(), "plain": newScript()} {
		s.r.PrefixTokens = 8000
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Evaluate(s.r, s.m, s.c, s.l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	s := busy()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decide(s.r, s.m, s.c, s.l); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFlips(b *testing.B) {
	s := busy()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Flips(s.r, s.m, s.c, s.l); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMapLookup is the yardstick: one look-up among 1,024 sessions by name.
func BenchmarkMapLookup(b *testing.B) {
	m, keys := map[string]Mode{}, [1024]string{}
	for i := range keys {
		keys[i] = "tenant-" + string(rune('a'+i%26)) + "/session-" + Bytes(i*7919).String()
		m[keys[i]] = Mode(i % 6)
	}
	b.ReportAllocs()
	i, sum := 0, 0
	for b.Loop() {
		sum += int(m[keys[i%len(keys)]])
		i++
	}
	if sum < 0 {
		b.Fatal(sum)
	}
}

// A mode that was chosen before is left only for a gain above 10 % and above one standard deviation of the difference.
func TestHysteresis(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                         string
		recompute, fetch             float64 // seconds
		recomputeSpread, fetchSpread float64
		previous, winner             Mode
		held                         bool
	}{
		{"no previous", 1, .95, 0, 0, ModeNone, ModeFetch, false},
		{"below a tenth", 1, .91, 0, 0, ModeRecompute, ModeRecompute, true},
		{"above a tenth", 1, .89, 0, 0, ModeRecompute, ModeFetch, false},
		{"it is the best", 1, .91, 0, 0, ModeFetch, ModeFetch, false},
		{"below one sigma", 1, .7, .2, .2, ModeRecompute, ModeFetch, false},              // by P95: 1.329 and .930, sigma .244
		{"within one sigma", 1, .9, .2, .3, ModeFetch, ModeFetch, true},                  // 1.329 and 1.344
		{"far within one sigma", 1, .65, .4, .9, ModeFetch, ModeFetch, false},            // 1.658 and 1.612
		{"a wide gain, wider spreads", 1, .6, .9, 1, ModeRecompute, ModeRecompute, true}, // 2.48 and 1.587: gain .89, sigma 1.08
		{"a previous that is not eligible", 1, .95, 0, 0, ModeRedirect, ModeFetch, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := Request{PrefixTokens: 1000, RoundTrips: -1, MissingBytes: 1e9, Previous: tc.previous}
			c := Compute{SecondsPerToken: tc.recompute / 1000, Spread: tc.recomputeSpread}
			l := Link{RTT: ms, Goodput: Rate(8e9 / tc.fetch), WindowPackets: -1, Spread: tc.fetchSpread}
			d, err := Decide(r, Model{}, c, l)
			if err != nil || d.Winner != tc.winner || d.Held != tc.held {
				t.Fatalf("%v, held %v, %v; %+v", d.Winner, d.Held, err, d)
			}
			if d.Held != (d.MarginSeconds < 0) || d.MarginRatio < -1 || d.MarginRatio > 1 {
				t.Errorf("margin %v, %v", d.MarginSeconds, d.MarginRatio)
			}
		})
	}
}

// Confidence against draws of both ends.
func TestConfidenceAgainstDraws(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(23, 24))
	for _, hybrid := range []bool{false, true} {
		for range 40 {
			s := newScript()
			s.r.PrefixTokens, s.r.Hybrid, s.r.RoundTrips = 100+rng.Int64N(8000), hybrid, 3
			s.l.Goodput, s.l.Spread = Rate(1e9+rng.Float64()*40e9), .05+rng.Float64()*.3
			s.c.Spread = .05 + rng.Float64()*.2
			d := s.decide(t)
			if d.RunnerUp == ModeNone {
				continue
			}
			rec, _ := d.Plan(ModeRecompute)
			fetch, _ := d.Plan(ModeFetch)
			took := func(m Mode, kc, kl float64) float64 {
				switch m {
				case ModeRecompute:
					return kc * rec.Seconds
				case ModeFetch:
					return kl * fetch.Seconds
				}
				n := float64(s.r.PrefixTokens)
				linear, quadratic, _ := s.c.prefill(&s.m)
				p := priceFetch(&s.r, &s.m, &s.l)
				_, split := meet(s.c.front(linear, quadratic, 0).scaled(kc), tailOf(&s.l, &p, n).scaled(kl), n)
				return split.seconds()
			}
			const draws = 4000
			wins := 0
			for range draws {
				kc, kl := 1+s.c.Spread*rng.NormFloat64(), 1+s.l.Spread*rng.NormFloat64()
				if took(d.Winner, kc, kl) <= took(d.RunnerUp, kc, kl)*(1+1e-9) {
					wins++
				}
			}
			if share := float64(wins) / draws; math.Abs(share-d.Confidence) > .03 {
				t.Errorf("%v over %v: confidence %.3f, %.3f of the draws; %+v", d.Winner, d.RunnerUp, d.Confidence, share, s.r)
			}
		}
	}
}
