//go:build chaos

package fault

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled says that this build can inject faults and plant bugs.
const Enabled = true

// Injector has a schedule's faults strike. It is used by Install, once, and not changed afterwards.
type Injector struct {
	// Schedule is which.
	Schedule Schedule
	// Kill ends the node or arena's node of that name; the crossing then fails. Nil: SIGKILL to this process.
	Kill func(at string)
	// Log takes a line a fault. Nil: none.
	Log io.Writer

	began  time.Time
	counts [boundaries]atomic.Uint64
	mu     struct {
		sync.Mutex
		struck []Event
	}
}

var (
	installed atomic.Pointer[Injector]
	planted   atomic.Pointer[[]Bug]
)

// Install has in's faults strike until remove. One is installed at a time: the last.
func Install(in *Injector) (remove func()) {
	in.began = time.Now()
	installed.Store(in)
	return func() { installed.CompareAndSwap(in, nil) }
}

// Plant plants bugs, and no others, until restore.
func Plant(bugs ...Bug) (restore func()) {
	old := planted.Swap(&bugs)
	return func() { planted.Store(old) }
}

// Planted reports whether bug is planted.
func Planted(bug Bug) bool {
	p := planted.Load()
	return p != nil && slices.Contains(*p, bug)
}

// Struck is what has struck so far, in order.
func (in *Injector) Struck() []Event {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.mu.struck)
}

// Crossings is how often b has been crossed.
func (in *Injector) Crossings(b Boundary) uint64 { return in.counts[b].Load() }

// At is a crossing of b at the named node or arena: nil, unless a fault makes it fail.
func At(b Boundary, at string) error { return Page(b, at, nil) }

// Page is At with the bytes that cross, of which a fault may flip a bit.
func Page(b Boundary, at string, p []byte) error {
	in := installed.Load()
	if in == nil {
		return nil
	}
	n := in.counts[b].Add(1)
	for _, s := range in.Schedule {
		if s.Boundary == b && s.First <= n && n <= s.Last {
			return in.strike(s, n, at, p)
		}
	}
	return nil
}

func (in *Injector) strike(s Shot, n uint64, at string, p []byte) error {
	ev := Event{After: time.Since(in.began), Boundary: s.Boundary, Ordinal: n, Kind: s.Kind, At: at}
	in.mu.Lock()
	in.mu.struck = append(in.mu.struck, ev)
	if in.Log != nil {
		_, _ = fmt.Fprintln(in.Log, ev)
	}
	in.mu.Unlock()
	switch s.Kind {
	case Stall:
		time.Sleep(s.For)
		return nil
	case Corrupt:
		if len(p) > 0 {
			bit := (n * 0x9e3779b97f4a7c15) % uint64(8*len(p))
			p[bit/8] ^= 1 << (bit % 8)
		}
		return nil
	case Kill:
		if in.Kill == nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
		in.Kill(at)
	}
	e := &Error{Boundary: s.Boundary, Ordinal: n, Kind: s.Kind}
	if s.Kind == Fails && (s.Boundary == HandOver || s.Boundary == Adopt || s.Boundary == Persist) {
		e.Cause = syscall.ENOSPC
	}
	return e
}

var fromEnv = sync.OnceValue(func() error {
	bugs, err := ParseBugs(os.Getenv("KVFERRY_PLANTED"))
	if err != nil {
		return fmt.Errorf("environment variable KVFERRY_PLANTED: %w", err)
	}
	if len(bugs) > 0 {
		Plant(bugs...)
	}
	schedule, err := Parse(os.Getenv("KVFERRY_FAULTS"))
	if err != nil {
		return fmt.Errorf("environment variable KVFERRY_FAULTS: %w", err)
	}
	if len(schedule) == 0 {
		return nil
	}
	in := &Injector{Schedule: schedule}
	if name := os.Getenv("KVFERRY_FAULTS_LOG"); name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("environment variable KVFERRY_FAULTS_LOG: %w", err)
		}
		in.Log = f
	}
	Install(in)
	return nil
})

// FromEnv installs what the environment asks for, once. Errors: a text that can't be read, the log's file.
func FromEnv() error { return fromEnv() }
