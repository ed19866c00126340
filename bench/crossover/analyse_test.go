package crossover

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/kvstore"
)

// sweep makes samples of two lines with noise of a standard deviation.
func sweep(fetch, recompute Line, sigma float64, rounds int, seed uint64) []*samples {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []*samples
	for _, n := range []int64{32, 64, 96, 128, 192, 256} {
		p := &samples{tokens: n}
		for range rounds {
			p.fetch = append(p.fetch, fetch.at(float64(n))+sigma*rng.NormFloat64())
			p.recompute = append(p.recompute, recompute.at(float64(n))+sigma*rng.NormFloat64())
		}
		out = append(out, p)
	}
	return out
}

// The crossover of two lines without noise is their closed form; with noise the interval holds it.
func TestMeasured(t *testing.T) {
	fetch, recompute := Line{FixedSeconds: 0.21, SecondsPerToken: 1e-3}, Line{FixedSeconds: 0.01, SecondsPerToken: 3e-3}
	m := measured(sweep(fetch, recompute, 0, 3, 0), 1)
	if m.Verdict != Crosses || math.Abs(m.Crossover.Mean-100) > 1e-6 || m.Crossover.High-m.Crossover.Low > 1e-6 || *m.Bracket != [2]int64{96, 128} || m.Extrapolated {
		t.Errorf("measured %+v, %+v", m, m.Crossover)
	}
	held, trials := 0, 20
	if testing.Short() {
		trials = 3
	}
	for seed := range uint64(trials) {
		m := measured(sweep(fetch, recompute, 5e-3, 5, seed), seed)
		if m.Crossover != nil && m.Crossover.Low <= 100 && 100 <= m.Crossover.High {
			held++
		}
	}
	if held < trials*9/10 {
		t.Errorf("the interval of 95 %% held the truth in %d of %d", held, trials)
	}
	for _, tc := range []struct {
		name      string
		fetch     Line
		recompute Line
		want      Verdict
		at        float64
	}{
		{"slower a token", Line{FixedSeconds: .2, SecondsPerToken: 3e-3}, Line{SecondsPerToken: 1e-3}, NeverPays, 0},
		{"equal a token", Line{FixedSeconds: .2, SecondsPerToken: 1e-3}, Line{SecondsPerToken: 1e-3}, NeverPays, 0},
		{"cheaper to start", Line{FixedSeconds: .1, SecondsPerToken: 1e-3}, Line{FixedSeconds: .3, SecondsPerToken: 2e-3}, AlwaysPays, 0},
		{"cheaper to start, slower a token", Line{FixedSeconds: .1, SecondsPerToken: 2e-3}, Line{FixedSeconds: .2, SecondsPerToken: 1e-3}, PaysToLimit, 100},
		{"beyond", Line{FixedSeconds: 3, SecondsPerToken: 1e-3}, Line{SecondsPerToken: 3e-3}, Crosses, 1500},
	} {
		m := measured(sweep(tc.fetch, tc.recompute, 0, 2, 0), 0)
		if m.Verdict != tc.want || (tc.at > 0) != (m.Crossover != nil) || tc.at > 0 && math.Abs(m.Crossover.Mean-tc.at) > 1e-6 || m.Extrapolated != (tc.at > 256) {
			t.Errorf("%s: %+v, %+v", tc.name, m, m.Crossover)
		}
	}
}

func typical() inputs {
	return inputs{bytesPerToken: 131072, blockTokens: 16, rtt: 70 * time.Millisecond, goodput: 950e6, stripes: 8, trips: 3, perToken: 3e-3}
}

// Three round trips over what a token gains.
func TestPredictedCrossover(t *testing.T) {
	for _, fixed := range []float64{0, 0.05} {
		in := typical()
		in.fixed = fixed
		want := (0.21 - fixed) / (3e-3 - 131072*8/950e6)
		if got, ok := in.crossover(); !ok || math.Abs(got-want) > 1e-6 {
			t.Errorf("fixed %v: crossover %v, %v; want %v", fixed, got, ok, want)
		}
	}
	in := typical()
	in.perToken = 1e-3
	if got, ok := in.crossover(); ok {
		t.Errorf("a crossover %v where a token is slower to fetch", got)
	}
	in.fixed = 5 // cheaper from the first token to some far one
	if got, ok := in.crossover(); ok {
		t.Errorf("a crossover %v where fetch is faster up to a limit only", got)
	}
}

// Lengths are few, rising, whole blocks within bounds, on both sides of a crossover that lies within them.
func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		in := typical()
		in.blockTokens = 1 << rng.IntN(8)
		in.goodput = math.Exp(rng.Float64()*10) * 1e7
		in.perToken = math.Exp(rng.Float64()*10) * 1e-6
		longest := int64(2*in.blockTokens) + rng.Int64N(1<<14)
		got := lengths(in, i%2 == 0, longest)
		if len(got) < 2 || len(got) > 8 || !slices.IsSorted(got) {
			t.Fatalf("%+v to %d: lengths %v", in, longest, got)
		}
		for k, n := range got {
			if n < 1 || n > longest || n%int64(in.blockTokens) != 0 || k > 0 && n == got[k-1] {
				t.Fatalf("%+v to %d: lengths %v", in, longest, got)
			}
		}
		if x, ok := in.crossover(); ok && x > float64(2*in.blockTokens) && x < float64(longest-int64(in.blockTokens)) && (float64(got[0]) > x || float64(got[len(got)-1]) < x) {
			t.Fatalf("%+v to %d: lengths %v, crossover %v", in, longest, got, x)
		}
		if kept := afford(in, got, 0); len(kept) != 2 || kept[0] != got[0] {
			t.Fatalf("%v cut to %v", got, kept)
		}
		half := in.round(got) / 2
		kept := afford(in, got, half)
		if len(kept) > 2 && in.round(kept) > half || !slices.IsSorted(kept) {
			t.Fatalf("%v cut to %v of %v s", got, kept, half)
		}
		if x, ok := in.crossover(); ok && len(kept) > 2 && float64(got[len(got)-1]) > x && float64(kept[len(kept)-1]) < x && in.round(kept[:3]) < half/2 {
			t.Fatalf("%v cut to %v, below the crossover %v", got, kept, x)
		}
	}
}

func TestValidate(t *testing.T) {
	ok := Config{WAN: wan.Model{RTT: 70 * time.Millisecond, Rate: 1e9}, PrefillSecondsPerToken: 3e-3}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := ok.withDefaults().Stripes; got != 0 { // as daemons have it
		t.Errorf("%d stripes by default", got)
	}
	for field, edit := range map[string]func(*Config){
		"wan":                       func(c *Config) { c.WAN.RTT = 0 },
		"model":                     func(c *Config) { c.Model = "gpt-0" },
		"engine":                    func(c *Config) { c.Engine = "steam" },
		"prefill seconds per token": func(c *Config) { c.PrefillSecondsPerToken = math.NaN() },
		"openai":                    func(c *Config) { c.Engine, c.PrefillSecondsPerToken, c.OpenAIURL = EngineOpenAI, 0, "ftp://x" },
		"rtt":                       func(c *Config) { c.RTT = -1 },
		"goodput":                   func(c *Config) { c.Goodput = math.Inf(1) },
		"max prefix":                func(c *Config) { c.MaxPrefix = 16 },
		"round trips":               func(c *Config) { c.RoundTrips = -1 },
		"repeats":                   func(c *Config) { c.Repeats = -1 },
		"budget":                    func(c *Config) { c.Budget = time.Millisecond },
		"stripes":                   func(c *Config) { c.Stripes = 65 },
		"arena":                     func(c *Config) { c.ArenaBytes = 1 << 20 },
		"lengths":                   func(c *Config) { c.Lengths = []int64{16} },
		"lengths ":                  func(c *Config) { c.Lengths = make([]int64, 1000) },
		"length":                    func(c *Config) { c.Lengths = []int64{16, 17} },
	} {
		c := ok
		edit(&c)
		err := c.Validate()
		if in, is := errors.AsType[*InputError](err); !is || in.Field != strings.TrimSpace(field) || len(in.Value) > 100 || in.Allowed == "" {
			t.Errorf("%s: error %v", field, err)
		}
	}
	for _, dir := range []string{"relative", ".", "/not/there", "/dev/null"} {
		c := ok
		c.ArenaDir = dir
		if in, is := errors.AsType[*InputError](c.Validate()); !is || in.Field != "arena dir" || in.Value != dir {
			t.Errorf("arena folder %s: %v", dir, c.Validate())
		}
	}
	both := ok
	both.Repeats, both.Stripes = -1, 65
	if err := both.Validate(); len(err.(interface{ Unwrap() []error }).Unwrap()) != 2 {
		t.Errorf("two faults: %v", err)
	}
	mla := Config{WAN: ok.WAN, Engine: EngineReal, Model: "deepseek-v3"}
	if err := mla.Validate(); err == nil {
		t.Error("the reference engine took a latent cache")
	}
	far := ok
	far.Lengths = []int64{16, 1 << 16}
	if err := far.Validate(); err == nil {
		t.Error("a prefix beyond the arena was taken")
	}
}

func presetOf(t *testing.T, name string) kvstore.Preset {
	t.Helper()
	p, err := kvstore.PresetByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each predicted time that is off by more than a tenth is named, and no other.
func TestCaution(t *testing.T) {
	at := func(n int64, fetch, predictedFetch, recompute, predictedRecompute float64) Point {
		return Point{PrefixTokens: n, Fetch: Spread{Median: fetch}, PredictedFetch: predictedFetch, Recompute: Spread{Median: recompute}, PredictedRecompute: predictedRecompute}
	}
	slow := &Result{Rounds: 5, Machine: MachineState{SyncP90: 0.15}}
	if slow.caution(); len(slow.warnings) != 1 || !strings.Contains(slow.warnings[0], "the disk took up to 150 ms to sync a record") {
		t.Errorf("warnings of a slow disk %q", slow.warnings)
	}
	res := &Result{Rounds: 5, Machine: MachineState{SyncP90: 2e-3}, Points: []Point{at(32, 1, 0.89, 1, 1.09), at(48, 1, 0.91, 1, 1.11), at(64, 1, 1, 1, 1), at(80, 0, 1, 0, 1)}}
	res.caution()
	if len(res.warnings) != 2 || !strings.Contains(res.warnings[0], "-11.0 %: fetch of 32 tokens took 1 s, predicted 890 ms") || !strings.Contains(res.warnings[1], "+11.0 %: recompute of 48 tokens") {
		t.Errorf("warnings %q", res.warnings)
	}
}

// A prefill that takes longer than stated is late by a share of what was stated.
func TestLatePrefill(t *testing.T) {
	late := &Result{Rounds: 5, Engine: EnginePaced, TimeErrorPct: TimeErrors{Recompute: errorPct([]Point{{PrefixTokens: 64}}, func(Point) (float64, float64) { return 0.192, 0.2108 })}}
	if late.caution(); len(late.warnings) != 1 || !strings.Contains(late.warnings[0], "took 9.8 % longer than stated (64 tokens)") { // 0.2108/0.192 = 1.0979
		t.Errorf("warnings %q", late.warnings)
	}
}

// What set the number: a machine that was late during the rounds is named even where the link was full before them.
func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		link  string
		share float64
		state MachineState
		want  string
	}{
		{"full", "rtt=70ms,rate=1Gbps", 0.95, MachineState{CPUShare: 0.2, LagP99: 2e-3}, LimitLink},
		{"full, then late", "rtt=70ms,rate=1Gbps", 0.95, MachineState{CPUShare: 0.2, LagP99: 17e-3}, LimitMachine},
		{"full, then dropped", "rtt=70ms,rate=1Gbps", 0.95, MachineState{ReceiverDrops: 1}, LimitMachine},
		{"busy", "rtt=70ms,rate=1Gbps", 0.5, MachineState{CPUShare: 0.9}, LimitMachine},
		{"windows", "rtt=70ms,rate=100Gbps", 0.1, MachineState{}, LimitWindow},
		{"loss", "rtt=70ms,rate=1Gbps,loss=0.001", 0.5, MachineState{}, LimitLoss},
		{"congestion", "rtt=70ms,rate=1Gbps", 0.5, MachineState{}, LimitCongestion},
		{"no rate", "rtt=70ms", 0, MachineState{}, LimitMachine},
	} {
		m := link(t, tc.link)
		r := &run{cfg: Config{WAN: m}}
		by, why := r.limit(&Result{Machine: tc.state, Calibration: Calibration{Stripes: 8, RTTMinSeconds: 0.07, LongestGoodputBps: tc.share * m.Rate}})
		if by != tc.want || why == "" {
			t.Errorf("%s: %s, %s; want %s", tc.name, by, why, tc.want)
		}
	}
}
