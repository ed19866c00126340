package kvstore_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// An arena of 4 GiB, or of half of what the memory filesystem has free, is ready in seconds after its process was killed: opened, every page
// verified, and read.
func TestWarmRestart4GiB(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 4 GiB of /dev/shm and some seconds")
	}
	preset, err := kvstore.PresetByName("llama-3.1-70b")
	if err != nil {
		t.Fatal(err)
	}
	layout := preset.Layout
	layout.HashAlgorithm = "sha256_cbor"
	var fs unix.Statfs_t
	if err := unix.Statfs(kvstore.DefaultArenaDir, &fs); err != nil {
		t.Fatal(err)
	}
	size := min(int64(4<<30), int64(fs.Bavail)*int64(fs.Bsize)/2)
	if size < 4<<30 {
		t.Logf("/dev/shm has room for %d MiB only", size>>20)
	}
	slots := int(size / layout.Stride())
	if slots < 1 {
		t.Skip("/dev/shm has no room for a block")
	}
	dir := memoryDir(t)
	change := func(c *kvstore.ArenaConfig) {
		c.Dir, c.Name, c.Keep, c.Layout, c.Bytes, c.Lock = dir, "arena", "node/engine", layout, size, kvstore.LockOff
	}
	started := time.Now()
	a := kvstoretest.OpenArena(t, 0, change)
	t.Logf("opened %d blocks, %.2f GiB, cold: %.2f s", slots, float64(size)/(1<<30), time.Since(started).Seconds())
	keys := kvstoretest.Keys("large", slots)
	res, err := a.Reserve("e", "", keys)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(a.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, layout.BlockBytes())
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(block)
	started = time.Now()
	for i, r := range res {
		block[i%len(block)]++ // no two alike
		if _, err := file.WriteAt(block, int64(r.Ref.Slot)*layout.Stride()); err != nil {
			t.Fatal(err)
		}
		if ok, err := a.CommitPart("e", r.Ref, 0, 1, kvstore.FidelityExact); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	t.Logf("written and committed: %.2f s", time.Since(started).Seconds())
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	closeArena(t, a)
	started = time.Now()
	b := kvstoretest.OpenArena(t, 0, change)
	took := time.Since(started)
	got := b.Restored()
	t.Logf("opened again, %d blocks verified: %.2f s, %.1f GiB/s", got.Blocks, took.Seconds(), float64(size)/(1<<30)/took.Seconds())
	if got.Blocks != slots || got.Dropped != 0 || got.Held != 0 {
		t.Errorf("restored %+v, want %d blocks", got, slots)
	}
	if took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	lease, refs, err := b.Acquire("e", "", keys[slots-1:], -1)
	if err != nil {
		t.Fatal(err)
	}
	page, sum := make([]byte, layout.PageBytes()), make([]uint32, 1)
	if err := b.ReadPages(lease, refs[0], 79, 1, page, sum); err != nil || kvstore.PageSum(b.Pin(), keys[slots-1], 79, page) != sum[0] {
		t.Errorf("the last page: %v", err)
	}
	if err := b.Release(lease); err != nil {
		t.Fatal(err)
	}
	if err := b.Discard(); err != nil {
		t.Fatal(err)
	}
}
