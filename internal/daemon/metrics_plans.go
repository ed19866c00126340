package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// planMetrics are what plans were worth.
type planMetrics struct {
	predicted  *prometheus.HistogramVec // mode
	actual     *prometheus.HistogramVec // mode
	errorRatio *prometheus.GaugeVec     // mode
	ratio      *prometheus.HistogramVec // mode
	p95        *prometheus.CounterVec   // mode, result
	shadow     *prometheus.CounterVec   // mode
}

// ratioBuckets are about even in the logarithm: 10 %, 25 % and 50 % off, twice, four and eight times, either way.
func ratioBuckets() []float64 {
	return []float64{1.0 / 8, 1.0 / 4, 1.0 / 2, 1 / 1.5, 1 / 1.25, 1 / 1.1, 1, 1.1, 1.25, 1.5, 2, 4, 8}
}

// Values of the label result.
const (
	withinP95 = "within"
	aboveP95  = "above"
)

func newPlanMetrics(mk maker) planMetrics {
	m := planMetrics{
		predicted: mk.histograms("kvferry_migration_predicted_seconds",
			"Predicted time of committed migrations that had a prediction, moved blocks and were carried out as it was decided.", "mode"),
		actual: mk.histograms("kvferry_migration_actual_seconds",
			"Time from the request to the terminal state, of a hybrid until every block was here, of the migrations that kvferry_migration_predicted_seconds counts.", "mode"),
		errorRatio: mk.gauges("kvferry_migration_prediction_error_ratio",
			"Actual over predicted seconds, less 1, of the latest migration that kvferry_migration_predicted_seconds counts.", "mode"),
		ratio: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kvferry_migration_actual_over_predicted_ratio",
			Help:    "Actual over predicted seconds of the migrations that kvferry_migration_predicted_seconds counts.",
			Buckets: ratioBuckets(),
		}, []string{"mode"}),
		p95: mk.counters("kvferry_migration_predicted_bound_total",
			"Those migrations whose P95 was known, by whether they stayed within it (19 of 20 should) or came out above.", "mode", "result"),
		shadow: mk.counters("kvferry_migration_shadow_total",
			"Migrations that were planned in shadow mode and moved nothing, by the mode decided on. They count as redirect in the metrics of what ended.", "mode"),
	}
	mk.reg.MustRegister(m.ratio)
	for _, mode := range []pb.Mode{pb.Mode_MODE_FETCH, pb.Mode_MODE_HYBRID} { // those that move blocks
		l := modeLabel(mode)
		m.predicted.WithLabelValues(l)
		m.actual.WithLabelValues(l)
		m.ratio.WithLabelValues(l)
		m.p95.WithLabelValues(l, withinP95)
		m.p95.WithLabelValues(l, aboveP95)
	}
	for _, mode := range []pb.Mode{pb.Mode_MODE_REDIRECT, pb.Mode_MODE_FETCH, pb.Mode_MODE_RECOMPUTE, pb.Mode_MODE_HYBRID} {
		m.shadow.WithLabelValues(modeLabel(mode))
	}
	return m
}

// count adds a plan and what came of it.
func (m *planMetrics) count(r *pb.PlanRecord) {
	mode := modeLabel(r.GetDecided())
	if r.GetShadow() {
		m.shadow.WithLabelValues(mode).Inc()
	}
	if r.ActualOverPredicted == nil {
		return
	}
	m.predicted.WithLabelValues(mode).Observe(r.GetPredictedSeconds())
	m.actual.WithLabelValues(mode).Observe(r.GetActualSeconds())
	m.errorRatio.WithLabelValues(mode).Set(r.GetActualOverPredicted() - 1)
	m.ratio.WithLabelValues(mode).Observe(r.GetActualOverPredicted())
	if r.PredictedP95Seconds != nil {
		result := withinP95
		if r.GetActualSeconds() > r.GetPredictedP95Seconds() {
			result = aboveP95
		}
		m.p95.WithLabelValues(mode, result).Inc()
	}
}
