//go:build e2e

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/nvml"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// regions is two kvferryd processes, and what a Prometheus needs to find them.
type regions struct {
	t     *testing.T
	dir   string
	admin map[string]string // address by node
	nodes map[string]*node  // clients; no daemon in this process
}

// freeAddr is a loopback address that nobody uses now.
func freeAddr(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket(network, "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.LocalAddr().String()
	}
	l, err := net.Listen(network, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// process runs a program until the test ends, with its output in a file that a failure shows.
func process(t *testing.T, dir, name, bin string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !kill.Stop() {
			t.Errorf("%s did not end within 10 s", name)
		}
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s ended (%v); its output:\n%.4000s", name, err, text)
		}
	})
}

// startRegions starts nodes a and b; each lists "gone" as well, which does not answer.
func startRegions(t *testing.T, engineMetrics string) *regions {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvf") // short: a socket's path has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(dir, "kvferryd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, "../../cmd/kvferryd").CombinedOutput(); err != nil {
		t.Fatalf("build kvferryd: %v\n%s", err, out)
	}
	ca, err := certs.NewCA("test", 90*24*time.Hour) // far from an alert
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	r := &regions{t: t, dir: dir, admin: map[string]string{}, nodes: map[string]*node{}}
	names := []string{"a", "b"}
	quic := map[string]string{"a": freeAddr(t, "udp"), "b": freeAddr(t, "udp"), "gone": freeAddr(t, "udp")}
	for i, name := range names {
		pair, err := ca.Issue("r-"+name, name, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Save(dir); err != nil {
			t.Fatal(err)
		}
		r.admin[name] = freeAddr(t, "tcp")
		lock, other := false, names[1-i]
		cfg := Config{
			Node:   NodeConfig{ID: name, Region: "r-" + name},
			Listen: ListenConfig{Unix: filepath.Join(dir, name+".s"), GRPC: off, QUIC: quic[name], Admin: r.admin[name]},
			TLS:    TLSConfig{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")},
			Peers: []PeerConfig{
				{Node: other, Region: "r-" + other, Address: quic[other]},
				{Node: "gone", Region: "r-gone", Address: quic["gone"]},
			},
			Arena:    ArenaConfig{Lock: &lock, Keep: -1},
			Link:     LinkConfig{Stripes: 2, ConnectTimeout: time.Second},
			Engines:  []EngineConfig{{ID: "e-" + name, MetricsURL: engineMetrics}},
			StateDir: filepath.Join(dir, name+"-state"),
		}
		text, err := cfg.WithDefaults().YAML()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		process(t, dir, "kvferryd-"+name, bin, "--config", file)
		r.connect(name, cfg.Listen.Unix)
	}
	return r
}

// connect waits for a daemon and makes its clients.
func (r *regions) connect(name, socket string) {
	r.t.Helper()
	ids := newArenaIDs()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), ids.unary(), ids.stream())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	n := &node{f: &fleet{t: r.t}, name: name, conn: conn, engine: pb.NewEngineServiceClient(conn), mig: pb.NewMigrationServiceClient(conn), region: pb.NewRegionServiceClient(conn)}
	eventually(r.t, name+" answers", func() bool {
		_, err := n.region.Status(context.Background(), &pb.StatusRequest{}, grpc.WaitForReady(false))
		return err == nil
	})
	r.nodes[name] = n
}

// get fetches a page.
func get(t *testing.T, address string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %d: %.500s (%v)", address, resp.StatusCode, body, err)
	}
	return body
}

// fakeVLLM is an engine's endpoint whose counters go up from scrape to scrape.
func fakeVLLM(t *testing.T) string {
	var scrapes atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := scrapes.Add(1)
		for _, m := range []struct {
			name, kind string
			value      float64
		}{
			{"num_requests_running", "gauge", 3},
			{"num_requests_waiting", "gauge", 1},
			{"kv_cache_usage_perc", "gauge", 0.25},
			{"prefix_cache_queries_total", "counter", float64(4000 * n)},
			{"prefix_cache_hits_total", "counter", float64(1000 * n)},
			{"external_prefix_cache_queries_total", "counter", float64(3000 * n)},
			{"external_prefix_cache_hits_total", "counter", float64(500 * n)},
			{"prompt_tokens_total", "counter", float64(4000 * n)},
			{"request_prefill_kv_computed_tokens_sum", "counter", float64(2500 * n)},
			{"request_prefill_time_seconds_sum", "counter", 0.25 * float64(n)},
			{"request_queue_time_seconds_sum", "counter", 0.01 * float64(n)},
			{"request_queue_time_seconds_count", "counter", float64(n)},
		} {
			fmt.Fprintf(w, "# TYPE vllm:%s %s\nvllm:%s{engine=\"0\",model_name=\"m\"} %v\n", m.name, m.kind, m.name, m.value)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/metrics"
}

// promServer is a Prometheus that scrapes the regions every second.
type promServer struct {
	t    *testing.T
	addr string
}

func (r *regions) prometheus() *promServer {
	r.t.Helper()
	bin, err := exec.LookPath("prometheus")
	if err != nil {
		r.t.Skip("prometheus is missing (apt-get install prometheus)")
	}
	rules, err := filepath.Abs(filepath.Join(deployDir, "prometheus/kvferry.rules.yaml"))
	if err != nil {
		r.t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n- job_name: kvferry\n  static_configs: [{targets: [%q, %q]}]\n",
		rules, r.admin["a"], r.admin["b"])
	file := filepath.Join(r.dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		r.t.Fatal(err)
	}
	p := &promServer{r.t, freeAddr(r.t, "tcp")}
	process(r.t, r.dir, "prometheus", bin, "--config.file", file, "--storage.tsdb.path", filepath.Join(r.dir, "tsdb"),
		"--web.listen-address", p.addr, "--log.level", "warn")
	eventually(r.t, "Prometheus scrapes both daemons", func() bool { return p.number(`sum(up)`) == 2 })
	return p
}

type promResult struct {
	Metric map[string]string
	Value  [2]any
}

// query asks the HTTP API.
func (p *promServer) query(expr string) ([]promResult, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.addr+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []promResult }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return answer.Data.Result, nil
}

// number is the value of a query with one result; NaN when there is none, or no answer yet.
func (p *promServer) number(expr string) float64 {
	res, err := p.query(expr)
	if err != nil || len(res) != 1 {
		return math.NaN()
	}
	text, _ := res[0].Value[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// lint runs promtool check metrics.
func lint(t *testing.T, text []byte) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing (apt-get install prometheus)")
	}
	cmd := exec.CommandContext(t.Context(), path, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// promtool finds nothing to say about a daemon's metrics, those of a host with GPUs included.
func TestPromtoolChecksAllMetrics(t *testing.T) {
	full := gpu(0, throttled)
	for _, r := range []*nvml.Reading[uint64]{&full.Memory.Total, &full.Memory.Used, &full.Health.Corrected, &full.Health.Uncorrected} {
		*r = nvml.Available(uint64(1))
	}
	for _, r := range []*nvml.Reading[float64]{&full.Utilization.Memory, &full.PCIe.Receive, &full.PCIe.Transmit, &full.Power.Draw, &full.Power.Limit, &full.Temperature} {
		*r = nvml.Available(1.0)
	}
	full.Health.LastXid = nvml.Available(nvml.Xid{})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(&gpuCollector{&load{gpus: &fakeGPUs{snap: snapshot(full)}, maxAge: time.Hour}})
	if got := len(samples(t, reg)); got != 3+5+len(nvml.ThrottleNames())+len(gpuRows) {
		t.Errorf("%d samples: not every reading is there", got)
	}
	srv := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer srv.Close()
	lint(t, get(t, srv.URL))
}

// Two real daemons, migrations between them, and a real Prometheus: promtool has nothing to say about the metrics, every
// query of the dashboard and every rule runs, and what should have data has some.
func TestPrometheus(t *testing.T) {
	r := startRegions(t, fakeVLLM(t))
	prom := r.prometheus()
	a, b := r.nodes["a"], r.nodes["b"]
	ea, eb := a.register("e-a", testLayout(), 4<<20), b.register("e-b", testLayout(), 2<<20)
	var moved int64
	turn := func(i int) { // a migration, then what its engine asks
		t.Helper()
		id := fmt.Sprintf("s%d", i)
		keys := chain(id, 150)
		ea.write("", keys)
		ea.publish("", id, keys, 150*16+3)
		req := auto(id)
		req.SourceHint = "a"
		rep := b.mustMigrate(req, committed)
		if rep.GetBlocksMoved() != 150 {
			t.Errorf("report %v", rep)
		}
		moved += rep.GetBytes()
		eb.check("", keys)
		if _, err := b.engine.LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e-b", Keys: append(keys, chain("absent", 10)...)}); err != nil {
			t.Fatal(err)
		}
	}
	turn(0)
	eventually(t, "the first turn is scraped", func() bool { return prom.number(`sum(kvferry_migration_raw_bytes_total)`) == float64(moved) })
	for i := 1; i < 3; i++ {
		turn(i)
		if i == 2 { // a source that does not answer, asked by a caller who insists on a fetch
			req := request("elsewhere")
			req.SourceHint, req.EngineId = "gone", "e-b"
			b.mustMigrate(req, failed)
			eventually(t, "the failure is scraped", func() bool { return prom.number(`sum(kvferry_migration_ended_total{state="failed"})`) == 1 })
		}
		eventually(t, "a turn is scraped", func() bool { return prom.number(`sum(kvferry_migration_raw_bytes_total)`) == float64(moved) })
	}
	rules := readRules(t)
	eventually(t, "the rules have been evaluated on it", func() bool {
		return prom.number(`region:kvferry_prefix_hit:ratio_rate5m{region="r-b"}`) > 0
	})
	for _, addr := range r.admin {
		text := get(t, "http://"+addr+"/metrics")
		lint(t, text)
		parseMetrics(t, string(text))
	}
	r.wantData(prom, rules)
	r.wantRulesHealthy(prom, len(rules))
}

// noData are queries that need what this test's host may not have, or what should not happen.
func noData(expr string) bool {
	for _, learnt := range []string{"kvferry_link_capacity_", "kvferry_link_ramp_", "kvferry_link_loss_ratio", "kvferry_link_codec_"} {
		if strings.HasPrefix(expr, learnt) { // takes longer transfers than these
			return true
		}
	}
	return strings.Contains(expr, "kvferry_gpu_") && !strings.Contains(expr, "kvferry_gpu_reader_state")
}

func (r *regions) wantData(prom *promServer, rules []rule) {
	r.t.Helper()
	ran := 0
	for title, queries := range readDashboard(r.t).queries() {
		for _, q := range queries {
			ran++
			switch res, err := prom.query(q); {
			case err != nil:
				r.t.Errorf("panel %q: %v in %s", title, err, q)
			case len(res) == 0 && !noData(q):
				r.t.Errorf("panel %q has no data: %s", title, q)
			}
		}
	}
	firing := map[string]bool{"KvferrySourceUnreachable": true}
	either := map[string]bool{"KvferryPredictionOff": true} // a prior of 1 Gbps against loopback: the machine decides
	for _, rl := range rules {
		res, err := prom.query(rl.Expr)
		ran++
		switch {
		case err != nil:
			r.t.Errorf("rule %s%s: %v", rl.Record, rl.Alert, err)
		case rl.Record != "" && len(res) == 0:
			r.t.Errorf("rule %s has no data", rl.Record)
		case rl.Alert != "" && len(res) > 0 != firing[rl.Alert] && !either[rl.Alert] && !noData(rl.Expr):
			r.t.Errorf("alert %s: %d results", rl.Alert, len(res))
		}
	}
	r.t.Logf("%d queries ran", ran)
}

// wantRulesHealthy holds Prometheus's own word on the rules.
func (r *regions) wantRulesHealthy(prom *promServer, want int) {
	r.t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := json.Unmarshal(get(r.t, "http://"+prom.addr+"/api/v1/rules"), &answer); err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, g := range answer.Data.Groups {
		for _, rl := range g.Rules {
			n++
			if rl.Health != "ok" {
				r.t.Errorf("rule %s is %s: %s", rl.Name, rl.Health, rl.LastError)
			}
		}
	}
	if n != want {
		r.t.Errorf("%d rules are loaded, want %d", n, want)
	}
}
