package goodput

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRamp(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rates []int64 // bytes a window
		want  float64 // seconds; 0 is none
	}{
		{name: "too short", rates: []int64{10, 10, 10}},
		{name: "at once", rates: []int64{10, 10, 10, 10}, want: 0.1},
		{name: "slow start", rates: []int64{1, 2, 4, 8, 16, 16, 16, 16, 16, 16}, want: 0.5},
		{name: "nine tenths are enough", rates: []int64{5, 9, 10, 10, 10, 10}, want: 0.2},
		{name: "a hole later does not matter", rates: []int64{2, 10, 10, 10, 0, 10, 10, 10}, want: 0.2},
		{name: "nothing moved", rates: []int64{0, 0, 0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var at int64
			var samples []int64
			for _, r := range tc.rates {
				at += r
				samples = append(samples, at)
			}
			got := ramp(samples)
			if (got == nil) != (tc.want == 0) || got != nil && math.Abs(*got-tc.want) > 1e-9 {
				t.Errorf("ramp %s, want %v", text(got, "%v"), tc.want)
			}
		})
	}
}

// TestRecorder lands pages in any order and holds every chunk to be counted once, when its last page is in.
func TestRecorder(t *testing.T) {
	const blocks, pages, pageBytes = 3, 40, 64 << 10 // chunks of 16, 16 and 8 pages
	r := newRecorder(blocks, pages, pageBytes)
	type page struct{ pair, page int }
	var all []page
	for pair := range blocks {
		for p := range pages {
			all = append(all, page{pair, p})
			if p%16 == 0 {
				r.sent(pair, p)
				r.sent(pair, p) // asked for again: the first time counts
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	left := map[page]int{} // pages missing of a chunk: the oracle
	for _, p := range all {
		left[page{p.pair, p.page / 16}]++
	}
	whole := 0
	for _, p := range all {
		c := page{p.pair, p.page / 16}
		if left[c]--; left[c] == 0 {
			whole++
		}
		r.landed(p.pair, p.page, 1)
		if got := len(r.latencies()); got != whole {
			t.Fatalf("%d latencies, want %d", got, whole)
		}
	}
	if whole != 9 || !slices.IsSorted(r.latencies()) {
		t.Errorf("%d chunks, latencies %v", whole, r.latencies())
	}
	for _, p := range []page{{-1, 0}, {0, -1}, {blocks, 0}, {0, pages}} { // nothing of the transfer: ignored
		r.sent(p.pair, p.page)
		r.landed(p.pair, p.page, 1)
	}
	if big := newRecorder(1, 2, 4<<20); len(big.chunks) != 2 {
		t.Errorf("%d chunks of two pages that are larger than a chunk", len(big.chunks))
	}
}

func TestWindowed(t *testing.T) {
	var w windowed
	for _, p := range []struct {
		at   time.Duration
		done int64
	}{{50 * time.Millisecond, 50}, {50 * time.Millisecond, 60}, {250 * time.Millisecond, 250}, {260 * time.Millisecond, 900}, {300 * time.Millisecond, 1000}} {
		w.add(p.at, p.done)
	}
	if diff := cmp.Diff([]int64{100, 200, 1000}, w.bytes); diff != "" {
		t.Errorf("windows (-want +got):\n%s", diff)
	}
}

func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		model string
		edit  func(*Outcome)
		want  string
	}{
		{"link", "rtt=10ms,rate=100Mbps,loss=0", func(o *Outcome) { o.LinkShare = ptr(0.9) }, LimitLink},
		{"processor", "rtt=10ms,rate=100Mbps,loss=0", func(o *Outcome) { o.LinkShare, o.Machine.CPUShare = ptr(0.9), ptr(0.95) }, LimitMachine},
		{"clock", "rtt=10ms,rate=100Mbps,loss=0", func(o *Outcome) { o.Machine.LagP99 = ptr(0.02) }, LimitMachine},
		{"a little late on a long link", "rtt=200ms,rate=100Mbps,loss=0", func(o *Outcome) { o.LinkShare, o.Machine.LagP99 = ptr(0.9), ptr(0.02) }, LimitLink},
		{"buffers", "rtt=10ms,rate=100Mbps,loss=0", func(o *Outcome) { o.LinkShare, o.Machine.ReceiverDrops = ptr(0.9), ptr(int64(3)) }, LimitMachine},
		{"loss", "rtt=10ms,rate=100Mbps,loss=0.01", func(o *Outcome) { o.Runs[0].drops.loss = 7 }, LimitLoss},
		{"window", "rtt=100ms,rate=10Gbps,loss=0", func(*Outcome) {}, LimitWindow},
		{"congestion", "rtt=10ms,rate=100Mbps,loss=0", func(*Outcome) {}, LimitCongestion},
		{"no rate", "rtt=10ms", func(o *Outcome) { o.LinkShare = nil }, LimitUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &Outcome{Stripes: 4, LinkShare: ptr(0.3), Runs: []*Measure{{}}, Machine: MachineState{CPUShare: ptr(0.2), LagP99: ptr(0.001), ReceiverDrops: ptr(int64(0))}}
			tc.edit(o)
			o.limit(model(t, tc.model))
			if o.LimitedBy != tc.want || o.Why == "" {
				t.Errorf("limited by %q (%s), want %q", o.LimitedBy, o.Why, tc.want)
			}
			if (len(o.Warnings) > 0) != (tc.want == LimitMachine) {
				t.Errorf("warnings %v", o.Warnings)
			}
		})
	}
}
