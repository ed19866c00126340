package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (e *testEngine) unregister() error {
	_, err := e.n.engine.UnregisterEngine(context.Background(), &pb.UnregisterEngineRequest{EngineId: e.id, ArenaId: e.reg.GetArenaId()})
	return err
}

// An engine that unregisters gives its file, its bytes of arena.max_bytes and its id back, with all that it holds itself;
// another layout and size can have the id at once.
func TestUnregister(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) { c.Arena.MaxBytes = 4 << 20 }, "a")
		n := f.nodes["a"]
		te := n.register("e", testLayout(), 4<<20)
		te.write("", chain("there", 2))
		ctx := context.Background()
		if _, err := n.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: chain("there", 2)}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: chain("late", 2)}); err != nil {
			t.Fatal(err)
		}
		events, err := n.engine.Events(ctx, &pb.EventsRequest{EngineId: "e"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := events.Header(); err != nil {
			t.Fatal(err)
		}
		if err := te.unregister(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(te.reg.GetArenaPath()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the arena's file: %v", err)
		}
		if _, err := events.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("the stream of events ends with %v", err)
		}
		if f := wantError(t, te.unregister(), ReasonArenaStale); !strings.Contains(f.Message, "unregistered") {
			t.Errorf("an engine that has unregistered is told %q", f.Message)
		}
		if got := n.samples(); strings.Contains(strings.Join(engineLabelsOf(got), " "), "e") {
			t.Errorf("series of the engine are left: %v", engineLabelsOf(got))
		}
		other := testLayout()
		other.Layers /= 2
		te = n.register("e", other, 4<<20) // all of max_bytes
		te.write("", chain("again", 2))
		if err := te.unregister(); err != nil {
			t.Fatal(err)
		}
	})
}

// While a puller has blocks leased at the source, or a migration fills some at the destination, neither arena can go, nothing
// has changed by asking, and the migration ends as if nobody had asked.
func TestUnregisterInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 40)
		m := r.b.begin(request("s"))
		m.landed(4 * 8192)
		wantError(t, r.ea.unregister(), ReasonEngineInUse)
		wantError(t, r.eb.unregister(), ReasonEngineInUse)
		if rep := m.end(); rep.GetState() != committed {
			t.Fatalf("the migration ended as %v", rep)
		}
		r.eb.check("", keys)
		r.settle()
		for _, e := range []*testEngine{r.ea, r.eb} {
			if err := e.unregister(); err != nil {
				t.Error(err)
			}
		}
		r.settle()
	})
}

// A rank that lives keeps its engine; the last one may take it away.
func TestUnregisterProcesses(t *testing.T) {
	n := newRealNode(t, nil)
	r0, r1 := n.startProcess(), n.startProcess()
	id := r0.do("register tp 0 2")
	r1.want(id, "register tp 1 2")
	slots := r1.do("reserve s 2")
	r0.want("ENGINE_IN_USE", "unregister")
	r1.want("false false", "commit 1 2 %s", slots)
	r0.want("true true", "commit 0 2 %s", slots)
	r1.kill()
	n.wantSlots("the first rank is left", 0, 2, 0, 0)
	eventually(t, "the dead rank is noticed", func() bool {
		e, err := n.d.engines.get("tp")
		return err == nil && e.processes() == 1
	})
	r0.want("ok", "unregister")
	if st := n.arenaStatus(); st != nil {
		t.Errorf("an arena is left: %v", st)
	}
	r0.want("ARENA_STALE", "unregister")
}
