package repair

import (
	"math"
	"time"
)

const (
	// residual is how many groups a packet may at least stay short of packets: Reno,
	// which backs off once for each, has a window of sqrt(2.83/1e-7), 5,300 packets, at
	// that rate: 0.9 Gbit/s a connection of 1,452 B packets and 70 ms.
	residual = 1e-7
	// enough, over the square of a window, is that for a smaller window: Reno then
	// keeps twice of it.
	enough = 2.83 / 4
	// ipBytes is what a datagram adds on the path, bytes.
	ipBytes = 28
	// burstBudget is how many bytes of parity may run ahead of the cap.
	burstBudget = 4 << 10
)

// classes are the sizes of groups for which symbols are worked out.
var classes = [...]int{1, 2, 4, 8, 16, 32, 64, MaxGroup}

// plan is how a sender groups packets.
type plan struct {
	packets  int     // a group, at most
	allowed  float64 // groups a packet that may stay short
	symbols  int     // of a whole group
	depth    int
	wait     time.Duration // from a group's first packet to its close, at most
	overhead int           // percent
	by       [len(classes)]uint8
}

// symbolsOf is the parity of a group that closes with n packets.
func (p *plan) symbolsOf(n int, single bool) int {
	for i, c := range classes {
		if n > c {
			continue
		}
		symbols := int(p.by[i])
		if n == p.packets {
			symbols = p.symbols
		}
		if single { // a packet is one symbol; one more for parity that is lost
			symbols = (symbols + 3) / 2
		}
		return min(symbols, p.symbols)
	}
	return p.symbols
}

// allow sets what may stay lost on a path that holds so many packets of the
// connection; 0: it is not known.
func (p *plan) allow(window float64) {
	p.allowed = residual
	if window > 0 {
		p.allowed = max(residual, enough/(window*window))
	}
}

// fit makes the plan for a loss rate, and clump, the variance of the losses of a
// group over their mean, at least 1.
func (p *plan) fit(loss, clump float64) {
	if (clump+1)/2*p.allowed >= loss { // as events, it already is
		p.fixed(0)
		return
	}
	for i, c := range classes {
		p.by[i] = uint8(p.symbolsFor(min(c, p.packets), loss, clump))
	}
	p.symbols = p.symbolsFor(p.packets, loss, clump)
}

// fixed makes the plan of a fixed number of symbols a whole group.
func (p *plan) fixed(symbols int) {
	p.symbols = symbols
	for i := range classes {
		p.by[i] = uint8(symbols)
	}
}

// limit is the most symbols that the cap on overhead allows a group, at least
// what repairs one packet.
func (p *plan) limit(n int) int {
	packet, symbol := firstPacket+ipBytes, parityHead+padded(firstPacket/2)+ipBytes
	return min(max(p.overhead*n*packet/(100*(symbol+fingerprintBytes*n)), 2), MaxParity)
}

// symbolsFor is the least number of parity symbols, 2 to the limit, with which no
// more groups stay short than are allowed. A burst that is too long for one of depth
// groups is too long for all: that is one event.
func (p *plan) symbolsFor(n int, loss, clump float64) int {
	allowed, limit := p.allowed*float64(n), p.limit(n)
	if clump > 1 {
		allowed *= float64(p.depth)
	}
	for s := 2; s < limit; s++ {
		if short(n, s, loss, clump) <= allowed {
			return s
		}
	}
	return limit
}

// short is the probability that s parity symbols do not suffice for the lost
// packets of a group of n, two symbols each: the sum over x lost packets and y lost
// symbols with 2x + y > s of P(x)·P(y). Exact for independent losses (clump = 1).
func short(n, s int, loss, clump float64) float64 {
	lost := binomials(n, s/2, loss)
	if clump > 1 {
		lost = clumps(n, s/2, loss, clump)
	}
	enough := 0.0
	above := 1.0
	for x, p := range lost {
		above -= p
		enough += p * binomialAbove(s, s-2*x, loss)
	}
	return max(above, 0) + enough
}

// binomials are the probabilities of 0 to most of n.
func binomials(n, most int, p float64) []float64 {
	out := make([]float64, min(n, most)+1)
	for x := range out {
		out[x] = binomial(n, x, p)
	}
	return out
}

// clumps are the probabilities of 0 to most lost packets when they are lost in
// runs: Poisson many, of geometric length with the mean m for which the variance
// over the mean is clump = 2m - 1. Source: H. H. Panjer, "Recursive evaluation of a
// family of compound distributions", 1981.
func clumps(n, most int, loss, clump float64) []float64 {
	m := (clump + 1) / 2
	rate := float64(n) * loss / m
	out := make([]float64, min(n, most)+1)
	out[0] = math.Exp(-rate)
	for k := 1; k < len(out); k++ {
		f := 1 / m
		for j := 1; j <= k; j++ {
			out[k] += rate * float64(j) / float64(k) * f * out[k-j]
			f *= 1 - 1/m
		}
	}
	return out
}

// binomial is the probability of exactly x of n.
func binomial(n, x int, p float64) float64 {
	switch {
	case p <= 0:
		if x == 0 {
			return 1
		}
		return 0
	case p >= 1:
		if x == n {
			return 1
		}
		return 0
	}
	return math.Exp(logChoose(n, x) + float64(x)*math.Log(p) + float64(n-x)*math.Log1p(-p))
}

// binomialAbove is the probability of more than x of n.
func binomialAbove(n, x int, p float64) float64 {
	sum := 0.0
	for y := x + 1; y <= n; y++ {
		sum += binomial(n, y, p)
	}
	return sum
}

func logChoose(n, x int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(x + 1))
	c, _ := math.Lgamma(float64(n - x + 1))
	return a - b - c
}
