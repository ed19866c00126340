package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/hybrid"
	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/results"
)

func ptr[T any](v T) *T { return &v }

var day = time.Date(2026, 11, 29, 23, 50, 0, 0, time.UTC)

// file makes a result with that body.
func file(t *testing.T, kind string, body any) *results.File {
	t.Helper()
	f := results.New(kind, []string{"kvferry", "bench", kind, "--wan=rtt=70ms,rate=1Gbps", "--note=it's"}, map[string]any{"seed": 1})
	f.Started, f.Seconds, f.Commit = day, 36.94, "abc123"
	f.Machine = results.Machine{OS: "linux", Arch: "amd64", CPU: "Some Processor", Cores: 2, MemoryBytes: 64 << 30, Kernel: "6.18", Clocksource: "tsc", GoVersion: "go1.26", GoMaxProcs: 2}
	f.Versions = map[string]string{"go": "go1.26", "kvferry": "v0"}
	if err := f.SetBody(body); err != nil {
		t.Fatal(err)
	}
	return f
}

// crossing is a crossover at 120 tokens, predicted at 114.
func crossing() *crossover.Result {
	r := &crossover.Result{
		Measured: crossover.Measured{
			Verdict: crossover.Crosses, Crossover: &crossover.Interval{Mean: 120, Low: 110, High: 131}, Bracket: &[2]int64{112, 128},
			Fetch: crossover.Line{FixedSeconds: 0.24, SecondsPerToken: 1e-3, R2: 1}, Recompute: crossover.Line{SecondsPerToken: 3e-3, R2: 1},
		},
		Predicted: crossover.Predicted{
			Crossover: ptr(114.0), BaseCrossover: ptr(38.0), RTTSeconds: 0.07, RTTSource: "measured", GoodputBps: 950e6, GoodputSource: "measured", RoundTrips: 3,
			PrefillSecondsPerToken: 3e-3, PrefillSource: "stated", BytesPerToken: 131072, FetchSecondsPerToken: 1.1e-3,
		},
		ErrorPct: ptr(-5.0), WAN: "rtt=70ms,rate=1Gbps,loss=0", Model: "llama-3.1-8b", Engine: crossover.EnginePaced, EngineWhat: "paced, 3000 us a token", BlockTokens: 16, Rounds: 3,
		LimitedBy: crossover.LimitLink, Why: "the rate", Conclusion: "What came of it.",
	}
	for _, n := range []int64{48, 112, 224} {
		fetch, recompute := 0.24+1e-3*float64(n), 3e-3*float64(n)
		r.Points = append(r.Points, crossover.Point{
			PrefixTokens: n, Blocks: n / 16, Bytes: n * 131072, Fetch: crossover.Spread{Median: fetch, Low: fetch - 0.01, High: fetch + 0.01},
			Recompute: crossover.Spread{Median: recompute, Low: recompute, High: recompute}, PredictedFetch: fetch, PredictedRecompute: recompute, DaemonFetch: fetch,
			FetchSamples: []float64{fetch}, RecomputeSamples: []float64{recompute},
		})
	}
	return r
}

// flowing is goodput of one and eight connections, the link being the limit.
func flowing() goodput.Body {
	one := func(stripes int, bps float64) *goodput.Outcome {
		m := func(v float64) *goodput.Measure {
			return &goodput.Measure{Complete: true, Bytes: 128 << 20, Seconds: float64(128<<20) * 8 / v, GoodputBps: v}
		}
		return &goodput.Outcome{
			Stripes: stripes, GoodputBps: bps, EffectiveBps: bps, LinkShare: ptr(bps / 1e9), Bytes: 128 << 20, Blocks: 26, BlockBytes: 5 << 20, PageBytes: 64 << 10, ChunkBytes: 1 << 20,
			CPU: goodput.CPU{Source: ptr(3.5), Destination: ptr(3.0), Shared: ptr(0.5)}, Cold: m(bps / 2), Runs: []*goodput.Measure{m(bps), m(bps * 1.01), m(bps * 0.99), m(bps * 1.005), m(bps * 0.995)},
			LimitedBy: goodput.LimitLink, Why: "the rate", Warnings: []string{},
		}
	}
	b := goodput.Body{Form: goodput.FormWAN, WAN: "rtt=70ms,rate=1Gbps,loss=0", Configurations: []*goodput.Outcome{one(1, 400e6), one(8, 940e6)}}
	b.Outcome = *b.Configurations[1]
	return b
}

// waiting is a queue's result with two points and a crossover.
func waiting() *queue.Result {
	r := &queue.Result{Conclusion: "Waits follow the law.", Points: []queue.Point{}}
	for _, u := range []float64{0.3, 0.6} {
		w := 0.05 * u / (1 - u)
		r.Points = append(r.Points, queue.Point{
			Source: queue.SourceSimulator, Discipline: "fifo", Service: queue.Exponential, Utilization: u, ServiceSeconds: 0.05, ServiceSCV: 1, Jobs: 1000,
			Wait: queue.Wait{Measured: w}, WaitInterval: queue.Interval{Low: 0.9 * w, High: 1.1 * w, Level: 0.95},
		})
	}
	r.Crossover = &queue.Crossover{
		Measured: queue.Measured{Mean: 0.72, Low: 0.71, High: 0.73}, Predicted: 0.7255, FetchSeconds: 0.08573, RecomputeSeconds: 0.21234, ServiceRate: 20, ComputeUtilization: 0.1,
		Laws: []queue.LawCrossover{
			{Law: "M/M/1", Discipline: "fifo", Service: queue.Exponential, Measured: queue.Measured{Mean: 0.72, Low: 0.71, High: 0.73}, Predicted: 0.7255},
			{Law: "M/G/1, lognormal", Discipline: "fifo", Service: queue.Lognormal, Measured: queue.Measured{Mean: 0.54, Low: 0.53, High: 0.55}, Predicted: 0.54},
		},
	}
	return r
}

// bothEnds is hybrid's result of one cell, its p99 being so much of recompute's.
func bothEnds(p99 float64) *hybrid.Result {
	r := &hybrid.Result{Draws: 1000, Conclusion: "Hybrid follows the oracle.", Cells: []hybrid.Cell{{
		GoodputBps: 5e9, RTTSeconds: .07, PrefixTokens: 8192, PrefillUsPerToken: 100, Sigma: .5, GPU: "2xH100-FP8",
		Fetch: hybrid.Seconds{Mean: 2, P99: 9}, Recompute: hybrid.Seconds{Mean: 1, P99: 1}, StaticSplit: hybrid.Seconds{Mean: .8, P99: 3},
		Hybrid: hybrid.Seconds{Mean: .67, P99: p99}, Oracle: hybrid.Seconds{Mean: .66, P99: .9}, Regret: .015, Gain: 1.5,
	}}}
	met := 1
	if p99 > 1.12 {
		met = 0
	}
	r.Aims = []hybrid.Aim{{Name: hybrid.AimRegret50, Limit: .1, Cells: 1, Met: 1, Worst: .015}, {Name: hybrid.AimP99, Limit: 1, Cells: 1, Met: met, Worst: p99 / 1.12}}
	return r
}

// all is a result of each kind, and one of another.
func all(t *testing.T) []Input {
	t.Helper()
	other := file(t, results.KindCodec, map[string]any{"x": 1})
	other.Add(results.Metric{Name: "encode", Unit: "B", Better: results.Higher, Samples: []float64{1 << 30, 2 << 30}})
	out := []Input{
		{"queue", file(t, results.KindQueue, waiting())}, {"goodput", file(t, results.KindGoodput, flowing())}, {"crossover", file(t, results.KindCrossover, crossing())}, {"codec", other},
	}
	for i := range out {
		out[i].File.Warn("caution %d", i)
		out[i].Name = fmt.Sprintf("%s.json", out[i].Name)
	}
	return out
}
