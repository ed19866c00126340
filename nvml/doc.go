// Package nvml reads the state of this host's NVIDIA GPUs through the NVIDIA Management Library.
//
// # Usage
//
// [Open] returns a [Sampler]; each Sample returns a [Snapshot]. A snapshot, and each [Reading] in it, is either available
// or unavailable with a reason; an unavailable value is never shown as zero. GPU utilization is the share of time in which
// any kernel ran: it reads near 1 in pure decoding and is not the utilization of a queue.
//
// # Concurrency
//
// Samplers are safe for concurrent use. Values are plain and may be copied.
//
// # Limitations
//
// This build has no driver binding: Open returns a sampler whose snapshots are unavailable and say so.
package nvml
