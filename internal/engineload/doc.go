// Package engineload reads the load of one inference engine, vLLM or SGLang, from its Prometheus endpoint: the queue, the
// running batch, cache use, prefix hits and the speed of prefill.
//
// # Usage
//
//	s, err := engineload.New(engineload.Config{URL: "http://127.0.0.1:8000/metrics"})
//	wg.Go(func() { _ = s.Run(ctx) })
//	load, err := s.Load() // cached; a *StaleError when too old
//	if err == nil && load.Waiting.Known { ... load.Waiting.Value ... }
//
// [Parse] does the same for a text that is there already, [Scraper.Scrape] for this moment.
//
// Every number is a [Reading]: unknown is never zero. Names are matched whole, so "_created" twins and longer names that
// begin alike do not count. Names of old and of current engines are known:
//
//	reading          vLLM                                               SGLang (sglang:...)
//	Running          num_requests_running                               num_running_reqs
//	Waiting          num_requests_waiting_by_reason{reason="capacity"}  num_queue_reqs
//	                 or num_requests_waiting
//	KVUsage          kv_cache_usage_perc or gpu_cache_usage_perc        token_usage or full_token_usage
//	PrefixQueries    prefix_cache_queries_total                         prefill_effective_tokens_total, all modes
//	                 or gpu_prefix_cache_queries_total                  or prompt_tokens_total
//	PrefixHits       prefix_cache_hits_total                            ..{mode="device_hit", "host_hit"}
//	                 or gpu_prefix_cache_hits_total                     or cached_tokens_total, but not storage
//	ExternalQueries  external_prefix_cache_queries_total                not counted
//	ExternalHits     external_prefix_cache_hits_total                   ..{mode="storage_hit"} or cached_tokens_total
//	PromptTokens     prompt_tokens_total                                prompt_tokens_total
//	ComputedTokens   request_prefill_kv_computed_tokens_sum             ..{mode="input"} or
//	                 or prompt_tokens_by_source_total{local_compute}    realtime_tokens_total{mode="prefill_compute"}
//	                 or PromptTokens less hits                          or uncached_prompt_tokens_histogram_sum
//	                                                                    or PromptTokens less hits
//	PrefillSeconds   request_prefill_time_seconds_sum                   per_stage_req_latency_seconds_sum
//	                                                                    {stage="prefill_forward"}
//	Preemptions      num_preemptions_total                              num_retracted_requests_total
//	Queue..          request_queue_time_seconds_{sum,count}             queue_time_seconds_{sum,count}
//
// Counters are also known without "_total". The prefix counters with "gpu_" counted blocks in early vLLM V1 and tokens
// later: the help text says which, and cache_config_info the size of a block; without both they are unknown.
//
// Samples that differ in vLLM's engine, SGLang's dp_rank or another label are added up; KVUsage is the largest. SGLang's
// tensor, pipeline and expert ranks work on the same requests: the largest of them counts, once. Under SGLang's priority
// scheduling the sample without a priority is the total and the others are left out.
//
// One sample that is malformed, negative, NaN or infinite makes its reading unknown: the sum of the others would be too
// small.
//
// # Concurrency
//
// A [Scraper] is safe for concurrent use and starts no goroutine; Run is the caller's. Scrapes take turns. [Scraper.Load]
// waits for nobody.
//
// # Limitations
//
//   - An SGLang without stage latencies gives no prefill time, so its Prefill is unknown: the time to the first token
//     holds the queue too. SGLang without --enable-metrics has no endpoint at all.
//   - Running and Waiting are the scheduler's main queues, not those of SGLang's prefill and decode hand-over.
//   - A restart between two scrapes goes unseen if every counter has passed its old value again, unless the process's
//     start is exported. A text cut between two lines by a server that gives no length can't be told from a whole one;
//     what is missing is in Partial.
//   - vLLM behind Ray exports other names ("ray_vllm...") and is refused with ErrNotAnEngine.
package engineload
