package daemon

import (
	"testing"
)

// Every pair has an answer, terminal states absorb everything, and from every live state a terminal one can be reached.
func TestMachineIsTotal(t *testing.T) {
	for s := range states() {
		for e := range events() {
			to, changed := next(s, e)
			if to >= stateCount {
				t.Errorf("next(%s, %s) = %s, not a state", s, e, to)
			}
			if !changed && to != s {
				t.Errorf("next(%s, %s) says unchanged but moves to %s", s, e, to)
			}
			if s.terminal() && changed {
				t.Errorf("terminal %s leaves on %s", s, e)
			}
		}
		if stateNames[s] == "" {
			t.Errorf("state %d has no name", s)
		}
	}
	for e := range events() {
		if eventNames[e] == "" {
			t.Errorf("event %d has no name", e)
		}
	}
	if to, changed := next(stateCount+3, evCancel); changed || to != stateCount+3 {
		t.Errorf("next of an unknown state = %v, %v", to, changed)
	}
}

// Whatever live state a migration is in, a failure ends it; before the hand-over so do a cancel and a deadline.
func TestMachineAlwaysEnds(t *testing.T) {
	for s := range states() {
		if s.terminal() {
			continue
		}
		if to, _ := next(s, evFailed); to != stateFailed {
			t.Errorf("next(%s, failed) = %s", s, to)
		}
		if to, _ := next(s, evSourceGone); to != stateRecompute {
			t.Errorf("next(%s, source_gone) = %s", s, to)
		}
		cancelled, _ := next(s, evCancel)
		deadline, _ := next(s, evDeadline)
		if s == stateHandingOver {
			if cancelled != s || deadline != s {
				t.Errorf("%s: a hand-over in flight must await its answer, got %s and %s", s, cancelled, deadline)
			}
			continue
		}
		if cancelled != stateCancelled || deadline != stateFailed {
			t.Errorf("%s: cancel -> %s, deadline -> %s", s, cancelled, deadline)
		}
	}
}

// No path reaches COMMITTED without the authority's word, except where there is nothing to hand over.
func TestMachineCommitsOnlyAfterHandOver(t *testing.T) {
	for s := range states() {
		for e := range events() {
			to, changed := next(s, e)
			if !changed || to != stateCommitted {
				continue
			}
			ok := s == stateHandingOver && e == evMovedWarm || s == stateLocating && e == evHere || s == stateReserving && e == evReplicated
			if !ok {
				t.Errorf("next(%s, %s) commits", s, e)
			}
		}
	}
}
