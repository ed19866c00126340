package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// keptArenas are the arenas of this node's earlier starts whose engines have not registered since. They wait for that, for arena.keep, or until
// their room is needed.
type keptArenas struct {
	list []kvstore.KeptArena
	next time.Time // of the next look
}

// keptEvery is how often kept arenas are looked at, while there are any.
const keptEvery = 10 * time.Second

// ArenaPrefix begins the names of a node's arena files in arena.dir; an engine's id follows. Neither has an '@', so that a file is of one engine of one node.
func ArenaPrefix(node string) string { return "kvferry-" + node + "@" }

// takeFormerNames gives kept arenas whose names have a '-' between node and engine the names that engines look for. Two engines may have shared such a name: whose it
// is, the index says.
func (r *engines) takeFormerNames() {
	former := "kvferry-" + r.node + "-"
	files, err := kvstore.ListArenas(r.cfg.Dir, former)
	for _, f := range files {
		node, engine, ok := strings.Cut(f.Identity, "/")
		if !ok || node != r.node || filepath.Base(f.Path) != former+engine || f.InUse {
			continue
		}
		if _, rerr := kvstore.RenameArena(r.cfg.Dir, former+engine, ArenaPrefix(node)+engine, f.Identity); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	if err != nil { // engines find nothing of before
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "look for arenas of earlier releases", slog.Any("error", err))
	}
}

// identity is what the arena of an engine is kept under; "": it is not.
func (r *engines) identity(engine string) string {
	if r.cfg.Keep < 0 {
		return ""
	}
	return r.node + "/" + engine
}

// sweepKept removes what earlier starts left and nobody has registered for within arena.keep, or can find. It does nothing while an arena is
// being opened.
func (r *engines) sweepKept(now time.Time) {
	if !r.opening.TryLock() {
		return
	}
	defer r.opening.Unlock()
	if now.Before(r.kept.next) || !r.kept.next.IsZero() && len(r.kept.list) == 0 {
		return
	}
	r.kept.next = now.Add(keptEvery)
	r.dropKeptLocked(func(k kvstore.KeptArena) bool { return r.cfg.Keep >= 0 && now.Sub(k.Since) < r.cfg.Keep })
}

// noteAlive has the files of arenas say from time to time that this daemon has them, for people who find them when it is gone. Called only by the sweeper.
func (r *engines) noteAlive(now time.Time) {
	if now.Before(r.nextAlive) {
		return
	}
	r.nextAlive = now.Add(keptEvery)
	for _, e := range r.list() {
		e.arena.NoteAlive()
	}
}

// dropKeptLocked removes those of this node's arenas without a process that keep does not want. r.opening is held.
func (r *engines) dropKeptLocked(keep func(kvstore.KeptArena) bool) {
	nameless := map[string]bool{}
	removed, kept, err := kvstore.RemoveStaleArenas(r.cfg.Dir, ArenaPrefix(r.node), func(k kvstore.KeptArena) bool {
		nameless[k.Path] = k.Identity == ""
		return k.Identity != "" && keep(k)
	})
	for _, path := range removed {
		if nameless[path] && r.cfg.Keep >= 0 {
			r.log.LogAttrs(context.Background(), slog.LevelWarn, "removed what an earlier start left and nobody can take over: the arena or its index is missing or damaged", slog.String("arena", path))
			continue
		}
		r.log.LogAttrs(context.Background(), slog.LevelInfo, "removed an arena that no engine has registered for", slog.String("arena", path))
	}
	if err != nil { // the memory is missed, nothing else
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "look for arenas of earlier starts", slog.Any("error", err))
	}
	r.kept.list = kept
}

// makeRoom removes kept arenas, the longest unwanted first, until no more than room bytes are missing of arena.max_bytes, and returns how many
// bytes those that stay take. The one named name is about to be opened and does not count. r.opening is held.
func (r *engines) makeRoom(name string, missing int64) (taken int64) {
	waiting := slices.DeleteFunc(slices.Clone(r.kept.list), func(k kvstore.KeptArena) bool { return filepath.Base(k.Path) == name })
	slices.SortFunc(waiting, func(a, b kvstore.KeptArena) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Path, b.Path)) })
	drop := map[string]bool{}
	for _, k := range waiting { // the latest first: what does not fit beside them goes
		if missing+taken+k.Bytes > 0 {
			drop[k.Path] = true
			continue
		}
		taken += k.Bytes
	}
	if len(drop) > 0 {
		r.dropKeptLocked(func(k kvstore.KeptArena) bool { return !drop[k.Path] })
	}
	return taken
}

// openArena opens an arena, and says what came of the blocks that were in it. Kept arenas make way where the filesystem has no room.
func (r *engines) openArena(cfg kvstore.ArenaConfig) (*kvstore.Arena, error) {
	arena, err := kvstore.OpenArena(cfg)
	if _, full := errors.AsType[*kvstore.ArenaSpaceError](err); full && len(r.kept.list) > 0 {
		r.dropKeptLocked(func(kvstore.KeptArena) bool { return false })
		arena, err = kvstore.OpenArena(cfg)
	}
	if err != nil {
		return nil, err
	}
	r.kept.list = slices.DeleteFunc(r.kept.list, func(k kvstore.KeptArena) bool { return k.Path == arena.Path() })
	switch got := arena.Restored(); {
	case got.Why != "":
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "nothing of the arena of before is kept", slog.String("arena", arena.Path()), slog.String("why", got.Why))
	case got.Blocks+got.Dropped+got.Held > 0:
		r.log.LogAttrs(context.Background(), slog.LevelInfo, "blocks of before are kept", slog.String("arena", arena.Path()), slog.Int("blocks", got.Blocks),
			slog.Int("dropped", got.Dropped), slog.Int("slots_held", got.Held), slog.Duration("took", got.Took))
	}
	return arena, nil
}

// watchBefore has what the processes of earlier starts hold given back when they die. One that registers again has let go, too: it was told to forget
// what it had.
func (r *engines) watchBefore(e *engine) {
	for _, name := range e.arena.Before() {
		p, alive := findProcess(name)
		if !alive {
			e.arena.Gone(name)
			continue
		}
		if p == nil { // of another pid namespace: it registers again, or its slots stay out of use
			continue
		}
		stop, err := watchProcess(p, func() { e.goneBefore(name) })
		p.close()
		if err != nil {
			r.log.LogAttrs(context.Background(), slog.LevelWarn, "watch a process of before", slog.String("process", name), slog.Any("error", err))
			continue
		}
		e.mu.Lock()
		e.mu.before[name] = stop
		e.mu.Unlock()
	}
}

// goneBefore notes that a process of an earlier start is dead. It runs on the watcher's goroutine.
func (e *engine) goneBefore(name string) {
	e.mu.Lock()
	delete(e.mu.before, name)
	e.mu.Unlock()
	e.arena.Gone(name)
}

// noteProcessesLocked tells the arena which processes may touch its memory.
func (e *engine) noteProcessesLocked() {
	names := make([]string, 0, len(e.mu.procs))
	for _, p := range e.mu.procs {
		names = append(names, p.lasting)
	}
	e.arena.SetProcesses(names)
}
