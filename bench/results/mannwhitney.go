package results

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// exactRankLimit is the number of samples of both sides up to which ranks are counted out: at 50, two million additions; beyond, the
// normal approximation is good to a few thousandths.
const exactRankLimit = 50

// mannWhitney returns the two-sided p of the hypothesis that a and b come from one distribution, by the sum of ranks (Mann
// and Whitney, 1947): counted out, ties included, up to exactRankLimit samples, beyond by the normal approximation with
// the corrections for ties and continuity. 1 when a side is empty.
func mannWhitney(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	ranks, sum := midranks(a, b)
	if len(ranks) <= exactRankLimit {
		return exactRankP(ranks, len(a), sum)
	}
	return normalRankP(ranks, len(a), sum)
}

// normalRankP approximates exactRankP.
func normalRankP(ranks []int, na, sum int) float64 {
	n, total := float64(na), float64(len(ranks))
	ties := 0.0
	for i := 0; i < len(ranks); {
		j := i
		for j < len(ranks) && ranks[j] == ranks[i] {
			j++
		}
		t := float64(j - i)
		ties += t*t*t - t
		i = j
	}
	variance := n * (total - n) / 12 * (total + 1 - ties/(total*(total-1)))
	if variance <= 0 {
		return 1
	}
	// The sum is of doubled ranks.
	d := max(0, math.Abs(float64(sum)/2-n*(total+1)/2)-0.5)
	return min(1, 2*distuv.UnitNormal.Survival(d/math.Sqrt(variance)))
}

// midranks returns twice the ranks of all samples together, ascending, those of equal samples averaged, and their sum over
// a. Doubled, they are whole numbers.
func midranks(a, b []float64) (ranks []int, sum int) {
	type sample struct {
		v     float64
		fromA bool
	}
	all := make([]sample, 0, len(a)+len(b))
	for _, v := range a {
		all = append(all, sample{v, true})
	}
	for _, v := range b {
		all = append(all, sample{v, false})
	}
	slices.SortFunc(all, func(x, y sample) int {
		switch {
		case x.v < y.v:
			return -1
		case x.v > y.v:
			return 1
		}
		return 0
	})
	ranks = make([]int, len(all))
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		for k := i; k < j; k++ {
			ranks[k] = i + 1 + j // twice the mean of i+1..j
			if all[k].fromA {
				sum += ranks[k]
			}
		}
		i = j
	}
	return ranks, sum
}

// exactRankP counts the choices of n ranks whose sum is as far from the middle as sum or farther.
func exactRankP(ranks []int, n, sum int) float64 {
	counts := rankSums(ranks, n)
	middle := 0
	for _, r := range ranks {
		middle += r
	}
	// Both sides times len(ranks) are whole: |s - n*total/N| * N.
	far := func(s int) int { return abs(s*len(ranks) - n*middle) }
	var total, extreme float64
	for s, c := range counts {
		total += c
		if far(s) >= far(sum) {
			extreme += c
		}
	}
	return min(1, extreme/total)
}

// rankSums returns, at s, in how many ways n of the ranks sum to s. Counts beyond 2^53 are rounded.
func rankSums(ranks []int, n int) []float64 {
	most := 0
	for _, r := range ranks[len(ranks)-n:] {
		most += r
	}
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, most+1)
	}
	ways[0][0] = 1
	for i, r := range ranks {
		for k := min(i+1, n); k >= 1; k-- {
			for s := most; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	return ways[n]
}

// pairInterval returns the ends of a distribution-free interval from all pairs op(new, old): of the ratio for division, of
// the shift for subtraction. It holds what mannWhitney at 1-level does not refuse (Hodges and Lehmann, 1963; Bauer, 1972).
// The level is what it has: less than asked when there are too few samples, and then the ends are the extremes.
func pairInterval(old, fresh []float64, level float64, op func(n, o float64) float64) Estimate {
	pairs := make([]float64, 0, len(old)*len(fresh))
	for _, o := range old {
		for _, n := range fresh {
			pairs = append(pairs, op(n, o))
		}
	}
	if len(pairs) == 0 || slices.ContainsFunc(pairs, math.IsNaN) {
		return unknown()
	}
	slices.Sort(pairs)
	k, coverage := pairRank(len(old), len(fresh), level)
	return Estimate{Value: quantileSorted(pairs, 0.5), Low: pairs[k], High: pairs[len(pairs)-1-k], Level: coverage}
}

// pairRank is the largest k (from 0) such that the k-th pair from both ends enclose the truth with the level at least.
func pairRank(n, m int, level float64) (k int, coverage float64) {
	if n+m > exactRankLimit {
		mean, sd := float64(n)*float64(m)/2, math.Sqrt(float64(n)*float64(m)*float64(n+m+1)/12)
		z := distuv.UnitNormal.Quantile(0.5 + level/2)
		return max(0, int(math.Floor(mean-z*sd-0.5))), level
	}
	ranks := make([]int, n+m)
	for i := range ranks {
		ranks[i] = i + 1
	}
	counts := rankSums(ranks, n)
	var total, tail float64
	for _, c := range counts {
		total += c
	}
	least := n * (n + 1) / 2 // the sum of ranks when U is 0
	for u := 0; ; u++ {
		tail += counts[least+u]
		c := 1 - 2*tail/total
		if c < level || 2*(u+1) > n*m {
			if u == 0 {
				return 0, max(0, c)
			}
			return u - 1, coverage
		}
		coverage = c
	}
}

func abs(x int) int { return max(x, -x) }
