// Package kvstore keeps the KV cache of LLM sessions in shared host memory, and the record of who owns which session.
//
// # Usage
//
// A [Layout] is the shape of an engine's cache; its [Pin] says which caches may be exchanged, and [Layout.Diff] why not.
// An [Arena] is one file on a memory filesystem, cut into slots of one block each. A block goes in one of two ways:
//
//   - an engine reserves slots ([Arena.Reserve]), its ranks write them through their own mapping of the file and each
//     says so ([Arena.CommitPart]);
//   - the network lands it page by page, each page verified before it is written ([Arena.WritePage]), and the block is
//     committed when all have landed ([Arena.CommitLanded]).
//
// A committed block is found by key ([Arena.Lookup]), held by a lease ([Arena.Acquire]) and read with
// [Arena.ReadPages]. A slot is free, reserved, committed, or draining (out of the index while somebody is still at its
// memory); a [SlotRef] carries the slot's generation, and every method refuses one that is stale. A block no lease holds
// may be evicted at any time.
//
// With [ArenaConfig].Keep an arena outlasts its process, however that ends: an index beside the file is changed in place with every change
// of a slot, and the next opener takes over each block whose pages all verify, under a new generation ([Arena.Restored]). Leases, reservations and
// half-landed blocks are not kept, but what processes of before may still be reading or writing is not reused until they are [Arena.Gone].
//
// Each page has a CRC32C seeded with pin, key and layer ([PageSum]), computed once at the source and checked at every
// landing.
//
// [Sessions] records which blocks make up a session, who owns it, and where it went. [Sessions.HandOver] is the
// compare-and-set by which a session changes owner.
//
// # Concurrency
//
// Arena and Sessions are safe for concurrent use. Copies and checksums run outside the arena's lock; look-ups take one
// shard's read lock. No method waits for another caller, except Close, which waits for copies in progress. Every change
// of a session waits for the disk when there is a file; readers do not. An arena has one goroutine, which touches and
// locks the memory and ends by itself or at Close. Opening one that is kept verifies its pages on all processors.
//
// Lock order: Arena.mu, then a shard's lock. Sessions.write, then Sessions.mu.
//
// # Limitations
//
//   - Arenas need Linux. Other systems build and get errors.ErrUnsupported.
//   - Engines that map the file can write any slot: the store cannot stop a rogue engine, but page checksums find what it
//     did ([Arena.VerifyBlock]), and truncating the file breaks the arena ([ErrArenaFault]), not the process. Checked are pages that land,
//     blocks that are taken over from an earlier process, and, by whoever receives them, pages that were read with their sums. A block that an engine
//     acquires and reads through its own mapping is not checked again: that would cost a pass over its bytes with every use.
//   - Reads and writes of one page are not ordered by the store; leases and generations order them.
//   - Only exact blocks; lossy ones are refused. No disk tier; an arena's blocks end with the machine.
//   - Session changes are one disk write each, not grouped.
package kvstore
