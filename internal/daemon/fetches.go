package daemon

import (
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kvferry/kvferry/planner"
	"github.com/kvferry/kvferry/transfer"
)

const (
	// keptFetches is how many of the last fetches from a peer are remembered; fetchMaxAge for how long.
	keptFetches = 20
	fetchMaxAge = time.Hour
	// From leastFixed fetches on their constant cost is charged, from leastSpread on their spread is known.
	leastFixed, leastSpread = 3, 5
	// From leastLine fetches on, the largest of which moved lineRange times what the smallest did, a line through them gives a rate. It is
	// believed while it is within lineTrust of what the last transfers showed: where the link has changed it lags behind.
	leastLine            = 6
	lineRange, lineTrust = 2.0, 1.5
	// The spread of fetches is taken for at least leastFetchSpread: a few that took equally long do not prove that all will.
	leastFetchSpread, mostFetchSpread = 0.01, 1.0
	// mostFixed is the largest constant cost, in seconds, beside the price itself.
	mostFixed = 1.0
)

// fetches is what the last migrations from one peer took.
type fetches struct {
	ring  [keptFetches]fetch
	count int // since the path has changed, or ever
	drift planner.PageHinkley
}

type fetch struct {
	bytes   int64
	seconds float64 // from the request to the report
	at      time.Time
}

// recent yields those that are young enough to tell something, in no order.
func (f *fetches) recent(now time.Time) iter.Seq[fetch] {
	return func(yield func(fetch) bool) {
		for _, e := range f.ring[:min(f.count, keptFetches)] {
			if now.Sub(e.at) <= fetchMaxAge && !yield(e) {
				return
			}
		}
	}
}

func (f *fetches) add(bytes int64, seconds float64, now time.Time) {
	e := &f.ring[f.count%keptFetches]
	e.bytes, e.seconds, e.at = bytes, seconds, now
	f.count++
}

// pastFetches is what past migrations tell of the next one. Zero: nothing.
type pastFetches struct {
	rate   planner.Rate // of a line through them; 0: none
	fixed  float64      // seconds
	source string
	spread float64 // standard deviation over the expectation
}

// sum tells what is known by now. price is what a fetch of so many bytes would be priced at without a constant cost by what the link
// shows now: past ones are held against that and not against what was predicted of them, since the link's figures have changed since.
//
// The constant cost is the median of what migrations took beyond their price, at least 0 and at most mostFixed and the median price:
// a bad hour must not end all fetching, after which nothing better could be learned. The spread is 1.4826 times the median distance
// from the price with that cost, as the standard deviation of a normal distribution is.
func (f *fetches) sum(now time.Time, price func(bytes int64) float64) (out pastFetches) {
	var over, rest []float64
	for e := range f.recent(now) {
		p := price(e.bytes)
		over, rest = append(over, e.seconds-p), append(rest, p)
	}
	if len(over) < leastFixed {
		return out
	}
	out.fixed = min(max(0, median(over)), mostFixed+median(rest))
	out.source = fmt.Sprintf("median of the last %d migrations", len(over))
	if len(over) < leastSpread {
		return out
	}
	away := make([]float64, len(over))
	for i := range over {
		away[i] = math.Abs(over[i]-out.fixed) / (rest[i] + out.fixed)
	}
	out.spread = min(max(leastFetchSpread, 1.4826*median(away)), mostFetchSpread)
	return out
}

// slope is that of the line by Theil and Sen through what fetches took by their bytes: the median over all pairs, seconds a byte, which
// less than about a quarter of bad ones does not move. ok is false when they are few, or of about one size.
func (f *fetches) slope(now time.Time) (perByte float64, ok bool) {
	var bytes, seconds, slopes []float64
	for e := range f.recent(now) {
		for i, b := range bytes {
			if b != float64(e.bytes) {
				slopes = append(slopes, (seconds[i]-e.seconds)/(b-float64(e.bytes)))
			}
		}
		bytes, seconds = append(bytes, float64(e.bytes)), append(seconds, e.seconds)
	}
	if len(bytes) < leastLine || slices.Max(bytes) < lineRange*slices.Min(bytes) {
		return 0, false
	}
	perByte = median(slopes)
	return perByte, perByte > 0
}

// median of x, which is not empty and not changed.
func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := len(x)
	return (x[(n-1)/2] + x[n/2]) / 2
}

// changed takes in what a fetch took over what was predicted of it, with the relative deviation that it has. since, unless it is 0, is how
// many of the last fetches, that one included, the path has been another one for; those before them are dropped.
func (f *fetches) changed(seconds, predicted, spread float64) (since int) {
	if predicted <= 0 || seconds <= 0 {
		return 0
	}
	since, _ = f.drift.Observe(math.Log(seconds/predicted) / max(1, spread/quietSigma))
	if since > 0 {
		f.keep(since)
	}
	return since
}

// keep drops all but the last n.
func (f *fetches) keep(n int) {
	n = min(n, f.count, keptFetches)
	var last [keptFetches]fetch
	for i := range n {
		last[i] = f.ring[(f.count-n+i)%keptFetches]
	}
	f.ring, f.count = last, n
}

// took notes a fetch from a configured peer, and what was predicted of it, 0: nothing was. since is that of fetches.changed.
func (l *links) took(peer transfer.PeerID, bytes int64, seconds, predicted, spread float64) (since int) {
	if _, ok := l.peers[peer]; !ok {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.mu.fetches[peer]
	if f == nil {
		f = &fetches{}
		l.mu.fetches[peer] = f
	}
	f.add(bytes, seconds, time.Now())
	return f.changed(seconds, predicted, spread)
}

// past is what migrations from peer tell of the next one over link; nothing for a link that was not measured. Its rate replaces the
// link's goodput where they differ in size: what whole migrations of many sizes took prices others better than the speed of the last.
func (l *links) past(peer transfer.PeerID, link planner.Link) pastFetches {
	l.mu.Lock()
	var f fetches
	if p := l.mu.fetches[peer]; p != nil {
		f = *p
	}
	l.mu.Unlock()
	if f.count == 0 || link.Goodput == 0 || link.RTT == 0 {
		return pastFetches{}
	}
	link.FixedSeconds, link.EgressBacklog = 0, 0
	now, measured := time.Now(), link.Goodput
	price := func(bytes int64) float64 {
		return planner.Fetch(planner.Request{MissingBytes: planner.Bytes(bytes), RoundTrips: l.cfg.Link.RoundTrips}, planner.Model{}, link).Seconds
	}
	line, ok := f.slope(now)
	line *= max(link.CodecRatio, 1) // seconds a byte on the wire
	if r := planner.Rate(8 / line); !ok || r > lineTrust*measured || r < measured/lineTrust {
		return f.sum(now, price)
	}
	link.Goodput = planner.Rate(8 / line)
	out := f.sum(now, price)
	out.rate = link.Goodput
	return out
}

// learn takes in what a fetch took, if nothing out of the ordinary happened to it: only a whole migration of a session that had
// the link for itself tells what its like will take.
func (m *migration) learn(st state, total time.Duration) {
	dr := &m.drive
	ordinary := st == stateCommitted && dr.mode == planner.ModeFetch && dr.retried == 0 && dr.grown == 0 && dr.lost == 0 && dr.hops == 0 && dr.failure == nil
	if bytes := dr.bytes.Load(); ordinary && dr.alone && len(m.demand.keys) == 0 && bytes > 0 {
		if since := m.d.links.took(dr.source, bytes, total.Seconds(), dr.predicted, dr.inputs.link.Spread); since > 0 {
			m.d.drifted(driftPath, slog.String("peer", string(dr.source)), since)
		}
	}
}
