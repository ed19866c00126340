package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/kvferry/kvferry/kvstore"
)

// processKey is what a process on this host is known by while it lives. Exactly one field is set, none for the processes
// behind an in-memory listener, which count as one.
type processKey struct {
	inode uint64        // of its pidfd
	pid   int           // where all pidfds have one inode
	conn  *localProcess // the connection, where the kernel says nothing: each counts as a process
}

// String is short and differs for every two keys of one host.
func (k processKey) String() string {
	switch {
	case k.inode != 0:
		return fmt.Sprintf("pidfd-%d", k.inode)
	case k.pid != 0:
		return fmt.Sprintf("pid-%d", k.pid)
	case k.conn != nil:
		return fmt.Sprintf("conn-%p", k.conn)
	}
	return "local"
}

// processKeyOf returns the key of p, which is nil for an in-memory listener.
func processKeyOf(p *localProcess) processKey {
	if p == nil {
		return processKey{}
	}
	return p.key
}

// engineProcess is a process that has registered with an engine.
type engineProcess struct {
	key  processKey
	pid  int // for people; 0 when it is of another pid namespace
	uid  int // of its user; -1 where that is not known
	stop func()
	// lasting names it to the next daemon, see findProcess.
	lasting string
	// ranks are those it has registered for, at least one. Guarded by the engine's lock.
	ranks []int
}

// owner is who holds the engine's reservations: they are its processes' together, since every rank writes its part.
func (e *engine) owner() kvstore.Owner { return kvstore.Owner("engine/" + e.id) }

// processOwner is who holds the leases of one of its processes, and who may still write its part of a slot.
func (e *engine) processOwner(p *engineProcess) kvstore.Owner {
	return kvstore.Owner(fmt.Sprintf("engine/%s/%s", e.id, p.key))
}

// process returns the registered process with that key; nil for none.
func (e *engine) process(key processKey) *engineProcess {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.procs[key]
}

// processes is how many are registered and alive.
func (e *engine) processes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.mu.procs)
}

// ranksOf returns the world and the ranks that p has registered for.
func (e *engine) ranksOf(p *engineProcess) (world int, ranks []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.world, slices.Clone(p.ranks)
}

// uidOf is the user of a process; -1 where it is not known.
func uidOf(p *localProcess) int {
	if p == nil || !p.known {
		return -1
	}
	return int(p.uid)
}

// adopt notes what a registration brings, and has what its process holds given back when it dies.
func (r *engines) adopt(e *engine, reg registration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return failf(ReasonShuttingDown, "register again when the daemon is back", "the daemon is shutting down")
	}
	if e.mu.world != reg.world && len(e.mu.procs) > 0 {
		return &Failure{
			Reason: ReasonEngineMismatch, Message: fmt.Sprintf("engine %q is registered with world %d, not %d", reg.id, e.mu.world, reg.world),
			Fix: "give every rank the same world, stop all processes of the engine to change it, or use another engine_id",
		}
	}
	key, uid := processKeyOf(reg.proc), uidOf(reg.proc)
	for _, other := range e.mu.procs {
		if uid > 0 && other.uid >= 0 && other.uid != uid {
			return failf(ReasonPermission, "run all ranks of an engine as one user, or use another engine_id", "engine %q is registered by processes of uid %d, this one is of uid %d", reg.id, other.uid, uid)
		}
	}
	p := e.mu.procs[key]
	if p == nil {
		p = &engineProcess{key: key, uid: uid, stop: func() {}, lasting: lastingName(reg.proc)}
		if reg.proc != nil {
			p.pid = reg.proc.pid
			stop, err := watchProcess(reg.proc, func() { r.processDied(e, p) })
			if err != nil {
				return failf(ReasonInternal, "open the connection again", "%v", err)
			}
			p.stop = stop
		}
		e.mu.procs[key] = p
		e.noteProcessesLocked()
	}
	e.arena.Gone(p.lasting) // it was told to forget what it held of an earlier start
	if !slices.Contains(p.ranks, reg.rank) {
		p.ranks = append(p.ranks, reg.rank)
	}
	e.mu.world, e.mu.software = reg.world, reg.software
	if reg.speed != nil {
		e.mu.speed, e.mu.claims = reg.speed, reg.claims
	}
	return nil
}

// heldBy is called after p took slots or leases of e. If p died while it asked, its death has been seen to already and
// nobody else would give them back.
func (e *engine) heldBy(p *engineProcess) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.procs[p.key] != p && !e.mu.closed {
		e.reclaimLocked(p)
	}
}

// processDied reclaims what a dead process held. It runs on the watcher's goroutine, which ends with it.
func (r *engines) processDied(e *engine, p *engineProcess) {
	e.mu.Lock()
	if e.mu.closed { // the arena goes with it
		e.mu.Unlock()
		return
	}
	if e.mu.procs[p.key] == p {
		delete(e.mu.procs, p.key)
		e.noteProcessesLocked()
	}
	leases, reservations := e.reclaimLocked(p)
	left := len(e.mu.procs)
	e.mu.Unlock()
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "engine process died", slog.String("engine_id", e.id), slog.Int("pid", p.pid),
		slog.Int("leases_released", leases), slog.Int("reservations_aborted", reservations), slog.Int("processes_left", left))
}

// reclaimLocked gives back what p held, which is dead and not in e.mu.procs: its leases, and the engine's reservations
// that cannot be filled without it. Memory that another process may still be writing stays out of use until that one is
// quiet or dead, too. e.mu is held so that no process registers, and is handed a slot, between the count of the living
// and the end.
func (e *engine) reclaimLocked(p *engineProcess) (leases, reservations int) {
	leases = e.arena.ReleaseOwner(e.processOwner(p)).Leases
	if len(e.mu.procs) == 0 {
		return leases, e.arena.ReleaseOwner(e.owner()).Reservations
	}
	var writers []kvstore.Writer
	alive := map[int]bool{}
	for _, other := range e.mu.procs {
		writers = append(writers, kvstore.Writer{Name: e.processOwner(other), Ranks: slices.Clone(other.ranks)})
		for _, rank := range other.ranks {
			alive[rank] = true
		}
	}
	lost := slices.DeleteFunc(slices.Clone(p.ranks), func(rank int) bool { return alive[rank] })
	return leases, e.arena.AbortLost(e.owner(), lost, writers)
}

// stopWatching ends the watchers; deaths from here on are not seen.
func (e *engine) stopWatching() {
	e.mu.Lock()
	procs, before := e.mu.procs, e.mu.before
	e.mu.procs, e.mu.before, e.mu.closed = map[processKey]*engineProcess{}, map[string]func(){}, true
	e.mu.Unlock()
	for _, p := range procs {
		p.stop()
	}
	for _, stop := range before {
		stop()
	}
}
