package planner

import (
	"math"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// "A cold connection (IW 32x1280 B, doubling per RTT) at 70 ms adds 0.5 s at 1 Gbps, 0.7 s at 5 Gbps, 0.84 s at 25 Gbps,
// 1.0 s at 100 Gbps". Those figures are whole round trips, floor(log2(BDP/IW))·RTT; the ramp here counts the last, partly
// filled round trip and credits the bytes sent meanwhile, which leaves it at most one round trip below and never above.
func TestRampAgainstTable(t *testing.T) {
	t.Parallel()
	for rate, want := range map[Rate]float64{1e9: 0.5, 5e9: 0.7, 25e9: 0.84, 100e9: 1.0} {
		l := Link{RTT: 70 * ms, Goodput: rate, Cold: true, WindowPackets: -1}
		got, _ := Fetch(Request{MissingBytes: 1 << 40}, Model{}, l).Term(TermRamp)
		if got > want || got < want-0.070 {
			t.Errorf("%v: ramp %.4f s, want between %.4f and %.2f", rate, got, want-0.070, want)
		}
		rounds := math.Floor(math.Log2(float64(rate) / 8 * 0.070 / (32 * 1280)))
		if math.Abs(rounds*0.070-want) > 0.021 {
			t.Errorf("%v: whole round trips %.3f s, table says %v", rate, rounds*0.070, want)
		}
	}
}

// Oracle: send packet by packet, each round trip letting through one window.
func TestSlowStartAgainstPackets(t *testing.T) {
	t.Parallel()
	const packet = 1000.0
	for _, tc := range []struct {
		packets int
		window  int
		rate    Rate
		rtt     time.Duration
	}{
		{1, 10, 1e9, 10 * ms},
		{10, 10, 1e9, 10 * ms},
		{11, 10, 1e9, 10 * ms},
		{5_000, 10, 1e9, 10 * ms},
		{200_000, 32, 1e9, 70 * ms},
		{200_000, 32, 8e6, 70 * ms},
		{200_000, 500_000, 1e9, 70 * ms},
	} {
		each := tc.rate.seconds(packet)
		start, at, inWindow, window := 0.0, 0.0, 0, tc.window
		for range tc.packets {
			if inWindow == window { // the window is spent: wait for the first acknowledgement of this round
				start = max(start+tc.rtt.Seconds(), at)
				at, inWindow, window = start, 0, 2*window
			}
			at += each
			inWindow++
		}
		extra, _ := slowStart(float64(tc.packets)*packet, float64(tc.window)*packet, tc.rate, tc.rtt)
		got := extra + tc.rate.seconds(float64(tc.packets)*packet)
		// Once a window fills a round trip the sender never waits again; the loop above stops at whole windows.
		if math.Abs(got-at) > 1e-9+1e-6*at {
			t.Errorf("%+v: %.6f s, packet by packet %.6f s", tc, got, at)
		}
	}
}

// "stock quic-go caps cwnd at 10,000 packets = 1.66 Gbps @70 ms, 0.77 @150 ms per connection" (1,452 B packets).
func TestWindowCap(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rtt     time.Duration
		stripes int
		want    float64
	}{{70 * ms, 0, 1.66}, {150 * ms, 1, 0.77}, {70 * ms, 4, 6.64}} {
		l := Link{RTT: tc.rtt, Stripes: tc.stripes, PacketBytes: 1452, Goodput: 100e9}
		rate, capped := l.rate()
		if got := Round(float64(rate)/1e9, 2); got != tc.want || !capped {
			t.Errorf("%v, %d stripes: %v Gbps (capped %v), want %v", tc.rtt, tc.stripes, got, capped, tc.want)
		}
	}
	if rate, capped := (&Link{RTT: 70 * ms, Goodput: 1e9, PacketBytes: 1452}).rate(); rate != 1e9 || capped {
		t.Errorf("goodput below the cap: %v, capped %v", rate, capped)
	}
	if rate, capped := (&Link{RTT: 70 * ms, Goodput: 100e9, WindowPackets: -1}).rate(); rate != 100e9 || capped {
		t.Errorf("no cap: %v, capped %v", rate, capped)
	}
}

// "8k tokens @100 Gbps = 280 ms is over 1 s cold with enough connections (and one stock connection, held to 1.66 Gbps by
// its window cap, takes 12.6 s)": the 12.6 s are its bytes.
func TestEightThousandTokensAt100Gbps(t *testing.T) {
	t.Parallel()
	m := Model{BytesPerToken: 327_680}
	r := Request{PrefixTokens: 8000, RoundTrips: 1}
	l := Link{RTT: 70 * ms, Goodput: 100e9, PacketBytes: 1452}
	one := Fetch(r, m, l)
	bytes, _ := one.Term(TermBytes)
	if Round(bytes, 1) != 12.6 || Round(one.Seconds, 2) != 12.71 {
		t.Errorf("one stock connection: bytes %.3f s, all %.3f s; want 12.6 and 12.71", bytes, one.Seconds)
	}
	l.Stripes = 64
	if got := Fetch(r, m, l).Seconds; Round(got, 2) != 0.28 {
		t.Errorf("64 warm connections: %.3f s, want 0.28", got)
	}
	// 64 windows start 64 times higher: log2(BDP/(64·IW)) ≈ 8.2 round trips instead of 14.2.
	l.Cold = true
	if got := Fetch(r, m, l).Seconds; got < 0.7 || got > 0.9 {
		t.Errorf("64 cold connections: %.3f s, want 0.28 + 0.42 to 0.62", got)
	}
	l.Stripes, l.WindowPackets = 1, -1
	if got := Fetch(r, m, l).Seconds; got < 1 || got > 1.28 {
		t.Errorf("one uncapped cold window: %.3f s, want 1 to 1.28", got)
	}
}

func TestFetchBytes(t *testing.T) {
	t.Parallel()
	const block = 16 * 327_680
	l := Link{RTT: 70 * ms, Goodput: 1e9}
	for _, tc := range []struct {
		name  string
		r     Request
		bytes Bytes
		tail  int64
	}{
		{"one short of a block", Request{PrefixTokens: 16*5 - 1}, 4 * block, 15},
		{"whole blocks", Request{PrefixTokens: 16 * 5}, 5 * block, 0},
		{"one over", Request{PrefixTokens: 16*5 + 1}, 5 * block, 1},
		{"half present", Request{PrefixTokens: 16 * 5, PresentTokens: 32}, 3 * block, 0},
		{"a partial block present does not count", Request{PrefixTokens: 16 * 5, PresentTokens: 33}, 3 * block, 0},
		{"all present", Request{PrefixTokens: 16*5 + 3, PresentTokens: 16 * 5}, 0, 3},
		{"given", Request{PrefixTokens: 16 * 5, MissingBytes: 12_345}, 12_345, 0},
		{"given none", Request{PrefixTokens: 16 * 5, MissingBytes: -1}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := Fetch(tc.r, llama70B(), l)
			if !p.Eligible || p.Bytes != tc.bytes || p.Tokens != tc.tail {
				t.Errorf("eligible %v, %d bytes, %d tail tokens; want %d, %d", p.Eligible, p.Bytes, p.Tokens, tc.bytes, tc.tail)
			}
			want := 3*0.070 + 8*float64(tc.bytes)/1e9
			if math.Abs(p.Seconds-want) > 1e-12 {
				t.Errorf("%v s, want %v", p.Seconds, want)
			}
		})
	}
}

// A coded transfer takes as long as its slowest stage: the wire with what is left of the bytes, or the codec with all of them.
func TestFetchCodec(t *testing.T) {
	t.Parallel()
	r := Request{MissingBytes: 1e9}
	for _, tc := range []struct {
		ratio float64
		codec Rate
		want  float64 // seconds of the bytes at 1 Gbps
		extra float64 // of the codec
		note  string  // of the bytes
		codes string  // note of the codec, empty: there is no such term
	}{
		{0, 0, 8, 0, "at 1 Gbps", ""},
		{1.6, 0, 5, 0, "coded 1.6:1", "unknown, not counted"},
		{1.6, 8e9, 5, 0, "coded 1.6:1", "8 Gbps is no less than the link's"},
		{1.6, 1e9, 5, 3, "coded 1.6:1", "held to 1 Gbps by the codec"},
		{2, 1.25e9, 4, 2.4, "coded 2:1", "held to 1.25 Gbps by the codec"},
	} {
		l := Link{RTT: 70 * ms, Goodput: 1e9, CodecRatio: tc.ratio, CodecRate: tc.codec}
		p := Fetch(r, Model{}, l)
		got, _ := p.Term(TermBytes)
		if math.Abs(got-tc.want) > 1e-6 || p.Bytes != 1e9 {
			t.Errorf("%+v: %v s for %v, want %v", tc, got, p.Bytes, tc.want)
		}
		extra, coded := p.Term(TermCodec)
		if math.Abs(extra-tc.extra) > 1e-6 || coded != (tc.codes != "") {
			t.Errorf("%+v: codec %v s, want %v", tc, extra, tc.extra)
		}
		if tc.codec > 0 {
			if slowest := max(tc.want, 8e9/float64(tc.codec)); math.Abs(got+extra-slowest) > 1e-6 {
				t.Errorf("%+v: %v s, the slowest stage takes %v", tc, got+extra, slowest)
			}
		}
		for _, term := range p.Terms {
			if term.Name == TermBytes && !strings.Contains(term.Note, tc.note) || term.Name == TermCodec && !strings.Contains(term.Note, tc.codes) {
				t.Errorf("note of %s %q, want %q or %q", term.Name, term.Note, tc.note, tc.codes)
			}
		}
	}
	if p := Fetch(r, Model{}, Link{RTT: 70 * ms, Goodput: 1e9, CodecRatio: 0.5}); p.Priced {
		t.Error("a codec that makes pages longer was priced")
	}
	m := Model{BytesPerToken: 125_000}
	c := Compute{SecondsPerToken: 2e-3}
	plain, _ := Crossover(m, c, Link{RTT: 70 * ms, Goodput: 1e9})
	coded, _ := Crossover(m, c, Link{RTT: 70 * ms, Goodput: 1e9, CodecRatio: 2})
	if math.Abs(plain-70) > 0.01 || math.Abs(coded-70.0/1.5) > 0.01 { // 70 ms over 2 − 1 and 2 − 0.5 ms a token
		t.Errorf("crossovers %v and %v", plain, coded)
	}
}

func TestFetchQueues(t *testing.T) {
	t.Parallel()
	l := Link{
		RTT: 70 * ms, Goodput: 1e9, EgressBacklog: 125_000_000, // one second at 1 Gbps
		Queue: &Queue{ServiceRate: 2, Utilization: 0.5}, // Wq = 0.5 s
	}
	p := Fetch(Request{MissingBytes: 250_000_000}, Model{}, l)
	if math.Abs(p.Seconds-(1+0.5+0.21+2)) > 1e-12 {
		t.Errorf("%v s, want 3.71: %+v", p.Seconds, p.Terms)
	}
	for _, tc := range []struct {
		rate  Rate
		ahead float64
	}{{0, 0.5}, {4e9, 0.5}, {1e9, 1}, {0.5e9, 2}} { // coded 2:1, by a codec that the link hides, as far as it does
		l := Link{RTT: 70 * ms, Goodput: 1e9, EgressBacklog: 125_000_000, CodecRatio: 2, CodecRate: tc.rate}
		own := Fetch(Request{MissingBytes: 250_000_000}, Model{}, Link{RTT: 70 * ms, Goodput: 1e9, CodecRatio: 2, CodecRate: tc.rate}).Seconds
		if got := Fetch(Request{MissingBytes: 250_000_000}, Model{}, l).Seconds - own; math.Abs(got-tc.ahead) > 1e-12 {
			t.Errorf("pages ahead, coded at %v, take %v s, want %v", tc.rate, got, tc.ahead)
		}
	}
	l.Queue.Utilization = 1
	if p := Fetch(Request{MissingBytes: 1}, Model{}, l); p.Refusal != RefusalUnstable || p.Priced {
		t.Errorf("at utilization 1: %+v", p)
	}
	if p := Fetch(Request{MissingBytes: -1}, Model{}, l); math.Abs(p.Seconds-0.21) > 1e-12 || !p.Eligible {
		t.Errorf("nothing to move waits in no queue: %+v", p)
	}
	if p := Fetch(Request{MissingBytes: -1, RoundTrips: -1}, Model{}, l); p.Seconds != 0 {
		t.Errorf("negative round trips are none: %v s", p.Seconds)
	}
}

func TestFetchNamesWhatIsUnknown(t *testing.T) {
	t.Parallel()
	p := Fetch(Request{PrefixTokens: 100}, Model{}, Link{})
	const want = "unknown: Model.BytesPerToken (or Request.MissingBytes), Link.RTT, " +
		"Link.Goodput (measured) or Link.PriorGoodput (configured)"
	if p.Eligible || p.Priced || p.Refusal != RefusalMissingInput || p.Reason != want {
		t.Errorf("%+v", p)
	}
	p = Fetch(Request{PrefixTokens: 100}, llama70B(), Link{RTT: 70 * ms})
	if p.Refusal != RefusalMissingInput || !strings.Contains(p.Reason, "Link.PriorGoodput") {
		t.Errorf("%+v", p)
	}
}

func TestLinkSource(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Link{
		"measured 3s ago":                              {Goodput: 2e9, PriorGoodput: 1e9, Age: 3 * time.Second},
		"measured 1.5s ago (last 5 chunks)":            {Goodput: 2e9, Age: 1500 * ms, Source: "last 5 chunks"},
		"prior: configured 1 Gbps, not measured":       {PriorGoodput: 1e9},
		"unknown: not measured, no prior configured":   {Source: "nobody"},
		"prior: configured 250 Mbps, not measured (x)": {PriorGoodput: 250e6, Source: "x"},
	} {
		if got := l.source(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCrossover(t *testing.T) {
	t.Parallel()
	in := CrossoverPreset().Input
	m, c, l := in.parts()
	if n, ok := Crossover(m, c, l); !ok || math.Round(n) != 214 {
		t.Errorf("%v, %v; want 214", n, ok)
	}
	// One stock connection is slower than the prefill: 2P/F = 354 us, 8β/1.66 Gbps = 1,580 us.
	l.WindowPackets, l.PacketBytes = 0, 1452
	if n, ok := Crossover(m, c, l); ok {
		t.Errorf("capped: %v tokens, want none", n)
	}
	l.WindowPackets = -1
	for name, spoil := range map[string]func(m *Model, c *Compute, l *Link){
		"no bytes":    func(m *Model, _ *Compute, _ *Link) { m.BytesPerToken = 0 },
		"no params":   func(m *Model, _ *Compute, _ *Link) { m.ParamsActive = 0 },
		"no goodput":  func(_ *Model, _ *Compute, l *Link) { l.Goodput = 0 },
		"no rtt":      func(_ *Model, _ *Compute, l *Link) { l.RTT = 0 },
		"invalid":     func(_ *Model, _ *Compute, l *Link) { l.Stripes = -1 },
		"cheap token": func(_ *Model, c *Compute, _ *Link) { c.SecondsPerToken = 1e-9 },
	} {
		m, c, l := in.parts()
		spoil(&m, &c, &l)
		if n, ok := Crossover(m, c, l); ok || n != 0 {
			t.Errorf("%s: %v tokens, want none", name, n)
		}
	}
}
