package daemon

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

var engineLabelPattern = regexp.MustCompile(`engine="([^"]*)"`)

// engineLabelsOf are the distinct engines among samples.
func engineLabelsOf(got map[string]float64) []string {
	var out []string
	for name := range got {
		if m := engineLabelPattern.FindStringSubmatch(name); m != nil {
			out = append(out, m[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// However many engines register, the series do not grow beyond the bound; what the others do adds up under one label, and one
// that unregisters makes room. A configured engine is never among the others.
func TestEngineLabelIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const many = maxEngineNames + 10
		f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) { c.Engines = []EngineConfig{{ID: "listed"}} }, "a")
		n := f.nodes["a"]
		engines := make([]*testEngine, many)
		for i := range engines {
			engines[i] = n.register(fmt.Sprintf("e%03d", i), testLayout(), 64<<10)
		}
		n.register("listed", testLayout(), 64<<10)
		got := n.samples()
		labels := engineLabelsOf(got)
		if len(labels) != maxEngineNames+2 || !slices.Contains(labels, otherEngine) || !slices.Contains(labels, "listed") || !slices.Contains(labels, "e000") {
			t.Errorf("%d labels: %v", len(labels), labels)
		}
		before := len(got)
		lookup := func(id string) {
			t.Helper()
			if _, err := n.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: id, Keys: chain("nobody's", 3)}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range many {
			lookup(engines[i].id)
		}
		got = n.samples()
		if len(got) != before {
			t.Errorf("%d series, %d before the calls", len(got), before)
		}
		slots := func(label string) (sum float64) {
			for name, v := range got {
				if strings.HasPrefix(name, fmt.Sprintf(`kvferry_arena_slots{engine=%q`, label)) {
					sum += v
				}
			}
			return sum
		}
		each := float64(engines[0].reg.GetSlots())
		wantSamples(t, got, map[string]float64{
			`kvferry_prefix_blocks_total{call="lookup",engine="e000",region="r-a",result="absent"}`:  3,
			`kvferry_prefix_blocks_total{call="lookup",engine="other",region="r-a",result="absent"}`: 3 * 10,
			`kvferry_arena_size_bytes{engine="e000"}`:                                                got[`kvferry_arena_size_bytes{engine="listed"}`],
			`kvferry_arena_size_bytes{engine="other"}`:                                               10 * got[`kvferry_arena_size_bytes{engine="e000"}`],
		})
		if slots("e000") != each || slots(otherEngine) != 10*each {
			t.Errorf("slots %v and %v, want %v and %v", slots("e000"), slots(otherEngine), each, 10*each)
		}

		if err := engines[0].unregister(); err != nil {
			t.Fatal(err)
		}
		n.register("later", testLayout(), 64<<10)
		labels = engineLabelsOf(n.samples())
		if len(labels) != maxEngineNames+2 || slices.Contains(labels, "e000") || !slices.Contains(labels, "later") {
			t.Errorf("after one has made room: %v", labels)
		}
	})
}

// What engines without a label of their own counted stays when they are gone, as does what an arena counted that is replaced: a
// counter that goes down looks like a restart. An engine never changes its label while it is registered.
func TestEndedEnginesStayCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) { c.Engines = []EngineConfig{{ID: "listed"}} }, "a")
		n := f.nodes["a"]
		evicted := func(label string, want float64) {
			t.Helper()
			got := n.samples()
			name := fmt.Sprintf(`kvferry_arena_evictions_total{engine=%q}`, label)
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
			}
		}
		evict := func(e *testEngine) float64 { // fills the arena twice
			slots := int(e.reg.GetSlots())
			e.write("", chain("first "+e.id, slots))
			e.write("", chain("second "+e.id, slots))
			return float64(slots)
		}
		first := n.register("own", testLayout(), 64<<10)
		for i := range maxEngineNames - 1 {
			n.register(fmt.Sprintf("e%03d", i), testLayout(), 64<<10)
		}
		listed := n.register("listed", testLayout(), 64<<10)
		one, two := n.register("late-1", testLayout(), 64<<10), n.register("late-2", testLayout(), 64<<10)
		want := evict(one) + evict(two)
		evicted(otherEngine, want)
		if err := one.unregister(); err != nil {
			t.Fatal(err)
		}
		evicted(otherEngine, want)

		own := evict(first)
		evicted("own", own)
		if err := first.unregister(); err != nil {
			t.Fatal(err)
		}
		if got := n.samples(); slices.Contains(engineLabelsOf(got), "own") {
			t.Error("the label of an engine that is gone is there")
		}
		n.register("late-2", testLayout(), 64<<10) // the same engine again, though there is room for its label
		evicted(otherEngine, want)
		if err := two.unregister(); err != nil {
			t.Fatal(err)
		}
		evicted(otherEngine, want)
		if got := n.samples(); len(got) == 0 || got[`kvferry_arena_size_bytes{engine="other"}`] != 0 {
			t.Error("gauges of an arena that is gone")
		}

		count := evict(listed)
		evicted("listed", count)
		if err := os.Truncate(listed.reg.GetArenaPath(), 0); err != nil {
			t.Fatal(err)
		}
		n.register("listed", testLayout(), 64<<10)
		evicted("listed", count)
	})
}
