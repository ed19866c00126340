package refengine

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/daemon"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// hybridModel has 2 KiB of KV a token, 32 KiB a block.
func hybridModel() ModelConfig {
	return ModelConfig{Layers: 8, Hidden: 128, QueryHeads: 2, KVHeads: 2, HeadDim: 32, FFN: 512, MaxTokens: 4096}
}

// pair is an engine at each daemon of a bed.
type pair struct {
	bed      *bed.Bed
	from, to *Engine
}

func openPair(t *testing.T, model wan.Model, edit func(*Config), configure func(string, *daemon.Config)) *pair {
	t.Helper()
	b, err := bed.Open(bed.Config{WAN: model, Edit: configure})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{bed: b}
	t.Cleanup(func() {
		for _, e := range []*Engine{p.from, p.to} {
			if e != nil {
				_ = e.Close() // its daemon may be gone
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	open := func(n *bed.Node, watermark *Watermark) *Engine {
		cfg := Config{Addr: n.Target(), DialOptions: n.DialOptions(), EngineID: "e", Model: hybridModel(), ArenaBytes: 32 << 20, Watermark: watermark}
		edit(&cfg)
		e, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	p.to = open(b.Destination, nil)
	var mark *Watermark
	if p.to.cfg.Pace == nil {
		mark = &Watermark{Seed: 7}
	}
	p.from = open(b.Source, mark)
	return p
}

// turn runs the first turn at the source, and returns what the next one begins with.
func (p *pair) turn(t *testing.T, session string, prompt int) []int {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(prompt), 9))
	tokens := make([]int, prompt)
	for i := range tokens {
		tokens[i] = rng.IntN(512)
	}
	res, err := p.from.Generate(t.Context(), Request{Session: session, Tokens: tokens, MaxNew: 4, UseCache: true, Commit: true, Publish: true})
	if err != nil || len(res.Warnings) > 0 {
		t.Fatal(err, res)
	}
	return append(tokens, res.Tokens...)
}

// migrate begins a migration of that mode and has the destination's engine continue beside it.
func (p *pair) migrate(t *testing.T, session string, tokens []int, mode kvferryv1.Mode) (*Result, *kvferryv1.MigrationReport, time.Duration) {
	t.Helper()
	began := time.Now()
	stream, err := p.bed.Destination.Move.Migrate(t.Context(), &kvferryv1.MigrateRequest{
		RequestId: session, Session: &kvferryv1.SessionRef{SessionId: session}, SourceHint: bed.SourceID, Mode: mode, Deadline: durationpb.New(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		report *kvferryv1.MigrationReport
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		for {
			u, err := stream.Recv()
			if err != nil || u.GetReport() != nil {
				ended <- outcome{u.GetReport(), err}
				return
			}
		}
	}()
	res, err := p.to.Generate(t.Context(), Request{
		Session: session, Tokens: tokens, MaxNew: 6, UseCache: true, Commit: true, Migration: first.GetMigrationId(),
	})
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	o := <-ended
	if o.err != nil || o.report.GetState() != kvferryv1.MigrationState_MIGRATION_STATE_COMMITTED {
		t.Fatalf("migration: %v, %v", o.report, o.err)
	}
	return res, o.report, took
}

// A paced engine beside a hybrid, in exact time: both ends' time is that of the rates' sum, and every page is what its key says,
// whoever made it.
func TestHybridPaced(t *testing.T) {
	for name, pace := range map[string]float64{"even": 5000, "fast": 20000, "slow": 1250} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model := wan.Model{RTT: 40 * time.Millisecond, Rate: 1e8, Seed: 1}
				off := false
				p := openPair(t, model, func(c *Config) { c.Pace = &Pace{PrefillTokensPerSecond: pace, DecodeTokensPerSecond: 1000} }, func(_ string, c *daemon.Config) {
					c.GPU.Enabled = &off
					c.Link.Codec = "off" // raw bytes are what the ideal time counts
				})
				warm := p.turn(t, "warm", 2000)
				p.migrate(t, "warm", warm, kvferryv1.Mode_MODE_FETCH)
				tokens := p.turn(t, "s", 3000)
				res, rep, took := p.migrate(t, "s", tokens, kvferryv1.Mode_MODE_HYBRID)
				blocks := float64(len(tokens) / 16)
				tc, tf := 16*blocks/pace, blocks*float64(p.from.cfg.Model.blockBytes())*8/(0.95*model.Rate)
				ideal := tc * tf / (tc + tf)
				prefill := took.Seconds() - res.DecodeSeconds
				t.Logf("prefill alone %.3f s, fetch alone %.3f s, both ideally %.3f s: %.3f s; %d blocks loaded, %d prefilled, %d bytes twice",
					tc, tf, ideal, prefill, len(res.LoadedBlocks), rep.GetBlocksComputed(), rep.GetDuplicateBytes())
				if prefill > 1.05*ideal+0.15 || res.DamagedPages != 0 || len(res.Warnings) > 0 {
					t.Errorf("%.3f s, %d damaged pages, %v", prefill, res.DamagedPages, res.Warnings)
				}
				if n := len(res.LoadedBlocks)*16 + res.PrefilledTokens; n != len(tokens) {
					t.Errorf("%d tokens were loaded or prefilled, of %d", n, len(tokens))
				}
			})
		})
	}
}

// A real transformer beside a hybrid: it continues as one whose front was computed here and whose tail is the source's, which is
// watermarked: not as either alone would.
func TestHybridReal(t *testing.T) {
	p := openPair(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 4e7, Seed: 1}, func(*Config) {}, nil)
	tokens := p.turn(t, "s", 1500)
	res, rep, _ := p.migrate(t, "s", tokens, kvferryv1.Mode_MODE_HYBRID)
	t.Logf("%d blocks loaded, %d prefilled, of %d; %v", len(res.LoadedBlocks), rep.GetBlocksComputed(), len(tokens)/16, res.Warnings)
	if len(res.LoadedBlocks) == 0 || len(res.LoadedBlocks) == len(tokens)/16 {
		t.Fatalf("%d of %d blocks loaded: both ends should have worked", len(res.LoadedBlocks), len(tokens)/16)
	}
	mixed := p.continued(t, tokens, func(block int) bool { return slices.Contains(res.LoadedBlocks, block) })
	if diff := cmp.Diff(mixed, res.Steps); diff != "" {
		t.Errorf("steps (-oracle +engine):\n%s", diff)
	}
	for name, loaded := range map[string]bool{"the source's": true, "computed": false} {
		if cmp.Equal(p.continued(t, tokens, func(int) bool { return loaded }), res.Steps) {
			t.Errorf("a cache that is all %s continues in the same way", name)
		}
	}
}

// continued is how a cache continues whose blocks are the source's where loaded says so, and computed here where not.
func (p *pair) continued(t *testing.T, tokens []int, loaded func(block int) bool) []Step {
	t.Helper()
	e, size := p.from, p.from.cfg.Model.BlockTokens
	keys := BlockKeys(e.cfg.Names.HashSeed, size, tokens)
	lease, err := e.client.AcquireBlocks(t.Context(), &kvferryv1.AcquireBlocksRequest{EngineId: "e", ArenaId: e.arenaID(), Keys: keys, Prefix: true})
	if err != nil {
		t.Fatal(err)
	}
	mem := p.to.compute.newMemory()
	ctx := context.Background()
	for i := range keys {
		if !loaded(i) || i >= len(lease.GetSlots()) {
			if _, err := mem.prefill(ctx, tokens, keys, i*size, (i+1)*size, false); err != nil {
				t.Fatal(err)
			}
			continue
		}
		page, err := e.arena.Slot(lease.GetSlots()[i])
		if err != nil {
			t.Fatal(err)
		}
		mem.importBlock(i, keys[i], page)
	}
	var step Step
	if at := len(keys) * size; at < len(tokens) {
		step, err = mem.prefill(ctx, tokens, keys, at, len(tokens), true)
	} else {
		step, err = mem.evaluate(ctx, tokens, keys, len(tokens)-1)
	}
	var steps []Step
	all := slices.Clone(tokens)
	for range 6 {
		if err != nil {
			t.Fatal(err)
		}
		steps, all = append(steps, step), append(all, step.Token)
		step, err = mem.decode(ctx, all, keys, len(all)-1)
	}
	if _, err := e.client.ReleaseBlocks(t.Context(), &kvferryv1.ReleaseBlocksRequest{EngineId: "e", ArenaId: e.arenaID(), LeaseIds: []uint64{lease.GetLeaseId()}}); err != nil {
		t.Fatal(err)
	}
	return steps
}
