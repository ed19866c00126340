package daemon

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/transfer"
)

// otherPeer labels what peers do that the configuration does not list: they may pull, and there may be any number.
const otherPeer = "other"

// label is a peer's name in metrics.
func (l *links) label(id transfer.PeerID) string {
	if _, ok := l.peers[id]; ok {
		return string(id)
	}
	return otherPeer
}

// linkCollector reads the links. Counters of links that have ended stay in.
type linkCollector struct {
	links *links
	mu    struct {
		sync.Mutex
		live map[*transfer.Link]string // label
		past map[string]linkCounts
	}
}

// linkCounts are the counters of all links with one peer.
type linkCounts struct {
	transfer.LinkStats // counters only
	dialFailures       uint64
}

func (c *linkCounts) add(st transfer.LinkStats) {
	c.BytesSent += st.BytesSent
	c.BytesReceived += st.BytesReceived
	c.PacketsSent += st.PacketsSent
	c.PacketsReceived += st.PacketsReceived
	c.PacketsLost += st.PacketsLost
	c.Repair.Add(st.Repair)
	c.Sent.Add(st.Sent)
	c.Received.Add(st.Received)
}

func newLinkCollector(l *links) *linkCollector {
	c := &linkCollector{links: l}
	c.mu.live, c.mu.past = map[*transfer.Link]string{}, map[string]linkCounts{}
	l.counters = c
	return c
}

// observe takes note of links that came, and of the last numbers of those that went.
func (c *linkCollector) observe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observeLocked()
}

func (c *linkCollector) observeLocked() {
	now := map[*transfer.Link]bool{}
	for _, link := range c.links.agent.Links() {
		now[link] = true
		c.mu.live[link] = c.links.label(link.Peer().ID)
	}
	for link, label := range c.mu.live {
		if now[link] {
			continue
		}
		st := link.Stats()
		if st.Stripes > 0 { // its last connections are closing
			continue
		}
		past := c.mu.past[label]
		past.add(st)
		c.mu.past[label] = past
		delete(c.mu.live, link)
	}
}

// counts adds up what every peer's links have counted so far.
func (c *linkCollector) counts() map[string]linkCounts {
	out := map[string]linkCounts{}
	for id, n := range c.links.failures() {
		out[string(id)] = linkCounts{dialFailures: n}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observeLocked()
	for label, past := range c.mu.past {
		sum := out[label]
		sum.add(past.LinkStats)
		out[label] = sum
	}
	for link, label := range c.mu.live {
		sum := out[label]
		sum.add(link.Stats())
		out[label] = sum
	}
	return out
}

var linkLabels = []string{"peer"}

var linkCounters = []row[linkCounts]{
	counterRow("kvferry_link_sent_bytes_total", "Bytes sent in QUIC packets, by the peer; UDP and IP headers do not count.", linkLabels, always(func(c linkCounts) float64 { return float64(c.BytesSent) })),
	counterRow("kvferry_link_received_bytes_total", "Bytes received in QUIC packets.", linkLabels, always(func(c linkCounts) float64 { return float64(c.BytesReceived) })),
	counterRow("kvferry_link_sent_packets_total", "QUIC packets sent.", linkLabels, always(func(c linkCounts) float64 { return float64(c.PacketsSent) })),
	counterRow("kvferry_link_received_packets_total", "QUIC packets received.", linkLabels, always(func(c linkCounts) float64 { return float64(c.PacketsReceived) })),
	counterRow("kvferry_link_lost_packets_total", "QUIC packets sent and declared lost: loss is this over kvferry_link_sent_packets_total, as the sender sees it.", linkLabels, always(func(c linkCounts) float64 { return float64(c.PacketsLost) })),
	counterRow("kvferry_link_repair_covered_packets_total", "QUIC packets sent that parity was made for: none where the path loses nothing.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.Packets) })),
	counterRow("kvferry_link_repair_parity_packets_total", "Parity packets sent.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.ParityPackets) })),
	counterRow("kvferry_link_repair_parity_bytes_total", "Bytes of parity packets sent, over kvferry_link_sent_bytes_total the price of repair.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.ParityBytes) })),
	counterRow("kvferry_link_repair_repaired_packets_total", "QUIC packets from the peer that were lost and rebuilt here from parity.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.Repaired) })),
	counterRow("kvferry_link_repair_unrepaired_packets_total", "QUIC packets from the peer that were lost, named by parity, and could not be rebuilt: QUIC sends them again and slows down.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.Unrepaired) })),
	counterRow("kvferry_link_repair_rejected_packets_total", "Packets of repair that named a connection of the peer and were not from it, changed on the way, or came before: dropped. Someone on the path forges or replays, or the path damages packets.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Repair.Rejected) })),
	counterRow("kvferry_link_sent_page_bytes_total", "Bytes of pages sent, before they are coded, repeats included.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Sent.PageBytes) })),
	counterRow("kvferry_link_sent_page_wire_bytes_total", "Bytes that those pages took, coded where they were: kvferry_link_sent_page_bytes_total over this is what codecs gain.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Sent.WireBytes) })),
	counterRow("kvferry_link_sent_coded_page_bytes_total", "Bytes, before they are coded, of those pages that were.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Sent.CodedBytes) })),
	counterRow("kvferry_link_received_page_bytes_total", "Bytes of pages received, after they are decoded, repeats included.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Received.PageBytes) })),
	counterRow("kvferry_link_received_page_wire_bytes_total", "Bytes that those pages took, coded where they were.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Received.WireBytes) })),
	counterRow("kvferry_link_received_coded_page_bytes_total", "Bytes, after they are decoded, of those pages that were coded.", linkLabels, always(func(c linkCounts) float64 { return float64(c.Received.CodedBytes) })),
	counterRow("kvferry_link_encode_seconds_total", "Time that coding pages took, all processors together.", linkLabels, always(func(c linkCounts) float64 { return c.Sent.Busy.Seconds() })),
	counterRow("kvferry_link_decode_seconds_total", "Time that decoding pages took, all processors together.", linkLabels, always(func(c linkCounts) float64 { return c.Received.Busy.Seconds() })),
	counterRow("kvferry_link_dial_failures_total", "Attempts to connect to the peer that failed.", linkLabels, always(func(c linkCounts) float64 { return float64(c.dialFailures) })),
}

// linkGauges are of configured peers only: several unlisted ones have no common round trip.
var linkGauges = []row[view]{
	gaugeRow("kvferry_link_up", "1 when a link with the peer is up; links are made when first needed.", linkLabels, always(func(v view) float64 { return one(v.connected) })),
	gaugeRow("kvferry_link_stripes", "QUIC connections of the link that is up.", linkLabels, whenUp(func(v view) float64 { return float64(v.stats.Stripes) })),
	gaugeRow("kvferry_link_repair_symbols", "Parity symbols of half a packet that a whole group of packets to the peer has; 0: no parity is sent.", linkLabels, whenUp(func(v view) float64 { return float64(v.stats.Repair.Symbols) })),
	gaugeRow("kvferry_link_rtt_seconds", "Smoothed round-trip time of the fastest connection.", linkLabels, whenUp(func(v view) float64 { return v.stats.RTTSmoothed.Seconds() })),
	gaugeRow("kvferry_link_rtt_min_seconds", "Least round-trip time of the last minute in which any was measured.", linkLabels, whenUp(func(v view) float64 { return v.stats.RTTMin.Seconds() })),
	gaugeRow("kvferry_link_queued_bytes", "Page bytes that wait here to be written to the peer.", linkLabels, whenUp(func(v view) float64 { return float64(v.stats.QueuedBytes) })),
	gaugeRow("kvferry_link_goodput_bytes_per_second", "Page bytes a second of past migrations from the peer, a moving average; absent until measured.", linkLabels, whenMeasured(func(v view) float64 { return v.stats.Goodput })),
	gaugeRow("kvferry_link_goodput_age_seconds", "Time since the goodput was measured last.", linkLabels, whenMeasured(func(v view) float64 { return v.stats.GoodputAge.Seconds() })),
	gaugeRow("kvferry_link_goodput_spread_bytes_per_second", "Standard deviation of that goodput.", linkLabels, whenMeasured(func(v view) float64 { return v.stats.Estimates.Goodput.Spread })),
	gaugeRow("kvferry_link_capacity_bytes_per_second", "The most that the path from the peer delivered over a round trip in the last ten minutes of work, in QUIC bytes; remembered over restarts, absent until measured.", linkLabels, whenKnown(func(v view) transfer.Estimate { return v.stats.Estimates.Capacity })),
	gaugeRow("kvferry_link_capacity_age_seconds", "Time since the capacity was measured.", linkLabels, func(v view) (float64, bool) {
		return v.stats.Estimates.Capacity.Age.Seconds(), v.stats.Estimates.Capacity.Known()
	}),
	gaugeRow("kvferry_link_loss_ratio", "Share of the peer's packets that it declared lost lately, without those of a queue that overflowed where they can be told apart; remembered over restarts, absent until measured.", linkLabels, whenKnown(func(v view) transfer.Estimate { return v.stats.Estimates.Loss })),
	gaugeRow("kvferry_link_ramp_seconds", "Time that a cold link took to reach 0.9 of its rate; remembered over restarts, absent until measured.", linkLabels, whenKnown(func(v view) transfer.Estimate { return v.stats.Estimates.Ramp })),
	gaugeRow("kvferry_link_codec_ratio", "Page bytes over what they took coded, of past migrations from the peer, a moving average, 1 where pages go raw; remembered over restarts, absent until measured.", linkLabels, whenKnown(func(v view) transfer.Estimate { return v.stats.Estimates.Ratio })),
	gaugeRow("kvferry_link_codec_bytes_per_second", "Page bytes a second that the slower end codes or decodes, of the codec that the peer's pages come with; remembered over restarts, absent until measured.", linkLabels, whenKnown(func(v view) transfer.Estimate { return v.stats.Estimates.CodecRate })),
	gaugeRow("kvferry_link_prior_goodput_bytes_per_second", "Configured goodput (peers.prior_bps), in bytes; absent when there is none.", linkLabels, func(v view) (float64, bool) {
		return v.config.PriorBps / 8, v.config.PriorBps > 0
	}),
}

func whenUp(f func(view) float64) func(view) (float64, bool) {
	return func(v view) (float64, bool) {
		if !v.connected || v.stats.Stripes == 0 {
			return 0, false
		}
		return f(v), true
	}
}

func whenKnown(f func(view) transfer.Estimate) func(view) (float64, bool) {
	return func(v view) (float64, bool) {
		e := f(v)
		return e.Value, e.Known()
	}
}

func whenMeasured(f func(view) float64) func(view) (float64, bool) {
	return func(v view) (float64, bool) {
		if !v.stats.GoodputKnown {
			return 0, false
		}
		return f(v), true
	}
}

// Describe implements prometheus.Collector.
func (c *linkCollector) Describe(ch chan<- *prometheus.Desc) {
	describeRows(ch, linkCounters)
	describeRows(ch, linkGauges)
}

// Collect implements prometheus.Collector.
func (c *linkCollector) Collect(ch chan<- prometheus.Metric) {
	for label, sum := range c.counts() {
		collectRows(ch, linkCounters, sum, label)
	}
	for _, v := range c.links.views() {
		if c.links.label(v.peer) != otherPeer {
			collectRows(ch, linkGauges, v, string(v.peer))
		}
	}
}
