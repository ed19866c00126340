package doctor

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// arenaFile is an arena's file with who it is of.
type arenaFile struct {
	kvstore.ArenaFile
	node, engine string // "" where that can't be told
}

// listArenas looks at the files of all nodes' arenas in arena.dir, once.
func (d *doctor) listArenas() ([]arenaFile, error) {
	list, err := kvstore.ListArenas(d.Config.Arena.Dir, "kvferry-")
	out := make([]arenaFile, len(list))
	for i, a := range list {
		out[i].ArenaFile = a
		var known bool
		if out[i].node, out[i].engine, known = strings.Cut(a.Identity, "/"); known {
			continue
		}
		// What has no index is named by its name.
		rest := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(a.Path), "kvferry-"), "+index")
		if out[i].node, out[i].engine, known = strings.Cut(rest, "@"); !known {
			out[i].node = ""
		}
	}
	return out, err
}

// node is this node's id; "" without a configuration and a daemon.
func (d *doctor) node() string {
	if d.Config.Node.ID == "" && d.Daemon != nil {
		return d.Daemon.Node
	}
	return d.Config.Node.ID
}

// arenaBytes is what this node's arenas take, those that wait for their engines since a restart included.
func (d *doctor) arenaBytes() (bytes int64) {
	files, _ := d.arenas() // a folder that can't be listed holds none that can be taken over
	for _, a := range files {
		if d.node() != "" && a.node == d.node() {
			bytes += a.Bytes
		}
	}
	return bytes
}

// checkArenaFiles looks for arenas of this node whose memory is gone.
func (d *doctor) checkArenaFiles(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	dir, node := d.Config.Arena.Dir, d.node()
	restart := "restart %s: it registers again and gets another arena. Find out who truncates or removes files in " + dir
	if d.Daemon != nil && len(d.Daemon.Broken) > 0 {
		return fail(fmt.Sprintf(restart, engines(d.Daemon.Broken)), "the memory of %s is gone: its file was truncated or removed. Nothing is moved from or to it", engines(d.Daemon.Broken))
	}
	files, err := d.arenas()
	if err != nil {
		return unknown("not looked at: see arena.dir")
	}
	var used, spoilt []string
	var n, unread int
	var unreadErr error
	for _, a := range files {
		if node == "" || a.node != node {
			continue
		}
		n++
		if a.Unread != nil {
			unread, unreadErr = unread+1, a.Unread
			continue
		}
		switch text := fmt.Sprintf("%s: %s", a.Path, a.Damage); {
		case a.Damage == "":
		case a.InUse:
			used = append(used, text)
		default:
			spoilt = append(spoilt, text)
		}
	}
	switch {
	case len(used) > 0:
		return fail(fmt.Sprintf(restart, "the engine"), "an arena that is in use is damaged: %s", strings.Join(used, "; "))
	case len(spoilt) > 0:
		return warn("start kvferryd and its engine, which gets another in its place. Find out who truncates or removes files in "+dir,
			"an arena that waits for its engine is damaged, its blocks are lost: %s", strings.Join(spoilt, "; "))
	case node == "":
		return unknown("not looked at: the node is not known without --config or a daemon")
	case unread > 0 && d.Daemon == nil: // one that runs looks at its own
		return unknown("%d of %d arenas of node %s in %s can't be read: %v. Look as root or as kvferryd's user", unread, n, node, dir, unreadErr)
	}
	return ok("%d arenas of node %s in %s", n, node, dir)
}

// engines names engines in a text.
func engines(ids []string) string {
	return map[bool]string{true: "engine ", false: "engines "}[len(ids) == 1] + strings.Join(ids, ", ")
}

// staleListed bounds how many files a finding names.
const staleListed = 8

// checkStale looks for arenas that no process has and nobody waits for: their memory stays taken until the host restarts.
func (d *doctor) checkStale(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	files, err := d.arenas()
	if err != nil {
		return unknown("not looked at: see arena.dir")
	}
	dir, keep, now := d.Config.Arena.Dir, d.Config.Arena.Keep, d.Host.Now()
	var stale []arenaFile
	var waiting, inUse, unread, doubtful, bytes int64
	for _, a := range files {
		age := now.Sub(a.Used)
		switch {
		case a.InUse && a.Unread == nil:
			inUse++
		case d.Daemon != nil && a.node == d.Daemon.Node && a.node != "", keep > 0 && age < keep:
			if a.InUse {
				unread++
			} else {
				waiting++ // the daemon sees to its own; the others' may be about to come back
			}
		case a.InUse:
			unread, doubtful = unread+1, doubtful+1 // it may be a living daemon's
		default:
			stale = append(stale, a)
			bytes += a.Bytes
		}
	}
	closed := ""
	if unread > 0 {
		closed = fmt.Sprintf(", %d that can't be read", unread)
	}
	switch {
	case len(stale) == 0 && doubtful > 0:
		return unknown("%s: %d arenas in use, %d that wait for their engines%s, of which %d may be left over: look as root or as kvferryd's user", dir, inUse, waiting, closed, doubtful)
	case len(stale) == 0:
		return ok("%s: %d arenas in use, %d that wait for their engines%s, none left over", dir, inUse, waiting, closed)
	}
	slices.SortStableFunc(stale, func(a, b arenaFile) int { return cmp.Compare(b.Bytes, a.Bytes) })
	var listed, remove, nodes []string
	for _, a := range stale {
		who := "of nobody known"
		if a.node != "" {
			who = "node " + a.node + ", engine " + a.engine
			nodes = append(nodes, a.node)
		}
		listed = append(listed, fmt.Sprintf("%s (%s, %s, last used %s ago)", filepath.Base(a.Path), who, size(a.Bytes), age(now.Sub(a.Used))))
		remove = append(remove, shellQuote(a.Path))
		if !strings.HasSuffix(a.Path, "+index") {
			remove = append(remove, shellQuote(a.Path+"+index"))
		}
	}
	slices.Sort(nodes)
	unless := "if nothing is to start again with them"
	if nodes = slices.Compact(nodes); len(nodes) > 0 {
		unless = "start kvferryd of node " + strings.Join(nodes[:min(len(nodes), staleListed)], ", ") + " to go on with them, or"
	}
	more := ""
	if n := len(listed) - staleListed; n > 0 {
		listed, remove = listed[:staleListed], remove[:min(len(remove), 2*staleListed)]
		more = fmt.Sprintf("; and %d more, which the next look names", n)
	}
	return warn(unless+": rm -f -- "+strings.Join(remove, " "), "%s: %d arenas without a process keep %s of memory: %s%s", dir, len(stale), size(bytes), strings.Join(listed, "; "), more)
}

// age is a duration for a person.
func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return fmt.Sprintf("%d seconds", max(0, d/time.Second))
}

// shellQuote has a shell take a path as one word, whatever is in it.
func shellQuote(path string) string {
	if strings.IndexFunc(path, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@", r))
	}) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
