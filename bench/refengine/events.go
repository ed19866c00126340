package refengine

import (
	"context"
	"slices"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// maxStale bounds the invalidations that wait for a turn; beyond it everything
// is dropped.
const maxStale = 256

// Reconnection to the event stream, in seconds.
const (
	firstEventRetry = 0.1
	lastEventRetry  = 1.0
)

// readEvents is the goroutine that reads the daemon's events until Close,
// reconnecting with doubling waits. A stream that the daemon refuses because it
// has restarted since is how an idle engine learns of that.
func (e *Engine) readEvents() {
	retry := firstEventRetry
	for {
		arena := e.arenaID()
		err := e.streamEvents(arena, func() { retry = firstEventRetry })
		if arenaGone(err) && e.renew(arena) == nil {
			retry = firstEventRetry
		}
		if e.closing.Err() != nil {
			return
		}
		e.count(func(c *Counters) {
			c.EventsAttached = false
			if err != nil {
				c.EventsError = err.Error()
			}
		})
		if sleep(e.closing, retry) != nil {
			return
		}
		retry = min(2*retry, lastEventRetry)
	}
}

func (e *Engine) streamEvents(arena string, attached func()) error {
	stream, err := e.client.Events(e.closing, &kvferryv1.EventsRequest{EngineId: e.cfg.EngineID, ArenaId: arena})
	if err != nil {
		return err
	}
	e.count(func(c *Counters) { c.EventsAttached, c.EventsError = true, "" })
	for {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		attached()
		e.count(func(c *Counters) { c.Events++ })
		e.handle(ev)
		if e.cfg.OnEvent != nil {
			e.cfg.OnEvent(ev)
		}
	}
}

func (e *Engine) handle(ev *kvferryv1.EventsResponse) {
	switch v := ev.GetEvent().(type) {
	case *kvferryv1.EventsResponse_Invalidate:
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.mu.stale) < maxStale {
			e.mu.stale = append(e.mu.stale, v.Invalidate)
		} else {
			e.mu.staleAll = true
		}
	case *kvferryv1.EventsResponse_PublishNow:
		e.republish(v.PublishNow.GetSession())
	}
}

// republish answers a publish-now event with what is finished: this engine
// writes through, so the blocks are in the daemon already.
func (e *Engine) republish(ref *kvferryv1.SessionRef) {
	e.mu.Lock()
	p, ok := e.mu.published[sessionKey(ref.GetTenant(), ref.GetSessionId())]
	e.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(e.closing, callTimeout)
	defer cancel()
	// A refusal means that the session has moved on; the daemon knows better.
	_, _ = e.client.PublishSession(ctx, &kvferryv1.PublishSessionRequest{
		EngineId: e.cfg.EngineID, ArenaId: e.arenaID(), Session: ref, BlockKeys: p.keys, Tokens: p.tokens,
		Fidelity: kvferryv1.Fidelity_FIDELITY_EXACT,
	})
}

func sessionKey(tenant, session string) string { return tenant + "\x00" + session }

// remember keeps what a session consists of, for publish-now events.
func (e *Engine) remember(tenant, session string, p published) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := sessionKey(tenant, session)
	if _, ok := e.mu.published[key]; !ok && len(e.mu.published) >= maxPublished {
		for k := range e.mu.published { // any one: publish-now then finds nothing to add
			delete(e.mu.published, k)
			break
		}
	}
	p.keys = slices.Clone(p.keys)
	e.mu.published[key] = p
}

// applyInvalidations cuts the engine's cache before blocks that the daemon has
// disowned. The caller holds the turn.
func (e *Engine) applyInvalidations() {
	e.mu.Lock()
	stale, all := e.mu.stale, e.mu.staleAll
	e.mu.stale, e.mu.staleAll = nil, false
	e.mu.Unlock()
	if all {
		e.cache.forget()
	}
	for _, v := range stale {
		e.cache.invalidate(v.GetTenant(), v.GetKeys(), e.cfg.Model.BlockTokens)
	}
}
