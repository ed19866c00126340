package hybrid

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
)

// Config is what Run takes. Zero means the documented default.
type Config struct {
	// Seed makes the draws. The same seed gives the same numbers on every machine.
	Seed uint64
	// Quick makes all defaults small, for CI.
	Quick bool
	// Goodputs are what past transfers on the link gave, bits a second, 1e6 to 1e12 each, at most 20. Default 1, 5, 25 and 100 Gbps;
	// quick: 5 and 25. Beside each of them, for every other setting the one is measured at which fetch and recompute take equally long.
	Goodputs []float64
	// RTTs are round-trip times, 1 ms to 1 s each, at most 20. Default 20, 70 and 150 ms; quick: 70 ms.
	RTTs []time.Duration
	// PrefixTokens are lengths of a session, 16 to 2²⁰ tokens each, at most 20; they are cut to whole blocks. Default 2048, 8192, 32768 and 131072;
	// quick: 8192 and 32768.
	PrefixTokens []int64
	// GPUs are names of GPUs, at the destination. Default all of them; quick: the first two. See GPUNames.
	GPUs []string
	// Sigmas are standard deviations of the logarithm of the true goodput, whose mean is what was believed: 0 to 2 each, at most 20.
	// Default 0, 0.25, 0.5 and 0.8.
	Sigmas []float64
	// Draws is how many migrations are simulated a cell, 100 to 1,000,000. Default 1000.
	Draws int
	// Model names the preset. Default llama-3.1-70b.
	Model string
	// RoundTrips is n_rtt, 1 to 100: how many round trips pass before the first byte lands and a session is warm. Default 3.
	RoundTrips float64
	// CodecRatio is raw bytes over coded ones, 1 to 100. Default 1.
	CodecRatio float64
	// ClaimBlocks is how many blocks a claim of the engine asks for, 1 to 4096. Default 32: 512 tokens of 16 a block.
	ClaimBlocks int
	// ClaimSeconds is what a claim costs the front: a call within the host, and what an engine pays for prefilling in pieces. 1 µs to 1 s; default
	// 100 µs.
	ClaimSeconds float64

	// Real is how many migrations are made with real bytes beside the simulation, in real time: between two daemons over the link model, into an
	// engine that takes the time of a GPU. At most 1000. Default 12, quick: none; negative: none.
	Real int

	// Progress is told how far the run is. Nil: nobody is.
	Progress *results.Progress
}

// gpu is what prefills.
type gpu struct {
	name string
	peak float64 // FLOP a second, dense
}

// gpus are those that a cell can have. Peaks: NVIDIA's data sheet of H100 SXM, dense. One H100 holds no 70B model in BF16; it is the base model's.
var gpus = []gpu{{"2xH100-FP8", 2 * 1979e12}, {"1xH100-BF16", 989e12}, {"8xH100-BF16", 8 * 989e12}}

// GPUNames are what Config.GPUs takes. The caller owns the slice.
func GPUNames() []string {
	var names []string
	for _, g := range gpus {
		names = append(names, g.name)
	}
	return names
}

// InputError is a value that is not allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s is %s: must be %s", e.Field, e.Value, e.Allowed)
}

// maxCells bounds a run; maxWork its blocks over all draws.
const (
	maxCells = 5000
	maxWork  = 5e11
	maxList  = 20
)

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// list is a copy of v, or a default.
func list[T any](v []T, quick bool, short, long []T) []T {
	switch {
	case len(v) > 0:
		return slices.Clone(v)
	case quick:
		return short
	}
	return long
}

func (c Config) withDefaults() Config {
	ms := time.Millisecond
	c.Goodputs = list(c.Goodputs, c.Quick, []float64{5e9, 25e9}, []float64{1e9, 5e9, 25e9, 100e9})
	c.RTTs = list(c.RTTs, c.Quick, []time.Duration{70 * ms}, []time.Duration{20 * ms, 70 * ms, 150 * ms})
	c.PrefixTokens = list(c.PrefixTokens, c.Quick, []int64{8192, 32768}, []int64{2048, 8192, 32768, 131072})
	c.GPUs = list(c.GPUs, c.Quick, GPUNames()[:2], GPUNames())
	c.Sigmas = list(c.Sigmas, false, nil, []float64{0, .25, .5, .8})
	c.Draws = orDefault(c.Draws, 1000)
	c.Model = orDefault(c.Model, "llama-3.1-70b")
	c.RoundTrips = orDefault(c.RoundTrips, float64(planner.DefaultRoundTrips))
	c.CodecRatio = orDefault(c.CodecRatio, 1)
	c.ClaimBlocks = orDefault(c.ClaimBlocks, 32)
	c.ClaimSeconds = orDefault(c.ClaimSeconds, 100e-6)
	if c.Real == 0 && !c.Quick {
		c.Real = 12
	}
	return c
}

// Validate reports every fault, joined; those of fields are *InputErrors.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	each(c.Goodputs, "goodput", check, func(v float64) bool { return v >= 1e6 && v <= 1e12 }, "1 Mbps to 1 Tbps")
	each(c.RTTs, "rtt", check, func(v time.Duration) bool { return v >= time.Millisecond && v <= time.Second }, "1ms to 1s")
	each(c.PrefixTokens, "prefix", check, func(v int64) bool { return v >= 16 && v <= 1<<20 }, "16 to 1048576 tokens")
	each(c.Sigmas, "sigma", check, func(v float64) bool { return v >= 0 && v <= 2 }, "0 to 2")
	each(c.GPUs, "gpu", check, func(v string) bool { return slices.Contains(GPUNames(), v) }, "one of "+strings.Join(GPUNames(), ", "))
	check(c.Draws >= 100 && c.Draws <= 1_000_000, "draws", c.Draws, "100 to 1000000")
	check(c.Real <= maxReal, "real", c.Real, fmt.Sprintf("at most %d", maxReal))
	check(c.RoundTrips >= 1 && c.RoundTrips <= 100, "round trips", c.RoundTrips, "1 to 100")
	check(c.CodecRatio >= 1 && c.CodecRatio <= 100, "codec ratio", c.CodecRatio, "1 to 100")
	check(c.ClaimBlocks >= 1 && c.ClaimBlocks <= 4096, "claim", c.ClaimBlocks, "1 to 4096 blocks")
	check(c.ClaimSeconds >= 1e-6 && c.ClaimSeconds <= 1, "claim seconds", c.ClaimSeconds, "1e-6 to 1")
	p, err := kvstore.PresetByName(c.Model)
	if err != nil {
		errs = append(errs, &InputError{"model", c.Model, "a preset: " + presetNames()})
	} else {
		cells := (len(c.Goodputs) + 1) * len(c.RTTs) * len(c.PrefixTokens) * len(c.GPUs) * len(c.Sigmas)
		check(cells <= maxCells, "grid", fmt.Sprintf("%d cells", cells), fmt.Sprintf("at most %d", maxCells))
		blocks := int64(0)
		for _, n := range c.PrefixTokens {
			blocks += n / int64(p.Layout.BlockTokens)
			check(n >= int64(p.Layout.BlockTokens), "prefix", n, fmt.Sprintf("at least a block of %d tokens", p.Layout.BlockTokens))
		}
		work := float64(blocks) * float64(c.Draws) * float64(cells/len(c.PrefixTokens))
		check(work <= maxWork, "draws", c.Draws, fmt.Sprintf("so many that all cells have at most %g blocks", maxWork))
	}
	return errors.Join(errs...)
}

// each checks the values of a list, that they are few and that none is there twice.
func each[T comparable](values []T, field string, check func(bool, string, any, string), ok func(T) bool, allowed string) {
	check(len(values) <= maxList, field, fmt.Sprintf("%d values", len(values)), fmt.Sprintf("at most %d", maxList))
	for i, v := range values {
		check(ok(v), field, v, allowed)
		check(!slices.Contains(values[:i], v), field, v, "given once")
	}
}

func presetNames() string {
	var names []string
	for _, p := range kvstore.Presets() {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// params are what the numbers depend on.
func (c Config) params() map[string]any {
	rtts := make([]float64, len(c.RTTs))
	for i, r := range c.RTTs {
		rtts[i] = r.Seconds()
	}
	return map[string]any{
		"seed": c.Seed, "goodput_bps": c.Goodputs, "rtt_seconds": rtts, "prefix_tokens": c.PrefixTokens, "gpus": c.GPUs, "sigmas": c.Sigmas,
		"draws": c.Draws, "model": c.Model, "round_trips": c.RoundTrips, "codec_ratio": c.CodecRatio, "claim_blocks": c.ClaimBlocks,
		"claim_seconds": c.ClaimSeconds,
	}
}
