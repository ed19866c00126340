// Package demo runs two regions on one machine and proves that a session's KV cache moved between them.
//
// # Usage
//
// Start brings up a Fleet: two daemons and two reference engines as processes of their own, joined by a UDP relay that
// behaves like a WAN. Run does the whole story with it: a conversation in the first region, a re-pin, the plan, the
// migration, the conversation in the second region, and the comparison.
//
// # The proof
//
// A destination that recomputes also continues identically, so the source engine watermarks its KV: it perturbs each
// block as it commits it and keeps decoding from the perturbed cache. The destination's engine knows nothing of the
// watermark. It can reproduce the source's tokens and logits only from the KV that moved.
//
// # Concurrency
//
// A Fleet may be used by one goroutine at a time, Close excepted.
//
// # Limitations
//
// Linux. The binaries kvferryd and kvferry must exist.
package demo
