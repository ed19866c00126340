package doctor_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
	"github.com/kvferry/kvferry/nvml"
	"github.com/kvferry/kvferry/transfer"
)

// scene is a node that is well, with a peer on a real socket: the tests break one thing each.
type scene struct {
	t     *testing.T
	dir   string
	ca    *certs.CA
	files map[string]string            // below /proc and /sys
	fs    map[string]doctor.Filesystem // by path
	setup doctor.Setup
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, dir: t.TempDir()}
	s.ca = newCA(t)
	if err := s.ca.Save(s.dir); err != nil {
		t.Fatal(err)
	}
	s.save("a", issue(t, s.ca, "r-a", "a"))
	arena, state := filepath.Join(s.dir, "arena"), filepath.Join(s.dir, "state")
	for _, d := range []string{arena, state} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	peer, ports := s.peer(s.ca, "r-b", "b"), freeTCPs(t) // first: a port that is free is not the peer's, then
	s.setup = doctor.Setup{
		Configured: true, ConfigPath: "/etc/kvferry/kvferryd.yaml", DaemonAddr: "unix:///run/kvferry/kvferry.sock",
		Config: daemon.Config{
			Node: daemon.NodeConfig{ID: "a", Region: "r-a"},
			// A port that is free at this moment: nothing else of this test binds it.
			Listen:   daemon.ListenConfig{QUIC: freePort(t), GRPC: ports[0], Admin: ports[1]},
			TLS:      daemon.TLSConfig{CA: filepath.Join(s.dir, "ca.crt"), Cert: filepath.Join(s.dir, "a.crt"), Key: filepath.Join(s.dir, "a.key")},
			Arena:    daemon.ArenaConfig{Dir: arena, Bytes: 1 << 30},
			StateDir: state,
			Peers:    []daemon.PeerConfig{{Node: "b", Region: "r-b", Address: peer}},
		},
		Daemon:  &doctor.Daemon{Node: "a", Region: "r-a", Incarnation: "i-1", Version: "test"},
		Call:    []byte("are you well?"),
		Engines: []string{serveText(t, engineText)},
	}
	s.files = map[string]string{
		"/proc/sys/net/core/rmem_max":    "8388608\n",
		"/proc/sys/net/core/wmem_max":    "8388608\n",
		"/proc/self/status":              "Name:\tkvferry\nCapInh:\t0000000000000000\nCapEff:\t0000000000000000\n",
		"/proc/self/limits":              limits("unlimited"),
		clockDir + "current_clocksource": "tsc\n",
	}
	s.fs = map[string]doctor.Filesystem{
		arena: {Type: "tmpfs", Memory: true, Free: 8 << 30},
		state: {Type: "ext4", Free: 8 << 30},
	}
	s.setup.Host = doctor.Host{
		ReadFile: func(path string) ([]byte, error) {
			if text, known := s.files[path]; known {
				return []byte(text), nil
			}
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		},
		Filesystem: func(path string) (doctor.Filesystem, error) {
			if f, known := s.fs[path]; known {
				return f, nil
			}
			return doctor.Filesystem{}, &os.PathError{Op: "statfs", Path: path, Err: os.ErrNotExist}
		},
		GPU: func(context.Context) (nvml.Snapshot, error) { return twoGPUs(), nil },
	}
	return s
}

// twoGPUs are a whole one and one with a MIG instance.
func twoGPUs() nvml.Snapshot {
	return nvml.Snapshot{State: nvml.StateAvailable, Driver: "1", GPUs: []nvml.GPU{
		{Index: 0, UUID: "GPU-a", State: nvml.StateAvailable},
		{Index: 1, UUID: "GPU-b", State: nvml.StateAvailable},
		{Index: 1, UUID: "MIG-c", Parent: "GPU-b", State: nvml.StateAvailable},
	}}
}

// freeTCPs are two ports that are free at this moment, and not the same.
func freeTCPs(t *testing.T) [2]string {
	t.Helper()
	a, b := listenTCP(t), listenTCP(t)
	defer func() { _, _ = a.Close(), b.Close() }()
	return [2]string{a.Addr().String(), b.Addr().String()}
}

// freeTCP is a port that is free at this moment.
func freeTCP(t *testing.T) string {
	t.Helper()
	l := listenTCP(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const (
	clockDir   = "/sys/devices/system/clocksource/clocksource0/"
	engineText = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 1\nvllm:num_requests_waiting{model_name=\"m\"} 0\n"
)

func limits(memlock string) string {
	return fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \nMax processes             1                    1                    processes \n"+
		"Max locked memory         %-20s unlimited            bytes     \n", memlock)
}

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *certs.CA, region, node string) *certs.Pair {
	t.Helper()
	p, err := ca.Issue(region, node)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	return c.LocalAddr().String()
}

// save writes a pair as the scene's files name.crt and name.key, over what is there.
func (s *scene) save(name string, p *certs.Pair) {
	s.t.Helper()
	key, err := p.KeyPEM()
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(name+".crt", p.CertPEM(), 0o644)
	s.write(name+".key", key, 0o600)
}

func (s *scene) write(name string, data []byte, mode os.FileMode) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	_ = os.Remove(path) // so that mode takes effect
	if err := os.WriteFile(path, data, mode); err != nil {
		s.t.Fatal(err)
	}
}

// peer starts an agent that answers calls, and returns its address.
func (s *scene) peer(ca *certs.CA, region, node string) string {
	s.t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	pair := issue(s.t, ca, region, node)
	agent, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(node), Conn: conn,
		TLS: &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13},
		Identify: func(c *x509.Certificate) (transfer.PeerID, error) {
			_, node, err := certs.Identity(c)
			return transfer.PeerID(node), err
		},
		Handler: func(_ context.Context, from transfer.Peer, payload []byte) ([]byte, error) {
			if from != (transfer.Peer{ID: "a", Incarnation: "i-1"}) {
				s.t.Errorf("a call of %+v, want the running daemon's incarnation", from)
			}
			return payload, nil
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = agent.Close() })
	return conn.LocalAddr().String()
}

func serveText(t *testing.T, text string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/metrics"
}

// run returns the findings by name.
func (s *scene) run() (map[string]doctor.Finding, []doctor.Finding) {
	s.t.Helper()
	list := doctor.Run(s.t.Context(), doctor.Checks(s.setup), doctor.Options{})
	byName := map[string]doctor.Finding{}
	for _, f := range list {
		if _, twice := byName[f.Name]; twice || f.Name == "" {
			s.t.Errorf("name %q is empty or there twice", f.Name)
		}
		if f.Detail == "" || (f.Status >= doctor.Warn) && f.Fix == "" {
			s.t.Errorf("%s: status %v with detail %q and fix %q", f.Name, f.Status, f.Detail, f.Fix)
		}
		byName[f.Name] = f
	}
	return byName, list
}

func TestAllWell(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	byName, list := s.run()
	for _, f := range list {
		if want := doctor.OK; f.Name == "peer.b.return" {
			if f.Status != doctor.Unknown || !strings.Contains(f.Fix, "kvferry doctor") {
				t.Errorf("%+v, want unknown: this side can't prove it", f)
			}
		} else if f.Status != want {
			t.Errorf("%s: %v: %s (%s)", f.Name, f.Status, f.Detail, f.Fix)
		}
	}
	if got := doctor.Worst(list); got != doctor.OK {
		t.Errorf("worst is %v", got)
	}
	for name, want := range map[string]string{
		"peer.b.udp": "answers in ", "peer.b.handshake": "proved to be b; round trip ", "engine.1": "vllm: running 1", "certificate.identity": "node a of region r-a",
	} {
		if !strings.Contains(byName[name].Detail, want) {
			t.Errorf("%s: %q, want %q in it", name, byName[name].Detail, want)
		}
	}
}

// Each broken set-up is named by exactly one finding that is not well, with its fix; what can't be looked at for that
// reason is unknown and points there.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fault   func(*scene)
		want    string // the check
		status  doctor.Status
		detail  string
		fix     string
		unknown []string // besides peer.b.return
	}{
		{
			"wrong CA", func(s *scene) { s.write("ca.crt", newCA(s.t).CertPEM(), 0o644) },
			"certificate.authority", doctor.Fail, "certificate signed by unknown authority", "kvferry certs issue --dir DIR --region r-a --node a",
			[]string{"peer.b.handshake"},
		},
		{
			"wrong CA at the peer", func(s *scene) { s.setup.Config.Peers[0].Address = s.peer(newCA(s.t), "r-b", "b") },
			"peer.b.handshake", doctor.Fail, "is refused: x509: certificate signed by unknown authority", "kvferry certs issue --dir DIR --region r-b --node b", nil,
		},
		{
			"expired certificate", func(s *scene) { s.saveExpired() },
			"certificate.expiry", doctor.Fail, "expired at 2020-02-01", "kvferry certs issue --dir DIR --region r-a --node a",
			[]string{"peer.b.handshake"},
		},
		{
			"certificate of another node", func(s *scene) { s.save("a", issue(s.t, s.ca, "r-a", "c")) },
			"certificate.identity", doctor.Fail, "is of node c of region r-a; the configuration says node a", "set node.id to c",
			[]string{"peer.b.handshake"},
		},
		{
			"another node at the peer's address", func(s *scene) { s.setup.Config.Peers[0].Address = s.peer(s.ca, "r-b", "c") },
			"peer.b.handshake", doctor.Fail, `wanted "b", the certificate names "c"`, "set the address of b in peers", nil,
		},
		{
			"peer of another region", func(s *scene) { s.setup.Config.Peers[0].Region = "r-x" },
			"peer.b.handshake", doctor.Fail, "is of region r-b by its certificate, and of r-x", "set the region of b in peers to r-b", nil,
		},
		{
			"nothing listens at the peer", func(s *scene) { s.setup.Config.Peers[0].Address = freePort(s.t) },
			"peer.b.udp", doctor.Fail, "the port is closed", "systemctl start kvferryd",
			[]string{"peer.b.handshake"},
		},
		{
			"UDP is swallowed", func(s *scene) { s.setup.Config.Peers[0].Address = swallow(s.t) },
			"peer.b.udp", doctor.Fail, "no answer to 4 datagrams", "open UDP port",
			[]string{"peer.b.handshake"},
		},
		{
			"tiny tmpfs", func(s *scene) {
				s.fs[s.setup.Config.Arena.Dir] = doctor.Filesystem{Type: "tmpfs", Memory: true, Free: 64 << 20}
			},
			"arena.space", doctor.Fail, "has 64 MiB free; an arena has 1 GiB", "mount -o remount,size=1024M", nil,
		},
		{
			"arena on disk", func(s *scene) {
				s.fs[s.setup.Config.Arena.Dir] = doctor.Filesystem{Type: "ext4", Free: 8 << 30}
			},
			"arena.dir", doctor.Fail, "is on ext4, not in memory", "set arena.dir to",
			[]string{"arena.space"},
		},
		{
			"small memlock", func(s *scene) { s.files["/proc/self/limits"] = limits("65536") },
			"host.memlock", doctor.Warn, "may lock 64 KiB, and an arena has 1 GiB", "LimitMEMLOCK=infinity", nil,
		},
		{
			"state_dir can't be written", func(s *scene) { s.setup.Config.StateDir = filepath.Join(s.dir, "a.crt", "state") },
			"state_dir", doctor.Fail, "not a directory", "set state_dir to", nil,
		},
		{
			"state_dir in memory", func(s *scene) {
				s.fs[s.setup.Config.StateDir] = doctor.Filesystem{Type: "tmpfs", Memory: true, Free: 8 << 30}
			},
			"state_dir", doctor.Warn, "is on tmpfs", "set state_dir to", nil,
		},
		{
			"state_dir is nearly full", func(s *scene) {
				s.fs[s.setup.Config.StateDir] = doctor.Filesystem{Type: "ext4", Free: 64<<20 - 1}
			},
			"state_dir", doctor.Warn, "is nearly full, 64 MiB are left", "df -h ", nil,
		},
		{
			"state_dir is full", func(s *scene) {
				s.fs[s.setup.Config.StateDir] = doctor.Filesystem{Type: "tmpfs", Memory: true, Free: 1<<20 - 1}
			},
			"state_dir", doctor.Fail, "Then hand-overs are refused", "set state_dir to another disk", nil,
		},
		{
			"quota of state_dir is used up", func(s *scene) {
				s.setup.Host.Room = func(dir string, bytes int64) error {
					if dir != s.setup.Config.StateDir || bytes != 1<<20 {
						s.t.Errorf("%d bytes in %s", bytes, dir)
					}
					return syscall.EDQUOT
				}
			},
			"state_dir", doctor.Fail, "quota exceeded", "df -h ", nil,
		},
		{
			"an arena's memory is gone", func(s *scene) { s.setup.Daemon.Broken = []string{"vllm-0"} },
			"arena.files", doctor.Fail, "the memory of engine vllm-0 is gone", "restart engine vllm-0: it registers again", nil,
		},
		{
			"endpoint that is no engine", func(s *scene) { s.setup.Engines[0] = serveText(s.t, "# TYPE go_goroutines gauge\ngo_goroutines 7\n") },
			"engine.1", doctor.Fail, "not the metrics of one vLLM or SGLang engine", "--enable-metrics", nil,
		},
		{
			"engine is down", func(s *scene) { s.setup.Engines[0] = "http://" + freePort(s.t) },
			"engine.1", doctor.Fail, "connection refused", "check the address", nil,
		},
		{
			"gRPC address of another host", func(s *scene) { s.setup.Config.Listen.GRPC = "192.0.2.1:7440" },
			"listen.grpc", doctor.Fail, "TCP 192.0.2.1:7440", "set listen.grpc to 0.0.0.0:7440", nil,
		},
		{
			"admin port of the system's choice", func(s *scene) { s.setup.Config.Listen.Admin = "127.0.0.1:0" },
			"listen.admin", doctor.Warn, "a port of the system's choice", "127.0.0.1:7442", nil,
		},
		{
			"the daemon has another admin port", func(s *scene) {
				s.setup.Config.Listen.GRPC, s.setup.Config.Listen.QUIC = "off", swallow(s.t)
				s.setup.Daemon.PID = os.Getpid()
				for _, name := range []string{"status", "limits"} {
					s.files[fmt.Sprintf("/proc/%d/%s", os.Getpid(), name)] = s.files["/proc/self/"+name]
				}
			},
			"listen.admin", doctor.Warn, "it runs with another listen.admin", "restart kvferryd", nil,
		},
		{
			"engine on a GPU that is not there", func(s *scene) {
				s.setup.Config.Engines = []daemon.EngineConfig{{ID: "vllm-0", GPUs: []string{"0", "GPU-b", "MIG-c", "2", "GPU-x"}}}
			},
			"engine.vllm-0.gpus", doctor.Fail, "names 2, GPU-x, and this host has 0 GPU-a, 1 GPU-b, MIG-c", "nvidia-smi -L", nil,
		},
		{
			"engine on a GPU that is lost", func(s *scene) {
				s.setup.Config.Engines = []daemon.EngineConfig{{ID: "vllm-0", GPUs: []string{"MIG-c"}}}
				s.setup.Host.GPU = func(context.Context) (nvml.Snapshot, error) {
					snap := twoGPUs()
					snap.GPUs[2].State = nvml.StateLost
					return snap, nil
				}
			},
			"engine.vllm-0.gpus", doctor.Warn, "MIG-c is lost", "nvidia-smi -q", nil,
		},
		{
			"engine's GPUs that are not read", func(s *scene) {
				s.setup.Config.Engines = []daemon.EngineConfig{{ID: "vllm-0", GPUs: []string{"0"}}}
				s.setup.Config.GPU.Enabled = new(bool)
			},
			"engine.vllm-0.gpus", doctor.Warn, "gpu.enabled is false", "set gpu.enabled to true", nil,
		},
		{
			"configured engine is down", func(s *scene) {
				s.setup.Config.Engines = []daemon.EngineConfig{{ID: "vllm-0", MetricsURL: "http://" + freePort(s.t)}}
			},
			"engine.vllm-0", doctor.Fail, "connection refused", "check the address", nil,
		},
		{
			"small receive buffers", func(s *scene) { s.files["/proc/sys/net/core/rmem_max"] = "212992\n" },
			"host.udp_buffers", doctor.Warn, "net.core.rmem_max is 212992 bytes", "sysctl -w net.core.rmem_max=8388608", nil,
		},
		{
			"slow clock", func(s *scene) { s.files[clockDir+"current_clocksource"] = "hpet\n" },
			"host.clock", doctor.Warn, "hpet", "current_clocksource", nil,
		},
		{
			"key that others may read", func(s *scene) { _ = os.Chmod(s.setup.Config.TLS.Key, 0o644) },
			"certificate.key", doctor.Warn, "mode 0644", "chmod 600", nil,
		},
		{
			"key of another certificate", func(s *scene) {
				key, _ := issue(s.t, s.ca, "r-a", "a").KeyPEM()
				s.write("a.key", key, 0o600)
			},
			"certificate.key", doctor.Fail, "private key does not match", "set tls.cert and tls.key",
			[]string{"peer.b.handshake"},
		},
		{
			"key is not there", func(s *scene) { _ = os.Remove(s.setup.Config.TLS.Key) },
			"certificate.key", doctor.Fail, "no such file", "correct the path",
			[]string{"peer.b.handshake"},
		},
		{
			"key is no key", func(s *scene) { s.setup.Config.TLS.Key = s.setup.Config.TLS.Cert },
			"certificate.key", doctor.Fail, "a.crt with ", "set tls.cert and tls.key",
			[]string{"peer.b.handshake"},
		},
		{
			"certificate is none", func(s *scene) { s.setup.Config.TLS.Cert = s.setup.Config.TLS.Key },
			"certificate.authority", doctor.Fail, "a.key holds no certificate", "set tls.cert to the .crt",
			[]string{"certificate.expiry", "certificate.identity", "certificate.key", "peer.b.handshake"},
		},
		{
			"certificate is not there", func(s *scene) { _ = os.Remove(s.setup.Config.TLS.Cert) },
			"certificate.authority", doctor.Fail, "no such file", "correct the path",
			[]string{"certificate.expiry", "certificate.identity", "certificate.key", "peer.b.handshake"},
		},
		{
			"listens on loopback, peer elsewhere", func(s *scene) {
				s.setup.Config.Listen.QUIC = freePort(s.t)
				s.setup.Config.Peers[0].Address = "192.0.2.1:1" // TEST-NET-1: nobody is there
				s.setup.Peers = []string{"b"}
			},
			"listen.quic", doctor.Fail, "is reached from this host only", "set listen.quic to 0.0.0.0:7441",
			[]string{"peer.b.udp", "peer.b.handshake"},
		},
		{
			"daemon does not run", func(s *scene) {
				s.setup.Daemon, s.setup.DaemonErr = nil, &net.OpError{Op: "dial", Net: "unix", Err: os.ErrNotExist}
				s.setup.Config.Peers = nil
			},
			"daemon", doctor.Warn, "no daemon answers", "systemctl start kvferryd", nil,
		},
		{
			"daemon may not be asked", func(s *scene) {
				s.setup.Daemon, s.setup.DaemonErr = nil, &net.OpError{Op: "dial", Net: "unix", Err: os.ErrPermission}
				s.setup.Config.Peers = nil
			},
			"daemon", doctor.Fail, "may not be opened", "sudo kvferry doctor", nil,
		},
		{
			"bad configuration", func(s *scene) { s.setup.Config.Link.Stripes = 65 },
			"config", doctor.Fail, "link.stripes = 65", "change link.stripes: want 1 to 64", nil,
		},
		{
			"GPU driver hangs", func(s *scene) {
				s.setup.Host.GPU = func(context.Context) (nvml.Snapshot, error) {
					return nvml.Snapshot{State: nvml.StateHung, Reason: "no answer"}, nil
				}
			},
			"gpu", doctor.Warn, "hung", "nvidia-smi", nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			c.fault(s)
			byName, list := s.run()
			f := byName[c.want]
			if f.Status != c.status || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%s is %v: %q, fix %q; want %v with %q and %q", c.want, f.Status, f.Detail, f.Fix, c.status, c.detail, c.fix)
			}
			for _, f := range list {
				// A route to nowhere may be refused at once or swallowed, depending on the host.
				elsewhere := c.want == "listen.quic" && f.Name == "peer.b.udp"
				switch {
				case f.Name == c.want || f.Name == "peer.b.return" || elsewhere:
				case slices.Contains(c.unknown, f.Name):
					if f.Status != doctor.Unknown || !strings.Contains(f.Detail, "see ") {
						t.Errorf("%s is %v: %s; want unknown and where to look", f.Name, f.Status, f.Detail)
					}
				case f.Status != doctor.OK:
					t.Errorf("%s is %v too: %s", f.Name, f.Status, f.Detail)
				}
			}
			if got := doctor.Worst(list); got != c.status && c.want != "listen.quic" {
				t.Errorf("worst is %v, want %v", got, c.status)
			}
		})
	}
}

// saveExpired gives the scene an authority of long ago and a certificate of it that ended in 2020.
func (s *scene) saveExpired() {
	s.t.Helper()
	begin, end := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2020, 2, 1, 0, 0, 0, 0, time.UTC)
	sign := func(c, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			s.t.Fatal(err)
		}
		if by == nil {
			parent, by = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
		if err != nil {
			s.t.Fatal(err)
		}
		out, err := x509.ParseCertificate(der)
		if err != nil {
			s.t.Fatal(err)
		}
		return out, key
	}
	ca, caKey := sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: begin, NotAfter: time.Now().Add(time.Hour * 24 * 365),
	}, nil, nil)
	leaf, key := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{{Scheme: "spiffe", Host: "kvferry", Path: "/region/r-a/node/a"}}, NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o644)
	s.write("a.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o644)
	s.write("a.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// swallow is a socket that takes datagrams and answers none, as a firewall does that drops.
func swallow(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}

// A policy file is read as the daemon reads it, where one is named.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	if byName, _ := s.run(); byName["policy"].Name != "" {
		t.Error("there is a check of a policy that is not named")
	}
	const rules = "version: 1\nrules: [{name: a, regions: [\"*\"], tenants: [\"*\"], decision: allow}]\n"
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       doctor.Status
		detail     string
	}{
		{"good", rules, 0o600, doctor.OK, "1 rules"},
		{"empty", "version: 1\n", 0o600, doctor.Warn, "nobody may pull"},
		{"open", rules, 0o666, doctor.Warn, "mode 0666"},
		{"bad", "version: 3\n", 0o600, doctor.Fail, "policy version = 3: must be 1"},
		{"gone", "", 0, doctor.Fail, "no such file"},
	} {
		s.setup.Config.Policy = filepath.Join(t.TempDir(), "policy.yaml")
		if c.mode != 0 {
			if err := errors.Join(os.WriteFile(s.setup.Config.Policy, []byte(c.text), 0o600), os.Chmod(s.setup.Config.Policy, c.mode)); err != nil {
				t.Fatal(err)
			}
		}
		byName, _ := s.run()
		if f := byName["policy"]; f.Status != c.want || !strings.Contains(f.Detail, c.detail) || c.want != doctor.OK && f.Fix == "" {
			t.Errorf("%s: %+v, want %v with %q", c.name, f, c.want, c.detail)
		}
	}
}

// A certificate warns two weeks before its end, and so does its authority.
func TestExpirySoon(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, c := range []struct {
		before time.Duration // of the certificate's end
		want   doctor.Status
	}{{15 * 24 * time.Hour, doctor.OK}, {13 * 24 * time.Hour, doctor.Warn}, {time.Minute, doctor.Warn}, {-time.Minute, doctor.Fail}, {2 * 365 * 24 * time.Hour, doctor.Fail}} {
		end := time.Now().Add(certs.NodeValidity)
		s.setup.Host.Now = func() time.Time { return end.Add(-c.before) }
		byName, _ := s.run()
		if f := byName["certificate.expiry"]; f.Status != c.want {
			t.Errorf("%v before the end: %v: %s", c.before, f.Status, f.Detail)
		}
	}
}

// Peers of the running daemon are looked at when there is no configuration.
func TestWithoutConfiguration(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	address := s.setup.Config.Peers[0].Address
	s.setup.Configured, s.setup.Config = false, daemon.Config{}
	s.setup.Daemon.Links = []doctor.Link{{Node: "b", Address: address, Connected: true}, {Node: "x", Error: "only it dials"}}
	byName, _ := s.run()
	got := map[string]doctor.Status{}
	for _, n := range []string{"config", "certificate.authority", "certificate.key", "peer.b.udp", "peer.b.handshake", "daemon"} {
		got[n] = byName[n].Status
	}
	want := map[string]doctor.Status{"config": doctor.Unknown, "certificate.authority": doctor.Unknown, "certificate.key": doctor.Unknown, "peer.b.udp": doctor.OK, "peer.b.handshake": doctor.Unknown, "daemon": doctor.OK}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, there := byName["peer.x.udp"]; there {
		t.Error("a peer without an address can't be looked at")
	}
	if !strings.Contains(byName["peer.b.udp"].Detail, "the daemon's link is up") {
		t.Error(byName["peer.b.udp"].Detail)
	}
}

// A file that can't be read leaves everything that rests on it unknown.
func TestUnreadableConfiguration(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.setup.ConfigErr = fmt.Errorf("unknown field \"nod\"")
	byName, list := s.run()
	if f := byName["config"]; f.Status != doctor.Fail || !strings.Contains(f.Detail, "nod") {
		t.Errorf("%+v", f)
	}
	for _, f := range list {
		if f.Status == doctor.Warn || f.Status == doctor.Fail && f.Name != "config" {
			t.Errorf("%+v", f)
		}
	}
	for _, n := range []string{"certificate.authority", "certificate.key", "arena.space", "state_dir", "host.memlock"} {
		if byName[n].Status != doctor.Unknown {
			t.Errorf("%+v", byName[n])
		}
	}
}

// While a daemon that can't be asked holds the port, nothing is dialled under its name: peers would end its links.
func TestNoConnectionUnderAnothersName(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	conn, err := net.ListenPacket("udp", s.setup.Config.Listen.QUIC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s.setup.Daemon, s.setup.DaemonErr = nil, os.ErrNotExist
	byName, _ := s.run()
	if f := byName["peer.b.handshake"]; f.Status != doctor.Unknown || !strings.Contains(f.Detail, "would end its links") {
		t.Errorf("%+v", f)
	}
	if f := byName["listen.quic"]; f.Status != doctor.Fail || !strings.Contains(f.Fix, "ss -lunp") {
		t.Errorf("%+v", f)
	}
	if f := byName["peer.b.udp"]; f.Status != doctor.OK {
		t.Errorf("%+v", f)
	}
}

// A daemon on this host is judged by its own limits, and by what it could not lock.
func TestMemlockOfTheDaemon(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.setup.Daemon.PID = 42
	s.files["/proc/42/status"], s.files["/proc/42/limits"] = "CapEff:\t0000000000000000\n", limits("8388608")
	byName, _ := s.run()
	if f := byName["host.memlock"]; f.Status != doctor.Warn || !strings.Contains(f.Detail, "the daemon (pid 42) may lock 8 MiB") {
		t.Errorf("%+v", f)
	}
	s.files["/proc/42/status"] = "CapEff:\t0000000000004000\n"
	byName, _ = s.run()
	if f := byName["host.memlock"]; f.Status != doctor.OK || !strings.Contains(f.Detail, "CAP_IPC_LOCK") {
		t.Errorf("%+v", f)
	}
	s.setup.Daemon.PinNotes = []string{"e1: cannot allocate memory"}
	byName, _ = s.run()
	if f := byName["host.memlock"]; f.Status != doctor.Warn || !strings.Contains(f.Detail, "e1: cannot allocate memory") {
		t.Errorf("%+v", f)
	}
	off := false
	s.setup.Config.Arena.Lock = &off
	byName, _ = s.run()
	if f := byName["host.memlock"]; f.Status != doctor.OK {
		t.Errorf("%+v", f)
	}
}

// Arenas that exist are room that arenas may have.
func TestSpaceCountsArenas(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dir := s.setup.Config.Arena.Dir
	for _, c := range []struct {
		free, arenas, most int64
		want               doctor.Status
	}{{1 << 30, 0, 0, doctor.OK}, {1<<30 - 1, 0, 0, doctor.Fail}, {0, 1 << 30, 0, doctor.OK}, {1 << 30, 0, 2 << 30, doctor.Warn}, {1 << 30, 1 << 30, 2 << 30, doctor.OK}, {-1, 0, 2 << 40, doctor.OK}} {
		s.fs[dir] = doctor.Filesystem{Type: "tmpfs", Memory: true, Free: c.free}
		s.setup.Daemon.ArenaBytes, s.setup.Config.Arena.MaxBytes = c.arenas, c.most
		byName, _ := s.run()
		if f := byName["arena.space"]; f.Status != c.want {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}
