package doctor_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// arenas is a folder in memory with arenas of nodes.
type arenas struct {
	t   *testing.T
	dir string
}

func newArenas(t *testing.T) *arenas {
	t.Helper()
	dir, err := os.MkdirTemp(kvstore.DefaultArenaDir, "kvferry-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &arenas{t: t, dir: dir}
}

// open opens the arena of an engine as a daemon does.
func (a *arenas) open(node, engine string) *kvstore.Arena {
	a.t.Helper()
	return kvstoretest.OpenArena(a.t, 4, func(c *kvstore.ArenaConfig) {
		c.Dir, c.Name, c.Keep = a.dir, daemon.ArenaPrefix(node)+engine, node+"/"+engine
	})
}

// leave is what a daemon that ended so long ago has left.
func (a *arenas) leave(node, engine string, ago time.Duration) string {
	a.t.Helper()
	arena := a.open(node, engine)
	if err := arena.Close(); err != nil {
		a.t.Fatal(err)
	}
	a.age(arena.Path(), ago)
	return arena.Path()
}

func (a *arenas) age(path string, ago time.Duration) {
	a.t.Helper()
	if err := os.Chtimes(path, time.Now().Add(-ago), time.Now().Add(-ago)); err != nil {
		a.t.Fatal(err)
	}
}

// look runs a check with node n's configuration.
func (a *arenas) look(check string, running *doctor.Daemon) doctor.Finding {
	a.t.Helper()
	s := configured(daemon.Config{Node: daemon.NodeConfig{ID: "n"}, Arena: daemon.ArenaConfig{Dir: a.dir}})
	s.Daemon = running
	return find(a.t, s, check)
}

// Arenas that nobody has are listed with owner, size and age, and the command in the fix removes them and nothing else.
func TestStaleArenas(t *testing.T) {
	t.Parallel()
	a := newArenas(t)
	var running *doctor.Daemon
	want := func(status doctor.Status, details ...string) doctor.Finding {
		t.Helper()
		f := a.look("arena.stale", running)
		for _, d := range details {
			if !strings.Contains(f.Detail+" | "+f.Fix, d) {
				t.Errorf("%+v, want %q in it", f, d)
			}
		}
		if f.Status != status {
			t.Errorf("%+v, want %v", f, status)
		}
		return f
	}
	want(doctor.OK, "0 arenas in use, 0 that wait")
	held := a.open("other", "held")
	a.age(held.Path(), 100*time.Hour) // its daemon hangs, and lives
	mine := a.leave("n", "mine", 2*time.Hour)
	young := a.leave("gone", "young", 59*time.Minute)
	running = &doctor.Daemon{Node: "n"}
	want(doctor.OK, "1 arenas in use, 2 that wait for their engines, none left over") // the daemon sees to its own

	old := a.leave("gone", "old", 50*time.Hour)
	f := want(doctor.Warn, "1 arenas without a process keep ", "kvferry-gone@old (node gone, engine old, ", "last used 2 days ago",
		"start kvferryd of node gone to go on with them, or: rm -f -- "+old+" "+old+"+index")
	if strings.Contains(f.Fix, "young") || strings.Contains(f.Fix, "held") || strings.Contains(f.Fix, "mine") {
		t.Errorf("it removes what is wanted: %s", f.Fix)
	}
	running = nil
	want(doctor.Warn, "2 arenas without", "node n, engine mine", "last used 2 hours ago")

	odd := filepath.Join(a.dir, "kvferry-it's $(touch odd)")
	if err := os.WriteFile(odd, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(a.dir, "kvferry-gone@x+index")
	if err := os.WriteFile(orphan, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	a.age(odd, 3*time.Hour)
	a.age(orphan, 3*time.Hour)
	f = want(doctor.Warn, "4 arenas without", "of nobody known, 4 KiB, last used 3 hours ago", "kvferry-gone@x+index (node gone, engine x")

	_, command, _ := strings.Cut(f.Fix, "rm -f -- ")
	cmd := exec.Command("sh", "-c", "rm -f -- "+command)
	cmd.Dir = a.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want(doctor.OK, "1 arenas in use, 1 that wait for their engines, none left over")
	for path, there := range map[string]bool{held.Path(): true, young: true, young + "+index": true, mine: false, old: false, old + "+index": false, odd: false, orphan: false} {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) == there {
			t.Errorf("%s: %v, want it there: %v", path, err, there)
		}
	}
	if left, err := os.ReadDir(a.dir); err != nil || len(left) != 4 {
		t.Errorf("left are %v, %v", left, err)
	}

	for i := range 12 { // a finding stays readable
		a.leave("many", strings.Repeat("e", i+1), 99*time.Hour)
	}
	if f := want(doctor.Warn, "12 arenas without", "and 4 more, which the next look names"); strings.Count(f.Fix, "+index") != 8 {
		t.Errorf("%s", f.Fix)
	}
}

// An arena that can't be read is neither damaged nor left over: it may be a living daemon's, of another user.
func TestUnreadArenas(t *testing.T) {
	t.Parallel()
	a := newArenas(t)
	closed := a.leave("n", "closed", 2*time.Hour)
	shut(t, closed)
	want := func(check string, running *doctor.Daemon, status doctor.Status, detail string) {
		t.Helper()
		if f := a.look(check, running); f.Status != status || !strings.Contains(f.Detail, detail) || f.Fix != "" {
			t.Errorf("%s: %+v, want %v with %q", check, f, status, detail)
		}
	}
	want("arena.files", nil, doctor.Unknown, "1 of 1 arenas of node n in "+a.dir+" can't be read: ")
	want("arena.files", &doctor.Daemon{Node: "n"}, doctor.OK, "1 arenas of node n")
	want("arena.stale", nil, doctor.Unknown, "0 that wait for their engines, 1 that can't be read, of which 1 may be left over")
	want("arena.stale", &doctor.Daemon{Node: "n"}, doctor.OK, "1 that can't be read, none left over")
	left := a.leave("gone", "left", 2*time.Hour)
	if f := a.look("arena.stale", nil); f.Status != doctor.Warn || !strings.Contains(f.Fix, left) || strings.Contains(f.Fix, closed) {
		t.Errorf("%+v", f)
	}
}

// shut has a file not be opened by others until the test ends, root included.
func shut(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no lease on files: %v", err)
	}
}

// An arena that was truncated is seen without the daemon: in use it fails, one that waits for its engine is lost.
func TestTruncatedArenas(t *testing.T) {
	t.Parallel()
	a := newArenas(t)
	want := func(status doctor.Status, detail, fix string) {
		t.Helper()
		if f := a.look("arena.files", nil); f.Status != status || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Fix, fix) {
			t.Errorf("%+v, want %v with %q and %q", f, status, detail, fix)
		}
	}
	cut := func(path string) {
		t.Helper()
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
	}
	held, left := a.open("n", "held"), a.leave("n", "left", time.Minute)
	cut(a.leave("other", "e", time.Minute)) // another node's doctor says so
	want(doctor.OK, "2 arenas of node n in "+a.dir, "")
	cut(left)
	want(doctor.Warn, left+": it has 4096 bytes of ", "start kvferryd and its engine, which gets another")
	cut(held.Path())
	want(doctor.Fail, held.Path()+": it has 4096 bytes of ", "restart the engine: it registers again")
}
