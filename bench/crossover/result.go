package crossover

import (
	"github.com/kvferry/kvferry/bench/results"
)

// Result is what Run measured: the body of a results.File of kind results.KindCrossover.
type Result struct {
	Measured  Measured  `json:"measured"`
	Predicted Predicted `json:"predicted"`
	// ErrorPct is by how much the predicted crossover lies above the measured one, in hundredths of it; below 0 when it lies
	// under it. Nil unless there are both.
	ErrorPct *float64 `json:"error_pct"`
	// TimeErrorPct are the same of the predicted times, over the lengths.
	TimeErrorPct TimeErrors `json:"time_error_pct"`
	Points       []Point    `json:"points"` // in order of their lengths

	WAN         string `json:"wan"`
	Model       string `json:"model"`
	Engine      string `json:"engine"`      // EnginePaced, EngineReal or EngineOpenAI
	EngineWhat  string `json:"engine_what"` // for people
	BlockTokens int    `json:"block_tokens"`
	Rounds      int    `json:"rounds"` // measured

	Calibration Calibration `json:"calibration"`
	// LimitedBy says what set the goodput: one of the Limit constants.
	LimitedBy string       `json:"limited_by"`
	Why       string       `json:"limited_why"` // for a person
	Machine   MachineState `json:"machine_state"`
	// Conclusion is one paragraph made from the numbers.
	Conclusion string `json:"conclusion"`

	// Interrupted, Warnings: of the file that holds the result.
	interrupted bool
	warnings    []string
	params      map[string]any
	machine     results.Machine
	started     started
}

// What may set the goodput.
const (
	LimitLink       = "link"       // the bottleneck's rate
	LimitMachine    = "machine"    // processor or clock of this machine
	LimitLoss       = "loss"       // congestion control after random losses
	LimitWindow     = "window"     // the connections' largest windows over the round trip
	LimitCongestion = "congestion" // congestion control, and few chunks over many connections
)

// Verdict says how fetch and recompute compare over all lengths.
type Verdict string

// The verdicts.
const (
	Crosses     Verdict = "crosses"      // fetch is faster from the crossover on
	NeverPays   Verdict = "never_pays"   // a token takes as long to fetch as to recompute, or longer
	AlwaysPays  Verdict = "always_pays"  // fetch is faster from the first token on
	PaysToLimit Verdict = "pays_shorter" // fetch is faster up to the crossover, which is odd: prefill has a high fixed cost
)

// Interval is an estimate with an interval.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Line is a fitted straight line: FixedSeconds + SecondsPerToken·n.
type Line struct {
	FixedSeconds    float64 `json:"fixed_seconds"`
	SecondsPerToken float64 `json:"seconds_per_token"`
	R2              float64 `json:"r2"`
}

func (l Line) at(n float64) float64 { return l.FixedSeconds + l.SecondsPerToken*n }

// Measured is what the sweep came to.
type Measured struct {
	Verdict Verdict `json:"verdict"`
	// Crossover is where the fitted lines meet, in tokens; nil when they do not. Its interval is the wider one, on each side, of a
	// bootstrap over rounds (how repeatable it is) and of Fieller's theorem for the two lines (how straight they are), at 95 %.
	Crossover *Interval `json:"crossover_tokens"`
	// Extrapolated says that it lies outside of the lengths that were measured.
	Extrapolated bool `json:"extrapolated"`
	// Bracket are the neighbouring lengths, in tokens, between which the faster one changes; nil when it does not, or more than once.
	Bracket   *[2]int64 `json:"bracket_tokens"`
	Fetch     Line      `json:"fetch"`
	Recompute Line      `json:"recompute"`
}

// Predicted is what the planner says.
type Predicted struct {
	// Crossover is the length in tokens, between blocks, from which the planner's fetch is faster; nil when there is none.
	Crossover *float64 `json:"crossover_tokens"`
	// BaseCrossover is that of the base model, with one round trip in the place of RoundTrips.
	BaseCrossover *float64 `json:"base_crossover_tokens"`
	// The inputs.
	RTTSeconds             float64 `json:"rtt_seconds"`
	RTTSource              string  `json:"rtt_source"` // "measured" or "given"
	GoodputBps             float64 `json:"goodput_bps"`
	GoodputSource          string  `json:"goodput_source"`
	RoundTrips             float64 `json:"round_trips"`
	PrefillSecondsPerToken float64 `json:"prefill_seconds_per_token"`
	PrefillFixedSeconds    float64 `json:"prefill_fixed_seconds"`
	PrefillSource          string  `json:"prefill_source"` // "stated" or "measured"
	// MigrationFixedSeconds is what a migration takes besides its round trips and bytes, from the calibration.
	MigrationFixedSeconds float64 `json:"migration_fixed_seconds"`
	BytesPerToken         int64   `json:"bytes_per_token"`
	FetchSecondsPerToken  float64 `json:"fetch_seconds_per_token"`
}

// ErrorPct is a relative error over the lengths: predicted less measured, in hundredths of the measured.
type ErrorPct struct {
	MedianAbsolute float64 `json:"median_absolute"`
	Worst          float64 `json:"worst"` // with its sign
	WorstTokens    int64   `json:"worst_tokens"`
}

// TimeErrors are those of the predicted times. Daemon is that of what the destination's own daemon predicted before each
// migration, from the link as its connections had it then.
type TimeErrors struct {
	Fetch     ErrorPct `json:"fetch"`
	Recompute ErrorPct `json:"recompute"`
	Daemon    ErrorPct `json:"daemon_fetch"`
}

// Spread is a median with its interval, seconds: at 95 % from six rounds on, the extremes with fewer.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Point is one prefix length.
type Point struct {
	PrefixTokens int64  `json:"prefix_tokens"`
	Blocks       int64  `json:"blocks"`
	Bytes        int64  `json:"bytes"`
	Fetch        Spread `json:"fetch_seconds"`
	Recompute    Spread `json:"recompute_seconds"`
	// PredictedFetch and PredictedRecompute are the planner's, made before the sweep; DaemonFetch is the median of what the
	// destination's daemon predicted before each migration.
	PredictedFetch     float64   `json:"predicted_fetch_seconds"`
	PredictedRecompute float64   `json:"predicted_recompute_seconds"`
	DaemonFetch        float64   `json:"daemon_fetch_seconds"`
	FetchSamples       []float64 `json:"fetch_samples"` // a round each, in order
	RecomputeSamples   []float64 `json:"recompute_samples"`
}

// Calibration is what the migrations before the sweep showed.
type Calibration struct {
	Migrations         int     `json:"migrations"`
	RTTMinSeconds      float64 `json:"rtt_min_seconds"`
	RTTSmoothedSeconds float64 `json:"rtt_smoothed_seconds"`
	// Lengths, in tokens, are those of the migrations that the prediction rests on: none of the sweep's, where others lie between.
	Lengths []int64 `json:"lengths_tokens"`
	// GoodputBps is the median over these lengths of page bits over the time from their request to the last verified page, without
	// the request's round trip; LongestGoodputBps is that of the longest migration alone.
	GoodputBps        float64 `json:"goodput_bps"`
	LongestGoodputBps float64 `json:"longest_goodput_bps"`
	// LinkShare is LongestGoodputBps over the model link's rate, which counts headers: 0.95 is what the best can show. Nil for a
	// link without a rate.
	LinkShare *float64 `json:"link_share"`
	Stripes   int      `json:"stripes"`
}

// MachineState says how hard the machine worked while pages moved.
type MachineState struct {
	CPUShare      float64 `json:"cpu_share"`       // of this process's processors
	LagP99        float64 `json:"lag_p99_seconds"` // how late 99 of 100 timers ran at most
	ReceiverDrops int64   `json:"receiver_drops"`  // packets that a socket had no room for
	PacketsLost   int64   `json:"packets_lost"`    // that the source took for lost
	// SyncP90 is what 90 of 100 small writes, between migrations, took at most to be on the disk of the daemons' records.
	SyncP90 float64 `json:"sync_p90_seconds"`
}
