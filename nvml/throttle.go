package nvml

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"strings"
)

// Throttle is a set of reasons that set a GPU's clocks. Bits and meaning are those of nvmlClocksEventReasons (nvml.h of
// NVML 13.0); the driver's bits that this package does not know are one, [ThrottleOther].
type Throttle uint32

// The reasons.
const (
	ThrottleIdle               Throttle = 1 << iota // nothing runs, so the clocks are low; no slow-down
	ThrottleApplicationClocks                       // clocks set by an operator
	ThrottleSoftwarePower                           // the power limit: usual in long prefills
	ThrottleHardwareSlowdown                        // clocks halved or worse by temperature, power brake or power supply
	ThrottleSyncBoost                               // held to the slowest GPU of a sync-boost group
	ThrottleSoftwareThermal                         // the temperature limit of GPU or memory
	ThrottleHardwareThermal                         // hardware temperature protection
	ThrottleHardwarePowerBrake                      // the system's power brake, usually its power supply
	ThrottleDisplay                                 // a display's clock setting
	ThrottleBoardLimit                              // a limit of the board
	ThrottleReliability                             // a reliability limit, such as voltage
	ThrottleOther                                   // any that this package does not know
	throttleEnd
)

// The sets that are asked for most.
const (
	ThrottlePower   = ThrottleSoftwarePower | ThrottleHardwarePowerBrake
	ThrottleThermal = ThrottleSoftwareThermal | ThrottleHardwareThermal
)

var throttleNames = [...]string{
	"idle", "application_clocks", "software_power", "hardware_slowdown", "sync_boost", "software_thermal",
	"hardware_thermal", "hardware_power_brake", "display", "board_limit", "reliability", "other",
}

// throttleOf translates the driver's mask.
func throttleOf(mask uint64) Throttle {
	known := uint64(ThrottleOther - 1)
	t := Throttle(mask & known)
	if mask&^known != 0 {
		t |= ThrottleOther
	}
	return t
}

// ThrottleNames returns the name of each reason, in the order of its bit: the label values that [Throttle.Names] draws
// from. The caller owns it.
func ThrottleNames() []string { return append([]string(nil), throttleNames[:]...) }

// Slows reports whether any reason but idleness holds the clocks down.
func (t Throttle) Slows() bool { return t&^ThrottleIdle != 0 }

// Names returns the names of the reasons in the set, in the order of [ThrottleNames]; nil for the empty set. Bits that are
// no reason have none.
func (t Throttle) Names() []string {
	var names []string
	for rest := t & (throttleEnd - 1); rest != 0; rest &= rest - 1 {
		names = append(names, throttleNames[bits.TrailingZeros32(uint32(rest))])
	}
	return names
}

// String lists the reasons ("software_power|hardware_thermal"), "none" for 0.
func (t Throttle) String() string {
	names := t.Names()
	if rest := t &^ (throttleEnd - 1); rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(rest)))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "|")
}

// MarshalJSON is the list of names.
func (t Throttle) MarshalJSON() ([]byte, error) {
	if names := t.Names(); names != nil {
		return json.Marshal(names)
	}
	return []byte("[]"), nil
}
