package kvstore_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// memoryDir is a folder on the memory filesystem that goes when the test ends.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(kvstore.DefaultArenaDir, "kvferry-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// keep opens an arena in dir that is kept.
func keep(t testing.TB, dir string, slots int, change func(*kvstore.ArenaConfig)) *kvstore.Arena {
	t.Helper()
	return kvstoretest.OpenArena(t, slots, func(c *kvstore.ArenaConfig) {
		c.Dir, c.Name, c.Keep = dir, "arena", "node/engine"
		if change != nil {
			change(c)
		}
	})
}

func closeArena(t testing.TB, a *kvstore.Arena) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// crash copies the files as they are, which is what a process that is killed leaves.
func crash(t testing.TB, dir string) string {
	t.Helper()
	to := memoryDir(t)
	copyFiles(t, dir, to)
	return to
}

func copyFiles(t testing.TB, dir, to string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// wantPage reads every page of a block that is present and compares it with what its key says; it reports whether it is present.
func wantPage(t testing.TB, a *kvstore.Arena, tenant kvstore.Tenant, key kvstore.BlockKey) bool {
	t.Helper()
	if state, _ := a.Lookup(tenant, key); state != kvstore.BlockPresent {
		return false
	}
	lease, refs, err := a.Acquire("check", tenant, []kvstore.BlockKey{key}, -1)
	if err != nil {
		t.Fatal(err)
	}
	l := a.Layout()
	got, sums := make([]byte, l.PageBytes()), make([]uint32, 1)
	for page := range l.PagesPerBlock() {
		if err := a.ReadPages(lease, refs[0], page, 1, got, sums); err != nil {
			t.Fatal(err)
		}
		if want := kvstoretest.Page(l, key, page); !bytes.Equal(got, want) || sums[0] != kvstore.PageSum(a.Pin(), key, page, want) {
			t.Fatalf("page %d of a block taken over is not what its key says", page)
		}
	}
	if err := a.Release(lease); err != nil {
		t.Fatal(err)
	}
	return true
}

// What was committed is there after the process, closed or killed; nothing else is, and no reference of before is good.
func TestWarmRestart(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(t *testing.T, a *kvstore.Arena, dir string) string{
		"closed": func(t *testing.T, a *kvstore.Arena, dir string) string { closeArena(t, a); return dir },
		"killed": func(t *testing.T, _ *kvstore.Arena, dir string) string { return crash(t, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := memoryDir(t)
			a := keep(t, dir, 32, nil)
			if got := a.Restored(); got.Why != "" || got.Blocks != 0 {
				t.Errorf("a new arena: %+v", got)
			}
			ours, theirs, landed := kvstoretest.Keys("a", 6), kvstoretest.Keys("b", 4), kvstoretest.Keys("l", 2)
			gone, dropped := kvstoretest.Keys("g", 2), kvstoretest.Keys("d", 1)
			refs := kvstoretest.Publish(t, a, "e", "", ours)
			refs = append(refs, kvstoretest.Publish(t, a, "e", "red", theirs)...)
			kvstoretest.Publish(t, a, "e", "", gone)
			bad := kvstoretest.Publish(t, a, "e", "", dropped)
			res, err := a.Reserve("m", "", landed)
			if err != nil {
				t.Fatal(err)
			}
			kvstoretest.Land(t, a, "m", landed[0], res[0].Ref)
			p := kvstoretest.Page(a.Layout(), landed[1], 0)
			if err := a.WritePage(res[1].Ref, 0, p, kvstore.PageSum(a.Pin(), landed[1], 0, p)); err != nil { // half of it
				t.Fatal(err)
			}
			reserved, err := a.Reserve("e", "", kvstoretest.Keys("r", 3))
			if err != nil {
				t.Fatal(err)
			}
			if a.Invalidate("", gone) != 2 {
				t.Error("nothing was invalidated")
			}
			if err := a.DropBlock(bad[0]); err != nil {
				t.Fatal(err)
			}
			lease, _, err := a.Acquire("e", "", ours[:3], -1)
			if err != nil {
				t.Fatal(err)
			}
			order := a.EvictionOrder()
			for _, r := range append(reserved, res...) {
				refs = append(refs, r.Ref)
			}
			dir = stop(t, a, dir)
			b := keep(t, dir, 32, nil)
			if got := b.Restored(); got.Blocks != 11 || got.Dropped != 0 || got.Held != 0 || got.Why != "" {
				t.Errorf("restored %+v", got)
			}
			st := b.Stats()
			if st.SlotsCommitted != 11 || st.SlotsFree != 21 || st.Leases != 0 || st.RestoredBlocks != 11 || st.SumFailures != 0 {
				t.Errorf("stats %+v", st)
			}
			if err := b.CheckInvariants(); err != nil {
				t.Error(err)
			}
			for _, ref := range refs {
				if g := b.Generation(ref.Slot); g <= ref.Generation {
					t.Errorf("slot %d has generation %d after %d", ref.Slot, g, ref.Generation)
				}
				if err := b.VerifyBlock(ref); !errors.Is(err, kvstore.ErrStaleGeneration) {
					t.Errorf("a reference of before: %v", err)
				}
			}
			if err := b.Renew(lease, -1); !errors.Is(err, kvstore.ErrLeaseNotFound) {
				t.Errorf("a lease of before: %v", err)
			}
			// Three were held, and one had a successor that was not committed.
			special := append(slices.Clone(ours[:3]), landed[0])
			left := slices.DeleteFunc(b.EvictionOrder(), func(k kvstore.BlockKey) bool { return slices.Contains(special, k) })
			if diff := cmp.Diff(slices.DeleteFunc(order, func(k kvstore.BlockKey) bool { return k == landed[0] }), left); diff != "" {
				t.Errorf("eviction order (-before +after):\n%s", diff)
			}
			for i, k := range slices.Concat(ours, landed[:1]) {
				if !wantPage(t, b, "", k) {
					t.Errorf("block %d is gone", i)
				}
				if state, _ := b.Lookup("red", k); state != kvstore.BlockAbsent {
					t.Error("a block is another tenant's, too")
				}
			}
			for _, k := range theirs {
				if !wantPage(t, b, "red", k) {
					t.Error("the other tenant's block is gone")
				}
			}
			for _, k := range slices.Concat(gone, dropped, landed[1:], kvstoretest.Keys("r", 3)) {
				if state, _ := b.Lookup("", k); state != kvstore.BlockAbsent {
					t.Errorf("a block that was not committed is %v", state)
				}
			}
			if got := b.RestoredByPage(); len(got) != 1 {
				t.Errorf("%d blocks came page by page, want 1", len(got))
			}
			// It fills up and goes on like any other, and is taken over again.
			more := kvstoretest.Keys("more", 25)
			kvstoretest.Publish(t, b, "e", "", more)
			if err := b.CheckInvariants(); err != nil {
				t.Error(err)
			}
			closeArena(t, b)
			c := keep(t, dir, 32, nil)
			if got := c.Restored(); got.Blocks != 32 {
				t.Errorf("restored again: %+v", got)
			}
			for _, k := range more {
				if !wantPage(t, c, "", k) {
					t.Error("a block of the second opening is gone")
				}
			}
			if err := c.Discard(); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left after Discard: %v, %v", left, err)
			}
		})
	}
}

// Killed after any operation, an arena has of its blocks at least those that were committed before, and serves no wrong byte.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		dir, rng := memoryDir(t), rand.New(rand.NewPCG(seed, 7))
		a := keep(t, dir, 6, nil)
		copied := memoryDir(t)
		keys := kvstoretest.Keys("k", 10)
		tenants := []kvstore.Tenant{"", "red"}
		gens := map[uint32]uint64{} // the highest that was handed out
		var leases []kvstore.LeaseID
		for range 40 {
			tenant, k := tenants[rng.IntN(2)], keys[rng.IntN(len(keys))]
			switch rng.IntN(5) {
			case 0, 1:
				if res, err := a.Reserve("e", tenant, []kvstore.BlockKey{k}); err == nil && res[0].State == kvstore.Reserved {
					gens[res[0].Ref.Slot] = res[0].Ref.Generation
					if rng.IntN(4) > 0 {
						kvstoretest.WriteAsEngine(t, a, k, res[0].Ref)
						if _, err := a.CommitPart("e", res[0].Ref, 0, 1, kvstore.FidelityExact); err != nil {
							t.Fatal(err)
						}
					} else if err := a.Abort("e", res[0].Ref); err != nil {
						t.Fatal(err)
					}
				}
			case 2:
				if l, _, err := a.Acquire("e", tenant, []kvstore.BlockKey{k}, -1); err == nil {
					leases = append(leases, l)
				}
			case 3:
				a.Invalidate(tenant, []kvstore.BlockKey{k})
			case 4:
				for _, l := range leases {
					if err := a.Release(l); err != nil {
						t.Fatal(err)
					}
				}
				leases = nil
			}
			copyFiles(t, dir, copied)
			b := keep(t, copied, 6, nil)
			for _, tenant := range tenants {
				for _, k := range keys {
					was, _ := a.Lookup(tenant, k)
					if is := wantPage(t, b, tenant, k); is != (was == kvstore.BlockPresent) {
						t.Fatalf("seed %d: a block that was %v is there: %v", seed, was, is)
					}
				}
			}
			for slot, g := range gens {
				if b.Generation(slot) <= g {
					t.Fatalf("seed %d: generation %d of slot %d is repeated", seed, g, slot)
				}
			}
			if err := b.CheckInvariants(); err != nil {
				t.Fatal(err)
			}
			closeArena(t, b)
		}
	}
}

// What was damaged while nobody looked is not taken over, is counted, and costs only itself; an index that makes no sense costs all.
func TestDamagedWhileStopped(t *testing.T) {
	t.Parallel()
	const slots = 8
	flip := func(path string, at int64) func(*testing.T) {
		return func(t *testing.T) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		damage  func(arena, index string, a *kvstore.Arena) func(*testing.T)
		blocks  int
		dropped int
		why     string
	}{
		{"nothing", func(string, string, *kvstore.Arena) func(*testing.T) { return func(*testing.T) {} }, slots, 0, ""},
		{"a bit of a page", func(p, _ string, a *kvstore.Arena) func(*testing.T) { return flip(p, a.Layout().Stride()*3+5000) }, slots - 1, 1, ""},
		{"a bit between blocks", func(p, _ string, a *kvstore.Arena) func(*testing.T) { return flip(p, a.Layout().Stride()-1) }, slots, 0, ""},
		{"a record", func(_, p string, a *kvstore.Arena) func(*testing.T) {
			off, _ := a.IndexRecord(2)
			return flip(p, off+30)
		}, slots - 1, 1, ""},
		{"a record's padding", func(_, p string, a *kvstore.Arena) func(*testing.T) {
			off, n := a.IndexRecord(2)
			return flip(p, off+n-1)
		}, slots - 1, 1, ""},
		{"a state's generation", func(_, p string, a *kvstore.Arena) func(*testing.T) { return flip(p, a.IndexState(1)+8) }, slots - 1, 1, ""},
		{"a state's stamp", func(_, p string, a *kvstore.Arena) func(*testing.T) { return flip(p, a.IndexState(1)) }, slots, 0, ""},
		{"a state's parent", func(_, p string, a *kvstore.Arena) func(*testing.T) { return flip(p, a.IndexState(5)+24) }, slots, 0, ""},
		{"a generation beyond all", func(_, p string, a *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) {
				f, err := os.OpenFile(p, os.O_RDWR, 0)
				if err == nil {
					_, err = f.WriteAt(bytes.Repeat([]byte{255}, 8), a.IndexState(1)+8)
				}
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		}, 0, 0, "no sense"},
		{"the header", func(_, p string, _ *kvstore.Arena) func(*testing.T) { return flip(p, 41) }, 0, 0, "header checksum"},
		{"the header's padding", func(_, p string, _ *kvstore.Arena) func(*testing.T) { return flip(p, 2000) }, 0, 0, "canonical"},
		{"the magic", func(_, p string, _ *kvstore.Arena) func(*testing.T) { return flip(p, 0) }, 0, 0, "KVFINDEX"},
		{"the version", func(_, p string, _ *kvstore.Arena) func(*testing.T) { return flip(p, 8) }, 0, 0, "version"},
		{"no index", func(_, p string, _ *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { check(t, os.Remove(p)) }
		}, 0, 0, "open its index"},
		{"a short index", func(_, p string, _ *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { check(t, os.Truncate(p, 40000)) }
		}, 0, 0, "40000 bytes"},
		{"an empty index", func(_, p string, _ *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { check(t, os.Truncate(p, 0)) }
		}, 0, 0, "magic"},
		{"a short arena", func(p, _ string, _ *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { check(t, os.Truncate(p, 4096)) }
		}, 0, 0, "4096 bytes"},
		{"no arena", func(p, _ string, _ *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { check(t, os.Remove(p)) }
		}, 0, 0, ""},
		{"a hole", func(p, _ string, a *kvstore.Arena) func(*testing.T) {
			return func(t *testing.T) { // allocated again, as zeros
				n := a.Layout().Stride() * slots
				check(t, errors.Join(os.Truncate(p, a.Layout().Stride()*7), os.Truncate(p, n)))
			}
		}, slots - 1, 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := memoryDir(t)
			a := keep(t, dir, slots, nil)
			keys := kvstoretest.Keys("a", slots)
			kvstoretest.Publish(t, a, "e", "", keys)
			closeArena(t, a)
			tt.damage(a.Path(), a.Path()+kvstore.IndexSuffix, a)(t)
			b := keep(t, dir, slots, nil)
			got := b.Restored()
			if got.Blocks != tt.blocks || got.Dropped != tt.dropped || !strings.Contains(got.Why, tt.why) || (tt.why == "") != (got.Why == "") {
				t.Errorf("restored %+v", got)
			}
			present := 0
			for _, k := range keys {
				if wantPage(t, b, "", k) {
					present++
				}
			}
			if present != tt.blocks {
				t.Errorf("%d blocks are readable, want %d", present, tt.blocks)
			}
			if err := b.CheckInvariants(); err != nil {
				t.Error(err)
			}
			kvstoretest.Publish(t, b, "e", "", keys) // whatever there was, it works
			for _, k := range keys {
				if !wantPage(t, b, "", k) {
					t.Error("a block that was written after all is not there")
				}
			}
			closeArena(t, b)
			if c := keep(t, dir, slots, nil); c.Restored().Blocks != slots {
				t.Errorf("restored after all: %+v", c.Restored())
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Another layout, salt policy, identity or size is not the same arena.
func TestOtherArenaIsNotTakenOver(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*kvstore.ArenaConfig){
		"layout":      func(c *kvstore.ArenaConfig) { c.Layout.WeightsVersion = "2" },
		"salt policy": func(c *kvstore.ArenaConfig) { c.Layout.SaltPolicy = "tenant" },
		"identity":    func(c *kvstore.ArenaConfig) { c.Keep = "other/engine" },
		"smaller":     func(c *kvstore.ArenaConfig) { c.Bytes = 3 * c.Layout.Stride() },
		"larger":      func(c *kvstore.ArenaConfig) { c.Bytes = 5 * c.Layout.Stride() },
		"not kept":    func(c *kvstore.ArenaConfig) { c.Keep = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := memoryDir(t)
			a := keep(t, dir, 4, nil)
			keys := kvstoretest.Keys("a", 4)
			kvstoretest.Publish(t, a, "e", "", keys)
			closeArena(t, a)
			b := keep(t, dir, 4, change)
			if got := b.Restored(); got.Blocks != 0 || (got.Why == "") != (name == "not kept") {
				t.Errorf("restored %+v", got)
			}
			if st := b.Stats(); st.SlotsCommitted != 0 || st.SlotsFree != st.SlotsTotal {
				t.Errorf("stats %+v", st)
			}
			if _, err := os.Stat(a.Path() + kvstore.IndexSuffix); name == "not kept" && err == nil {
				t.Error("the index is left")
			}
		})
	}
}

// What processes of before may still read or write is not given to anybody until they are gone; all else is.
func TestProcessesOfBefore(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	a := keep(t, dir, 8, nil)
	a.SetProcesses([]string{"p", "q"})
	keys := kvstoretest.Keys("a", 5)
	kvstoretest.Publish(t, a, "e", "", keys)
	if _, _, err := a.Acquire("p", "", keys[:2], -1); err != nil {
		t.Fatal(err)
	}
	if a.Invalidate("", keys[:1]) != 1 { // read, and out of the index
		t.Fatal("not invalidated")
	}
	res, err := a.Reserve("e", "", kvstoretest.Keys("r", 1))
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := os.Open(a.Path()) // stands for the mapping of a process that lives
	if err != nil {
		t.Fatal(err)
	}
	closeArena(t, a)
	b := keep(t, dir, 8, nil)
	if got := b.Restored(); got.Blocks != 4 || got.Held != 3 {
		t.Errorf("restored %+v", got)
	}
	if diff := cmp.Diff([]string{"p", "q"}, b.Before()); diff != "" {
		t.Error(diff)
	}
	if st := b.Stats(); st.SlotsDraining != 2 || st.LeasedBlocks != 1 || st.SlotsFree != 2 {
		t.Errorf("stats %+v", st)
	}
	if _, err := b.Reserve("e", "", kvstoretest.Keys("x", 6)); err == nil { // 2 free and 3 evictable
		t.Error("memory that is in use was given away")
	}
	b.Gone("nobody")
	b.Gone("p")
	if st := b.Stats(); st.SlotsDraining != 2 {
		t.Errorf("one of two is gone: %+v", st)
	}

	// It is killed again: who was there before is there still, and one more.
	b.SetProcesses([]string{"r"})
	killed := crash(t, dir)
	open, err := os.Open(filepath.Join(killed, "arena"))
	if err != nil {
		t.Fatal(err)
	}
	c := keep(t, killed, 8, nil)
	if diff := cmp.Diff([]string{"q", "r"}, c.Before()); diff != "" {
		t.Error(diff)
	}
	if got := c.Restored(); got.Held != 3 || got.Blocks != 4 {
		t.Errorf("restored %+v", got)
	}
	open.Close()
	closeArena(t, c)
	if c = keep(t, killed, 8, nil); len(c.Before()) != 0 || c.Stats().SlotsFree != 4 || c.Restored().Held != 0 { // nobody has it open
		t.Errorf("before %v, stats %+v", c.Before(), c.Stats())
	}

	b.Gone("q")
	if st := b.Stats(); st.SlotsDraining != 0 || st.LeasedBlocks != 0 || st.SlotsFree != 4 || st.Leases != 0 {
		t.Errorf("all are gone: %+v", st)
	}
	if err := b.CheckInvariants(); err != nil {
		t.Error(err)
	}
	if _, err := b.Reserve("e", "", kvstoretest.Keys("x", 8)); err != nil {
		t.Error(err)
	}
	if g := b.Generation(res[0].Ref.Slot); g <= res[0].Ref.Generation {
		t.Errorf("generation %d is repeated", g)
	}
	mapped.Close()
}

// More processes than there is room for, and an index that somebody damages while it is in use, cost the keeping and nothing else.
func TestIndexLost(t *testing.T) {
	t.Parallel()
	many := make([]string, 1000)
	for i := range many {
		many[i] = strings.Repeat("p", 50) + string(rune('a'+i%26))
	}
	for name, spoil := range map[string]func(t *testing.T, a *kvstore.Arena){
		"processes": func(_ *testing.T, a *kvstore.Arena) {
			for i := range many {
				many[i] += string(rune('0'+i/26%10)) + string(rune('0'+i/260))
			}
			a.SetProcesses(many)
		},
		"truncated": func(t *testing.T, a *kvstore.Arena) { check(t, os.Truncate(a.Path()+kvstore.IndexSuffix, 0)) },
		"removed":   func(t *testing.T, a *kvstore.Arena) { check(t, os.Remove(a.Path()+kvstore.IndexSuffix)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := memoryDir(t)
			a := keep(t, dir, 8, nil)
			keys := kvstoretest.Keys("a", 4)
			kvstoretest.Publish(t, a, "e", "", keys[:2])
			spoil(t, a)
			kvstoretest.Publish(t, a, "e", "", keys)
			a.SetProcesses([]string{"p"})
			for _, k := range keys {
				if !wantPage(t, a, "", k) {
					t.Error("a block is gone")
				}
			}
			if a.Stats().Broken {
				t.Error("the arena is broken")
			}
			killed := crash(t, dir)
			if b := keep(t, killed, 8, nil); b.Restored().Blocks != 0 || b.Restored().Why == "" {
				t.Errorf("killed: restored %+v", b.Restored())
			}
			closeArena(t, a)
			if b := keep(t, dir, 8, nil); b.Restored().Blocks != 0 {
				t.Errorf("closed: restored %+v", b.Restored())
			}
		})
	}
}

// Kept arenas are listed, marked with the time that they were first seen unwanted, and go when they are not to stay.
func TestKeptArenas(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	a := keep(t, dir, 4, nil)
	keys := kvstoretest.Keys("a", 4)
	kvstoretest.Publish(t, a, "e", "", keys)
	keepAll := func(kvstore.KeptArena) bool { return true }
	if removed, kept, err := kvstore.RemoveStaleArenas(dir, "ar", keepAll); err != nil || len(removed)+len(kept) != 0 {
		t.Errorf("an arena in use: %v, %v, %v", removed, kept, err)
	}
	closeArena(t, a)
	if err := os.WriteFile(filepath.Join(dir, "arena2"+kvstore.IndexSuffix), nil, 0o600); err != nil { // of an arena that is gone
		t.Fatal(err)
	}
	before := time.Now().Truncate(time.Second)
	removed, kept, err := kvstore.RemoveStaleArenas(dir, "ar", func(k kvstore.KeptArena) bool { return k.Identity != "" })
	if err != nil || len(removed) != 1 || len(kept) != 1 {
		t.Fatalf("%v, %v, %v", removed, kept, err)
	}
	if k := kept[0]; k.Path != a.Path() || k.Identity != "node/engine" || k.Bytes != 4*a.Layout().Stride() || k.Since.Before(before) {
		t.Errorf("kept %+v", k)
	}
	_, again, err := kvstore.RemoveStaleArenas(dir, "ar", keepAll)
	if err != nil || len(again) != 1 || again[0].Since.Unix() != kept[0].Since.Unix() {
		t.Errorf("seen again: %+v, %v", again, err)
	}
	b := keep(t, dir, 4, nil) // looking did no harm
	if b.Restored().Blocks != 4 {
		t.Errorf("restored %+v", b.Restored())
	}
	closeArena(t, b)
	if removed, _, err := kvstore.RemoveStaleArenas(dir, "ar", nil); err != nil || len(removed) != 1 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// An index of our own decodes to itself.
func TestArenaIndexDecodes(t *testing.T) {
	t.Parallel()
	good := kvstore.EncodeIndex(kvstoretest.Layout(), "node/engine", kvstoretest.Keys("a", 3), "red", []string{"pidfd-12/34", ""})
	if again, head, processes, records := kvstore.DecodeIndex(good); !head || !processes || records != 3 || !bytes.Equal(again, good) {
		t.Fatalf("%v, %v, %d records", head, processes, records)
	}
}

// A decoder never panics, and what it accepts there is one encoding of.
func FuzzArenaIndex(f *testing.F) {
	good := kvstore.EncodeIndex(kvstoretest.Layout(), "node/engine", kvstoretest.Keys("a", 3), "red", []string{"pidfd-12/34", ""})
	record := make([]byte, 384)
	copy(record[24:], kvstoretest.Keys("a", 1)[0])
	record[6] = 32
	for part, b := range [][]byte{kvstore.IndexHead: good[:348], kvstore.IndexProcesses: good[4096 : 4096+64], kvstore.IndexRecord: record} {
		if _, again := kvstore.DecodeIndexPart(part, true, b); again == nil {
			f.Fatalf("part %d is refused", part)
		}
		f.Add(uint8(part), true, b)
		f.Add(uint8(part), false, b)
	}
	f.Fuzz(func(t *testing.T, part uint8, seal bool, b []byte) {
		if whole, again := kvstore.DecodeIndexPart(int(part)%kvstore.IndexParts, seal, b); again != nil && !bytes.Equal(whole, again) {
			t.Error("what was accepted encodes differently")
		}
	})
}

// An arena that somebody truncates while it is opened, or broke while it was in use, is a fresh one to the next opener, and no fault gets through.
func TestTruncatedWhileOpened(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	keys := kvstoretest.Keys("a", 64)
	for round := range 20 {
		a := keep(t, dir, 64, nil)
		kvstoretest.Publish(t, a, "e", "", keys)
		path := a.Path()
		if round == 0 { // broken: not kept
			check(t, os.Truncate(path, 0))
			if err := a.CheckFile(); !errors.Is(err, kvstore.ErrArenaFault) {
				t.Errorf("check: %v", err)
			}
			closeArena(t, a)
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("a broken arena is kept: %v, %v", left, err)
			}
			continue
		}
		closeArena(t, a)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 200 * (round % 3) {
				runtime.Gosched()
			}
			_ = os.Truncate(path, 4096) // the opening may be over, or the file be another one
		}()
		b := keep(t, dir, 64, nil)
		<-done
		if b.CheckFile() == nil {
			for _, k := range keys {
				wantPage(t, b, "", k)
			}
		}
		if err := b.Discard(); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkKept is what an index costs: a lease of 100 blocks and its end, and a commit of a block of 80 small pages.
func BenchmarkKept(b *testing.B) {
	for name, identity := range map[string]string{"kept": "n", "not": ""} {
		b.Run("lease/"+name, func(b *testing.B) {
			a := keep(b, memoryDir(b), 128, func(c *kvstore.ArenaConfig) { c.Keep = identity })
			keys := kvstoretest.Keys("a", 100)
			kvstoretest.Publish(b, a, "e", "", keys)
			b.ReportAllocs()
			for b.Loop() {
				l, _, err := a.Acquire("e", "", keys, -1)
				if err == nil {
					err = a.Release(l)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("commit/"+name, func(b *testing.B) {
			a := keep(b, memoryDir(b), 4, func(c *kvstore.ArenaConfig) { c.Keep, c.Layout.Layers = identity, 80 })
			keys := kvstoretest.Keys("a", 1)
			b.ReportAllocs()
			for b.Loop() {
				res, err := a.Reserve("e", "", keys)
				if err == nil {
					_, err = a.CommitPart("e", res[0].Ref, 0, 1, kvstore.FidelityExact)
				}
				if err != nil || a.Invalidate("", keys) != 1 {
					b.Fatal(err)
				}
			}
		})
	}
}
