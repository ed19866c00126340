package prefill

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	// beat is how often the daemon hears of a front whose request is under way: well within its patience of three seconds.
	beat = time.Second
	// grow is how much larger than doubled a step may become at once because of overhead: one slow request must not take all.
	grow = 8
)

// Run prefills the front of a migration by requests to the engine until the ends have met and the migration has ended, the
// daemon grants no more, or every whole block of the prompt is computed. It sends one request at a time, each for granted
// blocks only, and none without a new block. It blocks until then: a caller that wants the migration's progress reads that in
// another goroutine.
//
// The report is complete whatever the error. Errors: [ConfigError]s, joined; an [EngineError]; of a claim one that wraps the
// gRPC status or context.DeadlineExceeded; ctx's cause, after the request in flight was cancelled.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{End: EndConfig}, err
	}
	f := &front{cfg: cfg.withDefaults(), tokens: cfg.Tokens}
	end, err := f.run(ctx)
	if err != nil && ctx.Err() != nil {
		end, err = EndCancelled, context.Cause(ctx)
	}
	if (end == EndEngine || end == EndCancelled) && f.report.GrantedBlocks > f.at {
		f.giveUp(ctx)
	}
	f.report.End = end
	if overhead, perToken, ok := f.line.fit(); ok {
		f.report.OverheadSeconds = overhead * float64(f.report.Requests)
		f.report.SecondsPerToken = perToken
	}
	return f.report, err
}

// front is one Run. Only its goroutine touches it.
type front struct {
	cfg    Config
	tokens []int
	blocks int // whole ones of tokens
	at     int // blocks before it are the engine's
	line   line
	fetch  fetchSpeed
	report Report
}

func (f *front) run(ctx context.Context) (End, error) {
	if f.cfg.Text != "" {
		tokens, err := f.tokenize(ctx)
		if err != nil {
			return EndEngine, err
		}
		f.tokens = tokens
	}
	f.blocks = len(f.tokens) / f.cfg.BlockTokens
	for f.at < f.blocks {
		got, err := f.claim(ctx, f.want())
		if err != nil {
			return EndClaim, err
		}
		f.report.Claims++
		f.fetch.look(time.Now(), int(got.GetFetchFrontier()))
		until := int(min(got.GetGrantedUntil(), uint32(f.blocks)))
		granted := until > f.at
		switch {
		case got.GetEnded(): // what it grants is everything: the real request computes that at once
			return EndMigration, nil
		case granted:
			f.report.GrantedBlocks = until
			if err := f.compute(ctx, until); err != nil {
				return EndEngine, err
			}
		}
		if got.GetStop() {
			return EndStopped, nil
		}
		if err := f.pause(ctx, granted); err != nil {
			return EndCancelled, err
		}
	}
	return EndComputed, nil
}

// want is how many blocks the next request is to compute.
func (f *front) want() int {
	size := float64(f.cfg.BlockTokens)
	doubled := float64(f.at + 1) // steps of 1, 2, 4...
	want, least := doubled, 1.0
	overhead, perToken, known := f.line.fit()
	if known && f.cfg.MaxOverhead > 0 {
		least = min(overhead/(f.cfg.MaxOverhead*perToken*size), grow*doubled) // perToken 0: +Inf or NaN
		if math.IsNaN(least) {
			least = 1
		}
		want = max(want, least)
	}
	if n := f.cfg.StepTokens; n > 0 && (known || f.report.Requests != 1) { // the second is longer than the first, whatever a step
		want = min(want, max(float64(n)/size, least))
	}
	return int(max(1, min(math.Ceil(want*(1-1e-9)), float64(f.blocks-f.at), maxWant)))
}

// giveUp has the fetch bring what was granted and is not computed, at once and not when the daemon's patience is over.
func (f *front) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beat) // it is owed after a cancel, too
	defer cancel()
	_, _ = f.cfg.Migrations.ClaimPrefill(ctx, &kvferryv1.ClaimPrefillRequest{
		MigrationId: f.cfg.MigrationID, ComputedBlocks: uint32(f.at), GivesUp: true,
	}) // unheard, it costs the daemon's patience
}

// claim asks for blocks from at on.
func (f *front) claim(ctx context.Context, want int) (*kvferryv1.ClaimPrefillResponse, error) {
	if t := f.cfg.ClaimTimeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, errTimeout{t})
		defer cancel()
	}
	got, err := f.cfg.Migrations.ClaimPrefill(ctx, &kvferryv1.ClaimPrefillRequest{
		MigrationId: f.cfg.MigrationID, ComputedBlocks: uint32(f.at), WantBlocks: uint32(want),
	})
	if err != nil {
		return nil, fmt.Errorf("prefill: claim %d blocks from block %d of migration %s: %w", want, f.at, f.cfg.MigrationID, causeOf(ctx, err))
	}
	return got, nil
}

// compute has the engine prefill the prefix that ends at block until, and tells the daemon meanwhile that it does.
func (f *front) compute(ctx context.Context, until int) error {
	beats, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.beat(beats) })
	began := time.Now()
	u, err := f.complete(ctx, until)
	took := time.Since(began).Seconds()
	stop()
	wg.Wait()
	if err != nil {
		return err
	}
	return f.took(u, until, took)
}

// took accounts for an answered request.
func (f *front) took(u usage, until int, seconds float64) error {
	had, tokens := f.at*f.cfg.BlockTokens, (until-f.at)*f.cfg.BlockTokens
	if u.hasCached {
		tokens = max(1, until*f.cfg.BlockTokens-u.cached)
		f.report.CachedTokens += u.cached
	}
	f.line.add(tokens, seconds)
	f.at = until
	f.report.Requests++
	f.report.Tokens += tokens
	f.report.RequestSeconds += seconds
	f.report.ComputedBlocks = until
	if u.hasCached && u.cached < had/2 {
		return &EngineError{
			Path: "/v1/completions", Blocks: until, Status: 200,
			Message: fmt.Sprintf("%d tokens were cached, of %d that it had computed; turn prefix caching on", u.cached, had), Err: ErrPrefixNotCached,
		}
	}
	return nil
}

// beat claims a block that is granted already, again and again, until ctx ends: the daemon hears that the front is at work.
func (f *front) beat(ctx context.Context) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_, _ = f.claim(ctx, 1) // the next real claim tells of a daemon that is gone
		case <-ctx.Done():
			return
		}
	}
}

// pause waits before the next claim: for Poll when nothing was granted; for what the fetch takes to bring all that is left, when
// that is less than a request would take.
func (f *front) pause(ctx context.Context, granted bool) error {
	var wait time.Duration
	if !granted {
		wait = f.cfg.Poll
	}
	if overhead, perToken, ok := f.line.fit(); ok {
		least := time.Duration((overhead + perToken*float64(f.cfg.BlockTokens)) * float64(time.Second))
		if gap := f.fetch.gap(time.Now(), f.at); gap > 0 && gap < least {
			wait = max(wait, gap)
		}
	}
	return sleep(ctx, wait)
}

// fetchSpeed follows the fetch's frontier, which moves as fast as blocks land once the window is full.
type fetchSpeed struct {
	frontier   int
	since      time.Time // of the frontier from
	from       int
	seen       time.Time // of frontier
	perBlock   time.Duration
	measurable bool
}

// look takes in where the frontier is.
func (s *fetchSpeed) look(now time.Time, frontier int) {
	switch {
	case frontier == 0: // not known
		return
	case s.since.IsZero() || frontier > s.from: // or blocks were taken over
		s.since, s.from, s.measurable = now, frontier, false
	case frontier < s.from && now.After(s.since):
		s.perBlock, s.measurable = now.Sub(s.since)/time.Duration(s.from-frontier), true
	}
	s.frontier, s.seen = frontier, now
}

// gap is how long the fetch takes from now on to ask for all the blocks from at on; 0: it is not known.
func (s *fetchSpeed) gap(now time.Time, at int) time.Duration {
	if !s.measurable || s.frontier <= at {
		return 0
	}
	return s.perBlock*time.Duration(s.frontier-at) - now.Sub(s.seen)
}

// sleep waits, and returns ctx's cause if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
