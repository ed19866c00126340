package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/nvml"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// computeInputs is what the planner knows of an engine's prefill. The reason for PrefillUnavailable comes beside it.
//
// The speed is, in this order: a fit to what was observed here within the hour; what the engine's own metrics measured lately; a fit to
// what was observed within the day; what the engine registered, a prior that is shown as one. The registered one is
// taken for the speed at full clocks and is divided by what throttling leaves of them; the others were taken at the
// clocks of their time and are left alone. The queue is the requests that wait for capacity, by the prompt tokens that a
// request has computed on average since the engine started, by the seconds a token: a lower bound, since they may wait
// for others' decoding too. What is not known is not counted, and the source says so: unknown is not zero. Memory and a
// lost GPU are vetoes. Utilization moves no figure but the spread, which is that of the speed's source, widened by the busiest device.
func (d *Daemon) computeInputs(e *engine, m planner.Model, r planner.Request) (c planner.Compute, veto string) {
	load, loadErr := d.load.engine(e.id)
	c, measured := speedOf(load, loadErr, e.speed(), d.prefillFit(e), r)
	devices, problem := d.load.devicesOf(e.id, e.pids())
	notes := []string{c.Source}
	note := func(s string) {
		if s != "" {
			notes = append(notes, s)
		}
	}
	note(slowDown(&c, devices, measured))
	note(queue(&c, load, loadErr, m))
	note(busy(&c, devices))
	note(problem)
	if veto = vetoOf(devices, d.cfg.GPU.PrefillBytes); veto != "" {
		c.PrefillUnavailable = true
		note("no prefill: " + veto)
	}
	c.Source = strings.Join(notes, "; ")
	return c, veto
}

// pids are the engine's registered processes whose number is known here: one of another pid namespace has none.
func (e *engine) pids() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]int, 0, len(e.mu.procs))
	for _, p := range e.mu.procs {
		if p.pid > 0 {
			out = append(out, p.pid)
		}
	}
	return out
}

// speedOf is the prefill speed and where it comes from. measured: here, or by the engine's metrics.
//
// The metrics are no observations of the fit: they are sums over requests of unknown lengths, of which those of one batch count the
// whole time each.
func speedOf(load engineload.Load, loadErr error, sp *pb.PrefillSpeed, fit fitted, r planner.Request) (c planner.Compute, measured bool) {
	p := load.Prefill
	if fit.usable() && fit.age <= fitFresh {
		return fit.compute(r.PresentTokens, r.PrefixTokens), true
	}
	if v := p.SecondsPerToken; loadErr == nil && v.Known && v.Value >= 1e-12 && v.Value < 1e6 {
		source := fmt.Sprintf("measured by the engine's metrics over %.0f tokens, %v ago", p.Tokens, time.Since(p.Until).Round(time.Second))
		return planner.Compute{SecondsPerToken: v.Value, Spread: scrapedSpread, Source: source}, true
	}
	if fit.usable() {
		return fit.compute(r.PresentTokens, r.PrefixTokens), true
	}
	c = computeOf(sp)
	if fit.kept > 0 {
		c.Source += fmt.Sprintf("; %d observed prefills do not suffice (R2 %.2f, the last %v ago)", fit.kept, fit.R2, fit.age.Round(time.Second))
	}
	return c, false
}

// Spreads of a prefill's predicted time by where its speed comes from. Choices, and no measurements of this replica: simulators
// that know the engine are off by 5 to 9 %, and the share of peak FLOPS that prefill reaches goes from 0.36 to 0.51.
const (
	scrapedSpread    = 0.10 // measured lately, on what the engine was serving
	registeredSpread = 0.15 // measured once
	flopsSpread      = 0.20
)

// slowDown divides a registered speed by what throttling leaves of the clocks of the slowest device: tensor-parallel
// ranks wait for it.
func slowDown(c *planner.Compute, devices []device, measured bool) string {
	scale, which := 1.0, device{}
	for _, v := range devices {
		if s, ok := nvml.ClockScale(v.whole).Get(); ok && s > 0 && s < scale {
			scale, which = s, v
		}
	}
	if scale == 1 {
		return ""
	}
	reasons, _ := which.whole.Clocks.Throttling.Get()
	text := fmt.Sprintf("%s at %.0f %% of its clock (%s)", which, 100*scale, reasons)
	if measured {
		return text + ", not charged again: it was measured"
	}
	c.SecondsPerToken /= scale
	c.PeakFLOPS *= scale
	return text
}

// queue fills in the visible backlog.
func queue(c *planner.Compute, load engineload.Load, loadErr error, m planner.Model) string {
	switch {
	case errors.Is(loadErr, errNotScraped):
		return ""
	case loadErr != nil:
		return "queue unknown: " + loadErr.Error()
	case !load.Waiting.Known:
		return "queue unknown: the engine does not say how many requests wait"
	case load.Waiting.Value == 0:
		c.QueueKnown = true
		return "no request waits"
	}
	waiting := load.Waiting.Value
	computed, requests := load.ComputedTokens, load.QueueRequests
	if !computed.Known || !requests.Known || requests.Value < 1 {
		return fmt.Sprintf("queue unknown: %.0f requests wait, their tokens are not known", waiting)
	}
	perToken := c.SecondsPerToken
	if perToken == 0 && c.PeakFLOPS > 0 && m.ParamsActive > 0 {
		mfu := orDefault(c.MFU, planner.DefaultMFU)
		perToken = 2 * m.ParamsActive / (c.PeakFLOPS * mfu)
	}
	if perToken == 0 {
		return fmt.Sprintf("queue unknown: %.0f requests wait, the prefill speed is not known", waiting)
	}
	mean := computed.Value / requests.Value
	perToken += c.SecondsPerTokenSquared * mean
	c.QueueSeconds, c.QueueKnown = min(waiting*mean*perToken, maxQueueSeconds), true
	return fmt.Sprintf("%.0f requests wait, about %.0f tokens each", waiting, mean)
}

// maxQueueSeconds is a day: far beyond any deadline, and within what the planner takes.
const maxQueueSeconds = 86400

// busy quotes utilization and widens the spread by it.
func busy(c *planner.Compute, devices []device) string {
	var most float64
	factor := 1.0
	known := false
	for _, v := range devices {
		if u, ok := v.whole.Utilization.GPU.Get(); ok {
			most, known = max(most, u), true
		}
		if s, ok := nvml.SpreadFactor(v.whole).Get(); ok {
			factor = max(factor, s)
		}
	}
	c.Spread *= factor
	if !known {
		return ""
	}
	return fmt.Sprintf("GPU busy %.0f %% of the time, which says nothing of a queue and widens the spread by %.2f", 100*most, factor)
}

// vetoOf says why the devices can't prefill, or nothing.
func vetoOf(devices []device, need int64) string {
	for _, v := range devices {
		if v.State == nvml.StateLost || v.whole.State == nvml.StateLost {
			return fmt.Sprintf("%s is lost: %s", v, firstOf(v.Reason, v.whole.Reason))
		}
		if short, ok := nvml.MemoryVeto(v.GPU, uint64(max(0, need))).Get(); ok && short {
			free, _ := v.Memory.Free.Get()
			return fmt.Sprintf("%s has %d bytes free, gpu.prefill_bytes is %d", v, free, need)
		}
	}
	return ""
}

func firstOf(texts ...string) string {
	i := slices.IndexFunc(texts, func(s string) bool { return s != "" })
	if i < 0 {
		return "no reason given"
	}
	return texts[i]
}

// explainVeto puts the reason for which prefill is not available where the planner says that it is not.
func explainVeto(d *planner.Decision, veto string) {
	if veto == "" {
		return
	}
	for i, p := range d.Modes {
		if p.Refusal != planner.RefusalUnavailable {
			continue
		}
		d.Modes[i].Reason += ": " + veto
		if d.Winner == planner.ModeNone {
			d.Reason += ": " + veto
		}
	}
}
