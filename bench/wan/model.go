package wan

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Overhead is what a UDP payload grows by on the link, in bytes: an IPv4 and a
// UDP header.
const Overhead = 28

// DefaultMTU is the MTU of a Model that names none, in bytes of IP packet.
const DefaultMTU = 1500

// minQueuePackets is the least depth, in full-size packets, of a queue that is
// sized from the bandwidth-delay product.
const minQueuePackets = 20

// A Model describes one direction of a link. The zero Model is a perfect link:
// no delay, no rate limit, no loss, MTU 1500.
type Model struct {
	// RTT is the two-way propagation delay, 0 to one hour; each direction adds
	// half of it.
	RTT time.Duration
	// Rate is the bottleneck in bit/s, counted over payload plus Overhead.
	// Zero is unlimited.
	Rate float64
	// Jitter is the width of the uniform delay added to each packet, 0 to one
	// hour. Packets are not reordered: a packet waits for those before it.
	Jitter time.Duration
	// QueueBytes bounds the bytes accepted but not yet serialised. Zero is one
	// bandwidth-delay product (875,000 bytes at 100 Mbit/s and 70 ms), at least
	// 20 packets of the MTU; negative is unlimited. Without a Rate nothing
	// queues.
	QueueBytes int64
	// Loss is the independent loss probability of a packet, 0 to 1.
	Loss float64
	// Burst adds bursty loss; nil is none. In its good state Loss applies.
	Burst *GilbertElliott
	// Seed seeds loss and jitter. The directed links of a network that share a
	// Model still draw independently: the link's name is mixed in.
	Seed uint64
	// MTU is the largest packet carried, payload plus Overhead, in bytes.
	// Larger ones vanish, as on a path that drops what it may not fragment.
	// Zero is 1500, negative is unlimited.
	MTU int
}

// GilbertElliott is the two-state burst loss model. The state moves once a
// packet, before the packet is judged; links start in the good state. With
// LossBad 1 a burst has a mean of 1/PBadToGood packets and the share of time in
// the bad state is PGoodToBad/(PGoodToBad+PBadToGood).
//
// Source: E. N. Gilbert, "Capacity of a burst-noise channel", 1960; E. O.
// Elliott, "Estimates of error rates for codes on burst-noise channels", 1963.
type GilbertElliott struct {
	PGoodToBad float64 // probability, above 0, at most 1
	PBadToGood float64 // probability, above 0, at most 1
	LossBad    float64 // loss probability in the bad state, at most 1; zero is 1, negative is none
}

const maxDelay = time.Hour

// Validate reports every field that is out of range, joined.
func (m Model) Validate() error {
	var errs []error
	bad := func(field string, got any, want string) {
		errs = append(errs, fmt.Errorf("wan: %s %v: want %s", field, got, want))
	}
	if m.RTT < 0 || m.RTT > maxDelay {
		bad("rtt", m.RTT, "0 to 1h, as in rtt=70ms")
	}
	if m.Jitter < 0 || m.Jitter > maxDelay {
		bad("jitter", m.Jitter, "0 to 1h, as in jitter=1ms")
	}
	if !(m.Rate >= 0) || m.Rate > 1e15 || (m.Rate > 0 && m.Rate < 1) {
		bad("rate", m.Rate, "1 bps to 1e15 bps, or 0 for no limit, as in rate=100Mbps")
	}
	if !isProbability(m.Loss) {
		bad("loss", m.Loss, "a probability from 0 to 1, as in loss=0.001")
	}
	if b := m.Burst; b != nil {
		if !(b.PGoodToBad > 0) || b.PGoodToBad > 1 {
			bad("burst good-to-bad probability", b.PGoodToBad, "above 0, at most 1, as in burst=0.001/0.25")
		}
		if !(b.PBadToGood > 0) || b.PBadToGood > 1 {
			bad("burst bad-to-good probability", b.PBadToGood, "above 0, at most 1, as in burst=0.001/0.25")
		}
		if math.IsNaN(b.LossBad) || math.IsInf(b.LossBad, 0) || b.LossBad > 1 {
			bad("burst bad-state loss", b.LossBad, "at most 1, as in burst=0.001/0.25/0.8")
		}
	}
	if m.MTU > 0 && m.MTU <= Overhead {
		bad("mtu", m.MTU, fmt.Sprintf("above %d bytes, as in mtu=1500", Overhead))
	}
	return errors.Join(errs...)
}

func isProbability(p float64) bool { return p >= 0 && p <= 1 }

// BDP is the bandwidth-delay product in bytes, zero without a rate.
func (m Model) BDP() int64 {
	return int64(math.Ceil(m.Rate * float64(m.RTT) / 8e9))
}

// withDefaults resolves zero and negative values: afterwards MTU and
// QueueBytes are limits, math.MaxInt meaning none.
func (m Model) withDefaults() Model {
	switch {
	case m.MTU == 0:
		m.MTU = DefaultMTU
	case m.MTU < 0:
		m.MTU = math.MaxInt
	}
	switch {
	case m.QueueBytes < 0:
		m.QueueBytes = math.MaxInt64
	case m.QueueBytes == 0:
		mtu := int64(DefaultMTU)
		if m.MTU < math.MaxInt {
			mtu = int64(m.MTU)
		}
		m.QueueBytes = max(m.BDP(), minQueuePackets*mtu)
	}
	if m.Burst != nil {
		b := *m.Burst
		switch {
		case b.LossBad == 0:
			b.LossBad = 1
		case b.LossBad < 0:
			b.LossBad = 0
		}
		m.Burst = &b
	}
	return m
}
