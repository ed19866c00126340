package transfer

import (
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// TestLeastRTT drives the least round trip with one sample a step.
func TestLeastRTT(t *testing.T) {
	const short, long = 20 * time.Millisecond, 150 * time.Millisecond
	type phase struct {
		rtt  time.Duration
		step time.Duration
		n    int
	}
	for _, tc := range []struct {
		name   string
		phases []phase
		want   time.Duration
	}{
		{"none", nil, 0},
		{"none is no sample", []phase{{0, time.Second, 5}}, 0},
		{"one", []phase{{long, time.Second, 1}}, long},
		{"lower at once", []phase{{long, time.Second, 90}, {short, time.Second, 1}}, short},
		{"a queue of 40 s", []phase{{short, time.Second, 20}, {long, time.Second, 40}}, short},
		{"longer after a minute", []phase{{short, time.Second, 20}, {long, time.Second, 61}}, long},
		{"longer after a minute of fast looks", []phase{{short, 50 * time.Millisecond, 1}, {long, 50 * time.Millisecond, 1201}}, long},
		{"a pause ages nothing", []phase{{short, time.Second, 5}, {long, time.Hour, 1}}, short},
		{"keep-alives do", []phase{{short, time.Second, 5}, {long, time.Minute, 3}}, long},
		{"one low sample in a part", []phase{{long, time.Second, 70}, {short, time.Second, 1}, {long, time.Second, 30}}, short},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m leastRTT
			now := time.Unix(1e9, 0)
			for _, p := range tc.phases {
				for range p.n {
					now = now.Add(p.step)
					m.add(now, p.rtt)
				}
			}
			if got := m.value(); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestLastTrip: only what a connection measured since is a sample, and a new
// minimum between two looks is not missed.
func TestLastTrip(t *testing.T) {
	var m lastTrip
	ms := time.Millisecond
	for i, tc := range []struct {
		least, latest, smoothed time.Duration
		want                    time.Duration // 0: no sample
	}{
		{0, 0, 0, 0},
		{20 * ms, 25 * ms, 22 * ms, 20 * ms},
		{20 * ms, 25 * ms, 22 * ms, 0},
		{20 * ms, 90 * ms, 30 * ms, 90 * ms},
		{20 * ms, 90 * ms, 30 * ms, 0},
		{20 * ms, 90 * ms, 37 * ms, 90 * ms},
		{18 * ms, 90 * ms, 40 * ms, 18 * ms},
	} {
		rtt, fresh := m.next(quic.ConnectionStats{MinRTT: tc.least, LatestRTT: tc.latest, SmoothedRTT: tc.smoothed})
		if fresh != (tc.want > 0) || fresh && rtt != tc.want {
			t.Errorf("look %d: %v, %v, want %v", i, rtt, fresh, tc.want)
		}
	}
}
