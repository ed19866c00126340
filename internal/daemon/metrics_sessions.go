package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// sessionCollector reads the session store at scrape time.
type sessionCollector struct{ d *Daemon }

var (
	sessionRecords = prometheus.NewDesc("kvferry_session_records",
		"Sessions known, by state: owned here, forwarded to another node, elsewhere: was to come and has not, and may not be published here.", []string{"state"}, nil)
	sessionGone = prometheus.NewDesc("kvferry_session_forgotten_total",
		"Records of sessions that went: expired, nothing had changed for a week; displaced, others needed their room.", []string{"why"}, nil)
	sessionRows = []row[kvstore.SessionStats]{
		gaugeRow("kvferry_session_records_bytes", "Memory of the records.", nil, always(func(s kvstore.SessionStats) float64 { return float64(s.Bytes) })),
		gaugeRow("kvferry_session_records_limit_bytes", "What it may be at most.", nil, always(func(s kvstore.SessionStats) float64 { return float64(s.MaxBytes) })),
	}
)

// Describe implements prometheus.Collector.
func (c *sessionCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- sessionRecords
	ch <- sessionGone
	describeRows(ch, sessionRows)
}

// Collect implements prometheus.Collector.
func (c *sessionCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.d.sessions.Stats()
	for state, n := range map[string]int{"owned": st.Owned, "forwarded": st.Forwarded, "elsewhere": st.Elsewhere} {
		ch <- prometheus.MustNewConstMetric(sessionRecords, prometheus.GaugeValue, float64(n), state)
	}
	for why, n := range map[string]int64{"expired": st.Expired, "displaced": st.Displaced} {
		ch <- prometheus.MustNewConstMetric(sessionGone, prometheus.CounterValue, float64(n), why)
	}
	collectRows(ch, sessionRows, st)
}

func (d *Daemon) sessionsStatus() *pb.SessionsStatus {
	st := d.sessions.Stats()
	return &pb.SessionsStatus{
		Owned: int64(st.Owned), Forwarded: int64(st.Forwarded), Elsewhere: int64(st.Elsewhere), Bytes: st.Bytes, MaxBytes: st.MaxBytes,
		Expired: st.Expired, Displaced: st.Displaced,
	}
}
