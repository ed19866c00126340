package daemon

import (
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
)

const (
	// A run of claims is an observation once it has wholePrefill tokens, or when it ends with at least leastPrefill: of fewer the calls
	// take a part that the whole prefill does not have.
	wholePrefill, leastPrefill = 512, 256
)

// claimTimer observes an engine's prefill by its claims: the time from the answer to one until the next comes is what the blocks between
// took, calls and all, if the front has computed just those. It has not if it waited for a grant, or passed over blocks that were here or
// that a fetch brought: such a stretch ends the run, and what came before it counts. What an engine computes before the fetch begins, or
// after the migration has let it go, is not observed: how it got there is not known. It is safe for concurrent use, but claims of
// several fronts of one migration would be taken for those of one.
type claimTimer struct {
	mu struct {
		sync.Mutex
		engine   *engine // nil: not begun
		tenant   kvstore.Tenant
		keys     []kvstore.BlockKey
		running  bool
		from, at int // blocks that were observed: [from, at)
		until    int // the front may compute so far without waiting
		answered time.Time
		took     time.Duration // to compute [from, at)
	}
}

// begin says what is prefilled. keys are not changed afterwards.
func (c *claimTimer) begin(e *engine, t kvstore.Tenant, keys []kvstore.BlockKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.engine, c.mu.tenant, c.mu.keys = e, t, keys
}

// claimed notes a claim that has just come, and returns what it completes; ok is false when that is nothing.
func (c *claimTimer) claimed(now time.Time, computed int) (e *engine, p planner.Prefill, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.running {
		return nil, p, false
	}
	if computed < c.mu.at || computed > c.mu.until || c.fetchedLocked(c.mu.at, computed) {
		return c.endLocked()
	}
	c.mu.took += now.Sub(c.mu.answered)
	c.mu.at = computed
	if (c.mu.at-c.mu.from)*c.mu.engine.layout.BlockTokens < wholePrefill {
		return nil, p, false
	}
	e, p, ok = c.endLocked()
	c.mu.running, c.mu.from, c.mu.took = true, c.mu.at, 0 // it goes on
	return e, p, ok
}

// answered notes what a claim was answered, and returns what that completes.
func (c *claimTimer) answered(now time.Time, computed, until int, ended bool) (e *engine, p planner.Prefill, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.engine == nil {
		return nil, p, false
	}
	until = min(until, len(c.mu.keys))
	if ended || until <= computed || c.presentLocked(computed, until) {
		return c.endLocked()
	}
	if !c.mu.running {
		c.mu.running, c.mu.from, c.mu.at, c.mu.took = true, computed, computed, 0
	}
	c.mu.until, c.mu.answered = until, now
	return nil, p, false
}

// endLocked ends the run and returns it if it is long enough.
func (c *claimTimer) endLocked() (*engine, planner.Prefill, bool) {
	running := c.mu.running
	c.mu.running = false
	n := int64(c.mu.engine.layout.BlockTokens)
	p := planner.Prefill{Cached: n * int64(c.mu.from), Uncached: n * int64(c.mu.at-c.mu.from), Seconds: c.mu.took.Seconds()}
	return c.mu.engine, p, running && p.Uncached >= leastPrefill && p.Seconds > 0
}

// presentLocked says that one of the blocks [from, to) is here.
func (c *claimTimer) presentLocked(from, to int) bool {
	for _, k := range c.mu.keys[from:to] {
		if st, _ := c.mu.engine.arena.Lookup(c.mu.tenant, k); st == kvstore.BlockPresent {
			return true
		}
	}
	return false
}

// fetchedLocked says that one of the blocks [from, to) came from another node.
func (c *claimTimer) fetchedLocked(from, to int) bool {
	for _, k := range c.mu.keys[from:to] {
		if st, ref := c.mu.engine.arena.Lookup(c.mu.tenant, k); st == kvstore.BlockPresent && c.mu.engine.migrated(ref) {
			return true
		}
	}
	return false
}
