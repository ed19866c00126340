package nvml

import (
	"context"
	"fmt"
)

// Sampler reads the GPUs.
type Sampler interface {
	// Sample returns the present state. That there is no GPU or no driver is no error but an unavailable Snapshot. The
	// error is context.Cause(ctx) when ctx is done, and [ErrClosed] after Close.
	Sample(ctx context.Context) (Snapshot, error)
	// Close releases the library. It is idempotent and waits for calls in progress.
	Close() error
}

// State says whether a snapshot or reading holds a value. The zero value is [StateUnavailable].
type State int

// The states.
const (
	StateUnavailable State = iota // no value; a reason is given
	StateAvailable                // the value is what the driver said
)

// String is "unavailable" or "available".
func (s State) String() string {
	switch s {
	case StateUnavailable:
		return "unavailable"
	case StateAvailable:
		return "available"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// Snapshot is the state of every GPU at one instant. The zero value is unavailable.
type Snapshot struct {
	State State
	// Reason says why the snapshot is unavailable; "" when it is available.
	Reason string
	// Driver is the driver's version; "" when unavailable.
	Driver string
	// GPUs is in the driver's order. Available and empty means that the driver answered and there is no GPU. The caller
	// owns it.
	GPUs []GPU
}

// String is "unavailable: <reason>" or "available: N GPU(s), driver V".
func (s Snapshot) String() string {
	if s.State != StateAvailable {
		return unavailableText(s.Reason)
	}
	return fmt.Sprintf("available: %d GPU(s), driver %s", len(s.GPUs), s.Driver)
}

// GPU is the state of one GPU. Its zero value has every reading unavailable.
type GPU struct {
	Index int    // the driver's index, from 0
	UUID  string // "GPU-…"
	Name  string // product name

	Utilization  Reading[float64]  // share of the last sample period in which a kernel ran, 0 to 1
	MemoryUsed   Reading[uint64]   // bytes
	MemoryTotal  Reading[uint64]   // bytes
	SMClock      Reading[uint64]   // Hz
	SMClockMax   Reading[uint64]   // Hz
	MemoryClock  Reading[uint64]   // Hz
	Power        Reading[float64]  // watts
	Temperature  Reading[float64]  // degrees Celsius
	Throttling   Reading[Throttle] // why clocks are held down; 0 when they are not
	PCIeReplays  Reading[uint64]   // link-level retries since the driver loaded
	PCIeReceive  Reading[float64]  // bytes a second into the GPU
	PCIeTransmit Reading[float64]  // bytes a second out of the GPU
}

// Throttle is a set of reasons for which a GPU's clocks are held down.
type Throttle uint32

// The reasons.
const (
	ThrottlePower   Throttle = 1 << iota // power cap or power brake
	ThrottleThermal                      // temperature limit
	ThrottleOther                        // any other that slows a busy GPU
)

// String lists the reasons ("power|thermal"), "none" for 0.
func (t Throttle) String() string {
	text := ""
	for i, name := range [...]string{"power", "thermal", "other"} {
		if bit := Throttle(1) << i; t&bit != 0 {
			text += "|" + name
			t &^= bit
		}
	}
	if t != 0 {
		text += fmt.Sprintf("|%#x", uint32(t))
	}
	if text == "" {
		return "none"
	}
	return text[1:]
}

// Reading is one value or the reason why there is none. The zero value is unavailable: "not sampled".
type Reading[T any] struct {
	value  T
	state  State
	reason string
}

// Available returns a reading that holds v.
func Available[T any](v T) Reading[T] { return Reading[T]{value: v, state: StateAvailable} }

// Missing returns a reading without a value, for that reason.
func Missing[T any](reason string) Reading[T] { return Reading[T]{reason: reason} }

// Get returns the value; ok is false, and the value T's zero, when there is none.
func (r Reading[T]) Get() (v T, ok bool) { return r.value, r.state == StateAvailable }

// State says whether there is a value.
func (r Reading[T]) State() State { return r.state }

// Reason says why there is no value; "" when there is one.
func (r Reading[T]) Reason() string {
	if r.state != StateAvailable && r.reason == "" {
		return "not sampled"
	}
	return r.reason
}

// String is the value's text, or "unavailable: <reason>".
func (r Reading[T]) String() string {
	if v, ok := r.Get(); ok {
		return fmt.Sprint(v)
	}
	return unavailableText(r.Reason())
}

func unavailableText(reason string) string {
	if reason == "" {
		reason = "not sampled"
	}
	return "unavailable: " + reason
}
