package daemon

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/nvml"
)

// gpuCollector shows the last readings of this host's GPUs. A reading that is missing has no sample.
type gpuCollector struct{ load *load }

var gpuLabels = []string{"gpu", "uuid"}

var (
	gpuReader = prometheus.NewDesc("kvferry_gpu_reader_state", "1 for the state of reading the GPUs: unavailable, available, hung.", []string{"state"}, nil)
	gpuState  = prometheus.NewDesc("kvferry_gpu_state", "1 for the state of a GPU or MIG instance: unavailable, available, degraded, lost, hung.", append(gpuLabels, "state"), nil)
	gpuSlows  = prometheus.NewDesc("kvferry_gpu_throttling", "1 for each reason that sets the clocks now; idle slows nothing down.", append(gpuLabels, "reason"), nil)
	gpuRows   = []row[nvml.GPU]{
		gaugeRow("kvferry_gpu_utilization_ratio", "Share of time in which any kernel ran: not the utilization of a queue.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.Utilization.GPU.Get() }),
		gaugeRow("kvferry_gpu_memory_utilization_ratio", "Share of time in which device memory was read or written.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.Utilization.Memory.Get() }),
		gaugeRow("kvferry_gpu_memory_size_bytes", "Device memory.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Memory.Total) }),
		gaugeRow("kvferry_gpu_memory_used_bytes", "Device memory that is allocated.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Memory.Used) }),
		gaugeRow("kvferry_gpu_memory_free_bytes", "Device memory that is free.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Memory.Free) }),
		gaugeRow("kvferry_gpu_pcie_receive_bytes_per_second", "PCIe traffic into the GPU.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.PCIe.Receive.Get() }),
		gaugeRow("kvferry_gpu_pcie_transmit_bytes_per_second", "PCIe traffic out of the GPU.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.PCIe.Transmit.Get() }),
		gaugeRow("kvferry_gpu_power_watts", "Power draw of the board.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.Power.Draw.Get() }),
		gaugeRow("kvferry_gpu_power_limit_watts", "Power limit in force.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.Power.Limit.Get() }),
		gaugeRow("kvferry_gpu_temperature_celsius", "Temperature of the die.", gpuLabels, func(g nvml.GPU) (float64, bool) { return g.Temperature.Get() }),
		gaugeRow("kvferry_gpu_sm_clock_hertz", "SM clock.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Clocks.SM) }),
		gaugeRow("kvferry_gpu_sm_clock_max_hertz", "Highest SM clock.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Clocks.SMMax) }),
		gaugeRow("kvferry_gpu_clock_scale_ratio", "Share of the highest SM clock that throttling leaves; the planner divides a registered prefill speed by it.", gpuLabels, func(g nvml.GPU) (float64, bool) {
			if g.IsInstance() {
				return 0, false
			}
			return nvml.ClockScale(g).Get()
		}),
		counterRow("kvferry_gpu_ecc_corrected_errors_total", "ECC errors that were corrected, since the driver loaded.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Health.Corrected) }),
		counterRow("kvferry_gpu_ecc_uncorrected_errors_total", "ECC errors that were not corrected, since the driver loaded.", gpuLabels, func(g nvml.GPU) (float64, bool) { return asFloat(g.Health.Uncorrected) }),
		gaugeRow("kvferry_gpu_last_xid", "Code of the driver's last Xid event; 0 when there was none.", gpuLabels, func(g nvml.GPU) (float64, bool) {
			x, ok := g.Health.LastXid.Get()
			return float64(x.Code), ok
		}),
	}
)

func asFloat(r nvml.Reading[uint64]) (float64, bool) {
	v, ok := r.Get()
	return float64(v), ok
}

// Describe implements prometheus.Collector.
func (c *gpuCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- gpuReader
	ch <- gpuState
	ch <- gpuSlows
	describeRows(ch, gpuRows)
}

// Collect implements prometheus.Collector.
func (c *gpuCollector) Collect(ch chan<- prometheus.Metric) {
	snap, err := c.load.gpus.Sample(context.Background())
	if err != nil { // closed
		return
	}
	for _, s := range []nvml.State{nvml.StateUnavailable, nvml.StateAvailable, nvml.StateHung} {
		ch <- prometheus.MustNewConstMetric(gpuReader, prometheus.GaugeValue, one(snap.State == s), s.String())
	}
	for _, g := range snap.GPUs {
		labels := []string{strconv.Itoa(g.Index), g.UUID}
		for _, s := range []nvml.State{nvml.StateUnavailable, nvml.StateAvailable, nvml.StateDegraded, nvml.StateLost, nvml.StateHung} {
			ch <- prometheus.MustNewConstMetric(gpuState, prometheus.GaugeValue, one(g.State == s), append(labels, s.String())...)
		}
		if reasons, ok := g.Clocks.Throttling.Get(); ok {
			for bit, name := range nvml.ThrottleNames() {
				ch <- prometheus.MustNewConstMetric(gpuSlows, prometheus.GaugeValue, one(reasons&(1<<bit) != 0), append(labels, name)...)
			}
		}
		if snap.State == nvml.StateAvailable && snap.Age <= c.load.maxAge {
			collectRows(ch, gpuRows, g, labels...)
		}
	}
}

// engineCollector shows the latest load of the engines that the configuration lists. A load that is too old has no samples
// but up.
type engineCollector struct{ load *load }

var engineLabels = []string{"engine"}

func reading(f func(engineload.Load) engineload.Reading) func(engineload.Load) (float64, bool) {
	return func(l engineload.Load) (float64, bool) {
		r := f(l)
		return r.Value, r.Known
	}
}

var (
	engineUp   = prometheus.NewDesc("kvferry_engine_up", "1 when the engine's metrics were read lately.", engineLabels, nil)
	engineRows = []row[engineload.Load]{
		gaugeRow("kvferry_engine_running_requests", "Requests in the engine's batch.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.Running })),
		gaugeRow("kvferry_engine_waiting_requests", "Requests that wait for capacity.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.Waiting })),
		gaugeRow("kvferry_engine_kv_usage_ratio", "Share of the engine's KV cache that running requests hold, of its fullest rank.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.KVUsage })),
		gaugeRow("kvferry_engine_prefill_seconds_per_token", "Measured prefill time a token; absent until enough was computed.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.Prefill.SecondsPerToken })),
		counterRow("kvferry_engine_prefix_asked_tokens_total", "Prompt tokens that the engine looked up in its own prefix cache.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.PrefixQueries })),
		counterRow("kvferry_engine_prefix_hit_tokens_total", "Prompt tokens that the engine found in its own prefix cache.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.PrefixHits })),
		counterRow("kvferry_engine_external_asked_tokens_total", "Prompt tokens that the engine looked up in a cache outside, such as this daemon.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.ExternalQueries })),
		counterRow("kvferry_engine_external_hit_tokens_total", "Prompt tokens that the engine found in a cache outside.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.ExternalHits })),
		counterRow("kvferry_engine_prompt_tokens_total", "Prompt tokens of the engine's requests.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.PromptTokens })),
		counterRow("kvferry_engine_preemptions_total", "Requests thrown out of the engine's batch for lack of cache.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.Preemptions })),
		counterRow("kvferry_engine_queue_seconds_total", "Time that the engine's requests waited.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.QueueSeconds })),
		counterRow("kvferry_engine_queued_requests_total", "Requests that kvferry_engine_queue_seconds_total is of.", engineLabels, reading(func(l engineload.Load) engineload.Reading { return l.QueueRequests })),
		counterRow("kvferry_engine_restarts_total", "Restarts of the engine that its counters showed.", engineLabels, always(func(l engineload.Load) float64 { return float64(l.Restarts) })),
	}
)

// Describe implements prometheus.Collector.
func (c *engineCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- engineUp
	describeRows(ch, engineRows)
}

// Collect implements prometheus.Collector.
func (c *engineCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.load.engines {
		if e.reader == nil {
			continue
		}
		l, err := e.reader.Load()
		ch <- prometheus.MustNewConstMetric(engineUp, prometheus.GaugeValue, one(err == nil), e.cfg.ID)
		if err == nil {
			collectRows(ch, engineRows, l, e.cfg.ID)
		}
	}
}
