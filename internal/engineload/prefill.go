package engineload

import "time"

const (
	// minPrefillTokens is the work behind a speed: a few prompts, so that one odd request does not make it.
	minPrefillTokens = 1024
	// prefillHold is how long a speed is kept while no new work gives another.
	prefillHold = 10 * time.Minute
)

// tracker follows one engine's counters from scrape to scrape.
type tracker struct {
	last     map[int]float64 // the latest known value of each counter, by its place in counters
	started  float64
	restarts int
	ranks    int

	ref   basis
	refAt time.Time // zero: no reference
	speed Prefill
}

// counters are the raw counters whose going back means a restart. ComputedTokens may be a difference and is not one.
var counters = []func(Load) Reading{
	func(l Load) Reading { return l.PromptTokens },
	func(l Load) Reading { return l.PrefixQueries },
	func(l Load) Reading { return l.PrefixHits },
	func(l Load) Reading { return l.PrefillSeconds },
	func(l Load) Reading { return l.QueueRequests },
	func(l Load) Reading { return l.QueueSeconds },
	func(l Load) Reading { return l.Preemptions },
}

// observe completes a load with what takes two scrapes.
func (t *tracker) observe(l *Load, b basis) {
	if t.restarted(*l, b) {
		t.restarts++
		t.last, t.refAt, t.speed = nil, time.Time{}, Prefill{}
	}
	t.remember(*l, b)
	t.measure(*l, b)
	if t.speed.SecondsPerToken.Known && l.ScrapedAt.Sub(t.speed.Until) > prefillHold {
		t.speed = Prefill{}
	}
	l.Prefill, l.Restarts = t.speed, t.restarts
}

// restarted says whether the engine is another process than at the last scrape.
func (t *tracker) restarted(l Load, b basis) bool {
	if t.started != 0 && b.started != 0 && t.started != b.started {
		return true
	}
	for i, counter := range counters {
		r := counter(l)
		if before, ok := t.last[i]; ok && r.Known && r.Value < before {
			return true
		}
	}
	return false
}

func (t *tracker) remember(l Load, b basis) {
	if t.last == nil {
		t.last = map[int]float64{}
	}
	for i, counter := range counters {
		if r := counter(l); r.Known {
			t.last[i] = r.Value
		}
	}
	if b.started != 0 {
		t.started = b.started
	}
}

// measure takes the speed once enough has been computed since the reference.
func (t *tracker) measure(l Load, b basis) {
	if !b.known {
		return
	}
	if t.refAt.IsZero() || t.ref.from != b.from || t.ranks != l.Ranks {
		// A rank that came brings a past of its own: start again.
		t.ref, t.refAt, t.ranks = b, l.ScrapedAt, l.Ranks
		return
	}
	tokens, seconds := b.tokens-t.ref.tokens, b.seconds-t.ref.seconds
	// Tokens may be counted before their seconds are, so both must have moved.
	if tokens < minPrefillTokens || seconds <= 0 {
		return
	}
	t.speed = Prefill{SecondsPerToken: Reading{seconds / tokens, true}, Tokens: tokens, Since: t.refAt, Until: l.ScrapedAt}
	t.ref, t.refAt = b, l.ScrapedAt
}
