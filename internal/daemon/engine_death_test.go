package daemon

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// engineSocket, when set, makes the test binary an engine on that socket.
const engineSocket = "KVFERRY_TEST_ENGINE_SOCKET"

// TestEngineProcess is the engine of TestEngineDeath: it registers if told so, commits four blocks, leases two, reserves
// three more, and waits to be killed.
func TestEngineProcess(t *testing.T) {
	socket := os.Getenv(engineSocket)
	if socket == "" {
		t.Skip("started by TestEngineDeath")
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, e := context.Background(), pb.NewEngineServiceClient(conn)
	seed := os.Getenv(engineSocket + "_SEED")
	if os.Getenv(engineSocket+"_REGISTER") != "" {
		if _, err := e.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
			t.Fatal(err)
		}
	}
	keys := chain(seed, 7)
	res, err := e.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: "e", Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	var slots []*pb.SlotRef
	for _, r := range res.GetReservations()[:4] {
		slots = append(slots, r.GetSlot())
	}
	if _, err := e.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: "e", Slots: slots}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: keys[:2]}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	<-make(chan struct{})
}

// startEngine runs TestEngineProcess and waits until it holds what it takes.
func (n *realNode) startEngine(seed string, register bool) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEngineProcess$")
	cmd.Env = append(os.Environ(), engineSocket+"="+n.socket, engineSocket+"_SEED="+seed)
	if register {
		cmd.Env = append(cmd.Env, engineSocket+"_REGISTER=1")
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		if strings.TrimSpace(scan.Text()) == "ready" {
			return cmd
		}
	}
	n.t.Fatalf("the engine process ended: %v", scan.Err())
	return nil
}

func (n *realNode) arenaStatus() *pb.ArenaStatus {
	n.t.Helper()
	st, err := n.region.Status(n.t.Context(), &pb.StatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(st.GetArenas()) == 0 {
		return nil
	}
	return st.GetArenas()[0]
}

// What a process holds ends with it, by kill -9 too, whether or not it has registered; what another one holds does not,
// and committed blocks stay.
func TestEngineDeath(t *testing.T) {
	n := newRealNode(t, nil)
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
		t.Fatal(err)
	}
	rank := n.startEngine("rank", true)
	stranger := n.startEngine("stranger", false)
	if st := n.arenaStatus(); st.GetSlotsReserved() != 6 || st.GetLeases() != 2 || st.GetLeasedBlocks() != 4 || st.GetSlotsCommitted() != 8 {
		t.Fatalf("two engines hold %v", st)
	}
	_ = rank.Process.Kill()
	_ = rank.Wait()
	eventually(t, "the dead rank's holdings are given back", func() bool {
		st := n.arenaStatus()
		return st.GetSlotsReserved() == 3 && st.GetLeases() == 1 && st.GetLeasedBlocks() == 2 && st.GetSlotsDraining() == 0
	})
	_ = stranger.Process.Kill()
	_ = stranger.Wait()
	eventually(t, "the stranger's holdings are given back", func() bool {
		st := n.arenaStatus()
		return st.GetSlotsReserved() == 0 && st.GetLeases() == 0 && st.GetLeasedBlocks() == 0 && st.GetSlotsDraining() == 0
	})
	if st := n.arenaStatus(); st.GetSlotsCommitted() != 8 {
		t.Errorf("%d blocks are committed, want the 8 of both", st.GetSlotsCommitted())
	}
	// The engine starts again and finds its blocks.
	again := n.startEngine("again", true)
	look, err := n.engine.LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e", Keys: chain("rank", 4)})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range look.GetBlocks() {
		if b.GetState() != pb.BlockState_BLOCK_STATE_PRESENT {
			t.Errorf("block %d is %v after the restart", i, b.GetState())
		}
	}
	_ = again.Process.Kill()
}

// A call of a process that dies meanwhile must not leave holdings that nobody gives back.
func TestHoldingsOfTheDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		te := f.nodes["a"].register("e", testLayout(), 1<<20)
		e, err := f.nodes["a"].d.engines.get(te.id)
		if err != nil {
			t.Fatal(err)
		}
		dead := &localProcess{pid: 4242, pidfd: 1} // not watched: its death was seen to before the call took anything
		if _, err := e.arena.Reserve(e.owner(dead.pid), "", keysOf(chain("late", 3))); err != nil {
			t.Fatal(err)
		}
		e.heldBy(dead)
		if got := f.nodes["a"].idle(); got.Reserved != 0 {
			t.Errorf("a dead process holds %+v", got)
		}
		f.settle()
	})
}
