package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// daemonPair is two daemons on real sockets that know each other.
type daemonPair struct {
	dir     string
	configs map[string]string // YAML file by node
}

func newDaemonPair(t *testing.T) *daemonPair {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvf") // short: a socket's path has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	arenas, err := os.MkdirTemp("/dev/shm", "kvferry-test-") // others' arenas are none of these daemons'
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(arenas) })
	p := &daemonPair{dir: dir, configs: map[string]string{}}
	if r := run(t, "certs", "init", "--dir", dir); r.code != exitOK {
		t.Fatal(r.stderr)
	}
	packets := map[string]net.PacketConn{}
	for _, n := range []string{"a", "b"} {
		if r := run(t, "certs", "issue", "--dir", dir, "--region", "r-"+n, "--node", n); r.code != exitOK {
			t.Fatal(r.stderr)
		}
		if packets[n], err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	for n, peer := range map[string]string{"a": "b", "b": "a"} {
		lock := false
		cfg := daemon.Config{
			Node:   daemon.NodeConfig{ID: n, Region: "r-" + n},
			Listen: daemon.ListenConfig{Unix: filepath.Join(dir, n+".sock"), QUIC: packets[n].LocalAddr().String(), GRPC: "off", Admin: "off"},
			TLS:    daemon.TLSConfig{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, n+".crt"), Key: filepath.Join(dir, n+".key")},
			Peers:  []daemon.PeerConfig{{Node: peer, Region: "r-" + peer, Address: packets[peer].LocalAddr().String()}},
			Arena:  daemon.ArenaConfig{Dir: arenas, Bytes: 1 << 20, Lock: &lock}, StateDir: filepath.Join(dir, "state-"+n),
		}
		data, err := cfg.YAML()
		if err != nil {
			t.Fatal(err)
		}
		p.configs[n] = filepath.Join(dir, n+".yaml")
		if err := os.WriteFile(p.configs[n], data, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := daemon.Open(cfg, daemon.Parts{Packets: packets[n], Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
	}
	return p
}

// finding returns a check's finding from JSON output.
func finding(t *testing.T, r result, name string) map[string]any {
	t.Helper()
	list, _ := r.object(t)["findings"].([]any)
	for _, f := range list {
		if m, ok := f.(map[string]any); ok && m["name"] == name {
			return m
		}
	}
	t.Fatalf("no finding %q in %s", name, r.stdout)
	return nil
}

// A doctor beside a running daemon finds it well, and does not disturb its links: it comes to the peer under the same
// incarnation.
func TestDoctorBesideDaemons(t *testing.T) {
	t.Parallel()
	p := newDaemonPair(t)
	addr := "unix://" + filepath.Join(p.dir, "a.sock")
	// Looking for a session that nobody has makes a dial b.
	if r := run(t, "plan", "--addr", addr, "--session", "nobody"); r.code != exitNotFound {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	wantFields(t, run(t, "links", "--addr", addr, "-o", "json").object(t), map[string]any{"links.0.connected": true})

	r := run(t, "doctor", "--config", p.configs["a"], "-o", "json")
	if r.code != exitOK {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	for name, want := range map[string]string{
		"config": "node a of region r-a, 1 peers", "daemon": "node a of region r-a, release test", "listen.quic": "the daemon is bound to",
		"certificate.authority": "is of", "peer.b.udp": "the daemon's link is up", "peer.b.handshake": "proved to be b", "arena.space": "free",
	} {
		if f := finding(t, r, name); f["status"] != "ok" || !strings.Contains(f["detail"].(string), want) {
			t.Errorf("%v, want ok with %q", f, want)
		}
	}
	wantFields(t, run(t, "links", "--addr", addr, "-o", "json").object(t), map[string]any{"links.0.connected": true, "links.0.error": ""})

	// The same from the other side, and without the file.
	if r := run(t, "doctor", "--config", p.configs["b"], "--peer", "a"); r.code != exitOK {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	r = run(t, "doctor", "--addr", addr)
	wantText(t, r.stdout, "peer.b.udp ok", "config unknown", "0 failures")
}

// An arena whose file is gone is named, with its engine, as the running daemon tells it.
func TestDoctorSeesLostArena(t *testing.T) {
	t.Parallel()
	p := newDaemonPair(t)
	addr := "unix://" + filepath.Join(p.dir, "a.sock")
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	reg, err := pb.NewEngineServiceClient(conn).RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "vllm-0", World: 1, Layout: &pb.Layout{
		ModelId: "test", Dtype: pb.Dtype_DTYPE_BF16, Kind: pb.LayoutKind_LAYOUT_KIND_GQA, Layers: 4, KvHeads: 2, HeadDim: 16, BlockTokens: 16,
		PositionScheme: "rope", HashAlgorithm: "sha256_chain", HashSeed: "0", SaltPolicy: "none",
	}})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"doctor", "--config", p.configs["a"], "-o", "json"}
	if f := finding(t, run(t, args...), "arena.files"); f["status"] != "ok" || !strings.Contains(f["detail"].(string), "1 arenas of node a") {
		t.Errorf("%v", f)
	}
	if err := os.Remove(reg.GetArenaPath()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; { // the daemon looks every second
		f := finding(t, run(t, args...), "arena.files")
		if f["status"] == "fail" {
			if !strings.Contains(f["detail"].(string), "the memory of engine vllm-0 is gone") || !strings.Contains(f["fix"].(string), "restart engine vllm-0") {
				t.Errorf("%v", f)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v", f)
		}
	}
}

func TestDoctorFails(t *testing.T) {
	t.Parallel()
	p := newDaemonPair(t)
	data, err := os.ReadFile(p.configs["a"])
	if err != nil {
		t.Fatal(err)
	}
	edited := func(name, old, text string) string {
		t.Helper()
		out := strings.Replace(string(data), old, text, 1)
		if out == string(data) {
			t.Fatalf("%q is not in the file", old)
		}
		path := filepath.Join(p.dir, name)
		if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name string
		args []string
		code exitCode
		out  []string
		err  []string
	}{
		{"key", []string{"--config", edited("1", "listen:", "lisen:")}, exitFailed, []string{"config fail", `unknown field "lisen"`}, []string{"checks fail: config"}},
		{"certificate", []string{"--config", edited("2", "/a.crt", "/b.crt")}, exitFailed, []string{"certificate.key fail", "fix: set tls.cert and tls.key"}, []string{"checks fail: certificate.identity, certificate.key"}},
		{"no such file", []string{"--config", filepath.Join(p.dir, "nope")}, exitFailed, []string{"no such file"}, nil},
		{"no daemon", []string{"--addr", "unix://" + p.dir + "/none.sock"}, exitFailed, []string{"daemon fail", "no daemon answers", "fix: systemctl start kvferryd"}, []string{"checks fail: daemon"}},
		{"other daemon", []string{"--config", p.configs["a"], "--addr", "unix://" + p.dir + "/b.sock"}, exitFailed, []string{"daemon fail", "is node b"}, nil},
		{"peer", []string{"--config", p.configs["a"], "--peer", "x"}, exitUsage, nil, []string{"--peer x is not a configured peer", "configured peers: b"}},
		{"engine", []string{"--engine-metrics", "ftp://x"}, exitUsage, nil, []string{"--engine-metrics"}},
		{"engine is down", []string{"--config", p.configs["a"], "--engine-metrics", "http://127.0.0.1:1"}, exitFailed, []string{"engine.1 fail"}, []string{"1 of"}},
		{"argument", []string{"x"}, exitUsage, nil, []string{"not expected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, append([]string{"doctor"}, c.args...)...)
			if r.code != c.code {
				t.Errorf("exit %d, want %d: %s%s", r.code, c.code, r.stdout, r.stderr)
			}
			wantText(t, r.stdout, c.out...)
			wantText(t, r.stderr, c.err...)
		})
	}
}

// What is waited for is said after two seconds, and Ctrl-C ends the wait.
func TestDoctorSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	p := newDaemonPair(t)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	data, err := os.ReadFile(p.configs["a"])
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(data), "peers:\n")
	if !found {
		t.Fatalf("no peers in %s", data)
	}
	path := filepath.Join(p.dir, "silent.yaml")
	text := before + fmt.Sprintf("peers:\n- {node: c, region: r-c, address: %q}\n", silent.LocalAddr().String()) + after
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var waited bool
	a := &app{stdout: writerFunc(func(b []byte) (int, error) { return len(b), nil }), stderr: writerFunc(func(b []byte) (int, error) {
		if strings.HasPrefix(string(b), "waiting for ") && strings.Contains(string(b), "peer.c.udp") { // a busy machine waits for others, too
			waited = true
			cancel()
		}
		return len(b), nil
	})}
	if code := a.run(ctx, []string{"doctor", "--config", path}); code != exitCancelled {
		t.Errorf("exit %d, want %d", code, exitCancelled)
	}
	if !waited {
		t.Error("nothing was said")
	}
}
