package daemon

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// engineSocket, when set, makes the test binary an engine on that socket.
const engineSocket = "KVFERRY_TEST_ENGINE_SOCKET"

// TestEngineProcess is an engine of its own process: it does what it reads from its standard input, a command a line, and
// answers a line each: what it got, or the reason of the refusal.
//
//	register ENGINE RANK WORLD     the arena's id
//	arena ID                       uses another arena id from here on
//	reserve SEED N                 a slot a key, or PRESENT or LANDING
//	commit RANK WORLD SLOT...      true or false a slot
//	abort SLOT...                  ok
//	acquire SEED N                 ok
func TestEngineProcess(t *testing.T) {
	socket := os.Getenv(engineSocket)
	if socket == "" {
		t.Skip("started by tests of engines in processes of their own")
	}
	ids := newArenaIDs()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), ids.unary())
	if err != nil {
		t.Fatal(err)
	}
	c := &engineCommands{client: pb.NewEngineServiceClient(conn), ids: ids}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		out, err := c.do(strings.Fields(in.Text()))
		if f, ok := FailureFromError(err); ok {
			out = string(f.Reason)
		}
		fmt.Println("answer:", out)
	}
}

type engineCommands struct {
	client pb.EngineServiceClient
	ids    *arenaIDs
	id     string
	files  []*os.File
}

func (c *engineCommands) do(args []string) (string, error) {
	ctx := context.Background()
	number := func(i int) uint32 {
		n, _ := strconv.Atoi(args[i])
		return uint32(n)
	}
	switch args[0] {
	case "register":
		c.id = args[1]
		resp, err := c.client.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: c.id, Layout: testLayout(), Rank: number(2), World: number(3)})
		if err != nil {
			return "", err
		}
		file, err := os.OpenFile(resp.GetArenaPath(), os.O_RDWR, 0)
		c.files = append(c.files, file) // open as long as the process lives, as a mapping is
		return resp.GetArenaId(), err
	case "arena":
		c.id = args[1]
		c.ids.of[c.id] = args[2]
		return "ok", nil
	case "reserve":
		resp, err := c.client.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: c.id, Keys: chain(args[1], int(number(2)))})
		var out []string
		for _, r := range resp.GetReservations() {
			if r.GetState() == pb.ReservationState_RESERVATION_STATE_RESERVED {
				out = append(out, fmt.Sprintf("%d@%d", r.GetSlot().GetSlot(), r.GetSlot().GetGeneration()))
			} else {
				out = append(out, strings.TrimPrefix(r.GetState().String(), "RESERVATION_STATE_"))
			}
		}
		return strings.Join(out, " "), err
	case "commit":
		resp, err := c.client.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: c.id, Rank: number(1), World: number(2), Slots: slotsOf(args[3:])})
		return strings.Trim(fmt.Sprint(resp.GetCommitted()), "[]"), err
	case "abort":
		_, err := c.client.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: c.id, Aborted: slotsOf(args[1:])})
		return "ok", err
	case "acquire":
		_, err := c.client.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: c.id, Keys: chain(args[1], int(number(2)))})
		return "ok", err
	case "unregister":
		_, err := c.client.UnregisterEngine(ctx, &pb.UnregisterEngineRequest{EngineId: c.id})
		return "ok", err
	}
	return "unknown command", nil
}

func slotsOf(args []string) []*pb.SlotRef {
	out := make([]*pb.SlotRef, len(args))
	for i, a := range args {
		out[i] = &pb.SlotRef{}
		_, _ = fmt.Sscanf(a, "%d@%d", &out[i].Slot, &out[i].Generation)
	}
	return out
}

// engineProc is a running TestEngineProcess.
type engineProc struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (n *realNode) startProcess() *engineProc {
	n.t.Helper()
	return startProcess(n.t, "TestEngineProcess", n.socket, nil)
}

// startProcess runs one test of this binary, which answers commands, in a process of its own.
func startProcess(t *testing.T, test, socket string, attr *syscall.SysProcAttr) *engineProc {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), engineSocket+"="+socket)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &engineProc{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// do runs one command and returns its answer.
func (p *engineProc) do(format string, args ...any) string {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
	for p.out.Scan() {
		if s, ok := strings.CutPrefix(p.out.Text(), "answer: "); ok {
			return s
		}
	}
	p.t.Fatalf("the engine process ended: %v", p.out.Err())
	return ""
}

// want runs one command and holds its answer to want.
func (p *engineProc) want(want, format string, args ...any) {
	p.t.Helper()
	if got := p.do(format, args...); got != want {
		p.t.Errorf(format+": %s, want %s", append(args, got, want)...)
	}
}

// end has the process come to the end of its test, and clean up.
func (p *engineProc) end() {
	p.t.Helper()
	_ = p.in.Close()
	hangs := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer hangs.Stop()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the process ended with %v", err)
	}
}

func (p *engineProc) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
