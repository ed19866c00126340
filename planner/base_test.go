package planner

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The published numbers of the base model, digit by digit, as the command line prints them.
func TestEvaluateBasePrintsPublishedNumbers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		preset    BasePreset
		overrides BaseInput
		want      string
	}{
		{
			"crossover, 1000 tokens", CrossoverPreset(),
			BaseInput{PrefixTokens: 1000},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":26.21,"crossover_tokens":214,` +
				`"recompute_seconds":0.35389,"fetch_seconds":0.09621,"crossover_utilization":null}`,
		},
		{
			"crossover at 5 Gbps", CrossoverPreset(),
			BaseInput{Goodput: 5e9},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":524.29,"crossover_tokens":null,` +
				`"recompute_seconds":0.35389,"fetch_seconds":0.59429,"crossover_utilization":null}`,
		},
		{
			"crossover at 140 ms", CrossoverPreset(),
			BaseInput{RTT: 140 * time.Millisecond},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":26.21,"crossover_tokens":427,` +
				`"recompute_seconds":0.35389,"fetch_seconds":0.16621,"crossover_utilization":null}`,
		},
		{
			"crossover, 8000 tokens", CrossoverPreset(),
			BaseInput{PrefixTokens: 8000},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":26.21,"crossover_tokens":214,` +
				`"recompute_seconds":2.83114,"fetch_seconds":0.27972,"crossover_utilization":null}`,
		},
		{
			"utilization, 600 tokens", UtilizationPreset(),
			BaseInput{PrefixTokens: 600},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":26.21,"crossover_tokens":214,` +
				`"recompute_seconds":0.21234,"fetch_seconds":0.08573,"crossover_utilization":0.7255}`,
		},
		{
			"utilization at 105 ms", UtilizationPreset(),
			BaseInput{RTT: 105 * time.Millisecond},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":26.21,"crossover_tokens":320,` +
				`"recompute_seconds":0.21234,"fetch_seconds":0.12073,"crossover_utilization":0.6602}`,
		},
		{
			"utilization, fetch slower with no queue", UtilizationPreset(),
			BaseInput{Goodput: 1e9},
			`{"bytes_per_token":327680,"recompute_us_per_token":353.89,"fetch_us_per_token":2621.44,"crossover_tokens":null,` +
				`"recompute_seconds":0.21234,"fetch_seconds":1.64286,"crossover_utilization":null}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := EvaluateBase(tc.preset, tc.overrides)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(got.Rounded())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(text)); diff != "" {
				t.Errorf("printed result (-want +got):\n%s", diff)
			}
		})
	}
}

// "the compute queue's wait (5.56 ms)", and the fetch queue's wait at the crossover closes the gap exactly.
func TestCrossoverUtilizationClosesTheGap(t *testing.T) {
	t.Parallel()
	compute := MM1{ServiceRate: 20, Utilization: 0.1}
	wait, ok := compute.Wait()
	if !ok || math.Abs(wait-0.00556) > 5e-6 {
		t.Fatalf("compute wait = %v, %v; want 5.56 ms", wait, ok)
	}
	base, err := EvaluateBase(UtilizationPreset(), BaseInput{})
	if err != nil {
		t.Fatal(err)
	}
	fetchWait, ok := MM1{ServiceRate: 20, Utilization: *base.CrossoverUtilization}.Wait()
	if got, want := base.FetchSeconds+fetchWait, base.RecomputeSeconds+wait; !ok || math.Abs(got-want) > 1e-12 {
		t.Errorf("fetch with its wait = %v, recompute with its wait = %v", got, want)
	}
}

// The full planner, with what the base model leaves out switched off, is the base model; at the crossover both modes
// take as long.
func TestDecideContainsTheBaseModel(t *testing.T) {
	t.Parallel()
	in := CrossoverPreset().Input
	m, c, l := in.parts()
	n, ok := Crossover(m, c, l)
	if !ok {
		t.Fatal("no crossover")
	}
	for _, tc := range []struct {
		tokens int64
		want   Mode
	}{
		{1, ModeRecompute},
		{int64(math.Floor(n)), ModeRecompute},
		{int64(math.Ceil(n)), ModeFetch},
		{8000, ModeFetch},
	} {
		d, err := Decide(Request{PrefixTokens: tc.tokens, RoundTrips: 1}, m, c, l)
		if err != nil {
			t.Fatal(err)
		}
		if d.Winner != tc.want {
			t.Errorf("%d tokens: winner %v, want %v (%s)", tc.tokens, d.Winner, tc.want, d.Reason)
		}
		base, err := EvaluateBase(CrossoverPreset(), BaseInput{PrefixTokens: tc.tokens})
		if err != nil {
			t.Fatal(err)
		}
		fetch, _ := d.Plan(ModeFetch)
		recompute, _ := d.Plan(ModeRecompute)
		if fetch.Seconds != base.FetchSeconds || recompute.Seconds != base.RecomputeSeconds {
			t.Errorf("%d tokens: %v and %v, base model %v and %v", tc.tokens, fetch.Seconds, recompute.Seconds,
				base.FetchSeconds, base.RecomputeSeconds)
		}
	}
}
