package engineload

import "strings"

// fold is how the samples of the ranks become one number.
type fold int

const (
	sum fold = iota
	maximum
)

// source is one way to get a reading: the samples of exactly this name that keep accepts.
type source struct {
	name string
	// keep selects samples; nil means all.
	keep func(labels) bool
	// unitByHelp says that the number is tokens or blocks, as the help text says.
	unitByHelp bool
}

// series is one reading and where it may come from, best first.
type series struct {
	into    func(*Load) *Reading
	fold    fold
	sources []source
	// share says that the number is between 0 and 1.
	share bool
	// byPriority says that a sample without a priority is the total of those with one.
	byPriority bool
}

// engine is what is known about one make of engine.
type engine struct {
	kind   Kind
	series []series
	// rank is the label that tells data-parallel ranks apart.
	rank string
}

// counter lists a counter's names: with and without the suffix that exporters add.
func counter(name string, keep func(labels) bool) []source {
	return []source{{name: name + "_total", keep: keep}, {name: name, keep: keep}}
}

// has keeps samples whose label has one of the values.
func has(label string, values ...string) func(labels) bool {
	return func(ls labels) bool {
		got := ls.get(label)
		for _, v := range values {
			if got == v {
				return true
			}
		}
		return false
	}
}

// storage keeps, or keeps out, samples of a cache outside the engine.
func storage(want bool) func(labels) bool {
	return func(ls labels) bool { return strings.HasPrefix(ls.get("cache_source"), "storage") == want }
}

// concat joins lists of sources, best first.
func concat(lists ...[]source) []source {
	var all []source
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// Names that the collector treats on its own.
const (
	nameCacheConfig  = "vllm:cache_config_info"
	nameProcessStart = "process_start_time_seconds"
)

// blocksOrTokens lists the names of vLLM 0.8's prefix counters, which counted blocks at first and tokens later.
func blocksOrTokens(name string) []source {
	return []source{{name: name + "_total", unitByHelp: true}, {name: name, unitByHelp: true}}
}

// engines are the makes that are understood. Names and labels: vLLM vllm/v1/metrics/loggers.py and, for the old engine,
// vllm/engine/metrics.py; SGLang python/sglang/srt/observability/metrics_collector.py and srt/metrics/collector.py.
var engines = []engine{
	{
		kind: VLLM, rank: "engine",
		series: []series{
			{into: func(l *Load) *Reading { return &l.Running }, sources: []source{{name: "vllm:num_requests_running"}}},
			{into: func(l *Load) *Reading { return &l.Waiting }, sources: []source{
				{name: "vllm:num_requests_waiting_by_reason", keep: has("reason", "capacity")},
				{name: "vllm:num_requests_waiting"},
			}},
			{into: func(l *Load) *Reading { return &l.KVUsage }, fold: maximum, share: true, sources: []source{
				{name: "vllm:kv_cache_usage_perc"},
				{name: "vllm:gpu_cache_usage_perc"},
			}},
			{into: func(l *Load) *Reading { return &l.PrefixQueries }, sources: concat(counter("vllm:prefix_cache_queries", nil), blocksOrTokens("vllm:gpu_prefix_cache_queries"))},
			{into: func(l *Load) *Reading { return &l.PrefixHits }, sources: concat(counter("vllm:prefix_cache_hits", nil), blocksOrTokens("vllm:gpu_prefix_cache_hits"))},
			{into: func(l *Load) *Reading { return &l.ExternalQueries }, sources: counter("vllm:external_prefix_cache_queries", nil)},
			{into: func(l *Load) *Reading { return &l.ExternalHits }, sources: counter("vllm:external_prefix_cache_hits", nil)},
			{into: func(l *Load) *Reading { return &l.PromptTokens }, sources: counter("vllm:prompt_tokens", nil)},
			// The first is observed together with the prefill time, at the request's end; the second earlier.
			{into: func(l *Load) *Reading { return &l.ComputedTokens }, sources: concat(
				[]source{{name: "vllm:request_prefill_kv_computed_tokens_sum"}},
				counter("vllm:prompt_tokens_by_source", has("source", "local_compute")))},
			{into: func(l *Load) *Reading { return &l.PrefillSeconds }, sources: []source{{name: "vllm:request_prefill_time_seconds_sum"}}},
			{into: func(l *Load) *Reading { return &l.Preemptions }, sources: counter("vllm:num_preemptions", nil)},
			{into: func(l *Load) *Reading { return &l.QueueSeconds }, sources: []source{{name: "vllm:request_queue_time_seconds_sum"}}},
			{into: func(l *Load) *Reading { return &l.QueueRequests }, sources: []source{{name: "vllm:request_queue_time_seconds_count"}}},
		},
	},
	{
		kind: SGLang, rank: "dp_rank",
		series: []series{
			{into: func(l *Load) *Reading { return &l.Running }, byPriority: true, sources: []source{{name: "sglang:num_running_reqs"}}},
			{into: func(l *Load) *Reading { return &l.Waiting }, byPriority: true, sources: []source{{name: "sglang:num_queue_reqs"}}},
			{into: func(l *Load) *Reading { return &l.KVUsage }, fold: maximum, share: true, sources: []source{
				{name: "sglang:token_usage"},
				{name: "sglang:full_token_usage"},
			}},
			{into: func(l *Load) *Reading { return &l.PrefixQueries }, sources: concat(counter("sglang:prefill_effective_tokens", nil), counter("sglang:prompt_tokens", nil))},
			{into: func(l *Load) *Reading { return &l.PrefixHits }, sources: concat(
				counter("sglang:prefill_effective_tokens", has("mode", "device_hit", "host_hit")),
				counter("sglang:cached_tokens", storage(false)))},
			{into: func(l *Load) *Reading { return &l.ExternalHits }, sources: concat(
				counter("sglang:prefill_effective_tokens", has("mode", "storage_hit")),
				counter("sglang:cached_tokens", storage(true)))},
			{into: func(l *Load) *Reading { return &l.PromptTokens }, sources: counter("sglang:prompt_tokens", nil)},
			{into: func(l *Load) *Reading { return &l.ComputedTokens }, sources: concat(
				counter("sglang:prefill_effective_tokens", has("mode", "input")),
				counter("sglang:realtime_tokens", has("mode", "prefill_compute")),
				[]source{{name: "sglang:uncached_prompt_tokens_histogram_sum"}})},
			// The stage "chunked_prefill" lies within this one.
			{into: func(l *Load) *Reading { return &l.PrefillSeconds }, sources: []source{
				{name: "sglang:per_stage_req_latency_seconds_sum", keep: has("stage", "prefill_forward")},
			}},
			{into: func(l *Load) *Reading { return &l.Preemptions }, sources: counter("sglang:num_retracted_requests", nil)},
			{into: func(l *Load) *Reading { return &l.QueueSeconds }, sources: []source{{name: "sglang:queue_time_seconds_sum"}}},
			{into: func(l *Load) *Reading { return &l.QueueRequests }, sources: []source{{name: "sglang:queue_time_seconds_count"}}},
		},
	},
}

// wanted is every name that is read, with the make that it tells, or "".
var wanted = func() map[string]Kind {
	names := map[string]Kind{nameProcessStart: "", nameCacheConfig: VLLM}
	for _, e := range engines {
		for _, s := range e.series {
			for _, src := range s.sources {
				names[src.name] = e.kind
			}
		}
	}
	return names
}()

// replicas are labels of SGLang's ranks that work on the same requests and report the same numbers.
var replicas = map[string]bool{"tp_rank": true, "pp_rank": true, "moe_ep_rank": true}
