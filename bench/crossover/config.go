package crossover

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	"github.com/kvferry/kvferry/transfer"
)

// Engines that recompute.
const (
	EnginePaced  = "paced"  // pauses for a stated time a token
	EngineReal   = "real"   // the reference engine, a narrow model with the KV shape of Config.Model, on this processor
	EngineOpenAI = "openai" // an OpenAI-compatible endpoint
)

// Config is what Run takes. Zero means the documented default.
type Config struct {
	// WAN is the link, both directions alike. Its RTT must be above 0.
	WAN wan.Model
	// Model is the name of a preset of package kvstore: what a token's KV cache weighs. Default "llama-3.1-8b".
	Model string
	// Engine recomputes: EnginePaced, EngineReal or EngineOpenAI. Default EnginePaced.
	Engine string
	// PrefillSecondsPerToken is the pace of EnginePaced, in seconds a token, 1e-7 to 10. Required there, not allowed elsewhere.
	PrefillSecondsPerToken float64
	// OpenAIURL is the endpoint of EngineOpenAI, http or https: ".../v1", or the server's root, without a query. Required there, not
	// allowed elsewhere. A user and password in it are sent and not part of any result or error.
	OpenAIURL string
	// OpenAIModel is the model's name there. Default: the first that /v1/models lists.
	OpenAIModel string
	// OpenAIKey goes into the Authorization header. It is not part of any result. Default: none.
	OpenAIKey string
	// RTT and Goodput (bit/s) replace what the calibration measures as inputs of the prediction. Zero: measured.
	RTT     time.Duration
	Goodput float64
	// RoundTrips is what the prediction charges a migration besides its bytes, as the daemons' link.round_trips does; above 0 to
	// 1000. Default 3.
	RoundTrips float64
	// Lengths are the prefix lengths of the sweep in tokens, multiples of the model's block, 2 to 32 of them. Default: about
	// the predicted crossover, from a quarter to three times of it.
	Lengths []int64
	// MaxPrefix bounds the lengths that are chosen, in tokens: 2 blocks to 1 Mi. Default 8,192.
	MaxPrefix int64
	// Repeats is the number of rounds, each of which measures every length once; 1 to 1000. Default 6; quick: 3.
	Repeats int
	// Budget bounds the time of the rounds: lengths are chosen for it, and once it is over no further round begins after the
	// third. Default 45 s; quick: 15 s.
	Budget time.Duration
	// Quick means fewer lengths and rounds.
	Quick bool
	// Stripes is the number of connections, 1 to 64. Default 0: as many as the path needs, as daemons have it by default.
	Stripes int
	// ArenaDir is a folder on a memory filesystem for the daemons' arenas, an absolute path. Default /dev/shm where that is, else the system's
	// folder for temporary files.
	ArenaDir string
	// ArenaBytes bounds each daemon's arena, and with it the longest prefix, which takes half of it. Default 1 GiB.
	ArenaBytes int64
	// Seed makes names, and with them bytes, the order of each round and the draws of the bootstrap.
	Seed uint64
	// Progress is told at each step, from the goroutine of Run.
	Progress func(Progress)
}

// Progress says where a run stands.
type Progress struct {
	Stage string // "calibrate", or "round 2 of 5"
	// Done and Total are seconds of estimated work of the stage; Total is 0 when it is not known.
	Done, Total float64
}

// InputError is a value that is not allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s %q: want %s", e.Field, e.Value, e.Allowed)
}

const (
	defaultModel     = "llama-3.1-8b"
	defaultMaxPrefix = 8192
	maxTokens        = 1 << 20
	defaultArena     = 1 << 30
	maxLengths       = 32
	memoryDir        = "/dev/shm"
)

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func (c Config) withDefaults() Config {
	c.Model = strings.ToLower(orDefault(c.Model, defaultModel))
	c.Engine = orDefault(c.Engine, EnginePaced)
	c.MaxPrefix = orDefault(c.MaxPrefix, defaultMaxPrefix)
	repeats, budget := 6, 45*time.Second
	if c.Quick {
		repeats, budget = 3, 15*time.Second
	}
	c.Repeats = orDefault(c.Repeats, repeats)
	c.Budget = orDefault(c.Budget, budget)
	c.RoundTrips = orDefault(c.RoundTrips, planner.DefaultRoundTrips)
	c.ArenaBytes = orDefault(c.ArenaBytes, defaultArena)
	c.Lengths = slices.Clone(c.Lengths)
	slices.Sort(c.Lengths)
	if c.ArenaDir == "" {
		c.ArenaDir = os.TempDir()
		if st, err := os.Stat(memoryDir); err == nil && st.IsDir() {
			c.ArenaDir = memoryDir
		}
	}
	return c
}

// Validate reports every fault, joined; each is an *InputError.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	err := c.WAN.Validate()
	check(err == nil, "wan", c.WAN, fmt.Sprintf("a link that can be (%v)", err))
	check(c.WAN.RTT > 0, "wan", c.WAN, "a round-trip time above 0: without one there is nothing that a long prefix has to make up for")
	check(c.WAN.Loss < 1, "wan", c.WAN, "a loss below 1: nothing would ever arrive")
	preset, err := kvstore.PresetByName(c.Model)
	check(err == nil, "model", c.Model, modelNames())
	c.checkEngine(check)
	check(c.RTT >= 0 && c.RTT <= time.Hour, "rtt", c.RTT, "0 (measured) to 1h")
	check(c.Goodput >= 0 && c.Goodput <= 1e15, "goodput", c.Goodput, "0 (measured) or bit/s, to 1e15")
	check(c.RoundTrips > 0 && c.RoundTrips <= 1000, "round trips", c.RoundTrips, "above 0 to 1000")
	check(c.Repeats >= 1 && c.Repeats <= 1000, "repeats", c.Repeats, "1 to 1000")
	check(c.Budget >= time.Second && c.Budget <= 24*time.Hour, "budget", c.Budget, "1s to 24h")
	check(c.Stripes >= 0 && c.Stripes <= transfer.MaxStripes, "stripes", c.Stripes, "1 to 64, or 0 for as many as the path needs")
	check(c.ArenaBytes >= 0, "arena", c.ArenaBytes, "bytes")
	st, statErr := os.Stat(c.ArenaDir)
	check(filepath.IsAbs(c.ArenaDir) && statErr == nil && st.IsDir(), "arena dir", c.ArenaDir, "the absolute path of a folder that exists, such as /dev/shm")
	if err == nil {
		c.checkLengths(preset.Layout, check)
	}
	return errors.Join(errs...)
}

func (c Config) checkEngine(check func(ok bool, field string, value any, allowed string)) {
	check(slices.Contains([]string{EnginePaced, EngineReal, EngineOpenAI}, c.Engine), "engine", c.Engine, "paced, real or openai")
	pace := c.PrefillSecondsPerToken
	if c.Engine == EnginePaced {
		check(pace >= 1e-7 && pace <= 10, "prefill seconds per token", pace, "0.1 µs to 10 s a token: how fast the destination's GPU prefills")
	} else {
		check(pace == 0, "prefill seconds per token", pace, "none with engine "+c.Engine+", which is measured")
	}
	shown := results.RedactURL(c.OpenAIURL)
	if i := strings.IndexAny(shown, "?#"); i >= 0 { // after it there may be a key
		shown = shown[:i+1] + "..."
	}
	if c.Engine != EngineOpenAI {
		check(c.OpenAIURL == "", "openai", shown, "none with engine "+c.Engine)
		return
	}
	u, err := url.Parse(c.OpenAIURL)
	check(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "", "openai", shown, "the address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1, without a query")
}

func (c Config) checkLengths(l kvstore.Layout, check func(ok bool, field string, value any, allowed string)) {
	n, block := int64(l.BlockTokens), l.BlockBytes()
	check(c.MaxPrefix >= 2*n && c.MaxPrefix <= maxTokens, "max prefix", c.MaxPrefix, fmt.Sprintf("%d (two blocks) to %d tokens", 2*n, maxTokens))
	check(c.ArenaBytes >= 8*block, "arena", c.ArenaBytes, fmt.Sprintf("room for 8 blocks of %s at least: %d bytes", c.Model, 8*block))
	if c.Engine == EngineReal {
		check(l.Kind == kvstore.KindGQA, "model", c.Model, "one with grouped-query attention for engine real: "+modelNames())
	}
	if len(c.Lengths) == 0 {
		return
	}
	check(len(c.Lengths) >= 2 && len(c.Lengths) <= maxLengths, "lengths", listed(c.Lengths), fmt.Sprintf("2 to %d lengths: a line needs two", maxLengths))
	fits := c.ArenaBytes / 2 / block * n
	for i, v := range c.Lengths {
		check(v >= n && v%n == 0 && v <= maxTokens, "length", v, fmt.Sprintf("multiples of the block, %d tokens, to %d", n, maxTokens))
		check(v <= fits, "length", v, fmt.Sprintf("at most %d tokens, which fill half of an arena of %d bytes", fits, c.ArenaBytes))
		check(i == 0 || v != c.Lengths[i-1], "length", v, "each length once")
	}
}

// listed are lengths as they are given, the first few of too many.
func listed(lengths []int64) string {
	var b strings.Builder
	for i, n := range lengths {
		if i > maxLengths {
			b.WriteString(",...")
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}

func modelNames() string {
	var names []string
	for _, p := range kvstore.Presets() {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// params are what the result depends on.
func (c Config) params() map[string]any {
	p := map[string]any{
		"wan": c.WAN.String(), "model": c.Model, "engine": c.Engine, "repeats": c.Repeats, "stripes": c.Stripes, "max_prefix": c.MaxPrefix, "quick": c.Quick,
		"budget_seconds": c.Budget.Seconds(), "lengths": c.Lengths, "seed": c.Seed, "round_trips": c.RoundTrips,
	}
	if c.Engine == EnginePaced {
		p["prefill_seconds_per_token"] = c.PrefillSecondsPerToken
	}
	if c.OpenAIModel != "" {
		p["openai_model"] = c.OpenAIModel
	}
	if u, err := url.Parse(c.OpenAIURL); err == nil && u.Host != "" {
		p["openai_host"] = strings.ToLower(u.Host) // without what stands before an @
	}
	if c.RTT > 0 {
		p["given_rtt_seconds"] = c.RTT.Seconds()
	}
	if c.Goodput > 0 {
		p["given_goodput_bps"] = c.Goodput
	}
	return p
}

// finite says that x is a number.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
