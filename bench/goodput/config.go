package goodput

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

// Config is what Run takes. Zero means the documented default, negative off where a field says so.
type Config struct {
	// WAN is the link, both directions alike. The zero Model is a link without delay, rate or loss: what the machine gives.
	WAN wan.Model
	// Bytes a transfer moves, rounded up to whole blocks, at most 64 GiB; both ends hold as much memory. Default 256 MiB.
	Bytes int64
	// PageBytes is a page, 4 KiB to 4 MiB in multiples of 512. Default 64 KiB.
	PageBytes int
	// PagesPerBlock is how many pages a block has, 1 to 1024. Default 80.
	PagesPerBlock int
	// Stripes are the numbers of connections to compare, 1 to 64 each, or 0 for as many as the path needs, which is what daemons
	// have by default; at most 8 of them. Default one configuration of 0.
	Stripes []int
	// Warmup is how many transfers go before the measured ones, the first over cold connections; at most 100. Default 1;
	// negative: none.
	Warmup int
	// Repeats is how many transfers are measured, each configuration; at most 1000. Default 6: with fewer no difference is shown once several figures are compared.
	Repeats int
	// Cold gives every measured transfer fresh connections.
	Cold bool
	// CutFor, when not zero, has one more transfer a configuration whose link is cut for so long at its middle, at most 20 s:
	// what resuming costs.
	CutFor time.Duration
	// Codec is transfer.Config.Codec of the source: default "auto"; pages are BF16 values as caches have them.
	Codec string
	// Seed makes the bytes.
	Seed uint64
	// Progress is told about every 100 ms of the running transfer, and at each end of one, from one goroutine at a time.
	Progress func(Progress)

	virtual bool // time is not real: processor time means nothing
}

// Progress says where a run stands.
type Progress struct {
	Stage string // such as "warm-up", "8 stripes, repeat 2 of 3"
	// Done and Total are page bytes of all transfers, warm-up and cut ones included.
	Done, Total int64
	// GoodputBps is that of the last 100 ms; 0 between transfers.
	GoodputBps float64
}

// InputError is a value that is not allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Allowed)
}

const (
	maxBytes     = 64 << 30
	chunkBytes   = 1 << 20 // the default of package transfer, which this one does not change
	sampleEvery  = 100 * time.Millisecond
	maxWarmup    = 100
	maxRepeats   = 1000
	maxCut       = 20 * time.Second
	defaultBytes = 256 << 20
)

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Config) withDefaults() Config {
	c.Bytes = orDefault(c.Bytes, defaultBytes)
	c.PageBytes = orDefault(c.PageBytes, 64<<10)
	c.PagesPerBlock = orDefault(c.PagesPerBlock, 80)
	c.Stripes = slices.Clone(c.Stripes)
	if len(c.Stripes) == 0 {
		c.Stripes = []int{0}
	}
	c.Warmup = max(0, orDefault(c.Warmup, 1))
	c.Repeats = orDefault(c.Repeats, 6)
	return c
}

// Validate reports every fault, joined; those of fields are *InputErrors.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{transfer.CheckCodec(c.Codec), c.WAN.Validate(), checkShape(c.Bytes, c.PageBytes, c.PagesPerBlock), checkRounds(c.Warmup, c.Repeats)}
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	check(len(c.Stripes) <= 8, "stripes", c.Stripes, "at most 8 numbers")
	for i, n := range c.Stripes {
		check(n >= 0 && n <= transfer.MaxStripes, "stripes", n, "1 to 64 connections, or 0 for as many as the path needs")
		check(!slices.Contains(c.Stripes[:i], n), "stripes", n, "numbers that differ")
	}
	check(c.CutFor >= 0 && c.CutFor <= maxCut, "cut", c.CutFor, fmt.Sprintf("0 (no cut) to %v", maxCut))
	return errors.Join(errs...)
}

func checkShape(bytes int64, page, pages int) error {
	var errs []error
	if bytes < 1 || bytes > maxBytes {
		errs = append(errs, &InputError{"bytes", strconv.FormatInt(bytes, 10), "1 byte to 64 GiB"})
	}
	if page < 4<<10 || page > 4<<20 || page%512 != 0 {
		errs = append(errs, &InputError{"page", strconv.Itoa(page), "4 KiB to 4 MiB, a multiple of 512 bytes"})
	}
	if pages < 1 || pages > 1024 {
		errs = append(errs, &InputError{"pages per block", strconv.Itoa(pages), "1 to 1024"})
	}
	return errors.Join(errs...)
}

func checkRounds(warmup, repeats int) error {
	var errs []error
	if warmup > maxWarmup {
		errs = append(errs, &InputError{"warmup", strconv.Itoa(warmup), fmt.Sprintf("at most %d transfers, or negative for none", maxWarmup)})
	}
	if repeats < 1 || repeats > maxRepeats {
		errs = append(errs, &InputError{"repeats", strconv.Itoa(repeats), fmt.Sprintf("1 to %d", maxRepeats)})
	}
	return errors.Join(errs...)
}

// blocks is how many blocks hold bytes.
func blocks(bytes, blockBytes int64) int { return int((bytes + blockBytes - 1) / blockBytes) }

// checkMemory refuses what the system has no memory for; where it does not say, everything passes.
func checkMemory(need int64) error {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil //nolint:nilerr // not Linux: nothing is known
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		text, ok := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
		if have := kib << 10; err == nil && need > have/10*9 {
			return &InputError{"bytes", fmt.Sprintf("needing %d bytes of memory", need), fmt.Sprintf("less: %d bytes are available, and both ends hold what moves", have)}
		}
	}
	return nil
}
