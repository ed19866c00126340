package planner

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world is a random, valid set of inputs.
func world(rng *rand.Rand) *script {
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, rng.Float64()) } // log-uniform
	coin := func() bool { return rng.IntN(2) == 0 }
	s := newScript()
	s.r.PrefixTokens = int64(between(1, 1e6))
	s.r.PresentTokens = rng.Int64N(s.r.PrefixTokens + 1)
	s.r.RoundTrips = float64(rng.IntN(5) - 1)
	s.m.BytesPerToken = Bytes(between(1e3, 1e6))
	s.m.BlockTokens = 1 << rng.IntN(7)
	s.m.AttentionOff = coin()
	s.m.ParamsActive = between(1e9, 1e12)
	s.c.PeakFLOPS, s.c.MFU = between(1e12, 1e17), between(0.05, 1)
	s.c.FixedSeconds, s.c.QueueSeconds = rng.Float64()/10, rng.Float64()
	if coin() {
		s.c.Queue = &Queue{Law: Law(rng.IntN(3)), ServiceRate: between(0.1, 100), Utilization: 0.99 * rng.Float64(), SCV: 4 * rng.Float64()}
	}
	if coin() {
		s.l.Queue = &Queue{Law: Law(rng.IntN(3)), ServiceRate: between(0.1, 100), Utilization: 0.99 * rng.Float64(), SCV: 4 * rng.Float64()}
	}
	s.l.RTT = time.Duration(between(1e5, 1e9))
	s.l.Goodput = Rate(between(1e6, 1e12))
	s.l.Stripes = 1 + rng.IntN(64)
	s.l.WindowPackets = []int{-1, 0, 1 + rng.IntN(20_000)}[rng.IntN(3)]
	s.l.PacketBytes = 1200 + rng.IntN(300)
	s.l.Cold = coin()
	s.l.InitialWindowPackets = 1 + rng.IntN(64)
	s.l.EgressBacklog = Bytes(between(1, 1e12))
	s.l.FixedSeconds = rng.Float64() / 10 * float64(rng.IntN(2))
	if coin() {
		s.l.Spread = between(1e-3, 1)
	}
	if coin() {
		s.c.Spread = between(1e-3, 1)
	}
	s.r.Hybrid = rng.IntN(4) == 0
	s.r.Redirect = Redirect{Allowed: coin(), ExpectedTurns: float64(rng.IntN(10)), DeltaRTT: time.Duration(rng.IntN(1e8))}
	if coin() {
		s.r.Deadline = time.Duration(between(1e6, 1e11))
	}
	return s
}

func (s *script) decide(t *testing.T) Decision {
	t.Helper()
	d, err := Decide(s.r, s.m, s.c, s.l)
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return d
}

// checkDecision holds what is true of every decision.
func checkDecision(t *testing.T, d Decision) {
	t.Helper()
	best, second := math.Inf(1), math.Inf(1)
	for _, p := range d.Modes {
		sum := 0.0
		for _, term := range p.Terms {
			if !(term.Seconds >= 0) || math.IsInf(term.Seconds, 0) || term.Note == "" {
				t.Fatalf("%v: term %+v", p.Mode, term)
			}
			sum += term.Seconds
		}
		if sum != p.Seconds || p.Priced != (p.Terms != nil) || (p.Eligible && !p.Priced) || math.IsInf(sum, 0) {
			t.Fatalf("terms sum to %v: %+v", sum, p)
		}
		if p.Eligible != (p.Refusal == RefusalNone) || (!p.Eligible && p.Reason == "") || p.Bytes < 0 || p.Tokens < 0 {
			t.Fatalf("%+v", p)
		}
		if spread := p.P95Seconds - p.Seconds; p.SigmaSeconds < 0 || p.SigmaSeconds > 0 && math.Abs(spread-1.645*p.SigmaSeconds) > 1e-3*spread || p.SigmaSeconds == 0 && p.P95Seconds != 0 {
			t.Fatalf("P95 %v s, sigma %v s: %+v", p.P95Seconds, p.SigmaSeconds, p)
		}
		if p.Eligible {
			took := ranked(d, p)
			best, second = min(best, took), min(second, max(best, took))
		}
	}
	if d.Winner == ModeNone {
		if !math.IsInf(best, 1) || d.RunnerUp != ModeNone {
			t.Fatalf("no winner although a mode is eligible: %+v", d)
		}
		return
	}
	winner, _ := d.Plan(d.Winner)
	if h, _ := d.Plan(ModeHybrid); h.Priced && !d.Held {
		checkBounds(t, d)
	}
	if d.Held {
		if runnerUp, _ := d.Plan(d.RunnerUp); d.MarginSeconds > 0 || ranked(d, runnerUp) != best || !winner.Eligible {
			t.Fatalf("held: %+v", d)
		}
		return
	}
	if ranked(d, winner) != best || !winner.Eligible {
		t.Fatalf("%v wins with %v s, best is %v s", d.Winner, ranked(d, winner), best)
	}
	if d.RunnerUp == ModeNone {
		return
	}
	runnerUp, _ := d.Plan(d.RunnerUp)
	if !(d.Confidence >= 0 && d.Confidence <= 1) {
		t.Fatalf("confidence %v: %+v", d.Confidence, d)
	}
	if ranked(d, runnerUp) != second || d.MarginSeconds != second-best || d.MarginRatio < 0 || d.MarginRatio > 1 {
		t.Fatalf("runner-up %v with %v s, second is %v s; %+v", d.RunnerUp, runnerUp.Seconds, second, d)
	}
}

// ranked is what p was ranked by.
func ranked(d Decision, p ModePlan) float64 {
	if d.RankedByP95 {
		return max(p.Seconds, p.P95Seconds)
	}
	return p.Seconds
}

// Each change may only raise (up) or only lower (down) the price of a mode; the rest stay exactly as they were.
func TestPricesAreMonotonic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	grow := func() float64 { return 1 + rng.Float64()*rng.Float64()*9 }
	changes := []struct {
		name   string
		change func(*script)
		mode   Mode
		up     bool
	}{
		{"more bandwidth", func(s *script) { s.l.Goodput *= Rate(grow()) }, ModeFetch, false},
		{"more stripes", func(s *script) { s.l.Stripes += rng.IntN(100) }, ModeFetch, false},
		{"larger windows", func(s *script) {
			if s.l.WindowPackets > 0 {
				s.l.WindowPackets += rng.IntN(10_000)
			}
		}, ModeFetch, false},
		{"no window cap", func(s *script) { s.l.WindowPackets = -1 }, ModeFetch, false},
		{"larger first window", func(s *script) { s.l.InitialWindowPackets += rng.IntN(100) }, ModeFetch, false},
		{"warm", func(s *script) { s.l.Cold = false }, ModeFetch, false},
		{"longer egress queue", func(s *script) { s.l.EgressBacklog += Bytes(rng.IntN(1e9)) }, ModeFetch, true},
		{"busier fetch queue", func(s *script) {
			if s.l.Queue != nil {
				busier := *s.l.Queue
				busier.Utilization = min(0.999, busier.Utilization*grow())
				s.l.Queue = &busier
			}
		}, ModeFetch, true},
		{"costlier migrations", func(s *script) { s.l.FixedSeconds += rng.Float64() }, ModeFetch, true},
		{"larger pages", func(s *script) { s.m.BytesPerToken += Bytes(rng.IntN(1e5)) }, ModeFetch, true},
		{"more present, fetch", func(s *script) {
			s.r.PresentTokens += rng.Int64N(s.r.PrefixTokens - s.r.PresentTokens + 1)
		}, ModeFetch, false},
		{"more present, recompute", func(s *script) {
			s.r.PresentTokens += rng.Int64N(s.r.PrefixTokens - s.r.PresentTokens + 1)
		}, ModeRecompute, false},
		{"longer prefix, fetch", func(s *script) { s.r.PrefixTokens += rng.Int64N(1e5) }, ModeFetch, true},
		{"longer prefix, recompute", func(s *script) { s.r.PrefixTokens += rng.Int64N(1e5) }, ModeRecompute, true},
		{"more FLOPS", func(s *script) { s.c.PeakFLOPS *= grow() }, ModeRecompute, false},
		{"longer compute queue", func(s *script) { s.c.QueueSeconds += rng.Float64() }, ModeRecompute, true},
		{"busier compute queue", func(s *script) {
			if s.c.Queue != nil {
				busier := *s.c.Queue
				busier.Utilization = min(0.999, busier.Utilization*grow())
				s.c.Queue = &busier
			}
		}, ModeRecompute, true},
		{"more parameters", func(s *script) { s.m.ParamsActive *= grow() }, ModeRecompute, true},
		{"attention counted", func(s *script) { s.m.AttentionOff = false }, ModeRecompute, true},
		{"more turns", func(s *script) { s.r.Redirect.ExpectedTurns += 1 + float64(rng.IntN(5)) }, ModeRedirect, true},
	}
	for range 3000 {
		s := world(rng)
		before := s.decide(t)
		checkDecision(t, before)
		for _, c := range changes {
			changed := *s
			c.change(&changed)
			after := changed.decide(t)
			checkDecision(t, after)
			a, _ := before.Plan(c.mode)
			b, _ := after.Plan(c.mode)
			low, high := b.Seconds, a.Seconds
			if c.up {
				low, high = high, low
			}
			// Sums round: 1e-9 is far above that and far below any real effect.
			if low > high*(1+1e-9) {
				t.Fatalf("%s: %v went from %v to %v s\nbefore %+v\nafter  %+v", c.name, c.mode, a.Seconds, b.Seconds, s, changed)
			}
		}
		// A longer RTT slows fetch down at a given rate; the window cap makes the rate fall, never rise.
		slower := *s
		slower.l.RTT += time.Duration(rng.IntN(1e9))
		a, _ := before.Plan(ModeFetch)
		b, _ := slower.decide(t).Plan(ModeFetch)
		if a.Seconds > b.Seconds*(1+1e-9) {
			t.Fatalf("longer RTT: fetch went from %v to %v s\n%+v", a.Seconds, b.Seconds, s)
		}
	}
}

func TestDecideIsDeterministicAndKeepsItsInputs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		s := world(rng)
		before := *s
		first, second := s.decide(t), s.decide(t)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("two answers to one question:\n%s", diff)
		}
		if diff := cmp.Diff(before, *s, cmp.AllowUnexported(script{})); diff != "" {
			t.Fatalf("Decide changed its inputs:\n%s", diff)
		}
	}
}

// FuzzDecide: any numbers whatever give an error or a consistent decision, never a panic, NaN or infinity.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.LittleEndian.AppendUint64(nil, math.Float64bits(1e300)))
	f.Add([]byte("\x00\x00\x00\x00\x00\x40\x8f\x40 a longer seed that reaches more of the fields than the others"))
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() float64 {
			if len(data) < 8 {
				return 0
			}
			v := math.Float64frombits(binary.LittleEndian.Uint64(data))
			data = data[8:]
			return v
		}
		integer := func() int64 { return int64(math.Float64bits(next())) }
		small := func() int { return int(int32(integer())) }
		r := Request{
			PrefixTokens: integer(), PresentTokens: integer(), RoundTrips: next(), MissingBytes: Bytes(integer()),
			Deadline: time.Duration(integer()),
			Redirect: Redirect{Allowed: small()&1 == 0, ExpectedTurns: next(), DeltaRTT: time.Duration(integer())},
			Hybrid:   small()&1 == 0, Previous: Mode(small() % 6), Kappa: next(),
		}
		m := Model{
			BytesPerToken: Bytes(small()), BlockTokens: small(), ParamsActive: next(), Layers: small(), QueryHeads: small(),
			AttnHeadDim: next(), AttentionOff: small()&1 == 1,
		}
		c := Compute{PeakFLOPS: next(), MFU: next(), SecondsPerToken: next(), FixedSeconds: next(), QueueSeconds: next(), Spread: next()}
		l := Link{
			RTT: time.Duration(integer()), Goodput: Rate(next()), PriorGoodput: Rate(next()), Stripes: small(),
			WindowPackets: small(), PacketBytes: small(), Cold: small()&1 == 1, InitialWindowPackets: small(),
			EgressBacklog: Bytes(integer()), Queue: &Queue{Law: Law(small() % 4), ServiceRate: next(), Utilization: next(), SCV: next()}, FixedSeconds: next(), Spread: next(),
		}
		if l.Queue.ServiceRate == 0 {
			l.Queue = nil
		}
		Crossover(m, c, l)
		CrossoverUtilization(next(), next(), MM1{next(), next()}, next())
		d, err := Decide(r, m, c, l)
		if err != nil {
			if len(fields(err)) == 0 {
				t.Fatalf("not an InputError: %v", err)
			}
			return
		}
		if r.Kappa == 0 {
			checkDecision(t, d)
		}
		if _, err := Flips(r, m, c, l); err != nil {
			t.Fatal(err)
		}
	})
}
