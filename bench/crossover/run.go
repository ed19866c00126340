package crossover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// ErrNothing is returned by Run and Result.File when fewer than two lengths were measured.
var ErrNothing = errors.New("nothing was measured: a crossover needs two lengths at least")

// Run measures. When ctx ends it returns what the rounds that are over gave, with Interrupted set and no error, or ErrNothing
// with ctx's cause. When a prefill or a migration fails in the rounds it returns the same, with a warning, and the error.
// Errors: Config.Validate's, *EndpointError, *MigrationError, those of the daemons.
func Run(ctx context.Context, cfg Config) (_ *Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	preset, err := kvstore.PresetByName(cfg.Model)
	if err != nil {
		return nil, err
	}
	r := &run{
		cfg: cfg, preset: preset, began: time.Now(), machine: results.ThisMachine(),
		in: inputs{
			bytesPerToken: preset.Layout.TokenBytes(), blockTokens: preset.Layout.BlockTokens, stripes: orDefault(cfg.Stripes, transfer.MaxStripes), trips: cfg.RoundTrips, rtt: cfg.WAN.RTT, goodput: guessGoodput(cfg.WAN.Rate),
		},
	}
	defer func() { err = errors.Join(err, r.close()) }()
	failed := r.measure(ctx)
	if ctx.Err() != nil {
		failed = nil // by that
	}
	if failed != nil && len(r.points) > 0 {
		r.warn("the rounds ended early, this holds what was measured before: %s", what(failed))
	}
	res := r.result(ctx.Err() != nil || failed != nil)
	if res == nil && failed == nil {
		failed = errors.Join(ErrNothing, context.Cause(ctx))
	}
	return res, failed
}

// what is an error without its advice, which a result has no use for.
func what(err error) string {
	if end, ok := errors.AsType[*EndpointError](err); ok {
		return end.What()
	}
	return err.Error()
}

// guessGoodput is what a model link of that rate is taken to give until it is measured.
func guessGoodput(rate float64) float64 {
	if rate == 0 {
		return unlimitedGuess
	}
	return payloadShare * rate
}

const (
	// payloadShare of a link's rate is left for pages: 1,280-byte packets with headers of UDP, QUIC and chunks.
	payloadShare   = 0.95
	unlimitedGuess = 2e9 // bit/s, what a processor or two do
)

// run is one measurement.
type run struct {
	cfg      Config
	preset   kvstore.Preset
	began    time.Time
	machine  results.Machine
	bed      *bed.Bed
	from, to *writer
	prefill  prefiller
	in       inputs // of the prediction, as far as known
	slots    int    // blocks that an arena holds
	lengths  []int64
	points   []*samples
	seq      int
	warnings []string

	link   calibrated
	strain strain
	budget bool // it ended the rounds
}

// samples of one length, one a round.
type samples struct {
	tokens           int64
	fetch, recompute []float64
	daemon           []float64 // what the destination's own planner said before each migration
	retried          int64
}

// calibrated is what the calibration saw of the link.
type calibrated struct {
	rttMin, rttSmoothed float64 // seconds
	goodput             float64 // bit/s, of migrations of lengths
	lengths             []int64 // that the prediction rests on
	longest             float64 // bit/s, of the longest ones
	migrations          int
	lost                int64
	stripes             int
}

func (r *run) close() error {
	errs := []error{r.from.close(), r.to.close()}
	if r.prefill != nil {
		errs = append(errs, r.prefill.close())
	}
	if r.bed != nil {
		errs = append(errs, r.bed.Close())
	}
	return errors.Join(errs...)
}

func (r *run) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

func (r *run) tell(stage string, done, total float64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Stage: stage, Done: done, Total: total})
	}
}

// measure does everything up to the last round.
func (r *run) measure(ctx context.Context) (err error) {
	r.tell("start", 0, 0)
	if r.bed, err = bed.Open(bed.Config{WAN: r.cfg.WAN, ArenaDir: r.cfg.ArenaDir, Stripes: r.cfg.Stripes}); err != nil {
		return err
	}
	if r.prefill, err = openPrefiller(ctx, r.cfg, r.preset, r.bed.Destination); err != nil {
		return err
	}
	if o, ok := r.prefill.(*openAI); ok {
		r.cfg.OpenAIModel = o.model // what it was measured with, if not named
	}
	r.tell("calibrate", 0, 0)
	if err := r.calibratePrefill(ctx, []int64{r.block(), min(r.cfg.MaxPrefix, firstLook)}); err != nil {
		return err
	}
	if err := r.register(ctx); err != nil {
		return err
	}
	if err := r.calibrateLink(ctx); err != nil {
		return err
	}
	return r.rounds(ctx)
}

// firstLook is the length, in tokens, of the longer prefills that the first calibration of an engine rests on.
const firstLook = 256

func (r *run) block() int64 { return int64(r.preset.Layout.BlockTokens) }

// longest is the longest prefix that may be chosen: an arena holds two.
func (r *run) longest() int64 {
	fits := r.cfg.ArenaBytes / 2 / r.preset.Layout.BlockBytes() * r.block()
	if len(r.cfg.Lengths) > 0 {
		return fits
	}
	return min(fits, r.cfg.MaxPrefix)
}

// register makes arenas for what the guess of the link makes likely.
func (r *run) register(ctx context.Context) (err error) {
	want := r.cfg.Lengths
	if len(want) == 0 {
		guess := r.in
		guess.goodput *= 0.6 // the crossover may turn out that much longer
		want = lengths(guess, r.cfg.Quick, r.longest())
	}
	prefix := want[len(want)-1]
	blocks := int(max(prefix, r.warmUpTokens())/r.block()) + leastHeldOut // beyond the sweep, for the calibration
	r.slots = 2 * blocks
	speed, _ := r.prefill.speed()
	if r.from, err = openWriter(ctx, r.bed.Source, layoutOf(r.preset.Layout), r.slots, speed); err != nil {
		return err
	}
	r.to, err = openWriter(ctx, r.bed.Destination, layoutOf(r.preset.Layout), r.slots, speed)
	return err
}

// layoutOf is a layout as the API has it.
func layoutOf(l kvstore.Layout) *pb.Layout {
	kind := pb.LayoutKind_LAYOUT_KIND_GQA
	if l.Kind == kvstore.KindMLA {
		kind = pb.LayoutKind_LAYOUT_KIND_MLA
	}
	return &pb.Layout{
		ModelId: l.ModelID, Revision: "bench", Dtype: pb.Dtype_DTYPE_BF16, Kind: kind, Layers: uint32(l.Layers), KvHeads: uint32(l.KVHeads), HeadDim: uint32(l.HeadDim),
		BlockTokens: uint32(l.BlockTokens), PositionScheme: l.PositionScheme, HashAlgorithm: l.HashAlgorithm, SaltPolicy: "none",
	}
}

// moved is one measured migration.
type moved struct {
	seconds  float64 // as the caller of Migrate sees it
	transfer float64 // of them, from the request of the pages to the last verified one
	bytes    int64
	daemon   float64 // predicted by the destination's daemon
	retried  int64
}

// move migrates one fresh session of n tokens.
func (r *run) move(ctx context.Context, n int64) (moved, error) {
	r.seq++
	session := fmt.Sprintf("crossover-%d-%d", r.cfg.Seed, r.seq)
	keys := chain(session, int(n/r.block()))
	if err := r.from.publish(ctx, session, keys, n); err != nil {
		return moved{}, err
	}
	if err := r.room(ctx, len(keys)); err != nil {
		return moved{}, err
	}
	watch := r.strain.begin(r.bed)
	rep, took, err := fetch(ctx, r.bed.Destination, session, session, len(keys))
	r.strain.end(watch, err == nil)
	r.strain.probeSync(r.bed.StateDir())
	if err != nil {
		return moved{}, fmt.Errorf("fetch %d tokens: %w", n, err)
	}
	if err := r.to.verify(ctx, keys); err != nil {
		return moved{}, fmt.Errorf("fetch %d tokens: %w", n, err)
	}
	return moved{
		seconds: took.Seconds(), transfer: rep.GetTransfer().AsDuration().Seconds(), bytes: rep.GetBytes(), daemon: rep.GetPredictedSeconds(), retried: rep.GetPagesRetried(),
	}, nil
}

// room waits until the destination can take n blocks, which the end of the migration before may still hold.
func (r *run) room(ctx context.Context, n int) error {
	for {
		st, err := r.bed.Destination.Region.Status(ctx, &pb.StatusRequest{})
		if err != nil {
			return err
		}
		for _, a := range st.GetArenas() {
			if a.GetEngineId() == engineID && a.GetSlots()-a.GetLeasedBlocks()-a.GetSlotsReserved()-a.GetSlotsDraining() >= int64(n) {
				return nil
			}
		}
		if err := pause(ctx, leaseLook); err != nil {
			return err
		}
	}
}

// rounds measures every length once a round. A round that is cut short counts only when it is the first.
func (r *run) rounds(ctx context.Context) error {
	r.strain = strain{}
	lost, err := r.bed.PacketsLost(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if now, err := r.bed.PacketsLost(context.WithoutCancel(ctx)); err == nil { // without it, it is only not known
			r.link.lost = now - lost
		}
	}()
	for _, n := range r.lengths {
		r.points = append(r.points, &samples{tokens: n})
	}
	began, per := time.Now(), r.in.round(r.lengths)
	for i := range r.cfg.Repeats {
		spent := time.Since(began)
		if i >= leastRounds && spent+spent/time.Duration(i) > r.cfg.Budget {
			r.budget = true
			r.warn("%d of %d rounds were measured: the budget of %v was over; give a longer one for a narrower interval", i, r.cfg.Repeats, r.cfg.Budget)
			return nil
		}
		stage := fmt.Sprintf("round %d of %d", i+1, r.cfg.Repeats)
		order := rand.New(rand.NewPCG(r.cfg.Seed, uint64(i))).Perm(len(r.points))
		var got []one
		done := 0.0
		for k, p := range order {
			r.tell(stage, done, per)
			o, err := r.both(ctx, r.points[p], (i+k)%2 == 0)
			if err != nil {
				if i == 0 {
					r.keep(got)
				}
				return err
			}
			got = append(got, o)
			done += r.in.cost(o.p.tokens)
		}
		r.tell(stage, per, per)
		r.keep(got)
	}
	return nil
}

// leastRounds are measured whatever the budget.
const leastRounds = 3

// one is a length's measurements in one round.
type one struct {
	p         *samples
	fetch     moved
	recompute float64
}

func (r *run) keep(got []one) {
	for _, o := range got {
		o.p.fetch = append(o.p.fetch, o.fetch.seconds)
		o.p.recompute = append(o.p.recompute, o.recompute)
		o.p.daemon = append(o.p.daemon, o.fetch.daemon)
		o.p.retried += o.fetch.retried
	}
}

// both measures fetch and recompute of one length, in turns.
func (r *run) both(ctx context.Context, p *samples, fetchFirst bool) (o one, err error) {
	o.p = p
	for i := range 2 {
		if fetchFirst == (i == 0) {
			o.fetch, err = r.move(ctx, p.tokens)
		} else {
			o.recompute, err = r.prefill.prefill(ctx, p.tokens)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}
