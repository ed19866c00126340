package goodput

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// The forms of a Result.
const (
	FormWAN     = "wan"
	FormDaemons = "daemons"
)

// A Result is what Run or RunDaemons measured.
type Result struct {
	// Form is FormWAN or FormDaemons.
	Form string
	// WAN is the model link as text; empty between daemons.
	WAN string
	// Interrupted: ctx ended before everything was measured.
	Interrupted bool
	// Failure is the error that ended the run before everything was measured; empty when none did.
	Failure string
	// Configurations in the order they were asked for; those of which nothing was measured are left out.
	Configurations []*Outcome
	// Warnings that are not of one configuration.
	Warnings []string

	started time.Time
	machine results.Machine // at the start
	seconds float64
	params  map[string]any
	// Between daemons: the other machine, and both releases.
	remote   map[string]results.Machine
	versions map[string]string
}

// fail notes what ended the run early; nil is nothing.
func (r *Result) fail(err error) {
	if err != nil {
		r.Failure = err.Error()
	}
}

// Best is the configuration of the highest goodput; nil when nothing was measured.
func (r *Result) Best() *Outcome {
	if len(r.Configurations) == 0 {
		return nil
	}
	return slices.MaxFunc(r.Configurations, func(a, b *Outcome) int {
		return compare(a.GoodputBps, b.GoodputBps)
	})
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// What may set the number.
const (
	LimitLink       = "link"        // the bottleneck's rate
	LimitMachine    = "machine"     // processor or clock of this machine
	LimitLoss       = "loss"        // congestion control after losses that were not queue overflow
	LimitWindow     = "window"      // the connections' largest windows over the round trip
	LimitMaxRate    = "max_rate"    // the bound that was asked for
	LimitCongestion = "congestion"  // congestion control on its way up, or after a queue overflow
	LimitUnknown    = "unknown"     // nothing is known about the link
	maxWindow       = 10_000 * 1280 // bytes in flight of one connection on the in-memory link
)

// An Outcome is what one configuration gave. Numbers are medians of its measured transfers unless they say otherwise;
// nil means not measured, or not known. GB is 1e9 bytes of pages.
type Outcome struct {
	// Stripes are the link's connections; of an Adaptive configuration, and between daemons, at the end of the last transfer.
	Stripes int `json:"stripes"`
	// Adaptive: the link has as many connections as the path needs. Between daemons always false: their configuration says.
	Adaptive bool `json:"adaptive"`
	// GoodputBps is bits of verified pages a second, as they travelled; EffectiveBps the same decoded: more where pages were
	// coded. See the package documentation for what is known between daemons.
	GoodputBps   float64 `json:"goodput_bps"`
	EffectiveBps float64 `json:"effective_bps"`
	// LinkShare is GoodputBps over the model link's rate, which counts headers: packets of 1,280 bytes leave 0.95.
	LinkShare *float64 `json:"link_share"`
	// RampSeconds: see Measure. Of warm connections, unless the configuration is Cold. Between daemons it is seen through a
	// migration's progress, in its first group of blocks; nil with MaxRate, whose groups are too short: Path has the cold one.
	RampSeconds *float64 `json:"ramp_seconds"`
	// ChunkLatency is over the chunks of a transfer; see the package documentation. Nil between daemons, which share no clock and
	// tell of no chunk.
	ChunkLatency *Latency `json:"chunk_latency_seconds"`
	RTT          *RTT     `json:"rtt_seconds"`
	// Loss is the path's: packets lost, repaired or not, over packets sent, of all measured transfers together, parity left out.
	// LossUnrepaired is the part that QUIC saw, and slowed down for. A packet that QUIC gave up and parity rebuilt later counts
	// twice in Loss. Between daemons other traffic of the link is in them.
	Loss           *float64 `json:"loss"`
	LossUnrepaired *float64 `json:"loss_unrepaired"`
	// RetransmittedPackets is packets whose content the source sent again, RepairedPackets those that were lost and rebuilt from
	// parity, ParityBytes what that cost: means a transfer, so that they agree with the losses.
	RetransmittedPackets *float64 `json:"retransmitted_packets"`
	RepairedPackets      *float64 `json:"repaired_packets"`
	ParityBytes          *float64 `json:"parity_bytes"`
	// Path is what the destination has learnt of the path by the end, over all its transfers.
	Path       *Path        `json:"path"`
	CPU        CPU          `json:"cpu_seconds_per_gb"`
	ResumeCost *ResumeCost  `json:"resume_cost"`
	Bytes      int64        `json:"bytes"` // a transfer
	Blocks     int64        `json:"blocks"`
	BlockBytes int64        `json:"block_bytes"`
	PageBytes  int64        `json:"page_bytes"`
	ChunkBytes int64        `json:"chunk_bytes"` // the most that one stream carries
	Cold       *Measure     `json:"cold"`        // the first warm-up transfer
	Runs       []*Measure   `json:"runs"`        // in order; an interrupted one is last
	LimitedBy  string       `json:"limited_by"`  // one of the Limit constants
	Why        string       `json:"limited_why"` // for a person
	Machine    MachineState `json:"machine_state"`
	// Warnings say what a reader must know before believing the numbers.
	Warnings []string `json:"warnings"`

	order int
}

// Latency of chunks, seconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
}

// Path is what a destination's link has learnt of the path from past transfers; nil is not known.
type Path struct {
	GoodputBps  *float64 `json:"goodput_bps"`  // page bits a second
	CapacityBps *float64 `json:"capacity_bps"` // the most over a round trip, QUIC bits a second
	Loss        *float64 `json:"loss"`         // share of packets that QUIC at the source took for lost lately: what repair left
	RampSeconds *float64 `json:"ramp_seconds"` // time of a cold link to nine tenths of its rate
}

// RTT of the link as QUIC has it at the source, seconds.
type RTT struct {
	Min      float64 `json:"min"`
	Smoothed float64 `json:"smoothed"`
}

// CPU is processor seconds a GB moved, all measured transfers. Shared is what carries no end's label: the link model and the
// garbage collector.
type CPU struct {
	Source      *float64 `json:"source"`
	Destination *float64 `json:"destination"`
	Shared      *float64 `json:"shared"`
}

// ResumeCost is what a cut of the link in mid-transfer cost beyond the time of the cut.
type ResumeCost struct {
	CutSeconds float64 `json:"cut_seconds"`
	// Bytes that the source sent beyond the median uncut transfer, not below 0.
	Bytes int64 `json:"bytes"`
	// PageBytesTwice arrived though they were there.
	PageBytesTwice int64 `json:"page_bytes_twice"`
	// Seconds beyond the median uncut transfer and the cut.
	Seconds float64 `json:"seconds"`
}

// MachineState says how hard the machine worked, at worst over the measured transfers.
type MachineState struct {
	CPUShare *float64 `json:"cpu_share"` // of this process's processors
	// LagP99 is how late 99 of 100 timers ran at most, seconds.
	LagP99 *float64 `json:"lag_p99_seconds"`
	// ReceiverDrops are packets that the destination's socket had no room for, a transfer.
	ReceiverDrops *int64 `json:"receiver_drops"`
}

// outcome sums a series up; false when nothing was measured.
func (b *bench) outcome(s *series) (*Outcome, bool) {
	o := &Outcome{
		Stripes: s.stripes, Adaptive: s.stripes == 0, Path: s.path, Cold: s.cold, Runs: s.runs, Bytes: int64(len(b.rig.from)), Blocks: int64(b.rig.blocks), BlockBytes: b.rig.block,
		PageBytes: int64(b.cfg.PageBytes), ChunkBytes: max(chunkBytes, int64(b.cfg.PageBytes)), Warnings: []string{},
	}
	if len(s.runs) == 0 && s.partial != nil && s.partial.Bytes > 0 {
		o.Runs = []*Measure{s.partial}
		o.warn("the only measured transfer was interrupted at %d of %d bytes", s.partial.Bytes, o.Bytes)
	}
	if len(o.Runs) == 0 {
		return nil, false
	}
	if o.Adaptive {
		o.Stripes = o.Runs[len(o.Runs)-1].Stripes
	}
	o.medians()
	if b.cfg.WAN.Rate > 0 {
		o.LinkShare = ptr(o.GoodputBps / b.cfg.WAN.Rate)
	}
	o.cpu()
	o.resume(s.cut, b.cfg.CutFor)
	o.machine()
	o.limit(b.cfg.WAN)
	return o, true
}

func (o *Outcome) warn(format string, args ...any) {
	o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...))
}

// medianOf is over the runs that have the number; nil when none has.
func (o *Outcome) medianOf(f func(*Measure) *float64) *float64 {
	v := o.samples(f)
	if len(v) == 0 {
		return nil
	}
	return ptr(results.Median(v))
}

func (o *Outcome) samples(f func(*Measure) *float64) []float64 {
	var v []float64
	for _, m := range o.Runs {
		if x := f(m); x != nil {
			v = append(v, *x)
		}
	}
	return v
}

func (o *Outcome) medians() {
	o.GoodputBps = *o.medianOf(func(m *Measure) *float64 { return &m.GoodputBps })
	o.EffectiveBps = *o.medianOf(func(m *Measure) *float64 { return &m.EffectiveBps })
	o.RampSeconds = o.medianOf(func(m *Measure) *float64 { return m.RampSeconds })
	p50, p99 := o.medianOf(func(m *Measure) *float64 { return m.ChunkP50 }), o.medianOf(func(m *Measure) *float64 { return m.ChunkP99 })
	if mean := o.medianOf(func(m *Measure) *float64 { return m.ChunkMean }); mean != nil {
		o.ChunkLatency = &Latency{P50: *p50, P99: *p99, Mean: *mean}
	}
	if least := o.medianOf(func(m *Measure) *float64 { return m.RTTMin }); least != nil {
		o.RTT = &RTT{Min: *least, Smoothed: *o.medianOf(func(m *Measure) *float64 { return m.RTTSmoothed })}
	}
	o.losses()
}

// losses pools the runs: a loss is rare, and one transfer may have none.
func (o *Outcome) losses() {
	var sent, lost, repaired, parity, n float64
	for _, m := range o.Runs {
		if m.PacketsSent != nil && m.PacketsRepaired != nil {
			sent, lost, repaired, parity = sent+float64(*m.PacketsSent), lost+float64(*m.PacketsLost), repaired+float64(*m.PacketsRepaired), parity+float64(*m.ParityBytes)
			n++
		}
	}
	if sent > 0 {
		o.Loss, o.LossUnrepaired = ptr((lost+repaired)/sent), ptr(lost/sent)
		o.RetransmittedPackets, o.RepairedPackets, o.ParityBytes = ptr(lost/n), ptr(repaired/n), ptr(parity/n)
	}
}

func asFloat(v *int64) *float64 {
	if v == nil {
		return nil
	}
	return ptr(float64(*v))
}

// Below this many looks of the profiler the split between the ends is too rough to print without a word.
const fewProfileSamples = 100

// cpu pools the runs: one alone may be too short for the profiler.
func (o *Outcome) cpu() {
	var all cpuSplit
	var gb float64
	split := true
	for _, m := range o.Runs {
		all.add(m.cpu)
		split = split && m.cpu.split
		gb += m.gb()
	}
	if gb <= 0 {
		return
	}
	if !split {
		o.warn("the processor time is not split between the ends: the profiler was in use, or saw nothing")
		return
	}
	if all.samples < fewProfileSamples {
		o.warn("the processor time is not split between the ends: %d looks of the profiler are too few; move more bytes or repeat more", all.samples)
		return
	}
	o.CPU = CPU{Source: ptr(all.source / gb), Destination: ptr(all.destination / gb), Shared: ptr(all.shared / gb)}
	if off := all.profiled/all.total - 1; off > 0.25 || off < -0.25 {
		o.warn("the profiler saw %.2f s of processor time, the system counted %.2f s: the split is doubtful", all.profiled, all.total)
	}
}

func (o *Outcome) resume(cut *Measure, cutFor time.Duration) {
	if cut == nil {
		return
	}
	wire := o.medianOf(func(m *Measure) *float64 { return ptr(float64(m.WireBytes)) })
	seconds := o.medianOf(func(m *Measure) *float64 { return &m.Seconds })
	o.ResumeCost = &ResumeCost{
		CutSeconds: cutFor.Seconds(), Bytes: max(0, cut.WireBytes-int64(*wire)), PageBytesTwice: cut.PagesDouble * o.PageBytes,
		Seconds: cut.Seconds - *seconds - cutFor.Seconds(),
	}
}

// machine takes the worst of the runs.
func (o *Outcome) machine() {
	var share, lag float64
	var drops int64
	for _, m := range o.Runs {
		share, lag, drops = max(share, m.share), max(lag, m.lag.Seconds()), max(drops, m.drops.receiver)
	}
	o.Machine = MachineState{CPUShare: &share, LagP99: &lag, ReceiverDrops: &drops}
}

// Where the machine sets the number: so much of the processors, or timers so late.
const (
	busyShare = 0.85
	lateLeast = 10 * time.Millisecond
)

// limit says what set the number, the machine first: with it at its limit nothing else can be told.
func (o *Outcome) limit(m wan.Model) {
	late := max(lateLeast, m.RTT/4).Seconds()
	var lossDrops int64
	stripes := o.Stripes
	for _, r := range o.Runs {
		lossDrops += r.drops.loss
		stripes = max(stripes, r.Stripes)
	}
	window := maxWindow * 8 * float64(stripes) / max(m.RTT.Seconds(), 1e-6)
	more := ": use more stripes, or 0 for as many as the path needs"
	if o.Adaptive {
		more = " so far: the link adds more while it has work; move more bytes"
	}
	set := func(by, format string, args ...any) {
		o.LimitedBy, o.Why = by, fmt.Sprintf(format, args...)
	}
	switch {
	case *o.Machine.CPUShare >= busyShare:
		set(LimitMachine, "this process used %.0f %% of its %d processors", 100**o.Machine.CPUShare, processors())
	case *o.Machine.LagP99 >= late:
		set(LimitMachine, "one timer in a hundred ran %.0f ms late or more: the link delivered late", 1e3**o.Machine.LagP99)
	case *o.Machine.ReceiverDrops > 0:
		set(LimitMachine, "the destination read too slowly: %d packets found its socket full", *o.Machine.ReceiverDrops)
	case o.LinkShare != nil && *o.LinkShare >= 0.75:
		set(LimitLink, "%.0f %% of the link's rate are page bytes", 100**o.LinkShare)
	case m.Rate == 0:
		set(LimitUnknown, "the link has no rate")
	case window < 0.9*m.Rate:
		set(LimitWindow, "%d connections let %.0f Mbit/s through%s", stripes, window/1e6, more)
	case lossDrops > 0:
		set(LimitLoss, "the link lost %d packets at random, parity included%s", lossDrops, o.repairText())
	default:
		set(LimitCongestion, "congestion control was on its way up, or slowed down after its own queue overflow: move more bytes")
	}
	if o.LimitedBy == LimitMachine {
		o.warn("the machine, not the link, set this number: %s", o.Why)
	}
}

// repairText says what became of the lost packets and what repair cost, as far as it is known.
func (o *Outcome) repairText() string {
	if o.Loss == nil || *o.Loss == 0 {
		return ""
	}
	repaired := 1 - *o.LossUnrepaired / *o.Loss
	text := fmt.Sprintf("; parity rebuilt %.0f %% of the data that was lost", 100*repaired)
	if *o.LossUnrepaired > 0 {
		text += ", and congestion control slowed down for the rest"
	}
	if wire := o.medianOf(func(m *Measure) *float64 { return ptr(float64(m.WireBytes)) }); *o.ParityBytes > 0 && *wire > 0 {
		text += fmt.Sprintf("; %.1f %% of the bytes sent were parity", 100**o.ParityBytes / *wire)
	}
	return text
}
