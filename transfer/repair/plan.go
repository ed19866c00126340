package repair

import (
	"math"
	"time"
)

const (
	// residual is the share of packets that may stay lost: Reno at 1 in 10^7 and
	// 1,452 B x 70 ms keeps 0.6 Gbit/s a connection on average, windows of 5,300.
	residual = 1e-7
	// ipBytes is what a datagram adds on the path, bytes.
	ipBytes = 28
	// burstBudget is how many bytes of parity may run ahead of the cap.
	burstBudget = 64 << 10
)

// classes are the sizes of groups for which symbols are worked out.
var classes = [...]int{1, 2, 4, 8, 16, 32, 64, MaxGroup}

// plan is how a sender groups packets.
type plan struct {
	packets  int // a group, at most
	symbols  int // of a whole group
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

// fit makes the plan for a loss rate, and clump, the mean number of packets of a
// group that are lost together, at least 1.
func (p *plan) fit(loss, clump float64) {
	for i, c := range classes {
		n := min(c, p.packets)
		p.by[i] = uint8(symbolsFor(n, loss, clump, p.limit(n)))
	}
	p.symbols = symbolsFor(p.packets, loss, clump, p.limit(p.packets))
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
	const packet, symbol = firstPacket + ipBytes, parityHead + (firstPacket+3)/2 + ipBytes
	return min(max(p.overhead*n*packet/(100*(symbol+fingerprintBytes*n)), 2), MaxParity)
}

// symbolsFor is the least number of parity symbols, 2 to limit, with which at most
// residual of the packets of groups of n stay lost. Losses come in clumps, which
// are independent; parity is lost like packets.
func symbolsFor(n int, loss, clump float64, limit int) int {
	for s := 2; s < limit; s++ {
		if unrepaired(n, s, loss, clump) <= residual {
			return s
		}
	}
	return limit
}

// unrepaired is the expected share of the packets of a group of n, two symbols
// each, that s parity symbols leave lost. Exact for clump = 1: the sum over x lost
// packets and y lost parity symbols with 2x + y > s of x·P(x)·P(y), over n.
func unrepaired(n, s int, loss, clump float64) float64 {
	q := loss / clump
	sum := 0.0
	for c := 1; c <= n; c++ {
		x := min(math.Ceil(float64(c)*clump), float64(n))
		p := binomial(n, c, q)
		left := s - 2*int(x) // symbols that may be lost
		if left < 0 {
			sum += x * p
		} else {
			sum += x * p * binomialAbove(s, left, loss)
		}
		if p < residual*1e-6 && float64(c) > float64(n)*q {
			break
		}
	}
	return sum / float64(n)
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
