package repair

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// cleanAtFirst is after how many packets without loss repair goes off, and
	// cleanAtMost how many after it had to come back several times.
	cleanAtFirst, cleanAtMost = 1e5, 1.6e6
	// slowWindow and fastWindow are packets over which a loss rate is taken.
	slowWindow, fastWindow = 4e5, 2e4
	// knownClean packets without loss show that what a full queue drops is all that is lost.
	knownClean = 2e4
	fastLosses = 5 // that make the fast window count
	fastPrior  = 1000
	// settle is how long a path counts as unknown once its queue has built: slow start
	// ends by overflowing it, and until then little else was learnt.
	settle      = 500 * time.Millisecond
	coldPackets = 2e5
	prior       = 1e4
	// clumpLosses are what a judgement of bursts needs.
	clumpLosses = 30
	// baseAge is how long the least RTT counts, half to whole.
	baseAge = 150 * time.Second
	topAge  = 10 * time.Second
	// deepQueue is how far up between the least and the largest RTT the queue counts as full.
	deepQueue = 0.5
	// peakPeriods, of peakPeriod or a round trip, are what the peaks of a shallow queue
	// are ranked among, and shallowShare is the share of them, the lowest, in which losses count.
	peakPeriods  = 64
	peakPeriod   = 80 * time.Millisecond
	shallowShare = 0.25
	// leak is how much of the loss rate of the other peaks is found at the lowest ones
	// all the same: reports come later than RTTs.
	leak = 0.125
)

// An Estimator learns from the sessions that share a path what it loses. Losses
// count only while the path's queue is not near full, as its RTT tells: what a full
// queue drops is QUIC's to see and to back off from. Safe for concurrent use.
type Estimator struct {
	mu struct {
		sync.Mutex
		gate     gate
		low, all rate
		high     rate      // while a shallow queue was not at its lowest
		warm     bool      // slow start is over, or enough was sent
		fullAt   time.Time // when a queue was seen first
		off      bool
		wasOff   bool
		clean    float64 // packets since the last loss that counts
		target   float64 // of clean, to go off

		depth                 int
		groups, lost, squares float64 // since the depth changed, decayed
		spread                float64 // losses since then
		spreadTarget          float64 // of spread, to try less depth
		fitLoss, fitClump     float64 // what advice said last
	}
}

// NewEstimator returns one for one path in one direction: the sessions of a link.
func NewEstimator() *Estimator {
	e := new(Estimator)
	e.mu.target = cleanAtFirst
	e.mu.depth, e.mu.spreadTarget = 1, 1000
	return e
}

// rate is a loss rate over two windows.
type rate struct{ slow, fast window }

type window struct{ packets, lost float64 }

func (w *window) add(packets, lost, size float64) {
	w.packets += packets
	w.lost += lost
	if w.packets > size {
		w.packets, w.lost = w.packets/2, w.lost/2
	}
}

// less is what was lost without what belongs to the time of high.
func (w *window) less(high window) float64 {
	if high.packets == 0 {
		return w.lost
	}
	return max(0, w.lost-leak*w.packets*high.lost/high.packets)
}

func (r *rate) add(packets, lost float64) {
	r.slow.add(packets, lost, slowWindow)
	r.fast.add(packets, lost, fastWindow)
}

// value begins at 1e-4 and leans on that less the more losses there are. high is the
// rate while a shallow queue was fuller.
func (r *rate) value(high *rate) float64 {
	slow, fast := r.slow.less(high.slow), r.fast.less(high.fast)
	v := (slow + 1) / (r.slow.packets + prior/(1+slow))
	if fast >= fastLosses {
		v = max(v, fast/(r.fast.packets+fastPrior))
	}
	return min(v, 0.5)
}

// gate tells from the RTT whether the queue of the path is near full.
type gate struct {
	base, baseNext time.Duration // least RTT of this and of the next period
	baseAt         time.Time
	top            float64       // largest RTT, decaying towards the last, ns
	recent, before time.Duration // largest of this and of the last short period
	recentAt, at   time.Time

	peak, peakBefore time.Duration // largest single RTT of this and of the last short period
	peakAt           time.Time
	peaks            [peakPeriods]time.Duration // larger of two periods in a row, lately
	peaksN           int
	calm             time.Duration // the lowest shallowShare of peaks are at most this
}

// single takes an RTT that nothing has smoothed: a shallow queue is too short-lived to
// move the average, and its largest tells when it was full.
func (g *gate) single(now time.Time, rtt, least time.Duration) {
	if rtt <= 0 {
		return
	}
	if now.Sub(g.peakAt) > max(peakPeriod, least) {
		if g.peakBefore > 0 {
			g.peaks[g.peaksN%peakPeriods] = max(g.peak, g.peakBefore)
			g.peaksN++
			sorted := g.peaks
			n := min(g.peaksN, peakPeriods)
			slices.Sort(sorted[:n])
			g.calm = sorted[int(shallowShare*float64(n))]
		}
		g.peakBefore, g.peak, g.peakAt = g.peak, 0, now
	}
	g.peak = max(g.peak, rtt)
}

func (g *gate) add(now time.Time, rtt, least time.Duration) {
	if rtt <= 0 {
		return
	}
	if least <= 0 || least > rtt {
		least = rtt
	}
	if g.baseAt.IsZero() {
		g.base, g.baseNext, g.baseAt = least, rtt, now
	}
	if now.Sub(g.baseAt) > baseAge {
		g.base, g.baseNext, g.baseAt = g.baseNext, rtt, now
	}
	g.base, g.baseNext = min(g.base, rtt), min(g.baseNext, rtt)
	if !g.at.IsZero() {
		g.top -= (g.top - float64(rtt)) * (1 - math.Exp(-now.Sub(g.at).Seconds()/topAge.Seconds()))
	}
	g.top, g.at = max(g.top, float64(rtt)), now
	if now.Sub(g.recentAt) > max(200*time.Millisecond, 2*rtt) {
		g.before, g.recent, g.recentAt = g.recent, 0, now
	}
	g.recent = max(g.recent, rtt)
}

// queued says that there is a queue: noise, an eighth of the least RTT or 5 ms, is none.
func (g *gate) queued() bool {
	return max(g.recent, g.before) > g.base+max(g.base/8, 5*time.Millisecond)
}

// low says that the queue has not been near full lately: a deep one by how far up it
// is, a shallow one by the rank of its peak.
func (g *gate) low() bool {
	if !g.queued() {
		return g.calm == 0 || max(g.peak, g.peakBefore) <= g.calm
	}
	base := float64(g.base)
	return float64(max(g.recent, g.before)) < base+deepQueue*(g.top-base)
}

// path takes what QUIC knows: RTTs, smoothed, last and least, and what it sent and lost since the last time
// without parity, 0 with it. Losses that it sees bring repair back.
func (e *Estimator) path(now time.Time, rtt, latest, least time.Duration, sent, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		if sent > 0 && e.mu.gate.low() {
			e.mu.low.add(float64(sent), float64(min(lost, sent)))
			e.mu.all.add(float64(sent), float64(min(lost, sent)))
		}
	}()
	e.mu.gate.add(now, rtt, least)
	e.mu.gate.single(now, latest, least)
	switch {
	case e.mu.warm || rtt <= 0:
	case e.mu.fullAt.IsZero() && e.mu.gate.queued():
		e.mu.fullAt = now
	case !e.mu.fullAt.IsZero() && now.Sub(e.mu.fullAt) > settle:
		e.mu.warm = true
	}
	if !e.mu.off || lost == 0 || !e.mu.gate.low() {
		return
	}
	e.mu.off = false
	e.mu.clean = 0
	e.mu.target = min(2*e.mu.target, cleanAtMost)
	e.mu.low, e.mu.high, e.mu.all = rate{}, rate{}, rate{}
}

// add takes what a report says of the groups since the last one.
func (e *Estimator) add(d report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	packets, lost := float64(d.packets), float64(d.lost)
	e.mu.all.add(packets, lost)
	low := e.mu.gate.low()
	e.mu.warm = e.mu.warm || e.mu.all.slow.packets > coldPackets || e.mu.all.slow.lost >= clumpLosses
	if !low && !e.mu.gate.queued() {
		e.mu.high.add(packets, lost)
	}
	if low {
		e.mu.low.add(packets, lost)
		e.clump(float64(d.groups), lost, float64(d.squares))
	}
	switch {
	case lost == 0:
		e.mu.clean += packets
	case low || e.mu.low.slow.lost > 0 || e.mu.low.slow.packets < knownClean:
		e.mu.clean = 0
	}
	if e.mu.clean >= e.mu.target && !e.mu.off {
		e.mu.off = true
		e.mu.depth = 1
		e.forget()
	}
}

func (e *Estimator) forget() { e.mu.groups, e.mu.lost, e.mu.squares, e.mu.spread = 0, 0, 0, 0 }

// clump adds up how losses gather in groups, and has more depth spread them.
func (e *Estimator) clump(groups, lost, squares float64) {
	m := &e.mu
	m.groups += groups
	m.lost += lost
	m.squares += squares
	m.spread += lost
	if m.lost < clumpLosses {
		return
	}
	switch c := e.variance(); {
	case c > 1.3 && m.depth < maxDepth:
		m.depth *= 2
		e.forget()
	case c < 1.1 && m.depth > 1 && m.spread > m.spreadTarget:
		m.depth /= 2
		m.spreadTarget *= 4
		e.forget()
	case m.lost > 1000:
		m.groups, m.lost, m.squares = m.groups/2, m.lost/2, m.squares/2
	}
}

// variance is that of the losses of a group over their mean: 1 when they are
// independent, c when c packets are lost at a time.
func (e *Estimator) variance() float64 {
	if e.mu.lost == 0 || e.mu.groups == 0 {
		return 1
	}
	return e.mu.squares/e.mu.lost - e.mu.lost/e.mu.groups
}

// advice is what a sender should prepare for.
type advice struct {
	off         bool
	cold        bool
	loss, clump float64
	depth       int
}

// cold is how a path is met of which nothing is known: with enough for bursts, while slow start sends little
// and has most to lose.
var cold = advice{cold: true, loss: 1e-3, clump: 3, depth: 4}

// advice changes in steps, so that plans are not made for noise.
func (e *Estimator) advice() advice {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.mu.warm && !e.mu.off {
		return cold
	}
	loss := min(e.mu.low.value(&e.mu.high), e.mu.all.value(&rate{}))
	clump := 1.0
	if e.mu.lost >= clumpLosses {
		if c := e.variance(); c > 1.25 {
			clump = c
		}
	}
	step := func(last *float64, v, by float64) float64 {
		if v > *last*by || v < *last/by {
			*last = v
		}
		return *last
	}
	return advice{
		off: e.mu.off, depth: e.mu.depth,
		loss: step(&e.mu.fitLoss, loss, 1.2), clump: step(&e.mu.fitClump, clump, 1.2),
	}
}
