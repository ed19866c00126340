package nvml

import (
	"encoding/json"
	"fmt"
)

// Reading is one value or the reason why there is none. The zero value is unavailable: "not sampled". It is plain and may be
// copied.
type Reading[T any] struct {
	value  T
	state  State
	cause  Cause
	reason string
}

// Available returns a reading that holds v.
func Available[T any](v T) Reading[T] { return Reading[T]{value: v, state: StateAvailable} }

// Missing returns a reading without a value. A cause of [CauseNone] reads [CauseNotSampled]; reason is text for people and
// may be "", which reads as the cause's name.
func Missing[T any](cause Cause, reason string) Reading[T] {
	return Reading[T]{cause: cause, reason: reason}
}

// Get returns the value; ok is false, and the value T's zero, when there is none.
func (r Reading[T]) Get() (v T, ok bool) { return r.value, r.state == StateAvailable }

// State is [StateAvailable] or [StateUnavailable].
func (r Reading[T]) State() State { return r.state }

// Cause says why there is no value; [CauseNone] when there is one.
func (r Reading[T]) Cause() Cause {
	if r.state != StateAvailable && r.cause == CauseNone {
		return CauseNotSampled
	}
	return r.cause
}

// Reason says why there is no value, in words; "" when there is one.
func (r Reading[T]) Reason() string {
	if r.state == StateAvailable {
		return ""
	}
	return reasonText(r.cause, r.reason)
}

// String is the value's text, or "unavailable: <reason>".
func (r Reading[T]) String() string {
	if v, ok := r.Get(); ok {
		return fmt.Sprint(v)
	}
	return "unavailable: " + r.Reason()
}

// MarshalJSON is the value, or {"unavailable": cause, "reason": text}: never a zero, and never null.
func (r Reading[T]) MarshalJSON() ([]byte, error) {
	if v, ok := r.Get(); ok {
		return json.Marshal(v)
	}
	return json.Marshal(struct {
		Unavailable Cause  `json:"unavailable"`
		Reason      string `json:"reason"`
	}{r.Cause(), r.Reason()})
}

// missingAs returns a reading that is missing for the reason for which r is.
func missingAs[T, R any](r Reading[R]) Reading[T] { return Missing[T](r.Cause(), r.reason) }

func reasonText(cause Cause, reason string) string {
	switch {
	case reason != "":
		return reason
	case cause == CauseNone || cause == CauseNotSampled:
		return "not sampled"
	}
	return cause.String()
}
