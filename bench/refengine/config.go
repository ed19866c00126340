package refengine

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Config is what Open takes. It is copied; Open does not read it afterwards.
type Config struct {
	// Addr is the daemon's gRPC target, such as "unix:///run/kvferry.sock".
	// Required.
	Addr string
	// DialOptions are added to the client's own, which are insecure transport
	// credentials: a Unix socket is guarded by its file mode. A test injects
	// its dialer here.
	DialOptions []grpc.DialOption
	// EngineID names the engine on its host. Required.
	EngineID string
	// Model is the transformer; zero fields have the defaults of ModelConfig.
	Model ModelConfig
	// Names go into the layout pin; zero fields have the defaults of Names.
	Names Names
	// ArenaBytes is asked of the daemon; zero leaves it to the daemon.
	ArenaBytes int64
	// World is the number of tensor-parallel ranks that the engine plays: each
	// registers, writes its share of the KV heads and commits on its own. It
	// divides Model.KVHeads. Zero is 1.
	World int
	// Watermark perturbs blocks as they are committed; nil does not.
	Watermark *Watermark
	// Pace replaces the mathematics by sleeping; nil computes.
	Pace *Pace
	// PrefillSecondsPerToken is told to the daemon's planner. Zero measures it
	// with a warm-up at Open (with a Pace it is the stated speed); negative
	// tells nothing.
	PrefillSecondsPerToken float64
	// KeepSequences is how many sequences stay in the engine's own cache for
	// later requests, the ones used least recently going first. Each takes
	// 4 × 2 × layers × KV heads × head size bytes a token, 640 KiB for the demo
	// model. Zero is 1, negative is none.
	KeepSequences int
	// OnEvent sees every event of the daemon, in order, in the goroutine that
	// reads them; it must not block for long and must not call Close. May be nil.
	OnEvent func(*kvferryv1.EventsResponse)
}

// Names are the parts of the layout pin that don't follow from the model's
// shape. Engines exchange blocks only if these agree.
type Names struct {
	ModelID        string // empty is "kvferry/refengine"
	Revision       string // empty stays empty
	WeightsVersion string // empty names the seed and the widths of the model, or the pace's seed
	HashSeed       string // seed of BlockKeys; empty is "kvferry-refengine"
}

// A Watermark is noise added to every key and value of a block as the block is
// committed, before any later token is computed: uniform in ±Scale, a function
// of seed, block key and element.
type Watermark struct {
	Seed uint64
	// Scale is the amplitude; keys and values have a deviation of about 1. Zero
	// is 0.5.
	Scale float64
}

// A Pace is the speed of an imitated GPU, in tokens a second, above 0.
type Pace struct {
	PrefillTokensPerSecond float64
	DecodeTokensPerSecond  float64
	Seed                   uint64
}

const defaultWatermarkScale = 0.5

func (c Config) withDefaults() Config {
	c.Model = c.Model.withDefaults()
	if c.World == 0 {
		c.World = 1
	}
	switch {
	case c.KeepSequences == 0:
		c.KeepSequences = 1
	case c.KeepSequences < 0:
		c.KeepSequences = 0
	}
	if c.Names.ModelID == "" {
		c.Names.ModelID = "kvferry/refengine"
	}
	if c.Names.HashSeed == "" {
		c.Names.HashSeed = "kvferry-refengine"
	}
	if c.Names.WeightsVersion == "" {
		c.Names.WeightsVersion = c.Model.weightsVersion()
		if c.Pace != nil {
			c.Names.WeightsVersion = fmt.Sprintf("paced,seed=%d,vocab=%d", c.Pace.Seed, c.Model.Vocab)
		}
	}
	if c.Watermark != nil {
		w := *c.Watermark
		if w.Scale == 0 {
			w.Scale = defaultWatermarkScale
		}
		c.Watermark = &w
	}
	return c
}

// Validate reports every field that is missing or out of range, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Model.Validate()}
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("refengine: config "+format, args...))
	}
	if c.Addr == "" {
		add("Addr is empty: want the daemon's gRPC address, such as unix:///run/kvferry.sock")
	}
	if c.EngineID == "" {
		add("EngineID is empty: want a name of 1 to 64 letters, digits, dots, dashes or underscores")
	}
	if c.World < 1 || c.World > c.Model.KVHeads || c.Model.KVHeads%c.World != 0 {
		add("World %d: want a divisor of the model's %d KV heads, or 0 for 1", c.World, c.Model.KVHeads)
	}
	if w := c.Watermark; w != nil {
		if !(w.Scale > 0) || w.Scale > 1e3 {
			add("Watermark.Scale %v: want above 0, at most 1000, or 0 for %v", w.Scale, defaultWatermarkScale)
		}
		if c.Pace != nil {
			add("Watermark and Pace are both set: a paced engine has no KV to perturb; unset one")
		}
	}
	if p := c.Pace; p != nil {
		for name, v := range map[string]float64{"Prefill": p.PrefillTokensPerSecond, "Decode": p.DecodeTokensPerSecond} {
			if !(v > 0) || v > 1e9 {
				add("Pace.%sTokensPerSecond %v: want above 0, at most 1e9", name, v)
			}
		}
	}
	if c.ArenaBytes < 0 {
		add("ArenaBytes %d: want 0 for the daemon's default, or a size", c.ArenaBytes)
	}
	if math.IsNaN(c.PrefillSecondsPerToken) || math.IsInf(c.PrefillSecondsPerToken, 0) {
		add("PrefillSecondsPerToken %v: want seconds, 0 to measure, negative to tell nothing", c.PrefillSecondsPerToken)
	}
	return errors.Join(errs...)
}

// layout is the engine's KV layout as the daemon pins it.
func (c Config) layout() *kvferryv1.Layout {
	m := c.Model
	return &kvferryv1.Layout{
		ModelId:        c.Names.ModelID,
		Revision:       c.Names.Revision,
		WeightsVersion: c.Names.WeightsVersion,
		Dtype:          kvferryv1.Dtype_DTYPE_BF16,
		Kind:           kvferryv1.LayoutKind_LAYOUT_KIND_GQA,
		Layers:         uint32(m.Layers),
		KvHeads:        uint32(m.KVHeads),
		HeadDim:        uint32(m.HeadDim),
		BlockTokens:    uint32(m.BlockTokens),
		PositionScheme: fmt.Sprintf("rope/%g", m.RopeBase),
		HashAlgorithm:  HashAlgorithm,
		HashSeed:       c.Names.HashSeed,
		SaltPolicy:     "none",
	}
}
