package chaosreal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/procs"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/fault"
)

// nodeCount is the least fleet in which a session can be forwarded twice, and a third node's migrations be unaffected.
const nodeCount = 3

// fleet is three nodes, each two processes, with a relay for each way of dialling one another.
type fleet struct {
	cfg    Config
	opt    fleetOptions
	dir    string // certificates, sockets, logs, state
	arenas string // a folder a node
	procs  *procs.Group
	nodes  [nodeCount]*node
	links  [nodeCount][nodeCount]*wan.Link // what is sent from one to another
	relays []*wan.Relay
	ctx    context.Context //nolint:containedctx // ends with the fleet: of starts that nobody waits for
	cancel context.CancelFunc
	wg     sync.WaitGroup // watchers of processes
}

// fleetOptions is what differs between the entry points.
type fleetOptions struct {
	wan        wan.Model
	stateMount bool                      // each node's state is on a small filesystem of its own
	faults     [nodeCount]fault.Schedule // each daemon's own at its first start
}

// runWAN is the path between two nodes of a run: slow enough for faults to find a transfer under way.
func runWAN() wan.Model {
	return wan.Model{RTT: 8 * time.Millisecond, Rate: 40e6}
}

// openFleet brings a fleet up. close is owed.
func openFleet(ctx context.Context, cfg Config, opt fleetOptions) (_ *fleet, err error) {
	f := &fleet{cfg: cfg, opt: opt, procs: procs.Open()}
	f.ctx, f.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.dir, err = os.MkdirTemp("", "kvferry-chaos-"); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	if f.arenas, err = os.MkdirTemp(cfg.ArenaDir, "kvferry-chaos-"); err != nil {
		return nil, fmt.Errorf("create directory of arenas: %w", err)
	}
	quic, err := procs.FreePorts("udp", nodeCount)
	if err != nil {
		return nil, err
	}
	admin, err := procs.FreePorts("tcp", nodeCount)
	if err != nil {
		return nil, err
	}
	ca, err := certs.NewCA("kvferry chaos", 24*time.Hour)
	if err != nil {
		return nil, err
	}
	if err := ca.Save(f.dir); err != nil {
		return nil, err
	}
	for i := range f.nodes {
		n := newNode(f, i, quic[i], admin[i])
		f.nodes[i] = n
		pair, err := ca.Issue(n.region(), n.name, "127.0.0.1")
		if err != nil {
			return nil, err
		}
		if err := errors.Join(pair.Save(f.dir), n.prepare()); err != nil {
			return nil, err
		}
	}
	if err := f.connect(); err != nil {
		return nil, err
	}
	return f, f.start(ctx)
}

// connect opens the links and the relays.
func (f *fleet) connect() error {
	for i := range f.nodes {
		for j := range f.nodes {
			if i != j {
				f.links[i][j] = wan.OpenLink(f.opt.wan, f.nodes[i].name+" to "+f.nodes[j].name)
			}
		}
	}
	for i, from := range f.nodes {
		for j, to := range f.nodes {
			if i == j {
				continue
			}
			relay, err := wan.OpenRelay(wan.RelayConfig{Listen: "127.0.0.1:0", Target: to.quic, Up: f.links[i][j], Down: f.links[j][i]})
			if err != nil {
				return err
			}
			f.relays = append(f.relays, relay)
			from.peers[j] = relay.Addr().String()
		}
	}
	return nil
}

// start brings all processes up, at once.
func (f *fleet) start(ctx context.Context) error {
	errs := make(chan error, nodeCount)
	for i, n := range f.nodes {
		go func() { errs <- errors.Join(n.startDaemon(ctx, f.opt.faults[i].String()), n.startEngine(ctx)) }()
	}
	var all []error
	for range f.nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// eachLink calls do for every directed link.
func (f *fleet) eachLink(do func(from, to int, l *wan.Link)) {
	for i := range f.links {
		for j, l := range f.links[i] {
			if l != nil {
				do(i, j, l)
			}
		}
	}
}

// healLinks undoes every cut and every change of a link.
func (f *fleet) healLinks() {
	f.eachLink(func(_, _ int, l *wan.Link) {
		l.Heal()
		_ = l.SetModel(f.opt.wan) // valid: it was opened with it
	})
}

// close ends what runs and removes what is left. Idempotent.
func (f *fleet) close() error {
	var errs []error
	for _, n := range f.nodes {
		if n != nil {
			n.close()
		}
	}
	f.cancel()
	errs = append(errs, f.procs.Close())
	f.wg.Wait()
	for _, r := range f.relays {
		errs = append(errs, r.Close())
	}
	f.relays = nil
	f.eachLink(func(_, _ int, l *wan.Link) { errs = append(errs, l.Close()) })
	for _, n := range f.nodes {
		if n != nil {
			errs = append(errs, n.unmount())
		}
	}
	if f.dir != "" && !f.cfg.Keep {
		errs = append(errs, os.RemoveAll(f.dir))
	}
	if f.arenas != "" {
		errs = append(errs, os.RemoveAll(f.arenas))
	}
	return errors.Join(errs...)
}

// path is a file in the fleet's folder.
func (f *fleet) path(name string) string { return filepath.Join(f.dir, name) }
