package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Config is what Start and Run take. Zero is the documented default.
type Config struct {
	// WAN is the link between the regions. Nil is DefaultWAN; a zero model is a perfect link.
	WAN *wan.Model
	// Prefix is the tokens of the first prompt, 6 to 4096. Default 264. Above 256 tokens the reference layout has more
	// than 80 MiB of KV.
	Prefix int
	// Turns is how many turns the conversation has before the move, 1 to 64. Default 3.
	Turns int
	// Model names a preset whose KV shape the engines take: llama-3.1-8b, llama-3.1-70b, llama-3.1-405b or qwen3-32b.
	// Default llama-3.1-70b.
	Model string
	// Shape replaces Model when its Layers are set, for tests.
	Shape refengine.ModelConfig
	// Mode is what to do; unspecified lets the planner choose.
	Mode pb.Mode
	// Seed makes the conversation, the weights and the watermark. Every value is a seed.
	Seed uint64
	// Kvferryd and Kvferry are the binaries. Default: beside the running program.
	Kvferryd, Kvferry string
	// ArenaDir is a memory filesystem. Default /dev/shm.
	ArenaDir string
}

// DefaultWAN is 100 Mbps and 70 ms without loss.
func DefaultWAN() wan.Model {
	m, err := wan.Parse("rtt=70ms,rate=100Mbps,loss=0")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return m
}

// Tokens a turn: what the user says and what the engine answers.
const (
	userTokens = 6
	newTokens  = 8
	proofNew   = 12 // tokens of the continuation that is compared
	hiddenSize = 64 // residual stream of the demo's engines: narrow, since only the KV's shape matters
)

func (c Config) withDefaults() Config {
	if c.WAN == nil {
		def := DefaultWAN()
		c.WAN = &def
	}
	if c.Prefix == 0 {
		c.Prefix = 264
	}
	if c.Turns == 0 {
		c.Turns = 3
	}
	if c.Model == "" {
		c.Model = "llama-3.1-70b"
	}
	if c.ArenaDir == "" {
		c.ArenaDir = kvstore.DefaultArenaDir
	}
	self, err := os.Executable()
	if err == nil {
		if c.Kvferryd == "" {
			c.Kvferryd = filepath.Join(filepath.Dir(self), "kvferryd")
		}
		if c.Kvferry == "" {
			c.Kvferry = self
		}
	}
	return c
}

// InputError is a value of Config that is not allowed.
type InputError struct{ Field, Value, Allowed string }

func (e *InputError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Allowed)
}

// Validate reports every fault, joined; each is an *InputError.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Prefix < userTokens || c.Prefix > 4096 {
		errs = append(errs, &InputError{"prefix", fmt.Sprint(c.Prefix), "6 to 4096 tokens"})
	}
	if c.Turns < 1 || c.Turns > 64 {
		errs = append(errs, &InputError{"turns", fmt.Sprint(c.Turns), "1 to 64"})
	}
	if err := c.WAN.Validate(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.shape(); err != nil {
		errs = append(errs, err)
	}
	for _, bin := range []string{c.Kvferryd, c.Kvferry} {
		if fi, err := os.Stat(bin); err != nil || fi.IsDir() {
			errs = append(errs, &InputError{"binary", bin, "an existing program; build both with `make build`"})
		}
	}
	return errors.Join(errs...)
}

// tokens is the longest sequence of the story.
func (c Config) tokens() int {
	return c.Prefix + c.Turns*(userTokens+newTokens) + userTokens + proofNew
}

// shape is the engines' model.
func (c Config) shape() (refengine.ModelConfig, error) {
	m := c.Shape
	if m.Layers == 0 {
		p, err := kvstore.PresetByName(c.Model)
		if err != nil {
			return m, err
		}
		if p.Layout.Kind != kvstore.KindGQA {
			return m, &InputError{"model", c.Model, "a model of kind gqa: " + strings.Join(gqaPresets(), ", ") + "; the reference engine has grouped-query attention only"}
		}
		m = refengine.ModelConfig{
			Layers: p.Layout.Layers, Hidden: hiddenSize, QueryHeads: p.Layout.KVHeads, KVHeads: p.Layout.KVHeads, HeadDim: p.Layout.HeadDim,
			FFN: 2 * hiddenSize, Vocab: 512, BlockTokens: p.Layout.BlockTokens,
		}
	}
	if m.BlockTokens == 0 {
		m.BlockTokens = 16
	}
	m.Seed = c.Seed + 1
	m.MaxTokens = max(m.MaxTokens, c.tokens())
	return m, nil
}

func gqaPresets() []string {
	var out []string
	for _, p := range kvstore.Presets() {
		if p.Layout.Kind == kvstore.KindGQA {
			out = append(out, p.Name)
		}
	}
	return out
}

// layout has the shape's sizes.
func layoutOf(m refengine.ModelConfig) kvstore.Layout {
	return kvstore.Layout{Kind: kvstore.KindGQA, DType: kvstore.DTypeBF16, Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim, BlockTokens: m.BlockTokens}
}
