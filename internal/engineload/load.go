package engineload

import (
	"fmt"
	"strconv"
	"time"
)

// Kind is the make of an inference engine.
type Kind string

// The engines whose metrics are understood.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Reading is one number of an engine, or the lack of it. The zero value is unknown, which is not zero: an idle engine has
// Running {0, true}, an engine that does not say has {0, false}.
type Reading struct {
	// Value is finite and at least 0. It means nothing where Known is false.
	Value float64
	// Known says that the engine gave the number.
	Known bool
}

// String returns the number in its shortest form, or "unknown".
func (r Reading) String() string {
	if !r.Known {
		return "unknown"
	}
	return strconv.FormatFloat(r.Value, 'g', -1, 64)
}

// Load is what one scrape of one endpoint says. It is a value: nothing in it changes after it is returned, except that
// copies share Partial, which is not to be written.
//
// Counters count since the engine's start and are sums over its data-parallel ranks; they go back when it restarts
// (Restarts). Gauges are sums over the ranks too, KVUsage is the fullest rank's.
type Load struct {
	// Engine is the make, told by the names of the metrics.
	Engine Kind
	// Model is the served model's name where all samples agree on one, else empty.
	Model string
	// Ranks is the number of data-parallel ranks that report running requests; 0 where Running is unknown.
	Ranks int

	// Running is the number of requests in the batch (gauge).
	Running Reading
	// Waiting is the number of requests that wait for capacity (gauge). A vLLM that does not give reasons counts those
	// that wait for something else (an adapter, a transfer) too.
	Waiting Reading
	// KVUsage is the share of KV cache that running requests hold, 0 to 1 (gauge); cached blocks that may be evicted do
	// not count. Of several ranks or pools it is the fullest.
	KVUsage Reading

	// PrefixQueries and PrefixHits are prompt tokens looked up in the engine's own prefix cache, and found there
	// (counters). For SGLang the host's memory belongs to it.
	PrefixQueries, PrefixHits Reading
	// ExternalQueries and ExternalHits are prompt tokens looked up in a cache outside the engine (a KV connector, a
	// storage backend), and found there (counters). SGLang does not count the queries.
	ExternalQueries, ExternalHits Reading
	// PromptTokens is prompt tokens of requests, cached ones included (counter).
	PromptTokens Reading
	// ComputedTokens is prompt tokens that were computed, not found in a cache (counter). Where the engine does not
	// count them it is PromptTokens less both kinds of hits, which can go back a little between two scrapes.
	ComputedTokens Reading
	// PrefillSeconds is the time that requests spent in prefill, added up (counter). Requests of one batch count each.
	PrefillSeconds Reading
	// Preemptions is requests that were thrown out of the batch for lack of cache (counter).
	Preemptions Reading
	// QueueSeconds is the time that requests waited, added up, QueueRequests how many have waited (counters).
	QueueSeconds, QueueRequests Reading

	// Prefill is the speed of prefill; unknown in what [Parse] returns, because it takes two scrapes.
	Prefill Prefill
	// Restarts is how often the [Scraper] saw the counters go back; 0 in what [Parse] returns.
	Restarts int

	// ScrapedAt is when the scrape began, or the time given to [Parse].
	ScrapedAt time.Time
	// Truncated says that the text ended early. What had come whole is there.
	Truncated bool
	// Partial names, sorted, the metrics that would have filled the readings that are unknown: missing, malformed, not
	// finite, or cut off. Old engines lack some for good.
	Partial []string
}

// Prefill is the speed of prefill over a stretch of work.
type Prefill struct {
	// SecondsPerToken is prefill time, as requests see it, by tokens computed. Requests that share a batch each count
	// its whole time and decoding steps in between count too: it is the speed at the engine's load of that time, and
	// no faster than the engine alone. Unknown until 1024 tokens have been computed between two scrapes.
	SecondsPerToken Reading
	// Tokens is the number of computed tokens behind it.
	Tokens float64
	// Since and Until bound the scrapes that it lies between.
	Since, Until time.Time
}

// String is one line for people.
func (l Load) String() string {
	return fmt.Sprintf("%s: running %v, waiting %v, KV cache %v", l.Engine, l.Running, l.Waiting, l.KVUsage)
}
