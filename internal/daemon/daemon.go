package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/repair"
)

// Parts are what a daemon is assembled from. Nil parts are made from the Config; tests bring in-memory ones.
type Parts struct {
	// Local is the listener of engines and local clients. Default: the unix socket listen.unix.
	Local net.Listener
	// Remote is the listener of proxies and operators, without TLS around it. Default: TCP on listen.grpc.
	Remote net.Listener
	// Admin is the HTTP listener. Default: TCP on listen.admin.
	Admin net.Listener
	// Packets is the socket that peers dial. Default: UDP on listen.quic.
	Packets net.PacketConn
	// DialPacket opens the socket of one dialled stripe. Default: UDP.
	DialPacket func(context.Context) (net.PacketConn, error)
	// TLS holds the certificate and the CA, for QUIC and gRPC. Default: from tls.* of the Config.
	TLS *tls.Config
	// GPUs reads this host's GPUs; the daemon closes it. Default: NVML, as gpu of the Config says.
	GPUs GPUReader
	// EngineLoad returns the reader of one engine's load; the daemon runs it until Close. Default: a scraper of the
	// engine's metrics_url. It is asked about engines with such an address only.
	EngineLoad func(EngineConfig) (EngineLoadReader, error)
	// Codecs codes and decodes pages. Default: package codec.
	Codecs transfer.Codecs
	// Log takes events. Default: none.
	Log *slog.Logger
	// Version is reported by Status.
	Version string
	// NoState keeps the session directory in memory only, and no arena, for tests.
	NoState bool
}

// Daemon is one running node. Open starts it, Close ends it.
type Daemon struct {
	cfg         Config
	self        kvstore.NodeID
	incarnation string
	version     string
	started     time.Time
	log         *slog.Logger
	registry    *prometheus.Registry
	metrics     *metrics
	identity    *identityMetrics
	certs       *certs.Keeper     // nil: Parts brought certificates that do not change
	leaf        *x509.Certificate // as it was at the start
	policy      *policies
	audit       *auditor
	reloads     *reloads

	agent        *transfer.Agent
	sessions     *kvstore.Sessions
	engines      *engines
	offers       *offers
	links        *links
	paths        *paths
	plans        *plans
	calibration  *calibration
	migrations   *migrations
	yields       *yields
	reclaims     *reclaims
	incarnations *incarnations
	load         *load
	servers      *servers

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error
	wg        sync.WaitGroup // sweeper, background calls
}

var errShutdown = errors.New("the daemon is shutting down")

func newID() string { return rand.Text() }

// Open starts a daemon. cfg is copied; it need not have its defaults. On error nothing is left running.
func Open(cfg Config, parts Parts) (_ *Daemon, err error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.checkHost(); err != nil {
		return nil, err
	}
	if err := fault.FromEnv(); err != nil {
		return nil, err
	}
	if parts.Log == nil {
		parts.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{
		cfg: cfg, self: kvstore.NodeID(cfg.Node.ID), incarnation: newID(), version: parts.Version, started: time.Now(),
		log: parts.Log, registry: prometheus.NewRegistry(), closing: make(chan struct{}),
		offers: newOffers(cfg.Migration.LeaseTTL, cfg.weight), migrations: newMigrations(cfg.Migration), yields: newYields(),
		reclaims: newReclaims(), incarnations: newIncarnations(), reloads: newReloads(),
	}
	if err := d.openIdentity(&parts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	if err := d.openSessions(parts.NoState); err != nil {
		return nil, err
	}
	d.openPaths(parts.NoState)
	d.openCalibration(parts.NoState)
	d.openPlans(parts.NoState)
	if err := d.openAgent(parts); err != nil {
		return nil, err
	}
	if parts.NoState {
		cfg.Arena.Keep = -1
	}
	d.engines = newEngines(cfg.Node.ID, cfg.Arena, d.agent, d.offers, d.log)
	d.engines.quota = d.quota
	d.links = newLinks(cfg, d.agent, d.paths)
	if d.load, err = openLoad(cfg, parts); err != nil {
		return nil, err
	}
	d.metrics = newMetrics(d.registry, d)
	d.engines.metrics = d.metrics
	if d.servers, err = d.serve(parts); err != nil {
		return nil, err
	}
	d.announceOwned()
	d.reclaims.add(d.sessions.Unconfirmed()...)
	d.wg.Go(d.sweep)      // owner: d; ends when closing
	d.wg.Go(d.watchFiles) // owner: d; ends when closing
	d.logStart()
	d.log.LogAttrs(context.Background(), slog.LevelInfo, "daemon started", slog.String("node_id", cfg.Node.ID), slog.String("region_id", cfg.Node.Region),
		slog.String("incarnation", d.incarnation), slog.String("quic", d.agent.Addr().String()))
	return d, nil
}

// checkIdentity holds the configured names to those in the certificate: peers believe the certificate.
func checkIdentity(cfg Config, t *tls.Config) (*x509.Certificate, error) {
	if len(t.Certificates) == 0 || len(t.Certificates[0].Certificate) == 0 {
		return nil, &ConfigError{"tls.cert", "no certificate", "this node's certificate"}
	}
	leaf, err := x509.ParseCertificate(t.Certificates[0].Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("parse tls.cert: %w", err)
	}
	region, node, err := certs.Identity(leaf)
	if err != nil {
		return nil, fmt.Errorf("tls.cert: %w", err)
	}
	if region != cfg.Node.Region || node != cfg.Node.ID {
		return nil, &ConfigError{
			"node.id, node.region", fmt.Sprintf("%q, %q", cfg.Node.ID, cfg.Node.Region),
			fmt.Sprintf("what the certificate says (%q, %q); issue another with `kvferry certs issue`, or change the configuration", node, region),
		}
	}
	return leaf, nil
}

// identify names a peer by its certificate.
func identify(c *x509.Certificate) (transfer.PeerID, error) {
	_, node, err := certs.Identity(c)
	return transfer.PeerID(node), err
}

func (d *Daemon) openSessions(memoryOnly bool) error {
	path := ""
	if !memoryOnly {
		if err := os.MkdirAll(d.cfg.StateDir, 0o700); err != nil {
			return fmt.Errorf("create state_dir: %w", err)
		}
		path = filepath.Join(d.cfg.StateDir, "sessions.db")
	}
	var err error
	d.sessions, err = kvstore.OpenSessions(path, d.self)
	return err
}

// openPaths reads what is remembered of the paths to peers.
func (d *Daemon) openPaths(memoryOnly bool) {
	file := ""
	if !memoryOnly {
		file = filepath.Join(d.cfg.StateDir, "paths.json")
	}
	var err error
	if d.paths, err = openPaths(file); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "past measurements of links are dropped", slog.Any("error", err))
	}
}

// learnPaths remembers what links measured.
func (d *Daemon) learnPaths(now bool) {
	for _, link := range d.agent.Links() {
		if id := link.Peer().ID; d.links.label(id) != otherPeer {
			d.paths.learn(id, link.Stats().Estimates)
		}
	}
	if err := d.paths.flush(now); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "measurements of links are not kept", slog.Any("error", err))
	}
}

func (d *Daemon) openAgent(parts Parts) error {
	conn := parts.Packets
	if conn == nil {
		var err error
		if conn, err = net.ListenPacket("udp", d.cfg.Listen.QUIC); err != nil {
			return fmt.Errorf("listen on listen.quic: %w", err)
		}
	}
	var lost repair.Config
	if d.cfg.Link.Repair == off {
		lost.Parity = -1
	}
	agent, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(d.cfg.Node.ID), Incarnation: d.incarnation, Conn: conn, DialPacket: parts.DialPacket, TLS: parts.TLS,
		CurrentTLS: d.currentTLS(), Identify: identify, Region: regionOf, Expect: d.expect, Permit: d.permitRead,
		Stripes: d.cfg.Link.Stripes, Recall: d.paths.recall, ConnectTimeout: d.cfg.Link.ConnectTimeout, ProgressTimeout: d.cfg.Link.ProgressTimeout,
		Repair: lost, MaxConnections: d.cfg.Link.MaxConnections,
		Codec:   d.cfg.Link.Codec,
		Codecs:  parts.Codecs,
		Handler: d.answerPeer, OnServed: d.served, Share: d.share, MaxRate: d.cfg.Link.MaxRate,
		Logger: d.log, Registerer: d.registry,
	})
	if err != nil {
		_ = conn.Close()
		return err
	}
	d.agent = agent
	return nil
}

// sweepEvery is how often expired leases and offers are looked for.
const sweepEvery = time.Second

func (d *Daemon) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var expired time.Time // when old sessions were looked for last
	for {
		select {
		case <-d.closing:
			return
		case now := <-tick.C:
			d.lookAtPeers()
			for _, of := range d.offers.sweep(now) {
				d.log.LogAttrs(context.Background(), slog.LevelWarn, "offer expired", slog.String("peer", string(of.peer)), slog.String("migration_id", of.migration))
			}
			for _, e := range d.engines.list() {
				e.arena.ExpireLeases(now)
				d.lookAtArena(e)
			}
			d.audit.sweep(now)
			d.links.counters.observe()
			d.learnPaths(false)
			d.keepCalibration(false)
			d.keepPlans(false)
			d.yieldPending()
			d.engines.sweepKept(now)
			d.engines.noteAlive(now)
			d.confirmForwarded(now)
			if now.Sub(expired) >= sessionsEvery {
				expired = now
				d.expireSessions(now)
			}
		}
	}
}

// endOffer tells the source that an offer is done with, in the background: the caller does not wait for it, and a
// source that can't be told lets the offer expire.
func (d *Daemon) endOffer(ctx context.Context, link *transfer.Link, id []byte) {
	if link == nil || len(id) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*d.cfg.Migration.CallTimeout) // the release is owed on every path
	d.wg.Go(func() {                                                                              // owner: d; ends within twice the call time-out
		defer cancel()
		req := &pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: id}}}
		_, err := d.callPeer(ctx, link, req)
		if err != nil && (link.Err() != nil || errors.Is(err, transfer.ErrAnswerLost)) && !d.isClosing() { // the source may be there all the same
			_, _, err = d.callNode(ctx, link.Peer().ID, req)
		}
		if err != nil {
			d.log.LogAttrs(ctx, slog.LevelWarn, "end offer", slog.String("peer", string(link.Peer().ID)), slog.Any("error", err))
		}
	})
}

func (d *Daemon) isClosing() bool {
	select {
	case <-d.closing:
		return true
	default:
		return false
	}
}

// Addr is the UDP address that peers dial.
func (d *Daemon) Addr() net.Addr { return d.agent.Addr() }

// Incarnation is this start's id.
func (d *Daemon) Incarnation() string { return d.incarnation }

// Close stops admitting calls, ends migrations, and closes links, arenas and the directory, in this order. It waits,
// and may be called more than once.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() {
		close(d.closing)
		var errs []error
		if d.servers != nil {
			d.servers.health.Shutdown() // proxies look elsewhere from here on; migrations are no longer admitted
		}
		d.migrations.close() // each sends its source an end-offer
		if d.servers != nil {
			d.servers.close()
		}
		d.wg.Wait()
		if d.plans != nil {
			d.keepPlans(true)
		}
		if d.agent != nil {
			if d.links != nil {
				d.learnPaths(true)
			}
			d.keepCalibration(true)
			errs = append(errs, d.agent.Close())
		}
		if d.engines != nil {
			errs = append(errs, d.engines.close())
		}
		if d.sessions != nil {
			errs = append(errs, d.sessions.Close())
		}
		if d.audit != nil {
			errs = append(errs, d.audit.close())
		}
		if d.load != nil {
			if err := d.load.close(); err != nil { // a driver that hangs: nothing of ours is held
				d.log.LogAttrs(context.Background(), slog.LevelWarn, "stop reading GPUs", slog.Any("error", err))
			}
		}
		d.closeErr = errors.Join(errs...)
	})
	return d.closeErr
}
