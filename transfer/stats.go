package transfer

import (
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/repair"
)

// LinkStats is a snapshot of a link.
type LinkStats struct {
	Stripes int // live connections
	// RTTMin and RTTSmoothed are the least over the live stripes; 0: no stripe.
	// RTTMin is that of the last 40 s to 60 s in which round trips were measured:
	// it follows a path that became longer.
	RTTMin, RTTSmoothed time.Duration
	// Since the link began, all stripes, lost ones included, with QUIC's
	// overhead and without that of UDP and IP.
	BytesSent, BytesReceived                  uint64
	PacketsSent, PacketsReceived, PacketsLost uint64
	// Estimates are what past transfers say of the path; of an accepted link, over
	// which no read was started here, only the round-trip times.
	Estimates Estimates
	// Goodput is that of Estimates where it was measured on this link, in page
	// bytes per second. Meaningless unless GoodputKnown.
	Goodput        float64
	GoodputSamples int
	GoodputKnown   bool          // at least one sample
	GoodputAge     time.Duration // since the last sample
	// QueuedBytes is the egress backlog: page bytes of transfers that wait here
	// to be written.
	QueuedBytes int64
	// QueuedByClass is QueuedBytes by Class.
	QueuedByClass [classes]int64
	// Repair counts what repair did below QUIC, all stripes since the link began.
	// Its Group, Symbols and Depth are those of one stripe that sends parity now.
	Repair repair.Stats
	// Sent and Received count the pages that left here and that came, since the link began, and what coding them was worth.
	Sent, Received Coding
	Streams        int       // chunk streams being written or read here
	Transfers      int       // that run now, started by either side
	Calls          int       // in flight, made from here
	Since          time.Time // when the link began
}

// Stats returns a snapshot.
func (l *Link) Stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := l.mu.past
	s := LinkStats{
		Stripes: len(l.mu.stripes), QueuedByClass: l.sched.backlogs(), Since: l.started, Streams: int(l.streams.Load()),
		Transfers: len(l.mu.intakes) + len(l.mu.outflows), Calls: len(l.mu.calls),
	}
	s.Repair, s.Sent, s.Received = l.mu.pastRepair, l.pagesOut.snapshot(), l.pagesIn.snapshot()
	for _, n := range s.QueuedByClass {
		s.QueuedBytes += n
	}
	for _, st := range l.mu.stripes {
		r := st.repairStats()
		s.Repair.Add(r)
		if r.Symbols > s.Repair.Symbols {
			s.Repair.Group, s.Repair.Symbols, s.Repair.Depth = r.Group, r.Symbols, r.Depth
		}
		c := st.conn.ConnectionStats()
		total.add(c)
		if least := l.mu.path.least.value(); least > 0 {
			s.RTTMin = least
		} else if s.RTTMin == 0 || c.MinRTT < s.RTTMin { // not looked at yet
			s.RTTMin = c.MinRTT
		}
		if s.RTTSmoothed == 0 || c.SmoothedRTT < s.RTTSmoothed {
			s.RTTSmoothed = c.SmoothedRTT
		}
	}
	s.BytesSent, s.BytesReceived = total.bytesSent, total.bytesReceived
	s.PacketsSent, s.PacketsReceived, s.PacketsLost = total.packetsSent, total.packetsReceived, total.packetsLost
	s.Estimates = l.mu.path.est.estimates(time.Now(), s.RTTMin, s.RTTSmoothed)
	if g := s.Estimates.Goodput; g.Basis == Measured {
		s.Goodput, s.GoodputSamples, s.GoodputKnown, s.GoodputAge = g.Value, g.Samples, true, g.Age
	}
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
