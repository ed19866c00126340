package queue

import (
	"math"

	"github.com/kvferry/kvferry/planner"
)

// Laws are the mean waits in seconds that queueing theory gives for Poisson arrivals at one server. Of processor sharing,
// the wait is what a job takes longer than it would alone.
type Laws struct {
	// MM1 is ρ·E[S]/(1−ρ): first come, first served, exponential service. The base model's.
	MM1 float64 `json:"mm1"`
	// MG1 is ρ·E[S]·(1+C²)/(2(1−ρ)), Pollaczek and Khinchine's: first come, first served, any service whose squared
	// coefficient of variation is C².
	MG1 float64 `json:"mg1"`
	// PS is E[S]·ρ/(1−ρ): processor sharing, any service. In the mean it equals MM1; of a job that needs s alone it is
	// s·ρ/(1−ρ), where first come, first served has every job wait alike.
	PS float64 `json:"ps"`
}

// lawsAt returns the laws at a utilization, 0 to below 1, for a mean service time in seconds and its squared coefficient of
// variation: the planner's.
func lawsAt(rho, mean, scv float64) Laws {
	wait := func(law planner.Law) float64 {
		seconds, _ := planner.Queue{Law: law, ServiceRate: 1 / mean, Utilization: rho, SCV: scv}.Wait(mean)
		return seconds
	}
	return Laws{MM1: wait(planner.LawMM1), MG1: wait(planner.LawMG1), PS: wait(planner.LawPS)}
}

// leastWait is the mean wait of shortest remaining processing time with exponential service of that mean, at a utilization of 0 to
// below 1. Source: Schrage and Miller, "The queue M/G/1 with the shortest remaining processing time discipline" (1966); integrated
// numerically, to about 1e-4.
func leastWait(rho, mean float64) float64 {
	const step, most = 1e-3, 40.0 // in means
	var sum, residence float64
	for i := range int(most / step) {
		x := (float64(i) + .5) * step
		tail := math.Exp(-x)
		load := rho * (1 - (1+x)*tail)                                    // of jobs of at most x
		second := 2 - (x*x+2*x+2)*tail                                    // of their squared sizes
		residence += step / (1 - load)                                    // once it is the least, it is delayed by smaller ones
		wait := rho * (second + x*x*tail) / 2 / ((1 - load) * (1 - load)) // until it is the least
		sum += (wait + residence - x) * tail * step
	}
	return sum * mean
}
