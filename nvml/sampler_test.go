package nvml

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// all compares values with their unexported fields.
var all = cmp.Exporter(func(reflect.Type) bool { return true })

// fakeDriver answers from functions and notes the calls and their times since the first.
type fakeDriver struct {
	onStart func(n int) *failure
	onRead  func(n int) (Snapshot, *failure)

	began time.Time
	mu    sync.Mutex
	calls []fakeCall
	n     map[string]int
}

type fakeCall struct {
	What string
	At   time.Duration
}

func newFake() *fakeDriver {
	return &fakeDriver{
		onStart: func(int) *failure { return nil },
		onRead:  func(int) (Snapshot, *failure) { return oneGPU(), nil },
		began:   time.Now(), n: map[string]int{},
	}
}

func oneGPU() Snapshot {
	return Snapshot{State: StateAvailable, Driver: "1", GPUs: []GPU{{
		UUID: "GPU-a", Name: "a", State: StateAvailable,
		Temperature: Available(40.0), Processes: Available([]Process{{PID: 7}}),
	}}}
}

func (f *fakeDriver) book(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fakeCall{what, time.Since(f.began)})
	f.n[what]++
	return f.n[what]
}

func (f *fakeDriver) start() *failure            { return f.onStart(f.book("start")) }
func (f *fakeDriver) read() (Snapshot, *failure) { return f.onRead(f.book("read")) }
func (f *fakeDriver) stop()                      { f.book("stop") }
func (f *fakeDriver) busy() string               { return "nvmlFake of GPU 3" }

func (f *fakeDriver) log() []fakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]fakeCall(nil), f.calls...)
}

func mustSample(t *testing.T, s Sampler) Snapshot {
	t.Helper()
	snap, err := s.Sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func startFake(f *fakeDriver) *sampler { return start(Config{}.withDefaults(), f) }

func TestSamplesOnceAPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := startFake(f)
		for range 100 {
			_ = mustSample(t, s)
		}
		time.Sleep(3*time.Second + 250*time.Millisecond)
		if got := mustSample(t, s).Age; got != 250*time.Millisecond {
			t.Errorf("age %v, want 250ms", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		want := []fakeCall{
			{"start", 0},
			{"read", 0},
			{"read", time.Second},
			{"read", 2 * time.Second},
			{"read", 3 * time.Second},
			{"stop", 3*time.Second + 250*time.Millisecond},
		}
		if diff := cmp.Diff(want, f.log()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if _, err := s.Sample(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
}

func TestSnapshotsAreTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startFake(newFake())
		defer s.Close()
		want := mustSample(t, s)
		spoilt := mustSample(t, s)
		list, _ := spoilt.GPUs[0].Processes.Get()
		list[0].PID = 99
		spoilt.GPUs[0].UUID = "spoilt"
		if diff := cmp.Diff(want, mustSample(t, s), all); diff != "" {
			t.Errorf("a caller's change shows (-want +got):\n%s", diff)
		}
	})
}

func TestHungCallIsAStateAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := make(chan struct{})
		f.onRead = func(n int) (Snapshot, *failure) {
			if n == 2 {
				<-release
			}
			return oneGPU(), nil
		}
		s := startFake(f)
		time.Sleep(6 * time.Second) // the second pass began at 1 s; its 5 s are used up and not exceeded
		if got := mustSample(t, s); got.State != StateAvailable || got.Age != 6*time.Second {
			t.Errorf("at the time-out: %v, age %v", got, got.Age)
		}
		time.Sleep(time.Nanosecond)
		for range 1000 {
			_ = mustSample(t, s)
		}
		hung := mustSample(t, s)
		if hung.State != StateHung || hung.Cause != CauseHung || !strings.Contains(hung.Reason, "nvmlFake of GPU 3") {
			t.Errorf("after it: %+v", hung)
		}
		g := hung.GPUs[0]
		if g.State != StateHung || g.UUID != "GPU-a" || g.Name != "a" {
			t.Errorf("hung GPU: %v %q", g.State, g.UUID)
		}
		if v, ok := g.Temperature.Get(); ok || v != 0 || g.Temperature.Cause() != CauseHung {
			t.Errorf("temperature of a hung GPU: %v", g.Temperature)
		}
		time.Sleep(time.Hour)
		if n := len(f.log()); n != 3 {
			t.Errorf("%d calls while one hangs, want 3: start and two reads", n)
		}
		close(release)
		synctest.Wait()
		if got := mustSample(t, s); got.State != StateAvailable || got.Age != 0 {
			t.Errorf("after the call returned: %v, age %v", got, got.Age)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseDoesNotWaitForAHungCall(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		before, during time.Duration // from the start of the call to Close, and from then to its return
		wait           time.Duration
		err            error
	}{
		{"returns in time", time.Second, 3 * time.Second, 3 * time.Second, nil},
		{"does not", time.Second, time.Hour, 4 * time.Second, ErrHung},
		{"is known to hang", 2 * time.Hour, time.Hour, 0, ErrHung},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.onRead = func(n int) (Snapshot, *failure) {
					if n == 2 {
						time.Sleep(tc.before + tc.during)
					}
					return oneGPU(), nil
				}
				s := startFake(f)
				time.Sleep(time.Second + tc.before)
				at := time.Now()
				if err := s.Close(); !errors.Is(err, tc.err) {
					t.Errorf("got %v, want %v", err, tc.err)
				}
				if got := time.Since(at); got != tc.wait {
					t.Errorf("waited %v, want %v", got, tc.wait)
				}
				time.Sleep(2 * time.Hour)
				if got := f.log()[len(f.log())-1].What; got != "stop" {
					t.Errorf("last call %q, want stop", got)
				}
			})
		})
	}
}

func TestCloseWithoutATimeOutWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRead = func(int) (Snapshot, *failure) { time.Sleep(time.Hour); return oneGPU(), nil }
		s := start(Config{Timeout: -1}.withDefaults(), f)
		at := time.Now()
		time.Sleep(30 * time.Minute)
		if got := mustSample(t, s); got.State != StateUnavailable || got.Cause != CauseNotSampled {
			t.Errorf("%+v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got := time.Since(at); got != time.Hour-openWait {
			t.Errorf("closed after %v", got)
		}
	})
}

func TestOpenWaitsForTheFirstPassForTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onStart = func(int) *failure { time.Sleep(7 * time.Second); return nil }
		at := time.Now()
		s := startFake(f)
		if got := time.Since(at); got != openWait {
			t.Errorf("waited %v, want %v", got, openWait)
		}
		if got := mustSample(t, s); got.State != StateUnavailable || got.Cause != CauseNotSampled || got.Age != 0 {
			t.Errorf("before the first pass: %+v", got)
		}
		time.Sleep(4 * time.Second)
		if got := mustSample(t, s); got.State != StateHung {
			t.Errorf("initialising for 6 s: %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := mustSample(t, s); got.State != StateAvailable {
			t.Errorf("initialised: %v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestStartIsTriedAgainWithGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onStart = func(n int) *failure {
			if n < 9 {
				return &failure{CauseNoDriver, "not there"}
			}
			return nil
		}
		s := startFake(f)
		if got := mustSample(t, s); got.State != StateUnavailable || got.Cause != CauseNoDriver || got.Reason != "not there" {
			t.Errorf("%+v", got)
		}
		time.Sleep(4 * time.Minute)
		if got := mustSample(t, s); got.State != StateAvailable {
			t.Errorf("%+v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		var starts []int
		for _, c := range f.log() {
			if c.What == "start" {
				starts = append(starts, int(c.At/time.Second))
			}
		}
		// 1, 2, 4, 8, 16, 32 s, then the most: 1 min.
		if diff := cmp.Diff([]int{0, 1, 3, 7, 15, 31, 63, 123, 183}, starts); diff != "" {
			t.Errorf("starts in s (-want +got):\n%s", diff)
		}
	})
}

func TestDriverThatWentAwayIsStartedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRead = func(n int) (Snapshot, *failure) {
			switch n {
			case 2:
				return Snapshot{}, &failure{CauseNoDriver, "gone"}
			case 4:
				panic("index out of range")
			}
			return oneGPU(), nil
		}
		s := startFake(f)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := mustSample(t, s); got.State != StateUnavailable || got.Cause != CauseNoDriver || len(got.GPUs) != 0 {
			t.Errorf("gone: %+v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := mustSample(t, s); got.State != StateAvailable {
			t.Errorf("back: %+v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := mustSample(t, s); got.Cause != CauseFailed || !strings.Contains(got.Reason, "index out of range") {
			t.Errorf("panic: %+v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		want := []fakeCall{
			{"start", 0},
			{"read", 0},
			{"read", time.Second},
			{"stop", time.Second},
			{"start", 2 * time.Second},
			{"read", 2 * time.Second},
			{"read", 3 * time.Second},
			{"stop", 3 * time.Second},
			{"start", 4 * time.Second},
			{"read", 4 * time.Second},
			{"stop", 4 * time.Second},
		}
		if diff := cmp.Diff(want, f.log()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestLostGPUIsLookedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRead = func(int) (Snapshot, *failure) {
			snap := oneGPU()
			if f.n["start"] < 3 {
				snap.GPUs[0] = snap.GPUs[0].bare(StateLost, CauseLost, "lost")
			}
			return snap, nil
		}
		s := startFake(f)
		time.Sleep(10 * time.Minute)
		if got := mustSample(t, s); got.GPUs[0].State != StateAvailable {
			t.Errorf("%+v", got.GPUs[0].State)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		var starts []time.Duration
		for _, c := range f.log() {
			if c.What == "start" {
				starts = append(starts, c.At)
			}
		}
		if diff := cmp.Diff([]time.Duration{0, 61 * time.Second, 122 * time.Second}, starts); diff != "" {
			t.Errorf("starts (-want +got):\n%s", diff)
		}
	})
}

func TestSampleReturnsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("region is draining")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	s := startFake(newFake())
	defer s.Close()
	for _, s := range []Sampler{s, Unavailable("off")} {
		if _, err := s.Sample(ctx); !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
	}
}

func TestSampleAndCloseTogether(t *testing.T) {
	t.Parallel()
	s := start(Config{Period: minPeriod}.withDefaults(), newFake())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if _, err := s.Sample(t.Context()); err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
