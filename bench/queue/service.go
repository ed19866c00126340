package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Service is a distribution of service times.
type Service string

// The distributions. Their squared coefficients of variation are 1, 0 and what is asked for.
const (
	Exponential   Service = "exponential"
	Deterministic Service = "deterministic"
	Lognormal     Service = "lognormal"
)

// scv is the squared coefficient of variation of s; spread is that of a lognormal.
func (s Service) scv(spread float64) float64 {
	switch s {
	case Exponential:
		return 1
	case Lognormal:
		return spread
	case Deterministic:
	}
	return 0
}

// sampler returns a function that draws service times of that mean, seconds.
func (s Service) sampler(mean, spread float64, rng *rand.Rand) (func() float64, error) {
	switch s {
	case Exponential:
		return func() float64 { return mean * rng.ExpFloat64() }, nil
	case Deterministic:
		return func() float64 { return mean }, nil
	case Lognormal:
		variance := math.Log1p(spread) // of the logarithm
		mu, sigma := math.Log(mean)-variance/2, math.Sqrt(variance)
		return func() float64 { return math.Exp(mu + sigma*rng.NormFloat64()) }, nil
	}
	return nil, fmt.Errorf("service %q: want %s, %s or %s", string(s), Exponential, Deterministic, Lognormal)
}

// job is one arrival.
type job struct {
	at      float64 // arrival, seconds from the start, ascending
	service float64 // time it needs alone, seconds
}

// poisson draws n jobs that arrive at rate a second; service draws the time that each needs.
func poisson(n int, rate float64, rng *rand.Rand, service func() float64) []job {
	jobs := make([]job, n)
	var now float64
	for i := range jobs {
		now += rng.ExpFloat64() / rate
		jobs[i] = job{at: now, service: service()}
	}
	return jobs
}

// newRand returns the generator of one part of a run. Parts draw apart from each other, and the same seed and part draw the
// same.
func newRand(seed uint64, part string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a, so that a part's name is its stream
	for _, c := range []byte(part) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h))
}
