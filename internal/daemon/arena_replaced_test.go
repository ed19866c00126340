package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// An engine whose arena was truncated or removed registers again and goes on with a fresh one; the other engines, and what
// is told to the readers of events, are as they should be.
func TestBrokenArenaIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, r *rig, keys [][]byte){
		"noticed": func(t *testing.T, r *rig, keys [][]byte) {
			if err := os.Truncate(r.ea.reg.GetArenaPath(), 0); err != nil {
				t.Fatal(err)
			}
			r.b.mustEnd(request("s"), failed, ReasonArenaFault, unmoved)
			st, err := r.a.region.Status(context.Background(), &pb.StatusRequest{})
			if err != nil || !st.GetArenas()[0].GetBroken() {
				t.Errorf("status does not say that the arena is broken: %v, %v", st.GetArenas(), err)
			}
		},
		"untouched": func(t *testing.T, r *rig, _ [][]byte) {
			if err := os.Truncate(r.ea.reg.GetArenaPath(), 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			st, err := r.a.region.Status(context.Background(), &pb.StatusRequest{})
			if err != nil || !st.GetArenas()[0].GetBroken() {
				t.Errorf("status does not say that the arena is broken: %v, %v", st.GetArenas(), err)
			}
		},
		"unnoticed": func(t *testing.T, r *rig, keys [][]byte) {
			if err := os.Truncate(r.ea.reg.GetArenaPath(), 4096); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(t *testing.T, r *rig, keys [][]byte) {
			if err := os.Remove(r.ea.reg.GetArenaPath()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, fast, func(_ string, c *Config, _ *Parts) { c.Arena.MaxBytes = 6 << 20 }) // not room for two of them
				other := r.a.register("other", differing()["LoRA"], 1<<20)
				others := chain("o", 2)
				other.write("", others)
				keys := r.ea.session("s", 4)
				events := r.a.events("e")
				spoil(t, r, keys)
				old := r.ea.reg
				r.ea = r.a.register("e", testLayout(), 4<<20)
				if r.ea.reg.GetArenaId() == old.GetArenaId() || len(r.ea.reg.GetArenaId()) != 32 {
					t.Errorf("arena id %q after %q", r.ea.reg.GetArenaId(), old.GetArenaId())
				}
				for range events.got {
				}
				wantError(t, events.err, ReasonArenaStale)
				_, err := r.a.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: "e", ArenaId: old.GetArenaId(), Keys: keys})
				wantError(t, err, ReasonArenaStale)
				if got := r.ea.lookup("", keys)[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
					t.Errorf("a block of the old arena is %v", got)
				}
				other.check("", others)
				r.ea.write("", keys)
				r.b.mustEnd(request("s"), committed, "", moved)
				r.eb.check("", keys)
				again := r.a.register("e", testLayout(), 4<<20)
				if again.reg.GetArenaId() != r.ea.reg.GetArenaId() {
					t.Error("a good arena was replaced")
				}
				r.settle()
			})
		})
	}
}

// A migration whose arena is replaced under it, at its source or here, ends by what is so: the daemon goes on. What the planner chose goes on without the bytes
// where it is the source that lost them; an explicit fetch fetches or fails.
func TestArenaReplacedUnderMigration(t *testing.T) {
	for _, tc := range []struct {
		name     string
		source   bool
		replaced bool
		req      func(string) *pb.MigrateRequest
		state    pb.MigrationState
		codes    []Reason // which depends on what meets the arena first: the engine or a page
		own      pb.Ownership
	}{
		{"here", false, true, auto, failed, []Reason{ReasonArenaStale, ReasonArenaFault}, unmoved},
		{"here, explicit fetch", false, true, request, failed, []Reason{ReasonArenaStale, ReasonArenaFault}, unmoved},
		{"the source's", true, true, auto, recompute, []Reason{ReasonStaleGeneration, ReasonArenaStale, ReasonArenaFault}, moved},
		{"the source's, explicit fetch", true, true, request, failed, []Reason{ReasonStaleGeneration, ReasonArenaStale, ReasonArenaFault}, unmoved},
		{"the source's is lost, explicit fetch", true, false, request, failed, []Reason{ReasonArenaFault}, unmoved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, nil)
				keys := r.ea.session("s", 64)
				m := r.b.begin(tc.req("s"))
				m.landed(8192)
				e, n := r.eb, r.b
				if tc.source {
					e, n = r.ea, r.a
				}
				if err := os.Truncate(e.reg.GetArenaPath(), 0); err != nil {
					t.Fatal(err)
				}
				if tc.replaced { // before anybody has touched the memory
					if again := n.register("e", testLayout(), 4<<20); again.reg.GetArenaId() == e.reg.GetArenaId() {
						t.Fatal("the arena was not replaced")
					}
				}
				rep := m.end()
				if c := Reason(rep.GetCode()); !slices.Contains(tc.codes, c) {
					t.Errorf("code %s, want one of %s", c, tc.codes)
				}
				wantReport(t, rep, tc.state, Reason(rep.GetCode()), tc.own)
				if strings.Contains(rep.GetMessage(), "daemon is back") || rep.GetTailTokens() < 1 {
					t.Errorf("report %v", rep)
				}
				if !tc.replaced {
					n.register("e", testLayout(), 4<<20)
				}
				if tc.own == unmoved {
					r.wantOwner("s", "a")
					next := r.b.mustEnd(auto("s"), map[bool]pb.MigrationState{true: recompute, false: committed}[tc.source], map[bool]Reason{true: ReasonBlockNotFound}[tc.source], moved)
					if got := next.GetBlocksTotal(); got != int64(len(keys)) {
						t.Errorf("%d blocks in the next report", got)
					}
				}
				r.wantOwner("s", "b")
				r.settle()
			})
		})
	}
}

// An engine that comes back with another layout or world gets what it asks for once nobody of the earlier one lives.
func TestLayoutChangesWhenNobodyLives(t *testing.T) {
	n := newRealNode(t, nil)
	p := n.startProcess()
	id := p.do("register e 0 1")
	p.want("true", "commit 0 1 %s", p.do("reserve s 1"))
	other := &pb.RegisterEngineRequest{EngineId: "e", Layout: differing()["LoRA"], ArenaBytes: 1 << 20, World: 4}
	_, err := n.engine.RegisterEngine(t.Context(), other)
	wantError(t, err, ReasonLayoutMismatch)
	p.kill()
	n.wantProcesses("e", 0)
	reg, err := n.engine.RegisterEngine(t.Context(), other)
	if err != nil || reg.GetArenaId() == id {
		t.Fatalf("registration with another layout: %v, %v", reg, err)
	}
	n.wantSlots("a fresh arena", 0, 0, 0, 0)
	if left, err := os.ReadDir(n.arena); err != nil || len(left) != 1 {
		t.Errorf("arena files %v, %v", left, err)
	}
	n.startProcess().want("LAYOUT_MISMATCH", "register e 0 1")
}

func (n *realNode) wantProcesses(engine string, want int) {
	n.t.Helper()
	eventually(n.t, "the engine's processes are counted", func() bool {
		e, err := n.d.engines.get(engine)
		return err == nil && e.processes() == want
	})
}

// An engine that outlives its daemon maps a file that nobody reads: the next daemon takes nothing of it until it has
// registered again.
func TestEngineOutlivesDaemon(t *testing.T) {
	var cfg Config
	n := newRealNode(t, func(c *Config, p *Parts) { cfg = *c })
	p := n.startProcess()
	id := p.do("register e 0 1")
	slots := p.do("reserve s 2")
	p.want("true true", "commit 0 1 %s", slots)
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	d, err := Open(cfg, Parts{Remote: listen(), Admin: listen(), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	stale := func() {
		t.Helper()
		eventually(t, "the daemon is back and refuses the engine", func() bool { return p.do("reserve s 2") == "ARENA_STALE" }) // the channel has to notice
		p.want("ARENA_STALE", "commit 0 1 %s", slots)
		p.want("ARENA_STALE", "acquire s 2")
		p.want("ARENA_STALE", "abort %s", slots)
	}
	stale()
	another := n.startProcess()
	fresh := another.do("register e 0 1") // somebody else has registered
	if fresh == id {
		t.Error("the arena id is the old one")
	}
	stale()
	p.want(fresh, "register e 0 1")
	again := p.do("reserve s 2")
	p.want("true true", "commit 0 1 %s", again)
	p.want("ok", "acquire s 2")
}

// A daemon that starts removes the arenas of its own that nobody holds, and nothing else.
func TestOrphanedArenas(t *testing.T) {
	var dir string
	want := map[string]bool{"kvferry-b@e": true, "kvferry-a@held": true, "kvferry-a@folder": true, "kvferry-a-b@e": true, "other": true}
	newRealNode(t, func(c *Config, _ *Parts) {
		dir = c.Arena.Dir
		for _, name := range []string{"kvferry-a@e", "kvferry-a@old.engine", "kvferry-b@e", "kvferry-a@held", "kvferry-a-b@e", "other"} {
			if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 4096), 0o660); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, "kvferry-a@folder"), 0o700); err != nil {
			t.Fatal(err)
		}
		held := openArena(t, filepath.Join(dir, "kvferry-a@held"))
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != len(want) {
		t.Errorf("left are %v, %v", left, err)
	}
	for _, f := range left {
		if !want[f.Name()] {
			t.Errorf("%s is left", f.Name())
		}
	}
}

// An engine is told which of its blocks it must not use, and no other engine is.
func TestInvalidateReachesTheEngine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.a.register("other", differing()["LoRA"], 1<<20)
		events, others := r.a.events("e"), r.a.events("other")
		keys := r.ea.session("s", 2)
		e, err := r.a.d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		r.a.d.engines.invalidate(e.arena, "red", keysOf(keys), "a test")
		inv := (<-events.got).GetInvalidate()
		if inv.GetTenant() != "red" || len(inv.GetKeys()) != 2 || string(inv.GetKeys()[1]) != string(keys[1]) || inv.GetReason() != "a test" {
			t.Errorf("the engine got %v", inv)
		}
		events.stop()
		others.stop()
		for ev := range others.got {
			t.Errorf("another engine got %v", ev)
		}
		r.settle()
	})
}
