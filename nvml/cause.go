package nvml

import "fmt"

// Cause is why there is no value. The set is closed, so it can label a metric; the text beside it is for people.
type Cause int

// The causes. The zero value says that there is a value, or, in a reading that holds none, that nothing has read it.
const (
	CauseNone            Cause = iota
	CauseNotSampled            // no pass has finished yet, or this entry does not have the reading
	CauseOff                   // the sampler was made without a library
	CauseNoBinding             // built for another system than Linux, or without cgo
	CauseNoLibrary             // the library is not installed or cannot be loaded
	CauseNoSymbol              // the library lacks the function: older than it, or a stub
	CauseNoDriver              // the driver is not loaded, was unloaded, or is starting
	CauseNoPermission          // denied to this user, or the device is kept from this container
	CauseVersionMismatch       // library and driver, or library and struct, are of different versions
	CauseNotSupported          // this GPU or mode does not have the reading
	CauseNoData                // supported, and no value at this time
	CauseLost                  // the GPU fell off the bus or is gone
	CauseResetRequired         // the GPU answers nothing until it is reset
	CauseHung                  // a driver call has not returned within Config.Timeout
	CauseInvalid               // the driver's value is out of its range
	CauseFailed                // any other error
	causes                     // how many there are
)

var causeNames = [causes]string{
	CauseNone:            "none",
	CauseNotSampled:      "not_sampled",
	CauseOff:             "off",
	CauseNoBinding:       "no_binding",
	CauseNoLibrary:       "no_library",
	CauseNoSymbol:        "no_symbol",
	CauseNoDriver:        "no_driver",
	CauseNoPermission:    "no_permission",
	CauseVersionMismatch: "version_mismatch",
	CauseNotSupported:    "not_supported",
	CauseNoData:          "no_data",
	CauseLost:            "lost",
	CauseResetRequired:   "reset_required",
	CauseHung:            "hung",
	CauseInvalid:         "invalid",
	CauseFailed:          "failed",
}

// String is the cause's name in lower snake case, fit for a label.
func (c Cause) String() string {
	if c < 0 || c >= causes {
		return fmt.Sprintf("cause(%d)", int(c))
	}
	return causeNames[c]
}

// MarshalText is the name.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// State says how much a snapshot or a GPU has to say. The zero value is [StateUnavailable].
type State int

// The states. A snapshot is unavailable, available or hung; a GPU any of the five.
const (
	StateUnavailable State = iota // no value; cause and reason are given
	StateAvailable                // the driver answered; single readings may still be missing
	StateDegraded                 // a GPU that answers and reports damage; readings are valid, the reason lists the damage
	StateLost                     // a GPU that was there and does not answer: off the bus, or waiting for a reset
	StateHung                     // a driver call has not returned; readings are missing, not old
)

// String is the state's name in lower case.
func (s State) String() string {
	switch s {
	case StateUnavailable:
		return "unavailable"
	case StateAvailable:
		return "available"
	case StateDegraded:
		return "degraded"
	case StateLost:
		return "lost"
	case StateHung:
		return "hung"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// MarshalText is the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
