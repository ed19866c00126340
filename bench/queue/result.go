package queue

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Result is what Run measured: the body of a results.File of kind "queue".
type Result struct {
	Points    []Point    `json:"points"`
	Crossover *Crossover `json:"crossover_utilization"` // nil when the run was cut short before
	// Link is real QUIC with the sender as daemons run it, Sharing with one that serves all transfers in turn, a chunk each. Nil
	// without real QUIC.
	Link    *Link `json:"link"`
	Sharing *Link `json:"sharing_link"`
	// Conclusion is one paragraph made from the numbers.
	Conclusion string `json:"conclusion"`

	interrupted bool
	warnings    []string
	cfg         Config
	started     time.Time
	machine     results.Machine // at the start
}

// Source says where a point's waits come from.
type Source string

// The sources.
const (
	SourceSimulator Source = "simulator"
	SourceQUIC      Source = "quic"
)

// Point is one queue at one utilization. Its waits are of the mean job.
type Point struct {
	Source Source `json:"source"`
	// Discipline is "fifo" or "ps" of the simulator; of QUIC the one whose simulation on the same arrivals is nearest to what
	// was measured.
	Discipline  string  `json:"discipline"`
	Service     Service `json:"service"`
	Utilization float64 `json:"utilization"` // arrival rate times mean service time
	// ServiceSeconds is the mean time that a job needs alone, without propagation, and ServiceSCV its squared coefficient of
	// variation.
	ServiceSeconds float64 `json:"service_seconds"`
	ServiceSCV     float64 `json:"service_scv"`
	Jobs           int     `json:"jobs"` // measured, warm-up left out

	Wait         Wait     `json:"wait_seconds"`
	WaitInterval Interval `json:"wait_interval"`
	// Backlog is the error of the backlog as a prediction of each wait, seconds.
	Backlog BacklogError `json:"backlog_error_seconds"`
	// SizeSlope is how much longer a job waits for each second of its own service: 0 for first come, first served,
	// ρ/(1−ρ) under processor sharing. Null when all jobs need the same time.
	SizeSlope *float64 `json:"size_slope"`
	// QUIC is what only points over the link have.
	QUIC *LinkPoint `json:"quic"`

	samples []float64 // the batches' mean waits
}

// Wait is mean waits in seconds: time from arrival to completion, less the time that the job takes on an idle server.
type Wait struct {
	Measured float64 `json:"measured"`
	Laws
	// Backlog is the mean of what the bytes queued at each arrival, divided by the rate, predict.
	Backlog float64 `json:"backlog"`
}

// Interval bounds the mean wait, seconds, by batch means. Lag1 is the correlation of neighbouring batches: where it is above
// what chance makes of none (0.37 with 20 batches) the interval is too narrow.
type Interval struct {
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Level float64 `json:"level"`
	Lag1  float64 `json:"lag1"`
}

// contains says whether v lies within.
func (i Interval) contains(v float64) bool { return i.Low <= v && v <= i.High }

// BacklogError is prediction minus wait over all jobs, seconds.
type BacklogError struct {
	Mean         float64 `json:"mean"`
	MeanAbsolute float64 `json:"mean_absolute"`
	RMS          float64 `json:"rms"`
}

// Measured is a mean with its 95 % interval.
type Measured struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Crossover is the fetch queue's utilization at which a fetch takes as long as a recompute, in the base model's
// utilization preset. Measured is under M/M/1, which Predicted, the planner's, assumes.
type Crossover struct {
	Measured  Measured `json:"measured"`
	Predicted float64  `json:"predicted"`
	// Laws are the crossovers under each assumption, the first being M/M/1.
	Laws []LawCrossover `json:"laws"`
	// The preset: service times in seconds, the part of the fetch that the link is busy with it, both queues' service rate in
	// jobs a second, and the compute queue's utilization.
	FetchSeconds        float64 `json:"fetch_seconds"`
	RecomputeSeconds    float64 `json:"recompute_seconds"`
	TransmissionSeconds float64 `json:"transmission_seconds"`
	ServiceRate         float64 `json:"service_rate"`
	ComputeUtilization  float64 `json:"compute_utilization"`
}

// LawCrossover is the crossover under one assumption about the link.
type LawCrossover struct {
	Law        string  `json:"law"`
	Discipline string  `json:"discipline"`
	Service    Service `json:"service"`
	// OwnSize says that the fetch waits as a job of its own size, TransmissionSeconds, and not as the queue's mean job.
	OwnSize   bool     `json:"own_size"`
	Measured  Measured `json:"measured"`
	Predicted float64  `json:"predicted"` // by theory

	samples []float64
}

// Link is what the link does with a lone transfer, and what order its sender keeps.
type Link struct {
	WAN        string `json:"wan"`
	Stripes    int    `json:"stripes"`
	ChunkBytes int    `json:"chunk_bytes"`
	// Law is the order that counts: LinkLaw or SharingLaw.
	Law string `json:"law"`
	// AheadSeconds is how long a small transfer waits that comes while a large one fills the link: what is on its way. 0
	// under SharingLaw, which does not need it.
	AheadSeconds float64 `json:"ahead_seconds"`
	// A lone transfer of b bytes takes UnloadedSeconds + 8·b/RateBps; R2 is how well that line fits.
	RateBps         float64 `json:"rate_bps"`
	UnloadedSeconds float64 `json:"unloaded_seconds"`
	R2              float64 `json:"r2"`
	// DisturbedSeconds is how much longer than the least of its repeats a lone transfer usually took: what this machine adds. It
	// may be in each wait, so the intervals over QUIC reach lower by as much.
	DisturbedSeconds float64 `json:"disturbed_seconds"`
	// Calibrated says that the line fits and the rate is near the link's, so that the laws of one server may be held against it.
	Calibrated bool `json:"calibrated"`
	// Discipline is the nearest of the simulated orders over all points: "fifo", "ps", "sender" (transfers in turn, a chunk each) or
	// "least-left". Empty until a point is measured.
	Discipline string `json:"discipline"`
}

// LinkPoint is what only points over the link have.
type LinkPoint struct {
	// Offered is the utilization that the arrivals drawn really make.
	Offered float64 `json:"offered"`
	// Raw is the mean wait as it was measured, with its interval; the point's own leaves the luck of the draw out, see the package
	// documentation.
	Raw Measured `json:"raw"`
	// Law is the order that counts, fixed before measuring, and so which sender was measured: LinkLaw is that of daemons.
	Law string `json:"law"`
	// Simulated is the simulator's mean wait of the law at the point's Utilization, by many jobs.
	Simulated Measured `json:"simulated"`
	// Overlaps says that its interval and the measured one share a point. It decides something only if Conclusive.
	Overlaps bool `json:"overlaps"`
	// HalfWidth is half of the measured interval over the mean: 0.2 is ±20 %.
	HalfWidth float64 `json:"half_width"`
	// Detectable is the test's power: a mean wait that differs from the law's by this share of it keeps the two intervals apart
	// in four of five such measurements. Smaller differences may well go unseen. Orders with the same mean, as first come, first
	// served and sharing have for exponential sizes, it does not tell apart; SizeSlope and Replays do.
	Detectable float64 `json:"detectable"`
	// Conclusive says that the interval is as narrow as was asked for, that neighbouring batches do not correlate, and that the
	// machine kept up.
	Conclusive bool `json:"conclusive"`
	// Seconds is how long jobs arrived.
	Seconds float64 `json:"seconds"`
	// Replays are the same arrivals and sizes in the simulator, one a discipline, nearest first.
	Replays []Replay `json:"replays"`
	// LateSeconds is the latest that a job started after its time, and LateP99Seconds how late 99 of 100 jobs were at most:
	// with that above the mean service time the machine, not the link, may have set the waits.
	LateSeconds    float64 `json:"late_seconds"`
	LateP99Seconds float64 `json:"late_p99_seconds"`
	// LostPackets are those that the link's queue dropped.
	LostPackets int64 `json:"lost_packets"`
}

// Replay compares measured waits with simulated ones of the same jobs.
type Replay struct {
	Discipline string  `json:"discipline"`
	Slots      int     `json:"slots"` // 0: all
	Mean       float64 `json:"mean"`  // wait, seconds
	// Difference is measured less simulated, seconds, with its interval by batch means.
	Difference  Measured `json:"difference"`
	RMS         float64  `json:"rms"`         // of the difference, seconds
	Correlation float64  `json:"correlation"` // of measured and simulated waits, −1 to 1; 0 if either does not vary
}

// File makes the result one that can be saved and compared. Its metrics are the waits, of which the samples are batch means,
// and the crossovers, one sample a replication. command is the command line. It works on what Run returned, not on a Result
// that was decoded.
func (r *Result) File(command []string) (*results.File, error) {
	f := results.New(results.KindQueue, command, r.cfg.params())
	f.Started, f.Machine = r.started, r.machine
	for _, c := range r.machine.Cautions() {
		if !strings.HasPrefix(c, "net.core.") { // the in-memory link has no socket buffers of the system's
			f.Warn("%s", c)
		}
	}
	if err := f.SetBody(r); err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, r.warnings...)
	for _, p := range r.Points {
		f.Add(results.Metric{
			Name: fmt.Sprintf("wait/%s/%s/%s/%g", p.Source, p.metricDiscipline(), p.Service, p.Utilization), Unit: "s", Better: results.Lower,
			Samples: p.samples,
		})
	}
	if r.Crossover != nil {
		for _, l := range r.Crossover.Laws {
			name := strings.NewReplacer(", ", "+", " ", "_").Replace(l.Law)
			f.Add(results.Metric{Name: "crossover/" + name, Unit: "1", Better: results.Neither, Samples: l.samples})
		}
	}
	f.Finish(r.interrupted)
	return f, nil
}

// metricDiscipline keeps a metric's name the same whichever order a measurement looks like.
func (p Point) metricDiscipline() string {
	if p.Source == SourceQUIC {
		return p.QUIC.Law
	}
	return p.Discipline
}

// Interrupted says that the run was cut short.
func (r *Result) Interrupted() bool { return r.interrupted }

// Warnings say what to know before believing the numbers. The caller owns the slice.
func (r *Result) Warnings() []string { return append([]string(nil), r.warnings...) }

func (r *Result) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}
