package hybrid

import (
	"math"
	"time"
)

// How the fetch asks, as daemons do it.
const (
	windowTrips  = 2                     // round trips of the link's rate that are in flight
	leastWindow  = 20 * time.Millisecond // of the rate, at least
	unitsAWindow = 8                     // transfers a window is cut into
	mostUnit     = 4 << 20               // bytes of one, but for a single block
	leastSpan    = 50 * time.Millisecond // over which a rate is measured, at least
	leastInAir   = 2                     // transfers that are in flight whatever the window
	claimSeconds = 100e-6                // from a claim to its answer, a call within the host
	pollSeconds  = 5e-3                  // a front that is granted nothing asks again so late
)

// draw is one migration: what is true of it, and what is believed.
type draw struct {
	cum        []float64 // cum[k]: seconds of prefill for the first k blocks
	blockBytes float64   // on the wire
	rtt        float64   // seconds
	lead       float64   // when the first byte lands: the round trips
	rate       float64   // bytes a second that the link gives
	believed   float64   // and those that past transfers on it gave
	want       int       // blocks that a claim asks for
	claim      float64   // seconds from a claim to its answer
}

// outcome is how a migration went.
type outcome struct {
	seconds   float64
	front     int     // blocks prefilled
	duplicate float64 // bytes that landed of blocks that the front had taken over
	takeovers int
}

// unit is a run of blocks that one transfer brings: first and end count blocks, start and finish say when its bytes land.
type unit struct {
	first, end    int
	start, finish float64
}

// meeting simulates one hybrid, block by block: the front prefills what its claims are granted; the fetch asks for units from the back
// in a window of two bandwidth-delay products by what it believes of the link; a claim takes a late unit over, whose bytes still come
// for a round trip. It is reused from draw to draw.
type meeting struct {
	d        draw
	computed int // by the front
	granted  int
	frontier int    // blocks from it on were asked for
	units    []unit // that were asked for, from the back to the front, as they land
	head     int    // units before it have landed
	free     float64
	out      outcome

	// The meter of what lands: marks a span apart.
	from, mark           float64
	fromBytes, markBytes float64
	metered              bool
	landed               float64 // bytes of units before head
}

// run simulates d.
func (m *meeting) run(d draw) outcome {
	n := len(d.cum) - 1
	*m = meeting{d: d, frontier: n, units: m.units[:0]}
	asks := d.lead - d.rtt // when the fetch asks first: its bytes land a round trip later
	now := 0.0             // of the front
	for now < asks && m.computed < n {
		now = m.compute(now, m.soon(now, asks))
	}
	m.granted, m.free = m.computed, d.lead
	m.ask(asks)
	for m.computed < m.frontier || m.head < len(m.units) {
		next := math.Inf(1)
		if m.head < len(m.units) {
			next = m.units[m.head].finish
		}
		switch {
		case m.computed == n || next <= now:
			m.land(next)
			now = max(now, next)
		case m.computed < m.frontier:
			now = m.claim(now)
		default:
			now = m.takeOver(now, next)
		}
	}
	m.out.seconds = max(now, m.lastLanding())
	m.out.front = m.computed
	return m.out
}

// soon is up to where the front is granted before there is a plan: what it wants, but no more than it prefills until then.
func (m *meeting) soon(now, plan float64) int {
	until := m.computed + 1
	most := min(len(m.d.cum)-1, m.computed+m.d.want)
	for until < most && m.d.cum[until]-m.d.cum[m.computed] < plan-now {
		until++
	}
	return until
}

// lastLanding is when the last unit landed.
func (m *meeting) lastLanding() float64 {
	if len(m.units) == 0 {
		return 0
	}
	return m.units[len(m.units)-1].finish
}

// compute prefills up to a block, from now on, and says when that is done.
func (m *meeting) compute(now float64, until int) float64 {
	now += m.d.claim + m.d.cum[until] - m.d.cum[m.computed]
	m.computed = until
	m.granted = max(m.granted, until)
	return now
}

// land takes in that the next unit has landed, and asks for more.
func (m *meeting) land(now float64) {
	u := m.units[m.head]
	m.landed += float64(u.end-u.first) * m.d.blockBytes
	m.head++
	m.ask(now)
}

// inAir is the bytes that have been asked for and have not landed.
func (m *meeting) inAir(now float64) float64 {
	if m.head == len(m.units) {
		return 0
	}
	asked := float64(m.units[m.head].end-m.frontier) * m.d.blockBytes
	return asked - m.partly(now)
}

// partly is what has landed of the next unit.
func (m *meeting) partly(now float64) float64 {
	if m.head == len(m.units) {
		return 0
	}
	u := m.units[m.head]
	return min(max(0, now-u.start)*m.d.rate, float64(u.end-u.first)*m.d.blockBytes)
}

// measured is the rate at which bytes land, by the last span or two; ok is false until a span has passed since the first did.
func (m *meeting) measured(now float64) (rate float64, ok bool) {
	bytes := m.landed + m.partly(now)
	span := max(windowTrips*m.d.rtt, leastSpan.Seconds())
	switch {
	case bytes == 0:
		return 0, false
	case m.mark == 0:
		m.mark, m.markBytes = now, bytes
	case now-m.mark >= span:
		m.from, m.fromBytes, m.mark, m.markBytes, m.metered = m.mark, m.markBytes, now, bytes, true
	}
	if !m.metered {
		return 0, false
	}
	return (bytes - m.fromBytes) / (now - m.from), true
}

// speed is the link's rate as far as it is known.
func (m *meeting) speed(now float64) float64 {
	if rate, ok := m.measured(now); ok {
		return rate
	}
	return m.d.believed
}

// ask fills the window from the back.
func (m *meeting) ask(now float64) {
	rate, _ := m.measured(now)
	window := max(m.d.believed, rate) * max(windowTrips*m.d.rtt, leastWindow.Seconds())
	blocks := max(1, int(min(window/unitsAWindow, mostUnit)/m.d.blockBytes))
	for m.frontier > m.granted && (len(m.units)-m.head < leastInAir || m.inAir(now) < window) {
		u := unit{first: max(m.granted, m.frontier-blocks), end: m.frontier}
		u.start = max(m.free, now+m.d.rtt)
		u.finish = u.start + float64(u.end-u.first)*m.d.blockBytes/m.d.rate
		m.free, m.frontier = u.finish, u.first
		m.units = append(m.units, u)
	}
}

// claim grants the front its share of what nobody has: no more than it prefills while the link brings the rest.
func (m *meeting) claim(now float64) float64 {
	gap := m.frontier - m.computed
	share := min(m.d.want, gap)
	link := m.d.blockBytes / m.speed(now)
	block := m.d.cum[m.computed+1] - m.d.cum[m.computed]
	share = max(1, min(share, int(math.Round(float64(gap)*link/(link+block)))))
	m.granted = max(m.granted, m.computed+share)
	m.ask(now)
	return m.compute(now, m.computed+share)
}

// takeOver has the front prefill what it asks for and the fetch has asked for already, if that is sooner than its landing by what is
// known, the round trips before the first byte with it: units from the front on, as many as a claim wants. If it is not, the front asks again in a while, or when a unit has landed. What
// comes of a cancelled unit within the round trip until the source has stopped, is a duplicate.
func (m *meeting) takeOver(now, next float64) float64 {
	until := m.computed
	for len(m.units) > m.head && until-m.computed < m.d.want {
		u := m.units[len(m.units)-1]
		compute := m.d.cum[u.end] - m.d.cum[m.computed]
		if max(0, m.d.lead-now)+m.inAir(now)/m.speed(now) <= compute {
			break
		}
		came := min(max(0, now+m.d.rtt-u.start)*m.d.rate, float64(u.end-u.first)*m.d.blockBytes)
		m.out.duplicate += came
		m.out.takeovers++
		m.units = m.units[:len(m.units)-1]
		m.frontier, until = u.end, u.end
	}
	if until == m.computed {
		return min(next, now+pollSeconds)
	}
	return m.compute(now, until)
}
