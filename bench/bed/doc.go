// Package bed is two daemons over a model link in one process, for benches and tests that need the real thing and exact delays.
//
// # Usage
//
//	b, err := bed.Open(bed.Config{WAN: model})
//	defer b.Close()
//	b.Destination.Move.Migrate(ctx, ...)
//
// Inside a bubble of testing/synctest time is virtual, the daemons' too.
//
// # Concurrency
//
// A Bed's methods may be called concurrently, Close once.
//
// # Limitations
//
// The processors are shared by both ends and the link.
package bed
