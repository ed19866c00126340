package planner

import (
	"fmt"
	"math"
	"time"
)

// Fetch prices moving every missing block over the link:
//
//	q_f + n_rtt·RTT + fixed + ramp + max(bytes·8/(ratio·rate), bytes·8/codec)
//
// rate is the goodput (measured, else the prior) held to what the connections' windows let through,
// k·window·8/RTT. q_f is the source's egress backlog at that rate, plus the modelled wait of Link.Queue. ramp is what slow
// start costs a cold link over a warm one: the windows of k connections start at k·initial window and double each round
// trip until they fill rate·RTT or the bytes run out. fixed is Link.FixedSeconds. When nothing is missing only the round
// trips and fixed are left and no goodput is needed. Header and acknowledgement overhead is within the goodput where that was measured; the window cap counts
// whole packets and is up to 5 % generous. ratio and codec are Link.CodecRatio and Link.CodecRate: pages that are coded while
// they move take as long as the slowest stage.
//
// It does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func Fetch(r Request, m Model, l Link) ModePlan {
	p := ModePlan{Mode: ModeFetch}
	if err := validate(r, m, l); err != nil {
		return p.refused(RefusalInvalidInput, "%v", err)
	}
	bytes, tail, unknown := r.wire(m)
	p.Bytes, p.Tokens = bytes, tail
	rate, capped := l.rate()
	var missing []string
	if unknown != "" {
		missing = append(missing, unknown)
	}
	if l.RTT == 0 {
		missing = append(missing, "Link.RTT")
	}
	if rate == 0 && (bytes > 0 || unknown != "") {
		missing = append(missing, "Link.Goodput (measured) or Link.PriorGoodput (configured)")
	}
	if missing != nil {
		return p.missing(missing)
	}
	n := r.roundTrips()
	rtt := Term{Name: TermRTT, Seconds: n * l.RTT.Seconds(), Note: fmt.Sprintf("%g x %v", n, l.RTT)}
	fixed := Term{Name: TermFixed, Seconds: l.FixedSeconds, Note: fixedNote(l)}
	if bytes == 0 {
		const note = "nothing to move"
		return p.priced(Term{Name: TermEgressQueue, Note: note}, Term{Name: TermFetchQueue, Note: note}, rtt, fixed,
			Term{Name: TermRamp, Note: note}, Term{Name: TermBytes, Note: note}).spread(l.Spread)
	}
	egress := Term{
		Name: TermEgressQueue, Seconds: rate.seconds(float64(l.EgressBacklog)),
		Note: backlogNote(l.BacklogKnown, l.EgressBacklog > 0),
	}
	if l.EgressBacklog > 0 {
		egress.Note = fmt.Sprintf("%v ahead in the source's queue", l.EgressBacklog)
	}
	unseen, stable := queueTerm(TermFetchQueue, 0, unseenNote(l.Queue), l.Queue)
	if !stable {
		return p.refused(RefusalUnstable, "Link.Queue has no steady state: utilization %g is not below 1", l.Queue.Utilization)
	}
	wire, moved := l.moving(bytes, rate, capped)
	return p.priced(egress, unseen, rtt, fixed, rampTerm(l, rate, wire), moved).spread(l.Spread)
}

// moving is what bytes take at the slowest stage of link and codec, and what they are on the wire.
func (l Link) moving(bytes Bytes, rate Rate, capped bool) (wire Bytes, t Term) {
	wire = bytes
	t.Name, t.Note = TermBytes, fmt.Sprintf("%v at %v", bytes, rate)
	if l.CodecRatio > 0 {
		wire = Bytes(math.Ceil(float64(bytes) / l.CodecRatio))
		t.Note = fmt.Sprintf("%v, coded %.3g:1, at %v", bytes, l.CodecRatio, rate)
	}
	t.Seconds = rate.seconds(float64(wire))
	if capped {
		t.Note += fmt.Sprintf(", window cap of %d connection(s)", max(1, l.Stripes))
	}
	if l.CodecRate == 0 {
		return wire, t
	}
	if s := l.CodecRate.seconds(float64(bytes)); s > t.Seconds {
		t.Seconds, t.Note = s, t.Note+fmt.Sprintf(", held to %v by the codec", l.CodecRate)
	}
	return wire, t
}

func fixedNote(l Link) string {
	switch {
	case l.FixedSource != "":
		return "constant cost of a migration, " + l.FixedSource
	case l.FixedSeconds > 0:
		return "constant cost of a migration"
	}
	return "constant cost of a migration unknown, not counted"
}

func unseenNote(q *MM1) string {
	if q == nil {
		return "no queue modelled"
	}
	return "unseen transfers"
}

// rampTerm is what slow start adds on a cold link.
func rampTerm(l Link, rate Rate, bytes Bytes) Term {
	t := Term{Name: TermRamp, Note: "warm"}
	if !l.Cold {
		return t
	}
	l = l.withDefaults()
	window := float64(l.Stripes) * float64(l.InitialWindowPackets) * float64(l.PacketBytes)
	seconds, rounds := slowStart(float64(bytes), window, rate, l.RTT)
	t.Seconds, t.Note = seconds, fmt.Sprintf("cold: %d round trips of slow start", rounds)
	return t
}

// slowStart returns by how much longer bytes take when the window starts at window bytes and doubles every round trip
// than at rate throughout, and how many round trips the window held the sender back. The bytes sent meanwhile are
// credited, so it is less than rounds·RTT.
func slowStart(bytes, window float64, rate Rate, rtt time.Duration) (seconds float64, rounds int) {
	fill := float64(rate) / 8 * rtt.Seconds()
	sent := 0.0
	for window < fill && sent+window < bytes {
		sent += window
		window *= 2
		rounds++
	}
	return max(0, float64(rounds)*rtt.Seconds()-rate.seconds(sent)), rounds
}

// Crossover returns the prefix length in tokens from which fetching is faster than recomputing on an idle, warm link with
// one round trip and linear prefill: RTT/(t_c − t_f), t_c and t_f being the seconds a token of prefill and of transfer.
// The link's window cap counts. ok is false when there is none, because t_c ≤ t_f, and when an input is unknown or not
// valid.
func Crossover(m Model, c Compute, l Link) (tokens float64, ok bool) {
	if validate(m, c, l) != nil || m.BytesPerToken == 0 || l.RTT == 0 {
		return 0, false
	}
	tc, missing := linearSecondsPerToken(m, c)
	rate, _ := l.rate()
	if missing != nil || rate == 0 {
		return 0, false
	}
	_, moved := l.moving(m.BytesPerToken, rate, false)
	tf := moved.Seconds
	if tc <= tf {
		return 0, false
	}
	return l.RTT.Seconds() / (tc - tf), true
}
