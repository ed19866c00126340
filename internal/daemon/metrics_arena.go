package daemon

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

func goVersion() string { return runtime.Version() }

// row is one metric of a collector that reads a T; reading says whether there is a value.
type row[T any] struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	reading func(T) (float64, bool)
}

func always[T any](f func(T) float64) func(T) (float64, bool) {
	return func(v T) (float64, bool) { return f(v), true }
}

func gaugeRow[T any](name, help string, labels []string, f func(T) (float64, bool)) row[T] {
	return row[T]{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue, f}
}

func counterRow[T any](name, help string, labels []string, f func(T) (float64, bool)) row[T] {
	return row[T]{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue, f}
}

// collect sends every reading that v has: what is unknown has no sample, not a zero.
func collectRows[T any](ch chan<- prometheus.Metric, rows []row[T], v T, labels ...string) {
	for _, r := range rows {
		if x, ok := r.reading(v); ok {
			ch <- prometheus.MustNewConstMetric(r.desc, r.kind, x, labels...)
		}
	}
}

func describeRows[T any](ch chan<- *prometheus.Desc, rows []row[T]) {
	for _, r := range rows {
		ch <- r.desc
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// arenaCollector reads the arenas at scrape time.
type arenaCollector struct{ d *Daemon }

var (
	arenaSlots = prometheus.NewDesc("kvferry_arena_slots", "Slots by state: free, reserved, committed, draining.", []string{"engine", "state"}, nil)
	arenaRows  = func() []row[kvstore.ArenaStats] {
		type st = kvstore.ArenaStats
		labels := []string{"engine"}
		return []row[st]{
			gaugeRow("kvferry_arena_size_bytes", "Size of the arena's file.", labels, always(func(s st) float64 { return float64(s.Bytes) })),
			gaugeRow("kvferry_arena_touched_bytes", "Bytes of the arena that are backed by memory.", labels, always(func(s st) float64 { return float64(s.TouchedBytes) })),
			gaugeRow("kvferry_arena_pinned_bytes", "Bytes locked in memory.", labels, always(func(s st) float64 { return float64(s.PinnedBytes) })),
			gaugeRow("kvferry_arena_leases", "Leases held.", labels, always(func(s st) float64 { return float64(s.Leases) })),
			gaugeRow("kvferry_arena_leased_blocks", "Blocks under a lease.", labels, always(func(s st) float64 { return float64(s.LeasedBlocks) })),
			gaugeRow("kvferry_arena_broken", "1 when the arena's memory faulted and it is out of use.", labels, always(func(s st) float64 { return one(s.Broken) })),
		}
	}()
	arenaCounters = []row[kvstore.ArenaStats]{
		counterRow("kvferry_arena_evictions_total", "Blocks evicted.", []string{"engine"}, always(func(s kvstore.ArenaStats) float64 { return float64(s.Evictions) })),
		counterRow("kvferry_arena_restored_blocks_total", "Blocks taken over, verified, from before a restart.", []string{"engine"}, always(func(s kvstore.ArenaStats) float64 { return float64(s.RestoredBlocks) })),
		counterRow("kvferry_arena_restore_dropped_blocks_total", "Blocks from before a restart that did not verify.", []string{"engine"}, always(func(s kvstore.ArenaStats) float64 { return float64(s.RestoreDropped) })),
		counterRow("kvferry_arena_checksum_failures_total", "Pages that failed verification.", []string{"engine"}, always(func(s kvstore.ArenaStats) float64 { return float64(s.SumFailures) })),
	}
)

// Describe implements prometheus.Collector.
func (c *arenaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- arenaSlots
	describeRows(ch, arenaRows)
	describeRows(ch, arenaCounters)
}

// Collect implements prometheus.Collector. Engines that share a label are added up, and with them the counters of those that are
// gone; gauges are of arenas that are there.
func (c *arenaCollector) Collect(ch chan<- prometheus.Metric) {
	live, counters := c.d.engines.counted()
	byLabel := map[string]kvstore.ArenaStats{}
	for _, e := range live {
		st := e.arena.Stats()
		counters[e.label] = addCounters(counters[e.label], st)
		if e.gauge {
			byLabel[e.label] = addStats(byLabel[e.label], st)
		}
	}
	for label, st := range byLabel {
		for state, n := range map[string]int{"free": st.SlotsFree, "reserved": st.SlotsReserved, "committed": st.SlotsCommitted, "draining": st.SlotsDraining} {
			ch <- prometheus.MustNewConstMetric(arenaSlots, prometheus.GaugeValue, float64(n), label, state)
		}
		collectRows(ch, arenaRows, st, label)
	}
	for label, st := range counters {
		collectRows(ch, arenaCounters, st, label)
	}
}

// addStats adds up the gauges of two arenas; broken when one is.
func addStats(a, b kvstore.ArenaStats) kvstore.ArenaStats {
	a.SlotsFree += b.SlotsFree
	a.SlotsReserved += b.SlotsReserved
	a.SlotsCommitted += b.SlotsCommitted
	a.SlotsDraining += b.SlotsDraining
	a.Leases += b.Leases
	a.LeasedBlocks += b.LeasedBlocks
	a.Bytes += b.Bytes
	a.TouchedBytes += b.TouchedBytes
	a.PinnedBytes += b.PinnedBytes
	a.Broken = a.Broken || b.Broken
	return a
}

// addCounters adds b's counters to a.
func addCounters(a, b kvstore.ArenaStats) kvstore.ArenaStats {
	a.Evictions += b.Evictions
	a.SumFailures += b.SumFailures
	a.RestoredBlocks += b.RestoredBlocks
	a.RestoreDropped += b.RestoreDropped
	return a
}

// offerCollector reads what is held for pullers.
type offerCollector struct {
	d    *Daemon
	rows []row[held]
}

// held is what one peer, or all that are not listed, holds of this node.
type held struct {
	offers int
	bytes  int64
}

func newOfferCollector(d *Daemon) *offerCollector {
	labels := []string{"peer"}
	return &offerCollector{d, []row[held]{
		gaugeRow("kvferry_egress_offers", "Offers held for pullers: sessions leased out.", labels, always(func(h held) float64 { return float64(h.offers) })),
		gaugeRow("kvferry_egress_backlog_bytes", "Bytes that pullers still want from this node.", labels, always(func(h held) float64 { return float64(h.bytes) })),
	}}
}

// Describe implements prometheus.Collector.
func (c *offerCollector) Describe(ch chan<- *prometheus.Desc) { describeRows(ch, c.rows) }

// Collect implements prometheus.Collector.
func (c *offerCollector) Collect(ch chan<- prometheus.Metric) {
	byPeer := map[string]held{otherPeer: {}}
	for id := range c.d.links.peers {
		byPeer[string(id)] = held{}
	}
	for peer, more := range c.d.offers.held() {
		label := c.d.links.label(peer)
		h := byPeer[label]
		byPeer[label] = held{h.offers + more.offers, h.bytes + more.bytes}
	}
	for label, h := range byPeer {
		collectRows(ch, c.rows, h, label)
	}
}

// held is what each peer holds.
func (o *offers) held() map[transfer.PeerID]held {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[transfer.PeerID]held{}
	for _, of := range o.mu.byID {
		h := out[of.peer]
		out[of.peer] = held{h.offers + 1, h.bytes + of.bytesLeft}
	}
	return out
}

// oldest is the age of the oldest offer, 0 without one.
func (o *offers) oldest(now time.Time) (age time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range o.mu.byID {
		age = max(age, now.Sub(of.made))
	}
	return age
}

// The calls by which engines ask for blocks, and what they find.
const (
	callLookup  = "lookup"
	callAcquire = "acquire"
)

var prefixResults = []string{"local", "migrated", "landing", "absent"}

// prefixCount counts the answers of one call.
type prefixCount struct{ local, migrated, landing, absent int }

// found counts a block that is there.
func (c *prefixCount) found(e *engine, ref kvstore.SlotRef) {
	if e.migrated(ref) {
		c.migrated++
	} else {
		c.local++
	}
}

// landedFrom notes that a slot's block came from another node; only its generation has to be remembered.
func (e *engine) landedFrom(ref kvstore.SlotRef) { e.landed[ref.Slot].Store(ref.Generation) }

// migrated reports whether the block in a slot came from another node.
func (e *engine) migrated(ref kvstore.SlotRef) bool {
	return int(ref.Slot) < len(e.landed) && e.landed[ref.Slot].Load() == ref.Generation
}
