package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// dialAs connects to the node's socket as another user, of a group of its own: the kernel keeps who connected, so it takes a thread and no
// process.
func (n *realNode) dialAs(uid int) *grpc.ClientConn { return n.dialIn(uid, uid) }

// dialIn is dialAs with a group of another number.
func (n *realNode) dialIn(uid, gid int) *grpc.ClientConn {
	n.t.Helper()
	type dialled struct {
		net.Conn
		err error
	}
	return n.dial("passthrough:///socket", insecure.NewCredentials(), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		done := make(chan dialled, 1) // it is taken
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine: nothing else may run as this user
			for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0)}, {unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)}} {
				if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
					done <- dialled{err: errno}
					return
				}
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.socket)
			done <- dialled{conn, err}
		}()
		d := <-done
		return d.Conn, d.err
	}))
}

// openSocket lets every user connect, so that only the daemon's own checks are left.
func (n *realNode) openSocket() {
	n.t.Helper()
	if os.Geteuid() != 0 {
		n.t.Skip("another user's connection needs root")
	}
	for path, mode := range map[string]os.FileMode{n.socket: 0o666, filepath.Dir(n.socket): 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			n.t.Fatal(err)
		}
	}
}

// A process of a user that listen.allow_uids does not name is refused every call, unary and streaming, health too, and may not even
// hear which engines there are; the daemon's own user, root and those that are named may call.
func TestAllowUIDs(t *testing.T) {
	n := newRealNode(t, func(c *Config, _ *Parts) { c.Listen.AllowUIDs = []int{4242} })
	n.openSocket()
	for _, tc := range []struct {
		uid, gid int
		ok       bool
	}{{0, 0, true}, {4242, 4242, true}, {65534, 4242, false}} { // a group of that number is no user
		conn := n.dialIn(tc.uid, tc.gid)
		check := func(what string, err error) {
			t.Helper()
			if !tc.ok {
				if f := wantError(t, err, ReasonPermission); f.Fix == "" {
					t.Errorf("uid %d, %s: no fix in %v", tc.uid, what, err)
				}
			} else if status.Code(err) == codes.PermissionDenied {
				t.Errorf("uid %d, %s: %v", tc.uid, what, err)
			}
		}
		_, err := pb.NewRegionServiceClient(conn).Status(t.Context(), &pb.StatusRequest{})
		check("status", err)
		_, err = pb.NewEngineServiceClient(conn).LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e"})
		check("look-up", err)
		stream, err := pb.NewMigrationServiceClient(conn).Migrate(t.Context(), request("s"))
		if err == nil {
			_, err = stream.Recv()
		}
		check("migrate", err)
	}
	got := samples(t, n.d.registry)
	wantSamples(t, got, map[string]float64{`kvferry_audit_lines_total{decision="refused",event="socket"}`: 3, `kvferry_audit_refusals_total{reason="PERMISSION_DENIED"}`: 3})
}

// Without a list the socket's mode and group say who may call: others do not get as far as a call.
func TestSocketModeKeepsOthersOut(t *testing.T) {
	n := newRealNode(t, nil)
	n.openSocket()
	if err := os.Chmod(n.socket, 0o660); err != nil { // as the daemon made it, in a folder that everybody can look into
		t.Fatal(err)
	}
	_, err := pb.NewRegionServiceClient(n.dialAs(65534)).Status(t.Context(), &pb.StatusRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a user outside of the group: %v, want no connection", err)
	}
}

// A process of another user can't join an engine whose processes live: it would write their blocks and release what they hold.
func TestEngineOfAnotherUser(t *testing.T) {
	n := newRealNode(t, nil)
	n.openSocket()
	p := n.startProcess()
	p.do("register e 0 1")
	p.want("true", "commit 0 1 %s", p.do("reserve s 1"))
	other := pb.NewEngineServiceClient(n.dialAs(65534))
	_, err := other.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()})
	wantError(t, err, ReasonPermission)
	// Nor use it without having registered.
	e, err := n.d.engines.get("e")
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.AcquireBlocks(t.Context(), &pb.AcquireBlocksRequest{EngineId: "e", ArenaId: e.arenaID, Keys: chain("s", 1)})
	wantError(t, err, ReasonArenaStale)
	if _, err := other.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "mine", Layout: testLayout(), ArenaBytes: 65536}); err != nil {
		t.Errorf("an engine of its own: %v", err)
	}
}

// A process releases and aborts what is its own: a lease of another rank, or of another engine, stays, as does a slot of another engine.
func TestReleaseOfOthers(t *testing.T) {
	n := newRealNode(t, nil)
	p := n.startProcess()
	p.do("register e 0 1")
	slot := p.do("reserve s 1")
	p.want("true", "commit 0 1 %s", slot)
	p.want("ok", "acquire s 1")
	held := p.do("reserve t 1")
	n.wantSlots("it holds a lease and a slot", 1, 1, 0, 1)
	mine, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()})
	if err != nil { // another process of the same engine
		t.Fatal(err)
	}
	e, err := n.d.engines.get("e")
	if err != nil {
		t.Fatal(err)
	}
	// A lease id is 64 random bits: the test reads it where a process can't.
	lease, refs, err := e.arena.Acquire("engine/e/another", "", keysOf(chain("s", 1)), -1)
	if err != nil || len(refs) != 1 {
		t.Fatal(err)
	}
	_, err = n.engine.ReleaseBlocks(t.Context(), &pb.ReleaseBlocksRequest{EngineId: "e", ArenaId: mine.GetArenaId(), LeaseIds: []uint64{uint64(lease)}})
	wantError(t, err, ReasonLeaseNotFound)
	if got := n.arenaStatus().GetLeases(); got != 2 {
		t.Errorf("%d leases are left, want 2", got)
	}
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "f", Layout: testLayout(), ArenaBytes: 65536}); err != nil {
		t.Fatal(err)
	}
	_, err = n.engine.ReleaseBlocks(t.Context(), &pb.ReleaseBlocksRequest{EngineId: "f", Aborted: slotsOf([]string{held})})
	if err == nil {
		t.Error("another engine's slot is aborted")
	}
	_, err = n.engine.CommitBlocks(t.Context(), &pb.CommitBlocksRequest{EngineId: "f", Slots: slotsOf([]string{held})})
	if err == nil {
		t.Error("another engine's slot is committed")
	}
	n.wantSlots("what it holds is untouched", 1, 1, 0, 2)
}
