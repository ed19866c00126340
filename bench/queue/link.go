package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// minShare is what lone transfers must get of the link for the same: headers take a twentieth.
const minShare = 0.85

// maxSizes bounds a job, in means: the share of exponential sizes beyond is e^-16.
const maxSizes = 16

// minR2 is how well a line must fit lone transfers for the link to be taken for one server.
const minR2 = 0.99

// unloaded is what a lone transfer takes: propagation and rate.
type unloaded struct {
	seconds float64
	rate    float64 // bytes a second
	r2      float64
	// disturbed is how much longer than the least a lone transfer usually takes, seconds: what this machine adds.
	disturbed float64
	// ahead is how long a small transfer waits behind one that fills the link, seconds, of a sender that
	// sends the least first.
	ahead float64
	// law is the order that counts.
	law string
}

// measureLink calibrates the link, then measures each utilization, as far as ctx lasts. What was measured is in the results
// with an error as well.
func measureLink(ctx context.Context, cfg Config, res *Result) error {
	if err := measureOrder(ctx, cfg, res, LinkLaw, 0, &res.Link); err != nil {
		return err
	}
	return measureOrder(ctx, cfg, res, SharingLaw, allAtATime, &res.Sharing)
}

// allAtATime is a transfer.Config.Concurrency that no measurement exceeds.
const allAtATime = 1024

// measureOrder measures the link with a sender of that concurrency, whose order the law describes.
func measureOrder(ctx context.Context, cfg Config, res *Result, law string, concurrency int, to **Link) (err error) {
	size := geometric{mean: float64(cfg.JobBytes), max: int(maxSizes*cfg.JobBytes/pageBytes) + 1}
	b, err := openTestbed(ctx, testbedConfig{wan: cfg.WAN, stripes: cfg.Stripes, chunk: cfg.ChunkBytes, maxPages: size.max, seed: cfg.Seed, concurrency: concurrency})
	if err != nil {
		return fmt.Errorf("set up link: %w", err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	cfg.Progress.Stage(fmt.Sprintf("warming and calibrating the link, %s", law), 0)
	idle, err := b.calibrate(ctx, size)
	if idle.law = law; err == nil && law == LinkLaw {
		idle.ahead, err = b.onItsWay(ctx, size, idle)
	}
	if err != nil {
		return fmt.Errorf("calibrate link: %w", err)
	}
	l := &Link{
		WAN: cfg.WAN.String(), Stripes: cfg.Stripes, ChunkBytes: cfg.ChunkBytes, Law: law, AheadSeconds: idle.ahead,
		DisturbedSeconds: idle.disturbed, RateBps: 8 * idle.rate, UnloadedSeconds: idle.seconds, R2: idle.r2,
	}
	*to = l
	switch share := 8 * idle.rate / cfg.WAN.Rate; {
	case idle.r2 < minR2:
		res.warn("the time of a lone transfer is not in line with its size (R² %.3f): the link is not one server of a steady speed, "+
			"as when a small transfer cannot fill it alone, or this machine is too busy; waits over QUIC are then not comparable with the laws: use fewer stripes, smaller chunks or a longer queue", idle.r2)
	case share < minShare:
		res.warn("lone transfers get %.0f %% of the link's rate: loss, or this machine, keeps them from filling it; waits over QUIC are then not comparable with the laws", 100*share)
	default:
		l.Calibrated = true
	}
	for _, rho := range cfg.LinkUtilizations {
		p, e, err := b.measure(ctx, cfg, rho, size, idle)
		if err != nil {
			return fmt.Errorf("measure link at utilization %v: %w", rho, err)
		}
		res.judge(&p, e, cfg.Precision)
		res.Points = append(res.Points, p)
	}
	return nil
}

// calibrations is how many lone transfers of each size are measured.
const calibrations = 8

// calibrate opens the windows, then measures lone transfers of several sizes.
func (b *testbed) calibrate(ctx context.Context, size geometric) (unloaded, error) {
	const at = 4 // side by side
	big := max(1, size.max/4)
	for range 4 {
		var wg sync.WaitGroup
		errs := make([]error, at)
		for i := range at {
			wg.Go(func() { _, errs[i] = b.fetch(ctx, big) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return unloaded{}, err
		}
	}
	shares := []float64{1. / 8, 1. / 4, 1. / 2, 1, 2, 4}
	x, y := make([]float64, len(shares)), make([]float64, len(shares))
	took, over := make([][]float64, len(shares)), make([]float64, len(shares))
	for range calibrations {
		for i, share := range shares {
			pages := max(1, int(math.Round(share*size.mean/pageBytes)))
			d, err := b.fetch(ctx, pages)
			if err != nil {
				return unloaded{}, err
			}
			x[i] = float64(pages * pageBytes)
			took[i] = append(took[i], d)
		}
	}
	for i := range y { // the least: alone on the link, whatever disturbs a transfer only makes it longer
		y[i] = slices.Min(took[i])
		over[i] = results.Median(took[i]) - y[i]
	}
	f, err := results.LinearFit(x, y, 0)
	if err != nil {
		return unloaded{}, err
	}
	if !(f.Slope.Value > 0) {
		return unloaded{}, fmt.Errorf("lone transfers of more bytes took no longer (%.3g s a byte): this machine is too busy to measure", f.Slope.Value)
	}
	return unloaded{seconds: f.Intercept.Value, rate: 1 / f.Slope.Value, r2: f.R2, disturbed: results.Median(over)}, nil
}

// onItsWay is how long a small transfer waits that comes while a large one fills the link, seconds: under a sender that sends the
// least first it is what no order can change, because it is on its way.
func (b *testbed) onItsWay(ctx context.Context, size geometric, idle unloaded) (float64, error) {
	var took []float64
	for i := range calibrations {
		var wg sync.WaitGroup
		var big error
		wg.Go(func() { _, big = b.fetch(ctx, size.max) })
		// Somewhere in the large one, at another place each time.
		lead := time.NewTimer(time.Duration((0.3 + 0.4*float64(i)/calibrations) * float64(size.max*pageBytes) / idle.rate * 1e9))
		select {
		case <-lead.C:
		case <-ctx.Done():
		}
		lead.Stop()
		d, err := b.fetch(ctx, 1)
		wg.Wait()
		if err = errors.Join(err, big); err != nil {
			return 0, err
		}
		took = append(took, d-idle.seconds-pageBytes/idle.rate)
	}
	return max(0, meanOf(took)), nil
}

// late says that the machine, not the link, may have set the waits.
func (p Point) late() bool { return p.QUIC != nil && p.QUIC.LateP99Seconds > p.ServiceSeconds }

// fetched is what the jobs of one utilization did. There may be more jobs than waits: those that arrived before the measurement
// ended and were not done, which others waited for.
type fetched struct {
	jobs    []job // arrivals as they were, service as an idle link would take, without propagation
	wait    []float64
	backlog []float64
	late    []float64 // how long after its time each job started
	seconds float64   // in which they arrived
}

// measure runs jobs at one utilization until the mean wait is known well enough, or Duration is over, and compares them with the
// simulator.
func (b *testbed) measure(ctx context.Context, cfg Config, rho float64, size geometric, idle unloaded) (Point, estimate, error) {
	mean, scv := size.moments()
	service := mean / idle.rate
	n := max(2*linkBatches, int(rho/service*cfg.Duration.Seconds()))
	rng := newRand(cfg.Seed, fmt.Sprintf("link %v", rho))
	jobs := poisson(n, rho/service, rng, func() float64 { return float64(size.draw(rng)*pageBytes) / idle.rate })
	cfg.Progress.Stage(fmt.Sprintf("real QUIC, %s, at utilization %v, at most", idle.law, rho), float64(n))
	law, err := simulatedWait(cfg, rho, size, idle)
	if err != nil {
		return Point{}, estimate{}, err
	}
	before := b.dropped()
	got, err := b.load(ctx, jobs, idle, cfg, law.Value)
	if err != nil {
		return Point{}, estimate{}, err
	}
	n = len(got.wait)
	skip := warmUp(n)
	raw, err := estimateOf(got.wait[skip:])
	if err != nil {
		return Point{}, estimate{}, fmt.Errorf("waits: %w", err)
	}
	series := adjusted(got.wait, got.control(cfg, idle), law.Value)
	wait, err := estimateOf(series)
	if err != nil {
		return Point{}, estimate{}, fmt.Errorf("waits: %w", err)
	}
	replays, err := replay(got, skip, cfg, idle)
	if err != nil {
		return Point{}, estimate{}, err
	}
	p := Point{
		Source: SourceQUIC, Discipline: replays[0].Discipline, Service: Exponential, Utilization: rho,
		ServiceSeconds: service, ServiceSCV: scv, Jobs: n - skip,
		Wait:         Wait{Measured: wait.Value, Laws: lawsAt(rho, service, scv), Backlog: meanOf(got.backlog[skip:])},
		WaitInterval: Interval{Low: wait.Low, High: wait.High, Level: wait.Level, Lag1: wait.lag1},
		Backlog:      errorsOf(got.backlog[skip:], got.wait[skip:]),
		SizeSlope:    slopeOf(got.jobs[skip:n], got.wait[skip:]),
		samples:      batchMeans(series, linkBatches),
		QUIC: &LinkPoint{
			Law: idle.law, Raw: Measured{Mean: raw.Value, Low: raw.Low, High: raw.High}, Replays: replays, LateSeconds: slices.Max(got.late), LateP99Seconds: results.Quantile(got.late, .99), Seconds: got.seconds,
			LostPackets: b.dropped() - before, Offered: offered(got.jobs[:n]),
		},
	}
	p.QUIC.Simulated = Measured{Mean: law.Value, Low: law.Low, High: law.High}
	p.QUIC.Detectable = detectable(wait.Estimate, p.samples, law) + idle.disturbed/law.Value
	// What the machine adds to a lone transfer may be in each wait, or not: that is no luck that more jobs would even out.
	known := wait.Estimate
	known.Low -= idle.disturbed
	p.WaitInterval.Low = known.Low
	p.QUIC.Overlaps = known.Overlaps(law)
	return p, wait, nil
}

// load starts each job when it arrives, until the mean wait of those that are done is known well enough, and waits for all that
// were started.
func (b *testbed) load(ctx context.Context, jobs []job, idle unloaded, cfg Config, law float64) (got fetched, err error) {
	n := len(jobs)
	got = fetched{jobs: make([]job, n), wait: make([]float64, n), backlog: make([]float64, n), late: make([]float64, n)}
	errs := make([]error, n)
	done := newPrefix(n)
	look := firstLook
	var wg sync.WaitGroup
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	start := time.Now()
	for i, j := range jobs {
		if i >= look {
			look = int(float64(i) * lookAgain)
			so := fetched{jobs: got.jobs[:i], wait: got.wait[:done.len()]}
			if enough(adjusted(so.wait, so.control(cfg, idle), law), cfg.Precision) {
				n = len(so.wait) // what this look saw is what counts
				break
			}
		}
		timer.Reset(max(0, time.Duration(j.at*1e9)-time.Since(start)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			wg.Wait() // the fetches end with ctx too
			return got, context.Cause(ctx)
		}
		at := time.Since(start).Seconds()
		got.late[i], got.seconds = max(0, at-j.at), at
		got.jobs[i] = job{at: at, service: j.service}
		got.backlog[i] = float64(b.served.Stats().QueuedBytes) / idle.rate
		wg.Go(func() {
			var took float64
			took, errs[i] = b.fetch(ctx, int(math.Round(j.service*idle.rate/pageBytes)))
			got.wait[i] = took - idle.seconds - j.service
			done.add(i)
			cfg.Progress.Add(1)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return got, context.Cause(ctx)
	}
	arrived := n
	for arrived < len(got.jobs) && got.jobs[arrived].service > 0 {
		arrived++
	}
	got.jobs, got.wait, got.backlog, got.late = got.jobs[:arrived], got.wait[:n], got.backlog[:n], got.late[:n]
	return got, errors.Join(errs...)
}

// prefix counts the first jobs that are all done. What they wrote before add may be read after len.
type prefix struct {
	mu   sync.Mutex
	done []bool
	n    int
}

func newPrefix(n int) *prefix { return &prefix{done: make([]bool, n)} }

func (p *prefix) add(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.done[i] = true; p.n < len(p.done) && p.done[p.n]; p.n++ {
	}
}

func (p *prefix) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// control is what each measured job waits under the law that counts, among the same arrivals.
func (f fetched) control(cfg Config, idle unloaded) []float64 {
	for _, d := range orders(cfg, idle) {
		if d.Name == idle.law {
			return d.serve(f.jobs).wait[:len(f.wait)]
		}
	}
	return make([]float64, len(f.wait)) // not reached: the law is one of them
}

// orders are the disciplines that a measurement is held against.
func orders(cfg Config, idle unloaded) []Discipline {
	quantum := float64(cfg.ChunkBytes) / idle.rate
	all := []Discipline{FIFO(), ProcessorSharing(), Chunked(cfg.Stripes*streamsPerStripe, quantum)}
	if idle.law == LinkLaw {
		all = append(all, LeastLeft(idle.ahead, quantum))
	}
	return all
}

// streamsPerStripe is package transfer's default, which the testbed does not change.
const streamsPerStripe = 2

// replay simulates the jobs as they arrived under each discipline, nearest to what was measured first.
func replay(got fetched, skip int, cfg Config, idle unloaded) ([]Replay, error) {
	var out []Replay
	for _, d := range orders(cfg, idle) {
		sim := d.serve(got.jobs).wait[:len(got.wait)]
		diff := make([]float64, len(sim)-skip)
		for i := range diff {
			diff[i] = got.wait[skip+i] - sim[skip+i]
		}
		e, _, err := results.BatchMeans(diff, linkBatches, 0)
		if err != nil {
			return nil, fmt.Errorf("compare waits: %w", err)
		}
		out = append(out, Replay{
			Discipline: d.Name, Slots: d.Slots, Mean: meanOf(sim[skip:]), Difference: Measured{Mean: e.Value, Low: e.Low, High: e.High},
			RMS: errorsOf(sim[skip:], got.wait[skip:]).RMS, Correlation: correlation(sim[skip:], got.wait[skip:]),
		})
	}
	slices.SortStableFunc(out, func(a, b Replay) int { return cmp.Compare(a.RMS, b.RMS) })
	return out, nil
}

// simulatedWait is the simulator's mean wait of the law with many jobs of the link's sizes.
func simulatedWait(cfg Config, rho float64, size geometric, idle unloaded) (results.Estimate, error) {
	rng := newRand(cfg.Seed, fmt.Sprintf("law of the link %v", rho))
	mean, _ := size.moments()
	jobs := poisson(cfg.Jobs, rho*idle.rate/mean, rng, func() float64 {
		return float64(size.draw(rng)*pageBytes) / idle.rate
	})
	for _, d := range orders(cfg, idle) {
		if d.Name == idle.law {
			e, _, err := results.BatchMeans(d.serve(jobs).wait[warmUp(cfg.Jobs):], batches, 0)
			return e, err
		}
	}
	return results.Estimate{}, fmt.Errorf("BUG: discipline %q is not among the orders", idle.law)
}

// dropped is how many packets the link from the source has dropped.
func (b *testbed) dropped() int64 {
	s := b.network.Stats(netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 0, 2}))
	return s.DroppedLoss + s.DroppedQueue + s.DroppedCut + s.DroppedMTU + s.DroppedReceiver
}

// offered is the utilization that the arrivals drawn make.
func offered(jobs []job) float64 {
	var work float64
	for _, j := range jobs {
		work += j.service
	}
	return work / jobs[len(jobs)-1].at
}

func correlation(a, b []float64) float64 {
	ma, mb := meanOf(a), meanOf(b)
	var ab, aa, bb float64
	for i := range a {
		ab += (a[i] - ma) * (b[i] - mb)
		aa += (a[i] - ma) * (a[i] - ma)
		bb += (b[i] - mb) * (b[i] - mb)
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb)
}

// nearest is the order whose replays differ least over all points, relative to each point's service time; "" without any.
func nearest(points []Point) string {
	sum := map[string]float64{}
	for _, p := range points {
		if p.QUIC == nil {
			continue
		}
		for _, r := range p.QUIC.Replays {
			d := r.RMS / p.ServiceSeconds
			sum[r.Discipline] += d * d
		}
	}
	best := ""
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		if best == "" || sum[name] < sum[best] {
			best = name
		}
	}
	return best
}
