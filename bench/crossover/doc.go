// Package crossover measures from which prefix length on moving a session's KV cache over a link is faster than prefilling
// it again, and holds the planner's prediction against it.
//
// # Usage
//
//	m, err := wan.Parse("rtt=70ms,rate=1Gbps")
//	res, err := crossover.Run(ctx, crossover.Config{WAN: m, Model: "llama-3.1-8b", PrefillSecondsPerToken: 3e-3})
//	fmt.Println(res.Conclusion)
//
// Result.File makes a results.File of it, for saving and comparing; Result.Tables, Result.CSV and Result.Plot show it. The body of
// such a file decodes into a Result.
//
// # What is measured
//
// Fetch is the whole migration of a published session, from the call of Migrate at the destination to its report, between two
// real daemons in this process that are joined by the link model: offer, request, every page moved and verified, hand-over. No block
// of the session is at the destination before; afterwards its bytes are compared with the source's, outside of the time.
// The connections are warm: migrations of the calibration go first.
//
// Recompute is what the chosen engine takes for the same number of tokens: a pause of the stated time a token (paced), the
// reference engine with real mathematics (real), or the time to the first token at an OpenAI-compatible endpoint.
//
// The sweep goes over multiples of the block size around the predicted crossover. Each round visits every length once, in an
// order of its own, fetch and recompute in turns. Straight lines are fitted to the medians; where they cross is the measured
// crossover, with the interval of a bootstrap over rounds.
//
// The prediction is the planner's. It is made before the sweep, from migrations of other lengths: a line that a few outliers do not
// move, fixed + round trips + bytes/goodput, gives goodput and fixed cost, and QUIC's least round trip the rest. Config may
// give round trip and goodput instead. The prefill speed is that which was stated, or that which prefills of the
// calibration showed.
//
// # Concurrency
//
// Run may be called from several goroutines; measurements then disturb one another. A Result is a value that nobody else
// refers to.
//
// # Limitations
//
// Both daemons run in this process and in real time: on a slow or busy machine the processor, not the link, sets the number,
// which the result then says (Result.LimitedBy). The token that an engine has to prefill after a fetch, to get its first
// logits, is in neither time. An OpenAI-compatible endpoint is measured with its network and its queue.
package crossover
