// Package kvdump records real KV pages into a file of package kvfile: those that the reference engine computes of a text, or
// those that an engine has committed to a running daemon.
//
// # Usage
//
//	s, err := kvdump.Compute(ctx, kvdump.Config{Path: "pages.kv"}, kvdump.Engine{})
//	s, err := kvdump.Read(ctx, kvdump.Config{Path: "pages.kv"}, kvdump.Daemon{Socket: "/run/kvferry/kvferry.sock", Keys: keys})
//
// # Cancellation
//
// When ctx ends, the error is its cause, and neither a file nor a hold on blocks is left.
//
// # Concurrency
//
// Both may be called concurrently, for different paths.
//
// # Limitations
//
// Whole blocks are recorded. The API tells nobody the keys of a session's blocks: who wants them of a daemon has to know them, as
// the engine that named them does. The reference engine has random weights: its caches are real as results of a transformer's
// arithmetic, not as those of a trained model. Read is one more process of the engine while its own lives: should the engine's rank 0 die
// meanwhile, its reservations are aborted when that ends.
package kvdump
