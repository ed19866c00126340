// Package codecbench measures what the codecs of transfer/codec make of KV values, beside zstd and s2 on the same pages.
//
// # Usage
//
// [Run] with a [Config]. Every page is coded and compared once, untimed; then codecs take turns, a round each, and the medians of the
// rounds count. A page that does not become shorter goes as it is, as in a transfer: it counts with its own length.
//
// # Concurrency
//
// One Run at a time: it measures the processor's time.
//
// # Limitations
//
// One goroutine. Pages from bench/kvgen are half K and half V, a kind a page; those of a file are as they were recorded.
package codecbench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/results"
)

// Config says what to measure. Zero means the documented default.
type Config struct {
	// Pages is how many. Generated ones have 64 tokens, 8 heads and 128 channels: 128 KiB, of FP8 half that; default 64. Of a file it is how many
	// of all are measured, spread evenly; default as many as fit in 256 MiB.
	Pages int
	// Rounds of all codecs. Default 7.
	Rounds int
	// Seed of generated values.
	Seed uint64
	// DTypes are the elements of generated pages, each once. Default BF16.
	DTypes []kvfile.DType
	// File holds the pages that are measured, as kvferry bench kv-dump records them, in place of generated ones. Read to its end once. Nil: none.
	File *kvfile.Reader
	// Progress is told how far the run is. Nil: nobody is.
	Progress *results.Progress
}

const (
	defaultPages  = 64
	defaultRounds = 7
	maxPages      = 4096
	maxRounds     = 1000
	// fileBytes bounds what of a file is held in memory unless Pages says otherwise, and maxFileBytes if it does.
	fileBytes    = 256 << 20
	maxFileBytes = 1 << 30
)

// InputError is a value that cannot be used, with what is allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s is %.100s: must be %s", e.Field, e.Value, e.Allowed)
}

func (c Config) withDefaults() Config {
	if c.Rounds == 0 {
		c.Rounds = defaultRounds
	}
	if c.File == nil && c.Pages == 0 {
		c.Pages = defaultPages
	}
	if c.File == nil && len(c.DTypes) == 0 {
		c.DTypes = []kvfile.DType{kvfile.BF16}
	}
	return c
}

// Validate returns the first fault, an *InputError.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Rounds < 1 || c.Rounds > maxRounds {
		return &InputError{"rounds", fmt.Sprint(c.Rounds), fmt.Sprintf("1 to %d", maxRounds)}
	}
	if c.File != nil {
		if len(c.DTypes) > 0 {
			return &InputError{"dtypes", fmt.Sprint(c.DTypes), "left to the file, which says what its pages are"}
		}
		h := c.File.Header()
		if most := min(h.Pages, maxFileBytes/h.PageBytes); c.Pages < 0 || c.Pages > most {
			return &InputError{"number of pages", fmt.Sprint(c.Pages), fmt.Sprintf("1 to %d of the file's %d", most, h.Pages)}
		}
		return nil
	}
	if c.Pages < 2 || c.Pages > maxPages {
		return &InputError{"number of pages", fmt.Sprint(c.Pages), fmt.Sprintf("2 (one of K and one of V) to %d", maxPages)}
	}
	for i, d := range c.DTypes {
		if d.Bytes() == 0 || slices.Contains(c.DTypes[:i], d) {
			return &InputError{"dtypes", fmt.Sprint(c.DTypes), "bf16, fp16, fp8_e4m3 and fp8_e5m2, each at most once"}
		}
	}
	return nil
}

// Run measures. When ctx ends, in the middle of a round too, it returns what whole rounds of every codec gave, and no error; the Result is nil when
// there is none. Errors: *InputError, those of reading File, an error when a codec does not give back a page bit for bit.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	machine, started := results.ThisMachine(), time.Now()
	c.Progress.Stage("make pages", 0)
	sets, err := c.sets(ctx)
	if err != nil || ctx.Err() != nil {
		return nil, ignoreEnd(ctx, err)
	}
	var runs []*run
	for _, s := range sets {
		coders, err := codersOf(s.dtype)
		if err != nil {
			return nil, err
		}
		for _, cd := range coders {
			runs = append(runs, &run{set: s, coder: cd})
		}
	}
	b := newBench(sets, c.Progress)
	c.Progress.Stage("code every page and compare", float64(len(runs)))
	for _, r := range runs {
		if err := b.check(ctx, r); err != nil || ctx.Err() != nil {
			return nil, ignoreEnd(ctx, err)
		}
	}
	c.Progress.Stage("measure", float64(c.Rounds*len(runs)))
	whole := 0
	for range c.Rounds {
		for _, r := range runs {
			if err := b.round(ctx, r); err != nil {
				return nil, ignoreEnd(ctx, err)
			}
		}
		if ctx.Err() != nil {
			break
		}
		whole++
	}
	if whole == 0 {
		return nil, nil
	}
	res := newResult(c, sets, runs, whole)
	res.machine, res.started, res.interrupted = machine, started, ctx.Err() != nil
	return res, nil
}

// ignoreEnd leaves out an error that came of the end of ctx.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
