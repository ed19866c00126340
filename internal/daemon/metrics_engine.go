package daemon

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// otherEngine labels the engines beyond those that have a label of their own.
	otherEngine = "other"
	// maxEngineNames is how many engines that the configuration does not list have a label of their own at a time.
	maxEngineNames = 64
)

// engineNames bounds the label "engine": an engine chooses its id, and one that takes another at each start would make series
// without end. Configured engines have their own label; of the others those that registered first, until they unregister. An
// engine keeps its label until then: counts do not move from one to another.
type engineNames struct {
	configured map[string]bool
	mu         struct {
		sync.Mutex
		own  map[string]bool // not configured
		rest map[string]bool // without a label of their own; as many as there are engines
	}
}

func newEngineNames(cfg []EngineConfig) *engineNames {
	n := &engineNames{configured: map[string]bool{}}
	n.mu.own, n.mu.rest = map[string]bool{}, map[string]bool{}
	for _, e := range cfg {
		n.configured[e.ID] = true
	}
	return n
}

// add gives id a label of its own if there is room, and returns its label.
func (n *engineNames) add(id string) string {
	n.mu.Lock()
	switch {
	case n.configured[id] || n.mu.own[id] || n.mu.rest[id]:
	case id != otherEngine && len(n.mu.own) < maxEngineNames:
		n.mu.own[id] = true
	default:
		n.mu.rest[id] = true
	}
	n.mu.Unlock()
	return n.label(id)
}

// remove takes id's own label away and reports whether it had one to lose.
func (n *engineNames) remove(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	had := n.mu.own[id]
	delete(n.mu.own, id)
	delete(n.mu.rest, id)
	return had
}

// label is what stands for id in metrics.
func (n *engineNames) label(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.configured[id] || n.mu.own[id] {
		return id
	}
	return otherEngine
}

// engineOpened makes the series of a new engine, at zero.
func (m *metrics) engineOpened(id string) {
	label := m.engines.add(id)
	for _, call := range []string{callLookup, callAcquire} {
		for _, r := range prefixResults {
			m.prefix.WithLabelValues(m.region, label, call, r)
		}
	}
}

// engineClosed forgets an engine that is not registered any more, and reports whether it had a label of its own that goes with it.
func (m *metrics) engineClosed(id string) (own bool) {
	own = m.engines.remove(id)
	if own {
		m.prefix.DeletePartialMatch(prometheus.Labels{"engine": id})
	}
	return own
}

// asked adds a call's answers.
func (m *metrics) asked(e *engine, call string, c prefixCount) {
	label := m.engines.label(e.id)
	for i, n := range []int{c.local, c.migrated, c.landing, c.absent} {
		if n > 0 {
			m.prefix.WithLabelValues(m.region, label, call, prefixResults[i]).Add(float64(n))
		}
	}
}
