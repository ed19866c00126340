package planner

import "math"

// Defaults of [PageHinkley]. Of independent normal samples with deviation 0.1 an alarm comes once in some 10⁷, with 0.05 never; a shift by a
// quarter (0.22) alarms after seven or eight samples, one by half or double after three.
const (
	DefaultDrift       = 0.1
	DefaultDriftAlarm  = 0.8
	DefaultDriftSample = 0.5
)

// PageHinkley tells a lasting change of a predicted quantity from noise, in either direction, by the test of Page and Hinkley over
// log(observed/predicted), whose mean is 0 as long as predictions hold. Each direction adds up what samples exceed Drift by, not
// below 0; it alarms above Alarm. The zero value is ready, with the defaults. It is not safe for concurrent use.
type PageHinkley struct {
	// Drift is δ, the change that is tolerated. Zero: [DefaultDrift].
	Drift float64
	// Alarm is λ, the sum above which there is a change. Zero: [DefaultDriftAlarm].
	Alarm float64
	// Sample bounds what one sample counts, so that a single one, however far off, is no change. Zero: [DefaultDriftSample].
	Sample float64

	up, down           float64
	sinceUp, sinceDown int
}

// Observe takes in log(observed/predicted) and reports whether that, with those before it, is a change. since is then the number of
// samples, this one included, since it began; 0 without one. After an alarm it has forgotten everything. NaN is ignored.
func (p *PageHinkley) Observe(logRatio float64) (since int, alarm bool) {
	if math.IsNaN(logRatio) {
		return 0, false
	}
	or := func(v, zero float64) float64 {
		if v == 0 {
			return zero
		}
		return v
	}
	drift, bound, sample := or(p.Drift, DefaultDrift), or(p.Alarm, DefaultDriftAlarm), or(p.Sample, DefaultDriftSample)
	x := min(max(logRatio, -sample), sample)
	p.up, p.sinceUp = grow(p.up, p.sinceUp, x-drift)
	p.down, p.sinceDown = grow(p.down, p.sinceDown, -x-drift)
	switch {
	case p.up > bound:
		since = p.sinceUp
	case p.down > bound:
		since = p.sinceDown
	default:
		return 0, false
	}
	p.Reset()
	return since, true
}

// Quiet reports whether no sample counts that came so far: whatever changes, changes from here on.
func (p *PageHinkley) Quiet() bool { return p.up == 0 && p.down == 0 }

// Reset forgets all samples.
func (p *PageHinkley) Reset() { p.up, p.down, p.sinceUp, p.sinceDown = 0, 0, 0, 0 }

func grow(sum float64, since int, x float64) (float64, int) {
	if sum+x <= 0 {
		return 0, 0
	}
	return sum + x, since + 1
}
