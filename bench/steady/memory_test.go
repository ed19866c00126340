package steady

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
)

// fast moves bytes between two agents over a link without rate or delay, in real time, and calls each several times a second.
func fast(t *testing.T, c Cell, each func(landed int64)) *rig {
	t.Helper()
	r, err := newRig(t.Context(), c.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	x, err := r.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Release() }() // always nil
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := x.Wait(t.Context())
		done <- err
	}()
	for {
		select {
		case <-tick.C:
			if each != nil {
				each(r.pages.landed.Load())
			}
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			if got := r.pages.landed.Load(); got < c.Cold {
				t.Fatalf("%d bytes landed of %d", got, c.Cold)
			}
			return r
		}
	}
}

// heap is bytes of objects, those not yet collected included.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// TestMemoryBounded: the heap of both agents is bounded by windows and buffers, not by what moves. With -table 40 GiB move, and 1 GiB
// otherwise.
func TestMemoryBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("moves a GiB, which takes long under the race detector")
	}
	const ceiling = 160 << 20
	bytes := int64(1 << 30)
	if *table {
		bytes = 40 << 30
	}
	runtime.GC()
	base := heap()
	var early, late int64 // the most in the first eighth, and after it
	fast(t, Cell{Cold: bytes, WAN: wan.Model{}}, func(landed int64) {
		h := heap() - base
		if landed < bytes/8 {
			early = max(early, h)
		} else {
			late = max(late, h)
		}
	})
	t.Logf("%d GiB: heap at most %d MiB in the first eighth, %d MiB after it", bytes>>30, early>>20, late>>20)
	if late > ceiling {
		t.Errorf("the heap reached %d bytes, ceiling %d", late, ceiling)
	}
}

// TestAllocations: a page allocates nothing, and a chunk of any number of pages a bounded number of times, quic-go's included. Sixteen
// times the pages in the same chunks must not allocate more.
func TestAllocations(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which -short is for, allocates")
	}
	const (
		bytes      = 64 << 20
		chunk      = 1 << 20
		perChunk   = 3000 // allocations of everything, both ends, for 836 packets out and their acknowledgements
		perPage    = 0.5  // acknowledgements come as they like, so that runs differ; a page that allocates once would show as 1
		smallPages = 4 << 10
	)
	measure := func(page int) float64 {
		c := Cell{Cold: bytes, PageBytes: page, PagesPerBlock: 5 << 20 / page}
		fast(t, c, nil) // pools fill
		best := 0.0
		for range 2 { // the least: others' work only adds
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			fast(t, c, nil)
			runtime.ReadMemStats(&after)
			if n := float64(after.Mallocs - before.Mallocs); best == 0 || n < best {
				best = n
			}
		}
		return best
	}
	large, small := measure(64<<10), measure(smallPages)
	chunks := float64(bytes / chunk)
	pages := float64(bytes/smallPages - bytes/(64<<10))
	t.Logf("allocations a chunk, both ends: %.0f with 16 pages, %.0f with 256; a page: %.4f", large/chunks, small/chunks, (small-large)/pages)
	if large/chunks > perChunk {
		t.Errorf("%.0f allocations a chunk, ceiling %d", large/chunks, perChunk)
	}
	if (small-large)/pages > perPage {
		t.Errorf("%.3f allocations a page, want none", (small-large)/pages)
	}
}
