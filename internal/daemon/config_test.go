package daemon

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// good is a configuration that passes, with every field set.
func good() Config {
	lock := false
	return Config{
		Node:      NodeConfig{ID: "a", Region: "r"},
		Listen:    ListenConfig{Unix: "/tmp/s", GRPC: "127.0.0.1:1", QUIC: "[::1]:2", Admin: "off", Pprof: true},
		TLS:       TLSConfig{CA: "ca", Cert: "cert", Key: "key"},
		Peers:     []PeerConfig{{Node: "b", Region: "r2", Address: "b.example:7441", PriorBps: 2.5e9}, {Node: "c", Region: "r3", Address: "1.2.3.4:7441", PriorBps: -1}},
		Arena:     ArenaConfig{Dir: "/dev/shm", Bytes: 1 << 30, MaxBytes: 1 << 31, Lock: &lock, Group: 7, Keep: -1},
		Link:      LinkConfig{Stripes: 3, ConnectTimeout: time.Second, ProgressTimeout: 90 * time.Second, QueueTimeout: 2 * time.Minute, RoundTrips: 1.5, Repair: "off", Codec: "huff", MaxRate: 1e9, MaxConnections: 100},
		Tenants:   map[string]TenantConfig{"": {Weight: 0.5}, "acme": {Weight: 2, MaxRate: 5e8}},
		Migration: MigrationConfig{Deadline: time.Hour, MaxActive: 5, LeaseTTL: 1500 * time.Millisecond, CallTimeout: 2 * time.Second, Keep: 9},
		GPU:       GPUConfig{Enabled: &lock, Interval: 2 * time.Second, PrefillBytes: 1 << 30},
		Engines:   []EngineConfig{{ID: "e", MetricsURL: "http://127.0.0.1:8000/metrics", GPUs: []string{"0", "GPU-1"}}, {ID: "f", GPUs: []string{}}},
		Shadow:    true,
		StateDir:  "/state", LogLevel: "debug",
	}
}

// Every bad value is an error of its own that names the field, the value and what is allowed.
func TestConfigValidate(t *testing.T) {
	if err := good().Validate(); err != nil {
		t.Fatalf("the good configuration: %v", err)
	}
	for _, tc := range []struct {
		field string
		edit  func(*Config)
	}{
		{"node.id", func(c *Config) { c.Node.ID = "" }},
		{"node.id", func(c *Config) { c.Node.ID = "a/b" }},
		{"node.id", func(c *Config) { c.Node.ID = strings.Repeat("x", 129) }},
		{"node.region", func(c *Config) { c.Node.Region = "über" }},
		{"listen.unix", func(c *Config) { c.Listen.Unix = "relative" }},
		{"listen.unix", func(c *Config) { c.Listen.Unix = "/" + strings.Repeat("x", 103) }},
		{"listen.grpc", func(c *Config) { c.Listen.GRPC = "host" }},
		{"listen.grpc", func(c *Config) { c.Listen.GRPC = "host:" }},
		{"listen.grpc", func(c *Config) { c.Listen.GRPC = "host:70000" }},
		{"listen.admin", func(c *Config) { c.Listen.Admin = "host:http" }},
		{"listen.quic", func(c *Config) { c.Listen.QUIC = "off" }},
		{"arena.bytes", func(c *Config) { c.Arena.Bytes = -1 }},
		{"arena.bytes", func(c *Config) { c.Arena.Bytes = 1 << 32 }},
		{"arena.bytes", func(c *Config) { c.Arena.Bytes = 5 }},
		{"arena.bytes", func(c *Config) { c.Arena.Bytes = 64<<10 - 1 }},
		{"arena.keep", func(c *Config) { c.Arena.Keep = time.Millisecond }},
		{"arena.keep", func(c *Config) { c.Arena.Keep = 8761 * time.Hour }},
		{"arena.max_bytes", func(c *Config) { c.Arena.Bytes, c.Arena.MaxBytes = 5, 5 }},
		{"arena.max_bytes", func(c *Config) { c.Arena.Bytes, c.Arena.MaxBytes = -2, -1 }},
		{"arena.dir", func(c *Config) { c.Arena.Dir = "shm" }},
		{"arena.group", func(c *Config) { c.Arena.Group = -1 }},
		{"link.stripes", func(c *Config) { c.Link.Stripes = 65 }},
		{"link.codec", func(c *Config) { c.Link.Codec = "on" }},
		{"link.repair", func(c *Config) { c.Link.Repair = "on" }},
		{"link.stripes", func(c *Config) { c.Link.Stripes = -1 }},
		{"link.round_trips", func(c *Config) { c.Link.RoundTrips = math.NaN() }},
		{"link.round_trips", func(c *Config) { c.Link.RoundTrips = 101 }},
		{"link.connect_timeout", func(c *Config) { c.Link.ConnectTimeout = -time.Second }},
		{"link.progress_timeout", func(c *Config) { c.Link.ProgressTimeout = 25 * time.Hour }},
		{"link.queue_timeout", func(c *Config) { c.Link.QueueTimeout = 25 * time.Hour }},
		{"migration.deadline", func(c *Config) { c.Migration.Deadline = -1 }},
		{"migration.lease_ttl", func(c *Config) { c.Migration.LeaseTTL = 1 << 62 }},
		{"migration.call_timeout", func(c *Config) { c.Migration.CallTimeout = -1 }},
		{"migration.lease_ttl", func(c *Config) { c.Migration.LeaseTTL = 1 }},
		{"migration.lease_ttl", func(c *Config) { c.Migration.LeaseTTL = time.Second - 1 }},
		{"migration.call_timeout", func(c *Config) { c.Migration.CallTimeout = 1 }},
		{"migration.deadline", func(c *Config) { c.Migration.Deadline = 1 }},
		{"link.connect_timeout", func(c *Config) { c.Link.ConnectTimeout = 1 }},
		{"link.progress_timeout", func(c *Config) { c.Link.ProgressTimeout = 1 }},
		{"link.queue_timeout", func(c *Config) { c.Link.QueueTimeout = time.Second - 1 }},
		{"migration.max_active", func(c *Config) { c.Migration.MaxActive = 1 << 17 }},
		{"migration.keep", func(c *Config) { c.Migration.Keep = -1 }},
		{"state_dir", func(c *Config) { c.StateDir = "./state" }},
		{"log_level", func(c *Config) { c.LogLevel = "loud" }},
		{"peers[0].node", func(c *Config) { c.Peers[0].Node = "" }},
		{"peers[1].node", func(c *Config) { c.Peers[1].Node = "b" }},
		{"peers[0].node", func(c *Config) { c.Peers[0].Node = "a" }},
		{"peers[1].region", func(c *Config) { c.Peers[1].Region = " " }},
		{"peers[0].address", func(c *Config) { c.Peers[0].Address = "7441" }},
		{"peers[1].prior_bps", func(c *Config) { c.Peers[1].PriorBps = math.Inf(1) }},
		{"peers[1].prior_bps", func(c *Config) { c.Peers[1].PriorBps = 1 }},
		{"peers[1].prior_bps", func(c *Config) { c.Peers[1].PriorBps = math.NaN() }},
		{"gpu.interval", func(c *Config) { c.GPU.Interval = time.Millisecond }},
		{"gpu.interval", func(c *Config) { c.GPU.Interval = -1 }},
		{"gpu.prefill_bytes", func(c *Config) { c.GPU.PrefillBytes = -1 }},
		{"engines[1].id", func(c *Config) { c.Engines[1].ID = "a b" }},
		{"engines[1].id", func(c *Config) { c.Engines[1].ID = "e" }},
		{"engines[0].metrics_url", func(c *Config) { c.Engines[0].MetricsURL = "127.0.0.1:8000" }},
		{"engines[0].gpus[1]", func(c *Config) { c.Engines[0].GPUs[1] = "gpu0" }},
		{"engines", func(c *Config) { c.Engines = make([]EngineConfig, 1025) }},
	} {
		c := good()
		tc.edit(&c)
		err := c.WithDefaults().Validate()
		ce, ok := errors.AsType[*ConfigError](err)
		if !ok {
			t.Errorf("%s: accepted, or another error: %v", tc.field, err)
			continue
		}
		fields := configFields(err)
		if !slices.Contains(fields, tc.field) {
			t.Errorf("%s: errors name %v", tc.field, fields)
		}
		if ce.Allowed == "" || !strings.Contains(err.Error(), "must be ") {
			t.Errorf("%s: does not say what is allowed: %v", tc.field, err)
		}
	}
}

// The least of each range is accepted: what is refused is refused by its bound and by nothing else.
func TestConfigBounds(t *testing.T) {
	c := good()
	c.Arena.Bytes, c.Arena.MaxBytes = 64<<10, 64<<10
	c.Link.ConnectTimeout, c.Link.ProgressTimeout = 10*time.Millisecond, 100*time.Millisecond
	c.Migration.Deadline, c.Migration.LeaseTTL, c.Migration.CallTimeout = 100*time.Millisecond, time.Second, 10*time.Millisecond
	c.Peers[1].PriorBps = 1e3
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// A daemon whose arena.dir is not there does not start, and says what to do: an engine would find out otherwise.
func TestConfigArenaDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ dir, want string }{{filepath.Join(dir, "nowhere"), "mkdir -p " + dir}, {file, "it is a file"}} {
		c := good()
		c.Arena.Dir = tc.dir
		d, err := Open(c, Parts{})
		if ce, ok := errors.AsType[*ConfigError](err); !ok || ce.Field != "arena.dir" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want it to contain %q", tc.dir, err, tc.want)
		}
		if d != nil {
			t.Error(d.Close())
		}
	}
	c := good()
	c.Arena.Dir = dir
	if _, err := Open(c, Parts{}); err == nil || strings.Contains(err.Error(), "arena.dir") {
		t.Errorf("a directory that is there: %v, want the next fault, which is the certificate's", err)
	}
}

func configFields(err error) []string {
	var out []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		out = append(out, e.(*ConfigError).Field)
	}
	return out
}

// All violations are reported together, always in the same order.
func TestConfigErrorsAreOrdered(t *testing.T) {
	bad := Config{
		Listen: ListenConfig{Unix: "x", GRPC: "x", QUIC: "x", Admin: "x"}, Peers: []PeerConfig{{}},
		Arena: ArenaConfig{Dir: "x", Bytes: -1, MaxBytes: -1, Group: -1}, Link: LinkConfig{Stripes: -1, ConnectTimeout: -1, ProgressTimeout: -1, QueueTimeout: -1, RoundTrips: -1, Repair: "x", Codec: "x"},
		Migration: MigrationConfig{Deadline: -1, MaxActive: -1, LeaseTTL: -1, CallTimeout: -1, Keep: -1}, StateDir: "x", LogLevel: "x",
	}.WithDefaults()
	want := []string{
		"node.id", "node.region", "listen.unix", "listen.grpc", "listen.admin", "listen.quic", "arena.bytes", "arena.max_bytes", "arena.dir", "arena.group",
		"link.stripes", "link.round_trips", "link.codec", "link.repair", "link.connect_timeout", "link.progress_timeout", "link.queue_timeout", "migration.deadline", "migration.lease_ttl",
		"migration.call_timeout", "migration.max_active", "migration.keep", "state_dir", "log_level",
		"peers[0].node", "peers[0].region", "peers[0].address", "peers[0].node",
	}
	for range 20 {
		if diff := cmp.Diff(want, configFields(bad.Validate())); diff != "" {
			t.Fatalf("fields (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"tls.ca", "tls.cert", "tls.key"}, configFields(bad.validateTLS())); diff != "" {
			t.Fatalf("fields (-want +got):\n%s", diff)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	in := Config{Node: NodeConfig{ID: "a", Region: "r"}, Peers: []PeerConfig{{Node: "b", Region: "r", Address: "h:1"}}}
	c := in.WithDefaults()
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
	if in.Peers[0].PriorBps != 0 || in.Arena.Lock != nil {
		t.Error("WithDefaults changed its receiver")
	}
	lock := true
	want := Config{
		Node: in.Node, Listen: ListenConfig{Unix: "/run/kvferry/kvferry.sock", GRPC: "0.0.0.0:7440", QUIC: "0.0.0.0:7441", Admin: "127.0.0.1:7442"},
		Peers:     []PeerConfig{{Node: "b", Region: "r", Address: "h:1", PriorBps: 1e9}},
		Arena:     ArenaConfig{Dir: "/dev/shm", Bytes: 4 << 30, MaxBytes: 256 << 30, Lock: &lock, Keep: time.Hour},
		Link:      LinkConfig{ConnectTimeout: 5 * time.Second, ProgressTimeout: 10 * time.Second, QueueTimeout: 5 * time.Minute, RoundTrips: 3, Repair: "auto", Codec: "auto", MaxConnections: 4096},
		Migration: MigrationConfig{Deadline: 10 * time.Minute, MaxActive: 64, LeaseTTL: 30 * time.Second, CallTimeout: 5 * time.Second, Keep: 1024},
		GPU:       GPUConfig{Enabled: &lock, Interval: time.Second},
		Engines:   []EngineConfig{},
		Tenants:   map[string]TenantConfig{},
		StateDir:  "/var/lib/kvferry", LogLevel: "info",
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(c, c.WithDefaults()); diff != "" {
		t.Errorf("defaults of defaults differ:\n%s", diff)
	}
	if diff := cmp.Diff(good(), good().WithDefaults()); diff != "" {
		t.Errorf("given values were changed:\n%s", diff)
	}
}

// What --print-config shows is a file that gives the same configuration.
func TestConfigRoundTrip(t *testing.T) {
	for name, c := range map[string]Config{"good": good(), "defaults": Config{Node: NodeConfig{ID: "a", Region: "r"}}.WithDefaults(), "zero": {}} {
		y, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(y)
		if err != nil {
			t.Errorf("%s: %v in\n%s", name, err, y)
			continue
		}
		if diff := cmp.Diff(c.WithDefaults(), got.WithDefaults()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if name == "good" && (!strings.Contains(string(y), "1m30s") || !strings.Contains(string(y), "1.5s")) {
			t.Errorf("durations have no units:\n%s", y)
		}
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"unknown key":        {"node:\n  id: a\n  regoin: r\n", "[3:3] unknown field \"regoin\""},
		"unknown section":    {"node:\n  id: a\nlinks:\n  stripes: 2\n", "[3:1] unknown field \"links\""},
		"unknown in a list":  {"peers:\n- node: b\n  adress: h:1\n", "[3:3] unknown field \"adress\""},
		"wrong type":         {"link:\n  stripes: many\n", "[2:12]"},
		"duration, no unit":  {"link:\n  connect_timeout: soon\n", `config link.connect_timeout = soon: must be a number with a unit, for example 10s`},
		"duration in what?":  {"node: {id: a}\nmigration:\n  lease_ttl: 5\n", `config migration.lease_ttl = 5: must be`},
		"duplicate":          {"state_dir: /a\nstate_dir: /b\n", "[2:1]"},
		"not YAML":           {"node: [", "config: "},
		"not a map":          {"- a\n- b\n", "config: "},
		"too large":          {strings.Repeat("#", 1<<20+1), "must be at most 1 MiB"},
		"number for a list":  {"peers: 3\n", "[1:8]"},
		"number overflowing": {"link:\n  stripes: 99999999999999999999\n", "[2:12]"},
	} {
		_, err := ParseConfig([]byte(tc.in))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want it to contain %q", name, err, tc.want)
		}
	}
	for name, in := range map[string]string{"empty": "", "comment": "# nothing\n", "null section": "node:\n"} {
		if c, err := ParseConfig([]byte(in)); err != nil || c.Node.ID != "" {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// Whatever is in the file, there is a configuration or an error; what is accepted prints and reads back the same.
func FuzzParseConfig(f *testing.F) {
	y, err := good().YAML()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(y)
	for _, s := range []string{"", "node:\n  id: a\n", "peers:\n- node: b\n", "link: {stripes: 3, connect_timeout: 1h}", "a: &x [*x]", "? : -", "node: !!binary aGk="} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := ParseConfig(in)
		if err != nil {
			return
		}
		_ = c.WithDefaults().Validate()
		y, err := c.YAML()
		if err != nil {
			t.Fatalf("print: %v", err)
		}
		again, err := ParseConfig(y)
		if err != nil {
			t.Fatalf("%v in what was printed:\n%s", err, y)
		}
		if diff := cmp.Diff(c.WithDefaults(), again.WithDefaults(), cmp.Comparer(func(a, b float64) bool { return a == b || a != a && b != b })); diff != "" {
			t.Errorf("(-read +printed and read):\n%s", diff)
		}
	})
}
