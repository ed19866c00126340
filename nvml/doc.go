// Package nvml reads the state of this host's NVIDIA GPUs through the NVIDIA Management Library.
//
// # Usage
//
// [Open] returns a [Sampler], whose one goroutine asks the driver about every GPU once a second; each Sample returns the
// last [Snapshot] and its age, without waiting. A snapshot, each [GPU] and each [Reading] either has a value or says why not,
// with a [Cause] for programs and a reason for people; an unknown value is never shown as zero. [ClockScale], [MemoryVeto]
// and [SpreadFactor] are what a planner makes of a GPU.
//
//	s, err := nvml.Open()
//	...
//	defer s.Close()
//	snap, err := s.Sample(ctx)
//	for _, gpu := range snap.Fresh(5 * time.Second) {
//		scale, ok := nvml.ClockScale(gpu).Get()
//		...
//	}
//
// GPU utilization is the share of time in which any kernel ran: it reads near 1 in pure decoding and is not the utilization
// of a queue.
//
// What can go wrong is a state: no library, a library without a function, no driver, no permission, versions that differ, a
// GPU that falls off the bus, a call that hangs, a driver that restarts. The sampler goes on: it initialises the library
// again with growing pauses, and a call that hangs holds one thread and makes the snapshot [StateHung] until it returns.
//
// # Concurrency
//
// Samplers are safe for concurrent use. Values are plain and may be copied. The library is loaded once for the process and
// never unloaded, so all samplers use one file.
//
// # Limitations
//
// The binding needs Linux and cgo; without them Open returns a sampler whose snapshots are unavailable and say so. It must
// not be linked with "-z now", as hardened builds are (put -Wl,-z,lazy last in CGO_LDFLAGS): that binds the library's
// functions when the process starts, and ends it on a host without the library.
//
// An open sampler keeps the driver's devices open, so the driver cannot be unloaded before Close; and after an upgrade of
// the driver the process must be restarted, since it keeps the old library. A hung call cannot be ended: Close gives it up.
package nvml
