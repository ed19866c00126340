package daemon

import (
	"fmt"
	"iter"
)

// state is where a migration stands. The zero value is locating, the state every migration starts in.
type state uint8

// States in the order of a migration's life; the last five are terminal.
const (
	stateLocating state = iota
	stateOffering
	statePlanning
	stateReserving
	stateTransferring
	stateHandingOver
	stateCommitted
	stateRecompute
	stateRedirect
	stateFailed
	stateCancelled
	stateCount
)

// event is something that happened to a migration.
type event uint8

// Events. What they carry (an offer, a plan, a failure) is the driver's; the machine decides only what follows.
const (
	// evLocated: an owner other than this node was found.
	evLocated event = iota
	// evHere: this node owns the session already.
	evHere
	// evOffered: the source leased its blocks and answered the layout.
	evOffered
	// evRedirect, evRecompute, evFetch, evHybrid: the plan.
	evRedirect
	evRecompute
	evFetch
	evHybrid
	// evReserved: slots for what is missing are held, and something is missing.
	evReserved
	// evNothingMissing: every block is here already.
	evNothingMissing
	// evReplicated: explicit keys have landed; there is no hand-over.
	evReplicated
	// evLanded: every page has passed.
	evLanded
	// evPrefixOnly: the source can't supply all blocks; a contiguous prefix is here.
	evPrefixOnly
	// evGrown: the session grew; its delta is to be fetched.
	evGrown
	// evMovedWarm and evMovedCold: the authority moved ownership; the blocks are here, or are to be prefilled.
	evMovedWarm
	evMovedCold
	// evSourceGone: the source can't be reached or does not answer; ownership stays.
	evSourceGone
	// evFailed: anything else that ends it.
	evFailed
	// evCancel: Cancel was called.
	evCancel
	// evDeadline: the migration's time is over.
	evDeadline
	eventCount
)

var stateNames = [stateCount]string{
	"locating", "offering", "planning", "reserving", "transferring", "handing_over",
	"committed", "recompute", "redirect", "failed", "cancelled",
}

var eventNames = [eventCount]string{
	"located", "here", "offered", "redirect", "recompute", "fetch", "hybrid", "reserved", "nothing_missing", "replicated", "landed",
	"prefix_only", "grown", "moved_warm", "moved_cold", "source_gone", "failed", "cancel", "deadline",
}

// String returns the state's name as it appears in logs and metrics.
func (s state) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// String returns the event's name as it appears in logs and metrics.
func (e event) String() string {
	if e < eventCount {
		return eventNames[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}

// terminal reports whether nothing can follow s.
func (s state) terminal() bool { return s >= stateCommitted }

// states and events walk all values, for tests and tables.
func states() iter.Seq[state] {
	return func(yield func(state) bool) {
		for s := range stateCount {
			if !yield(s) {
				return
			}
		}
	}
}

func events() iter.Seq[event] {
	return func(yield func(event) bool) {
		for e := range eventCount {
			if !yield(e) {
				return
			}
		}
	}
}

// transitions holds what follows. A pair that is absent is late, duplicate or out of place: it changes nothing.
// A cancel or a deadline that meets a hand-over in flight waits for the authority's answer, since ownership may
// have moved; the driver bounds that wait.
var transitions = [stateCount]map[event]state{
	stateLocating: {
		evLocated: stateOffering, evHere: stateCommitted, evSourceGone: stateRecompute,
		evFailed: stateFailed, evCancel: stateCancelled, evDeadline: stateFailed,
	},
	stateOffering: {
		evOffered: statePlanning, evSourceGone: stateRecompute,
		evFailed: stateFailed, evCancel: stateCancelled, evDeadline: stateFailed,
	},
	statePlanning: {
		evRedirect: stateRedirect, evRecompute: stateHandingOver, evFetch: stateReserving, evHybrid: stateTransferring,
		evSourceGone: stateRecompute, evFailed: stateFailed, evCancel: stateCancelled, evDeadline: stateFailed,
	},
	stateReserving: {
		evReserved: stateTransferring, evNothingMissing: stateHandingOver, evReplicated: stateCommitted,
		evPrefixOnly: stateHandingOver, evSourceGone: stateRecompute,
		evFailed: stateFailed, evCancel: stateCancelled, evDeadline: stateFailed,
	},
	stateTransferring: {
		evLanded: stateReserving, evPrefixOnly: stateHandingOver, evSourceGone: stateRecompute,
		evFailed: stateFailed, evCancel: stateCancelled, evDeadline: stateFailed,
	},
	stateHandingOver: {
		evMovedWarm: stateCommitted, evMovedCold: stateRecompute, evGrown: stateReserving,
		evSourceGone: stateRecompute, evFailed: stateFailed,
	},
}

// next is the whole machine: what follows when e happens in s. It is total: for every pair it answers, and
// changed is false where the event is late or out of place and s stays.
func next(s state, e event) (to state, changed bool) {
	if s >= stateCount {
		return s, false
	}
	if to, ok := transitions[s][e]; ok {
		return to, true
	}
	return s, false
}
