package goodput

import (
	"slices"
	"sync"
	"time"
)

// lagEvery is how often the probe looks at the clock.
const lagEvery = 5 * time.Millisecond

// lagProbe measures how late goroutines of this process get to run, which is how late the in-memory link delivers. It owns
// one goroutine, which ends at stop.
type lagProbe struct {
	done chan struct{}
	wg   sync.WaitGroup
	late []time.Duration
}

func startLag() *lagProbe {
	p := &lagProbe{done: make(chan struct{})}
	p.wg.Go(p.run)
	return p
}

func (p *lagProbe) run() {
	timer := time.NewTimer(lagEvery)
	defer timer.Stop()
	due := time.Now().Add(lagEvery)
	for {
		select {
		case <-p.done:
			return
		case <-timer.C:
		}
		now := time.Now()
		p.late = append(p.late, max(0, now.Sub(due)))
		due = now.Add(lagEvery)
		timer.Reset(lagEvery)
	}
}

// stop ends the probe and returns the lateness that 99 of 100 looks stayed below.
func (p *lagProbe) stop() time.Duration {
	close(p.done)
	p.wg.Wait()
	if len(p.late) == 0 {
		return 0
	}
	slices.Sort(p.late)
	return p.late[(len(p.late)-1)*99/100]
}
