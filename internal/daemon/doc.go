// Package daemon joins the domain packages into kvferryd: gRPC services, the migration state machine, the session
// directory, offers and egress tickets, links to peers, and the admin HTTP server.
//
// # Usage
//
// Open starts a node from a Config; Close ends it in the order given in ARCHITECTURE.md. Parts replaces sockets and
// certificates for tests, which run two whole nodes in one testing/synctest bubble.
//
// # Load and metrics
//
// The load of the configured engines (internal/engineload) and of this host's GPUs (nvml) enters every plan as
// Daemon.computeInputs says; what is not known is left out and named. Metrics and their labels are described in
// deploy/README.md; each ended migration counts once, with the numbers of its report.
//
// # Concurrency
//
// Each migration has one driver goroutine (migration.run), which alone moves its state machine (next). Everyone else
// reads snapshots. Methods of Daemon are safe for concurrent use.
//
// # Limitations
//
// One node a region, peer directory, fetch, recompute, redirect and hybrid. Background is refused by name.
//
// An offer and a hand-over answer are one control message of 1 MiB: about 20,000 blocks of 32-byte keys, or 13,000 of
// 64-byte keys. A longer session is refused with MODE_UNAVAILABLE.
//
// A hand-over whose answer was lost and whose destination does not migrate again leaves the session recorded at a node
// that does not know it: a third node is told SESSION_NOT_FOUND until the recorded owner migrates it, or somebody takes
// it over.
package daemon
