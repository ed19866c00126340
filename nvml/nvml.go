package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrClosed is returned by Sample after Close.
var ErrClosed = errors.New("nvml: sampler is closed")

// ErrHung is returned by Close when a driver call has not returned: its thread, and the library, are given up.
var ErrHung = errors.New("nvml: a driver call has not returned")

// Sampler reads the GPUs. It is safe for concurrent use.
type Sampler interface {
	// Sample returns the last pass's snapshot and its age; it never waits for the driver. That there is no GPU or no driver
	// is no error but an unavailable Snapshot. The error is context.Cause(ctx) when ctx is done, and [ErrClosed] after
	// Close.
	Sample(ctx context.Context) (Snapshot, error)
	// Close ends sampling and releases the library. It is idempotent and waits for the call in progress, at most
	// Config.Timeout: then it returns [ErrHung], as it does at once when the call already counts as hung.
	Close() error
}

// Snapshot is the state of every GPU at one instant. The zero value is unavailable.
type Snapshot struct {
	// State is [StateUnavailable], [StateAvailable] or [StateHung].
	State State
	// Cause is why the snapshot is not available; [CauseNone] when it is, and in the zero value.
	Cause Cause
	// Reason is Cause in words, with what to do where that is known; "" when the snapshot is available.
	Reason string
	// Driver is the driver's version, Library the library's; "" when unknown.
	Driver, Library string
	// Taken is when the pass that this comes from ended; Age is how long ago that was when Sample was called. In a hung
	// snapshot that is the last pass that ended. Zero: no pass has ended.
	Taken time.Time
	Age   time.Duration
	// GPUs is in the driver's order, each GPU before its MIG instances. Available and empty means that the driver answered
	// and there is no GPU. A GPU that was there since the library was initialised stays in the list, as [StateLost]. In a
	// hung snapshot, GPUs have their identity and no reading. The caller owns it.
	GPUs []GPU
}

// String is "unavailable: <reason>", "hung: <reason>", or "available: N GPU(s), driver V", with counts of MIG instances and
// of GPUs that are not well where there are any.
func (s Snapshot) String() string {
	if s.State != StateAvailable {
		return s.State.String() + ": " + reasonText(s.Cause, s.Reason)
	}
	var whole, instances, ill int
	for _, g := range s.GPUs {
		if g.IsInstance() {
			instances++
			continue
		}
		whole++
		if g.State != StateAvailable {
			ill++
		}
	}
	text := fmt.Sprintf("available: %d GPU(s)", whole)
	if ill > 0 {
		text += fmt.Sprintf(" of which %d not well", ill)
	}
	if instances > 0 {
		text += fmt.Sprintf(", %d MIG instance(s)", instances)
	}
	return text + ", driver " + s.Driver
}

// clone returns a copy that shares no memory with s.
func (s Snapshot) clone() Snapshot {
	if s.GPUs == nil {
		return s
	}
	gpus := make([]GPU, len(s.GPUs))
	for i, g := range s.GPUs {
		gpus[i] = g.clone()
	}
	s.GPUs = gpus
	return s
}

// Open is [OpenWith] of the zero Config.
func Open() (Sampler, error) { return OpenWith(Config{}) }

// OpenWith starts a sampler; the caller owes it a Close. It waits for the first pass, at most 2 s, so that the first Sample
// has something to say. That there is no library, driver or GPU is no error: the sampler goes on looking for them. A build
// without the binding returns a sampler whose every snapshot says so. The error is that of [Config.Validate].
func OpenWith(cfg Config) (Sampler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Period < 0 {
		return unavailableFor(CauseOff, "sampling is off (a negative Period)"), nil
	}
	d, f := newDriver(cfg.Library)
	if f != nil {
		return unavailableFor(f.cause, f.reason), nil
	}
	return start(cfg, d), nil
}
