package crossover

import (
	"math"
	"slices"

	"github.com/kvferry/kvferry/bench/results"
)

// heldOut chooses at most most lengths for the calibration that the sweep does not have: about the middle of each gap between two of
// its lengths, and a block beyond either end, or more where a sweep without gaps leaves fewer than leastHeldOut. They are multiples of
// block up to longest, sorted; none where all are taken.
func heldOut(sweep []int64, block, longest int64, most int) []int64 {
	var all []int64
	add := func(v int64) {
		if v >= block && v <= longest && !slices.Contains(sweep, v) && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	add(sweep[0] - block)
	for i, v := range sweep[1:] {
		add((sweep[i] + v) / 2 / block * block)
	}
	last := sweep[len(sweep)-1]
	add(last + block)
	for v := last + 2*block; len(all) < leastHeldOut && v <= longest; v += block {
		add(v)
	}
	slices.Sort(all)
	if len(all) <= most {
		return all
	}
	out := make([]int64, most)
	for i := range out { // evenly, both ends included
		out[i] = all[i*(len(all)-1)/(most-1)]
	}
	return out
}

// leastHeldOut are the lengths that a line should rest on.
const leastHeldOut = 3

// trial is a migration of the calibration.
type trial struct {
	tokens  int64
	seconds float64 // of the whole migration
	rate    float64 // of its pages, bit/s
}

// cost is what migrations cost as the planner has it: fixed + n_rtt·RTT + bits/rate.
type cost struct {
	fixed float64 // seconds
	rate  float64 // bit/s
}

// fitCost finds the fixed cost and the rate of trials, of which there is one at least. trips are the seconds of the round trips.
//
// Trials of several lengths give a line by Theil and Sen: its slope is the median of those of all pairs of different lengths, its height
// that of the residuals, so that up to a quarter of the trials may be far off. A line that costs less than the round trips keeps
// those and gives the rate that is left. Where there is no line (one length, or noise larger than the differences) the rate is
// the median of what pages moved at.
func fitCost(trials []trial, bitsPerToken, trips float64) cost {
	if slope := medianSlope(trials); slope > 0 {
		if fixed := medianOf(trials, func(t trial) float64 { return t.seconds - slope*float64(t.tokens) }) - trips; fixed >= 0 {
			return cost{fixed: fixed, rate: bitsPerToken / slope}
		}
		slope = medianOf(trials, func(t trial) float64 { return (t.seconds - trips) / float64(t.tokens) })
		if slope > 0 {
			return cost{rate: bitsPerToken / slope}
		}
	}
	c := cost{rate: medianOf(trials, func(t trial) float64 { return t.rate })}
	c.fixed = max(0, medianOf(trials, func(t trial) float64 { return t.seconds - bitsPerToken*float64(t.tokens)/c.rate })-trips)
	return c
}

// medianSlope is in seconds a token; 0 without two different lengths.
func medianSlope(trials []trial) float64 {
	var slopes []float64
	for i, a := range trials {
		for _, b := range trials[:i] {
			if a.tokens != b.tokens {
				slopes = append(slopes, (a.seconds-b.seconds)/float64(a.tokens-b.tokens))
			}
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	return results.Median(slopes)
}

func medianOf(trials []trial, of func(trial) float64) float64 {
	x := make([]float64, len(trials))
	for i, t := range trials {
		x[i] = of(t)
	}
	if m := results.Median(x); !math.IsNaN(m) {
		return m
	}
	return 0
}
