package refengine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A daemon that restarts at whatever call of a turn costs the turn nothing but what the daemon held: the engine registers
// again, writes into the new arena, and continues with the same tokens; no block in the new arena is another's.
func TestDaemonRestartsWithinTurn(t *testing.T) {
	for _, mark := range []bool{false, true} {
		edit := func(c *Config) { c.World = 2 }
		if mark {
			edit = func(c *Config) { c.World, c.Watermark = 2, &Watermark{Seed: 7} }
		}
		first := prompt(60, 40, small().Vocab)
		req := Request{Session: "s", Tokens: first, MaxNew: 30, Commit: true, Publish: true, UseCache: true}
		calm := newFakeDaemon(t, 64)
		want := generate(t, open(t, calm, edit), req)
		for _, call := range []string{"LookupBlocks", "ReserveBlocks", "CommitBlocks", "PublishSession"} {
			d := newFakeDaemon(t, 64)
			e := open(t, d, edit)
			d.mu.Lock()
			d.before[call] = d.restart
			d.mu.Unlock()
			got, err := e.Generate(t.Context(), req)
			if err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			if d := cmp.Diff(want.Steps, got.Steps); d != "" {
				t.Errorf("%s, watermark %v (-calm +restarted):\n%s", call, mark, d)
			}
			if len(got.Warnings) != 1 || got.CommittedBlocks != want.CommittedBlocks || e.Status().Counters.Attached != 1 {
				t.Errorf("%s, watermark %v: %d blocks of %d committed, attached %d times, warnings %q", call, mark, got.CommittedBlocks, want.CommittedBlocks,
					e.Status().Counters.Attached, got.Warnings)
			}
			for i, key := range got.Keys[:got.CommittedBlocks] {
				if d := cmp.Diff(calm.block("", want.Keys[i]), d.block("", key)); d != "" {
					t.Errorf("%s, watermark %v: block %d differs in the new arena", call, mark, i)
				}
			}
			if s := d.sessions[sessionKey("", "s")]; s.GetTokens() != int64(len(first)+30) || len(s.GetBlockKeys()) != want.CommittedBlocks {
				t.Errorf("%s: published %v", call, s)
			}
			d.checkQuiet()
		}
	}
}

// A block that was lent before the restart is computed, not read from the old mapping.
func TestDaemonRestartsBeforeRead(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, nil)
	p := prompt(61, 64, e.cfg.Model.Vocab)
	want := generate(t, e, Request{Tokens: p, MaxNew: 4, Commit: true, UseCache: true})
	if err := e.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.before["AcquireBlocks"] = d.restart
	d.mu.Unlock()
	got, err := e.Generate(t.Context(), Request{Tokens: p, MaxNew: 4, Commit: true, UseCache: true})
	if err != nil {
		t.Fatal(err)
	}
	if got.LoadedTokens != 0 || got.PrefilledTokens != 64 || got.CommittedBlocks != 4 || !sameSteps(want, got) {
		t.Errorf("loaded %d, prefilled %d, committed %d", got.LoadedTokens, got.PrefilledTokens, got.CommittedBlocks)
	}
	d.checkQuiet()
}

// An idle engine learns of the restart from its event stream, and its next turn finds nothing amiss.
func TestIdleEngineAttachesAgain(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, nil)
	p := prompt(62, 40, e.cfg.Model.Vocab)
	generate(t, e, Request{Session: "s", Tokens: p, MaxNew: 1, Commit: true, Publish: true, UseCache: true})
	d.mu.Lock()
	d.restart()
	d.mu.Unlock()
	deadline := time.Now().Add(10 * time.Second)
	for st := e.Status(); st.Counters.Attached != 1 || !st.Counters.EventsAttached; st = e.Status() {
		if time.Now().After(deadline) {
			t.Fatalf("not attached again: %+v", st.Counters)
		}
		<-time.After(time.Millisecond)
	}
	if got := e.Status().ArenaPath; got != d.path {
		t.Errorf("mapped %s, want %s", got, d.path)
	}
	e.mu.Lock()
	known := len(e.mu.published)
	e.mu.Unlock()
	if known != 0 {
		t.Error("sessions of the old arena are remembered")
	}
	got := generate(t, e, Request{Tokens: p, MaxNew: 1, Commit: true, UseCache: true})
	if got.LocalTokens != 32 || got.CommittedBlocks != 2 {
		t.Errorf("local %d, committed %d", got.LocalTokens, got.CommittedBlocks)
	}
}

// A daemon that does not come back within the turn costs the turn its caching, and the next one is whole.
func TestAttachFails(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, nil)
	p := prompt(63, 40, e.cfg.Model.Vocab)
	d.mu.Lock()
	d.maxSlots = 1 << 40 // a file that can't be
	d.before["ReserveBlocks"] = d.restart
	d.mu.Unlock()
	got, err := e.Generate(t.Context(), Request{Tokens: p, MaxNew: 4, Commit: true, UseCache: true})
	if err != nil || got.CommittedBlocks != 0 || len(got.Warnings) == 0 {
		t.Fatalf("committed %d, warnings %q: %v", got.CommittedBlocks, got.Warnings, err)
	}
	d.mu.Lock()
	d.maxSlots = 64
	d.mu.Unlock()
	if got, err = e.Generate(t.Context(), Request{Tokens: p, MaxNew: 4, Commit: true, UseCache: true}); err != nil || got.CommittedBlocks != 2 {
		t.Errorf("the next turn: committed %d, %v, %q", got.CommittedBlocks, err, got.Warnings)
	}
}
