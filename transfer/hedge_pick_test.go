package transfer

import (
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// TestHedgePick holds which late chunks are doubled, and by whom, against the
// rates of the connections.
func TestHedgePick(t *testing.T) {
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	flow := &outflow{pairs: newPairs([]Desc{{Pages: 64}}, []*memory{newMemory(1, Memory{PageBytes: 64 << 10})})}
	whole := chunk{flow: flow, pages: 16} // 1 MiB
	// A connection of n MiB a second at 100 ms.
	rate := func(n float64) quic.ConnectionStats {
		return quic.ConnectionStats{CongestionWindow: uint64(n * 104857.6), SmoothedRTT: 100 * ms}
	}
	type running struct {
		on       int
		ago      time.Duration // since it began
		expected time.Duration
		over     bool
	}
	for _, tc := range []struct {
		name    string
		rates   []float64 // of connections 0, 1, ...
		drains  int       // that connection takes no chunks; -1: none
		runs    []running
		held    bool
		want    map[int]int // connection that doubles: the run
		stalled bool
	}{
		{name: "nothing runs", rates: []float64{10, 10}, drains: -1},
		{name: "alike", rates: []float64{10, 10}, drains: -1, runs: []running{{on: 0, expected: 100 * ms}}},
		{name: "slow, and another is free", rates: []float64{1, 10}, drains: -1, runs: []running{{on: 0, expected: time.Second}}, want: map[int]int{1: 0}},
		{name: "slow, but almost done", rates: []float64{1, 10}, drains: -1, runs: []running{{on: 0, ago: 800 * ms, expected: time.Second}}},
		{name: "slow, and written", rates: []float64{1, 10}, drains: -1, runs: []running{{on: 0, expected: time.Second, over: true}}},
		{name: "nobody is free", rates: []float64{1, 10}, drains: -1, runs: []running{{on: 0, expected: time.Second}, {on: 1, expected: 100 * ms}}},
		{name: "the free one is being retired", rates: []float64{1, 10}, drains: 1, runs: []running{{on: 0, expected: time.Second}}},
		{name: "the free one is as slow", rates: []float64{1, 1}, drains: -1, runs: []running{{on: 0, expected: time.Second}}},
		{
			name: "the fastest first, for the latest", rates: []float64{1, 2, 20, 10}, drains: -1,
			runs: []running{{on: 1, expected: 800 * ms}, {on: 0, expected: time.Second}}, want: map[int]int{2: 1, 3: 0},
		},
		{
			name: "one each", rates: []float64{1, 10}, drains: -1,
			runs: []running{{on: 0, expected: 2 * time.Second}, {on: 0, expected: time.Second}}, want: map[int]int{1: 0},
		},
		{
			name: "long overdue", rates: []float64{10, 1}, drains: -1, runs: []running{{on: 0, ago: time.Second, expected: 100 * ms}},
			want: map[int]int{1: 0}, stalled: true,
		},
		{name: "overdue, nobody else", rates: []float64{10}, drains: -1, runs: []running{{on: 0, ago: time.Second, expected: 100 * ms}}, stalled: true},
		{name: "waits for a higher class", rates: []float64{1, 10}, drains: -1, runs: []running{{on: 0, ago: time.Minute, expected: time.Second}}, held: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h hedges
			h.init()
			stripes, number := make([]*stripe, len(tc.rates)), map[*stripe]int{}
			stats, takes := map[*stripe]quic.ConnectionStats{}, map[*stripe]bool{}
			for i, n := range tc.rates {
				s := &stripe{number: uint32(i)}
				stripes[i], number[s], stats[s], takes[s] = s, i, rate(n), i != tc.drains
			}
			index := map[*run]int{}
			for i, r := range tc.runs {
				x := &run{chunk: whole, stripe: stripes[r.on], begun: start.Add(-r.ago), expected: r.expected, over: r.over}
				h.runs[x], index[x] = struct{}{}, i
			}
			held := func(Class) bool { return tc.held }
			got, stalled := h.pick(stats, takes, held, start)
			if len(got) != len(tc.want) || stalled != tc.stalled {
				t.Fatalf("%d duplicates, stalled %v; want %v, %v", len(got), stalled, tc.want, tc.stalled)
			}
			for _, x := range got {
				if of, ok := tc.want[number[x.by]]; !ok || of != index[x.of] {
					t.Errorf("connection %d doubles run %d, want %v", number[x.by], index[x.of], tc.want)
				}
			}
			// Nothing is doubled twice, and who doubles is busy.
			if again, _ := h.pick(stats, takes, held, start); len(again) != 0 {
				t.Errorf("again %v", again)
			}
		})
	}
}

// TestHedgeHungry tells a connection that lacks chunks from one that is between
// two.
func TestHedgeHungry(t *testing.T) {
	var h hedges
	h.init()
	a, b := &stripe{number: 1}, &stripe{number: 2}
	live := []*stripe{a, b}
	add := func(s *stripe) *run {
		r := &run{stripe: s}
		h.runs[r] = struct{}{}
		return r
	}
	want := func(what string, hungry bool) {
		t.Helper()
		if got := h.wasHungry(live, false); got != hungry {
			t.Errorf("%s: hungry %v", what, got)
		}
	}
	want("nothing runs", true)
	a1, b1 := add(a), add(b)
	want("both have one", false)
	h.end(a1, true)
	a2 := add(a)
	want("one took the next that waited", false)
	a3 := add(a)
	h.end(a2, false)
	want("none waits, but it has another", false)
	h.end(a3, false)
	a4 := add(a)
	want("it had none for a while", true)
	want("since then it has", false)
	h.end(b1, true)
	want("one has none just now", true)
	h.end(a4, false)
}
