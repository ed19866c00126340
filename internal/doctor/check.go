package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Status is how a check ended.
type Status uint8

// The statuses, from harmless to bad, [Unknown] apart.
const (
	// Unknown: it could not be found out; the detail says why. It is not a failure, and not a success.
	Unknown Status = iota
	// OK: as it should be.
	OK
	// Warn: works, but worse than it could, or not for long.
	Warn
	// Fail: does not work.
	Fail
)

// String returns "unknown", "ok", "warn" or "fail".
func (s Status) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case OK:
		return "ok"
	case Warn:
		return "warn"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// MarshalText makes a status its name in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is what a check found.
type Finding struct {
	// Name is the check's.
	Name string `json:"name"`
	// Status is how it ended.
	Status Status `json:"status"`
	// Detail says what was found, with values. Never empty.
	Detail string `json:"detail"`
	// Fix is a command or a configuration key that puts it right; set for each [Warn] and [Fail].
	Fix string `json:"fix"`
}

// Check is one thing to look at.
type Check struct {
	// Name is lower case, dotted: "certificate.expiry", "peer.us-1.udp". Unique in a list.
	Name string
	// Run looks. It should return when ctx ends. The Name of its result is not looked at.
	Run func(ctx context.Context) Finding
}

// DefaultTimeout bounds one check.
const DefaultTimeout = 10 * time.Second

// grace is what a check gets to answer after its context has ended.
const grace = 500 * time.Millisecond

// Options are how checks are run. The zero value is the defaults.
type Options struct {
	// Timeout bounds each check. 0 means [DefaultTimeout]; negative: no bound but ctx.
	Timeout time.Duration
	// Done is called after each check, one call at a time, in the order in which they end. Nil: not called.
	Done func(Finding)
}

// Run runs all checks at the same time and returns one finding a check, in the order of the checks. A check that has not
// ended half a second after its time is [Unknown] and is left behind; so is every check when ctx ends.
func Run(ctx context.Context, checks []Check, opts Options) []Finding {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	out := make([]Finding, len(checks))
	var (
		wg sync.WaitGroup
		mu sync.Mutex // one Done at a time
	)
	for i, c := range checks {
		wg.Go(func() { // ends with the check, or shortly after its time
			f := runOne(ctx, c, opts.Timeout)
			mu.Lock()
			defer mu.Unlock()
			out[i] = f
			if opts.Done != nil {
				opts.Done(f)
			}
		})
	}
	wg.Wait()
	return out
}

var errTooLong = errors.New("too long")

func runOne(ctx context.Context, c Check, timeout time.Duration) Finding {
	var cancel context.CancelFunc = func() {}
	if timeout > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTooLong)
	}
	defer cancel()
	// Capacity 1: a check that ends after it was given up has somewhere to put its finding.
	done := make(chan Finding, 1)
	// The goroutine is left behind when the check hangs in a call that can't be cancelled, such as a look at a dead
	// network filesystem. The process of a doctor ends soon.
	go func() { done <- c.Run(ctx) }()
	var f Finding
	select {
	case f = <-done:
	case <-ctx.Done():
		last := time.NewTimer(grace)
		defer last.Stop()
		select {
		case f = <-done:
		case <-last.C:
			f = Finding{Status: Unknown, Detail: "interrupted", Fix: ""}
			if errors.Is(context.Cause(ctx), errTooLong) {
				f = Finding{Status: Warn, Detail: fmt.Sprintf("no result within %v", timeout), Fix: "run it again; if it persists look at what the check looks at: a filesystem or a driver hangs"}
			}
		}
	}
	f.Name = c.Name
	return f
}

// Worst is the worst status of findings: [Fail], [Warn], or [OK], where [Unknown] counts as OK.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Status)
	}
	return worst
}

func ok(format string, args ...any) Finding {
	return Finding{Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) Finding {
	return Finding{Status: Unknown, Detail: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Finding {
	return Finding{Status: Warn, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(fix, format string, args ...any) Finding {
	return Finding{Status: Fail, Detail: fmt.Sprintf(format, args...), Fix: fix}
}
