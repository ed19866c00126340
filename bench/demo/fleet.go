package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kvferry/kvferry/bench/procs"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
)

// Fleet is two running regions.
type Fleet struct {
	// East is where the session begins, West where it goes.
	East, West *Region
	// Dir holds certificates, sockets, logs and state; it goes with the fleet.
	Dir string

	cfg    Config
	relays []*wan.Relay
	links  []*wan.Link
	procs  *procs.Group
}

// startTimeout bounds the start of one process; a loaded machine needs seconds for the engine's warm-up.
const startTimeout = 60 * time.Second

// Start brings the fleet up. Close is owed. It returns early, with everything cleaned up, when ctx ends.
func Start(ctx context.Context, cfg Config) (_ *Fleet, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	dir, err := os.MkdirTemp("", "kvferry-demo-")
	if err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	f := &Fleet{Dir: dir, cfg: cfg, procs: procs.Open()}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	f.East, f.West = newRegion(f, "east", &cfg), newRegion(f, "west", &cfg)
	if err := f.certificates(); err != nil {
		return nil, err
	}
	if err := f.network(); err != nil {
		return nil, err
	}
	for _, r := range []*Region{f.East, f.West} {
		if err := r.startDaemon(ctx); err != nil {
			return nil, err
		}
	}
	// Both engines warm up at once: there are two cores at least.
	started := make(chan error, 2)
	go func() { started <- f.East.startEngine(ctx, true) }()
	go func() { started <- f.West.startEngine(ctx, false) }()
	return f, errors.Join(<-started, <-started)
}

// certificates makes an authority and one certificate a region.
func (f *Fleet) certificates() error {
	ca, err := certs.NewCA("kvferry demo", 24*time.Hour)
	if err != nil {
		return err
	}
	if err := ca.Save(f.Dir); err != nil {
		return err
	}
	for _, r := range []*Region{f.East, f.West} {
		pair, err := ca.Issue(r.Name, r.node(), "127.0.0.1")
		if err != nil {
			return err
		}
		if err := pair.Save(f.Dir); err != nil {
			return err
		}
	}
	return nil
}

// network picks the daemons' ports and puts a relay before each; both relays share one pair of links, like a WAN.
func (f *Fleet) network() error {
	ports, err := procs.FreePorts("udp", 2)
	if err != nil {
		return err
	}
	f.East.quic, f.West.quic = ports[0], ports[1]
	f.links = []*wan.Link{wan.OpenLink(*f.cfg.WAN, "to east"), wan.OpenLink(*f.cfg.WAN, "to west")}
	for i, r := range []*Region{f.East, f.West} {
		relay, err := wan.OpenRelay(wan.RelayConfig{Listen: "127.0.0.1:0", Target: r.quic, Up: f.links[i], Down: f.links[1-i]})
		if err != nil {
			return err
		}
		f.relays = append(f.relays, relay)
		r.relay = relay.Addr().String()
	}
	return nil
}

// Close ends the processes, the relays and the files. It waits and may be called more than once.
func (f *Fleet) Close() error {
	for _, r := range []*Region{f.East, f.West} {
		if r != nil {
			r.close()
		}
	}
	errs := []error{f.procs.Close()}
	for _, r := range f.relays {
		errs = append(errs, r.Close())
	}
	for _, l := range f.links {
		errs = append(errs, l.Close())
	}
	f.relays, f.links = nil, nil
	errs = append(errs, os.RemoveAll(f.Dir))
	return errors.Join(errs...)
}

// writeConfig writes the daemon's YAML file.
func (f *Fleet) writeConfig(r, peer *Region) (string, error) {
	lock := false // two arenas on one small machine: leave them pageable
	m, err := f.cfg.shape()
	if err != nil {
		return "", err
	}
	l := layoutOf(m)
	slots := int64(2*f.cfg.tokens()/m.BlockTokens + 8)
	cfg := daemon.Config{
		Node:     daemon.NodeConfig{ID: r.node(), Region: r.Name},
		Listen:   daemon.ListenConfig{Unix: r.socket(), GRPC: "off", Admin: "off", QUIC: r.quic},
		TLS:      daemon.TLSConfig{CA: filepath.Join(f.Dir, "ca.crt"), Cert: filepath.Join(f.Dir, r.node()+".crt"), Key: filepath.Join(f.Dir, r.node()+".key")},
		Peers:    []daemon.PeerConfig{{Node: peer.node(), Region: peer.Name, Address: peer.relay, PriorBps: f.prior()}},
		Arena:    daemon.ArenaConfig{Dir: f.cfg.ArenaDir, Bytes: slots * l.Stride(), Lock: &lock, Keep: -1},
		Link:     daemon.LinkConfig{Stripes: 4},
		StateDir: filepath.Join(f.Dir, r.Name+"-state"),
	}
	data, err := cfg.WithDefaults().YAML()
	if err != nil {
		return "", err
	}
	path := filepath.Join(f.Dir, r.Name+".yaml")
	return path, os.WriteFile(path, data, 0o600)
}

// prior is what an operator would configure: the link's rate without packet headers.
func (f *Fleet) prior() float64 {
	if f.cfg.WAN.Rate == 0 {
		return 1e9
	}
	return 0.95 * f.cfg.WAN.Rate
}

func pid() string { return strconv.Itoa(os.Getpid()) }
