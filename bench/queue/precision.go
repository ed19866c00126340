package queue

import (
	"fmt"
	"math"

	"github.com/kvferry/kvferry/bench/results"
)

// LinkLaw and SharingLaw are the orders whose simulated mean waits the waits over QUIC are held against: of the sender as daemons
// run it "least-left", see [LeastLeft], and of a sender that serves all transfers in turn "sender", see [Chunked]. They are fixed
// before anything is measured; which order comes nearest afterwards is reported beside them and decides nothing.
const (
	LinkLaw    = orderLeast
	SharingLaw = orderSharing
)

// linkBatches is how many the series of waits over the link is cut into.
const linkBatches = 20

// When a measurement over the link is looked at to see whether it may end: after so many jobs, then half as many again each
// time, since every look at an interval is another chance of finding it narrow by luck.
const (
	firstLook = 800
	lookAgain = 1.5
)

// maxLag1 is the correlation of n neighbouring batches that chance alone exceeds once in twenty times when there is none: with
// a larger one the batches are taken to be too short, and the interval to be too narrow.
func maxLag1(n int) float64 { return 1.645 / math.Sqrt(float64(n)) }

// estimate is a mean wait over the link.
type estimate struct {
	results.Estimate
	lag1 float64
}

// adjusted takes the luck of the draw out of measured waits: each less what the law's simulation gives the same job among the same
// arrivals, plus that law's long-run mean. Its mean estimates the same mean wait, whether the law is right or wrong, since what is
// taken off and what is put on have the same expectation (a control variate with coefficient 1; Law, "Simulation Modeling
// and Analysis", section 11.4), with a fraction of the variance where the law is near. The warm-up is left out.
func adjusted(wait, control []float64, law float64) []float64 {
	out := make([]float64, 0, len(wait))
	for i := warmUp(len(wait)); i < len(wait); i++ {
		out = append(out, wait[i]-control[i]+law)
	}
	return out
}

// estimateOf cuts a series without its warm-up into batches.
func estimateOf(series []float64) (estimate, error) {
	e, lag, err := results.BatchMeans(series, linkBatches, 0)
	return estimate{e, lag}, err
}

// halfWidth is half of the interval over the mean; infinite when there is no mean above 0.
func (e estimate) halfWidth() float64 {
	if !(e.Value > 0) {
		return math.Inf(1)
	}
	return (e.High - e.Low) / 2 / e.Value
}

// settled says that the mean is known as well as asked for, and that its interval may be believed.
func (e estimate) settled(precision float64) bool {
	return e.halfWidth() <= precision && e.lag1 <= maxLag1(linkBatches)
}

// enough says whether adjusted waits make a mean that is settled. precision below 0: never.
func enough(series []float64, precision float64) bool {
	if precision < 0 || len(series) < linkBatches {
		return false
	}
	e, err := estimateOf(series)
	return err == nil && e.settled(precision)
}

// z80 is the quantile of the normal distribution at 0.8.
const z80 = 0.8416

// detectable is the least difference between the two means, over the law's, that would have kept the two intervals apart in
// four of five measurements like this one. The intervals do not overlap when the means differ by more than the sum of the half
// widths; the measured mean scatters by its standard error, which is taken from the batches' means, and the law's by about
// half of its half width.
func detectable(measured results.Estimate, batchMeans []float64, law results.Estimate) float64 {
	if !(law.Value > 0) {
		return math.Inf(1)
	}
	var ss float64
	mean := meanOf(batchMeans)
	for _, m := range batchMeans {
		ss += (m - mean) * (m - mean)
	}
	n := float64(len(batchMeans))
	se := math.Sqrt(ss / (n - 1) / n)
	halfLaw := (law.High - law.Low) / 2
	return ((measured.High-measured.Low)/2 + halfLaw + z80*math.Hypot(se, halfLaw/2)) / law.Value
}

// judge says in warnings why a point over the link decides nothing; conclusive when it does.
func (r *Result) judge(p *Point, e estimate, precision float64) {
	q := p.QUIC
	q.HalfWidth = e.halfWidth()
	wide, correlated := precision >= 0 && q.HalfWidth > precision, e.lag1 > maxLag1(linkBatches)
	q.Conclusive = !wide && !correlated && !p.late()
	at := fmt.Sprintf("at utilization %v over QUIC, %s,", p.Utilization, q.Law)
	if wide {
		r.warn("%s the mean wait is known to ±%.0f %% after %d jobs in %.0f s, not to the ±%.0f %% asked for: inconclusive, whatever it overlaps; measure longer with --duration",
			at, 100*q.HalfWidth, p.Jobs, q.Seconds, 100*precision)
	}
	if correlated {
		r.warn("%s neighbouring batches of waits correlate by %.2f, above %.2f: the interval is too narrow, so the point is inconclusive; measure longer with --duration", at, e.lag1, maxLag1(linkBatches))
	}
	if p.late() {
		r.warn("%s one job in a hundred started %.0f ms late or more, and one takes %.0f ms: this machine was too busy, not the link", at, 1e3*q.LateP99Seconds, 1e3*p.ServiceSeconds)
	}
}
