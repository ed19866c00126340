package compare

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is what Run takes. Zero means the documented default, negative off where a field says so.
type Config struct {
	// Command starts one end: a program and its arguments, which calls ServeEnd. Required.
	Command []string
	// Peers are the ways to compare, by their names in Names; kvferry is among them. Default: all.
	Peers []string
	// Bytes a transfer moves, rounded up to whole chunks, at most 16 GiB. Each process of a pair holds as much. Default 256 MiB.
	Bytes int64
	// PageBytes is a page, 4 KiB to 1 MiB, a power of two. Default 64 KiB.
	PageBytes int
	// Warmup is how many rounds are not counted, at most 100. Default 1; negative: none.
	Warmup int
	// Repeats is how many rounds are measured, at most 1000. Default 6: with fewer no difference to another result is shown once several figures are compared.
	Repeats int
	// Seed makes the bytes.
	Seed uint64
	// ProfileDir, when not empty, is a folder that gets a processor profile of each process and measured transfer:
	// NAME-source-1.pprof and NAME-destination-1.pprof for the first. "go tool pprof" takes several at once.
	ProfileDir string
	// Progress is told before and after each transfer, from one goroutine.
	Progress func(Progress)

	kv bool // over emulated links: the bytes are values of KV cache
}

// Progress says where a run stands.
type Progress struct {
	Stage string // such as "tcp-tls, round 2 of 5"
	// Done and Total are page bytes of all transfers, warm-up included.
	Done, Total int64
}

// InputError is a value that is not allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	value := e.Value
	if strings.HasPrefix(e.Field, "peer") { // words, not numbers
		value = strconv.Quote(value)
	}
	return fmt.Sprintf("%s %s: must be %s", e.Field, value, e.Allowed)
}

const (
	chunkBytes   = 1 << 20 // what one frame, message or stream carries
	maxBytes     = 16 << 30
	maxRounds    = 1000
	maxWarmup    = 100
	defaultBytes = 256 << 20
	// minRate is what the slowest transfer is waited for, in bytes a second, besides half a minute.
	minRate = 4 << 20
)

// Names lists the ways that can be compared on loopback, in the order they are shown. The caller owns the slice.
func Names() []string {
	var out []string
	for _, p := range peers {
		if !p.floor && !p.wan {
			out = append(out, p.name)
		}
	}
	return out
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Config) withDefaults() Config {
	c.Bytes = orDefault(c.Bytes, defaultBytes)
	c.Bytes = (c.Bytes + chunkBytes - 1) / chunkBytes * chunkBytes
	c.PageBytes = orDefault(c.PageBytes, 64<<10)
	c.Warmup = max(0, orDefault(c.Warmup, 1))
	c.Repeats = orDefault(c.Repeats, 6)
	c.Peers = slices.Clone(c.Peers)
	if len(c.Peers) == 0 {
		c.Peers = Names()
	}
	return c
}

// Validate reports every fault, joined; each is an *InputError.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	check(len(c.Command) > 0, "command", "empty", "a program that serves an end")
	check(c.Bytes >= 0 && c.Bytes <= maxBytes, "bytes", c.Bytes, "1 byte to 16 GiB, or 0 for 256 MiB")
	c = c.withDefaults()
	check(c.PageBytes >= 4<<10 && c.PageBytes <= chunkBytes && c.PageBytes&(c.PageBytes-1) == 0, "page", c.PageBytes, "4 KiB to 1 MiB, a power of two")
	check(c.Warmup <= maxWarmup, "warmup", c.Warmup, fmt.Sprintf("at most %d rounds, or negative for none", maxWarmup))
	check(c.Repeats >= 1 && c.Repeats <= maxRounds, "repeats", c.Repeats, fmt.Sprintf("1 to %d", maxRounds))
	names := Names()
	for i, p := range c.Peers {
		check(slices.Contains(names, p), "peer", p, "one of "+strings.Join(names, ", "))
		check(!slices.Contains(c.Peers[:i], p), "peer", p, "named once")
	}
	check(slices.Contains(c.Peers, NameKvferry), "peers", strings.Join(c.Peers, ","), NameKvferry+" and what it is compared with")
	return errors.Join(errs...)
}

// patience is how long a transfer may take before it counts as hung.
func (c Config) patience() time.Duration {
	return 30*time.Second + time.Duration(float64(c.Bytes)/minRate*float64(time.Second))
}
