package queue

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
// variation. Source: Kleinrock, "Queueing Systems", volume 1, equations 3.27 and 5.113, volume 2, section 4.4.
func lawsAt(rho, mean, scv float64) Laws {
	base := rho * mean / (1 - rho)
	return Laws{MM1: base, MG1: base * (1 + scv) / 2, PS: base}
}
