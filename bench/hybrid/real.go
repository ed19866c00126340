package hybrid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Real is one migration of real bytes between two daemons over the link model, into an engine that takes the time of a GPU.
type Real struct {
	RateBps           float64 `json:"rate_bps"` // of the link, headers included
	RTTSeconds        float64 `json:"rtt_seconds"`
	PrefixTokens      int64   `json:"prefix_tokens"`
	PrefillUsPerToken float64 `json:"prefill_us_per_token"`
	// GoodputBps is what the destination's daemon had measured of the link before.
	GoodputBps float64 `json:"goodput_bps"`
	Mode       string  `json:"mode"` // as carried out
	// Predicted is the daemon's plan, Actual what the migration took, of a hybrid until every block was there, seconds.
	Predicted float64 `json:"predicted_seconds"`
	Actual    float64 `json:"actual_seconds"`
	// Simulated is what the simulation makes of it.
	Simulated      float64 `json:"simulated_seconds"`
	BlocksComputed int64   `json:"blocks_computed"`
	BlocksMoved    int64   `json:"blocks_moved"`
	DuplicateBytes int64   `json:"duplicate_bytes"`
}

// Error is how far the prediction was off: actual over predicted, less 1.
func (r *Real) Error() float64 { return r.Actual/r.Predicted - 1 }

// realModel is the engine's: 32 KiB of KV a token, blocks of 512 KiB.
var realModel = refengine.ModelConfig{Layers: 16, KVHeads: 8, QueryHeads: 8, HeadDim: 64, Hidden: 8, FFN: 8, MaxTokens: 1 << 16}

// realBlockTokens is that of realModel, by default.
const realBlockTokens = 16

// realBytesPerToken is that of realModel.
const realBytesPerToken = 2 * 16 * 8 * 64 * 2

// place is the setting of a Real.
type place struct {
	wan     wan.Model
	tokens  int
	prefill float64 // seconds a token
	mode    pb.Mode
}

// randomPlace is a setting where neither way is out of the question.
func randomPlace(rng *rand.Rand) place {
	between := func(low, high float64) float64 { return low * math.Pow(high/low, rng.Float64()) }
	p := place{
		wan:    wan.Model{RTT: time.Duration(between(5, 120) * float64(time.Millisecond)).Round(time.Millisecond), Rate: math.Round(between(20e6, 250e6)), Seed: rng.Uint64()},
		tokens: int(between(300, 1000)),
	}
	fetch := realBytesPerToken * 8 / (0.95 * p.wan.Rate)
	p.prefill = fetch * between(0.25, 4)
	return p
}

// real runs one migration at a place of its own.
func real(ctx context.Context, p place) (_ Real, err error) {
	off := false
	b, err := bed.Open(bed.Config{WAN: p.wan, Edit: func(_ string, c *daemon.Config) {
		c.GPU.Enabled = &off
		c.Link.Codec = "off" // a paced engine's pages are not a model's
	}})
	if err != nil {
		return Real{}, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	blocks := (p.tokens+64)/16 + 1
	longest := int64(max(blocks, warmTokens/16+1)) * realBytesPerToken * 16
	open := func(n *bed.Node, perSecond float64) (*refengine.Engine, error) {
		return refengine.Open(ctx, refengine.Config{
			Addr: n.Target(), DialOptions: n.DialOptions(), EngineID: "e", Model: realModel, ArenaBytes: 3 * longest, KeepSequences: -1,
			Pace: &refengine.Pace{PrefillTokensPerSecond: perSecond, DecodeTokensPerSecond: 1e6},
		})
	}
	from, err := open(b.Source, 1e6) // how its sessions came about is of no interest
	if err != nil {
		return Real{}, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := open(b.Destination, 1/p.prefill)
	if err != nil {
		return Real{}, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for i, n := range []int{warmTokens, warmTokens / 2, warmTokens, warmTokens / 3, warmTokens} { // the daemon measures the link by them
		if _, err := move(ctx, b, from, nil, fmt.Sprintf("warm-%d", i), n, pb.Mode_MODE_FETCH); err != nil {
			return Real{}, err
		}
	}
	links, err := b.Destination.Region.ListLinks(ctx, &pb.ListLinksRequest{})
	if err != nil {
		return Real{}, err
	}
	rep, err := move(ctx, b, from, to, "s", p.tokens, p.mode)
	if err != nil {
		return Real{}, err
	}
	actual := rep.GetTotal().AsDuration()
	if w := rep.GetWarm(); w != nil {
		actual = w.AsDuration()
	}
	goodput := links.GetLinks()[0].GetGoodput().GetValue()
	return Real{
		RateBps: p.wan.Rate, RTTSeconds: p.wan.RTT.Seconds(), PrefixTokens: int64(p.tokens), PrefillUsPerToken: p.prefill * 1e6,
		GoodputBps: goodput, Simulated: p.simulated(goodput), Mode: modeName(rep.GetMode()), Predicted: rep.GetPredictedSeconds(), Actual: actual.Seconds(),
		BlocksComputed: rep.GetBlocksComputed(), BlocksMoved: rep.GetBlocksMoved(), DuplicateBytes: rep.GetDuplicateBytes(),
	}, nil
}

// warmTokens is what the warm-up's longest migrations move: 8 MiB.
const warmTokens = 256

// move has a session at the source and migrates it; to, where it is not nil, continues it meanwhile.
func move(ctx context.Context, b *bed.Bed, from, to *refengine.Engine, session string, n int, mode pb.Mode) (*pb.MigrationReport, error) {
	tokens := make([]int, n)
	rng := rand.New(rand.NewPCG(uint64(n), uint64(len(session))+uint64(session[len(session)-1])))
	for i := range tokens {
		tokens[i] = rng.IntN(512)
	}
	if _, err := from.Generate(ctx, refengine.Request{Session: session, Tokens: tokens, UseCache: true, Commit: true, Publish: true}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := b.Destination.Move.Migrate(ctx, &pb.MigrateRequest{
		RequestId: session, Session: &pb.SessionRef{SessionId: session}, SourceHint: bed.SourceID, Mode: mode, Deadline: durationpb.New(10 * time.Minute),
	})
	if err != nil {
		return nil, err
	}
	u, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	id, ended := u.GetMigrationId(), make(chan error, 1)
	if to == nil {
		ended <- nil
	} else {
		go func() {
			res, err := to.Generate(ctx, refengine.Request{Session: session, Tokens: tokens, UseCache: true, Commit: true, Migration: id})
			if err == nil && res.DamagedPages > 0 {
				err = fmt.Errorf("%d pages are not what their keys say", res.DamagedPages)
			}
			ended <- err
		}()
	}
	for u.GetReport() == nil {
		if u, err = stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("BUG: the daemon ended the stream without a report")
			}
			cancel()
			return nil, errors.Join(err, <-ended)
		}
	}
	if err := <-ended; err != nil {
		return nil, err
	}
	switch rep := u.GetReport(); rep.GetState() {
	case pb.MigrationState_MIGRATION_STATE_COMMITTED, pb.MigrationState_MIGRATION_STATE_RECOMPUTE:
		return rep, nil
	default:
		return nil, fmt.Errorf("a migration ended as %v: %s", rep.GetState(), rep.GetMessage())
	}
}

// modeName is a mode's name in lower case.
func modeName(m pb.Mode) string { return strings.ToLower(strings.TrimPrefix(m.String(), "MODE_")) }

// maxReal bounds Config.Real.
const maxReal = 1000

// realPlaces is a grid of three links, two round-trip times, and prefill twice as fast as the link and half as fast.
func realPlaces(n int) (out []place) {
	for i := range n {
		p := place{wan: wan.Model{
			Rate: []float64{20e6, 30e6, 50e6}[i%3], RTT: []time.Duration{10 * time.Millisecond, 70 * time.Millisecond}[i/3%2], Seed: uint64(i + 1),
		}, tokens: 800 + 16*(i/12), mode: pb.Mode_MODE_HYBRID}
		p.prefill = realBytesPerToken * 8 / (0.95 * p.wan.Rate) * []float64{0.5, 2}[i/6%2]
		out = append(out, p)
	}
	return out
}

// runReal makes migrations with real bytes: each between two daemons over the link model, into an engine that takes the time of a GPU, after five
// fetches by which the daemon has measured the link. When ctx ends it returns what it has. Outside a bubble of testing/synctest time
// is real, and a machine that is too slow for a link shows.
func runReal(ctx context.Context, n int, bar *results.Progress) ([]Real, error) {
	bar.Stage(fmt.Sprintf("moving real bytes %d times", n), float64(n))
	out := []Real{}
	for i, p := range realPlaces(n) {
		r, err := real(ctx, p)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("migration %d with real bytes: %w", i+1, err)
		}
		out = append(out, r)
		bar.Add(1)
	}
	return out, nil
}

// simulated is what the simulation makes of it: the offer and the request for the first unit pass before a byte lands.
func (p place) simulated(goodput float64) float64 {
	blocks := p.tokens / realBlockTokens
	d := draw{
		cum: make([]float64, blocks+1), blockBytes: realBytesPerToken * realBlockTokens, rtt: p.wan.RTT.Seconds(), lead: 2 * p.wan.RTT.Seconds(),
		rate: goodput / 8, believed: goodput / 8, want: refengine.ClaimBlocks, claim: claimSeconds,
	}
	for k := range d.cum {
		d.cum[k] = float64(k*realBlockTokens) * p.prefill
	}
	return new(meeting).run(d).seconds
}
