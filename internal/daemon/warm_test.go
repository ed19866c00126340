package daemon

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// disks are the folders of each node of a fleet whose state and arenas outlast it.
type disks struct {
	t  *testing.T
	of map[string][2]string // state, arenas
}

func newDisks(t *testing.T, names ...string) *disks {
	d := &disks{t: t, of: map[string][2]string{}}
	for _, n := range names {
		d.of[n] = d.fresh()
	}
	return d
}

func (d *disks) fresh() [2]string {
	d.t.Helper()
	arena, err := os.MkdirTemp("/dev/shm", "kvferry-test-")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = os.RemoveAll(arena) })
	return [2]string{d.t.TempDir(), arena}
}

func (d *disks) edit(name string, c *Config, p *Parts) {
	c.StateDir, c.Arena.Dir, p.NoState = d.of[name][0], d.of[name][1], false
}

// kill has the next start of a node find its folders as they are at this moment.
func (d *disks) kill(name string) {
	d.t.Helper()
	to := d.fresh()
	for i, from := range d.of[name] {
		files, err := os.ReadDir(from)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(from, f.Name()))
			if err == nil {
				err = os.WriteFile(filepath.Join(to[i], f.Name()), b, 0o600)
			}
			if err != nil {
				d.t.Fatal(err)
			}
		}
	}
	d.of[name] = to
}

// A source that is restarted, or killed in the middle of a transfer, has its blocks when its engine is back: the session moves
// on with what landed before, and what comes back is only what was missing.
func TestWarmRestartMigratesBack(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newDisks(t, "a", "b")
				r := newRig(t, slow, d.edit)
				keys := r.ea.session("s", 48)
				others := chain("red", 4)
				r.ea.write("red", others)
				m := r.b.begin(request("s"))
				m.landed(8192)
				if how == "killed" {
					d.kill("a")
				}
				stale := r.ea.reg
				r.a.stop()
				rep := m.end()
				if rep.GetState() != failed && rep.GetState() != recompute || rep.GetOwnership() != unmoved {
					t.Errorf("report %v", rep)
				}
				r.a = r.addNode(0)
				r.ea = r.a.register("e", testLayout(), 4<<20)
				if r.ea.reg.GetArenaId() == stale.GetArenaId() || r.ea.reg.GetArenaPath() != filepath.Join(d.of["a"][1], "kvferry-a@e") {
					t.Errorf("registered with %v", r.ea.reg)
				}
				_, err := r.a.engine.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: "e", ArenaId: stale.GetArenaId(), Keys: keys})
				wantError(t, err, ReasonArenaStale)
				r.ea.check("", keys)
				r.ea.check("red", others)
				if got := r.ea.lookup("", others)[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
					t.Errorf("another tenant's block is %v", got)
				}
				next := r.b.mustEnd(request("s"), committed, "", moved)
				if next.GetBlocksPresent() != rep.GetBlocksMoved() || next.GetBlocksMoved() != 48-rep.GetBlocksMoved() {
					t.Errorf("%d blocks had landed: report %v", rep.GetBlocksMoved(), next)
				}
				r.eb.check("", keys)

				// The session grows, and the destination is restarted in turn.
				grown := append(bytesOf(keys), chain("grown", 3)...)
				r.eb.write("", grown)
				r.eb.publish("", "s", grown, 51*16+1)
				if how == "killed" {
					d.kill("b")
				}
				r.b.stop()
				r.b = r.addNode(1)
				r.eb = r.b.register("e", testLayout(), 4<<20)
				r.eb.check("", grown)
				back := r.a.mustEnd(request("s"), committed, "", moved)
				if back.GetBlocksPresent() != 48 || back.GetBlocksMoved() != 3 {
					t.Errorf("report %v", back)
				}
				r.ea.check("", grown)
				r.wantOwner("s", "a")
				wantSamples(t, r.b.samples(), reported{`kvferry_arena_restored_blocks_total{engine="e"}`: 51, `kvferry_arena_restore_dropped_blocks_total{engine="e"}`: 0})
				r.settle()
			})
		})
	}
}

func bytesOf(keys [][]byte) [][]byte { return append([][]byte(nil), keys...) }

// A page that was damaged while the daemon was away costs its block and nothing else, is counted, and never moves.
func TestDamagedWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisks(t, "a", "b")
		r := newRig(t, fast, d.edit)
		keys := r.ea.session("s", 12)
		at, path := r.ea.slotOf(keys[7]), r.ea.reg.GetArenaPath()
		r.a.stop()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt([]byte{1, 2, 3}, at+3000)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		r.a = r.addNode(0)
		r.ea = r.a.register("e", testLayout(), 4<<20)
		if got := r.ea.lookup("", keys[7:8])[0]; got != pb.BlockState_BLOCK_STATE_ABSENT {
			t.Errorf("the damaged block is %v", got)
		}
		wantSamples(t, r.a.samples(), reported{`kvferry_arena_restored_blocks_total{engine="e"}`: 11, `kvferry_arena_restore_dropped_blocks_total{engine="e"}`: 1})
		rep := r.b.mustEnd(request("s"), recompute, ReasonBlockNotFound, moved)
		if rep.GetBlocksUsable() != 7 {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys[:7])
		r.settle()
	})
}

// Arenas whose engines do not come back go after arena.keep, or when their room is needed; those of a node whose name begins with this one's stay.
func TestKeptArenasGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisks(t, "a")
		edit := func(name string, c *Config, p *Parts) {
			d.edit(name, c, p)
			c.Arena.MaxBytes, c.Arena.Keep = 4<<20, time.Minute
		}
		f := newFleetEdited(t, fast, edit, "a")
		keys := map[string][][]byte{}
		for _, id := range []string{"e1", "e2", "e3"} {
			e := f.nodes["a"].register(id, testLayout(), 1<<20)
			keys[id] = chain(id, 4)
			e.write("", keys[id])
		}
		other := filepath.Join(d.of["a"][1], "kvferry-a-b@x")
		for _, suffix := range []string{"", "+index"} { // of node a-b
			b, err := os.ReadFile(f.nodes["a"].d.engines.list()[0].arena.Path() + suffix)
			if err == nil {
				err = os.WriteFile(other+suffix, renamed(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		left := func(want ...string) {
			t.Helper()
			var got []string
			files, err := os.ReadDir(d.of["a"][1])
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if !strings.HasSuffix(f.Name(), "+index") {
					got = append(got, strings.TrimPrefix(f.Name(), "kvferry-a"))
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("left are %v, want %v", got, want)
			}
		}
		f.restart("a")
		left("-b@x", "@e1", "@e2", "@e3")
		time.Sleep(30 * time.Second)
		f.restart("a") // does not begin the wait again
		e2 := f.nodes["a"].register("e2", testLayout(), 1<<20)
		e2.check("", keys["e2"])
		time.Sleep(45 * time.Second)
		left("-b@x", "@e2")
		e2.check("", keys["e2"])

		f.nodes["a"].register("e3", testLayout(), 1<<20).write("", keys["e3"])
		f.restart("a")
		left("-b@x", "@e2", "@e3")
		f.nodes["a"].register("large", testLayout(), 3<<20) // one of them goes
		if files, _ := filepath.Glob(filepath.Join(d.of["a"][1], "kvferry-a@e?")); len(files) != 1 {
			t.Errorf("left are %v, want one", files)
		}
		_, err := f.nodes["a"].engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{EngineId: "more", Layout: testLayout(), ArenaBytes: 2 << 20})
		wantError(t, err, ReasonArenaSpace)
		f.settle()
	})
}

// renamed makes an index that of another engine.
func renamed(b []byte) []byte {
	if string(b[:8]) != "KVFINDEX" {
		return b
	}
	clear(b[88:344])
	identity := "a-b/x"
	copy(b[88:], identity)
	binary.LittleEndian.PutUint32(b[20:], uint32(len(identity)))
	binary.LittleEndian.PutUint32(b[344:], crc32.Checksum(b[:344], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// An engine that outlives its daemon finds its blocks again, and what its processes may still be writing or reading is nobody's until they
// have registered again or are dead.
func TestEngineOutlivesDaemonWarm(t *testing.T) {
	var cfg Config
	n := newRealNode(t, func(c *Config, _ *Parts) { c.Arena.Keep = time.Hour; cfg = *c })
	p, q := n.startProcess(), n.startProcess()
	old := p.do("register e 0 2")
	q.want(old, "register e 1 2")
	slots := p.do("reserve s 2")
	p.want("false false", "commit 0 2 %s", slots)
	q.want("true true", "commit 1 2 %s", slots)
	p.want("ok", "acquire s 1")
	written := p.do("reserve r 3")
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
	n.d = d
	eventually(t, "the daemon is back and refuses the engine", func() bool { return p.do("commit 0 2 %s", written) == "ARENA_STALE" })
	if id := p.do("register e 0 2"); id == old || len(id) != 32 {
		t.Errorf("arena id %q after %q", id, old)
	}
	p.want("PRESENT PRESENT", "reserve s 2")
	p.want("ok", "acquire s 2")
	n.wantSlots("what the other process of before may hold stays", 0, 2, 3, 2)
	q.kill()
	n.wantSlots("it is dead", 0, 2, 0, 1)
	if got := p.do("reserve r 3"); len(strings.Fields(got)) != 3 || got == written {
		t.Errorf("reserved %s after %s", got, written)
	}
	left, err := os.ReadDir(n.arena)
	if err != nil || len(left) != 2 {
		t.Errorf("files %v, %v", left, err)
	}
	p.kill()
	n.wantProcesses("e", 0)
}
