package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/nvml"
)

// Setup is what to look at.
type Setup struct {
	// Config is the node's configuration; zero fields mean its defaults.
	Config daemon.Config
	// Configured says that Config was read from a file. Where it is not, certificates are looked at only if Config.TLS names
	// them, and peers are those of the running daemon.
	Configured bool
	// ConfigErr is why the file can't be used; what depends on it is then unknown.
	ConfigErr error
	// ConfigPath is the file, for texts. Empty: "FILE".
	ConfigPath string

	// Daemon is what the running daemon says; nil when it does not answer.
	Daemon *Daemon
	// DaemonErr is why it does not; nil with a nil Daemon means that it was not asked.
	DaemonErr error
	// DaemonAddr is where it was asked, for texts.
	DaemonAddr string
	// DaemonWanted makes a daemon that does not answer a failure, not a warning.
	DaemonWanted bool

	// Peers limits the checks of peers to these node ids. Empty: all.
	Peers []string
	// Call is a control call that a peer answers without any effect. Empty: none is made.
	Call []byte
	// Engines are addresses of engines' metrics, http or https.
	Engines []string
	// Host reads this machine. Zero: the real one.
	Host Host
}

// Daemon is what a running daemon says about itself.
type Daemon struct {
	// Node, Region and Incarnation are its identity.
	Node, Region, Incarnation string
	// Version is its release.
	Version string
	// PID is its process, 0 when it is not on this host or not known.
	PID int
	// ArenaBytes is the size of its arenas.
	ArenaBytes int64
	// Broken are the engines whose arenas' memory is gone: somebody truncated or removed the file.
	Broken []string
	// PinNotes say why arenas are not locked, one entry an arena that is not.
	PinNotes []string
	// Links are its links.
	Links []Link
}

// Link is a link as the running daemon sees it.
type Link struct {
	// Node and Region are the peer's; Address is where it is dialled, empty when only the peer dials.
	Node, Region, Address string
	// Connected says that it is up; Error is why not, empty when it was never dialled.
	Connected bool
	Error     string
}

// Host reads what is not in the configuration. Nil fields read the real machine.
type Host struct {
	// ReadFile reads files below /proc and /sys.
	ReadFile func(path string) ([]byte, error)
	// Filesystem describes the filesystem that holds path.
	Filesystem func(path string) (Filesystem, error)
	// Room takes so many bytes in a folder for a moment, under no name, and returns why it can't; [errors.ErrUnsupported] where that
	// can't be tried.
	Room func(dir string, bytes int64) error
	// Now is the time that certificates are held to.
	Now func() time.Time
	// GPU reads the GPUs.
	GPU func(ctx context.Context) (nvml.Snapshot, error)
}

func (h Host) withDefaults() Host {
	if h.ReadFile == nil {
		h.ReadFile = os.ReadFile
	}
	if h.Filesystem == nil {
		h.Filesystem = filesystem
	}
	if h.Room == nil {
		h.Room = takeRoom
	}
	if h.Now == nil {
		h.Now = time.Now
	}
	if h.GPU == nil {
		h.GPU = readGPUs
	}
	return h
}

// doctor is a Setup with what its checks share.
type doctor struct {
	Setup
	tls         func() *identity            // our certificate, read once
	bound       func() error                // what binding listen.quic gives, tried once
	arenas      func() ([]arenaFile, error) // all nodes' in arena.dir, looked at once
	peers       []*peer
	gpus        gpus
	maxBytesSet bool // arena.max_bytes is in the file; its default is no promise
}

// Checks lists the checks of a set-up, in the order in which they are best read: what a check needs stands above it.
func Checks(s Setup) []Check {
	maxBytesSet := s.Config.Arena.MaxBytes != 0
	s.Config = s.Config.WithDefaults()
	s.Host = s.Host.withDefaults()
	if s.ConfigPath == "" {
		s.ConfigPath = "FILE"
	}
	d := &doctor{Setup: s, maxBytesSet: maxBytesSet}
	d.tls = sync.OnceValue(d.readIdentity)
	d.bound = sync.OnceValue(d.tryListen)
	d.arenas = sync.OnceValues(d.listArenas)
	d.peers = d.listPeers()
	checks := []Check{
		{"config", d.checkConfig},
		{"certificate.authority", d.checkAuthority},
		{"certificate.expiry", d.checkExpiry},
		{"certificate.identity", d.checkIdentity},
		{"certificate.key", d.checkKey},
	}
	if s.Config.Policy != "" {
		checks = append(checks, Check{"policy", d.checkPolicy})
	}
	checks = append(checks,
		Check{"daemon", d.checkDaemon},
		Check{"listen.quic", d.checkListen},
	)
	for _, p := range d.ports() {
		checks = append(checks, Check{p.field, p.check})
	}
	for _, p := range d.peers {
		name := "peer." + p.node + "."
		checks = append(checks, Check{name + "udp", p.checkUDP}, Check{name + "handshake", p.checkHandshake}, Check{name + "return", p.checkReturn})
	}
	checks = append(checks,
		Check{"host.udp_buffers", d.checkBuffers},
		Check{"host.memlock", d.checkMemlock},
		Check{"host.clock", d.checkClock},
		Check{"arena.dir", d.checkArenaDir},
		Check{"arena.space", d.checkArenaSpace},
		Check{"arena.files", d.checkArenaFiles},
		Check{"arena.stale", d.checkStale},
		Check{"state_dir", d.checkStateDir},
		Check{"gpu", d.checkGPU},
	)
	for i, url := range s.Engines {
		checks = append(checks, Check{fmt.Sprintf("engine.%d", i+1), func(ctx context.Context) Finding { return checkEngine(ctx, url, "--engine-metrics") }})
	}
	for _, e := range s.Config.Engines {
		if e.MetricsURL != "" {
			field := "engines[id=" + e.ID + "].metrics_url"
			checks = append(checks, Check{"engine." + e.ID, func(ctx context.Context) Finding { return checkEngine(ctx, e.MetricsURL, field) }})
		}
	}
	for _, e := range s.Config.Engines {
		if len(e.GPUs) > 0 {
			checks = append(checks, Check{"engine." + e.ID + ".gpus", func(ctx context.Context) Finding { return d.checkEngineGPUs(ctx, e) }})
		}
	}
	return checks
}

// listPeers takes the peers from the configuration, or from the running daemon.
func (d *doctor) listPeers() []*peer {
	var out []*peer
	add := func(node, region, address string) {
		if address == "" || len(d.Setup.Peers) > 0 && !slices.Contains(d.Setup.Peers, node) {
			return
		}
		p := &peer{d: d, node: node, region: region, address: address, probed: make(chan struct{})}
		if d.Daemon != nil {
			for i, l := range d.Daemon.Links {
				if l.Node == node {
					p.link = &d.Daemon.Links[i]
				}
			}
		}
		out = append(out, p)
	}
	switch {
	case d.ConfigErr != nil:
	case d.Configured:
		for _, p := range d.Config.Peers {
			add(p.Node, p.Region, p.Address)
		}
	case d.Daemon != nil:
		for _, l := range d.Daemon.Links {
			add(l.Node, l.Region, l.Address)
		}
	}
	return out
}

func (d *doctor) checkConfig(context.Context) Finding {
	switch {
	case d.ConfigErr != nil:
		return fail("correct it; 'kvferryd --config "+d.ConfigPath+" --print-config' shows what is read", "%s: %v", d.ConfigPath, oneLine(d.ConfigErr))
	case !d.Configured:
		return unknown("no --config: defaults are assumed, and certificates and peers are not looked at unless flags or the daemon name them")
	}
	if err := d.Config.Validate(); err != nil {
		fix := "correct it; 'kvferryd --config " + d.ConfigPath + " --print-config' shows what is read"
		if ce, ok := errors.AsType[*daemon.ConfigError](err); ok {
			fix = "change " + ce.Field + ": want " + ce.Allowed
		}
		return fail(fix, "%s: %v", d.ConfigPath, oneLine(err))
	}
	return ok("%s: node %s of region %s, %d peers", d.ConfigPath, d.Config.Node.ID, d.Config.Node.Region, len(d.Config.Peers))
}

// settings reports whether the configuration can be relied on; the finding is what to return when it can't.
func (d *doctor) settings() (Finding, bool) {
	if d.ConfigErr != nil {
		return unknown("not looked at: see config"), false
	}
	return Finding{}, true
}

// oneLine joins a joined error's lines.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
