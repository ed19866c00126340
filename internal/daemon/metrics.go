package daemon

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// Labels are bounded: modes, states and reasons are closed sets; engines are those that are configured and the first
// maxEngineNames others, the rest is otherEngine; a peer that the configuration does not list counts as otherPeer; GPUs are
// the host's.

// metrics are the daemon's counters and histograms; collectors beside them read the rest when they are asked, and transfer
// registers its own.
type metrics struct {
	region    string
	engines   *engineNames
	migration migrationMetrics
	egress    egressMetrics
	prefix    *prometheus.CounterVec // region, engine, call, result
	accused   *prometheus.CounterVec // result
	reclaimed prometheus.Counter
	drift     *prometheus.CounterVec // what
	identity  *identityMetrics

	refusedConns *prometheus.CounterVec // listener
}

// migrationMetrics are what migrations into this node add up to. Each ended migration counts once, with the numbers of
// its report.
type migrationMetrics struct {
	ended       *prometheus.CounterVec // mode, state
	failures    *prometheus.CounterVec // code
	seconds     *prometheus.HistogramVec
	transfer    prometheus.Histogram
	steps       [stateCount]prometheus.Observer
	plans       planMetrics
	rawBytes    prometheus.Counter
	wireBytes   prometheus.Counter
	hereBytes   prometheus.Counter
	pages       prometheus.Counter
	retried     prometheus.Counter
	blocksMoved prometheus.Counter
	blocksHere  prometheus.Counter
	staleTokens prometheus.Counter
	computed    prometheus.Counter
	duplicate   prometheus.Counter
	replanned   prometheus.Counter
}

// egressMetrics are what pullers take from this node.
type egressMetrics struct {
	served *prometheus.CounterVec   // peer
	wait   *prometheus.HistogramVec // class
	shared *prometheus.CounterVec   // class, tenant
}

// otherCode labels a failure whose reason, from another release, this one does not know.
const otherCode = "OTHER"

// secondsBuckets span 10 ms to 5 min.
func secondsBuckets() []float64 { return prometheus.ExponentialBuckets(0.01, 2, 16) }

// maker registers what it makes.
type maker struct{ reg prometheus.Registerer }

func (m maker) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.reg.MustRegister(c)
	return c
}

func (m maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.reg.MustRegister(c)
	return c
}

func (m maker) histogram(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: secondsBuckets()})
	m.reg.MustRegister(h)
	return h
}

func (m maker) histograms(name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: secondsBuckets()}, labels)
	m.reg.MustRegister(h)
	return h
}

func (m maker) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.reg.MustRegister(g)
	return g
}

func (m maker) read(name, help string, f func() float64) {
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

func newMetrics(reg prometheus.Registerer, d *Daemon) *metrics {
	mk := maker{reg}
	m := &metrics{
		region:    d.cfg.Node.Region,
		engines:   newEngineNames(d.cfg.Engines),
		migration: newMigrationMetrics(mk),
		egress: egressMetrics{
			served: mk.counters("kvferry_egress_served_bytes_total", "Page bytes written for pullers, repeats included.", "peer"),
			shared: mk.counters("kvferry_egress_class_bytes_total",
				"Page bytes written for pullers, repeats included, by class and by tenant; tenants that the configuration does not list are other.", "class", "tenant"),
			wait: mk.histograms("kvferry_egress_wait_seconds",
				"Time that a puller's transfer was queued in this node, from its announcement until its first chunk was taken to be sent, by class.", "class"),
		},
		prefix: mk.counters("kvferry_prefix_blocks_total",
			"Blocks that engines asked for, by call and by what was found: local (written here), migrated (landed from another node), landing, absent.",
			"region", "engine", "call", "result"),
		reclaimed: mk.counter("kvferry_peer_reclaimed_sessions_total", "Sessions that were handed over, lost with the process that they went to, and are this node's again."),
		refusedConns: mk.counters("kvferry_daemon_refused_connections_total",
			"Connections that were closed at once because there are too many, by listener: unix, grpc, admin.", "listener"),
		accused: mk.counters("kvferry_peer_accusations_total",
			"Blocks of this node that pullers could not verify, by what re-verifying them here found: dropped (bad here), good.", "result"),
	}
	if m.identity = d.identity; m.identity == nil {
		m.identity = newIdentityMetrics(mk)
	}
	mk.read("kvferry_policy_rules", "Rules of the policy in force: who may pull what; 0 without a policy file, and with one that allows nothing.", func() float64 {
		if p := d.policy.get(); p != nil {
			return float64(len(p.Rules))
		}
		return 0
	})
	reg.MustRegister(&certificateCollector{d})
	m.drift = mk.counters("kvferry_planner_drift_total",
		"Changes of what the planner predicts from, after which it has dropped what was observed before: of a path's fetches, of a replica's prefill.", "what")
	for _, what := range []string{driftPath, driftReplica} {
		m.drift.WithLabelValues(what)
	}
	for _, l := range []string{"unix", "grpc", "admin"} {
		m.refusedConns.WithLabelValues(l)
	}
	for _, r := range []string{"dropped", "good"} {
		m.accused.WithLabelValues(r)
	}
	for c := transfer.Interactive; c <= transfer.Replication; c++ {
		m.egress.wait.WithLabelValues(c.String())
		m.egress.shared.WithLabelValues(c.String(), otherTenant)
		for t := range d.cfg.Tenants {
			m.egress.shared.WithLabelValues(c.String(), t)
		}
	}
	for _, p := range append([]PeerConfig{{Node: otherPeer}}, d.cfg.Peers...) {
		m.egress.served.WithLabelValues(p.Node)
	}
	mk.read("kvferry_migration_active_migrations", "Migrations into this node that run.", func() float64 { return float64(d.migrations.active()) })
	mk.read("kvferry_egress_oldest_offer_seconds", "Age of the oldest offer held for a puller; 0 when there is none.", func() float64 { return d.offers.oldest(time.Now()).Seconds() })
	mk.read("kvferry_daemon_shadow", "1 when the configuration has every migration planned and none carried out, else 0.", func() float64 { return one(d.cfg.Shadow) })
	mk.read("kvferry_daemon_start_time_seconds", "Unix time of the daemon's start.", func() float64 { return float64(d.started.UnixMilli()) / 1000 })
	reg.MustRegister(
		newBuild(d), &arenaCollector{d}, newOfferCollector(d), &sessionCollector{d}, newLinkCollector(d.links), &gpuCollector{d.load}, &engineCollector{d.load},
	)
	return m
}

func newMigrationMetrics(mk maker) migrationMetrics {
	m := migrationMetrics{
		ended:       mk.counters("kvferry_migration_ended_total", "Migrations into this node that ended, by mode and terminal state.", "mode", "state"),
		failures:    mk.counters("kvferry_migration_failures_total", "Ended migrations whose report has an error code, whatever their state.", "code"),
		seconds:     mk.histograms("kvferry_migration_duration_seconds", "Time from the request to the terminal state.", "mode", "state"),
		transfer:    mk.histogram("kvferry_migration_transfer_seconds", "Time in which pages moved, of migrations that moved some."),
		plans:       newPlanMetrics(mk),
		rawBytes:    mk.counter("kvferry_migration_raw_bytes_total", "Bytes of pages that landed and were verified."),
		wireBytes:   mk.counter("kvferry_migration_wire_bytes_total", "Bytes of chunks received for migrations, headers included, QUIC's overhead not."),
		hereBytes:   mk.counter("kvferry_migration_present_bytes_total", "Bytes of the sessions' blocks that were here already and did not move."),
		pages:       mk.counter("kvferry_migration_pages_total", "Pages landed and verified."),
		retried:     mk.counter("kvferry_migration_retried_pages_total", "Pages asked for again after failing verification."),
		blocksMoved: mk.counter("kvferry_migration_moved_blocks_total", "Blocks that migrations brought."),
		blocksHere:  mk.counter("kvferry_migration_present_blocks_total", "Blocks of the sessions that were here already."),
		computed:    mk.counter("kvferry_migration_computed_blocks_total", "Blocks that an engine prefilled while others of the session moved."),
		duplicate:   mk.counter("kvferry_migration_duplicate_bytes_total", "Bytes of blocks that had been asked for and were prefilled instead."),
		replanned:   mk.counter("kvferry_migration_replanned_total", "Fetches that were given up midway, because prefilling the rest had become the faster way."),
		staleTokens: mk.counter("kvferry_migration_stale_tokens_total", "Tokens that sessions grew by while they migrated and that did not move."),
	}
	steps := mk.histograms("kvferry_migration_step_seconds",
		"Time in one step of a migration. reserving holds the wait for slots and for blocks that others fill.", "step")
	for s := range stateCount {
		if !s.terminal() {
			m.steps[s] = steps.WithLabelValues(s.String())
		}
	}
	// A counter that begins at its first event hides it from rate() and increase().
	for mode := range pb.Mode_name {
		for s := range stateCount {
			if p := modes[pb.Mode(mode)]; s.terminal() && p != planner.ModeBackground {
				m.ended.WithLabelValues(modeLabel(pb.Mode(mode)), s.String())
			}
		}
	}
	for r := range reasonCodes {
		m.failures.WithLabelValues(string(r))
	}
	m.failures.WithLabelValues(otherCode)
	return m
}

// modeLabel is a mode's name; "unspecified" for a migration that ended before there was one.
func modeLabel(m pb.Mode) string { return strings.ToLower(strings.TrimPrefix(m.String(), "MODE_")) }

// stepped counts the time of one step.
func (m *migrationMetrics) stepped(s state, took time.Duration) {
	if o := m.steps[s]; o != nil {
		o.Observe(took.Seconds())
	}
}

// count adds an ended migration: the numbers of its report, and blockBytes for those it gives in blocks.
func (m *migrationMetrics) count(r *pb.MigrationReport, blockBytes int64) {
	mode, st := modeLabel(r.GetMode()), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "MIGRATION_STATE_"))
	total := r.GetTotal().AsDuration().Seconds()
	m.ended.WithLabelValues(mode, st).Inc()
	m.seconds.WithLabelValues(mode, st).Observe(total)
	if code := r.GetCode(); code != "" {
		if _, known := reasonCodes[Reason(code)]; !known {
			code = otherCode
		}
		m.failures.WithLabelValues(code).Inc()
	}
	if t := r.GetTransfer().AsDuration(); t > 0 {
		m.transfer.Observe(t.Seconds())
	}
	m.rawBytes.Add(float64(r.GetBytes()))
	m.wireBytes.Add(float64(r.GetWireBytes()))
	m.hereBytes.Add(float64(r.GetBlocksPresent() * blockBytes))
	m.pages.Add(float64(r.GetPages()))
	m.retried.Add(float64(r.GetPagesRetried()))
	m.blocksMoved.Add(float64(r.GetBlocksMoved()))
	m.blocksHere.Add(float64(r.GetBlocksPresent()))
	m.computed.Add(float64(r.GetBlocksComputed()))
	m.duplicate.Add(float64(r.GetDuplicateBytes()))
	if r.GetReplanned() != "" {
		m.replanned.Inc()
	}
	m.staleTokens.Add(float64(r.GetStaleTailTokens()))
}

// served counts bytes that went out to a puller.
func (d *Daemon) served(from transfer.Peer, s transfer.Served) {
	d.offers.served(s.Token, s.Bytes)
	d.metrics.egress.served.WithLabelValues(d.links.label(from.ID)).Add(float64(s.Bytes))
	d.metrics.egress.shared.WithLabelValues(s.Class.String(), d.cfg.tenantLabel(s.Tenant)).Add(float64(s.Bytes))
	if s.First {
		d.metrics.egress.wait.WithLabelValues(s.Class.String()).Observe(s.Waited.Seconds())
	}
}

// newBuild is the constant that names the build and the node.
func newBuild(d *Daemon) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kvferry_build_info", Help: "1, labelled with the daemon's version, the Go release that built it, and the node and region that it is.",
		ConstLabels: prometheus.Labels{"version": d.version, "goversion": goVersion(), "node": d.cfg.Node.ID, "region": d.cfg.Node.Region},
	})
	g.Set(1)
	return g
}
