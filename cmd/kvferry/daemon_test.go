package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// fakeDaemon answers as scripted and keeps what it was asked.
type fakeDaemon struct {
	pb.UnimplementedMigrationServiceServer
	pb.UnimplementedRegionServiceServer

	// script is what Migrate sends; then it returns end, or, when hang is set, waits for a cancel.
	script []*pb.MigrateResponse
	end    error
	hang   bool

	mu struct {
		sync.Mutex
		requests []proto.Message
	}
	cancelled chan struct{}
	once      sync.Once
}

func (d *fakeDaemon) asked(m proto.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.requests = append(d.mu.requests, m)
}

func (d *fakeDaemon) last() proto.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.requests) == 0 {
		return nil
	}
	return d.mu.requests[len(d.mu.requests)-1]
}

func (d *fakeDaemon) Migrate(r *pb.MigrateRequest, s grpc.ServerStreamingServer[pb.MigrateResponse]) error {
	d.asked(r)
	for _, m := range d.script {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	if !d.hang {
		return d.end
	}
	select {
	case <-d.cancelled:
		return s.Send(&pb.MigrateResponse{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_CANCELLED, Report: &pb.MigrationReport{
			State: pb.MigrationState_MIGRATION_STATE_CANCELLED, Code: "CANCELLED", Message: "cancelled by the caller", Ownership: pb.Ownership_OWNERSHIP_UNMOVED,
		}})
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func (d *fakeDaemon) CancelMigration(_ context.Context, r *pb.CancelMigrationRequest) (*pb.CancelMigrationResponse, error) {
	d.asked(r)
	if d.end != nil {
		return nil, d.end
	}
	d.once.Do(func() { close(d.cancelled) })
	return &pb.CancelMigrationResponse{Migration: &pb.Migration{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_CANCELLED}}, nil
}

func (d *fakeDaemon) GetMigration(_ context.Context, r *pb.GetMigrationRequest) (*pb.GetMigrationResponse, error) {
	d.asked(r)
	if d.end != nil {
		return nil, d.end
	}
	return &pb.GetMigrationResponse{Migration: &pb.Migration{MigrationId: "m1", RequestId: "r1", State: pb.MigrationState_MIGRATION_STATE_TRANSFERRING, Plan: testPlan()}}, nil
}

func (d *fakeDaemon) ListMigrations(_ context.Context, r *pb.ListMigrationsRequest) (*pb.ListMigrationsResponse, error) {
	d.asked(r)
	return &pb.ListMigrationsResponse{Migrations: []*pb.Migration{{
		MigrationId: "m1", RequestId: "r1", Session: &pb.SessionRef{SessionId: "chat"}, State: pb.MigrationState_MIGRATION_STATE_COMMITTED,
		Report: testReport(), Age: durationpb.New(time.Minute),
	}}}, nil
}

func (d *fakeDaemon) ListPlans(_ context.Context, r *pb.ListPlansRequest) (*pb.ListPlansResponse, error) {
	d.asked(r)
	shadow := testPlanRecord()
	shadow.MigrationId, shadow.Shadow, shadow.State, shadow.CarriedOut, shadow.ActualOverPredicted = "m2", true, pb.MigrationState_MIGRATION_STATE_REDIRECT, pb.Mode_MODE_REDIRECT, nil
	bare := &pb.PlanRecord{MigrationId: "m3", Ended: timestamppb.Now()} // of a daemon that sends less
	return &pb.ListPlansResponse{Plans: []*pb.PlanRecord{testPlanRecord(), shadow, bare}}, nil
}

func (d *fakeDaemon) GetPlan(_ context.Context, r *pb.GetPlanRequest) (*pb.GetPlanResponse, error) {
	d.asked(r)
	if d.end != nil {
		return nil, d.end
	}
	return &pb.GetPlanResponse{Plan: testPlanRecord()}, nil
}

func (d *fakeDaemon) Plan(_ context.Context, r *pb.PlanRequest) (*pb.PlanResponse, error) {
	d.asked(r)
	if d.end != nil {
		return nil, d.end
	}
	return &pb.PlanResponse{Plan: testPlan(), Source: &pb.Node{NodeId: "us-1", RegionId: "us"}, BlocksTotal: 16, BlocksPresent: 4, BytesMissing: 12 * 5 << 20, TailTokens: 1}, nil
}

func (d *fakeDaemon) Status(_ context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	d.asked(r)
	return &pb.StatusResponse{
		Node: &pb.Node{NodeId: "eu-1", RegionId: "eu", Incarnation: "i"}, Version: "v1", Uptime: durationpb.New(90 * time.Second), Shadow: true, Gpu: "unavailable: none",
		Arenas: []*pb.ArenaStatus{{EngineId: "e1", Layout: &pb.Layout{ModelId: "tiny"}, Slots: 64, SlotsFree: 60, BlockBytes: 5 << 20}},
	}, nil
}

func (d *fakeDaemon) ListSessions(_ context.Context, r *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	d.asked(r)
	return &pb.ListSessionsResponse{Sessions: []*pb.SessionStatus{{
		Session: &pb.Session{
			Ref: &pb.SessionRef{SessionId: "chat"}, LayoutPin: []byte{0xab, 0xcd},
			Tokens: 40, OwnerNodeId: "eu-1", Epoch: 2, Version: 3, RepinSeq: 4,
		},
		BlocksPresent: 1, BlocksTotal: 2,
	}}}, nil
}

func (d *fakeDaemon) ListLinks(_ context.Context, r *pb.ListLinksRequest) (*pb.ListLinksResponse, error) {
	d.asked(r)
	return &pb.ListLinksResponse{Links: []*pb.LinkStatus{
		{
			Peer: &pb.Node{NodeId: "us-1", RegionId: "us"}, Address: "us:7441", Connected: true, Stripes: 8, RttMin: durationpb.New(70 * time.Millisecond),
			RttSmoothed: durationpb.New(72 * time.Millisecond), GoodputBps: 9e8, Measured: true, Age: durationpb.New(3 * time.Second), BytesReceived: 1 << 30,
			Goodput:    &pb.Estimate{Value: 9e8, Spread: 1e7, Samples: 4, Age: durationpb.New(3 * time.Second), Basis: pb.EstimateBasis_ESTIMATE_BASIS_MEASURED},
			Capacity:   &pb.Estimate{Value: 1e9, Age: durationpb.New(5 * time.Second), Basis: pb.EstimateBasis_ESTIMATE_BASIS_MEASURED},
			CodecRatio: &pb.Estimate{Value: 1.47, Basis: pb.EstimateBasis_ESTIMATE_BASIS_MEASURED}, CodecRate: &pb.Estimate{Value: 6e9, Basis: pb.EstimateBasis_ESTIMATE_BASIS_MEASURED},
			PagesReceived: &pb.PageCoding{PageBytes: 147e7, WireBytes: 1e9, CodedBytes: 14e8, Busy: durationpb.New(1500 * time.Millisecond), Codec: "huff"},
			Loss:          &pb.Estimate{Value: 1e-4, Age: durationpb.New(4 * time.Hour), Basis: pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED},
		},
		{
			Peer: &pb.Node{NodeId: "ap-1"}, Address: "ap:7441", Error: "no route", GoodputBps: 1e9,
			Goodput: &pb.Estimate{Value: 1e9, Basis: pb.EstimateBasis_ESTIMATE_BASIS_CONFIGURED},
		},
		{
			Peer: &pb.Node{NodeId: "eu-2"}, GoodputBps: 2e9,
			Goodput: &pb.Estimate{Value: 2e9, Age: durationpb.New(90 * time.Second), Basis: pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED},
		},
		{Peer: &pb.Node{NodeId: "sa-1"}},
	}}, nil
}

func testPlan() *pb.Plan {
	crossover, sigma, p95 := 512.0, 0.1, 1.6645
	return &pb.Plan{
		Modes: []*pb.ModePlan{
			{Mode: pb.Mode_MODE_REDIRECT, Reason: "not allowed"},
			{Mode: pb.Mode_MODE_FETCH, Seconds: 1.5, SigmaSeconds: &sigma, P95Seconds: &p95, Eligible: true, Bytes: 80 << 20, Terms: []*pb.PlanTerm{{Name: "rtt", Seconds: 0.5, Note: "n"}, {Name: "bytes", Seconds: 1}}},
			{Mode: pb.Mode_MODE_RECOMPUTE, Seconds: 3, Eligible: true, PrefillTokens: 256, Terms: []*pb.PlanTerm{{Name: "prefill_linear", Seconds: 3}}},
		},
		Winner: pb.Mode_MODE_FETCH, RunnerUp: pb.Mode_MODE_RECOMPUTE, MarginSeconds: 1.5, MarginRatio: 0.5, Reason: "fetch takes 1.5 s", LinkSource: "measured",
		CrossoverTokens: &crossover,
	}
}

func testPlanRecord() *pb.PlanRecord {
	predicted, p95, ratio := 1.5, 1.6645, 1.6/1.5
	return &pb.PlanRecord{
		MigrationId: "m1", RequestId: "r1", Session: &pb.SessionRef{SessionId: "chat"}, Source: &pb.Node{NodeId: "us-1", RegionId: "us"}, Plan: testPlan(),
		Decided: pb.Mode_MODE_FETCH, CarriedOut: pb.Mode_MODE_FETCH, State: pb.MigrationState_MIGRATION_STATE_COMMITTED, PredictedSeconds: &predicted,
		PredictedP95Seconds: &p95, ActualSeconds: 1.6, ActualOverPredicted: &ratio, Bytes: 80 << 20, BlocksMoved: 16, BlocksTotal: 16, Tokens: 257,
		Steps: []*pb.PlanStep{
			{State: pb.MigrationState_MIGRATION_STATE_OFFERING, Seconds: 0.5}, {State: pb.MigrationState_MIGRATION_STATE_TRANSFERRING, Seconds: 1.1},
		},
		Ended: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
}

func testReport() *pb.MigrationReport {
	return &pb.MigrationReport{
		State: pb.MigrationState_MIGRATION_STATE_COMMITTED, Mode: pb.Mode_MODE_FETCH, Ownership: pb.Ownership_OWNERSHIP_MOVED,
		Source: &pb.Node{NodeId: "us-1", RegionId: "us"}, Epoch: 2, BlocksTotal: 16, BlocksMoved: 16, BlocksUsable: 16, Pages: 1280, Bytes: 80 << 20,
		WireBytes: 81 << 20, Tokens: 257, TailTokens: 1, Total: durationpb.New(1600 * time.Millisecond), Transfer: durationpb.New(time.Second),
		PredictedSeconds: 1.5, Fidelity: pb.Fidelity_FIDELITY_EXACT,
	}
}

// committed is the stream of a migration that works.
func committed() []*pb.MigrateResponse {
	return []*pb.MigrateResponse{
		{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_LOCATING},
		{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_RESERVING, Plan: testPlan()},
		{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_TRANSFERRING, Progress: &pb.MigrationProgress{PagesTotal: 1280, BytesTotal: 80 << 20}},
		{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_COMMITTED, Report: testReport()},
	}
}

// serve starts d on a unix socket and returns its address.
func serve(t *testing.T, d *fakeDaemon) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.sock")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	start(t, d, lis)
	return "unix://" + path
}

func start(t *testing.T, d *fakeDaemon, lis net.Listener, opts ...grpc.ServerOption) {
	t.Helper()
	d.cancelled = make(chan struct{})
	srv := grpc.NewServer(opts...)
	pb.RegisterMigrationServiceServer(srv, d)
	pb.RegisterRegionServiceServer(srv, d)
	done := make(chan error, 1) // capacity 1: Serve's result is read at cleanup
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// result is what one run of the command line gives.
type result struct {
	code           exitCode
	stdout, stderr string
}

func run(t *testing.T, args ...string) result {
	t.Helper()
	return runContext(t.Context(), args...)
}

func runContext(ctx context.Context, args ...string) result {
	var out, errOut bytes.Buffer
	a := &app{stdout: &out, stderr: &errOut}
	code := a.run(ctx, args)
	return result{code, out.String(), errOut.String()}
}

// object parses stdout.
func (r result) object(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("stdout is not JSON: %v\n%s%s", err, r.stdout, r.stderr)
	}
	return v
}

// at follows a dotted path into JSON.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func wantFields(t *testing.T, v map[string]any, want map[string]any) {
	t.Helper()
	for path, w := range want {
		if diff := cmp.Diff(w, at(v, path)); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

func wantText(t *testing.T, text string, want ...string) {
	t.Helper()
	flat := strings.Join(strings.Fields(text), " ")
	for _, w := range want {
		if !strings.Contains(flat, w) {
			t.Errorf("no %q in:\n%s", w, text)
		}
	}
}

func refuse(t *testing.T, c codes.Code, reason, message, fix string) error {
	t.Helper()
	st, err := status.New(c, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "kvferry.v1"}, &errdetails.Help{Links: []*errdetails.Help_Link{{Description: fix}}})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{script: committed()}
	addr := serve(t, d)
	r := run(t, "migrate", "--addr", addr, "--session", "chat", "--tenant", "t", "--engine", "e", "--source", "us-1", "--mode", "fetch", "--deadline", "20s",
		"--repin-seq", "7", "--takeover", "--request-id", "r1", "--expected-turns", "3", "--redirect-allowed", "--class", "background", "-o", "json")
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	want := &pb.MigrateRequest{
		RequestId: "r1", Session: &pb.SessionRef{Tenant: "t", SessionId: "chat"}, EngineId: "e", SourceHint: "us-1", Mode: pb.Mode_MODE_FETCH,
		Deadline: durationpb.New(20 * time.Second), RepinSeq: 7, Takeover: true, ExpectedTurns: 3, RedirectAllowed: true, Class: pb.TransferClass_TRANSFER_CLASS_BACKGROUND,
	}
	if !proto.Equal(want, d.last()) {
		t.Errorf("the daemon was asked %v", d.last())
	}
	wantFields(t, r.object(t), map[string]any{
		"migration.state": "COMMITTED", "migration.mode": "fetch", "migration.pages": 1280.0, "migration.bytes": float64(80 << 20), "migration.seconds": 1.6,
		"migration.transfer_seconds": 1.0, "migration.ownership": "moved", "migration.tail_tokens": 1.0, "migration.fidelity": "exact", "migration.migration_id": "m1",
		"migration.request_id": "r1", "migration.source.node_id": "us-1", "migration.epoch": 2.0, "plan.winner": "fetch", "plan.modes.fetch.seconds": 1.5,
		"plan.modes.recompute.seconds": 3.0, "plan.modes.redirect.seconds": nil, "plan.modes.redirect.reason": "not allowed", "plan.modes.fetch.terms.0.name": "rtt",
		"plan.crossover_tokens": 512.0, "plan.margin_seconds": 1.5, "plan.modes.fetch.sigma_seconds": 0.1, "plan.modes.fetch.p95_seconds": 1.6645,
		"plan.modes.recompute.p95_seconds": nil, "plan.ranked_by_p95": false,
	})

	r = run(t, "migrate", "--addr", addr, "--session", "chat")
	wantText(t, r.stdout, "state: COMMITTED", "blocks: 16 usable of 16 (0 were here, 16 moved)", "moved: 1280 pages, 80.0 MiB", "in 1 s, 671.1Mbps",
		"took: 1.6 s, predicted 1.5 s", "fetch 1.5 s (P95 1.665 s) 80.0 MiB 0 tokens <- chosen", "margin: 1.5 s before recompute")
	wantText(t, r.stderr, "migrating chat, request id cli-", "LOCATING RESERVING: fetch takes 1.5 s TRANSFERRING COMMITTED")
	if id := d.last().(*pb.MigrateRequest).GetRequestId(); len(id) < 20 {
		t.Errorf("request id %q is not random", id)
	}
}

// The groups of layers are shown with their blocks, in order of layers.
func TestMigrateLayers(t *testing.T) {
	t.Parallel()
	script := committed()
	part := func(first uint32, keys int) *pb.LandedLayers {
		return &pb.LandedLayers{FirstLayer: first, Layers: 40, Keys: make([][]byte, keys)}
	}
	moving := proto.CloneOf(script[len(script)-2])
	moving.LandedLayers = []*pb.LandedLayers{part(40, 1), part(0, 7), part(0, 9), part(40, 15)}
	d := &fakeDaemon{script: append(script[:len(script)-1:len(script)-1], moving, script[len(script)-1])}
	addr := serve(t, d)
	r := run(t, "migrate", "--addr", addr, "--session", "chat", "--request-id", "r1", "--landed-layers", "40", "--order", "layer-group", "-o", "json")
	if r.code != exitOK {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	want := &pb.MigrateRequest{
		RequestId: "r1", Session: &pb.SessionRef{SessionId: "chat"}, LandedLayers: 40, Order: pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR,
	}
	if !proto.Equal(want, d.last()) {
		t.Errorf("the daemon was asked %v", d.last())
	}
	wantFields(t, r.object(t), map[string]any{
		"landed_layers.0.first_layer": 0.0, "landed_layers.0.layers": 40.0, "landed_layers.0.blocks": 16.0,
		"landed_layers.1.first_layer": 40.0, "landed_layers.1.blocks": 16.0,
	})
	r = run(t, "migrate", "--addr", addr, "--session", "chat", "--landed-layers", "40")
	wantText(t, r.stdout, "layers 0-39: 16 blocks landed after ", "layers 40-79: 16 blocks landed after ")
}

func TestMigrateFails(t *testing.T) {
	t.Parallel()
	failed := func(code string) []*pb.MigrateResponse {
		return []*pb.MigrateResponse{{MigrationId: "m1", State: pb.MigrationState_MIGRATION_STATE_FAILED, Report: &pb.MigrationReport{
			State: pb.MigrationState_MIGRATION_STATE_FAILED, Code: code, Message: "it broke",
		}}}
	}
	moving := committed()[:3]
	for _, c := range []struct {
		name string
		d    *fakeDaemon
		code exitCode
		want []string
	}{
		{"refused", &fakeDaemon{end: refuse(t, codes.NotFound, "SESSION_NOT_FOUND", "no such session", "look")}, exitNotFound, []string{"kvferry: no such session", "fix: look"}},
		{"failed", &fakeDaemon{script: failed("CHECKSUM_MISMATCH")}, exitFailed, []string{"kvferry: it broke"}},
		{"layout", &fakeDaemon{script: failed("LAYOUT_MISMATCH")}, exitRefused, []string{"it broke"}},
		{"peer", &fakeDaemon{script: failed("PEER_UNREACHABLE")}, exitUnreachable, []string{"it broke"}},
		{"stream breaks", &fakeDaemon{script: moving, end: status.Error(codes.Unavailable, "gone")}, exitUnreachable, []string{"gone", "fix: the migration goes on without us", "--request-id r1"}},
		{"no report", &fakeDaemon{script: moving}, exitFailed, []string{"without a report", "kvferry migrations get --request-id r1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "migrate", "--addr", serve(t, c.d), "--session", "chat", "--request-id", "r1")
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			wantText(t, r.stderr, c.want...)
		})
	}
}

// In JSON the report goes to stdout and the error to stderr, each one document.
func TestMigrateFailsJSON(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{script: []*pb.MigrateResponse{{State: pb.MigrationState_MIGRATION_STATE_FAILED, Report: &pb.MigrationReport{
		State: pb.MigrationState_MIGRATION_STATE_FAILED, Code: "ARENA_FULL", Message: "full",
	}}}}
	r := run(t, "migrate", "--addr", serve(t, d), "--session", "chat", "-o", "json")
	wantFields(t, r.object(t), map[string]any{"migration.state": "FAILED", "migration.code": "ARENA_FULL", "plan": nil})
	if want := `{"error":{"code":5,"reason":"ARENA_FULL","message":"full","fix":""}}` + "\n"; r.stderr != want || r.code != exitRefused {
		t.Errorf("exit %d, stderr %s", r.code, r.stderr)
	}
}

// Ctrl-C cancels the migration at the daemon and reports its end.
func TestMigrateInterrupted(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{script: committed()[:3], hang: true}
	addr := serve(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("TRANSFERRING")) {
			cancel()
		}
		return len(b), nil
	})}
	if code := a.run(ctx, []string{"migrate", "--addr", addr, "--session", "chat", "--request-id", "r1"}); code != exitCancelled {
		t.Errorf("exit %d, want %d", code, exitCancelled)
	}
	if got, ok := d.last().(*pb.CancelMigrationRequest); !ok || got.GetRequestId() != "r1" {
		t.Errorf("the daemon was last asked %v", d.last())
	}
	wantText(t, out.String(), "state: CANCELLED", "ownership: unmoved")
}

// When the daemon can't be told, the message says so.
func TestMigrateInterruptedAlone(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{script: committed()[:3], hang: true, end: status.Error(codes.Internal, "deaf")}
	addr := serve(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	var errOut bytes.Buffer
	a := &app{stdout: &bytes.Buffer{}, stderr: writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("TRANSFERRING")) {
			cancel()
		}
		return errOut.Write(b)
	})}
	if code := a.run(ctx, []string{"migrate", "--addr", addr, "--session", "chat", "--request-id", "r1"}); code != exitCancelled {
		t.Errorf("exit %d, want %d", code, exitCancelled)
	}
	wantText(t, errOut.String(), "could not be told: deaf", "fix: the migration may go on")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestPlanSession(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{}
	addr := serve(t, d)
	r := run(t, "plan", "--addr", addr, "--session", "chat", "--mode", "fetch", "-o", "json")
	wantFields(t, r.object(t), map[string]any{
		"session_id": "chat", "source.node_id": "us-1", "blocks_total": 16.0, "blocks_present": 4.0, "tail_tokens": 1.0, "winner": "fetch", "modes.fetch.seconds": 1.5,
	})
	if got := d.last().(*pb.PlanRequest).GetMigrate(); got.GetSession().GetSessionId() != "chat" || got.GetMode() != pb.Mode_MODE_FETCH {
		t.Errorf("the daemon was asked %v", got)
	}
	wantText(t, run(t, "plan", "--addr", addr, "--session", "chat").stdout, "session: chat at us-1 (us)", "blocks: 16, of which 4 are here; 60.0 MiB missing", "fetch 1.5 s (P95 1.665 s)")
	d.end = refuse(t, codes.NotFound, "SESSION_NOT_FOUND", "no", "f")
	if r := run(t, "plan", "--addr", addr, "--session", "chat"); r.code != exitNotFound {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{}
	addr := serve(t, d)
	for _, c := range []struct {
		args  []string
		json  map[string]any
		table []string
		asked proto.Message
	}{
		{
			[]string{"sessions", "--tenant", "t"},
			map[string]any{
				"sessions.0.session_id": "chat", "sessions.0.blocks": 2.0, "sessions.0.blocks_present": 1.0, "sessions.0.epoch": 2.0, "sessions.0.version": 3.0,
				"sessions.0.repin_seq": 4.0, "sessions.0.layout_pin": "abcd", "sessions.0.owner_node_id": "eu-1", "sessions.0.tokens": 40.0,
			},
			[]string{"chat - eu-1 40 1 of 2 2 3 4"},
			&pb.ListSessionsRequest{Tenant: "t"},
		},
		{
			[]string{"links"},
			map[string]any{
				"links.0.peer.node_id": "us-1", "links.0.connected": true, "links.0.stripes": 8.0, "links.0.rtt_min_seconds": 0.07, "links.0.goodput_bps": 9e8,
				"links.0.measured": true, "links.0.capacity.value": 1e9, "links.0.capacity.basis": "measured", "links.0.loss.basis": "persisted", "links.0.ramp.basis": "unknown",
				"links.0.goodput.spread": 1e7, "links.0.goodput.samples": 4.0, "links.2.goodput.basis": "persisted", "links.2.goodput.age_seconds": 90.0,
				"links.0.age_seconds": 3.0, "links.0.bytes_received": float64(1 << 30),
				"links.0.codec_ratio.value": 1.47, "links.0.codec_ratio.basis": "measured", "links.0.codec_rate.value": 6e9, "links.0.pages_received.codec": "huff",
				"links.0.pages_received.page_bytes": 147e7, "links.0.pages_received.wire_bytes": 1e9, "links.0.pages_received.coded_bytes": 14e8,
				"links.0.pages_received.busy_seconds": 1.5, "links.0.pages_sent.codec": "", "links.2.codec_ratio.basis": "unknown",
			},
			[]string{
				"us-1 (us) us:7441 yes 8 70 ms 72 ms 900Mbps (3 s ago) 1Gbps (5 s ago) 0.01 % (remembered, 14400 s ago) huff 1.47:1 -", "ap-1 ap:7441 no 0 ? ? 1Gbps (prior) ? ?", "no route",
				"eu-2 - no 0 ? ? 2Gbps (remembered, 90 s ago) ? ?", "sa-1 - no 0 ? ? unknown",
			},
			&pb.ListLinksRequest{},
		},
		{
			[]string{"status"},
			map[string]any{"node.node_id": "eu-1", "shadow": true, "version": "v1", "uptime_seconds": 90.0, "gpu": "unavailable: none", "arenas.0.engine_id": "e1", "arenas.0.slots_free": 60.0},
			[]string{"node: eu-1 (eu)", "mode: shadow", "up: 90 s", "e1 tiny 64 60"},
			&pb.StatusRequest{},
		},
		{
			[]string{"migrations", "list", "--active", "--limit", "5"},
			map[string]any{"migrations.0.migration_id": "m1", "migrations.0.state": "COMMITTED", "migrations.0.age_seconds": 60.0, "migrations.0.pages": 1280.0},
			[]string{"m1 chat - COMMITTED fetch 1280 80.0 MiB 1.6 s 60 s"},
			&pb.ListMigrationsRequest{ActiveOnly: true, Limit: 5},
		},
		{
			[]string{"migrations", "get", "m1"},
			map[string]any{"migration.state": "TRANSFERRING", "plan.winner": "fetch"},
			[]string{"state: TRANSFERRING", "mode: fetch"},
			&pb.GetMigrationRequest{MigrationId: "m1"},
		},
		{
			[]string{"migrations", "cancel", "--request-id", "r1"},
			map[string]any{"migration.state": "CANCELLED", "plan": nil},
			[]string{"state: CANCELLED"},
			&pb.CancelMigrationRequest{RequestId: "r1"},
		},
		{
			[]string{"plans", "--worst", "--mode", "fetch", "--tenant", "t", "--shadow", "-n", "7"},
			map[string]any{
				"plans.0.migration_id": "m1", "plans.0.decided": "fetch", "plans.0.carried_out": "fetch", "plans.0.asked": "", "plans.0.predicted_seconds": 1.5,
				"plans.0.predicted_p95_seconds": 1.6645, "plans.0.actual_seconds": 1.6, "plans.0.actual_over_predicted": 1.6 / 1.5, "plans.0.ended": "2026-01-02T03:04:05Z",
				"plans.0.plan.modes.fetch.terms.0.name": "rtt", "plans.0.steps.1.state": "TRANSFERRING", "plans.1.shadow": true, "plans.1.actual_over_predicted": nil,
				"plans.2.predicted_seconds": nil, "plans.2.plan": nil,
			},
			[]string{
				"m1 chat - fetch recompute COMMITTED 1.5 s 1.665 s 1.6 s 1.07x", "m2 chat - fetch (shadow) recompute REDIRECT 1.5 s 1.665 s nothing moved -",
				"m3 - - - -",
			},
			&pb.ListPlansRequest{Worst: true, Mode: pb.Mode_MODE_FETCH, Tenant: "t", ShadowOnly: true, Limit: 7},
		},
		{
			[]string{"plans", "get", "m1"},
			map[string]any{"migration_id": "m1", "plan.winner": "fetch", "plan.modes.recompute.terms.0.seconds": 3.0, "source.region_id": "us"},
			[]string{
				"decided: fetch by the planner", "carried out: fetch", "ended: COMMITTED - 2026-01-02T03:04:05Z", "predicted: 1.5 s (P95 1.665 s)",
				"took: 1.6 s 1.07x what was predicted, within its P95", "offering 500 ms", "transferring 1.1 s", "moved: 16 of 16 blocks, 80.0 MiB; 257 tokens",
				"rtt 500 ms", "<- chosen", "link: measured",
			},
			&pb.GetPlanRequest{MigrationId: "m1"},
		},
		{
			[]string{"plans", "get", "--request-id", "r1"},
			map[string]any{"request_id": "r1"},
			[]string{"request id: r1"},
			&pb.GetPlanRequest{RequestId: "r1"},
		},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			args := append([]string{"--addr", addr}, c.args...)
			r := run(t, append(args, "-o", "json")...)
			if r.code != exitOK {
				t.Fatalf("exit %d: %s", r.code, r.stderr)
			}
			wantFields(t, r.object(t), c.json)
			if !proto.Equal(c.asked, d.last()) {
				t.Errorf("the daemon was asked %v, want %v", d.last(), c.asked)
			}
			wantText(t, run(t, args...).stdout, c.table...)
		})
	}
}

// A daemon that does not know a call is told apart from one that is not there.
func TestUnimplemented(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	done := make(chan error, 1) // capacity 1: Serve's result is read at the end
	go func() { done <- srv.Serve(lis) }()
	r := run(t, "status", "--addr", "unix://"+lis.Addr().String())
	if r.code != exitRefused {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	wantText(t, r.stderr, "fix: the daemon is of another release")
	srv.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Over TCP both sides show certificates of one authority.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := func(sub, node string) []string {
		d := filepath.Join(dir, sub)
		for _, args := range [][]string{{"certs", "init", "--dir", d}, {"certs", "issue", "--dir", d, "--region", "r", "--node", node}} {
			if r := run(t, args...); r.code != exitOK {
				t.Fatal(r.stderr)
			}
		}
		return []string{"--ca", filepath.Join(d, "ca.crt"), "--cert", filepath.Join(d, node+".crt"), "--key", filepath.Join(d, node+".key")}
	}
	ours, others := files("a", "n"), files("b", "n")
	m, err := certs.Load(certs.Files{CA: ours[1], Cert: ours[3], Key: ours[5]})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, &fakeDaemon{}, lis, grpc.Creds(credentials.NewTLS(m.ServerConfig())))
	addr := lis.Addr().String()

	if r := run(t, append([]string{"status", "--addr", addr}, ours...)...); r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	r := run(t, append([]string{"status", "--addr", addr}, others...)...)
	if r.code != exitUnreachable {
		t.Errorf("another authority: exit %d: %s", r.code, r.stderr)
	}
	wantText(t, r.stderr, "fix: the peer's certificate is of another authority")
	r = run(t, append([]string{"status", "--addr", addr}, "--ca", ours[1], "--cert", others[3], "--key", others[5])...)
	if r.code != exitFailed {
		t.Errorf("mixed files: exit %d: %s", r.code, r.stderr)
	}
	wantText(t, r.stderr, "fix: it must be signed by")
	r = run(t, append([]string{"status", "--addr", strings.Replace(addr, "127.0.0.1", "127.0.0.2", 1), "--timeout", "5s"}, ours...)...)
	if r.code != exitUnreachable {
		t.Errorf("nobody there: exit %d: %s", r.code, r.stderr)
	}
}
