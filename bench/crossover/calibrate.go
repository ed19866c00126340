package crossover

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

const (
	// warmUpBDP is how much a migration of the warm-up moves at least, in bandwidth-delay products, half of it when quick: windows
	// grow by what they let through, and the first overflow of the bottleneck's queue makes them small. warmUpMost bounds it in bytes.
	warmUpBDP  = 8
	warmUpMost = 256 << 20
	// Warm-up ends when the link is full, or has given no twentieth more than before in three migrations; after ten at the latest.
	mostWarmUps, idleWarmUps = 10, 3
	warmedUp                 = 1.05
	// prefillLooks is how often each length is prefilled to calibrate an engine. linkLooks is how often each of at most linkLengths
	// lengths is migrated to calibrate the link, quickLooks and quickLengths when quick.
	prefillLooks             = 2
	linkLooks, linkLengths   = 4, 6
	quickLooks, quickLengths = 2, 3
)

// calibratePrefill measures the engine's speed where nobody stated it: a line through prefills of those lengths.
func (r *run) calibratePrefill(ctx context.Context, at []int64) error {
	if speed, ok := r.prefill.speed(); ok {
		r.in.perToken = speed
		return nil
	}
	var x, y []float64
	for i := range prefillLooks + 1 {
		for _, n := range at {
			seconds, err := r.prefill.prefill(ctx, n)
			if err != nil {
				return err
			}
			if i > 0 { // the first look warms up
				x, y = append(x, float64(n)), append(y, seconds)
			}
		}
	}
	line, err := results.LinearFit(x, y, 0)
	if err != nil {
		return err
	}
	r.in.perToken, r.in.fixed = line.Slope.Value, max(0, line.Intercept.Value)
	if r.in.perToken <= 0 || line.Intercept.Value < 0 { // the noise is larger than the difference: all of it a token
		r.in.perToken = y[len(y)-1] / x[len(x)-1]
		r.in.fixed = 0
	}
	return nil
}

// calibrateLink warms the connections up, chooses the lengths and measures what the prediction rests on.
func (r *run) calibrateLink(ctx context.Context) error {
	longest := int64(r.slots/2) * r.block()
	if err := r.warmUp(ctx, longest); err != nil {
		return err
	}
	if err := r.readLink(ctx); err != nil {
		return err
	}
	r.in.rtt = time.Duration(r.link.rttMin * float64(time.Second))
	r.in.goodput = r.link.longest
	r.given()
	r.chooseLengths(min(longest, r.longest()))
	looks, most := linkLooks, linkLengths
	if r.cfg.Quick {
		looks, most = quickLooks, quickLengths
	}
	at := heldOut(r.lengths, r.block(), longest, most)
	if len(at) == 0 {
		at = r.lengths
		r.warn("the prediction rests on lengths of the sweep: no others lie between")
	}
	r.link.lengths = at
	if err := r.calibratePrefill(ctx, []int64{at[0], max(at[len(at)-1], at[0]+r.block())}); err != nil {
		return err
	}
	return r.calibrateMigrations(ctx, at, looks)
}

// calibrateMigrations measures what migrations of lengths at cost, and takes that for the prediction.
func (r *run) calibrateMigrations(ctx context.Context, at []int64, looks int) error {
	var trials []trial
	for look := range looks {
		for _, i := range rand.New(rand.NewPCG(r.cfg.Seed, uint64(look)+calibrationStream)).Perm(len(at)) { // as the sweep does
			m, err := r.move(ctx, at[i])
			if err != nil {
				return err
			}
			if r.link.migrations++; look > 0 || looks <= quickLooks { // the first look warms up, where there are others enough
				trials = append(trials, trial{tokens: at[i], seconds: m.seconds, rate: m.rate(r.link.rttMin)})
			}
		}
	}
	if err := r.readLink(ctx); err != nil {
		return err
	}
	c := fitCost(trials, 8*float64(r.in.bytesPerToken), r.in.trips*r.link.rttMin)
	r.link.goodput = medianOf(trials, func(t trial) float64 { return t.rate })
	r.in.goodput, r.in.migration = c.rate, c.fixed
	r.given()
	return nil
}

// calibrationStream keeps the random order of the calibration apart from that of the rounds.
const calibrationStream = 1 << 32

// given puts in what Config says about the link in the place of what was measured.
func (r *run) given() {
	if r.cfg.RTT > 0 {
		r.in.rtt = r.cfg.RTT
	}
	if r.cfg.Goodput > 0 {
		r.in.goodput = r.cfg.Goodput
	}
}

// rate is the goodput of a transfer as the planner means it: page bytes over its time without the round trip of the request,
// bit/s.
func (m moved) rate(rtt float64) float64 {
	return float64(m.bytes) * 8 / max(m.transfer-rtt, m.transfer/100)
}

func (r *run) warmUp(ctx context.Context, longest int64) error {
	best, idle, full := 0.0, 0, fullShare*payloadShare*r.cfg.WAN.Rate
	for i := range mostWarmUps {
		m, err := r.move(ctx, longest)
		if err != nil {
			return err
		}
		r.link.longest = m.rate(r.cfg.WAN.RTT.Seconds())
		r.link.migrations++
		idle++
		if r.link.longest > best*warmedUp {
			best, idle = r.link.longest, 0
		}
		if i > 0 && (full > 0 && r.link.longest >= full || idle >= idleWarmUps) { // the first is cold
			break
		}
	}
	return nil
}

// warmUpTokens is the length of a migration of the warm-up at least.
func (r *run) warmUpTokens() int64 {
	bytes := warmUpBDP * r.cfg.WAN.BDP()
	if r.cfg.Quick {
		bytes /= 2
	}
	return min(min(bytes, warmUpMost)/r.in.bytesPerToken, r.longest())
}

// readLink takes the round trips that QUIC sees at the destination.
func (r *run) readLink(ctx context.Context) error {
	l, err := r.bed.Link(ctx)
	if err != nil {
		return err
	}
	r.link.rttMin, r.link.rttSmoothed = l.GetRttMin().AsDuration().Seconds(), l.GetRttSmoothed().AsDuration().Seconds()
	r.link.stripes = int(l.GetStripes())
	if r.cfg.Stripes == 0 {
		r.in.stripes = r.link.stripes
	}
	return nil
}

// chooseLengths fixes the sweep.
func (r *run) chooseLengths(longest int64) {
	if len(r.cfg.Lengths) > 0 {
		r.lengths = r.cfg.Lengths
		return
	}
	all := lengths(r.in, r.cfg.Quick, longest)
	r.lengths = afford(r.in, all, r.cfg.Budget.Seconds()/float64(min(leastRounds, r.cfg.Repeats)))
	if len(r.lengths) < len(all) {
		r.warn("%d of %d lengths, of up to %d tokens, were left out: they do not fit the budget of %v", len(all)-len(r.lengths), len(all), all[len(all)-1], r.cfg.Budget)
	}
	if x, ok := r.in.crossover(); ok && x > float64(r.lengths[len(r.lengths)-1]) {
		r.warn("the predicted crossover, %.0f tokens, lies beyond the longest prefix measured, %d: give a higher bound of the prefix, a larger arena or a longer budget",
			x, r.lengths[len(r.lengths)-1])
	}
}
