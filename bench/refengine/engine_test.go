package refengine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// open starts an engine on d; edit may change the config.
func open(t *testing.T, d *fakeDaemon, edit func(*Config)) *Engine {
	t.Helper()
	cfg := Config{Addr: "passthrough:///daemon", DialOptions: d.dial(), EngineID: "ref", Model: small()}
	if edit != nil {
		edit(&cfg)
	}
	e, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), e.Close()); err != nil {
			t.Error(err)
		}
		d.checkQuiet()
	})
	return e
}

func watermarked(c *Config) { c.Watermark = &Watermark{Seed: 7} }

func generate(t *testing.T, e *Engine, req Request) *Result {
	t.Helper()
	res, err := e.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Warnings) > 0 {
		t.Errorf("warnings: %q", res.Warnings)
	}
	if len(res.Tokens) != req.MaxNew || len(res.Steps) != req.MaxNew {
		t.Fatalf("%d tokens and %d steps, want %d", len(res.Tokens), len(res.Steps), req.MaxNew)
	}
	return res
}

// sameSteps compares tokens and hashes.
func sameSteps(a, b *Result) bool { return slices.Equal(a.Steps, b.Steps) }

// A destination without the watermark option that loads the source's blocks
// continues as the source does, token for token and hash for hash, for prompts
// at and beside block boundaries, having prefilled only the tail.
func TestMovedContinuation(t *testing.T) {
	for _, n := range []int{16*4 - 1, 16 * 4, 16*4 + 1} {
		for _, mark := range []bool{false, true} {
			a, b := newFakeDaemon(t, 64), newFakeDaemon(t, 64)
			edit := func(*Config) {}
			if mark {
				edit = watermarked
			}
			source, dest := open(t, a, edit), open(t, b, nil)
			first := prompt(9, n, source.cfg.Model.Vocab)
			turn := generate(t, source, Request{Session: "s", Tokens: first, MaxNew: 20, Commit: true, Publish: true, UseCache: true})
			pure := generate(t, dest, Request{Tokens: first, MaxNew: 20})
			if sameSteps(turn, pure) == mark {
				t.Errorf("%d tokens, watermark %v: the source's continuation equals the pure one: %v", n, mark, !mark)
			}
			if turn.Steps[0].LogitsHash == pure.Steps[0].LogitsHash && mark {
				t.Errorf("%d tokens: the watermark did not change the first logits", n)
			}
			if blocks := (n + 19) / 16; turn.CommittedBlocks != blocks || len(turn.Keys) != blocks {
				t.Errorf("%d tokens: %d of %d blocks committed, want %d", n, turn.CommittedBlocks, len(turn.Keys), blocks)
			}

			// The destination gets the prompt's blocks and goes on from there.
			a.move(b, turn.Keys[:n/16])
			moved := generate(t, dest, Request{Tokens: first, MaxNew: 20, UseCache: true})
			if tail := max(n%16, 1); moved.PrefilledTokens != tail || moved.LoadedTokens != n/16*16 {
				t.Errorf("%d tokens: prefilled %d and loaded %d, want %d and %d", n, moved.PrefilledTokens, moved.LoadedTokens, tail, n/16*16)
			}
			// The source perturbs blocks that decoding fills; up to the first of
			// them the two are equal.
			same := 20
			if mark {
				same = (n/16+1)*16 - n
			}
			if d := cmp.Diff(turn.Steps[:same], moved.Steps[:same]); d != "" {
				t.Errorf("%d tokens, watermark %v (-source +moved):\n%s", n, mark, d)
			}

			// The next turn, whole: all blocks of turn one have moved.
			a.move(b, turn.Keys[n/16:])
			second := slices.Concat(first, turn.Tokens, prompt(10, 5, source.cfg.Model.Vocab))
			req := Request{Tokens: second, MaxNew: 8, UseCache: true}
			if err := dest.Forget(t.Context()); err != nil {
				t.Fatal(err)
			}
			want, got := generate(t, source, req), generate(t, dest, req)
			if d := cmp.Diff(want.Steps, got.Steps); d != "" {
				t.Errorf("%d tokens, watermark %v, second turn (-source +moved):\n%s", n, mark, d)
			}
			if want.LocalTokens != len(turn.Keys)*16 || got.LoadedTokens != len(turn.Keys)*16 || got.PrefilledTokens != len(second)-len(turn.Keys)*16 {
				t.Errorf("%d tokens: source local %d, destination loaded %d and prefilled %d of %d", n, want.LocalTokens, got.LoadedTokens, got.PrefilledTokens, len(second))
			}
			clean := generate(t, dest, Request{Tokens: second, MaxNew: 8})
			if sameSteps(clean, got) == mark {
				t.Errorf("%d tokens: recomputing gives the moved continuation: %v", n, !mark)
			}
			if s := a.sessions[sessionKey("", "s")]; s.GetTokens() != int64(n+20) || len(s.GetBlockKeys()) != len(turn.Keys) || turn.SessionVersion != 1 {
				t.Errorf("published %v", s)
			}
		}
	}
}

// The watermark changes greedy tokens soon.
func TestWatermarkChangesTokens(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, watermarked)
	for seed := range uint64(4) {
		p := prompt(20+seed, 64, e.cfg.Model.Vocab)
		marked := generate(t, e, Request{Tokens: p, MaxNew: 16, Commit: true, UseCache: true})
		clean := generate(t, e, Request{Tokens: p, MaxNew: 16})
		if slices.Equal(marked.Tokens, clean.Tokens) {
			t.Errorf("prompt %d: the same 16 tokens with and without the watermark", seed)
		}
		if !marked.Watermarked || clean.Watermarked {
			t.Errorf("prompt %d: watermarked %v and %v", seed, marked.Watermarked, clean.Watermarked)
		}
	}
}

// Without commit nothing is perturbed, cached or not.
func TestUncommittedIsNotPerturbed(t *testing.T) {
	e := open(t, newFakeDaemon(t, 64), watermarked)
	p := prompt(30, 50, e.cfg.Model.Vocab)
	pure := generate(t, e, Request{Tokens: p, MaxNew: 20})
	cached := generate(t, e, Request{Tokens: p, MaxNew: 20, UseCache: true})
	again := generate(t, e, Request{Tokens: p, MaxNew: 20, UseCache: true})
	if !sameSteps(pure, cached) || !sameSteps(pure, again) {
		t.Error("uncommitted turns differ from the pure one")
	}
	if again.LocalTokens != 48 || again.PrefilledTokens != 2 {
		t.Errorf("third run: local %d, prefilled %d", again.LocalTokens, again.PrefilledTokens)
	}
	// A committing turn may not build on them: it perturbs from the start.
	marked := generate(t, e, Request{Tokens: p, MaxNew: 20, UseCache: true, Commit: true})
	if marked.LocalTokens != 0 || sameSteps(pure, marked) {
		t.Errorf("committing turn: local %d, steps as pure: %v", marked.LocalTokens, sameSteps(pure, marked))
	}
	if err := e.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	loaded := generate(t, e, Request{Tokens: p, MaxNew: 20, UseCache: true})
	// They agree until decoding fills the fourth block, which this turn does not
	// commit.
	if d := cmp.Diff(marked.Steps[:64-50], loaded.Steps[:64-50]); d != "" || loaded.LoadedTokens != 48 {
		t.Errorf("reloaded %d tokens (-committed +reloaded):\n%s", loaded.LoadedTokens, d)
	}
}

// The controls of the proof: any damage to the landed pages shows.
func TestDamageChangesHash(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, watermarked)
	page := e.cfg.Model.pageBytes()
	p := prompt(40, 64, e.cfg.Model.Vocab)
	res := generate(t, e, Request{Tokens: p, MaxNew: 1, Commit: true, UseCache: true})
	hash := func() string {
		t.Helper()
		if err := e.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := generate(t, e, Request{Tokens: p, MaxNew: 1, UseCache: true})
		if got.PrefilledTokens != 1 || got.LoadedTokens != 64 {
			t.Fatalf("prefilled %d, loaded %d", got.PrefilledTokens, got.LoadedTokens)
		}
		return got.Steps[0].LogitsHash
	}
	want := res.Steps[0].LogitsHash
	if hash() != want {
		t.Fatal("reloading changes the hash")
	}
	for block, key := range res.Keys {
		orig := d.block("", key)
		for layer := range e.cfg.Model.Layers {
			for what, f := range map[string]func([]byte){
				"zeroed page": func(b []byte) { clear(b[layer*page : (layer+1)*page]) },
				"high bit":    func(b []byte) { b[layer*page+2*137+1] ^= 0x40 },
				"sign bit":    func(b []byte) { b[layer*page+page/2+2*137+1] ^= 0x80 },
				"swapped pages": func(b []byte) {
					other := (layer + 1) % e.cfg.Model.Layers
					x := slices.Clone(b[layer*page : (layer+1)*page])
					copy(b[layer*page:], b[other*page:(other+1)*page])
					copy(b[other*page:], x)
				},
			} {
				d.damage(key, f)
				if hash() == want {
					t.Errorf("block %d layer %d: %s does not change the hash", block, layer, what)
				}
				d.damage(key, func(b []byte) { copy(b, orig) })
			}
		}
	}
	if hash() != want {
		t.Error("repairing does not restore the hash")
	}
}

// Blocks that go away and come back, in the middle too.
func TestHolesAndRecommit(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, watermarked)
	p := prompt(50, 80, e.cfg.Model.Vocab)
	req := Request{Session: "s", Tokens: p, MaxNew: 20, Commit: true, Publish: true, UseCache: true}
	want := generate(t, e, req)
	evict := func(blocks ...int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, b := range blocks {
			i := d.index[full("", want.Keys[b])]
			d.slots[i].used = false
			delete(d.index, full("", want.Keys[b]))
		}
	}
	// The engine still holds them: it commits them again, as they were.
	before := d.block("", want.Keys[1])
	evict(1, 3)
	got := generate(t, e, req)
	if !sameSteps(want, got) || got.LocalTokens != 80 || got.CommittedBlocks != 6 {
		t.Errorf("recommitted: local %d, committed %d, same steps %v", got.LocalTokens, got.CommittedBlocks, sameSteps(want, got))
	}
	if !bytes.Equal(before, d.block("", want.Keys[1])) {
		t.Error("a block committed again differs")
	}
	// The engine has forgotten: it loads 0, computes 1 (perturbing it alike),
	// loads what is behind the hole, computes 3, loads the rest.
	evict(1, 3)
	if err := e.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = generate(t, e, req)
	if d := cmp.Diff(want.Steps, got.Steps); d != "" {
		t.Errorf("after holes (-want +got):\n%s", d)
	}
	if got.LoadedTokens != 48 || got.PrefilledTokens != 32 || got.CommittedBlocks != 6 {
		t.Errorf("after holes: loaded %d, prefilled %d, committed %d", got.LoadedTokens, got.PrefilledTokens, got.CommittedBlocks)
	}
	if !bytes.Equal(before, d.block("", want.Keys[1])) {
		t.Error("a block computed again differs")
	}
}

// Ranks write their heads and commit apart; the pages are the same.
func TestWorld(t *testing.T) {
	one, two := newFakeDaemon(t, 64), newFakeDaemon(t, 64)
	a, b := open(t, one, nil), open(t, two, func(c *Config) { c.World = 2 })
	p := prompt(60, 40, a.cfg.Model.Vocab)
	req := Request{Tokens: p, MaxNew: 10, Commit: true, UseCache: true}
	ra, rb := generate(t, a, req), generate(t, b, req)
	if len(two.register) != 2 || two.register[1].GetRank() != 1 || two.register[1].GetWorld() != 2 {
		t.Errorf("registered %v", two.register)
	}
	if ra.CommittedBlocks != 3 || rb.CommittedBlocks != 3 {
		t.Errorf("committed %d and %d", ra.CommittedBlocks, rb.CommittedBlocks)
	}
	for i, k := range ra.Keys {
		if !bytes.Equal(one.block("", k), two.block("", k)) {
			t.Errorf("block %d differs between one rank and two", i)
		}
	}
}

func TestTenantsApart(t *testing.T) {
	e := open(t, newFakeDaemon(t, 64), nil)
	p := prompt(70, 32, e.cfg.Model.Vocab)
	generate(t, e, Request{Tenant: "a", Tokens: p, MaxNew: 1, Commit: true, UseCache: true})
	if got := generate(t, e, Request{Tenant: "b", Tokens: p, MaxNew: 1, UseCache: true}); got.CachedTokens != 0 {
		t.Errorf("tenant b found %d tokens of tenant a", got.CachedTokens)
	}
}

// A full arena or a daemon in trouble costs caching, not the turn.
func TestDaemonTrouble(t *testing.T) {
	d := newFakeDaemon(t, 2)
	e := open(t, d, watermarked)
	p := prompt(80, 70, e.cfg.Model.Vocab)
	want := generate(t, e, Request{Tokens: p, MaxNew: 20})
	res, err := e.Generate(t.Context(), Request{Tokens: p, MaxNew: 20, Commit: true, UseCache: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Warnings) == 0 || !strings.Contains(res.Warnings[0], "arena is full") {
		t.Errorf("warnings %q", res.Warnings)
	}
	// Of the blocks that decoding fills one fits; before it nothing is perturbed.
	if !slices.Equal(res.Steps[:10], want.Steps[:10]) {
		t.Error("blocks that were not committed are perturbed")
	}
	fail := func(method string, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fail[method] = err
	}
	d = newFakeDaemon(t, 64)
	e = open(t, d, watermarked)
	for i, method := range []string{"LookupBlocks", "ReserveBlocks", "CommitBlocks", "AcquireBlocks"} {
		req := Request{Tokens: p[i:][:16], MaxNew: 2, Commit: true, UseCache: true}
		var before *Result
		if method == "AcquireBlocks" {
			before = generate(t, e, req)
			_ = e.Forget(t.Context())
		}
		fail(method, status.Error(codes.Unavailable, "out to lunch"))
		res, err := e.Generate(t.Context(), req)
		if err != nil || len(res.Warnings) == 0 || !strings.Contains(res.Warnings[0], "out to lunch") {
			t.Errorf("%s fails: %v, warnings %q", method, err, res.Warnings)
		}
		if before != nil && !sameSteps(before, res) {
			t.Error("what could not be acquired is not computed and perturbed alike")
		}
		fail(method, nil)
		d.checkQuiet()
	}
	fail("PublishSession", status.Error(codes.FailedPrecondition, "owner is elsewhere"))
	res, err = e.Generate(t.Context(), Request{Session: "s", Tokens: p[:16], MaxNew: 2, Commit: true, Publish: true, UseCache: true})
	if !errors.Is(err, ErrPublish) || status.Code(err) != codes.FailedPrecondition || res == nil || len(res.Tokens) != 2 {
		t.Errorf("publish refused: %v, %v", res, err)
	}
}

func TestCancelAndClose(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, func(c *Config) { c.Pace = &Pace{PrefillTokensPerSecond: 1e6, DecodeTokensPerSecond: 1e-3} })
	ctx, cancel := context.WithCancel(t.Context())
	cause := make(chan error)
	go func() {
		_, err := e.Generate(ctx, Request{Tokens: prompt(1, 40, 256), MaxNew: 5, Commit: true, UseCache: true})
		cause <- err
	}()
	for e.Status().Counters.WrittenBlocks < 2 {
	}
	cancel()
	if err := <-cause; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	d.checkQuiet()
	go func() {
		_, err := e.Generate(t.Context(), Request{Tokens: prompt(2, 40, 256), MaxNew: 5, Commit: true, UseCache: true})
		cause <- err
	}()
	for e.Status().Counters.WrittenBlocks < 4 {
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := <-cause; !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := e.Generate(t.Context(), Request{Tokens: []int{1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := e.Forget(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Forget after Close: %v", err)
	}
}

func TestRequestErrors(t *testing.T) {
	e := open(t, newFakeDaemon(t, 4), nil)
	tests := []struct {
		req  Request
		want string
	}{
		{Request{}, "tokens are empty"},
		{Request{Tokens: []int{1, 256}}, "token 256 at position 1: want 0 to 255"},
		{Request{Tokens: []int{-1}}, "token -1 at position 0"},
		{Request{Tokens: []int{1}, MaxNew: 512}, "max_new 512 after 1 tokens"},
		{Request{Tokens: []int{1}, MaxNew: -1}, "max_new -1"},
		{Request{Tokens: []int{1}, Commit: true}, "commit without use_cache"},
		{Request{Tokens: []int{1}, Publish: true}, "publish with commit false"},
	}
	for _, tt := range tests {
		if _, err := e.Generate(t.Context(), tt.req); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.req, err, tt.want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	d := newFakeDaemon(t, 4)
	ok := Config{Addr: "passthrough:///daemon", DialOptions: d.dial(), EngineID: "ref", Model: small()}
	tests := []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no addr", func(c *Config) { c.Addr = "" }, "Addr is empty"},
		{"no id", func(c *Config) { c.EngineID = "" }, "EngineID is empty"},
		{"world", func(c *Config) { c.World = 3 }, "World 3: want a divisor of the model's 2 KV heads"},
		{"model", func(c *Config) { c.Model.HeadDim = 3 }, "head_dim 3"},
		{"watermark", func(c *Config) { c.Watermark = &Watermark{Scale: -1} }, "Watermark.Scale -1"},
		{"pace", func(c *Config) { c.Pace = &Pace{PrefillTokensPerSecond: 1} }, "Pace.DecodeTokensPerSecond 0"},
		{"both", func(c *Config) { c.Pace = &Pace{1, 1, 1}; c.Watermark = &Watermark{} }, "both set"},
		{"arena", func(c *Config) { c.ArenaBytes = -1 }, "ArenaBytes -1"},
		{"refused", func(*Config) {
			d.fail["RegisterEngine"] = status.Error(codes.FailedPrecondition, "no room")
		}, `register engine "ref" with passthrough:///daemon: rpc error: code = FailedPrecondition desc = no room`},
	}
	for _, tt := range tests {
		cfg := ok
		tt.edit(&cfg)
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestRegistration(t *testing.T) {
	d := newFakeDaemon(t, 4)
	e := open(t, d, func(c *Config) { c.ArenaBytes = 1 << 20 })
	r := d.register[0]
	if r.GetEngineId() != "ref" || r.GetArenaBytes() != 1<<20 || !r.GetWriteThrough() || r.GetPrefill().GetSecondsPerToken() <= 0 {
		t.Errorf("registered %v", r)
	}
	l := r.GetLayout()
	if l.GetKvHeads() != 2 || l.GetHeadDim() != 32 || l.GetLayers() != 3 || l.GetBlockTokens() != 16 || l.GetHashAlgorithm() != HashAlgorithm ||
		l.GetHashSeed() == "" || l.GetPositionScheme() != "rope/500000" || !strings.Contains(l.GetWeightsVersion(), "seed=5") {
		t.Errorf("layout %v", l)
	}
	if s := e.Status(); s.RegionID != "region" || s.Slots != 4 || s.PrefillSecondsPerToken != r.GetPrefill().GetSecondsPerToken() {
		t.Errorf("status %+v", s)
	}
}

func TestEvents(t *testing.T) {
	d := newFakeDaemon(t, 64)
	seen := make(chan *kvferryv1.EventsResponse, 4)
	e := open(t, d, func(c *Config) { c.OnEvent = func(ev *kvferryv1.EventsResponse) { seen <- ev } })
	p := prompt(90, 64, e.cfg.Model.Vocab)
	req := Request{Session: "s", Tokens: p, MaxNew: 1, Commit: true, Publish: true, UseCache: true}
	res := generate(t, e, req)
	// A publish-now event publishes what is finished.
	d.events <- &kvferryv1.EventsResponse{Event: &kvferryv1.EventsResponse_PublishNow{PublishNow: &kvferryv1.PublishNow{Session: &kvferryv1.SessionRef{SessionId: "s"}}}}
	<-seen
	d.mu.Lock()
	if v := d.sessions[sessionKey("", "s")].GetVersion(); v != 2 {
		t.Errorf("version %d after publish-now, want 2", v)
	}
	d.mu.Unlock()
	// An invalidated block is not used any more, nor what follows it.
	d.events <- &kvferryv1.EventsResponse{Event: &kvferryv1.EventsResponse_Invalidate{Invalidate: &kvferryv1.Invalidate{Keys: res.Keys[1:2]}}}
	<-seen
	d.mu.Lock()
	d.slots[d.index[full("", res.Keys[1])]].used = false
	delete(d.index, full("", res.Keys[1]))
	d.mu.Unlock()
	again := generate(t, e, Request{Tokens: p, MaxNew: 1, UseCache: true})
	if again.LocalTokens != 16 || !sameSteps(res, again) {
		t.Errorf("local %d tokens after block 1 was disowned; same steps: %v", again.LocalTokens, sameSteps(res, again))
	}
}
