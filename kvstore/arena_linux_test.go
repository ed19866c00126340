package kvstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

func TestArenaConfigValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*kvstore.ArenaConfig)
		field  string
	}{
		{"no name", func(c *kvstore.ArenaConfig) { c.Name = "" }, "Name"},
		{"path", func(c *kvstore.ArenaConfig) { c.Name = "a/b" }, "Name"},
		{"dots", func(c *kvstore.ArenaConfig) { c.Name = ".." }, "Name"},
		{"long name", func(c *kvstore.ArenaConfig) { c.Name = strings.Repeat("x", 241) }, "Name"},
		{"less than a slot", func(c *kvstore.ArenaConfig) { c.Bytes = 8191 }, "Bytes"},
		{"negative size", func(c *kvstore.ArenaConfig) { c.Bytes = -1 }, "Bytes"},
		{"too many slots", func(c *kvstore.ArenaConfig) { c.Bytes = 1 << 62 }, "Bytes"},
		{"lock", func(c *kvstore.ArenaConfig) { c.Lock = 9 }, "Lock"},
		{"group", func(c *kvstore.ArenaConfig) { c.GroupID = -1 }, "GroupID"},
		{"layout", func(c *kvstore.ArenaConfig) { c.Layout.Layers = 0 }, "Layers"},
	} {
		cfg := kvstore.ArenaConfig{Name: "kvferry-test-invalid", Layout: kvstoretest.Layout(), Bytes: 1 << 20}
		tt.change(&cfg)
		a, err := kvstore.OpenArena(cfg)
		if a != nil || len(fields(err)) != 1 || fields(err)[0] != tt.field {
			t.Errorf("%s: %v, %v, want a FieldError of %s", tt.name, a, err, tt.field)
		}
	}
}

func TestArenaFile(t *testing.T) {
	t.Parallel()
	const group = 12345
	asRoot := os.Geteuid() == 0
	a := kvstoretest.OpenArena(t, 3, func(c *kvstore.ArenaConfig) {
		c.Bytes = 4*c.Layout.Stride() - 1
		if asRoot { // only root may give files to groups it is not in
			c.GroupID = group
		}
	})
	if a.Slots() != 3 || a.Pin() != a.Layout().Pin() {
		t.Errorf("slots %d, pin %v", a.Slots(), a.Pin())
	}
	st, err := os.Stat(a.Path())
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	if st.Mode().Perm() != 0o660 || st.Size() != 3*a.Layout().Stride() || sys.Blocks*512 < st.Size() {
		t.Errorf("mode %v, size %d, allocated %d", st.Mode(), st.Size(), sys.Blocks*512)
	}
	if asRoot && sys.Gid != group {
		t.Errorf("group %d, want %d", sys.Gid, group)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
}

func TestArenaNeedsMemoryFilesystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is on a memory filesystem itself")
	}
	cfg := kvstore.ArenaConfig{Dir: dir, Name: "arena", Layout: kvstoretest.Layout(), Bytes: 1 << 20}
	_, err := kvstore.OpenArena(cfg)
	if de, ok := errors.AsType[*kvstore.ArenaDirError](err); !ok || de.Dir != dir || de.FSType != int64(fs.Type) {
		t.Errorf("got %v", err)
	}
	wantEmptyDir(t, dir)
	cfg.AllowDisk = true
	a, err := kvstore.OpenArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	wantEmptyDir(t, dir)
	cfg.Dir = filepath.Join(dir, "missing")
	if _, err := kvstore.OpenArena(cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func wantEmptyDir(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in %s: %v, %v", dir, left, err)
	}
}

// A small container /dev/shm must be an error when the arena is opened, not a SIGBUS when it fills.
func TestArenaSmallFilesystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	cfg := kvstore.ArenaConfig{Dir: dir, Name: "arena", Layout: kvstoretest.Layout(), Bytes: 2 << 20}
	_, err := kvstore.OpenArena(cfg)
	if se, ok := errors.AsType[*kvstore.ArenaSpaceError](err); !ok || se.Dir != dir || se.Wanted != 2<<20 || se.Available != 1<<20 {
		t.Errorf("got %v", err)
	}
	wantEmptyDir(t, dir)
	cfg.Bytes = 1 << 20 // exactly fits
	a, err := kvstore.OpenArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = kvstore.OpenArena(kvstore.ArenaConfig{Dir: dir, Name: "other", Layout: cfg.Layout, Bytes: 8192})
	if se, ok := errors.AsType[*kvstore.ArenaSpaceError](err); !ok || se.Available != 0 {
		t.Errorf("second arena: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	wantEmptyDir(t, dir)
}

func TestArenaStaleAndLiveFiles(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 2, nil)
	name := filepath.Base(a.Path())
	again := kvstore.ArenaConfig{Name: name, Layout: kvstoretest.Layout(), Bytes: 1 << 20}
	if _, err := kvstore.OpenArena(again); !errors.Is(err, kvstore.ErrArenaInUse) {
		t.Errorf("second arena of the name: %v", err)
	}
	kvstoretest.Publish(t, a, "e", "", kvstoretest.Keys("a", 1)) // the first is unharmed
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.Path(), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := kvstore.OpenArena(again)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody replaces the file: Close leaves what is not its own.
	if err := os.Rename(a.Path(), a.Path()+".moved"); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(a.Path() + ".moved")
	if err := os.WriteFile(a.Path(), []byte("somebody else's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(a.Path()); err != nil {
		t.Errorf("close removed another's file: %v", err)
	}
	if err := os.Mkdir(a.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(a.Path())
	if c, err := kvstore.OpenArena(again); err == nil {
		t.Errorf("opened over a directory")
		c.Close()
	}
}

// pollUntil waits for what the arena does in the background.
func pollUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestArenaTouchesAndLocks(t *testing.T) {
	t.Parallel()
	size := int64(9 << 20)
	open := func(mode kvstore.LockMode) *kvstore.Arena {
		return kvstoretest.OpenArena(t, 0, func(c *kvstore.ArenaConfig) { c.Bytes, c.Lock = size, mode })
	}
	a, b := open(kvstore.LockTry), open(kvstore.LockOff)
	for _, arena := range []*kvstore.Arena{a, b} {
		pollUntil(t, "whole arena touched", func() bool { st := arena.Stats(); return st.TouchedBytes == st.Bytes })
	}
	if st := a.Stats(); (st.PinnedBytes == st.Bytes) != (st.PinError == "") {
		t.Errorf("pinned %d of %d, error %q", st.PinnedBytes, st.Bytes, st.PinError)
	}
	if st := b.Stats(); st.PinnedBytes != 0 || st.PinError != "" {
		t.Errorf("pinned %d although off, error %q", st.PinnedBytes, st.PinError)
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	a := kvstoretest.OpenArena(t, 4, nil)
	keys := kvstoretest.Keys("a", 2)
	kvstoretest.Publish(t, a, "e", "tenant", keys[:1])
	for _, k := range keys {
		if n := testing.AllocsPerRun(1000, func() { a.Lookup("tenant", k) }); n != 0 {
			t.Errorf("%v allocations a look-up", n)
		}
	}
}

func TestPagePathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop items")
	}
	a := kvstoretest.OpenArena(t, 2, nil)
	l, keys := a.Layout(), kvstoretest.Keys("a", 2)
	kvstoretest.Publish(t, a, "e", "", keys[:1])
	id, refs, err := a.Acquire("r", "", keys[:1], -1)
	if err != nil {
		t.Fatal(err)
	}
	dst, sums := make([]byte, l.BlockBytes()), make([]uint32, l.Layers)
	if n := testing.AllocsPerRun(100, func() { err = a.ReadPages(id, refs[0], 0, l.Layers, dst, sums) }); n != 0 || err != nil {
		t.Errorf("read: %v allocations, %v", n, err)
	}
	res, err := a.Reserve("m", "", keys[1:])
	if err != nil {
		t.Fatal(err)
	}
	page := kvstoretest.Page(l, keys[1], 0)
	sum := kvstore.PageSum(a.Pin(), keys[1], 0, page)
	write := func() { err = a.WritePage(res[0].Ref, 0, page, sum) }
	write() // the first page of a slot's life allocates the slot's table
	if n := testing.AllocsPerRun(100, write); n != 0 || err != nil {
		t.Errorf("write: %v allocations, %v", n, err)
	}
}

// A slot that is let go while a copy is in progress is not reused before the copy ends.
func TestDrainingWaitsForCopies(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 1, nil)
	keys := kvstoretest.Keys("a", 2)
	for _, let := range []func(kvstore.SlotRef){
		func(ref kvstore.SlotRef) { _ = a.Abort("m", ref) },
		func(kvstore.SlotRef) { a.ReleaseOwner("m") },
		func(ref kvstore.SlotRef) {
			kvstoretest.Land(t, a, "m", keys[0], ref)
			a.Invalidate("", keys[:1])
		},
	} {
		res, err := a.Reserve("m", "", keys[:1])
		if err != nil {
			t.Fatal(err)
		}
		done := a.HoldSlot(res[0].Ref)
		let(res[0].Ref)
		if st := a.Stats(); st.SlotsDraining != 1 || st.SlotsFree != 0 {
			t.Errorf("held: %+v", st)
		}
		_, err = a.Reserve("m", "", keys[1:])
		if full, ok := errors.AsType[*kvstore.ArenaFullError](err); !ok || full.Draining != 1 {
			t.Errorf("reserve while draining: %v", err)
		}
		done()
		if st := a.Stats(); st.SlotsFree != 1 {
			t.Errorf("quiet: %+v", st)
		}
	}
	if err := a.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

// A reservation that ends while its checksums are computed does not become readable, and its slot is free afterwards.
func TestCommitInterrupted(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 1, nil)
	keys := kvstoretest.Keys("a", 1)
	for name, tt := range map[string]struct {
		interrupt func(kvstore.SlotRef)
		want      error
	}{
		"abort":         {func(ref kvstore.SlotRef) { _ = a.Abort("e", ref) }, kvstore.ErrStaleGeneration},
		"release owner": {func(kvstore.SlotRef) { a.ReleaseOwner("e") }, kvstore.ErrStaleGeneration},
		"invalidate":    {func(kvstore.SlotRef) { a.Invalidate("", keys) }, kvstore.ErrInvalidated},
		"same part again": {func(ref kvstore.SlotRef) {
			if done, err := a.CommitPart("e", ref, 0, 1, kvstore.FidelityExact); done || err != nil {
				t.Errorf("same part while sealing: %v, %v", done, err)
			}
		}, nil},
	} {
		res, err := a.Reserve("e", "", keys)
		if err != nil {
			t.Fatal(err)
		}
		ref := res[0].Ref
		err = a.CommitPartInterrupted("e", ref, func() {
			tt.interrupt(ref)
			if st := a.Stats(); st.SlotsFree != 0 {
				t.Errorf("%s: freed while checksums are computed", name)
			}
		})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if st, _ := a.Lookup("", keys[0]); (st == kvstore.BlockPresent) != (tt.want == nil) {
			t.Errorf("%s: block is %v", name, st)
		}
		a.Invalidate("", keys)
		if st := a.Stats(); st.SlotsFree != 1 {
			t.Errorf("%s: %+v", name, st)
		}
		if err := a.CheckInvariants(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A block that somebody still reads under a lease that ended is not evicted under the reader.
func TestReaderKeepsBlock(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 1, nil)
	keys := kvstoretest.Keys("a", 1)
	kvstoretest.Publish(t, a, "e", "", keys)
	id, refs, err := a.Acquire("r", "", keys, -1)
	if err != nil {
		t.Fatal(err)
	}
	first, second := a.HoldSlot(refs[0]), a.HoldSlot(refs[0])
	if err := a.Release(id); err != nil {
		t.Fatal(err)
	}
	for _, done := range []func(){first, second} {
		_, err := a.Reserve("m", "", kvstoretest.Keys("b", 1))
		if _, ok := errors.AsType[*kvstore.ArenaFullError](err); !ok {
			t.Errorf("got %v", err)
		}
		if err := a.CheckInvariants(); err != nil {
			t.Error(err)
		}
		done()
	}
	if _, err := a.Reserve("m", "", kvstoretest.Keys("b", 1)); err != nil {
		t.Error(err)
	}
}

func TestCloseWaitsForCopies(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 1, nil)
	ref := kvstoretest.Publish(t, a, "e", "", kvstoretest.Keys("a", 1))[0]
	done := a.HoldSlot(ref)
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- a.Close() }()
	}
	pollUntil(t, "close to begin", func() bool {
		_, err := a.Reserve("e", "", kvstoretest.Keys("b", 1))
		return errors.Is(err, kvstore.ErrClosed)
	})
	if _, err := os.Stat(a.Path()); err != nil {
		t.Errorf("unlinked under a copy: %v", err)
	}
	select {
	case <-closed:
		t.Error("closed under a copy")
	default:
	}
	done()
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	key := kvstoretest.Keys("a", 1)[0]
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{&kvstore.ArenaFullError{Needed: 7, Total: 9}, []string{"7", "9", "release"}},
		{&kvstore.ArenaFullError{Tenant: "t", Needed: 7, Quota: 5}, []string{`"t"`, "quota", "5"}},
		{&kvstore.ArenaSpaceError{Dir: "/x", Wanted: 10, Available: 5}, []string{"/x", "10", "5", "shm-size"}},
		{&kvstore.ArenaDirError{Dir: "/x", FSType: 0xef53}, []string{"/x", "0xef53", "tmpfs"}},
		{&kvstore.PageError{Slot: 3, Generation: 4, Page: 5, Key: key, Err: kvstore.ErrPageConflict}, []string{"3@4", "page 5", key.String()}},
		{&kvstore.BlockError{Index: 6, Key: key, Err: kvstore.ErrBlockNotFound}, []string{"6", key.String(), "not found"}},
		{&kvstore.NotOwnerError{ID: "s", Owner: "b", Epoch: 3}, []string{`"s"`, `"b"`, "3"}},
		{&kvstore.FencedError{ID: "s", Owner: "b", Epoch: 3, RepinSeq: 8}, []string{`"s"`, `"b"`, "3", "8"}},
		{&kvstore.MigrationConflictError{ID: "s", Migration: "m", To: "c", Epoch: 2}, []string{`"s"`, `"m"`, `"c"`}},
	} {
		for _, w := range tt.want {
			if !strings.Contains(fmt.Sprint(tt.err), w) {
				t.Errorf("%q does not say %q", tt.err, w)
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	a := kvstoretest.OpenArena(b, 1024, nil)
	keys := kvstoretest.Keys("a", 1024)
	if _, err := a.Reserve("e", "", keys); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		a.Lookup("", keys[i%len(keys)])
		i++
	}
}

// What a process that was killed has left is removed; what somebody holds, and what is not an arena's file, is not.
func TestRemoveStaleArenas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := kvstoretest.OpenArena(t, 1, func(c *kvstore.ArenaConfig) { c.Dir, c.Name, c.AllowDisk = dir, "mine-held", true })
	for _, name := range []string{"mine-1", "mine-2", "yours-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("yours-1", filepath.Join(dir, "mine-link")); err != nil {
		t.Fatal(err)
	}
	removed, kept, err := kvstore.RemoveStaleArenas(dir, "mine-", nil)
	if err != nil || len(kept) != 0 || len(removed) != 2 || filepath.Base(removed[0]) != "mine-1" || filepath.Base(removed[1]) != "mine-2" {
		t.Errorf("removed %v, %v", removed, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := a.CheckFile(); err != nil {
		t.Errorf("the arena that is held: %v", err)
	}
	if _, _, err := kvstore.RemoveStaleArenas(filepath.Join(dir, "none"), "mine-", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// A file that lost its end or its name breaks the arena before anybody touches it.
func TestCheckFile(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 4096) },
		"removed":   os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, make([]byte, 1<<20), 0o600))
		},
	} {
		a := kvstoretest.OpenArena(t, 4, nil)
		if err := a.CheckFile(); err != nil {
			t.Errorf("%s: before: %v", name, err)
		}
		if err := spoil(a.Path()); err != nil {
			t.Fatal(err)
		}
		if err := a.CheckFile(); !errors.Is(err, kvstore.ErrArenaFault) || !a.Stats().Broken {
			t.Errorf("%s: %v, broken %v", name, err, a.Stats().Broken)
		}
		if _, err := a.Reserve("e", "", kvstoretest.Keys("a", 1)); !errors.Is(err, kvstore.ErrArenaFault) {
			t.Errorf("%s: reserve: %v", name, err)
		}
		if name == "replaced" {
			_ = os.Remove(a.Path()) // it is nobody's arena
		}
		if err := a.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if err := a.CheckFile(); !errors.Is(err, kvstore.ErrClosed) {
			t.Errorf("%s: after close: %v", name, err)
		}
	}
}
