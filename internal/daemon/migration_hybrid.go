package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

const (
	// mostUnit is what a transfer of a hybrid brings at most, but for a single block.
	mostUnit = 4 << 20
	// leastWindow is how much of a fast link's time is in flight at least.
	leastWindow = 20 * time.Millisecond
	// firstWindow is what may be in flight over a link that nothing is known of.
	firstWindow = 2 << 20
	// maxUnits bounds the transfers of a hybrid in flight.
	maxUnits = 256
	// frontPoll is how often the front's blocks are looked for once the back has landed.
	frontPoll = 5 * time.Millisecond
	// frontPatience is how long the front may say nothing and bring nothing before the fetch takes what is missing, and frontLongest how
	// long it may go on claiming and bring nothing: a stock engine shows a long step's blocks at its end.
	frontPatience, frontLongest = 3 * time.Second, 30 * time.Second
)

// hybrid fetches whole blocks from the back, in windows of two bandwidth-delay products, until they meet what an engine prefills from the
// front, and waits for the front. What is missing after it is fetched as always: by an engine that has stopped, or because there was none.
func (m *migration) hybrid(ctx context.Context) (event, error) {
	dr, h := &m.drive, &m.meeting
	if err := m.clip(); err != nil {
		return 0, err
	}
	keys := dr.session.Keys[:dr.offer.available]
	m.claims.begin(dr.engine, m.demand.tenant, keys)
	here := presentPrefix(dr.engine.arena, m.demand.tenant, keys)
	h.says(m.d.blockTime(dr.engine, here))
	h.open(here, len(keys), dr.engine.layout.BlockBytes())
	defer h.close(meetingFetch)
	started := time.Now()
	defer func() { dr.transfer += time.Since(started) }()
	dr.engine.beginLanding(dr.log)
	if err := m.fetchBack(ctx, keys); err != nil {
		if isArenaFull(err) && ctx.Err() == nil {
			return m.keepWhatFits(err)
		}
		if err := m.sourceDamaged(ctx, err); err != nil {
			return 0, err
		}
		h.leave() // what has landed stays: the front makes the rest, if there is one
	}
	if err := m.awaitFront(ctx, keys); err != nil {
		return 0, err
	}
	if allPresent(dr.engine.arena, m.demand.tenant, keys) {
		dr.warm = time.Since(m.started())
	}
	return evLanded, nil
}

// sourceDamaged deals with a fetch of a hybrid that failed, and is quiet, because the source's memory is not what it was; any other error it returns.
func (m *migration) sourceDamaged(ctx context.Context, err error) error {
	if m.memoryGone(err) {
		return nil
	}
	var mismatch *unitError
	if errors.As(err, &mismatch) && errors.Is(err, transfer.ErrChecksumMismatch) && ctx.Err() == nil {
		_, remote := m.unitDescriptors(mismatch.u)
		_, err = m.accuse(ctx, remote, mismatch.u.err)
	}
	return err
}

// clip leaves out the end of a session that is larger than what the arena has room for: both ends bring what fits.
func (m *migration) clip() error {
	dr, a, t := &m.drive, m.drive.engine.arena, m.demand.tenant
	if err := m.holdPresent(dr.session.Keys[:dr.offer.available]); err != nil {
		return err
	}
	room := a.Room(t)
	for i, k := range dr.session.Keys[:dr.offer.available] {
		if st, _ := a.Lookup(t, k); st != kvstore.BlockAbsent { // here, or on its way into a slot that it has
			continue
		}
		if room--; room < 0 {
			dr.failure = failf(ReasonArenaFull, "prefill what is missing, or give the engine a larger arena", "the arena has room for the first %d of the %d blocks", i, len(dr.session.Keys))
			dr.offer.available, dr.offer.slots = i, dr.offer.slots[:i]
			return nil
		}
	}
	return nil
}

func isArenaFull(err error) bool {
	_, full := errors.AsType[*kvstore.ArenaFullError](err)
	return full
}

// keepWhatFits ends a hybrid for which there is no room any more with the prefix that is here.
func (m *migration) keepWhatFits(cause error) (event, error) {
	dr := &m.drive
	if err := m.holdPresent(dr.session.Keys); err != nil {
		return 0, err
	}
	dr.failure = classify(cause)
	dr.lost = len(dr.session.Keys) - presentPrefix(dr.engine.arena, m.demand.tenant, dr.session.Keys)
	return evPrefixOnly, nil
}

// unitError is a unit that failed.
type unitError struct{ u *unit }

func (e *unitError) Error() string { return e.u.err.Error() }
func (e *unitError) Unwrap() error { return e.u.err }

// fetchBack runs units until the ends have met and none is in flight. On an error all of them are quiet.
func (m *migration) fetchBack(ctx context.Context, keys []kvstore.BlockKey) error {
	h := &m.meeting
	results := make(chan *unit, maxUnits) // all that can be in flight: nobody blocks
	running := 0
	take := func(u *unit) error {
		running--
		h.remove(u)
		return m.tookUnit(u)
	}
	defer func() {
		for _, u := range h.flying() {
			u.t.Cancel()
		}
		for running > 0 {
			_ = take(<-results) // they end because of err
		}
	}()
	// A window has room for the next unit when part of the last ones has landed, not only when a whole one has.
	look := time.NewTicker(min(max(m.rtt()/4, time.Millisecond), 20*time.Millisecond))
	defer look.Stop()
	for {
		for running < maxUnits {
			window := m.window()
			if running > 1 && h.asked() >= window {
				break
			}
			first, end, ok := h.next(m.unitBlocks(window))
			if !ok {
				break
			}
			u, err := m.startUnit(ctx, first, end, window, results)
			if err != nil {
				return err
			}
			if u != nil {
				running++
			}
		}
		m.hybridProgress(keys)
		if running == 0 {
			return nil
		}
		select {
		case u := <-results:
			if err := take(u); err != nil {
				return err
			}
		case <-h.kick:
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// window is how many bytes may be in flight: two bandwidth-delay products, by what the link did lately, and at least leastWindow of time.
// Over a link that nothing is known of it begins with firstWindow and may double.
func (m *migration) window() int64 {
	known, rtt := m.linkRate(), m.rtt()
	now, _ := m.meeting.landedRate(m.drive.bytes.Load(), rtt)
	if known > 0 {
		return int64(max(known, now) * max(2*rtt, leastWindow).Seconds())
	}
	return max(firstWindow, int64(now*max(4*rtt, leastWindow).Seconds()))
}

// unitBlocks is the size of the next unit: an eighth of the window, so that little is in flight when the ends meet.
func (m *migration) unitBlocks(window int64) int {
	return int(max(1, min(window/8, mostUnit)/m.drive.engine.layout.BlockBytes()))
}

// layersAtATime is how many layers of a block are asked for together: all, but for a block that is large for the window. It comes in pieces then, two
// for each connection in a window, so that the few blocks which are in flight keep all connections busy.
func (m *migration) layersAtATime(blocks int, window int64) int {
	layout := m.drive.engine.layout
	layers, pieces := layout.PagesPerBlock(), int64(1)
	if blocks == 1 && window > 0 {
		pieces = 2 * int64(m.drive.link.Stats().Stripes) * layout.BlockBytes() / window
	}
	return max(1, layers/int(max(1, min(pieces, int64(layers)))))
}

// startUnit asks for what is missing of the blocks [first, end); nil: nothing is.
func (m *migration) startUnit(ctx context.Context, first, end int, window int64, results chan<- *unit) (*unit, error) {
	dr := &m.drive
	if err := m.holdFront(); err != nil {
		return nil, err
	}
	blocks, _, err := m.reserveRange(first, end) // what somebody else fills is looked at when everything has landed
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	u := &unit{first: first, end: end, blocks: blocks, asked: time.Now(), done: make(chan struct{})}
	order := pageOrder{blocks: len(blocks), layers: dr.engine.layout.PagesPerBlock(), size: m.layersAtATime(len(blocks), window)}
	local, remote := m.descriptors(blocks, order)
	u.landing = newLanding(m, blocks, order)
	u.t, err = dr.link.Prepare(transfer.Read, local, remote, transfer.TransferOptions{
		Token: dr.offer.id, OnLanded: u.landing.landed, ProgressTimeout: m.d.cfg.Link.ProgressTimeout, QueueTimeout: m.d.cfg.Link.QueueTimeout, Class: m.demand.class, Deadline: m.timeLeft(),
	})
	if err != nil {
		m.giveBack(blocks)
		return nil, err
	}
	dr.log.beginRound(u.landing.round)
	m.setLanding(blocks, true)
	if err := u.t.Post(ctx); err != nil {
		_ = u.t.Release() // always nil
		m.endUnit(u)
		return nil, err
	}
	// Not before: a transfer that a take-over has cancelled can't be posted.
	m.meeting.add(u)
	go func() { // owner: fetchBack, which waits for what it sends
		u.res, u.err = u.t.Wait(context.WithoutCancel(ctx))
		_ = u.t.Release() // quiet from here on
		m.endUnit(u)
		results <- u
	}()
	return u, nil
}

// endUnit gives back what did not land. The transfer is quiet.
func (m *migration) endUnit(u *unit) {
	m.drive.log.endRound(u.landing.round)
	m.setLanding(u.blocks, false)
	m.giveBack(u.blocks)
	if m.meeting.takes(u) {
		m.meeting.give(u, u.missing(0))
	}
	close(u.done)
}

// tookUnit accounts for a unit that has ended, and says what is wrong with it; a take-over is not.
func (m *migration) tookUnit(u *unit) error {
	dr := &m.drive
	dr.wire, dr.retried = dr.wire+u.res.WireBytes, dr.retried+int64(u.res.PagesAgain)
	if u.err == nil || m.meeting.takes(u) && errors.Is(u.err, transfer.ErrCancelled) {
		return nil
	}
	return &unitError{u}
}

// holdFront keeps what the front has made from eviction, by this migration's own units first of all.
func (m *migration) holdFront() error {
	granted, _ := m.meeting.stands()
	return m.holdPresent(m.drive.session.Keys[:min(granted, len(m.drive.session.Keys))])
}

// unitDescriptors are those of a unit's transfer.
func (m *migration) unitDescriptors(u *unit) (local, remote []transfer.Desc) {
	return m.descriptors(u.blocks, u.landing.order)
}

// giveBack aborts reservations that did not land. Their transfer is quiet.
func (m *migration) giveBack(blocks []wanted) {
	for _, w := range blocks {
		_ = m.drive.engine.arena.Abort(m.owner, w.local) // landed ones refuse: they are committed
	}
}

// setLanding notes which blocks transfers bring.
func (m *migration) setLanding(blocks []wanted, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.landing == nil {
		m.mu.landing = make(map[kvstore.BlockKey]struct{})
	}
	for _, w := range blocks {
		if on {
			m.mu.landing[w.key] = struct{}{}
		} else {
			delete(m.mu.landing, w.key)
		}
	}
}

// hybridProgress counts what the fetch still has to bring, as the ends stand, and tells those who watch and the source.
func (m *migration) hybridProgress(keys []kvstore.BlockKey) {
	dr := &m.drive
	granted, frontier := m.meeting.stands()
	asked := m.meeting.asked()
	layout := dr.engine.layout
	gap := int64(max(0, min(frontier, len(keys))-granted)) * layout.BlockBytes()
	dr.left.Store(asked + gap)
	bytes := dr.bytes.Load() + asked + gap
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.total = pageCount{bytes / layout.PageBytes(), bytes}
	m.notifyLocked()
}

// awaitFront waits until the front's blocks are here, or nobody seems to make them.
func (m *migration) awaitFront(ctx context.Context, keys []kvstore.BlockKey) error {
	a, t := m.drive.engine.arena, m.demand.tenant
	here, last := presentPrefix(a, t, keys), time.Now()
	tick := time.NewTicker(frontPoll)
	defer tick.Stop()
	for !allPresent(a, t, keys) {
		if n := presentPrefix(a, t, keys); n > here {
			here, last = n, time.Now()
			if err := m.holdFront(); err != nil {
				return err
			}
		}
		if m.meeting.silent(last) {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.meeting.kick:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
