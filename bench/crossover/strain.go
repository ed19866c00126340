package crossover

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/results"
)

// lagEvery is how often the probe looks at the clock.
const lagEvery = 5 * time.Millisecond

// strain is how hard the machine worked while pages moved.
type strain struct {
	busy, wall float64 // processor seconds of this process, and seconds
	late       []time.Duration
	drops      int64
	syncs      []time.Duration // what it took to write a record to the disk that the daemons' records are on
}

// probeSync writes and syncs a few bytes as the daemons do twice a migration. Between migrations, since it takes the disk's time.
func (s *strain) probeSync(dir string) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return // what can't be probed is not known
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }() // of a file that holds nothing
	began := time.Now()
	if _, err := f.WriteString("probe"); err == nil && f.Sync() == nil {
		s.syncs = append(s.syncs, time.Since(began))
	}
}

// watch is one span of it. It owns one goroutine, which ends with the span.
type watch struct {
	bed   *bed.Bed
	cpu   float64
	at    time.Time
	drops int64
	done  chan struct{}
	wg    sync.WaitGroup
	late  []time.Duration
}

func (s *strain) begin(b *bed.Bed) *watch {
	w := &watch{bed: b, cpu: results.ProcessCPU(), at: time.Now(), drops: b.ReceiverDrops(), done: make(chan struct{})}
	w.wg.Go(w.run)
	return w
}

// run measures how late this process's goroutines get to run, which is how late the in-memory link delivers.
func (w *watch) run() {
	timer := time.NewTimer(lagEvery)
	defer timer.Stop()
	due := time.Now().Add(lagEvery)
	for {
		select {
		case <-w.done:
			return
		case <-timer.C:
		}
		now := time.Now()
		w.late = append(w.late, max(0, now.Sub(due)))
		due = now.Add(lagEvery)
		timer.Reset(lagEvery)
	}
}

// end ends a span, which counts when what it watched was whole.
func (s *strain) end(w *watch, whole bool) {
	close(w.done)
	w.wg.Wait()
	if !whole {
		return
	}
	s.busy += results.ProcessCPU() - w.cpu
	s.wall += time.Since(w.at).Seconds()
	s.late = append(s.late, w.late...)
	s.drops += w.bed.ReceiverDrops() - w.drops
}

// cpuShare is the share of this process's processors, 0 to 1.
func (s *strain) cpuShare() float64 {
	if s.wall <= 0 {
		return 0
	}
	return s.busy / s.wall / float64(runtime.GOMAXPROCS(0))
}

// lag is the lateness that 99 of 100 looks stayed below.
func (s *strain) lag() time.Duration { return percentile(s.late, 99) }

// sync is the time within which 90 of 100 records were on the disk.
func (s *strain) sync() time.Duration { return percentile(s.syncs, 90) }

func percentile(all []time.Duration, of int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)-1)*of/100]
}
