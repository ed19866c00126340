package kvstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// A look at arenas says of each whose it is, whether somebody has it, how large it is, when it was used last and what is wrong with it, and changes nothing.
func TestListArenas(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	named := func(name string) *kvstore.Arena {
		return keep(t, dir, 4, func(c *kvstore.ArenaConfig) { c.Name, c.Keep = "k-"+name, "node/"+name })
	}
	held := named("held")
	for _, name := range []string{"left", "short", "index-short", "scribbled"} {
		closeArena(t, named(name))
	}
	path := func(name string) string { return filepath.Join(dir, "k-"+name) }
	whole := held.Layout().Stride() * 4
	index, err := os.Stat(held.Path() + kvstore.IndexSuffix)
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-90 * time.Minute)
	for _, err := range []error{
		os.Truncate(path("short"), whole-1),
		os.Truncate(path("index-short")+kvstore.IndexSuffix, index.Size()-1),
		os.WriteFile(path("scribbled")+kvstore.IndexSuffix, []byte("not an index"), 0o600),
		os.WriteFile(path("bare"), make([]byte, 4096), 0o600),
		os.WriteFile(path("orphan")+kvstore.IndexSuffix, make([]byte, 100), 0o600),
		os.WriteFile(filepath.Join(dir, "other"), nil, 0o600),
		os.Mkdir(path("folder"), 0o700),
		os.Symlink("other", path("link")),
		os.Chtimes(path("left"), long, long),
		os.Chtimes(path("held"), long, long),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	look := func() map[string]kvstore.ArenaFile {
		t.Helper()
		list, err := kvstore.ListArenas(dir, "k-")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]kvstore.ArenaFile{}
		for _, a := range list {
			got[strings.TrimPrefix(filepath.Base(a.Path), "k-")] = a
		}
		return got
	}
	got := look()
	for name, want := range map[string]struct {
		identity string
		bytes    int64
		used     bool // by somebody now
		damage   string
	}{
		"held":         {"node/held", whole + index.Size(), true, ""},
		"left":         {"node/left", whole + index.Size(), false, ""},
		"short":        {"node/short", whole - 1 + index.Size(), false, fmt.Sprintf("it has %d bytes of %d", whole-1, whole)},
		"index-short":  {"node/index-short", whole + index.Size() - 1, false, fmt.Sprintf("its index has %d bytes of %d", index.Size()-1, index.Size())},
		"scribbled":    {"", whole, false, "its index: "},
		"bare":         {"", 4096, false, "it has no index"},
		"orphan+index": {"", 100, false, "it has no index"},
	} {
		a := got[name]
		if a.Identity != want.identity || a.Bytes != want.bytes || a.InUse != want.used || !strings.HasPrefix(a.Damage, want.damage) || want.damage == "" && a.Damage != "" {
			t.Errorf("%s: %+v, want %+v", name, a, want)
		}
		if old := name == "left" || name == "held"; a.Used.Sub(long).Abs() < time.Second != old {
			t.Errorf("%s: used at %v", name, a.Used)
		}
		delete(got, name)
	}
	if len(got) != 0 {
		t.Errorf("there are also %v", got)
	}

	began := time.Now().Add(-time.Second) // file systems count in ticks
	held.NoteAlive()
	if a := look()["held"]; a.Used.Before(began) {
		t.Errorf("noted alive, it was used at %v", a.Used)
	}
	b := named("left") // looking did no harm
	if got := b.Restored(); got.Why != "" {
		t.Errorf("restored %+v", got)
	}
	if a := look()["left"]; !a.InUse || a.Used.Before(began) {
		t.Errorf("opened again: %+v", a)
	}
	if err := os.Chtimes(path("left"), long, long); err != nil {
		t.Fatal(err)
	}
	closeArena(t, b)
	if a := look()["left"]; a.InUse || a.Used.Before(began) {
		t.Errorf("closed: %+v", a)
	}
	if _, err := kvstore.ListArenas(filepath.Join(dir, "none"), "k-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// What another user's arenas are is not known to who may not read them, least of all that nobody has them.
func TestListArenasOfOthers(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	for _, name := range []string{"closed", "index-closed"} {
		closeArena(t, keep(t, dir, 1, func(c *kvstore.ArenaConfig) { c.Name = name }))
	}
	keep(t, dir, 1, func(c *kvstore.ArenaConfig) { c.Name = "held" })
	for _, name := range []string{"closed", "held", "index-closed" + kvstore.IndexSuffix} {
		if err := os.Chmod(filepath.Join(dir, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // the modes do not bind root
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := unix.SetfsuidRetUid(0); err != nil {
				t.Error(err)
			}
		}()
	}
	list, err := kvstore.ListArenas(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 3 {
		t.Errorf("%d arenas: %+v", len(list), list)
	}
	for _, a := range list {
		if name := filepath.Base(a.Path); !errors.Is(a.Unread, os.ErrPermission) || a.Damage != "" || a.Identity != "" || a.InUse != (name != "index-closed") {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// Those who open an arena wait for those who look at it.
func TestListArenasWhileOpened(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	closeArena(t, keep(t, dir, 1, nil))
	stop := make(chan struct{})
	var lookers sync.WaitGroup
	lookers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := kvstore.ListArenas(dir, "arena"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer lookers.Wait()
	defer close(stop)
	for range 20 {
		a := keep(t, dir, 1, nil)
		if got := a.Restored(); got.Why != "" {
			t.Errorf("%+v", got)
		}
		closeArena(t, a)
	}
	// A lock that lasts is another daemon's.
	f, err := os.Open(filepath.Join(dir, "arena"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil { // the looker has it for a moment
		if t.Context().Err() != nil {
			t.Fatal("the lock is not to be had")
		}
	}
	cfg := kvstore.ArenaConfig{Dir: dir, Name: "arena", Keep: "node/engine", Layout: kvstoretest.Layout(), Bytes: kvstoretest.Layout().Stride()}
	if _, err := kvstore.OpenArena(cfg); !errors.Is(err, kvstore.ErrArenaInUse) {
		t.Errorf("a held arena is opened: %v", err)
	}
}

// An arena that was kept is found again under another name; what is another's, in use, or in the way is left alone.
func TestRenameArena(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	named := func(name string) *kvstore.Arena {
		return keep(t, dir, 4, func(c *kvstore.ArenaConfig) { c.Name = name })
	}
	a := named("old")
	keys := kvstoretest.Keys("a", 4)
	kvstoretest.Publish(t, a, "e", "", keys)
	rename := func(from, to, identity string, want bool) {
		t.Helper()
		if got, err := kvstore.RenameArena(dir, from, to, identity); got != want || err != nil {
			t.Errorf("rename %s to %s as %s: %v, %v, want %v", from, to, identity, got, err, want)
		}
	}
	rename("old", "new", "node/engine", false) // in use
	closeArena(t, a)
	rename("old", "new", "node-engine/x", false)
	rename("none", "new", "node/engine", false)
	other := named("there")
	rename("old", "there", "node/engine", false)
	closeArena(t, other)
	rename("old", "new", "node/engine", true)
	rename("old", "new", "node/engine", false)
	b := named("new")
	if b.Restored().Blocks != 4 {
		t.Errorf("restored %+v", b.Restored())
	}
	for _, k := range keys {
		if !wantPage(t, b, "", k) {
			t.Errorf("block %x is not there", k)
		}
	}
	closeArena(t, b)
	if left, err := filepath.Glob(filepath.Join(dir, "old*")); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
