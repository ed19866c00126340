package crossover

import (
	"fmt"
	"math"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/planner"
)

// started is when a run began, and for how long it went on.
type started struct {
	at      time.Time
	seconds float64
}

// result makes the numbers of what was measured; nil when that is too little.
func (r *run) result(interrupted bool) *Result {
	points := r.points[:0:0]
	for _, p := range r.points {
		if len(p.fetch) > 0 {
			points = append(points, p)
		}
	}
	if len(points) < 2 {
		return nil
	}
	res := &Result{
		WAN: r.cfg.WAN.String(), Model: r.preset.Name, Engine: r.cfg.Engine, EngineWhat: r.prefill.describe(), BlockTokens: r.in.blockTokens, Rounds: len(points[0].fetch),
		interrupted: interrupted, warnings: r.warnings, params: r.cfg.params(), machine: r.machine, started: started{r.began, time.Since(r.began).Seconds()},
	}
	for _, p := range points {
		res.Points = append(res.Points, r.point(p))
	}
	res.Measured = measured(points, r.cfg.Seed)
	res.Predicted = r.predicted()
	if m, p := res.Measured.Crossover, res.Predicted.Crossover; m != nil && p != nil && m.Mean > 0 {
		e := 100 * (*p - m.Mean) / m.Mean
		res.ErrorPct = &e
	}
	res.TimeErrorPct = TimeErrors{
		Fetch:     errorPct(res.Points, func(p Point) (float64, float64) { return p.PredictedFetch, p.Fetch.Median }),
		Recompute: errorPct(res.Points, func(p Point) (float64, float64) { return p.PredictedRecompute, p.Recompute.Median }),
		Daemon:    errorPct(res.Points, func(p Point) (float64, float64) { return p.DaemonFetch, p.Fetch.Median }),
	}
	res.Calibration = r.calibration()
	res.Machine = MachineState{
		CPUShare: r.strain.cpuShare(), LagP99: r.strain.lag().Seconds(), ReceiverDrops: r.strain.drops, PacketsLost: r.link.lost,
		SyncP90: r.strain.sync().Seconds(),
	}
	res.LimitedBy, res.Why = r.limit(res)
	res.caution()
	res.Conclusion = res.conclude()
	return res
}

func spread(x []float64) Spread {
	e := results.MedianInterval(x, 0)
	return Spread{e.Value, e.Low, e.High}
}

func (r *run) point(p *samples) Point {
	fetch, recompute, _ := r.in.at(p.tokens, false)
	return Point{
		PrefixTokens: p.tokens, Blocks: p.tokens / r.block(), Bytes: p.tokens * r.in.bytesPerToken, Fetch: spread(p.fetch), Recompute: spread(p.recompute),
		PredictedFetch: fetch, PredictedRecompute: recompute, DaemonFetch: results.Median(p.daemon), FetchSamples: p.fetch, RecomputeSamples: p.recompute,
	}
}

func (r *run) predicted() Predicted {
	in := r.in
	out := Predicted{
		RTTSeconds: in.rtt.Seconds(), RTTSource: "measured", GoodputBps: in.goodput, GoodputSource: "measured", RoundTrips: in.trips,
		PrefillSecondsPerToken: in.perToken, PrefillFixedSeconds: in.fixed, MigrationFixedSeconds: in.migration, PrefillSource: "measured", BytesPerToken: in.bytesPerToken,
		FetchSecondsPerToken: float64(in.bytesPerToken) * 8 / in.goodput,
	}
	if r.cfg.RTT > 0 {
		out.RTTSource = "given"
	}
	if r.cfg.Goodput > 0 {
		out.GoodputSource = "given"
	}
	if _, ok := r.prefill.speed(); ok {
		out.PrefillSource = "stated"
	}
	if x, ok := in.crossover(); ok {
		out.Crossover = &x
	}
	if x, ok := planner.Crossover(in.model(true), in.compute(), in.link()); ok {
		out.BaseCrossover = &x
	}
	return out
}

func (r *run) calibration() Calibration {
	c := Calibration{
		Migrations: r.link.migrations, RTTMinSeconds: r.link.rttMin, RTTSmoothedSeconds: r.link.rttSmoothed, GoodputBps: r.link.goodput,
		LongestGoodputBps: r.link.longest, Stripes: r.link.stripes, Lengths: r.link.lengths,
	}
	if rate := r.cfg.WAN.Rate; rate > 0 {
		share := c.LongestGoodputBps / rate
		c.LinkShare = &share
	}
	return c
}

func errorPct(points []Point, of func(Point) (predicted, measured float64)) ErrorPct {
	var out ErrorPct
	var all []float64
	for _, p := range points {
		predicted, measured := of(p)
		if !(measured > 0) {
			continue
		}
		e := 100 * (predicted - measured) / measured
		all = append(all, math.Abs(e))
		if math.Abs(e) >= math.Abs(out.Worst) {
			out.Worst, out.WorstTokens = e, p.PrefixTokens
		}
	}
	if len(all) > 0 {
		out.MedianAbsolute = results.Median(all)
	}
	return out
}

// measured fits both lines and finds where they meet.
func measured(points []*samples, seed uint64) Measured {
	rounds := make([]int, len(points[0].fetch))
	for i := range rounds {
		rounds[i] = i
	}
	fetch, recompute, ok := fits(points, rounds)
	if !ok {
		return Measured{Verdict: NeverPays}
	}
	m := Measured{Fetch: line(fetch), Recompute: line(recompute), Bracket: bracket(points)}
	m.Verdict = verdict(m.Fetch, m.Recompute)
	if m.Verdict != Crosses && m.Verdict != PaysToLimit {
		return m
	}
	x := meet(m.Fetch, m.Recompute)
	if m.Verdict == PaysToLimit && x < fetch.XMin { // of no length that was measured
		m.Verdict = NeverPays
		return m
	}
	m.Crossover = &Interval{x, x, x}
	m.Extrapolated = x < fetch.XMin || x > fetch.XMax
	widen := func(low, high float64) {
		if finite(low) && finite(high) {
			m.Crossover.Low, m.Crossover.High = max(0, min(m.Crossover.Low, low)), max(m.Crossover.High, high)
		}
	}
	if c, err := results.Cross(fetch, recompute, 0); err == nil {
		widen(c.X.Low, c.X.High)
	}
	index := make([]float64, len(rounds)) // the bootstrap draws rounds, which are what is independent
	for i := range index {
		index[i] = float64(i)
	}
	e := results.BootstrapInterval(index, func(drawn []float64) float64 {
		pick := make([]int, len(drawn))
		for i, v := range drawn {
			pick[i] = int(v)
		}
		f, c, ok := fits(points, pick)
		if !ok || verdict(line(f), line(c)) != m.Verdict {
			return math.NaN()
		}
		return meet(line(f), line(c))
	}, 0, seed)
	widen(e.Low, e.High)
	return m
}

func line(f results.Fit) Line {
	return Line{FixedSeconds: f.Intercept.Value, SecondsPerToken: f.Slope.Value, R2: f.R2}
}

// meet is where two lines of different slopes meet.
func meet(fetch, recompute Line) float64 {
	return (fetch.FixedSeconds - recompute.FixedSeconds) / (recompute.SecondsPerToken - fetch.SecondsPerToken)
}

// verdict compares two lines over lengths above zero.
func verdict(fetch, recompute Line) Verdict {
	gainsPerToken := recompute.SecondsPerToken > fetch.SecondsPerToken
	costsMore := fetch.FixedSeconds > recompute.FixedSeconds
	switch {
	case gainsPerToken && costsMore:
		return Crosses
	case gainsPerToken:
		return AlwaysPays
	case costsMore || fetch.FixedSeconds == recompute.FixedSeconds:
		return NeverPays
	case fetch.SecondsPerToken == recompute.SecondsPerToken:
		return AlwaysPays
	}
	return PaysToLimit
}

// fits are the lines through the medians over those rounds, by length.
func fits(points []*samples, rounds []int) (fetch, recompute results.Fit, ok bool) {
	x, f, c := make([]float64, len(points)), make([]float64, len(points)), make([]float64, len(points))
	pick := make([]float64, len(rounds))
	of := func(all []float64) float64 {
		for i, r := range rounds {
			pick[i] = all[min(r, len(all)-1)]
		}
		return results.Median(pick)
	}
	for i, p := range points {
		x[i], f[i], c[i] = float64(p.tokens), of(p.fetch), of(p.recompute)
	}
	fetch, err1 := results.LinearFit(x, f, 0)
	recompute, err2 := results.LinearFit(x, c, 0)
	return fetch, recompute, err1 == nil && err2 == nil
}

// bracket are the neighbouring lengths between which fetch becomes the faster one.
func bracket(points []*samples) *[2]int64 {
	var out *[2]int64
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		before, after := results.Median(a.fetch) < results.Median(a.recompute), results.Median(b.fetch) < results.Median(b.recompute)
		if before == after {
			continue
		}
		if out != nil {
			return nil
		}
		out = &[2]int64{a.tokens, b.tokens}
	}
	return out
}

const (
	fullShare = 0.95 // of what a link can give to pages: then it set the number
	busyShare = 0.85 // of the processors: then they may have
	lateLag   = 5 * time.Millisecond
	slowSync  = 20 * time.Millisecond // of a record
)

// limit says what set the goodput of the longest migrations.
func (r *run) limit(res *Result) (by, why string) {
	m, c, rate := res.Machine, res.Calibration, r.cfg.WAN.Rate
	state := fmt.Sprintf("processors %.0f %% busy with it, timers up to %s late, %d packets dropped for want of room", 100*m.CPUShare, results.Format(m.LagP99, "s"), m.ReceiverDrops)
	if rate == 0 {
		return LimitMachine, "the model link has no rate: " + state
	}
	window := float64(c.Stripes) * planner.DefaultWindowPackets * planner.DefaultPacketBytes * 8 / max(c.RTTMinSeconds, 1e-9)
	late := m.LagP99 >= lateLag.Seconds() || m.ReceiverDrops > 0 // during the rounds, whatever the link gave before them
	switch share := c.LongestGoodputBps / rate; {
	case share >= fullShare*payloadShare && late:
		return LimitMachine, "before the rounds the link was full; during them the machine had no time: " + state
	case share >= fullShare*payloadShare:
		return LimitLink, fmt.Sprintf("the longest migrations got %.2f of the link's rate, about what is left beside headers", share)
	case m.CPUShare >= busyShare || late:
		return LimitMachine, fmt.Sprintf("the longest migrations got %.2f of the link's rate, and the machine had no time: %s", share, state)
	case window < rate:
		return LimitWindow, fmt.Sprintf("%d connections' windows let %s through at this round-trip time", c.Stripes, results.Format(window, "bps"))
	case r.cfg.WAN.Loss > 0 || r.cfg.WAN.Burst != nil:
		return LimitLoss, fmt.Sprintf("the longest migrations got %.2f of the link's rate: congestion control gives way at each loss", share)
	default:
		return LimitCongestion, fmt.Sprintf("the longest migrations got %.2f of the link's rate: windows were not open, or few chunks left connections idle", share)
	}
}

// lateRecompute is the error of a paced prefill, in hundredths, from which on a warning says so.
const lateRecompute = 3

// trusted is the error of a predicted time, in hundredths, up to which nothing is said.
const trusted = 10

// caution adds what must be known before the numbers are believed.
func (res *Result) caution() {
	warn := func(format string, args ...any) { res.warnings = append(res.warnings, fmt.Sprintf(format, args...)) }
	if s := res.Machine.SyncP90; s >= slowSync.Seconds() {
		warn("the disk took up to %s to sync a record, and a migration waits for two: migrations differ by that much, whatever the link does; TMPDIR=/dev/shm leaves the disk out", results.Format(s, "s"))
	}
	if res.LimitedBy == LimitMachine {
		warn("the machine, not the link, set the time of a fetch: %s", res.Why)
	}
	if e := res.TimeErrorPct.Recompute; res.Engine == EnginePaced && e.Worst < -lateRecompute {
		// Worst is in hundredths of what was measured; this is in those of what was stated.
		warn("paced prefills took %.1f %% longer than stated (%d tokens): the machine's timers were late", -100*e.Worst/(100+e.Worst), e.WorstTokens)
	}
	for _, p := range res.Points {
		for _, m := range []struct {
			name                string
			predicted, measured float64
		}{{"fetch", p.PredictedFetch, p.Fetch.Median}, {"recompute", p.PredictedRecompute, p.Recompute.Median}} {
			if e := 100 * (m.predicted - m.measured) / m.measured; m.measured > 0 && math.Abs(e) > trusted {
				warn("the prediction is off by %+.1f %%: %s of %d tokens took %s, predicted %s", e, m.name, p.PrefixTokens, results.Format(m.measured, "s"), results.Format(m.predicted, "s"))
			}
		}
	}
	if res.Measured.Extrapolated {
		warn("the crossover lies outside of the lengths measured: measure there before believing it")
	}
	if res.Rounds < leastRounds {
		warn("%d rounds only: the interval says little", res.Rounds)
	}
}
