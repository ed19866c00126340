package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/transfer"
)

// Config is everything kvferryd can be told. Zero means the documented default everywhere; negative means off where a
// field says so. It is read from one YAML file (unknown keys are errors) and overridden by flags.
type Config struct {
	// Node is this daemon's identity.
	Node NodeConfig `yaml:"node"`
	// Listen is where it answers.
	Listen ListenConfig `yaml:"listen"`
	// TLS is its certificate; the CA also decides which peers and clients are let in.
	TLS TLSConfig `yaml:"tls"`
	// Peers are the daemons it may pull from. A peer that is not listed may still pull from this one if the CA vouches for it.
	Peers []PeerConfig `yaml:"peers"`
	// Arena bounds the memory given to engines.
	Arena ArenaConfig `yaml:"arena"`
	// Link shapes the QUIC link to each peer.
	Link LinkConfig `yaml:"link"`
	// Tenants say how migrations out of this node count against each other, by tenant; "" is the default tenant. One that is
	// not listed has weight 1 and no bound.
	Tenants map[string]TenantConfig `yaml:"tenants"`
	// Policy is the policy file: which regions may pull which tenants, who may call over TCP, what tenants may take up
	// (docs/policy.md). With one, what it does not allow is denied. It is read again when it changes. Default "": none, and any node
	// of the CA may pull, any certificate of it call.
	Policy string `yaml:"policy"`
	// AuditLog is a file to which a line of JSON is appended for each grant and refusal, mode 0600. Default "": the lines are in the
	// daemon's log.
	AuditLog string `yaml:"audit_log"`
	// Migration bounds migrations into this node.
	Migration MigrationConfig `yaml:"migration"`
	// GPU says how this host's GPUs are read.
	GPU GPUConfig `yaml:"gpu"`
	// Engines say where local engines' load is read and which GPUs they use. An engine need not be listed to register; one
	// that is not has an unknown load.
	Engines []EngineConfig `yaml:"engines"`
	// Shadow plans every migration that is asked for, logs and remembers the plan, and moves nothing: each ends in REDIRECT, and its
	// session stays where it is. Other nodes may still pull from this one. Default false.
	Shadow bool `yaml:"shadow"`
	// StateDir holds the session directory (sessions.db), what was measured of the paths to peers (paths.json) and of the engines' prefill
	// (calibration.json), and the plans of past migrations (plans.pb). Default "/var/lib/kvferry". It must survive restarts: forwarding
	// records are in it.
	StateDir string `yaml:"state_dir"`
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `yaml:"log_level"`
}

// NodeConfig names the node.
type NodeConfig struct {
	// ID is unique in the fleet: 1 to 128 of [a-zA-Z0-9._-]. Required; must equal the certificate's.
	ID string `yaml:"id"`
	// Region is the region's id: 1 to 128 of [a-zA-Z0-9._-]. Required; must equal the certificate's.
	Region string `yaml:"region"`
}

// ListenConfig is where the daemon answers.
type ListenConfig struct {
	// Unix is the socket for engines and local clients. Default "/run/kvferry/kvferry.sock".
	Unix string `yaml:"unix"`
	// AllowUIDs are the user ids whose processes may call over the unix socket, beside the daemon's own and 0; at most 1024. Default
	// empty: all that the socket's mode (0660) and group let in.
	AllowUIDs []int `yaml:"allow_uids"`
	// GRPC is the TCP address for proxies and operators, mutual TLS. Default "0.0.0.0:7440"; "off" for none.
	GRPC string `yaml:"grpc"`
	// QUIC is the UDP address for peers. Default "0.0.0.0:7441".
	QUIC string `yaml:"quic"`
	// Admin is the HTTP address of /metrics, /healthz and /readyz. Default "127.0.0.1:7442"; "off" for none.
	Admin string `yaml:"admin"`
	// Pprof serves /debug/pprof on the admin address. Default false.
	Pprof bool `yaml:"pprof"`
}

// TLSConfig names PEM files.
type TLSConfig struct {
	// CA is the certificate authority of the fleet.
	CA string `yaml:"ca"`
	// Cert is this node's certificate.
	Cert string `yaml:"cert"`
	// Key is its private key.
	Key string `yaml:"key"`
}

// PeerConfig is one daemon to pull from.
type PeerConfig struct {
	// Node is its node id.
	Node string `yaml:"node"`
	// Region is its region id.
	Region string `yaml:"region"`
	// Address is its QUIC address, host:port.
	Address string `yaml:"address"`
	// PriorBps is the goodput assumed until the link is measured, 1e3 to 1e15 bit/s. Default 1e9; negative: none, so that
	// fetch is not chosen until measured.
	PriorBps float64 `yaml:"prior_bps"`
}

// ArenaConfig bounds the memory given to engines.
type ArenaConfig struct {
	// Dir is a memory filesystem; it must exist when the daemon starts. Default "/dev/shm".
	Dir string `yaml:"dir"`
	// Bytes is the arena's size when an engine does not ask for one, at least 64 KiB. Default 4 GiB.
	Bytes int64 `yaml:"bytes"`
	// MaxBytes bounds what engines may ask for, all arenas together; at least 64 KiB. Default 256 GiB.
	MaxBytes int64 `yaml:"max_bytes"`
	// Lock locks arenas in memory as far as RLIMIT_MEMLOCK allows. Default true; set false to leave them pageable.
	Lock *bool `yaml:"lock"`
	// Group is the numeric group of arena files and of the unix socket. Default 0: the daemon's own group.
	Group int `yaml:"group"`
	// Keep is how long, once the daemon is back, the arena of an engine stays that does not register again, 1s to 8760h. Arenas outlast the
	// daemon, however it ends, and an engine that registers again with the same layout and size finds its blocks. A daemon that is not started again leaves its arenas
	// in dir, where they take their memory: remove kvferry-NODE@* there; `kvferry doctor` lists them. Default 1h. Negative: arenas end with the daemon.
	Keep time.Duration `yaml:"keep"`
}

// LinkConfig shapes the link to each peer.
type LinkConfig struct {
	// Stripes is the number of QUIC connections a link, 1 to 64. Default 0: as many as the path needs.
	Stripes int `yaml:"stripes"`
	// ConnectTimeout bounds dialling a peer, 10ms to 24h. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// ProgressTimeout ends a transfer that moves no page for so long, 100ms to 24h. Default 10s.
	ProgressTimeout time.Duration `yaml:"progress_timeout"`
	// QueueTimeout ends a transfer that its source has wait its turn for so long while none of its pages comes, 1s to 24h: waiting is
	// not a lack of progress. Default 5m.
	QueueTimeout time.Duration `yaml:"queue_timeout"`
	// RoundTrips is what the planner charges a migration in round trips. Default 3.
	RoundTrips float64 `yaml:"round_trips"`
	// Repair is "auto" for parity beside the packets where the path loses some, as much as it loses, or "off". Both ends must
	// have it on. Default "auto".
	Repair string `yaml:"repair"`
	// Codec says how pages that leave here are coded, without loss: "auto" where that makes a fetch faster, by what the link carries and
	// the pages lose; "off"; or the name of one, for all: "huff", "split4" (BF16), "huff16" (FP16), "huff8" (FP8), "zstd". The peer
	// must be able to decode it. Default "auto".
	Codec string `yaml:"codec"`
	// MaxRate bounds what is sent to each peer, page bytes a second as they travel, up to 1e15. Default 0: no bound.
	MaxRate int64 `yaml:"max_rate"`
	// MaxConnections bounds the connections that peers have dialled here, all together, 1 to 65536; one peer has at most 256, and a
	// link that it dials takes 1 to 64. Default 4096.
	MaxConnections int `yaml:"max_connections"`
}

// repairAuto is the other value of LinkConfig.Repair.
const repairAuto = "auto"

// MigrationConfig bounds migrations.
type MigrationConfig struct {
	// Deadline is given to a migration whose caller names none, 100ms to 24h. Default 10m.
	Deadline time.Duration `yaml:"deadline"`
	// MaxActive is how many may run at once; more are refused. Default 64.
	MaxActive int `yaml:"max_active"`
	// LeaseTTL is how long an offered block is held without progress or renewal, 1s to 24h: a puller renews it over the link.
	// Default 30s.
	LeaseTTL time.Duration `yaml:"lease_ttl"`
	// CallTimeout bounds one control call to a peer, 10ms to 24h. Default 5s.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// Keep is how many ended migrations are remembered for GetMigration and re-attaching, and how many plans beside what came of
	// them for ListPlans. Default 1024.
	Keep int `yaml:"keep"`
}

// GPUConfig says how this host's NVIDIA GPUs are read.
type GPUConfig struct {
	// Enabled reads them. Default true: a host without a driver says so in its status and costs nothing. Set false to
	// leave them alone.
	Enabled *bool `yaml:"enabled"`
	// Interval is the pause between two readings, 10ms to 1h. Default 1s.
	Interval time.Duration `yaml:"interval"`
	// PrefillBytes is device memory that a prefill takes beyond what its engine holds already: with less of it free on one
	// of the engine's GPUs, recompute is not eligible. Default 0: engines that take their memory when they start, as vLLM
	// and SGLang do, need none, and memory is no veto.
	PrefillBytes int64 `yaml:"prefill_bytes"`
}

// EngineConfig is what the daemon can't learn from an engine's registration.
type EngineConfig struct {
	// ID is the engine_id that the engine registers with: 1 to 64 of [a-zA-Z0-9._-].
	ID string `yaml:"id"`
	// MetricsURL is the engine's Prometheus endpoint (vLLM or SGLang), such as http://127.0.0.1:8000/metrics. Empty: its
	// load is not read.
	MetricsURL string `yaml:"metrics_url"`
	// GPUs are the GPUs that the engine computes on: UUIDs ("GPU-...", "MIG-...") or the driver's indices. Empty: those
	// on which its registered processes hold memory.
	GPUs []string `yaml:"gpus"`
}

// off is the address that means no listener.
const off = "off"

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// WithDefaults returns a copy in which every zero field has its default.
func (c Config) WithDefaults() Config {
	c.Listen.Unix = orDefault(c.Listen.Unix, "/run/kvferry/kvferry.sock")
	c.Listen.GRPC = orDefault(c.Listen.GRPC, "0.0.0.0:7440")
	c.Listen.QUIC = orDefault(c.Listen.QUIC, "0.0.0.0:7441")
	c.Listen.Admin = orDefault(c.Listen.Admin, "127.0.0.1:7442")
	c.Arena.Dir = orDefault(c.Arena.Dir, "/dev/shm")
	c.Arena.Bytes = orDefault(c.Arena.Bytes, 4<<30)
	c.Arena.MaxBytes = orDefault(c.Arena.MaxBytes, 256<<30)
	c.Arena.Keep = orDefault(c.Arena.Keep, time.Hour)
	if c.Arena.Lock == nil {
		lock := true
		c.Arena.Lock = &lock
	}
	c.Link.ConnectTimeout = orDefault(c.Link.ConnectTimeout, 5*time.Second)
	c.Link.ProgressTimeout = orDefault(c.Link.ProgressTimeout, 10*time.Second)
	c.Link.QueueTimeout = orDefault(c.Link.QueueTimeout, 5*time.Minute)
	c.Link.RoundTrips = orDefault(c.Link.RoundTrips, 3)
	c.Link.MaxConnections = orDefault(c.Link.MaxConnections, 4096)
	c.Link.Repair, c.Link.Codec = orDefault(c.Link.Repair, repairAuto), orDefault(c.Link.Codec, transfer.CodecAuto)
	c.Migration.Deadline = orDefault(c.Migration.Deadline, 10*time.Minute)
	c.Migration.MaxActive = orDefault(c.Migration.MaxActive, 64)
	c.Migration.LeaseTTL = orDefault(c.Migration.LeaseTTL, 30*time.Second)
	c.Migration.CallTimeout = orDefault(c.Migration.CallTimeout, 5*time.Second)
	c.Migration.Keep = orDefault(c.Migration.Keep, 1024)
	if c.GPU.Enabled == nil {
		enabled := true
		c.GPU.Enabled = &enabled
	}
	c.GPU.Interval = orDefault(c.GPU.Interval, time.Second)
	c.StateDir = orDefault(c.StateDir, "/var/lib/kvferry")
	c.LogLevel = orDefault(c.LogLevel, "info")
	c.Listen.AllowUIDs = append([]int(nil), c.Listen.AllowUIDs...) // nil, too, where the list is empty
	peers := make([]PeerConfig, len(c.Peers))
	for i, p := range c.Peers {
		p.PriorBps = orDefault(p.PriorBps, 1e9)
		peers[i] = p
	}
	c.Peers = peers
	engines := make([]EngineConfig, len(c.Engines))
	for i, e := range c.Engines {
		e.GPUs = append([]string{}, e.GPUs...)
		engines[i] = e
	}
	c.Engines = engines
	c.Tenants = tenantDefaults(c.Tenants)
	return c
}

// ConfigError is one thing wrong with a Config.
type ConfigError struct {
	// Field is the key's path, for example "node.id".
	Field string
	// Value is what it was set to.
	Value any
	// Allowed says what it may be, and so how to fix it.
	Allowed string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("config %s = %v: must be %s", e.Field, e.Value, e.Allowed)
}

var idPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)

// minArena is the smallest arena that is of any use: a handful of small blocks.
const minArena = 64 << 10

const idAllowed = "1 to 128 of a-z, A-Z, 0-9, '.', '_' and '-'"

// Validate reports everything that is wrong with c after WithDefaults, joined; each part is a *ConfigError.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &ConfigError{field, value, allowed})
		}
	}
	check(idPattern.MatchString(c.Node.ID), "node.id", fmt.Sprintf("%q", c.Node.ID), idAllowed)
	check(idPattern.MatchString(c.Node.Region), "node.region", fmt.Sprintf("%q", c.Node.Region), idAllowed)
	check(filepath.IsAbs(c.Listen.Unix) && len(c.Listen.Unix) < 104, "listen.unix", fmt.Sprintf("%q", c.Listen.Unix),
		"an absolute path of fewer than 104 bytes")
	for _, l := range []struct{ field, addr string }{{"listen.grpc", c.Listen.GRPC}, {"listen.admin", c.Listen.Admin}} {
		check(l.addr == off || isHostPort(l.addr), l.field, fmt.Sprintf("%q", l.addr), `host:port with a port of 0 to 65535, or "off"`)
	}
	check(isHostPort(c.Listen.QUIC), "listen.quic", fmt.Sprintf("%q", c.Listen.QUIC), "host:port with a port of 0 to 65535")
	check(c.Arena.Bytes >= minArena && c.Arena.Bytes <= c.Arena.MaxBytes, "arena.bytes", c.Arena.Bytes, "65536 (64 KiB) to arena.max_bytes")
	check(c.Arena.MaxBytes >= minArena, "arena.max_bytes", c.Arena.MaxBytes, "65536 (64 KiB) or more")
	check(filepath.IsAbs(c.Arena.Dir), "arena.dir", fmt.Sprintf("%q", c.Arena.Dir), "an absolute path on a memory filesystem")
	check(c.Arena.Group >= 0, "arena.group", c.Arena.Group, "0 (the daemon's own group) or a numeric group id")
	check(c.Arena.Keep < 0 || c.Arena.Keep >= time.Second && c.Arena.Keep <= 8760*time.Hour, "arena.keep", c.Arena.Keep, "1s to 8760h, or negative for arenas that end with the daemon")
	check(c.Link.Stripes >= 0 && c.Link.Stripes <= transfer.MaxStripes, "link.stripes", c.Link.Stripes, "1 to 64, or 0 for as many as the path needs")
	check(c.Link.MaxConnections >= 1 && c.Link.MaxConnections <= 1<<16, "link.max_connections", c.Link.MaxConnections, "1 to 65536")
	check(c.Link.RoundTrips > 0 && c.Link.RoundTrips <= 100, "link.round_trips", c.Link.RoundTrips, "above 0 and at most 100")
	check(transfer.CheckCodec(c.Link.Codec) == nil, "link.codec", fmt.Sprintf("%q", c.Link.Codec), `"auto", "off", "huff", "split4", "huff16", "huff8", "zstd" or "raw"`)
	check(c.Link.Repair == repairAuto || c.Link.Repair == off, "link.repair", fmt.Sprintf("%q", c.Link.Repair), `"auto" or "off"`)
	for _, d := range []struct {
		field        string
		value, least time.Duration
	}{
		{"link.connect_timeout", c.Link.ConnectTimeout, 10 * time.Millisecond},
		{"link.progress_timeout", c.Link.ProgressTimeout, 100 * time.Millisecond},
		{"link.queue_timeout", c.Link.QueueTimeout, time.Second},
		{"migration.deadline", c.Migration.Deadline, 100 * time.Millisecond},
		{"migration.lease_ttl", c.Migration.LeaseTTL, time.Second}, // a third of it is left for a renewal over the link
		{"migration.call_timeout", c.Migration.CallTimeout, 10 * time.Millisecond},
	} {
		check(d.value >= d.least && d.value <= 24*time.Hour, d.field, d.value, fmt.Sprintf("%v to 24h, for example 10s", d.least))
	}
	check(c.Migration.MaxActive >= 1 && c.Migration.MaxActive <= 1<<16, "migration.max_active", c.Migration.MaxActive, "1 to 65536")
	check(c.Migration.Keep >= 1 && c.Migration.Keep <= 1<<20, "migration.keep", c.Migration.Keep, "1 to 1048576")
	check(filepath.IsAbs(c.StateDir), "state_dir", fmt.Sprintf("%q", c.StateDir), "an absolute path")
	for _, f := range []struct{ field, path string }{{"policy", c.Policy}, {"audit_log", c.AuditLog}} {
		check(f.path == "" || filepath.IsAbs(f.path), f.field, fmt.Sprintf("%q", f.path), "an absolute path, or empty for none")
	}
	check(len(c.Listen.AllowUIDs) <= maxListed, "listen.allow_uids", len(c.Listen.AllowUIDs), "at most 1024 user ids")
	for i, uid := range c.Listen.AllowUIDs {
		check(uid >= 0 && uid < 1<<32-1, fmt.Sprintf("listen.allow_uids[%d]", i), uid, "a numeric user id (id -u NAME)")
	}
	_, err := c.level()
	check(err == nil, "log_level", fmt.Sprintf("%q", c.LogLevel), "debug, info, warn or error")
	seen := map[string]bool{c.Node.ID: true}
	for i, p := range c.Peers {
		at := fmt.Sprintf("peers[%d].", i)
		check(idPattern.MatchString(p.Node), at+"node", fmt.Sprintf("%q", p.Node), idAllowed)
		check(idPattern.MatchString(p.Region), at+"region", fmt.Sprintf("%q", p.Region), idAllowed)
		check(isHostPort(p.Address), at+"address", fmt.Sprintf("%q", p.Address), "host:port of the peer's listen.quic")
		check(p.PriorBps < 0 || p.PriorBps >= 1e3 && p.PriorBps <= 1e15, at+"prior_bps", p.PriorBps, "1e3 to 1e15 bit/s, or negative for none")
		check(!seen[p.Node], at+"node", fmt.Sprintf("%q", p.Node), "different from node.id and from the other peers")
		seen[p.Node] = true
	}
	errs = append(errs, c.validateTenants()...)
	errs = append(errs, c.validateGPU()...)
	return errors.Join(errs...)
}

// maxListed bounds lists of the configuration that label metrics.
const maxListed = 1024

// validateGPU checks gpu and engines.
func (c Config) validateGPU() (errs []error) {
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &ConfigError{field, value, allowed})
		}
	}
	check(c.GPU.Interval >= 10*time.Millisecond && c.GPU.Interval <= time.Hour, "gpu.interval", c.GPU.Interval, "10ms to 1h; to leave the GPUs alone set gpu.enabled to false")
	check(c.GPU.PrefillBytes >= 0, "gpu.prefill_bytes", c.GPU.PrefillBytes, "0 (no veto) or bytes")
	check(len(c.Engines) <= maxListed, "engines", len(c.Engines), "at most 1024 entries")
	seen := map[string]bool{}
	for i, e := range c.Engines {
		at := fmt.Sprintf("engines[%d].", i)
		check(engineIDPattern.MatchString(e.ID), at+"id", fmt.Sprintf("%q", e.ID), "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-': the engine_id that the engine registers with")
		check(!seen[e.ID], at+"id", fmt.Sprintf("%q", e.ID), "different from the other engines'")
		seen[e.ID] = true
		if e.MetricsURL != "" {
			if fault, ok := errors.AsType[*engineload.ConfigError](engineload.Config{URL: e.MetricsURL}.Validate()); ok {
				errs = append(errs, &ConfigError{at + "metrics_url", fmt.Sprintf("%q", fault.Value), fault.Allowed})
			}
		}
		for j, g := range e.GPUs {
			index, err := strconv.ParseUint(g, 10, 16)
			check(err == nil && index < 1024 || strings.HasPrefix(g, "GPU-") || strings.HasPrefix(g, "MIG-"), fmt.Sprintf("%sgpus[%d]", at, j), fmt.Sprintf("%q", g),
				`a UUID as nvidia-smi -L prints it ("GPU-..." or "MIG-..."), or an index from 0`)
		}
	}
	return errs
}

// checkHost reports what the configuration names and this host does not have. It is apart from Validate, which is as true of
// another host.
func (c Config) checkHost() error {
	fault := &ConfigError{"arena.dir", fmt.Sprintf("%q", c.Arena.Dir), "a directory that exists, on a memory filesystem such as /dev/shm"}
	switch st, err := os.Stat(c.Arena.Dir); {
	case errors.Is(err, fs.ErrNotExist):
		fault.Allowed += "; it is not there: mkdir -p " + c.Arena.Dir
		return fault
	case err != nil:
		fault.Allowed += "; " + err.Error()
		return fault
	case !st.IsDir():
		fault.Allowed += "; it is a file"
		return fault
	}
	return nil
}

// validateTLS is apart from Validate because a daemon assembled from parts brings its own TLS configuration.
func (c Config) validateTLS() error {
	var errs []error
	for _, f := range []struct{ field, path string }{{"tls.ca", c.TLS.CA}, {"tls.cert", c.TLS.Cert}, {"tls.key", c.TLS.Key}} {
		if f.path == "" {
			errs = append(errs, &ConfigError{f.field, `""`, "the path of a PEM file; `kvferry certs` makes them"})
		}
	}
	return errors.Join(errs...)
}

func isHostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// Override returns c with the string fields that over sets: what flags give on top of a file.
func (c Config) Override(over Config) Config {
	for _, f := range []struct{ dst, src *string }{
		{&c.Node.ID, &over.Node.ID},
		{&c.Node.Region, &over.Node.Region},
		{&c.Listen.Unix, &over.Listen.Unix},
		{&c.Listen.GRPC, &over.Listen.GRPC},
		{&c.Listen.QUIC, &over.Listen.QUIC},
		{&c.Listen.Admin, &over.Listen.Admin},
		{&c.TLS.CA, &over.TLS.CA},
		{&c.TLS.Cert, &over.TLS.Cert},
		{&c.TLS.Key, &over.TLS.Key},
		{&c.StateDir, &over.StateDir},
		{&c.Arena.Dir, &over.Arena.Dir},
		{&c.LogLevel, &over.LogLevel},
	} {
		if *f.src != "" {
			*f.dst = *f.src
		}
	}
	c.Shadow = c.Shadow || over.Shadow
	return c
}

// Level is LogLevel parsed; info when it can't be.
func (c Config) Level() slog.Level {
	l, err := c.level()
	if err != nil {
		return slog.LevelInfo
	}
	return l
}

func (c Config) level() (slog.Level, error) {
	var l slog.Level
	err := l.UnmarshalText([]byte(c.LogLevel))
	return l, err
}

// ParseConfig decodes YAML strictly: an unknown key is an error that shows where it stands. It does not fill
// defaults and does not validate.
func ParseConfig(data []byte) (Config, error) {
	var c Config
	if len(data) > 1<<20 {
		return c, &ConfigError{"file", fmt.Sprintf("%d bytes", len(data)), "at most 1 MiB"}
	}
	if err := yaml.UnmarshalWithOptions(data, &c, yaml.Strict(), yaml.CustomUnmarshaler(parseDuration)); err != nil {
		if ce, ok := errors.AsType[*ConfigError](err); ok {
			ce.Field = durationField(data, ce.Value)
			return Config{}, ce
		}
		return Config{}, fmt.Errorf("config: %w", err)
	}
	return c, nil
}

// parseDuration reads a duration with its unit; a bare number would be nanoseconds, which nobody means.
func parseDuration(d *time.Duration, text []byte) error {
	s := strings.Trim(strings.TrimSpace(string(text)), `"'`)
	if s == "null" || s == "~" || s == "" {
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return &ConfigError{Value: s, Allowed: "a number with a unit, for example 10s or 1m30s"}
	}
	*d = v
	return nil
}

// durationField finds the key that holds text where a duration belongs; the decoder does not say which it was.
func durationField(data []byte, text any) string {
	var sections map[string]map[string]any
	_ = yaml.Unmarshal(data, &sections) // what does not fit is left out
	for _, field := range []string{"link.connect_timeout", "link.progress_timeout", "link.queue_timeout", "migration.deadline", "migration.lease_ttl", "migration.call_timeout", "gpu.interval"} {
		section, key, _ := strings.Cut(field, ".")
		if v, ok := sections[section][key]; ok && fmt.Sprint(v) == text {
			return field
		}
	}
	return "duration"
}

// YAML returns c as a file that ParseConfig reads back, durations with their units.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
