package daemon

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// auditMetrics count audit lines and what is in them.
type auditMetrics struct {
	lines      *prometheus.CounterVec // event, decision
	refusals   *prometheus.CounterVec // reason
	suppressed prometheus.Counter
	lost       prometheus.Counter
}

// refused counts a refusal, written or not.
func (m *auditMetrics) refused(r Reason) {
	if _, known := reasonCodes[r]; !known {
		r = otherCode
	}
	m.refusals.WithLabelValues(string(r)).Inc()
}

// identityMetrics count what the policy denied and the reading again of files.
type identityMetrics struct {
	audit   auditMetrics
	denials *prometheus.CounterVec // call
	reloads *prometheus.CounterVec // file, result
	failing *prometheus.GaugeVec   // file
}

// What is read again, as a label.
const (
	fileCertificate = "certificate"
	filePolicy      = "policy"
)

func newIdentityMetrics(mk maker) *identityMetrics {
	m := &identityMetrics{
		audit: auditMetrics{
			lines:      mk.counters("kvferry_audit_lines_total", "Audit lines written, by event and decision; summaries of what was left out count as one.", "event", "decision"),
			refusals:   mk.counters("kvferry_audit_refusals_total", "Refusals that an audit line is owed for, written or not, by reason.", "reason"),
			suppressed: mk.counter("kvferry_audit_suppressed_total", "Audit lines that were left out of a flood of their kind; a summary counts them."),
			lost:       mk.counter("kvferry_audit_lost_total", "Audit lines that audit_log could not take; they are in the daemon's log."),
		},
		denials: mk.counters("kvferry_policy_denials_total", "Calls that the policy file denied, by what was asked for.", "call"),
		reloads: mk.counters("kvferry_identity_reloads_total", "Times that a changed file was read, by file and by whether it was taken in.", "file", "result"),
		failing: mk.gauges("kvferry_identity_reload_refused", "1 while what the files hold is refused and what they held before is in force, else 0.", "file"),
	}
	for _, ev := range auditEvents {
		for _, d := range []string{granted, refused} {
			m.audit.lines.WithLabelValues(string(ev), d)
		}
	}
	for r := range reasonCodes {
		m.audit.refusals.WithLabelValues(string(r))
	}
	m.audit.refusals.WithLabelValues(otherCode)
	for _, ev := range []auditEvent{auditLocate, auditOffer, auditRead, auditHandOver, auditYield, auditConfirm, auditMigrate, auditObserve} {
		m.denials.WithLabelValues(string(ev))
	}
	for _, f := range []string{fileCertificate, filePolicy} {
		m.failing.WithLabelValues(f)
		for _, r := range []string{"taken", refused} {
			m.reloads.WithLabelValues(f, r)
		}
	}
	return m
}

// certificateCollector shows when certificates end.
type certificateCollector struct{ d *Daemon }

var certificateExpiry = prometheus.NewDesc("kvferry_tls_certificate_expiry_seconds",
	"Unix time of a certificate's end: this node's own, and the first to end of the authorities.", []string{"certificate"}, nil)

// Describe implements prometheus.Collector.
func (c *certificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- certificateExpiry }

// Collect implements prometheus.Collector.
func (c *certificateCollector) Collect(ch chan<- prometheus.Metric) {
	leaf, authorities := c.d.certificates()
	if leaf != nil {
		ch <- prometheus.MustNewConstMetric(certificateExpiry, prometheus.GaugeValue, float64(leaf.NotAfter.Unix()), "node")
	}
	if len(authorities) > 0 {
		ch <- prometheus.MustNewConstMetric(certificateExpiry, prometheus.GaugeValue, float64(firstEnd(authorities).Unix()), "authority")
	}
}

// firstEnd is when the first of some certificates ends.
func firstEnd(all []*x509.Certificate) time.Time {
	end := all[0].NotAfter
	for _, c := range all[1:] {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}
