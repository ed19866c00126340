package planner

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Gains of hybrid over the better pure mode, computed independently: 70 ms once, MFU 0.42, Llama-3.1-70B, pages coded 1.33:1, k =
// 1,000 tokens. Seconds of recompute, fetch and hybrid, and the gain, to the digits given.
func TestHybridGainTable(t *testing.T) {
	t.Parallel()
	const h100BF16, h100FP8 = 989e12, 1979e12
	for _, tc := range []struct {
		peak                             float64
		goodput                          Rate
		tokens                           int64
		recompute, fetch, hybrid, faster float64
	}{
		{h100BF16, 5e9, 8000, 2.84, 3.22, 1.50, 1.89},
		{2 * h100FP8, 5e9, 8000, 0.71, 3.22, 0.59, 1.21},
		{2 * h100FP8, 5e9, 32_000, 3.44, 12.7, 2.62, 1.32},
		{2 * h100FP8, 25e9, 32_000, 3.44, 2.59, 1.41, 1.84},
		{2 * h100FP8, 100e9, 32_000, 3.44, 0.70, 0.57, 1.23},
		{8 * h100BF16, 5e9, 32_000, 1.72, 12.7, 1.49, 1.16},
		{8 * h100BF16, 25e9, 128_000, 11.7, 10.2, 4.72, 2.15},
		{8 * h100BF16, 100e9, 8000, 0.35, 0.23, 0.16, 1.46},
	} {
		m := llama70B()
		m.BlockTokens = 0
		r := Request{PrefixTokens: tc.tokens, RoundTrips: 1, Hybrid: true}
		c := Compute{PeakFLOPS: tc.peak, MFU: 0.42}
		l := Link{RTT: 70 * ms, Goodput: tc.goodput, WindowPackets: -1, CodecRatio: 1.33}
		rec, fetch, hybrid := Recompute(r, m, c), Fetch(r, m, l), Hybrid(r, m, c, l)
		near := func(what string, got, want float64) {
			t.Helper()
			digits := 2
			if want >= 10 {
				digits = 1
			}
			if math.Abs(got-want) > 0.55*math.Pow10(-digits) {
				t.Errorf("%v tokens at %v on %.3g FLOPS: %s %.4f, table says %v", tc.tokens, tc.goodput, tc.peak, what, got, want)
			}
		}
		near("recompute", rec.Seconds, tc.recompute)
		near("fetch", fetch.Seconds, tc.fetch)
		near("hybrid", hybrid.Seconds, tc.hybrid)
		near("gain", min(rec.Seconds, fetch.Seconds)/hybrid.Seconds, tc.faster)
		if !hybrid.Eligible || math.Abs(hybrid.Split.FrontSeconds-hybrid.Split.TailSeconds) > 1e-9 {
			t.Errorf("%+v", hybrid)
		}
	}
}

// bruteForce tries every whole split.
func bruteForce(f front, t tail, n int) (best float64, at int) {
	best = math.Inf(1)
	for s := range n + 1 {
		took := 0.0
		if s > 0 {
			took = f.seconds(float64(s))
		}
		if s < n {
			took = max(took, t.seconds(float64(n-s)))
		}
		if took < best {
			best, at = took, s
		}
	}
	return best, at
}

// seconds is the definition: lead, slow start round trip by round trip, bytes.
func (t tail) seconds(tokens float64) float64 {
	bytes, sent, window, ramp := tokens*t.wire, 0.0, t.window, 0.0
	for rounds := 1.0; window > 0 && window < t.fill && sent+window < bytes; rounds++ {
		sent, window = sent+window, 2*window
		ramp = max(ramp, rounds*t.rtt-sent*t.perByte)
	}
	return t.lead + ramp + tokens*t.each
}

// step is by how much an optimum between whole tokens may be off from one at them.
func step(f front, t tail, n float64) float64 { return f.a + 2*f.b*n + t.each + 1e-9 }

func checkMeet(t *testing.T, f front, tl tail, n int) {
	t.Helper()
	s, split := meet(f, tl, float64(n))
	want, at := bruteForce(f, tl, n)
	got := split.seconds()
	if got > want*(1+1e-9)+1e-12 || got < want-step(f, tl, float64(n))-1e-9*want {
		t.Fatalf("n %d, %+v, %+v: s* = %v takes %v s; brute force: %d takes %v s", n, f, tl, s, got, at, want)
	}
	if s < 0 || s > float64(n) || math.IsNaN(s) {
		t.Fatalf("s* = %v of %d", s, n)
	}
	if whole := f.seconds(float64(n)); got > whole*(1+1e-12) {
		t.Fatalf("%v s, recompute %v s: %+v, %+v", got, whole, f, tl)
	}
	if fetch := tl.seconds(float64(n)); got > fetch*(1+1e-12) {
		t.Fatalf("%v s, fetch %v s: %+v, %+v", got, fetch, f, tl)
	}
}

func TestHybridAgainstBruteForce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		f    front
		t    tail
		n    int
	}{
		{"b = 0", front{a: 3e-4}, tail{lead: .07, each: 5e-4}, 8000},
		{"quadratic", front{a: 3e-4, b: 3e-9}, tail{lead: .07, each: 5e-4}, 8000},
		{"mostly quadratic", front{a: 1e-9, b: 1e-6}, tail{lead: .07, each: 5e-4}, 2000},
		{"c <= 0: prefill waits too long", front{start: 5, a: 3e-4}, tail{lead: .07, each: 5e-5}, 8000},
		{"c = 0", front{start: 1, a: 1e-3}, tail{lead: 1}, 10},
		{"a huge link queue", front{a: 3e-4}, tail{lead: 1e6, each: 5e-4}, 8000},
		{"both queues huge", front{start: 1e6, a: 3e-4}, tail{lead: 1e6, each: 5e-4}, 8000},
		{"one token", front{a: 3e-4}, tail{lead: .07, each: 5e-4}, 1},
		{"one token, no round trip", front{a: 3e-4}, tail{each: 5e-4}, 1},
		{"two tokens", front{start: .01, a: .02}, tail{lead: .01, each: .015}, 2},
		{"prefill for nothing", front{}, tail{lead: .07, each: 5e-4}, 100},
		{"a link for nothing", front{start: .01, a: 1e-3}, tail{}, 100},
		{"all for nothing", front{}, tail{}, 100},
		{"cold", front{a: 3e-4}, tail{lead: .07, each: 5e-5, window: 4e4, fill: 4e8, rtt: .07, perByte: 1.6e-10, wire: 3e5}, 8000},
		{"cold, one window a token", front{a: 1e-1}, tail{lead: .07, each: 1e-3, window: 1000, fill: 1e5, rtt: .1, perByte: 1e-6, wire: 1000}, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			checkMeet(t, tc.f, tc.t, tc.n)
		})
	}
	rng := rand.New(rand.NewPCG(11, 12))
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, rng.Float64()) }
	sometimes := func(v float64) float64 { return v * float64(rng.IntN(2)) }
	for range 2000 {
		f := front{sometimes(between(1e-3, 1e4)), between(1e-7, 1e-2), sometimes(between(1e-12, 1e-5))}
		tl := tail{lead: sometimes(between(1e-3, 1e4)), each: between(1e-7, 1e-2)}
		if rng.IntN(2) == 0 {
			tl.window, tl.rtt, tl.wire = between(1e3, 1e6), between(1e-3, 1), between(1e2, 1e6)
			tl.perByte = tl.each / tl.wire * (1 - sometimes(rng.Float64())) // held by the codec, or not
			tl.fill = tl.rtt / tl.perByte
		}
		checkMeet(t, f, tl, 1+rng.IntN(2000))
	}
}

// What a plan says is what its parts say: against brute force through the public functions, over tokens and inputs of all kinds.
func TestHybridPlanAgainstBruteForce(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(13, 14))
	priced := 0
	for range 300 {
		s := world(rng)
		s.r.PrefixTokens = 1 + rng.Int64N(3000)
		s.r.PresentTokens = rng.Int64N(s.r.PrefixTokens)
		s.m.BlockTokens = 1
		s.r.Hybrid, s.r.Deadline = true, 0
		p := Hybrid(s.r, s.m, s.c, s.l)
		if !p.Priced {
			continue
		}
		priced++
		best, slack := math.Inf(1), 0.0
		for at := s.r.PresentTokens; at <= s.r.PrefixTokens; at++ {
			fr, tr := s.r, s.r
			fr.PrefixTokens, tr.PresentTokens = at, at
			took := 0.0
			if at > s.r.PresentTokens {
				took = Recompute(fr, s.m, s.c).Seconds
			}
			if at < s.r.PrefixTokens {
				took = max(took, Fetch(tr, s.m, s.l).Seconds)
			}
			best = min(best, took)
			if at == s.r.PrefixTokens-1 {
				fr.PresentTokens, fr.PrefixTokens = at, at+1
				slack = Recompute(fr, s.m, s.c).Seconds + s.l.Goodput.seconds(float64(s.m.BytesPerToken))
			}
		}
		rate, _ := s.l.rate()
		slack += rate.seconds(float64(s.m.BytesPerToken))
		if p.Seconds > best*(1+1e-6) || p.Seconds < best-slack-1e-6*best {
			t.Fatalf("hybrid %v s, the best whole split %v s (a token is %v s): %+v", p.Seconds, best, slack, s)
		}
	}
	if priced < 200 {
		t.Errorf("only %d were priced", priced)
	}
}

// Each change may only raise (up) or only lower hybrid's price and its P95; and it never takes longer than recompute or fetch.
func TestHybridIsMonotonic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(15, 16))
	grow := func() float64 { return 1 + rng.Float64()*rng.Float64()*9 }
	changes := []struct {
		name   string
		change func(*script)
		up     bool
	}{
		{"more bandwidth", func(s *script) { s.l.Goodput *= Rate(grow()) }, false},
		{"more stripes", func(s *script) { s.l.Stripes += rng.IntN(100) }, false},
		{"warm", func(s *script) { s.l.Cold = false }, false},
		{"longer egress queue", func(s *script) { s.l.EgressBacklog += Bytes(rng.IntN(1e9)) }, true},
		{"costlier migrations", func(s *script) { s.l.FixedSeconds += rng.Float64() }, true},
		{"larger pages", func(s *script) { s.m.BytesPerToken += Bytes(rng.IntN(1e5)) }, true},
		{"longer prefix", func(s *script) { s.r.PrefixTokens += rng.Int64N(1e5) }, true},
		{"more FLOPS", func(s *script) { s.c.PeakFLOPS *= grow() }, false},
		{"longer compute queue", func(s *script) { s.c.QueueSeconds += rng.Float64() }, true},
		{"attention counted", func(s *script) { s.m.AttentionOff = false }, true},
		{"a link known no more", func(s *script) { s.l.Goodput, s.l.Spread = 0, 0 }, true},
	}
	for range 3000 {
		s := world(rng)
		s.r.Hybrid = true
		before := s.decide(t)
		checkDecision(t, before)
		for _, c := range changes {
			changed := *s
			c.change(&changed)
			after := changed.decide(t)
			checkDecision(t, after)
			a, _ := before.Plan(ModeHybrid)
			b, _ := after.Plan(ModeHybrid)
			if !a.Priced || !b.Priced {
				continue
			}
			checkBounds(t, after)
			low, high := b, a
			if c.up {
				low, high = a, b
			}
			if low.Seconds > high.Seconds*(1+1e-9) {
				t.Fatalf("%s: hybrid went from %v to %v s\nbefore %+v\nafter  %+v", c.name, a.Seconds, b.Seconds, s, changed)
			}
		}
	}
}

// checkBounds: hybrid takes no longer than recompute and fetch, and in bad cases no longer than recompute.
func checkBounds(t *testing.T, d Decision) {
	t.Helper()
	h, _ := d.Plan(ModeHybrid)
	for _, m := range []Mode{ModeRecompute, ModeFetch} {
		p, _ := d.Plan(m)
		if p.Priced && h.Seconds > p.Seconds*(1+1e-12) {
			t.Fatalf("hybrid %v s, %v %v s", h.Seconds, m, p.Seconds)
		}
		if p.P95Seconds > 0 && h.P95Seconds > p.P95Seconds*(1+1e-9) && m == ModeRecompute {
			t.Fatalf("P95: hybrid %v s, %v %v s", h.P95Seconds, m, p.P95Seconds)
		}
	}
}

// P95 against draws: both ends' times are scaled by independent normal deviates, and meet in the middle each time. With one spread
// it is exact; with two it is within one or two of the hundred.
func TestHybridP95AgainstDraws(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(17, 18))
	const draws = 40_000
	f, tl, n := front{start: .05, a: 3e-4, b: 3e-9}, tail{lead: .21, each: 4e-4}, 8000.0
	for _, tc := range []struct{ compute, link, above float64 }{
		{1e-6, .25, .003}, {.25, 1e-6, .003}, {1e-6, .5, .003}, {.1, .25, .012}, {.2, .2, .012}, {.2, .5, .012}, {.3, .8, .016},
	} {
		_, s := meet(f, tl, n)
		p := Price{Mode: ModeHybrid}
		p.price(s.seconds())
		p.spreadHybrid(f, tl, n, tc.compute, tc.link, f.scaled(1+z95*tc.compute).seconds(n), &Price{Priced: true, P95Seconds: tl.seconds(n) * (1 + z95*tc.link)})
		below := 0
		for range draws {
			// A time is never below a twentieth of what is expected; that is far from P95.
			kc, kl := max(.05, 1+tc.compute*rng.NormFloat64()), max(.05, 1+tc.link*rng.NormFloat64())
			if _, s := meet(f.scaled(kc), tl.scaled(kl), n); s.seconds() <= p.P95Seconds {
				below++
			}
		}
		if share := float64(below) / draws; math.Abs(share-.95) > tc.above {
			t.Errorf("spreads %v and %v: %.4f of the draws stay below P95 = %.4f s (expected %.4f s)", tc.compute, tc.link, share, p.P95Seconds, p.Seconds)
		}
	}
}

// The public functions price what Decide does.
func TestModesAlone(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(19, 20))
	for range 500 {
		s := world(rng)
		s.r.Deadline = 0
		d := s.decide(t)
		for _, alone := range []ModePlan{RedirectCost(s.r, s.l), Fetch(s.r, s.m, s.l), Recompute(s.r, s.m, s.c), Hybrid(s.r, s.m, s.c, s.l)} {
			p, _ := d.Plan(alone.Mode)
			if p.Seconds != alone.Seconds || p.P95Seconds != alone.P95Seconds || p.Bytes != alone.Bytes || p.Tokens != alone.Tokens || p.Split != alone.Split || len(p.Terms) != len(alone.Terms) {
				t.Fatalf("%+v\n%+v", alone, p)
			}
		}
	}
	bad := Link{RTT: -1}
	for _, p := range []ModePlan{RedirectCost(Request{}, bad), Hybrid(Request{}, Model{}, Compute{}, bad), Fetch(Request{}, Model{}, bad), Recompute(Request{}, Model{BlockTokens: -1}, Compute{})} {
		if p.Priced || p.Eligible || p.Refusal != RefusalInvalidInput || p.Reason == "" {
			t.Errorf("%+v", p)
		}
	}
}

func TestHybridRefusals(t *testing.T) {
	t.Parallel()
	full := &Queue{Law: LawPS, Utilization: 1}
	for _, tc := range []struct {
		name   string
		spoil  func(*script)
		why    Refusal
		reason string
		priced bool
	}{
		{"an engine that does not claim", func(s *script) { s.r.Hybrid = false }, RefusalUnsupported, "the engine does not claim blocks before it prefills them", true},
		{"no prefill", func(s *script) { s.c.PrefillUnavailable = true }, RefusalUnavailable, "the destination cannot prefill", true},
		{"no speed", func(s *script) { s.c = Compute{} }, RefusalMissingInput, "unknown: Compute.PeakFLOPS (or a measured Compute.SecondsPerToken)", false},
		{"no bytes", func(s *script) { s.m.BytesPerToken = 0 }, RefusalMissingInput, "unknown: Model.BytesPerToken (or Request.MissingBytes)", false},
		{"a full link", func(s *script) { s.l.Queue = full }, RefusalUnstable, "Link.Queue has no steady state: utilization 1 is not below 1", false},
		{"a full replica", func(s *script) { s.c.Queue = full }, RefusalUnstable, "Compute.Queue has no steady state: utilization 1 is not below 1", false},
		{"nothing missing", func(s *script) { s.r.MissingBytes = -1 }, RefusalNothingToDo, "no whole block is missing", false},
		{"less than a block", func(s *script) { s.r.PrefixTokens = 15 }, RefusalNothingToDo, "no whole block is missing", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newScript()
			s.r.PrefixTokens, s.r.Hybrid = 8000, true
			tc.spoil(s)
			p := Hybrid(s.r, s.m, s.c, s.l)
			if p.Eligible || p.Refusal != tc.why || p.Reason != tc.reason || p.Priced != tc.priced || p.Priced != (len(p.Terms) == 5) {
				t.Errorf("%+v", p)
			}
			if d := s.decide(t); d.Winner == ModeHybrid {
				t.Errorf("hybrid wins: %+v", d)
			}
		})
	}
}

// Where hybrid is eligible, fetch is eligible exactly if its P95 is
// below what recompute is expected to take, and never wins.
func TestFetchNeedsItsP95BelowRecompute(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(27, 28))
	may, mayNot := 0, 0
	for range 2000 {
		s := world(rng)
		s.r.Hybrid, s.r.Deadline = true, 0
		d := s.decide(t)
		h, _ := d.Plan(ModeHybrid)
		f, _ := d.Plan(ModeFetch)
		r, _ := d.Plan(ModeRecompute)
		if !h.Eligible || !f.Priced {
			continue
		}
		want := f.SigmaSeconds > 0 && f.Seconds+1.6449*f.SigmaSeconds < r.Seconds
		if near := f.Seconds + 1.6449*f.SigmaSeconds - r.Seconds; f.Eligible != want && math.Abs(near) > 1e-3*r.Seconds {
			t.Fatalf("fetch is eligible: %v, want %v: %+v", f.Eligible, want, d)
		}
		if f.Eligible {
			may++
		} else {
			mayNot++
		}
		if d.Winner == ModeFetch {
			t.Fatalf("fetch wins over hybrid: %+v", d)
		}
	}
	if may < 50 || mayNot < 50 {
		t.Errorf("fetch was eligible in %d cases and not in %d", may, mayNot)
	}
}
