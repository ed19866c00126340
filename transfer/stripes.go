package transfer

import (
	"math"
	"time"
)

const (
	// startStripes is how many connections a link begins with when nothing is
	// remembered of the path. Measured in virtual time (bench/wan, drop-tail queue
	// of one bandwidth-delay product, second transfer, share of the rate): at
	// 100 Mbit/s x 70 ms 1, 2, 4 and 8 reach the same 0.94, at 1 Gbit/s x 70 ms
	// 0.72, 0.80 to 0.85, 0.90 and 0.90; cold, four lose a third less to slow start
	// than one.
	startStripes = 4
	// farStripes is that number from a round trip of farRTT on, where slow start
	// takes longest: at 1 Gbit/s x 300 ms 4 reach 0.44 cold and 0.68 of the rate
	// warm, 8 reach 0.47 and 0.84.
	farStripes = 8
	farRTT     = 100 * time.Millisecond
	// MaxStripes bounds the connections of a link.
	MaxStripes = 64
	// windowPackets is quic-go's bound of the congestion window.
	windowPackets = 10_000
	// leastPackets is what the path should hold of each connection: with fewer, a
	// loss leaves too few acknowledgements to see it by, and connections stand still
	// until a timer runs out. At 1 Mbit/s x 100 ms, 10 packets on the path, 8
	// connections reach 0.65 of the rate, one 0.95.
	leastPackets = 32
	// crowded is the loss that shows it. At 20 Mbit/s x 20 ms, 39 packets, 8, 4 and
	// 2 connections lose 4, 1.4 and 0.4 % of theirs to the queue.
	crowded = 0.01
	// nearRTT is the round trip below which the processors, which several
	// connections share out better, and not the path bound the rate.
	nearRTT = time.Millisecond
	// windowHeadroom is how much larger than rate times round-trip time the sum of
	// the windows may become: it has to hold a queue, and loses 0.3 of itself when
	// that overflows.
	windowHeadroom = 1.5
	// worthKeeping is by how much more connections must raise the delivered rate.
	worthKeeping = 1.05
	// minHold and maxHold bound the pause after growth that did not help.
	minHold, maxHold = 10 * time.Second, 10 * time.Minute
	// shrinkAfter is the idle time after which a link goes back to the number that
	// it began with: long enough for the next turn of a session to find its
	// windows open.
	shrinkAfter = 15 * time.Minute
	// lossSeen is the loss from which on the path, and not a full queue, is taken
	// to bound the windows, and growth is by doubling.
	lossSeen = 2e-5
)

// pathSample is one look at the path of a link.
type pathSample struct {
	at      time.Time
	took    time.Duration // since the last look
	busy    bool          // meanwhile no connection of the sender lacked a chunk
	rate    float64       // delivered meanwhile, QUIC bytes a second
	packet  float64       // bytes a packet; 0: unknown
	sent    float64       // packets of the sender meanwhile
	lost    float64       // of those that it had sent; what repair hides is not in it
	loss    float64       // share lost lately while no queue stood on the path; 0 too while too few were lost to tell
	rttMin  time.Duration // least of late; 0: unknown
	rtt     time.Duration // smoothed
	stripes int           // live, those that drain not counted
}

// full reports that a queue stands on the path: the windows hold more than the
// path does, and more of them would only take from others.
func (s pathSample) full() bool {
	return s.rtt-s.rttMin > min(max(s.rttMin/16, 250*time.Microsecond), 8*time.Millisecond)
}

// stripePolicy decides how many connections a link has. It has no clock: time
// comes with the samples.
//
// Two things ask for more. The windows' bound: rate times round-trip time with
// headroom must fit windowPackets packets a connection. And Reno's own slowness:
// with no queue on the path and chunks waiting, the windows are what holds the
// rate back, by loss (n·1.22·MSS/(RTT·√p) is what n connections reach at loss p)
// or because slow start ended early; more connections are then tried, and kept if
// they raise the delivered rate, which takes a transfer of a second or more to tell.
// What does not help is taken back, and the next try is put off twice as long. A full path that holds too few packets for as many
// connections loses some.
type stripePolicy struct {
	start, most int // fixed when equal

	target   int
	hold     time.Duration
	notUntil time.Time // no growth before
	lastBusy time.Time
	trial    struct {
		from   int // connections before; 0: none runs
		before span
		ready  time.Time // the added ones have had time to be dialled and to ramp up
	}
	now    span // running, since the last change or the last one that was judged
	steady span // the last that was judged, empty after a change
}

// span adds up samples.
type span struct {
	bytes, seconds, sent, lost float64
}

func (m *span) add(s pathSample) {
	m.bytes += s.rate * s.took.Seconds()
	m.seconds += s.took.Seconds()
	m.sent += s.sent
	m.lost += s.lost
}

// rate is bytes a second, loss the share of packets lost; both 0 without samples.
func (m *span) rate() float64 { return m.bytes / max(m.seconds, 1e-9) }
func (m *span) loss() float64 { return max(m.lost, 0) / max(m.sent, 1) }

// newStripePolicy returns the policy of Config.Stripes: n connections, or, for 0,
// as many as the path needs, at first remembered (0: unknown).
func newStripePolicy(n, remembered int) stripePolicy {
	p := stripePolicy{start: n, most: n, hold: minHold}
	if n == 0 {
		p.start, p.most = startStripes, MaxStripes
	}
	p.target = min(orDefault(remembered, p.start), p.most)
	if n > 0 {
		p.target = n
	}
	return p
}

// met takes in the round trip of the first handshake.
func (p *stripePolicy) met(rtt time.Duration) int {
	if p.start < p.most && rtt >= farRTT {
		if p.target == p.start {
			p.target = farStripes
		}
		p.start = farStripes
	}
	return p.target
}

// decide returns how many connections the link should have. capacity is the most
// that the path has delivered, bytes a second, 0: unknown.
func (p *stripePolicy) decide(s pathSample, capacity float64) int {
	if p.lastBusy.IsZero() || s.rate > 0 && s.busy {
		p.lastBusy = s.at
	}
	if s.at.Sub(p.lastBusy) >= shrinkAfter {
		*p = stripePolicy{start: p.start, most: p.most, target: min(p.target, p.start), hold: minHold, lastBusy: p.lastBusy}
		return p.target
	}
	if !s.busy {
		p.now = span{} // ends and beginnings of transfers are no steady running
	}
	if p.start == p.most || !s.busy || s.rttMin <= 0 || s.rate <= 0 {
		return p.target
	}
	if s.at.Before(p.trial.ready) || s.stripes < p.target {
		return p.target
	}
	p.now.add(s)
	if p.now.seconds >= measureTime(s.rtt).Seconds() {
		p.judge(s)
	}
	if p.target == p.most || s.full() || s.at.Before(p.notUntil) {
		return p.target
	}
	need := max(windowStripes(max(capacity, s.rate), s.rttMin, s.packet), lossStripes(capacity, s))
	switch {
	case p.trial.from > 0: // one thing at a time
	case need > p.target:
		p.grow(s, min(need, 2*p.target))
	case p.steady.seconds > 0:
		p.grow(s, p.target+max(p.target/2, 1))
	}
	return p.target
}

// judge ends a span of steady running.
func (p *stripePolicy) judge(s pathSample) {
	before := p.trial.before
	p.steady, p.now = p.now, span{}
	if p.trial.from == 0 {
		if room := roomStripes(p.steady.rate(), s.rttMin, s.packet); s.full() && room < p.target && p.steady.loss() >= crowded && s.rttMin >= nearRTT {
			p.target = room
		}
		return
	}
	helped := p.steady.rate() >= worthKeeping*before.rate()
	// Losses that fall on packets alike whatever is sent are the path's own: the
	// windows may still be on their way down from slow start. Those that grow with
	// the connections are of a queue that overflows.
	random := s.rttMin >= nearRTT && before.loss() >= lossSeen && p.steady.loss() <= 1.5*before.loss()
	switch {
	case helped:
		p.hold = minHold
	case random:
		p.pause(s)
	default:
		p.target = p.trial.from
		p.pause(s)
		p.steady = span{}
	}
	p.trial.from = 0
}

// pause puts the next growth off, twice as long each time.
func (p *stripePolicy) pause(s pathSample) {
	p.notUntil = s.at.Add(p.hold)
	p.hold = min(2*p.hold, maxHold)
}

// grow tries n connections.
func (p *stripePolicy) grow(s pathSample, n int) {
	p.trial.from, p.trial.before = p.target, p.steady
	if p.steady.seconds == 0 {
		p.trial.before = p.now
	}
	p.target = min(n, p.most)
	p.trial.ready = s.at.Add(12*s.rtt + 200*time.Millisecond)
	p.now, p.steady = span{}, span{}
}

// measureTime is how long a rate is averaged before it is judged.
func measureTime(rtt time.Duration) time.Duration { return 8*rtt + 300*time.Millisecond }

// lossStripes is how many connections reach the rate at the loss of the path.
// Source: M. Mathis et al., "The macroscopic behavior of the TCP congestion
// avoidance algorithm", 1997: MSS/RTT · 1.22/√p.
func lossStripes(rate float64, s pathSample) int {
	if s.loss < lossSeen || s.packet <= 0 || s.rtt <= 0 {
		return 1
	}
	each := 1.22 * s.packet / (s.rtt.Seconds() * math.Sqrt(s.loss))
	return int(math.Ceil(min(windowHeadroom*rate/each, MaxStripes)))
}

// roomStripes is how many connections find a window on the path that Reno can
// work with.
func roomStripes(rate float64, rtt time.Duration, packet float64) int {
	if packet <= 0 {
		return MaxStripes
	}
	return int(min(max(rate*rtt.Seconds()/(leastPackets*packet), 1), MaxStripes))
}

// windowStripes is how many connections the windows' bound asks for.
func windowStripes(rate float64, rtt time.Duration, packet float64) int {
	if rate <= 0 || rtt <= 0 || packet <= 0 {
		return 1
	}
	return int(math.Ceil(min(windowHeadroom*rate*rtt.Seconds()/(windowPackets*packet), MaxStripes)))
}
