package engineload

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultMaxBytes is the largest text that is read: 8 MiB. An engine's is 20 to 200 KiB.
const DefaultMaxBytes = 8 << 20

// Parse reads one exposition in Prometheus' text format, or in OpenMetrics, as scraped at now. Names are matched whole.
//
// A text that ends early gives what had come whole, with Truncated set. Parse reads at most [DefaultMaxBytes] and keeps
// only samples of the names it knows. It returns [ErrTooLarge]; [ErrNotAnEngine] where no known metric is there, or
// those of two makes; [io.ErrUnexpectedEOF] or another error of r where that breaks off before the first known metric; and errors of r that
// are no breaking off.
func Parse(r io.Reader, now time.Time) (Load, error) {
	l, _, err := parse(r, DefaultMaxBytes, now)
	return l, err
}

// errBothMakes is the text of a collector, not of an engine.
var errBothMakes = errors.New("it has metrics of both vLLM and SGLang; give the address of one engine, not of a collector")

// basis is what the speed of prefill is measured from.
type basis struct {
	seconds, tokens float64
	known           bool
	// from is the name, or names, that the tokens came from; two scrapes compare only where it is the same.
	from string
	// started is the process's start in seconds of the Unix epoch; 0 where unknown.
	started float64
}

func parse(r io.Reader, maxBytes int64, now time.Time) (Load, basis, error) {
	x, err := readExposition(r, maxBytes)
	if err != nil {
		return Load{}, basis{}, fmt.Errorf("read metrics: %w", err)
	}
	e, err := x.engine()
	if err != nil {
		return Load{}, basis{}, err
	}
	l := Load{Engine: e.kind, Model: x.model(), ScrapedAt: now, Truncated: x.truncated}
	block := x.blockTokens()
	chosen := map[*Reading]int{}
	for _, s := range e.series {
		into := s.into(&l)
		chosen[into] = -1
		for i, src := range s.sources {
			if v, ok := x.reading(s, src, block); ok {
				*into = Reading{v, true}
				chosen[into] = i
				break
			}
		}
	}
	// Hits belong to the queries they were counted with.
	if l.PrefixHits.Known && chosen[&l.PrefixHits] != chosen[&l.PrefixQueries] {
		l.PrefixHits = Reading{}
	}
	for _, s := range e.series {
		if into := s.into(&l); !into.Known {
			l.Partial = append(l.Partial, s.sources[0].name)
		}
	}
	slices.Sort(l.Partial)
	l.Partial = slices.Compact(l.Partial)
	from := "difference"
	if l.ComputedTokens.Known {
		from = strconv.Itoa(chosen[&l.ComputedTokens])
	} else {
		l.ComputedTokens = computed(l)
	}
	if l.Running.Known {
		l.Ranks = x.ranks(e)
	}
	b := basis{
		seconds: l.PrefillSeconds.Value, tokens: l.ComputedTokens.Value, from: from, started: x.processStart(),
		known: l.PrefillSeconds.Known && l.ComputedTokens.Known,
	}
	return l, b, nil
}

// computed is prompt tokens less hits. An engine without counters of an outside cache is taken to have none.
func computed(l Load) Reading {
	if !l.PromptTokens.Known || !l.PrefixHits.Known {
		return Reading{}
	}
	return Reading{max(0, l.PromptTokens.Value-l.PrefixHits.Value-l.ExternalHits.Value), true}
}

// engine tells the make by the names that are there.
func (x *exposition) engine() (engine, error) {
	var found []Kind
	for name, f := range x.families {
		kind := wanted[name]
		if kind != "" && (len(f.samples) > 0 || f.bad) && !slices.Contains(found, kind) {
			found = append(found, kind)
		}
	}
	switch {
	case len(found) == 0 && x.cause != nil:
		return engine{}, fmt.Errorf("read metrics: the text breaks off before the first known metric: %w", x.cause)
	case len(found) == 0:
		return engine{}, ErrNotAnEngine
	case len(found) > 1:
		return engine{}, fmt.Errorf("%w: %w", ErrNotAnEngine, errBothMakes)
	}
	i := slices.IndexFunc(engines, func(e engine) bool { return e.kind == found[0] })
	return engines[i], nil
}

// reading folds a source's samples into one number.
func (x *exposition) reading(s series, src source, block float64) (float64, bool) {
	f := x.families[src.name]
	if f == nil || f.bad {
		return 0, false
	}
	works := map[string]float64{} // ranks that repeat one another count once
	totals := s.byPriority && slices.ContainsFunc(f.samples, func(sm sample) bool { return sm.labels.get("priority") == "" })
	for _, sm := range f.samples {
		if src.keep != nil && !src.keep(sm.labels) || totals && sm.labels.get("priority") != "" {
			continue
		}
		k := sm.labels.key()
		works[k] = max(works[k], sm.value)
	}
	if len(works) == 0 {
		return 0, false
	}
	var v float64
	// In a fixed order, so that the same text gives the same bits.
	for _, k := range slices.Sorted(maps.Keys(works)) {
		if s.fold == maximum {
			v = max(v, works[k])
		} else {
			v += works[k]
		}
	}
	if src.unitByHelp {
		v *= unit(f.help, block)
	}
	if s.share && v > 1 && v < 1.01 {
		v = 1 // rounding
	}
	return v, !math.IsNaN(v) && !math.IsInf(v, 0) && !(s.share && v > 1)
}

// unit is the tokens of what a help text says is counted; NaN where it does not say.
func unit(help string, block float64) float64 {
	switch {
	case strings.Contains(help, "tokens"):
		return 1
	case strings.Contains(help, "blocks"):
		return block
	}
	return math.NaN()
}

// blockTokens is the tokens of a block; NaN where unknown or not the same everywhere.
func (x *exposition) blockTokens() float64 {
	f := x.families[nameCacheConfig]
	if f == nil || f.bad || len(f.samples) == 0 {
		return math.NaN()
	}
	first := f.samples[0].labels.get("block_size")
	for _, s := range f.samples {
		if s.labels.get("block_size") != first {
			return math.NaN()
		}
	}
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil || n == 0 {
		return math.NaN()
	}
	return float64(n)
}

// model is the one name that samples carry, or empty.
func (x *exposition) model() string {
	model := ""
	for _, f := range x.families {
		for _, s := range f.samples {
			name := s.labels.get("model_name")
			switch {
			case name == "" || name == model:
			case model == "":
				model = name
			default:
				return ""
			}
		}
	}
	return model
}

// ranks counts data-parallel ranks among the samples of running requests.
func (x *exposition) ranks(e engine) int {
	seen := map[string]bool{}
	for _, s := range x.families[e.series[0].sources[0].name].samples {
		seen[s.labels.get(e.rank)] = true
	}
	return len(seen)
}

// processStart is the engine's start in seconds of the Unix epoch; 0 where unknown.
func (x *exposition) processStart() float64 {
	f := x.families[nameProcessStart]
	if f == nil || f.bad || len(f.samples) != 1 {
		return 0
	}
	return f.samples[0].value
}

// cutShort says whether an error of reading is a text that ends too soon.
func cutShort(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}
