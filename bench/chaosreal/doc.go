// Package chaosreal breaks a fleet of real processes in every way that a machine or a network breaks one, and checks that no session
// suffers.
//
// # Usage
//
//	table, err := chaosreal.Run(ctx, chaosreal.Config{Runs: 30, Seed: 1, Kvferryd: "bin/kvferryd", Kvferry: "bin/kvferry", Out: os.Stdout})
//
// A run is three daemons, each with an engine, all processes of their own, joined by UDP relays. Sessions are migrated among them while
// faults strike: daemons and engines are killed, stopped, frozen; links are cut one way and both ways, and lose packets; arena files are
// truncated, written over and removed; the folder of state has no space left. Which fault strikes where and for how long is derived
// from the seed, and so is what it waits for: a migration, and how far that one has come.
//
// After the faults everything is healed and the checker looks from outside, through the public API: each migration had one terminal
// state, in time; each session has one owner and can be moved again; each page that any node has is what its key says, byte for byte;
// what is held is given back; no process ended by itself; nothing is left when all have stopped.
//
// Engines are paced reference engines: their pages are a function of the block's key, so that every page anywhere can be checked.
//
// # Concurrency
//
// Run may be called once at a time a machine: its ports and shared memory are the machine's.
//
// # Limitations
//
// Linux. A full disk is a small tmpfs, which takes root; without it that fault is left out and the table says so. The schedule is
// the seed's, what comes of it is not: processes and clocks are real.
package chaosreal
