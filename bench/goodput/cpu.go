package goodput

import (
	"bytes"
	"context"
	"runtime/pprof"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// The label that all goroutines of an agent carry, and its values.
const (
	endLabel       = "end"
	endSource      = "source"
	endDestination = "destination"
)

// asEnd runs f so that every goroutine that it starts, and those that they start, count for that end.
func asEnd(ctx context.Context, end string, f func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(endLabel, end), f)
}

// cpuSplit is the processor time of a span, seconds.
type cpuSplit struct {
	total float64 // of the process, by getrusage
	split bool    // the others are known
	// By label; shared is the rest.
	source, destination, shared float64
	// profiled is what the profiler saw of total, samples how often it looked.
	profiled float64
	samples  int
}

func (c *cpuSplit) add(o cpuSplit) {
	c.total += o.total
	c.split = o.split
	c.source += o.source
	c.destination += o.destination
	c.shared += o.shared
	c.profiled += o.profiled
	c.samples += o.samples
}

// cpuMeter measures one span.
type cpuMeter struct {
	buf       bytes.Buffer
	began     float64
	profiling bool
}

// profilePeriod is that of runtime/pprof, 100 a second.
const profilePeriod = 10 * time.Millisecond

// startCPU starts a span; stop is owed. Spans must not overlap.
func startCPU(profile bool) *cpuMeter {
	m := &cpuMeter{}
	m.profiling = profile && pprof.StartCPUProfile(&m.buf) == nil // an error says that someone else uses the profiler
	m.began = results.ProcessCPU()
	return m
}

// stop ends the span.
func (m *cpuMeter) stop() cpuSplit {
	out := cpuSplit{total: results.ProcessCPU() - m.began}
	if !m.profiling {
		return out
	}
	pprof.StopCPUProfile()
	sums, err := labelSums(m.buf.Bytes(), endLabel)
	if err != nil {
		return out
	}
	var all int64
	for _, ns := range sums {
		all += ns
	}
	if all <= 0 {
		return out
	}
	out.profiled, out.samples = float64(all)/1e9, int(all/int64(profilePeriod))
	share := func(end string) float64 { return out.total * float64(sums[end]) / float64(all) }
	out.split = true
	out.source, out.destination = share(endSource), share(endDestination)
	out.shared = max(0, out.total-out.source-out.destination)
	return out
}
