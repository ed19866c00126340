// Package refengine is a reference inference engine: a real, small
// transformer (RMSNorm, rotary positions, grouped-query attention, SwiGLU,
// seeded weights) that keeps its KV cache in BF16 blocks and uses a kvferry
// daemon the way a serving engine would, through the public gRPC API and the
// mapped arena file only. It exists to prove that moved KV is the KV: every
// decode step reports its token and a hash of its logits, so that one engine's
// continuation can be compared with another's, bit for bit.
//
// # Usage
//
//	e, err := refengine.Open(ctx, refengine.Config{
//		Addr:     "unix:///run/kvferry/east.sock",
//		EngineID: "ref-east",
//		Model:    refengine.DemoModel(),
//	})
//	defer e.Close()
//	res, err := e.Generate(ctx, refengine.Request{
//		Session: "chat-1", Tokens: prompt, MaxNew: 32,
//		Commit: true, Publish: true, UseCache: true,
//	})
//
// # What makes a continuation comparable
//
// Keys and values are rounded to BF16 when they are written and always read
// rounded. Every number of a token is computed in an order that depends on its
// position alone, so batches don't matter. If position p ends a block that was
// committed or loaded, the logits of p come from evaluating token p against
// the committed cache: an engine that holds all blocks of a prompt of N·k
// tokens evaluates the last token again (a prefilled tail of 1) and gets the
// logits that the engine which committed them had.
//
// With a [Watermark] the engine perturbs each block as it is committed, and
// decodes on from the perturbed cache. No recomputation yields that
// continuation: an engine that shows it has read the committed blocks.
//
// With a [Pace] there is no mathematics: the engine sleeps like a GPU of a
// stated speed, and keys, values and tokens are seeded functions of the
// prefix. Results say so.
//
// # Concurrency
//
// An [Engine] is safe for concurrent use; it generates one request at a time,
// others wait.
//
// # Limitations
//
// Greedy decoding only, one sequence a request. Bits agree between processes
// on one machine, and between machines whose processors both have (or both
// lack) AVX2: the dot products of the two differ in their last bits.
package refengine
