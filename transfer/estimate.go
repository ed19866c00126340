package transfer

import (
	"math"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
)

// A Basis says what a number rests on.
type Basis uint8

// The bases.
const (
	Unknown    Basis = iota // there is no number
	Measured                // on this link, since it began
	Persisted               // on an earlier link, remembered
	Configured              // given by the operator
)

// String names the basis in lower case.
func (s Basis) String() string {
	switch s {
	case Measured:
		return "measured"
	case Persisted:
		return "persisted"
	case Configured:
		return "configured"
	case Unknown:
	}
	return "unknown"
}

// An Estimate is a number with what it is worth. The zero Estimate is unknown.
type Estimate struct {
	Value float64
	// Spread is one standard deviation, in the unit of Value. A number that rests
	// on one sample has half its value for it.
	Spread  float64
	Samples int           // that went into it; what was remembered counts with its own
	Age     time.Duration // since the last of them
	Basis   Basis
}

// Known reports that there is a number.
func (e Estimate) Known() bool { return e.Basis != Unknown }

// Elements is how many kinds of pages there are, codec.Unknown included.
const Elements = int(codec.Opaque) + 1

// CodingEstimates is what codecs make of pages of one kind: see Estimates.Ratio and Estimates.CodecRate.
type CodingEstimates struct{ Ratio, CodecRate Estimate }

// Estimates is what is known of the path of a link, in the direction in which
// this side receives unless it only sends.
type Estimates struct {
	// Goodput is page bytes, coded where they were, a second of past reads from the peer, without the first
	// round trip and, of the first read, without its first half, in which the
	// windows open: a moving average that weighs the last read 0.3. Reads that run
	// side by side count together. The first read of a link is provisional: the
	// second replaces it, and a remembered number outranks it. Reads of less than
	// 1 MiB, and those in which connections lacked chunks most of the time, are
	// left out.
	Goodput Estimate
	// Ratio is page bytes over what they took coded, 1 where none were: a moving
	// average over past reads that weighs the last one 0.3. Goodput counts pages as
	// they came, so page bytes land at Goodput times Ratio.
	Ratio Estimate
	// CodecRate is page bytes a second that the slower end codes or decodes, on all of its processors, while it sends or receives what
	// is left of them, as both say; Unknown where none were coded. A moving average like that of Ratio.
	CodecRate Estimate
	// Coding is Ratio and CodecRate of reads of pages of one kind, by codec.Element: codecs make less of FP8 than of BF16. Reads of
	// several kinds at once are in none.
	Coding [Elements]CodingEstimates
	// Capacity is the most that the path delivered over a window of 50 ms or a
	// round trip, whichever is longer, among those of the last ten minutes, or the
	// last 128, in which the sender never lacked chunks: QUIC bytes a second,
	// resent ones included.
	Capacity Estimate
	// RTTMin and RTTSmoothed are seconds, as in LinkStats. The smoothed one is
	// inflated for a while after a transfer has filled the path's queue, the least
	// one only where that queue never drained in its time.
	RTTMin, RTTSmoothed Estimate
	// Loss is the share of packets that the sender of pages declared lost in the
	// last 128 such windows, 0 to 1, if there are any only in those in which no
	// queue stood on the path: a queue's overflow says nothing about the path. What
	// is repaired below QUIC is not in it.
	Loss Estimate
	// Ramp is the seconds from the first page asked for on a cold link until it
	// delivered 0.9 of its rate.
	Ramp Estimate
	// Stripes is the number of connections that the path needs, 0: unknown.
	Stripes int
}

const (
	// goodputWeight is that of the last read in the moving average.
	goodputWeight = 0.3
	// minGoodputBytes is the least that a transfer must move to be a sample: less
	// says more about slow start than about the link.
	minGoodputBytes = 1 << 20
	// windowsKept bounds the windows that capacity and loss are taken from.
	windowsKept = 128
	// bestKept is how long the fastest window is remembered beyond them.
	bestKept = 10 * time.Minute
)

// average is a moving average of samples and of their variance.
type average struct {
	value, variance float64
	samples         int
	at              time.Time
	basis           Basis
	provisional     bool
}

// add takes a sample in. A provisional one gives way to the next that is not,
// and is dropped where something better is known.
func (a *average) add(v float64, now time.Time, provisional bool) {
	if provisional && a.basis != Unknown {
		return
	}
	if a.basis != Measured || a.provisional {
		*a = average{value: v, variance: v * v / 4, samples: 1, at: now, basis: Measured, provisional: provisional}
		return
	}
	d := v - a.value
	a.value += goodputWeight * d
	if a.samples == 1 {
		a.variance = d * d / 2
	} else {
		a.variance = (1 - goodputWeight) * (a.variance + goodputWeight*d*d)
	}
	a.samples++
	a.at = now
}

func (a *average) estimate(now time.Time) Estimate {
	if a.basis == Unknown {
		return Estimate{}
	}
	return Estimate{Value: a.value, Spread: math.Sqrt(a.variance), Samples: a.samples, Age: max(now.Sub(a.at), 0), Basis: a.basis}
}

// recall makes an average of what was remembered, aged by what it was then.
func recall(e Estimate, now time.Time) average {
	if e.Basis == Unknown {
		return average{}
	}
	return average{value: e.Value, variance: e.Spread * e.Spread, samples: e.Samples, at: now.Add(-e.Age), basis: Persisted}
}

// window is one pathSample in which the sender never lacked chunks.
type window struct {
	at         time.Time
	rate       float64
	sent, lost float64
	full       bool // a queue stood on the path, at its begin or end
}

// estimator makes Estimates from samples. It has no clock and no lock.
type estimator struct {
	goodput average
	old     struct{ capacity, rttMin, rtt, loss average } // remembered
	ramp    average
	ratio   average
	codec   average
	coding  [Elements]struct{ ratio, codec average }
	stripes int

	windows []window // a ring, the next one to be overwritten at next
	next    int
	total   int
	best    window // the fastest of late
	full    bool   // at the last look

	cold  []window  // of the first transfer, until ramp is known
	since time.Time // it began
	warm  bool      // one has ended
}

// newEstimator begins with what was remembered.
func newEstimator(e Estimates, now time.Time) *estimator {
	m := &estimator{goodput: recall(e.Goodput, now), ramp: recall(e.Ramp, now), ratio: recall(e.Ratio, now), codec: recall(e.CodecRate, now), stripes: e.Stripes}
	m.old.capacity, m.old.loss = recall(e.Capacity, now), recall(e.Loss, now)
	for i, c := range e.Coding {
		m.coding[i].ratio, m.coding[i].codec = recall(c.Ratio, now), recall(c.CodecRate, now)
	}
	m.old.rttMin, m.old.rtt = recall(e.RTTMin, now), recall(e.RTTSmoothed, now)
	return m
}

// observe takes one look at the path in.
func (m *estimator) observe(s pathSample) {
	full := s.full() || m.full
	m.full = s.full()
	if !m.warm && s.rate > 0 {
		if len(m.cold) == 0 {
			m.since = s.at.Add(-s.took)
		}
		if len(m.cold) < windowsKept {
			m.cold = append(m.cold, window{at: s.at, rate: s.rate})
		}
	}
	if !s.busy || s.rate <= 0 || s.took <= 0 {
		return
	}
	w := window{at: s.at, rate: s.rate, sent: s.sent, lost: s.lost, full: full}
	if w.rate >= m.best.rate || s.at.Sub(m.best.at) > bestKept {
		m.best = w
	}
	if len(m.windows) < windowsKept {
		m.windows = append(m.windows, w)
	} else {
		m.windows[m.next] = w
	}
	m.next = (m.next + 1) % windowsKept
	m.total++
}

// transferEnded takes the goodput of one read in: bytes of all reads of the link
// while it ran, and the share of that time in which connections lacked chunks.
func (m *estimator) transferEnded(bytes int64, d time.Duration, starved float64, now time.Time) {
	if d <= 0 {
		return
	}
	m.goodput.add(float64(bytes)/d.Seconds(), now, !m.warm || starved > 0.5)
	m.endRamp(now)
}

// endRamp finds the ramp of the first transfer.
func (m *estimator) endRamp(now time.Time) {
	if m.warm {
		return
	}
	m.warm = true
	var most float64
	for _, w := range m.cold {
		most = max(most, w.rate)
	}
	reached, first := 0, time.Time{}
	for _, w := range m.cold {
		if w.rate >= 0.9*most {
			if reached == 0 {
				first = w.at
			}
			reached++
		}
	}
	// Fewer say that the transfer ended before its rate did stop growing.
	if reached >= 3 {
		m.ramp.add(first.Sub(m.since).Seconds(), now, false)
	}
	m.cold = nil
}

// coded takes in what codecs made of a read of pages of kind e, ok: of one kind. rate is 0 where it is not known.
func (m *estimator) coded(e codec.Element, ok bool, ratio, rate float64, now time.Time) {
	ratios, rates := []*average{&m.ratio}, []*average{&m.codec}
	if ok {
		ratios, rates = append(ratios, &m.coding[e].ratio), append(rates, &m.coding[e].codec)
	}
	for i := range ratios {
		ratios[i].add(ratio, now, false)
		if rate > 0 {
			rates[i].add(rate, now, false)
		}
	}
}

// capacity returns the most delivered over a window, measured or remembered.
func (m *estimator) capacity(now time.Time) Estimate {
	if len(m.windows) == 0 {
		return m.old.capacity.estimate(now)
	}
	var sum, squares float64
	best := m.best
	for _, w := range m.windows {
		sum += w.rate
		squares += w.rate * w.rate
		if w.rate > best.rate {
			best = w
		}
	}
	n := float64(len(m.windows))
	e := Estimate{Value: best.rate, Spread: math.Sqrt(max(squares/n-sum*sum/(n*n), 0)), Samples: m.total, Age: max(now.Sub(best.at), 0), Basis: Measured}
	if len(m.windows) == 1 {
		e.Spread = e.Value / 2
	}
	return e
}

// packets adds up the windows that match.
func (m *estimator) packets(match func(window) bool) (sent, lost float64, last time.Time) {
	for _, w := range m.windows {
		if !match(w) {
			continue
		}
		sent += w.sent
		lost += w.lost
		if w.at.After(last) {
			last = w.at
		}
	}
	return sent, lost, last
}

// randomLoss is the share of packets that the path loses while no queue stands on
// it, 0 while too few were lost to tell.
func (m *estimator) randomLoss() float64 {
	sent, lost, _ := m.packets(func(w window) bool { return !w.full })
	if lost < 5 {
		return 0
	}
	return lost / sent
}

// loss returns the share of packets lost over the windows.
func (m *estimator) loss(now time.Time) Estimate {
	sent, lost, last := m.packets(func(w window) bool { return !w.full })
	if sent == 0 {
		sent, lost, last = m.packets(func(window) bool { return true })
	}
	if sent == 0 {
		return m.old.loss.estimate(now)
	}
	p := max(min(lost/sent, 1), 0)
	return Estimate{Value: p, Spread: math.Sqrt(p * (1 - p) / sent), Samples: int(sent), Age: max(now.Sub(last), 0), Basis: Measured}
}

// estimates returns what is known. rttMin and rtt are those of the live
// connections, 0: there is none.
func (m *estimator) estimates(now time.Time, rttMin, rtt time.Duration) Estimates {
	live := func(d time.Duration, old *average) Estimate {
		if d <= 0 {
			return old.estimate(now)
		}
		return Estimate{Value: d.Seconds(), Spread: max(rtt-rttMin, 0).Seconds(), Samples: 1, Basis: Measured}
	}
	e := Estimates{
		Goodput: m.goodput.estimate(now), Ratio: m.ratio.estimate(now), CodecRate: m.codec.estimate(now), Capacity: m.capacity(now), Loss: m.loss(now), Ramp: m.ramp.estimate(now), Stripes: m.stripes,
		RTTMin: live(rttMin, &m.old.rttMin), RTTSmoothed: live(rtt, &m.old.rtt),
	}
	for i := range m.coding {
		e.Coding[i] = CodingEstimates{m.coding[i].ratio.estimate(now), m.coding[i].codec.estimate(now)}
	}
	return e
}
