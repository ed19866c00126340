package planner

import (
	"fmt"
	"time"
)

// Defaults of [Link].
const (
	DefaultWindowPackets        = 10_000 // quic-go's largest congestion window, in packets
	DefaultPacketBytes          = 1_280  // quic-go's packet before MTU discovery raises it, up to 1,452
	DefaultInitialWindowPackets = 32     // quic-go's first congestion window, in packets
	DefaultRoundTrips           = 3      // offer, request to first byte, hand-over
)

// DefaultMaxAge is the age beyond which a measurement of a link or a replica counts as unknown. The bandwidth between virtual
// machines over a provider's backbone is stable over hours (Lai et al., HotCloud '18); over ten months 41 % of the pairs of
// Skyplane's grid changed by more than a quarter.
const DefaultMaxAge = 24 * time.Hour

// Link is the directed path from the source to the destination, all its connections together.
type Link struct {
	// RTT is the round-trip time of the path without its queues: the least that was seen lately, since what waits ahead is
	// priced by EgressBacklog and Queue. Zero: unknown, and whatever needs it is not priced.
	RTT time.Duration
	// FixedSeconds is what a migration takes besides its round trips and its bytes, in seconds: records that are synced,
	// slots that are reserved, calls between processes. Zero: none is charged.
	FixedSeconds float64
	// FixedSource says where FixedSeconds comes from ("median of 12 migrations"). It is quoted in the term's note.
	FixedSource string
	// Spread is the standard deviation of a fetch's time over its expectation, 0.1 for 10 %. Zero: not known.
	Spread float64
	// Goodput is the measured payload rate of the link in bits a second, as one transfer would get it. Zero: not
	// measured, PriorGoodput is used.
	Goodput Rate
	// PriorGoodput is the configured guess for a link that was not measured, in bits a second. Zero: none.
	PriorGoodput Rate
	// CodecRatio is raw bytes over coded ones where pages are coded for the link without loss, 1 or more. Zero: they go raw.
	CodecRatio float64
	// CodecRate is what the slower end codes or decodes, raw bits a second, while the link carries what came before. Zero: no bound.
	CodecRate Rate
	// Age is how long ago Goodput was measured; Decision.LinkSource quotes it.
	Age time.Duration
	// MaxAge is the age beyond which Goodput and Spread count as unknown. Zero: [DefaultMaxAge]; negative: no age is too old.
	MaxAge time.Duration
	// Source says how Goodput was measured or who configured the prior. It is quoted in Decision.LinkSource.
	Source string
	// Stripes is k, the number of connections. Zero: 1.
	Stripes int
	// WindowPackets caps the congestion window of each connection, in packets of PacketBytes. Zero:
	// [DefaultWindowPackets]; negative: no cap. At 1,452 B and 70 ms 10,000 packets are 1.66 Gbps a connection, at
	// 150 ms 0.77.
	WindowPackets int
	// PacketBytes is the size of one packet. Zero: [DefaultPacketBytes].
	PacketBytes int
	// Cold says that the connections start from their initial window, so that a transfer pays the slow start's ramp.
	Cold bool
	// InitialWindowPackets is the first congestion window of each connection, in packets. Zero:
	// [DefaultInitialWindowPackets].
	InitialWindowPackets int
	// EgressBacklog is what the source's ticket says is queued on this link ahead of this transfer, in bytes of pages. They are
	// taken to be coded as this transfer's are.
	EgressBacklog Bytes
	// BacklogKnown says that the source was asked, so that 0 means an empty queue and not an unknown one. It changes
	// the note of the term, not the price.
	BacklogKnown bool
	// Queue models transfers that no ticket covers; its wait adds to the backlog's. Nil: none.
	Queue *Queue
}

// Validate joins one [InputError] a fault, nil when there is none. Unknown (zero) fields are valid.
func (l Link) Validate() error {
	var f faults
	f.duration("Link.RTT", l.RTT, "give the round-trip time, or 0 if unknown")
	f.float("Link.FixedSeconds", l.FixedSeconds, 0, maxSeconds, "give seconds, or 0")
	f.float("Link.Spread", l.Spread, minSpread, maxSpread, "give a standard deviation over its mean (0.1 for 10 %), or 0 if not known")
	f.float("Link.Goodput", float64(l.Goodput), 1, maxRate, "give bits a second (5e9 for 5 Gbps), or 0 if not measured")
	f.float("Link.PriorGoodput", float64(l.PriorGoodput), 1, maxRate, "give bits a second, or 0 for no prior")
	f.float("Link.CodecRatio", l.CodecRatio, 1, 1e6, "give raw bytes over coded ones, or 0 for raw pages")
	f.float("Link.CodecRate", float64(l.CodecRate), 1, maxRate, "give raw bits a second, or 0 for no bound")
	f.duration("Link.Age", l.Age, "give the age of the measurement")
	f.integer("Link.Stripes", int64(l.Stripes), 0, maxCount, "give the number of connections, or 0 for 1")
	f.integer("Link.WindowPackets", int64(l.WindowPackets), -1<<31, maxTokens, "give packets, 0 for the default, or a negative number for no cap")
	f.integer("Link.PacketBytes", int64(l.PacketBytes), 0, 65_535, "give bytes a packet, or 0 for the default")
	f.integer("Link.InitialWindowPackets", int64(l.InitialWindowPackets), 0, maxTokens, "give packets, or 0 for the default")
	f.integer("Link.EgressBacklog", int64(l.EgressBacklog), 0, maxBytes, "give the bytes queued ahead, or 0")
	l.Queue.validate(&f, "Link.Queue")
	return f.join()
}

// fresh says that a measurement of that age counts.
func fresh(age, maxAge time.Duration) bool {
	if maxAge == 0 {
		maxAge = DefaultMaxAge
	}
	return maxAge < 0 || age <= maxAge
}

// measured says that Goodput is there and not too old.
func (l *Link) measured() bool { return l.Goodput > 0 && fresh(l.Age, l.MaxAge) }

// goodput is the measured rate, else the prior; 0 if neither is there.
func (l *Link) goodput() Rate {
	if l.measured() {
		return l.Goodput
	}
	return l.PriorGoodput
}

// spread is the relative spread of a fetch; 0: not known. That of a measurement too old goes with it.
func (l *Link) spread() float64 {
	if l.Goodput > 0 && !l.measured() {
		return 0
	}
	return l.Spread
}

// windows is what the connections may have in flight together, in bytes: at first, and at most (negative: no cap).
func (l *Link) windows() (initial, most float64) {
	k := float64(or(l.Stripes, 1)) * float64(or(l.PacketBytes, DefaultPacketBytes))
	return k * float64(or(l.InitialWindowPackets, DefaultInitialWindowPackets)), k * float64(or(l.WindowPackets, DefaultWindowPackets))
}

func or(v, zero int) int {
	if v == 0 {
		return zero
	}
	return v
}

// rate is what one transfer gets: goodput, held down by what the connections' windows let through. 0 if unknown.
func (l *Link) rate() (r Rate, capped bool) {
	r = l.goodput()
	_, window := l.windows()
	if window < 0 || l.RTT <= 0 {
		return r, false
	}
	if limit := Rate(8 * window / l.RTT.Seconds()); limit < r {
		return limit, true
	}
	return r, false
}

// source says where the goodput comes from.
func (l *Link) source() string {
	var s string
	switch {
	case l.measured():
		s = fmt.Sprintf("measured %v ago", l.Age.Round(time.Millisecond))
	case l.PriorGoodput > 0:
		s = fmt.Sprintf("prior: configured %v, not measured", l.PriorGoodput)
	default:
		s = "unknown: not measured, no prior configured"
	}
	switch {
	case l.Goodput > 0 && !l.measured():
		return s + fmt.Sprintf("; what was measured %v ago is too old", l.Age.Round(time.Second))
	case l.Source != "" && l.goodput() > 0:
		return s + " (" + l.Source + ")"
	}
	return s
}
