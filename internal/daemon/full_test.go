package daemon

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A destination whose blocks are all leased refuses and holds nothing; once they can be evicted there is room.
func TestArenaFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		ea, eb := f.nodes["a"].register("e", testLayout(), 1<<20), f.nodes["b"].register("e", testLayout(), 8*8192)
		b, ctx := f.nodes["b"], context.Background()
		keys := ea.session("s", 6)
		old := chain("old", 8)
		eb.write("", old)
		acq, err := b.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: old[:4]})
		if err != nil {
			t.Fatal(err)
		}
		rep := b.mustEnd(request("s"), failed, ReasonArenaFull, unmoved)
		if !strings.Contains(rep.GetMessage(), "needs 6 slots, has 0 free and 4 evictable of 8 (4 leased") {
			t.Errorf("message does not say what there is: %s", rep.GetMessage())
		}
		if got := b.idle(); got.Reserved != 0 || got.Leases != 1 || got.LeasedBlocks != 4 {
			t.Errorf("a refused migration left %+v", got)
		}
		eb.check("", old) // nothing was evicted for it
		ea.check("", keys)
		f.wantOwner("s", "a")

		if _, err := b.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
			t.Fatal(err)
		}
		b.mustEnd(request("s"), committed, "", moved)
		eb.check("", keys)
		st, err := b.region.Status(ctx, &pb.StatusRequest{})
		if err != nil || st.GetArenas()[0].GetEvictions() != 6 {
			t.Errorf("evictions %d, want 6: %v", st.GetArenas()[0].GetEvictions(), err)
		}

		// A session larger than the arena can never fit.
		ea.session("large", 9)
		b.mustEnd(request("large"), failed, ReasonArenaFull, unmoved)
		eb.check("", keys)
		_, err = b.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: chain("engine", 9)})
		wantError(t, err, ReasonArenaFull)
		f.settle()
	})
}

// All arenas together stay below arena.max_bytes.
func TestArenaMaxBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) { c.Arena.Bytes, c.Arena.MaxBytes = 1<<20, 3<<20 }, "a")
		a := f.nodes["a"]
		a.register("e1", testLayout(), 2<<20)
		_, err := a.engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{EngineId: "e2", Layout: testLayout(), ArenaBytes: 1<<20 + 1})
		if fl := wantError(t, err, ReasonArenaSpace); !strings.Contains(fl.Message, "1048576 of arena.max_bytes are left") {
			t.Errorf("message does not say what is left: %s", fl.Message)
		}
		a.register("e2", testLayout(), 0) // the default fits exactly
		f.settle()
	})
}

// tinyFS mounts a memory filesystem of size bytes, or skips.
func tinyFS(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("kvferry-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a small memory filesystem needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// A memory filesystem that is too small, or none, is a refusal when the engine registers, not a SIGBUS later; nothing is
// left behind and the daemon goes on.
func TestSmallMemoryFilesystem(t *testing.T) {
	small := tinyFS(t, "1m")
	disk := t.TempDir()
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(name string, c *Config, _ *Parts) {
			c.Arena.Dir = map[string]string{"a": small, "b": disk}[name]
		}, "a", "b")
		ctx := context.Background()
		_, err := f.nodes["a"].engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), ArenaBytes: 4 << 20})
		if fl := wantError(t, err, ReasonArenaSpace); !strings.Contains(fl.Fix, "--shm-size") || !strings.Contains(fl.Message, "room for 1048576 bytes, the arena wants 4194304") {
			t.Errorf("failure %+v", fl)
		}
		if left, _ := os.ReadDir(small); len(left) != 0 {
			t.Errorf("%v is left behind", left)
		}
		f.nodes["a"].register("e", testLayout(), 512<<10)

		_, err = f.nodes["b"].engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), ArenaBytes: 1 << 20})
		if fl := wantError(t, err, ReasonArenaSpace); !strings.Contains(fl.Fix, "arena.dir") {
			t.Errorf("failure %+v", fl)
		}
		f.settle()
	})
}

// An arena file that somebody truncated breaks that arena alone.
func TestTruncatedArena(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		other := r.a.register("other", differing()["LoRA"], 1<<20)
		r.ea.session("s", 4)
		keys := chain("o", 2)
		other.write("", keys)
		if err := os.Truncate(r.ea.reg.GetArenaPath(), 0); err != nil {
			t.Fatal(err)
		}
		if rep := r.b.mustEnd(request("s"), failed, ReasonArenaFault, unmoved); rep.GetBlocksUsable() != 0 {
			t.Errorf("migration from a truncated arena: %v", rep)
		}
		r.wantOwner("s", "a")
		_, err := r.a.engine.AcquireBlocks(context.Background(), &pb.AcquireBlocksRequest{EngineId: "e", Keys: chain("s", 1)})
		wantError(t, err, ReasonArenaFault)
		other.check("", keys)
		r.settle()
	})
}
