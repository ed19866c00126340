package daemon

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (n *realNode) get(path string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestAdminHTTP(t *testing.T) {
	n := newRealNode(t, nil)
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/debug/pprof/": 404, "/": 404} {
		if code, body := n.get(path); code != want {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
	}
	_, text := n.get("/metrics")
	samples := parseMetrics(t, text)
	for name, want := range map[string]float64{
		"kvferry_migration_active_migrations": 0, `kvferry_egress_offers{peer="other"}`: 0, `kvferry_egress_backlog_bytes{peer="other"}`: 0, "kvferry_migration_pages_total": 0,
		`kvferry_arena_leases{engine="e"}`: 0, `kvferry_arena_pinned_bytes{engine="e"}`: 0,
		`kvferry_arena_slots{engine="e",state="free"}`: 128, `kvferry_arena_slots{engine="e",state="reserved"}`: 0,
		`kvferry_arena_slots{engine="e",state="committed"}`: 0, `kvferry_arena_slots{engine="e",state="draining"}`: 0,
	} {
		if got, ok := samples[name]; !ok || got != want {
			t.Errorf("%s is %v (present: %v), want %v", name, got, ok, want)
		}
	}
	families, err := n.d.registry.Gather() // checks names, labels and duplicates
	if err != nil {
		t.Errorf("gather: %v", err)
	}
	for _, f := range families {
		if f.GetHelp() == "" || !strings.HasPrefix(f.GetName(), "kvferry_") {
			t.Errorf("metric %s has no help, or another prefix", f.GetName())
		}
	}
}

// Lines of the Prometheus text format, version 0.0.4.
var (
	metricComment = regexp.MustCompile(`^# (HELP [a-z_]+ \S.*|TYPE [a-z_]+ (counter|gauge|histogram))$`)
	metricSample  = regexp.MustCompile(`^([a-z_]+(?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) (\S+)$`)
)

func parseMetrics(t *testing.T, text string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if metricComment.MatchString(line) {
			continue
		}
		m := metricSample.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("not a line of the text format: %q", line)
			continue
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Errorf("value of %q: %v", line, err)
		}
		if _, dup := out[m[1]]; dup {
			t.Errorf("%s twice", m[1])
		}
		out[m[1]] = v
	}
	return out
}

func TestPprofIsOptIn(t *testing.T) {
	n := newRealNode(t, func(c *Config, _ *Parts) { c.Listen.Pprof = true })
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine", "/debug/pprof/cmdline"} {
		if code, body := n.get(path); code != 200 {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
	}
}

func services(t *testing.T, conn *grpc.ClientConn) []string {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	var out []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		if strings.HasPrefix(s.GetName(), "kvferry.") {
			out = append(out, s.GetName())
		}
	}
	slices.Sort(out)
	return out
}

// Health and reflection answer on both listeners; the engine's service is on the local one only.
func TestHealthAndReflection(t *testing.T) {
	n := newRealNode(t, nil)
	remote := n.dial("passthrough:///"+n.grpc, clientTLS(t, n.ca, n.ca))
	all := []string{"kvferry.v1.EngineService", "kvferry.v1.MigrationService", "kvferry.v1.PlannerService", "kvferry.v1.RegionService"}
	for name, tc := range map[string]struct {
		conn *grpc.ClientConn
		want []string
	}{"local": {n.local, all}, "remote": {remote, all[1:]}} {
		h, err := healthpb.NewHealthClient(tc.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s: health %v, %v", name, h, err)
		}
		if got := services(t, tc.conn); !slices.Equal(got, tc.want) {
			t.Errorf("%s: services %v, want %v", name, got, tc.want)
		}
		st, err := pb.NewRegionServiceClient(tc.conn).Status(t.Context(), &pb.StatusRequest{})
		if err != nil || st.GetNode().GetNodeId() != "a" || st.GetVersion() != "test" || !strings.HasPrefix(st.GetGpu(), "unavailable: ") {
			t.Errorf("%s: status %v, %v", name, st, err)
		}
	}
	_, err := pb.NewEngineServiceClient(remote).LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e"})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("engine call over TCP: %v", err)
	}
}

// A client without a certificate of the fleet's CA is not let in.
func TestRemoteNeedsCertificate(t *testing.T) {
	n := newRealNode(t, nil)
	stranger, err := certs.NewCA("stranger", 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := n.dial("passthrough:///"+n.grpc, clientTLS(t, n.ca, stranger))
	_, err = pb.NewRegionServiceClient(conn).Status(t.Context(), &pb.StatusRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a stranger's call: %v", err)
	}
	if f, ok := FailureFromError(err); !ok || f.Reason != ReasonPeerUnreachable || f.Fix == "" {
		t.Errorf("failure %+v", f)
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "/proc/") {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	return out
}

// openUseClose runs one daemon with an engine that outlives it.
func openUseClose(t *testing.T) {
	n := newRealNode(t, nil)
	engine := n.startProcess()
	engine.do("register e 0 1")
	engine.want("true", "commit 0 1 %s", engine.do("reserve s 1"))
	engine.want("ok", "acquire s 1")
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
		t.Fatal(err)
	}
	if code, _ := n.get("/readyz"); code != 200 {
		t.Errorf("not ready: %d", code)
	}
	events, err := n.engine.Events(t.Context(), &pb.EventsRequest{EngineId: "e"})
	if err == nil {
		_, err = events.Header()
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	_, err = events.Recv()
	if f, ok := FailureFromError(err); !ok || f.Reason != ReasonShuttingDown {
		t.Errorf("the event stream ended with %v", err)
	}
	if left, _ := os.ReadDir(n.arena); len(left) != 0 {
		t.Errorf("arena files are left: %v", left)
	}
	if _, err := os.Lstat(n.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// Close leaves no goroutine, no file, no socket, and can be repeated; the address can be used again at once.
func TestCloseLeavesNothing(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		var goroutines int
		var files []string
		for round := range 3 { // the first one warms up what stays by design
			t.Run("", openUseClose)
			http.DefaultClient.CloseIdleConnections()
			switch round {
			case 1:
				goroutines, files = runtime.NumGoroutine(), openFiles(t)
			case 2:
				eventually(t, "goroutines and files are as before", func() bool {
					return runtime.NumGoroutine() <= goroutines && len(openFiles(t)) <= len(files)
				})
			}
		}
	})
	t.Run("bubble", func(t *testing.T) { // a goroutine that is left fails the bubble
		bubble(t, func(t *testing.T) {
			r := newRig(t, slow, nil)
			r.ea.session("s", 64)
			m := r.b.begin(request("s"))
			m.landed(8192)
			dirs := []string{r.a.cfg.Arena.Dir, r.b.cfg.Arena.Dir}
			if err := r.b.d.Close(); err != nil { // the destination, in the middle of a transfer
				t.Errorf("close: %v", err)
			}
			wantReport(t, m.end(), failed, ReasonShuttingDown, unmoved)
			if _, _, err := r.b.migrate(request("s")); err == nil {
				t.Error("a closed daemon migrates")
			}
			if got := r.a.idle(); got.Offers != 0 || got.Leases != 0 {
				t.Errorf("the source holds %+v for a daemon that has closed", got)
			}
			if err := r.a.d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			for _, dir := range dirs {
				if left, _ := os.ReadDir(dir); len(left) != 0 {
					t.Errorf("arena files are left: %v", left)
				}
			}
		})
	})
}

// A panic in a call fails that call and no more.
func TestPanicIsContained(t *testing.T) {
	n := newRealNode(t, nil)
	_, err := n.d.unaryErrors(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(context.Context, any) (any, error) { panic("oh") })
	wantError(t, err, ReasonInternal)
	err = n.d.streamErrors(nil, fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/x"}, func(any, grpc.ServerStream) error { panic("oh") })
	wantError(t, err, ReasonInternal)
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }
