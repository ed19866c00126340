package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/planner"
)

const (
	// keptPrefills is how many of an engine's last observed prefills are remembered: what came before has lost nine tenths of its weight.
	keptPrefills = 128
	// maxReplicas bounds the engines that are remembered; the one not heard for longest goes.
	maxReplicas = 256
	// From leastPrefills observations on, and with leastR2, a fit replaces what the engine says of itself; from leastDrift on it is watched.
	leastPrefills, leastDrift = 3, 5
	leastR2                   = 0.9
	// The engine's metrics are taken where a fit is older than fitFresh.
	fitFresh = time.Hour
	// Noise beyond quietSigma is scaled to it before it is looked at for drift, so that a noisy path or replica does not alarm for that.
	quietSigma = 0.1
)

// What can drift, in metrics.
const (
	driftPath    = "path"
	driftReplica = "replica"
)

// calibration is what was observed of the prefill of each engine, over registrations and restarts. Losing it costs observing again, so a
// file that can't be read is dropped.
type calibration struct {
	file string // empty: memory only
	mu   struct {
		sync.Mutex
		replicas map[string]*replica // by the engine's id
		changed  bool
		written  time.Time
	}
}

// replica is one engine's prefill.
type replica struct {
	pin   string // of the layout that it was observed with
	prior planner.PrefillLaw
	kept  []observedPrefill // oldest first, at most keptPrefills
	fit   *planner.RLS      // of those and, by their small weight, of some before
	drift planner.PageHinkley
	// steady is the fit that observations are held against: from before the first that drift counts, so that a change does not hide
	// itself by moving the fit.
	steady planner.PrefillFit
}

type observedPrefill struct {
	planner.Prefill
	at time.Time
}

// rebuild fits what is kept.
func (r *replica) rebuild() {
	fit, err := planner.NewRLS(planner.RLSConfig{Prior: r.prior})
	if err != nil { // an engine may register any number
		fit = &planner.RLS{}
	}
	r.fit = fit
	r.drift.Reset()
	for _, p := range r.kept {
		_ = fit.Observe(p.Prefill) // validated when it was taken in
	}
}

// observe takes in a prefill. since, unless it is 0, is how many observations, this one included, the replica has had another pace for;
// nothing before them is kept.
func (r *replica) observe(p observedPrefill) (since int, err error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if r.drift.Quiet() {
		r.steady = r.fit.Fit()
	}
	if r.steady.Observed >= leastDrift {
		ratio := math.Log(p.Seconds / r.steady.Law.Seconds(p.Cached, p.Uncached))
		since, _ = r.drift.Observe(ratio / max(1, r.steady.Sigma/quietSigma))
	}
	r.kept = append(r.kept, p)
	r.kept = slices.Delete(r.kept, 0, max(0, len(r.kept)-keptPrefills))
	if since > 0 {
		r.kept = slices.Delete(r.kept, 0, max(0, len(r.kept)-since))
		r.rebuild()
		return since, nil
	}
	return 0, r.fit.Observe(p.Prefill)
}

// ofLocked is the replica of an engine with that layout; what was observed with another is dropped.
func (c *calibration) ofLocked(id, pin string, prior planner.PrefillLaw) *replica {
	r := c.mu.replicas[id]
	switch {
	case r == nil || r.pin != pin:
		r = &replica{pin: pin, prior: prior}
		r.rebuild()
	case r.fit == nil || r.prior != prior:
		r.prior = prior
		r.rebuild()
	}
	return r
}

// observe takes in a prefill of an engine.
func (c *calibration) observe(id, pin string, prior planner.PrefillLaw, p observedPrefill) (since int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.ofLocked(id, pin, prior)
	if since, err = r.observe(p); err != nil {
		return 0, err
	}
	c.mu.replicas[id] = r
	c.mu.changed = true
	if len(c.mu.replicas) > maxReplicas {
		c.forgetOldestLocked(id)
	}
	return since, nil
}

// forgetOldestLocked drops the engine that was not heard for longest, but for one.
func (c *calibration) forgetOldestLocked(but string) {
	oldest := ""
	for id, r := range c.mu.replicas {
		if id != but && (oldest == "" || r.last().Before(c.mu.replicas[oldest].last())) {
			oldest = id
		}
	}
	delete(c.mu.replicas, oldest)
}

// last is when it was observed last. Something is kept.
func (r *replica) last() time.Time { return r.kept[len(r.kept)-1].at }

// fitted is what is known of an engine's prefill.
type fitted struct {
	planner.PrefillFit
	kept int           // observations that it rests on, and others like them that have faded
	age  time.Duration // of the last of them
}

// usable says that the fit is better than what the engine said of itself.
func (f fitted) usable() bool {
	return f.kept >= leastPrefills && f.R2 >= leastR2 && f.age <= planner.DefaultMaxAge && f.Law.Linear > 0
}

// fit is what is known of an engine's prefill by now; kept is 0 where nothing was observed.
func (c *calibration) fit(id, pin string, prior planner.PrefillLaw) fitted {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.mu.replicas[id]; r == nil || r.pin != pin {
		return fitted{}
	}
	r := c.ofLocked(id, pin, prior)
	return fitted{r.fit.Fit(), len(r.kept), max(time.Since(r.last()), 0)} // a clock that was set back makes nothing younger
}

// prefillPrior is what the engine says of its prefill, as a law. Nothing: zero.
func (e *engine) prefillPrior() planner.PrefillLaw {
	sp := e.speed()
	c := computeOf(sp)
	law, _ := c.Law(planner.Model{
		ParamsActive: sp.GetParamsActive(), QueryHeads: int(sp.GetQueryHeads()), Layers: e.layout.Layers, AttnHeadDim: float64(e.layout.HeadDim),
		AttentionOff: sp.GetQueryHeads() == 0,
	})
	return law
}

// prefillFit is what was observed of the engine's prefill.
func (d *Daemon) prefillFit(e *engine) fitted {
	if d.calibration == nil {
		return fitted{}
	}
	return d.calibration.fit(e.id, e.layout.Pin().String(), e.prefillPrior())
}

// observePrefill takes in one prefill of an engine.
func (d *Daemon) observePrefill(e *engine, p planner.Prefill) {
	since, err := d.calibration.observe(e.id, e.layout.Pin().String(), e.prefillPrior(), observedPrefill{p, time.Now()})
	if err != nil || since == 0 {
		return // out of any prefill's range: nothing is learned from it
	}
	d.drifted(driftReplica, slog.String("engine_id", e.id), since)
}

// drifted counts and logs that predictions no longer hold.
func (d *Daemon) drifted(what string, who slog.Attr, since int) {
	d.metrics.drift.WithLabelValues(what).Inc()
	d.log.LogAttrs(context.Background(), slog.LevelWarn, "what the planner predicts has changed; what was observed before is dropped",
		slog.String("what", what), who, slog.Int("observations_since", since))
}

// openCalibration reads what is remembered of engines.
func (d *Daemon) openCalibration(memoryOnly bool) {
	file := ""
	if !memoryOnly {
		file = filepath.Join(d.cfg.StateDir, "calibration.json")
	}
	var err error
	if d.calibration, err = openCalibration(file); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "past observations of engines are dropped", slog.Any("error", err))
	}
}

// keepCalibration writes what was observed of engines.
func (d *Daemon) keepCalibration(now bool) {
	if err := d.calibration.flush(now); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "observations of engines are not kept", slog.Any("error", err))
	}
}

// compute is the fit for the planner, for a prefill of tokens [from, to).
func (f fitted) compute(from, to int64) planner.Compute {
	return planner.Compute{
		SecondsPerToken: max(f.Law.Linear, 1e-12), SecondsPerTokenSquared: f.Law.Quadratic, FixedSeconds: f.Law.Fixed, Age: f.age,
		Spread: f.Spread(from, max(to-from, 1)),
		Source: fmt.Sprintf("fitted to %v, the last %v ago", f.PrefillFit, f.age.Round(time.Second)),
	}
}
