//go:build chaos

package chaos

import (
	"testing"

	"github.com/kvferry/kvferry/internal/fault"
)

// A seed is one run, whose schedule survives its text; the kinds of runs and of events all come.
func TestPlan(t *testing.T) {
	kinds, events := map[string]int{}, map[string]int{}
	for seed := range uint64(300) {
		a, b := plan(seed), plan(seed)
		if a.String() != b.String() {
			t.Fatalf("seed %d:\n%v\nand\n%v", seed, a, b)
		}
		if got, err := fault.Parse(a.schedule.String()); err != nil || got.String() != a.schedule.String() {
			t.Errorf("seed %d: schedule %v is read as %v: %v", seed, a.schedule, got, err)
		}
		kinds[a.kind]++
		for _, e := range a.events {
			events[e.kind]++
			if e.at < 0 || e.at > a.horizon || e.last <= 0 {
				t.Errorf("seed %d: event %v, horizon %v", seed, e, a.horizon)
			}
		}
		for _, m := range a.moves {
			if m.must && a.kind == harsh || m.to < 0 || m.to >= hosts || m.deadline <= 0 {
				t.Errorf("seed %d: %v in a run that is %s", seed, m, a.kind)
			}
		}
	}
	if len(kinds) != 3 || len(events) != 7 {
		t.Errorf("kinds %v, events %v", kinds, events)
	}
}
