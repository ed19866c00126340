package nvml

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"time"
)

// openWait is how long OpenWith waits for the first pass.
const openWait = 2 * time.Second

// driver is the way to the GPUs. All but busy are called by one goroutine, the sampler's.
type driver interface {
	// start loads and initialises the library. Until it has returned nil, and after stop, only start may be called.
	start() *failure
	// read makes one pass. A failure says that the driver as a whole went away: stop and start are next.
	read() (Snapshot, *failure)
	// stop releases the library.
	stop()
	// busy names the library call in progress, "" for none. It is safe for concurrent use.
	busy() string
}

// failure is why something as a whole has no value.
type failure struct {
	cause  Cause
	reason string
}

// sampler owns one goroutine, run, that alone talks to the driver. A call that hangs holds that goroutine and nothing else:
// the state is worked out from the clock when Sample asks, and no second one is ever started.
type sampler struct {
	cfg    Config
	driver driver
	stop   chan struct{} // closed by the first Close
	first  chan struct{} // closed at the end of the first pass
	done   chan struct{} // closed when run has returned
	once   sync.Once

	mu struct {
		sync.Mutex
		closed bool
		latest Snapshot  // the last pass's; Age is not set
		began  time.Time // of the pass in progress; zero: none
	}
}

func start(cfg Config, d driver) *sampler {
	s := &sampler{cfg: cfg, driver: d, stop: make(chan struct{}), first: make(chan struct{}), done: make(chan struct{})}
	s.mu.latest = Snapshot{State: StateUnavailable, Cause: CauseNotSampled, Reason: "the first pass has not ended"}
	s.begin()
	// Ends with Close, or never when the driver hangs for good, which is why nothing waits for it without a limit.
	go pprof.Do(context.Background(), pprof.Labels("goroutine", "nvml sampler"), func(context.Context) { s.run() })
	timer := time.NewTimer(openWait)
	defer timer.Stop()
	select {
	case <-s.first:
	case <-timer.C:
	}
	return s
}

// Sample implements [Sampler].
func (s *sampler) Sample(ctx context.Context) (Snapshot, error) {
	if ctx.Err() != nil {
		return Snapshot{}, context.Cause(ctx)
	}
	s.mu.Lock()
	closed, snap, began := s.mu.closed, s.mu.latest, s.mu.began
	s.mu.Unlock()
	if closed {
		return Snapshot{}, ErrClosed
	}
	snap = snap.clone() // passes replace snapshots, they do not change them
	if !snap.Taken.IsZero() {
		snap.Age = time.Since(snap.Taken)
	}
	if !s.overdue(began) {
		return snap, nil
	}
	snap.State, snap.Cause = StateHung, CauseHung
	snap.Reason = fmt.Sprintf("%s has not returned; its pass began %v ago, longer than the time-out of %v",
		callName(s.driver.busy()), time.Since(began).Round(time.Millisecond), s.cfg.Timeout)
	for i, g := range snap.GPUs {
		snap.GPUs[i] = g.bare(StateHung, CauseHung, "a driver call has not returned")
	}
	return snap, nil
}

func callName(busy string) string {
	if busy == "" {
		return "a driver call"
	}
	return busy
}

// overdue reports whether a pass that began then counts as hung.
func (s *sampler) overdue(began time.Time) bool {
	return s.cfg.Timeout > 0 && !began.IsZero() && time.Since(began) > s.cfg.Timeout
}

// Close implements [Sampler].
func (s *sampler) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	began := s.mu.began
	s.mu.Unlock()
	s.once.Do(func() { close(s.stop) })
	if s.cfg.Timeout < 0 {
		<-s.done
		return nil
	}
	wait := s.cfg.Timeout
	if !began.IsZero() {
		wait -= time.Since(began)
	}
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
	}
	select {
	case <-s.done:
		return nil
	default:
		return fmt.Errorf("close: %s: %w", callName(s.driver.busy()), ErrHung)
	}
}

// begin marks the start of a pass.
func (s *sampler) begin() {
	s.mu.Lock()
	s.mu.began = time.Now()
	s.mu.Unlock()
}

// publish ends a pass.
func (s *sampler) publish(snap Snapshot) {
	snap.Taken = time.Now()
	s.mu.Lock()
	s.mu.latest, s.mu.began = snap, time.Time{}
	s.mu.Unlock()
}

// run is the sampling goroutine: passes, with pauses between them, until Close.
func (s *sampler) run() {
	defer close(s.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		started   bool
		startedAt time.Time
		retry     = s.cfg.Period
	)
	for n := 0; ; n++ {
		if n > 0 {
			s.begin()
		}
		snap, f := Snapshot{}, (*failure)(nil)
		if !started {
			f = s.guard(func() *failure { return s.driver.start() })
			started, startedAt = f == nil, time.Now()
		}
		if f == nil {
			f = s.guard(func() (f *failure) { snap, f = s.driver.read(); return f })
			if f != nil {
				_ = s.guard(func() *failure { s.driver.stop(); return nil })
				started = false
			}
		}
		pause := s.cfg.Period
		if f != nil {
			snap = Snapshot{State: StateUnavailable, Cause: f.cause, Reason: f.reason}
			pause, retry = retry, min(2*retry, s.cfg.RetryMax)
		} else {
			retry = s.cfg.Period
			if anyLost(snap) && time.Since(startedAt) >= s.cfg.RetryMax {
				// A GPU that was reset, or plugged in again, is seen by a newly initialised library only.
				_ = s.guard(func() *failure { s.driver.stop(); return nil })
				started = false
			}
		}
		s.publish(snap)
		if n == 0 {
			close(s.first)
		}
		timer.Reset(pause)
		select {
		case <-s.stop:
			if started {
				s.begin()
				_ = s.guard(func() *failure { s.driver.stop(); return nil })
			}
			return
		case <-timer.C:
		}
	}
}

// guard runs a step with the driver and turns a panic into a failure: the binding indexes what the library returns.
func (s *sampler) guard(step func() *failure) (f *failure) {
	defer func() {
		if p := recover(); p != nil {
			f = &failure{CauseFailed, fmt.Sprintf("%s: the binding panicked: %v", callName(s.driver.busy()), p)}
		}
	}()
	return step()
}

func anyLost(s Snapshot) bool {
	for _, g := range s.GPUs {
		if g.State == StateLost {
			return true
		}
	}
	return false
}
