package daemon

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Short names of what tests compare.
const (
	committed = pb.MigrationState_MIGRATION_STATE_COMMITTED
	recompute = pb.MigrationState_MIGRATION_STATE_RECOMPUTE
	redirect  = pb.MigrationState_MIGRATION_STATE_REDIRECT
	failed    = pb.MigrationState_MIGRATION_STATE_FAILED
	cancelled = pb.MigrationState_MIGRATION_STATE_CANCELLED

	moved   = pb.Ownership_OWNERSHIP_MOVED
	unmoved = pb.Ownership_OWNERSHIP_UNMOVED
	unknown = pb.Ownership_OWNERSHIP_UNKNOWN
	nobody  = pb.Ownership_OWNERSHIP_UNSPECIFIED
)

// Links of the tests. slow moves one block of testLayout in 65 ms.
var (
	fast = wan.Model{RTT: 20 * time.Millisecond, Rate: 1e9, Seed: 1}
	slow = wan.Model{RTT: 20 * time.Millisecond, Rate: 1e6, Seed: 1}
)

// rig is two nodes, each with an engine "e" of testLayout: 512 slots of 8 KiB.
type rig struct {
	*fleet
	a, b   *node
	ea, eb *testEngine
}

func newRig(t *testing.T, model wan.Model, edit func(string, *Config, *Parts)) *rig {
	t.Helper()
	f := newFleetEdited(t, model, edit, "a", "b")
	r := &rig{fleet: f, a: f.nodes["a"], b: f.nodes["b"]}
	r.ea, r.eb = r.a.register("e", testLayout(), 4<<20), r.b.register("e", testLayout(), 4<<20)
	return r
}

// session writes n blocks at e and publishes them with three tokens more.
func (e *testEngine) session(id string, n int) [][]byte {
	e.n.f.t.Helper()
	keys := chain(id, n)
	if n > 0 {
		e.write("", keys)
	}
	e.publish("", id, keys, int64(n)*16+3)
	return keys
}

// wantError holds err to a reason, its gRPC code, and a text that says what to do.
func wantError(t *testing.T, err error, want Reason) *Failure {
	t.Helper()
	f, ok := FailureFromError(err)
	if !ok || f.Reason != want {
		t.Fatalf("error is %v, want reason %s", err, want)
	}
	if got := status.Code(err); got != reasonCodes[want] {
		t.Errorf("%s has code %v, want %v", want, got, reasonCodes[want])
	}
	if f.Message == "" || f.Fix == "" && len(f.Fields) == 0 {
		t.Errorf("%s does not say what happened and what to do: %+v", want, f)
	}
	return f
}

// wantReport holds a report to a state, a reason ("" for none) and an ownership.
func wantReport(t *testing.T, r *pb.MigrationReport, st pb.MigrationState, code Reason, own pb.Ownership) {
	t.Helper()
	if r.GetState() != st || Reason(r.GetCode()) != code || r.GetOwnership() != own {
		t.Fatalf("report is %v %q %v (%s), want %v %q %v", r.GetState(), r.GetCode(), r.GetOwnership(), r.GetMessage(), st, code, own)
	}
	if code != "" && code != ReasonCancelled && code != ReasonShuttingDown && !strings.Contains(r.GetMessage(), "fix: ") && !strings.Contains(r.GetMessage(), "allowed: ") {
		t.Errorf("%s does not say what to do: %s", code, r.GetMessage())
	}
}

// mustEnd runs req to its end and holds the report to what is wanted.
func (n *node) mustEnd(req *pb.MigrateRequest, st pb.MigrationState, code Reason, own pb.Ownership) *pb.MigrationReport {
	n.f.t.Helper()
	rep, _, err := n.migrate(req)
	if err != nil {
		n.f.t.Fatalf("migrate: %v", err)
	}
	wantReport(n.f.t, rep, st, code, own)
	return rep
}

// wantOwner holds every node's directory: want, and nobody else, owns the session.
func (f *fleet) wantOwner(session, want string) {
	f.t.Helper()
	for name, n := range f.nodes {
		if n.d == nil {
			continue
		}
		s := n.record(session)
		if owns := s.GetOwnerNodeId() == name; owns != (name == want) {
			f.t.Errorf("%s records owner %q of session %q, want %q", name, s.GetOwnerNodeId(), session, want)
		}
	}
}

// record is what a node knows of a session; nil for nothing.
func (n *node) record(session string) *pb.Session {
	n.f.t.Helper()
	for _, s := range n.d.sessions.List() { // with its keys, which ListSessions leaves out
		if string(s.ID) == session {
			return sessionToProto(s)
		}
	}
	return nil
}

// running is a migration that goes on while the test does something else.
type running struct {
	n    *node
	req  *pb.MigrateRequest
	done chan struct{}
	rep  *pb.MigrationReport
	err  error
}

func (n *node) begin(req *pb.MigrateRequest) *running {
	r := &running{n: n, req: req, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.rep, _, r.err = n.migrate(req)
	}()
	return r
}

// end waits for the report.
func (r *running) end() *pb.MigrationReport {
	r.n.f.t.Helper()
	<-r.done
	if r.err != nil {
		r.n.f.t.Fatalf("migrate: %v", r.err)
	}
	return r.rep
}

// until waits, a millisecond at a time, for the migration to be as wanted; ok may be nil. It looks at the daemon itself: thousands of calls are most of
// what many tests take.
func (r *running) until(st pb.MigrationState, ok func(*pb.Migration) bool) *pb.Migration {
	r.n.f.t.Helper()
	var last *pb.Migration
	for range 30_000 {
		if m, err := r.n.d.migrations.find("", r.req.GetRequestId()); err == nil {
			if last, _ = m.snapshot(); last.GetState() == st && (ok == nil || ok(last)) {
				return last
			}
		}
		time.Sleep(time.Millisecond)
	}
	r.n.f.t.Fatalf("migration does not get to %v: it is %v", st, last)
	return nil
}

// landed waits for at least so many bytes in a running transfer.
func (r *running) landed(bytes int64) *pb.Migration {
	r.n.f.t.Helper()
	return r.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, func(m *pb.Migration) bool { return m.GetProgress().GetBytesDone() >= bytes })
}

func (r *rig) cut()  { r.net.Cut(r.a.ip, r.b.ip) }
func (r *rig) heal() { r.net.Heal(r.a.ip, r.b.ip) }
