package compare

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// A Result is what Run measured.
type Result struct {
	// Results in the order they were asked for; those of which nothing was measured are left out.
	Results []*Outcome
	// Floor is quic-go over in-memory connections; nil when it was not measured.
	Floor *Outcome
	// Ratios are kvferry's numbers over the others'.
	Ratios []Ratio
	// Interrupted: ctx ended before everything was measured.
	Interrupted bool

	started time.Time
	machine results.Machine // at the start
	seconds float64
	params  map[string]any
}

// The limits of an Outcome.
const (
	LimitProcessors = "processors" // all of them were busy with it
	LimitOthers     = "others"     // other work of the machine took a part of them
	LimitOneThread  = "one_thread" // a processor's worth of work, while others idled: the way runs one thread at a time
	LimitProtocol   = "protocol"   // processors idled: it waited for itself
)

// An Outcome is what one way gave. Numbers are medians of its runs unless they say otherwise.
type Outcome struct {
	Name       string  `json:"name"`
	What       string  `json:"what"`
	GbpsMedian float64 `json:"gbps_median"` // 1e9 bits of verified pages a second
	GbpsMin    float64 `json:"gbps_min"`
	GbpsMax    float64 `json:"gbps_max"`
	CPU        CPU     `json:"cpu_seconds_per_gb"`
	// CPUShare is what both ends used of the machine's processors.
	CPUShare float64 `json:"cpu_share"`
	// OthersShare is the most that anything else used of them during a run; nil where unknown.
	OthersShare *float64 `json:"others_share"`
	LimitedBy   string   `json:"limited_by"`  // one of the Limit constants
	Why         string   `json:"limited_why"` // for a person
	Runs        []*Turn  `json:"runs"`
}

// CPU is processor seconds a GB moved, by end; the floor's ends share a process, so that it has a total only.
type CPU struct {
	Source      *float64 `json:"source"`
	Destination *float64 `json:"destination"`
	Total       float64  `json:"total"`
}

// The quantities of a Ratio.
const (
	QuantityGoodput = "goodput"
	QuantityCPU     = "cpu_seconds_per_gb"
)

// A Ratio is kvferry's number over another's, taken within each round.
type Ratio struct {
	Of       string  `json:"of,omitempty"` // whose number is divided, where it is not kvferry's
	To       string  `json:"to"`
	Quantity string  `json:"quantity"`
	Median   float64 `json:"median"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	// Aim is what it should be: at least, or with QuantityCPU at most; nil without one.
	Aim *float64 `json:"aim"`
	// Met is whether it was reached: nil without an aim, and when the interval of the rounds' median holds the aim, so that more rounds
	// might say otherwise. Answer is the same in a word, one of the Answer constants; empty without an aim.
	Met    *bool  `json:"met"`
	Answer string `json:"answer,omitempty"`
}

// The answers of a Ratio to its aim.
const (
	AnswerMet     = "met"
	AnswerMissed  = "missed"
	AnswerUnclear = "unclear" // the interval holds the aim, or there is one round only
)

// judge holds the ratio, of those values, to an aim: at least, or with QuantityCPU at most. The interval of the median decides: at
// 95 % from six rounds on, the extremes with fewer.
func (r *Ratio) judge(aim float64, v []float64) {
	r.Aim, r.Answer = &aim, AnswerUnclear
	e := results.MedianInterval(v, 0)
	above, below := e.Low >= aim, e.High < aim
	if r.Quantity == QuantityCPU {
		above, below = e.High <= aim, e.Low > aim
	}
	if len(v) < 2 || above == below {
		return
	}
	r.Met = &above
	r.Answer = AnswerMissed
	if above {
		r.Answer = AnswerMet
	}
}

// aims are what kvferry is built to reach.
var aims = map[string]map[string]float64{
	QuantityGoodput: {nameQUIC1: 2, nameQUIC8: 1.2, nameGRPC: 1},
	QuantityCPU:     {nameMemory: 1.1},
}

func (b *bench) result(interrupted bool) *Result {
	res := &Result{Interrupted: interrupted, started: b.began, machine: b.machine, seconds: time.Since(b.began).Seconds(), params: b.params()}
	var ours *series
	for _, s := range b.series {
		if len(s.runs) == 0 {
			continue
		}
		o := b.outcome(s)
		if s.peer.floor {
			res.Floor = o
		} else {
			res.Results = append(res.Results, o)
		}
		if s.peer.name == NameKvferry {
			ours = s
		}
	}
	if ours == nil {
		return res
	}
	for _, s := range b.series {
		if s != ours && len(s.runs) > 0 {
			res.Ratios = append(res.Ratios, ratios(ours, s)...)
		}
	}
	return res
}

func (b *bench) outcome(s *series) *Outcome {
	gb := float64(b.cfg.Bytes) / 1e9
	of := func(f func(*Turn) float64) []float64 {
		var out []float64
		for _, r := range s.runs {
			out = append(out, f(r))
		}
		return out
	}
	gbps := of(func(r *Turn) float64 { return r.Gbps })
	o := &Outcome{
		Name: s.peer.name, What: s.peer.what, Runs: s.runs, GbpsMedian: results.Median(gbps), GbpsMin: slices.Min(gbps), GbpsMax: slices.Max(gbps),
		CPU:      CPU{Total: results.Median(of(func(r *Turn) float64 { return r.cpu() / gb }))},
		CPUShare: results.Median(of(func(r *Turn) float64 { return r.cpu() / max(r.Seconds, 1e-9) / float64(b.cores) })),
	}
	if !s.peer.floor {
		src, dst := results.Median(of(func(r *Turn) float64 { return r.CPUSource / gb })), results.Median(of(func(r *Turn) float64 { return r.CPUDestination / gb }))
		o.CPU.Source, o.CPU.Destination = &src, &dst
	}
	for _, r := range s.runs {
		if r.OthersShare != nil && (o.OthersShare == nil || *r.OthersShare > *o.OthersShare) {
			o.OthersShare = r.OthersShare
		}
	}
	o.limit(b.cores)
	return o
}

func (r *Turn) cpu() float64 { return r.CPUSource + r.CPUDestination }

// limit says what set the number: shares of the processors are all that loopback has to tell.
func (o *Outcome) limit(cores int) {
	switch {
	case o.OthersShare != nil && *o.OthersShare > 0.05:
		o.LimitedBy, o.Why = LimitOthers, fmt.Sprintf("other work took up to %.0f %% of the processors during a run", 100**o.OthersShare)
	case o.CPUShare > 0.85:
		o.LimitedBy, o.Why = LimitProcessors, fmt.Sprintf("both ends kept %.0f %% of %d processors busy: the machine is the limit", 100*o.CPUShare, cores)
	case o.CPUShare*float64(cores) > 0.85:
		o.LimitedBy, o.Why = LimitOneThread, fmt.Sprintf("both ends used %.1f of %d processors: they wait for one another's thread", o.CPUShare*float64(cores), cores)
	default:
		o.LimitedBy, o.Why = LimitProtocol, fmt.Sprintf("both ends used %.1f of %d processors: the protocol waits", o.CPUShare*float64(cores), cores)
	}
}

// ratios compares two series round by round.
func ratios(ours, other *series) []Ratio {
	var goodput, cpu []float64
	for _, a := range ours.runs {
		for _, b := range other.runs {
			if a.round == b.round && b.Gbps > 0 && b.cpu() > 0 {
				goodput = append(goodput, a.Gbps/b.Gbps)
				cpu = append(cpu, a.cpu()/b.cpu())
			}
		}
	}
	if len(goodput) == 0 {
		return nil
	}
	out := []Ratio{newRatio(other.peer.name, QuantityGoodput, goodput), newRatio(other.peer.name, QuantityCPU, cpu)}
	if other.peer.floor {
		out = out[1:] // its goodput says nothing: both ends share a process
	}
	return out
}

func newRatio(to, quantity string, v []float64) Ratio {
	r := Ratio{To: to, Quantity: quantity, Median: results.Median(v), Min: slices.Min(v), Max: slices.Max(v)}
	if aim, ok := aims[quantity][to]; ok {
		r.judge(aim, v)
	}
	return r
}

// cautions are the warnings of a result: what a reader must know first.
func (r *Result) cautions() []string {
	out := r.machine.Cautions()
	var busy []string
	most := 0.0
	for _, o := range r.Results {
		if o.LimitedBy == LimitOthers {
			busy = append(busy, o.Name)
			most = max(most, *o.OthersShare)
		}
	}
	if len(busy) > 0 {
		out = append(out, fmt.Sprintf("other work of this machine took up to %.0f %% of its processors while %s ran: measure when it is idle", 100*most, strings.Join(busy, ", ")))
	}
	return out
}
