package planner

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Fetch prices moving every missing block over the link:
//
//	q_f + n_rtt·RTT + fixed + ramp + bytes + codec
//	bytes = bytes·8/(ratio·rate)
//	codec = max(0, bytes·8/codec rate − bytes)
//
// rate is the goodput (measured, else the prior) held to what the connections' windows let through,
// k·window·8/RTT. q_f is the time that the source's egress backlog takes, coded like these pages, plus the modelled wait of Link.Queue. ramp is what slow
// start costs a cold link over a warm one: the windows of k connections start at k·initial window and double each round
// trip until they fill rate·RTT or the bytes run out. fixed is Link.FixedSeconds. When nothing is missing only the round
// trips and fixed are left and no goodput is needed. Header and acknowledgement overhead is within the goodput where that was measured; the window cap counts
// whole packets and is up to 5 % generous. ratio and codec rate are Link.CodecRatio and Link.CodecRate: pages that are coded
// while they move take as long as the slowest stage, so the codec's term is what the link does not hide. A plan has none where
// pages go raw.
//
// It does not return errors: a plan whose inputs are unknown or not valid is not priced and says so. Nil Terms then.
func Fetch(r Request, m Model, l Link) ModePlan {
	if err := errors.Join(r.Validate(), m.Validate(), l.Validate()); err != nil {
		return invalid(ModeFetch, err)
	}
	p := priceFetch(&r, &m, &l)
	return describeFetch(&p, &r, &m, &l)
}

// priceFetch prices valid inputs.
func priceFetch(r *Request, m *Model, l *Link) Price {
	p := Price{Mode: ModeFetch}
	var unknown string
	p.Bytes, p.Tokens, unknown = r.wire(m)
	rate, _ := l.rate()
	if unknown != "" || l.RTT == 0 || rate == 0 && p.Bytes > 0 {
		p.refuse(RefusalMissingInput)
		return p
	}
	rtt := r.roundTrips() * l.RTT.Seconds()
	if p.Bytes == 0 {
		p.price(0, 0, rtt, l.FixedSeconds, 0, 0, 0)
		p.spread(l.spread())
		return p
	}
	wire, moved := l.moving(p.Bytes, rate)
	wait, stable := l.Queue.wait(moved)
	if !stable {
		p.refuse(RefusalUnstable)
		return p
	}
	ramp, _ := l.ramp(rate, wire)
	_, ahead := l.moving(l.EgressBacklog, rate)
	p.price(ahead, wait, rtt, l.FixedSeconds, ramp, rate.seconds(float64(wire)), max(0, moved-rate.seconds(float64(wire))))
	p.spread(l.spread())
	return p
}

// describeFetch is p in words.
func describeFetch(p *Price, r *Request, m *Model, l *Link) ModePlan {
	if !p.Priced {
		out := p.plan()
		switch p.Refusal { //nolint:exhaustive // those that pricing gives
		case RefusalMissingInput:
			out.Reason = unknown(l.missing(r, m))
		case RefusalUnstable:
			out.Reason = unstable("Link.Queue", l.Queue)
		}
		return out
	}
	rtt := fmt.Sprintf("%g x %v", r.roundTrips(), l.RTT)
	if p.Bytes == 0 {
		const none = "nothing to move"
		return p.plan(none, none, rtt, fixedNote(l), none, none, "")
	}
	rate, _ := l.rate()
	egress := backlogNote(l.BacklogKnown, l.EgressBacklog > 0)
	if l.EgressBacklog > 0 {
		egress = fmt.Sprintf("%v ahead in the source's queue", l.EgressBacklog)
	}
	ramp := "warm"
	if l.Cold {
		wire, _ := l.moving(p.Bytes, rate)
		_, rounds := l.ramp(rate, wire)
		ramp = fmt.Sprintf("cold: %d round trips of slow start", rounds)
	}
	return p.plan(egress, unseenNote(l.Queue)+l.Queue.note(), rtt, fixedNote(l), ramp, l.movingNote(p.Bytes), l.codecNote(p.Terms[atCodec]))
}

// missing names the inputs that fetch lacks.
func (l *Link) missing(r *Request, m *Model) []string {
	var missing []string
	bytes, _, unknown := r.wire(m)
	if unknown != "" {
		missing = append(missing, unknown)
	}
	if l.RTT == 0 {
		missing = append(missing, "Link.RTT")
	}
	if rate, _ := l.rate(); rate == 0 && (bytes > 0 || unknown != "") {
		missing = append(missing, "Link.Goodput (measured) or Link.PriorGoodput (configured)")
	}
	return missing
}

// moving is what bytes are on the wire, and what they take at the slowest stage of link and codec.
func (l *Link) moving(bytes Bytes, rate Rate) (wire Bytes, seconds float64) {
	wire = bytes
	if l.CodecRatio > 0 {
		wire = Bytes(math.Ceil(float64(bytes) / l.CodecRatio))
	}
	seconds = rate.seconds(float64(wire))
	if l.CodecRate > 0 {
		seconds = max(seconds, l.CodecRate.seconds(float64(bytes)))
	}
	return wire, seconds
}

// movingNote says what is moved at which rate.
func (l *Link) movingNote(bytes Bytes) string {
	rate, capped := l.rate()
	note := fmt.Sprintf("%v at %v", bytes, rate)
	if l.CodecRatio > 0 {
		note = fmt.Sprintf("%v, coded %.3g:1, at %v", bytes, l.CodecRatio, rate)
	}
	if capped {
		note += fmt.Sprintf(", window cap of %d connection(s)", max(1, l.Stripes))
	}
	return note
}

// codecNote says what a codec that takes so many seconds more than the link is; nothing where pages go raw.
func (l *Link) codecNote(seconds float64) string {
	switch {
	case seconds > 0:
		return fmt.Sprintf("held to %v by the codec", l.CodecRate)
	case l.CodecRate > 0:
		return fmt.Sprintf("the codec's %v is no less than the link's", l.CodecRate)
	case l.CodecRatio > 0:
		return "the codec's rate is unknown, not counted"
	}
	return ""
}

func fixedNote(l *Link) string {
	switch {
	case l.FixedSource != "":
		return "constant cost of a migration, " + l.FixedSource
	case l.FixedSeconds > 0:
		return "constant cost of a migration"
	}
	return "constant cost of a migration unknown, not counted"
}

func unseenNote(q *Queue) string {
	if q == nil {
		return "no queue modelled"
	}
	return "unseen transfers"
}

// ramp is what slow start adds for so many bytes on the wire, and its round trips; none on a warm link.
func (l *Link) ramp(rate Rate, wire Bytes) (seconds float64, rounds int) {
	if !l.Cold {
		return 0, 0
	}
	window, _ := l.windows()
	return slowStart(float64(wire), window, rate, l.RTT)
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
	if errors.Join(m.Validate(), c.Validate(), l.Validate()) != nil || m.BytesPerToken == 0 || l.RTT == 0 {
		return 0, false
	}
	tc, known := c.perToken(&m)
	rate, _ := l.rate()
	if !known || rate == 0 {
		return 0, false
	}
	_, tf := l.moving(m.BytesPerToken, rate)
	if tc <= tf {
		return 0, false
	}
	return l.RTT.Seconds() / (tc - tf), true
}
