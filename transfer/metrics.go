package transfer

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the agent's counters and gauges. They work without a Registerer.
type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	bytesSent, bytesReceived              prometheus.Counter
	codedPages, codedWire                 prometheus.Counter
	mismatches, retries, duplicates, late prometheus.Counter
	hedged                                prometheus.Counter
	retried, cut, stalled                 prometheus.Counter
	links, stripes, streams               prometheus.Gauge
	refused                               *prometheus.CounterVec // by refusal
	transfers                             *prometheus.CounterVec // by op and state
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kvferry", Subsystem: "transfer", Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kvferry", Subsystem: "transfer", Name: name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	m.bytesSent = counter("sent_bytes_total", "Page bytes written to connections, repeats included.")
	m.codedPages = counter("coded_page_bytes_total", "Page bytes that left coded, repeats included.")
	m.codedWire = counter("coded_wire_bytes_total", "Bytes that those pages took when coded.")
	m.bytesReceived = counter("received_bytes_total", "Page bytes read from connections, repeats included.")
	m.mismatches = counter("checksum_mismatches_total", "Pages that did not verify.")
	m.retries = counter("page_retries_total", "Pages asked for again.")
	m.duplicates = counter("duplicate_pages_total", "Pages that arrived more than once and were dropped.")
	m.hedged = counter("hedged_bytes_total", "Page bytes written a second time, over another connection, because the first was slow.")
	m.late = counter("late_chunks_total", "Chunks of transfers that were over, dropped.")
	m.links = gauge("links", "Live links, dialled and accepted.")
	m.stripes = gauge("stripes", "Live connections.")
	m.streams = gauge("streams", "Chunk streams being written or read.")
	m.transfers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "kvferry", Subsystem: "transfer",
		Name: "transfers_total", Help: "Transfers started here that reached a terminal state.",
	}, []string{"op", "state"})
	m.cut = counter("cut_streams_total", "Chunk streams of peers that were ended here: without a header in time, or open after their transfer was over.")
	m.stalled = counter("stalled_reads_total", "Reads of peers that were ended here because the peer took no byte of them, or too few.")
	m.retried = counter("address_checks_total", "Newcomers that had to show that their address is theirs, because many connections were on their way.")
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "kvferry", Subsystem: "transfer",
		Name: "refused_connections_total", Help: "Connections of peers that were refused: too many on their way, of one address, of one peer or in all, or without a proper hello.",
	}, []string{"reason"})
	for _, why := range []refusal{refusedArriving, refusedAddress, refusedPeer, refusedConnections, refusedHello} {
		m.refused.WithLabelValues(string(why))
	}
	m.all = append(m.all, m.transfers, m.refused)
	if r == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			m.all = m.all[:i]
			m.unregister()
			return nil, errors.Join(err, errors.New("give each agent of a process a Registerer of its own, see prometheus.WrapRegistererWith"))
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}
