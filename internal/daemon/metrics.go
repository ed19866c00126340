package daemon

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// metrics are the daemon's own; transfer registers its own beside them. Labels are bounded: engines, states and modes.
type metrics struct {
	migrations *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	pages      prometheus.Counter
	bytes      prometheus.Counter
	retried    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, d *Daemon) *metrics {
	m := &metrics{
		migrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvferry_migration_ended_total", Help: "Migrations into this node that ended, by mode and terminal state.",
		}, []string{"mode", "state"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kvferry_migration_duration_seconds", Help: "Time from the request to the terminal state.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 16),
		}, []string{"mode", "state"}),
		pages:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kvferry_migration_pages_total", Help: "Pages landed and verified."}),
		bytes:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kvferry_migration_page_bytes_total", Help: "Bytes of pages landed and verified."}),
		retried: prometheus.NewCounter(prometheus.CounterOpts{Name: "kvferry_migration_pages_retried_total", Help: "Pages asked for again after failing verification."}),
	}
	reg.MustRegister(m.migrations, m.seconds, m.pages, m.bytes, m.retried, &arenaCollector{d})
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	gauge("kvferry_migration_active_migrations", "Migrations into this node that run.", func() float64 { return float64(d.migrations.active()) })
	gauge("kvferry_egress_offers_offers", "Offers held for pullers.", func() float64 { return float64(d.offers.count()) })
	gauge("kvferry_egress_backlog_bytes", "Bytes that pullers still want from this node.", func() float64 { return float64(d.offers.backlog()) })
	return m
}

func (m *metrics) ended(r *pb.MigrationReport) {
	mode := strings.ToLower(strings.TrimPrefix(r.GetMode().String(), "MODE_"))
	state := strings.ToLower(strings.TrimPrefix(r.GetState().String(), "MIGRATION_STATE_"))
	m.migrations.WithLabelValues(mode, state).Inc()
	m.seconds.WithLabelValues(mode, state).Observe(r.GetTotal().AsDuration().Seconds())
	m.pages.Add(float64(r.GetPages()))
	m.bytes.Add(float64(r.GetBytes()))
	m.retried.Add(float64(r.GetPagesRetried()))
}

// arenaCollector reads the arenas at scrape time.
type arenaCollector struct{ d *Daemon }

var (
	arenaSlots = prometheus.NewDesc("kvferry_arena_slots_slots", "Slots by state: free, reserved, committed, draining.", []string{"engine", "state"}, nil)
	arenaTable = []struct {
		desc    *prometheus.Desc
		kind    prometheus.ValueType
		reading func(kvstore.ArenaStats) float64
	}{
		{arenaDesc("kvferry_arena_leases_leases", "Leases held."), prometheus.GaugeValue, func(s kvstore.ArenaStats) float64 { return float64(s.Leases) }},
		{arenaDesc("kvferry_arena_leased_blocks", "Blocks under a lease."), prometheus.GaugeValue, func(s kvstore.ArenaStats) float64 { return float64(s.LeasedBlocks) }},
		{arenaDesc("kvferry_arena_pinned_bytes", "Bytes locked in memory."), prometheus.GaugeValue, func(s kvstore.ArenaStats) float64 { return float64(s.PinnedBytes) }},
		{arenaDesc("kvferry_arena_evictions_total", "Blocks evicted."), prometheus.CounterValue, func(s kvstore.ArenaStats) float64 { return float64(s.Evictions) }},
		{arenaDesc("kvferry_arena_checksum_failures_total", "Pages that failed verification."), prometheus.CounterValue, func(s kvstore.ArenaStats) float64 { return float64(s.SumFailures) }},
	}
)

func arenaDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"engine"}, nil)
}

// Describe implements prometheus.Collector.
func (c *arenaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- arenaSlots
	for _, row := range arenaTable {
		ch <- row.desc
	}
}

// Collect implements prometheus.Collector.
func (c *arenaCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.d.engines.list() {
		st := e.arena.Stats()
		for state, n := range map[string]int{"free": st.SlotsFree, "reserved": st.SlotsReserved, "committed": st.SlotsCommitted, "draining": st.SlotsDraining} {
			ch <- prometheus.MustNewConstMetric(arenaSlots, prometheus.GaugeValue, float64(n), e.id, state)
		}
		for _, row := range arenaTable {
			ch <- prometheus.MustNewConstMetric(row.desc, row.kind, row.reading(st), e.id)
		}
	}
}
