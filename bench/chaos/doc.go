// Package chaos has three daemons live through seeded faults in virtual time, and holds what is left to rules that no fault may break.
//
// # Usage
//
//	make chaos N=1000 SEED=1
//
// runs N runs from seed SEED on, prints a table of faults by kind and outcome, and fails when a rule was broken. A run that fails prints
// its seed, what was to happen, what did, and the command that repeats it alone.
//
// # Runs
//
// A run is one bubble of testing/synctest: three daemons over bench/wan with state on disk, an engine at each that writes, reads and
// leases blocks, and proxies that migrate sessions, drop their streams and come back, cancel, and take over. Where a session has not come its engine computes and
// publishes it all the same. What happens to them is
// drawn from the seed: faults at the boundaries of package fault, cuts, partitions of one way and of both, loss, a node that stops for
// a while, one that is killed and started again on its state as it was at that moment, an arena's file that is truncated. One run in three is
// gentle: what strikes is what the design promises to survive, and every migration must be committed. One in six has all of it strike one
// host: migrations between the others must be committed, and soon.
//
// After a run everything is healed, and the checker looks: terminal (each migration has one terminal state, the same for who asks
// again, by its deadline and a grace), owner (one a session, and no earlier one by (repin_seq, epoch) than any that was reported),
// bytes (every block that can be read holds what its tenant and key say), salt (no tenant finds another's), hold (leased blocks keep
// their bytes, and leases end when they are released), late (a slot's old reference writes nothing), healthy (what must be committed is), next
// (each session can be migrated once more), gauges (nothing is held), files (nothing is left but state and arenas), close (the daemons
// end without an error), and the bubble's end (no goroutine is left).
//
// The harness is held to bugs that are planted, see fault.Bugs: TestPlanted fails for one that it does not find.
//
// # Limitations
//
// Tests only, with the tag chaos. Which goroutine comes first is not part of the seed: a fault's place is fixed by boundary and ordinal, the rest
// the event log tells. A node that stops goes on computing: its packets are held, both ways.
package chaos
