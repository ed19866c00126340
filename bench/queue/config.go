package queue

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// Config is what Run takes. Zero means the documented default, negative off where a field says so.
type Config struct {
	// Seed makes arrivals, sizes and bytes. The same seed gives the same simulated numbers on every machine.
	Seed uint64
	// Quick makes all defaults small, for CI: intervals are wider, and it takes a few seconds and not a minute.
	Quick bool
	// Utilizations are the simulated ones, above 0 to 0.98 each, at most 100. Default 0.1 to 0.9 in steps of 0.1; quick: 0.3,
	// 0.6 and 0.9.
	Utilizations []float64
	// Jobs is how many are simulated at each point, the first tenth being warm-up: 1000 to 10 million. Default 1 million;
	// quick: 100,000.
	Jobs int
	// Spread is the squared coefficient of variation of the lognormal service, 0.01 to 100. Default 4.
	Spread float64
	// Replications is how many independent crossovers are measured, 3 to 1000. Default 20; quick: 10.
	Replications int

	// LinkUtilizations are those with real QUIC, above 0 to 0.95 each, at most 20. Default 0.3 and 0.6.
	LinkUtilizations []float64
	// LinkOff leaves real QUIC out.
	LinkOff bool
	// Duration is how long jobs arrive at most at each utilization of the link and with each sender, 500 ms to 10 minutes. Default 75 s; quick: 3 s.
	Duration time.Duration
	// Precision ends the arrivals earlier, when the 95 % interval of the mean wait is at most so much of the mean to either side
	// and its batches do not correlate: 0.01 to 1. A point that has not come so far within Duration is marked inconclusive.
	// Default 0.1; quick: 1; negative: jobs arrive for all of Duration, and no width is too wide.
	Precision float64
	// WAN is the link. Zero means DefaultWAN; it must have a rate.
	WAN wan.Model
	// JobBytes is the mean size of a fetch over the link, exponential, in bytes of pages of 4 KiB: 16 KiB to 64 MiB. Default
	// 128 KiB.
	JobBytes int64
	// ChunkBytes is the most that the sender writes of a transfer in its turn, 4 KiB to 4 MiB. Default an eighth of JobBytes
	// in whole pages, at most 1 MiB.
	ChunkBytes int
	// Stripes is the number of connections of the link, 1 to 64. Default 1: with more, a small transfer has only a share of
	// the windows and cannot fill the link alone, so that the link is not one server.
	Stripes int

	// Progress is told how far the run is. Nil: nobody is.
	Progress *results.Progress
}

// DefaultWAN is the link of the measurements over QUIC: slow enough that a laptop's processor does not set the numbers, fast
// enough that a minute holds the thousand jobs without which a mean wait is luck. Its jobs are long beside the lateness of timers.
func DefaultWAN() wan.Model { return wan.Model{RTT: 10 * time.Millisecond, Rate: 60e6} }

// InputError is a value that is not allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s is %s: must be %s", e.Field, e.Value, e.Allowed)
}

const (
	maxJobs         = 10_000_000
	maxUtilization  = 0.98
	maxLinkLoad     = 0.95
	maxReplications = 1000
	maxDuration     = 10 * time.Minute
	maxJobBytes     = 64 << 20
	maxLinkJobs     = 1_000_000
)

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// pick is quick's default or the other.
func pick[T any](quick bool, short, long T) T {
	if quick {
		return short
	}
	return long
}

func (c Config) withDefaults() Config {
	c.Utilizations = slices.Clone(c.Utilizations)
	if len(c.Utilizations) == 0 {
		c.Utilizations = pick(c.Quick, []float64{.3, .6, .9}, []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9})
	}
	c.LinkUtilizations = slices.Clone(c.LinkUtilizations)
	if len(c.LinkUtilizations) == 0 {
		c.LinkUtilizations = []float64{.3, .6}
	}
	c.Jobs = orDefault(c.Jobs, pick(c.Quick, 100_000, 1_000_000))
	c.Spread = orDefault(c.Spread, 4)
	c.Replications = orDefault(c.Replications, pick(c.Quick, 10, 20))
	c.Duration = orDefault(c.Duration, pick(c.Quick, 3*time.Second, 75*time.Second))
	c.Precision = orDefault(c.Precision, pick(c.Quick, 1, .1))
	c.WAN = orDefault(c.WAN, DefaultWAN())
	c.JobBytes = orDefault(c.JobBytes, 128<<10)
	c.ChunkBytes = orDefault(c.ChunkBytes, int(min(max(c.JobBytes/8/pageBytes, 1)*pageBytes, 1<<20)))
	c.Stripes = orDefault(c.Stripes, 1)
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
	each := func(field string, rhos []float64, most float64, many int) {
		check(len(rhos) <= many, field, fmt.Sprintf("%d numbers", len(rhos)), fmt.Sprintf("at most %d", many))
		for i, rho := range rhos {
			check(rho > 0 && rho <= most, field, rho, fmt.Sprintf("above 0 to %v: beyond 1 a queue grows without end", most))
			check(!slices.Contains(rhos[:i], rho), field, rho, "given once")
		}
	}
	each("utilizations", c.Utilizations, maxUtilization, 100)
	check(c.Jobs >= 1000 && c.Jobs <= maxJobs, "jobs", c.Jobs, fmt.Sprintf("1000 to %d", maxJobs))
	check(c.Spread >= .01 && c.Spread <= 100, "spread", c.Spread, "0.01 to 100")
	check(c.Replications >= 3 && c.Replications <= maxReplications, "replications", c.Replications, fmt.Sprintf("3 to %d", maxReplications))
	if c.LinkOff {
		return errors.Join(errs...)
	}
	each("link utilizations", c.LinkUtilizations, maxLinkLoad, 20)
	check(c.Duration >= 500*time.Millisecond && c.Duration <= maxDuration, "duration", c.Duration, fmt.Sprintf("500ms to %v", maxDuration))
	check(c.Precision < 0 || c.Precision >= .01 && c.Precision <= 1, "precision", c.Precision, "0.01 to 1, or negative for none")
	check(c.JobBytes >= 4*pageBytes && c.JobBytes <= maxJobBytes, "job bytes", c.JobBytes, "16 KiB to 64 MiB")
	check(c.ChunkBytes >= pageBytes && c.ChunkBytes <= 4<<20, "chunk bytes", c.ChunkBytes, "4 KiB to 4 MiB")
	check(c.Stripes >= 1 && c.Stripes <= 64, "stripes", c.Stripes, "1 to 64 connections")
	check(c.WAN.Rate > 0, "wan", c.WAN.String(), "a link with a rate, such as rtt=20ms,rate=30Mbps: without one there is no queue")
	check(c.WAN.Rate*c.Duration.Seconds()/8/float64(max(c.JobBytes, 1)) <= maxLinkJobs, "duration", c.Duration,
		fmt.Sprintf("short enough that at most %d jobs arrive", maxLinkJobs))
	if err := c.WAN.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// params are what the numbers depend on.
func (c Config) params() map[string]any {
	p := map[string]any{
		"seed": c.Seed, "utilizations": c.Utilizations, "jobs": c.Jobs, "spread": c.Spread, "replications": c.Replications,
	}
	if !c.LinkOff {
		p["link_utilizations"], p["duration_seconds"], p["wan"] = c.LinkUtilizations, c.Duration.Seconds(), c.WAN.String()
		p["precision"], p["link_orders"] = c.Precision, []string{LinkLaw, SharingLaw}
		p["job_bytes"], p["chunk_bytes"], p["stripes"] = c.JobBytes, c.ChunkBytes, c.Stripes
	}
	return p
}

// geometric is the size of a job over the link: an exponential size of that mean, rounded up to whole pages, so that pages
// are geometric.
type geometric struct {
	mean float64 // bytes, before rounding
	max  int     // pages; what is larger is cut
}

// draw returns one size in pages.
func (g geometric) draw(rng *rand.Rand) int {
	return min(max(1, int(math.Ceil(rng.ExpFloat64()*g.mean/pageBytes))), g.max)
}

// moments are the mean in bytes and the squared coefficient of variation of the whole pages, the cut left out.
func (g geometric) moments() (mean, scv float64) {
	stay := math.Exp(-pageBytes / g.mean) // that one more page follows
	return pageBytes / (1 - stay), stay
}
