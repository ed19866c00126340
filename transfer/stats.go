package transfer

import (
	"time"

	"github.com/quic-go/quic-go"
)

// LinkStats is a snapshot of a link.
type LinkStats struct {
	Stripes int // live connections
	// RTTMin and RTTSmoothed are the least over the live stripes; 0: no stripe.
	RTTMin, RTTSmoothed time.Duration
	// Since the link began, all stripes, lost ones included, with QUIC's
	// overhead and without that of UDP and IP.
	BytesSent, BytesReceived                  uint64
	PacketsSent, PacketsReceived, PacketsLost uint64
	// Goodput is the estimate from past reads that were started here, in page
	// bytes per second, without the first round trip; a moving average that
	// weighs the last transfer 0.3. Reads that ran side by side each count
	// their share. Meaningless unless GoodputKnown.
	Goodput        float64
	GoodputSamples int
	GoodputKnown   bool          // at least one sample
	GoodputAge     time.Duration // since the last sample
	// QueuedBytes is the egress backlog: page bytes of transfers that wait here
	// to be written.
	QueuedBytes int64
	Streams     int       // chunk streams being written or read here
	Transfers   int       // that run now, started by either side
	Calls       int       // in flight, made from here
	Since       time.Time // when the link began
}

// Stats returns a snapshot.
func (l *Link) Stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := l.mu.past
	s := LinkStats{
		Stripes: len(l.mu.stripes), QueuedBytes: l.sched.backlog(), Since: l.started, Streams: int(l.streams.Load()),
		Transfers: len(l.mu.intakes) + len(l.mu.outflows), Calls: len(l.mu.calls),
		Goodput: l.mu.goodput.value, GoodputSamples: l.mu.goodput.samples, GoodputKnown: l.mu.goodput.samples > 0,
	}
	if s.GoodputKnown {
		s.GoodputAge = time.Since(l.mu.goodput.last)
	}
	for _, st := range l.mu.stripes {
		c := st.conn.ConnectionStats()
		total.add(c)
		if s.RTTMin == 0 || c.MinRTT < s.RTTMin {
			s.RTTMin = c.MinRTT
		}
		if s.RTTSmoothed == 0 || c.SmoothedRTT < s.RTTSmoothed {
			s.RTTSmoothed = c.SmoothedRTT
		}
	}
	s.BytesSent, s.BytesReceived = total.bytesSent, total.bytesReceived
	s.PacketsSent, s.PacketsReceived, s.PacketsLost = total.packetsSent, total.packetsReceived, total.packetsLost
	return s
}

// pastStripes adds up the counters of connections.
type pastStripes struct {
	bytesSent, bytesReceived, packetsSent, packetsReceived, packetsLost uint64
}

func (p *pastStripes) add(c quic.ConnectionStats) {
	p.bytesSent += c.BytesSent
	p.bytesReceived += c.BytesReceived
	p.packetsSent += c.PacketsSent
	p.packetsReceived += c.PacketsReceived
	p.packetsLost += c.PacketsLost
}

// goodput is the moving average of LinkStats.Goodput.
type goodput struct {
	value   float64
	samples int
	last    time.Time
}

// minGoodputBytes is the least that a transfer must move to be a sample: less
// says more about slow start than about the link.
const minGoodputBytes = 1 << 20

func (g *goodput) sample(bytes int64, d time.Duration) {
	if bytes < minGoodputBytes || d <= 0 {
		return
	}
	rate := float64(bytes) / d.Seconds()
	if g.samples == 0 {
		g.value = rate
	} else {
		g.value += 0.3 * (rate - g.value)
	}
	g.samples, g.last = g.samples+1, time.Now()
}
