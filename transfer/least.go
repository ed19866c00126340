package transfer

import (
	"time"

	"github.com/quic-go/quic-go"
)

const (
	// leastEvery is the time that one part of leastRTT spans, and leastParts their
	// number. A path that became longer is known as such after all of them.
	leastEvery = 20 * time.Second
	leastParts = 3
)

// leastRTT is the least round trip of late. Time without samples does not age it.
type leastRTT struct {
	began time.Time                 // the running part
	parts [leastParts]time.Duration // the running one first; 0: none yet
}

// add takes a sample in.
func (m *leastRTT) add(now time.Time, rtt time.Duration) {
	if rtt <= 0 {
		return
	}
	if now.Sub(m.began) >= leastEvery {
		copy(m.parts[1:], m.parts[:])
		m.began, m.parts[0] = now, rtt
	}
	m.parts[0] = min(m.parts[0], rtt)
}

// value returns the least, 0: no sample yet.
func (m *leastRTT) value() time.Duration {
	least := m.parts[0]
	for _, p := range m.parts {
		if p > 0 {
			least = min(least, p)
		}
	}
	return least
}

// lastTrip is what a connection said of its round trip at the last look.
type lastTrip struct{ least, latest, smoothed, deviation time.Duration }

// next returns the connection's newest round trip; fresh: there was one since the
// last look. Without one a round trip through a full queue would count for ever.
func (m *lastTrip) next(c quic.ConnectionStats) (rtt time.Duration, fresh bool) {
	was := *m
	*m = lastTrip{c.MinRTT, c.LatestRTT, c.SmoothedRTT, c.MeanDeviation}
	if m.least != was.least { // lower, or a new connection or path
		return m.least, m.least > 0
	}
	return m.latest, *m != was
}
