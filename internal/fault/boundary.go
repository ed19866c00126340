package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Boundary is a place that data or state crosses.
type Boundary uint8

// The boundaries; the package's documentation says what each is.
const (
	Read Boundary = iota
	Send
	Receive
	Decode
	Verify
	Reserve
	Commit
	HandOver
	HandedOver
	Adopt
	Adopted
	Reply
	Persist
	boundaries
)

var boundaryNames = [boundaries]string{
	"read", "send", "receive", "decode", "verify", "reserve", "commit", "handover", "handedover", "adopt", "adopted", "reply", "persist",
}

// String returns the name in schedules.
func (b Boundary) String() string {
	if b < boundaries {
		return boundaryNames[b]
	}
	return fmt.Sprintf("boundary %d", uint8(b))
}

// Boundaries returns all of them.
func Boundaries() []Boundary {
	out := make([]Boundary, boundaries)
	for i := range out {
		out[i] = Boundary(i)
	}
	return out
}

// Kind is what strikes at a boundary.
type Kind uint8

// The kinds.
const (
	// Fails has the crossing fail with an *Error.
	Fails Kind = iota
	// Short has what crosses end early.
	Short
	// Corrupt flips a bit of what crosses, and says nothing.
	Corrupt
	// Stall has the crossing take longer.
	Stall
	// Kill ends the node: Injector.Kill, or SIGKILL to the own process.
	Kill
	// Lose has the answer lost after its effect.
	Lose
	kinds
)

var kindNames = [kinds]string{"error", "short", "corrupt", "stall", "kill", "lose"}

// String returns the name in schedules.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Error is a crossing that was made to fail. Its cause, if the boundary has one, is what an operating system would say.
type Error struct {
	Boundary Boundary
	Ordinal  uint64
	Kind     Kind
	Cause    error // nil: none
}

// Error says which crossing it was.
func (e *Error) Error() string {
	s := fmt.Sprintf("injected %s at %s %d", e.Kind, e.Boundary, e.Ordinal)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether err is a fault of kind k.
func Is(err error, k Kind) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == k
}

// Event is one fault that struck.
type Event struct {
	After    time.Duration // since the injector was installed
	Boundary Boundary
	Ordinal  uint64
	Kind     Kind
	At       string // the node or arena
}

// String is the event's line in a log.
func (e Event) String() string {
	return fmt.Sprintf("%.3f %s:%d:%s at %s", e.After.Seconds(), e.Boundary, e.Ordinal, e.Kind, e.At)
}

// Bug is a mistake that can be planted, to test tests.
type Bug string

// The bugs. Each is one condition at the place where the rule that it breaks is kept; one of them, that another rule would make good, is two.
const (
	VerificationSkipped Bug = "verification-skipped"  // a page lands whatever its checksum is
	LeaseLost           Bug = "lease-lost"            // an engine's lease ends by itself
	CommitDoubled       Bug = "commit-doubled"        // a hand-over that is asked for again is decided again, and the refusal believed
	SlotReusedEarly     Bug = "slot-reused-early"     // a lease does not keep its slots from being reused
	ForwardNotPersisted Bug = "forward-not-persisted" // a hand-over is in memory only
	EpochIgnored        Bug = "epoch-ignored"         // an older owner's word counts as a newer one's
	CounterLeaked       Bug = "counter-leaked"        // a migration that fails stays among the active ones
	SaltDropped         Bug = "salt-dropped"          // the index does not tell tenants apart
	LateWriterAllowed   Bug = "late-writer-allowed"   // a reference to a slot of before is taken for one of now
	ResumeOffByOne      Bug = "resume-off-by-one"     // what is missing after a loss is one page short
	AdoptNotPersisted   Bug = "adopt-not-persisted"   // a session that was adopted is in memory only
	OfferNotEnded       Bug = "offer-not-ended"       // an offer that is ended keeps its lease
	ElsewhereIgnored    Bug = "elsewhere-ignored"     // a session that has not come here is published here
)

// Bugs returns all of them.
func Bugs() []Bug {
	return []Bug{
		VerificationSkipped, LeaseLost, CommitDoubled, SlotReusedEarly, ForwardNotPersisted, EpochIgnored, CounterLeaked, SaltDropped,
		LateWriterAllowed, ResumeOffByOne, AdoptNotPersisted, OfferNotEnded, ElsewhereIgnored,
	}
}

// ParseBugs reads a comma-separated list of bugs; "" is none.
func ParseBugs(text string) ([]Bug, error) {
	var out []Bug
	for _, name := range strings.Split(text, ",") {
		if name == "" && text == "" {
			continue
		}
		known := false
		for _, b := range Bugs() {
			known = known || string(b) == name
		}
		if !known {
			return nil, fmt.Errorf("bug %q is not known; it must be one of %v", name, Bugs())
		}
		out = append(out, Bug(name))
	}
	return out, nil
}
