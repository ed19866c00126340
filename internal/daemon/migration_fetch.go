package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// plan decides what to do, or notes what the caller decided.
func (m *migration) plan(context.Context) (event, error) {
	dr := &m.drive
	if err := checkLayers(m.demand.landedLayers, dr.engine); err != nil { // it was not known before which engine it is
		return 0, err
	}
	decision, plan, missing, err := m.decide()
	if err != nil {
		return 0, err
	}
	dr.mode = m.demand.mode
	if len(m.demand.keys) > 0 {
		dr.mode = planner.ModeFetch // replication of named blocks leaves nothing to decide
	} else if dr.mode == planner.ModeNone {
		dr.mode = decision.Winner
	}
	dr.decided = dr.mode
	if p, ok := decision.Plan(dr.mode); ok && p.Priced {
		dr.predicted = p.Seconds
	}
	m.mu.Lock()
	m.mu.plan = plan
	m.notifyLocked()
	m.mu.Unlock()
	if m.demand.shadow && dr.mode != planner.ModeNone {
		return m.pretend(missing)
	}
	switch dr.mode {
	case planner.ModeRedirect:
		m.meeting.close(meetingRecompute)
		m.want(0)
		return evRedirect, nil
	case planner.ModeRecompute:
		m.meeting.close(meetingRecompute)
		m.want(0)
		return evRecompute, nil
	case planner.ModeHybrid:
		m.want(int64(missing) * dr.engine.layout.BlockBytes())
		return evHybrid, nil
	case planner.ModeFetch:
		m.meeting.close(meetingFetch)
		if _, err := m.pageOrder(missing); err != nil {
			return 0, err
		}
		m.want(int64(missing) * dr.engine.layout.BlockBytes())
		return evFetch, nil
	}
	return 0, failf(ReasonModeUnavailable, "name a mode, or give the planner what it lacks", "no mode can be chosen: %s", decision.Reason)
}

// decide asks the planner, and counts the offered blocks that are missing here.
func (m *migration) decide() (d planner.Decision, plan *pb.Plan, missing int, err error) {
	dr, a, t := &m.drive, m.drive.engine.arena, m.demand.tenant
	missing = missingBlocks(a, t, dr.session.Keys[:dr.offer.available])
	dr.present0 = int64(len(dr.session.Keys) - missingBlocks(a, t, dr.session.Keys))
	in := m.d.planInputs(dr.engine, dr.link, dr.session, presentPrefix(a, t, dr.session.Keys), missing, dr.offer.backlog, m.demand)
	in.link = capped(in.link, dr.offer.maxRate)
	dr.inputs = in
	dr.alone = !in.link.Cold && in.link.EgressBacklog == 0 && dr.link.Stats().Transfers == 0
	if d, err = planner.Decide(in.request, in.model, in.compute, in.link); err != nil {
		return d, nil, 0, err
	}
	explainVeto(&d, in.veto)
	crossover, crosses := planner.Crossover(in.model, in.compute, in.link)
	plan = planToProto(d, in.compute.Source, crossover, crosses)
	if m.dry { // it is for people, and takes a millisecond
		plan.Flips = flipsToProto(in.request, in.model, in.compute, in.link)
	}
	return d, plan, missing, nil
}

// missingBlocks counts the keys that are not present.
func missingBlocks(a *kvstore.Arena, t kvstore.Tenant, keys []kvstore.BlockKey) int {
	n := 0
	for _, k := range keys {
		if st, _ := a.Lookup(t, k); st != kvstore.BlockPresent {
			n++
		}
	}
	return n
}

// pendingPoll is how often blocks that somebody else is filling are looked at.
const pendingPoll = 20 * time.Millisecond

// reserve holds what is here and takes slots for what is not. Blocks that somebody else is filling are waited for.
func (m *migration) reserve(ctx context.Context) (event, error) {
	dr := &m.drive
	keys := dr.session.Keys[:dr.offer.available]
	waited, pending := time.Duration(0), 0
	for {
		before := pending
		var err error
		pending, err = m.reserveOnce(keys)
		switch {
		case isArenaFull(err) && dr.mode == planner.ModeHybrid:
			return m.keepWhatFits(err)
		case err != nil:
			return 0, err
		case len(dr.wanted) > 0:
			return evReserved, nil
		case pending == 0:
			return m.allHere()
		case pending < before: // somebody else's blocks arrive: slow is not stuck
			waited = 0
		case waited >= m.d.cfg.Link.ProgressTimeout:
			return 0, failf(ReasonStalled, "migrate again, or recompute", "%d blocks are being filled by somebody else and do not arrive", pending)
		}
		timer := time.NewTimer(pendingPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		case <-timer.C:
			waited += pendingPoll
		}
	}
}

// allHere says how a fetch with nothing left to move goes on. Blocks that the source has lost may still be here.
func (m *migration) allHere() (event, error) {
	dr := &m.drive
	n := dr.offer.available
	if err := m.holdPresent(dr.session.Keys[n:]); err != nil {
		return 0, err
	}
	for n < len(dr.session.Keys) && m.holds(dr.session.Keys[n]) {
		n++
	}
	dr.lost = len(dr.session.Keys) - n
	lost := failf(ReasonBlockNotFound, "prefill what is missing, or name another source", "node %q holds only the first %d of the %d blocks", dr.source, dr.offer.available, len(dr.session.Keys))
	switch {
	case len(m.demand.keys) > 0 && dr.lost > 0:
		return 0, lost
	case len(m.demand.keys) > 0:
		return evReplicated, nil
	case dr.lost > 0:
		if dr.failure == nil {
			dr.failure = lost
		}
		return evPrefixOnly, nil
	}
	return evNothingMissing, nil
}

// reserveOnce fills drive.wanted with the slots it got and returns how many blocks somebody else is filling. Either
// every missing block is reserved or none.
func (m *migration) reserveOnce(keys []kvstore.BlockKey) (pending int, err error) {
	m.drive.wanted, pending, err = m.reserveRange(0, len(keys))
	return pending, err
}

// reserveRange is reserveOnce for the blocks [from, to) of the session, and returns the slots it got.
func (m *migration) reserveRange(from, to int) (got []wanted, pending int, err error) {
	a, t, keys := m.drive.engine.arena, m.demand.tenant, m.drive.session.Keys[:to]
	defer func() {
		if err != nil {
			m.giveBack(got)
			got = nil
		}
	}()
	if err := m.holdPresent(keys[from:]); err != nil {
		return nil, 0, err
	}
	for i := from; i < to; {
		if m.holds(keys[i]) {
			i++
			continue
		}
		first := i
		for i < to && i-first < maxKeysPerCall && !m.holds(keys[i]) {
			i++
		}
		var parent kvstore.BlockKey
		if first > 0 {
			parent = keys[first-1]
		}
		slots, err := a.ReserveAfter(m.owner, t, parent, keys[first:i])
		if err != nil {
			return got, 0, err
		}
		for j, r := range slots {
			switch r.State {
			case kvstore.Reserved:
				got = append(got, wanted{index: first + j, key: r.Key, local: r.Ref})
			case kvstore.Pending, kvstore.Present: // a present one came between the look and the reservation
				pending++
			}
		}
	}
	return got, pending, nil
}

// holds reports whether block k is kept from eviction until the migration ends.
func (m *migration) holds(k kvstore.BlockKey) bool {
	m.drive.heldMu.Lock()
	defer m.drive.heldMu.Unlock()
	_, ok := m.drive.held[k]
	return ok
}

// holdPresent takes one lease on all of keys that are present and not held yet, and on those that landed since the last
// time, whose own leases it then gives back.
func (m *migration) holdPresent(keys []kvstore.BlockKey) error {
	dr, a, t := &m.drive, m.drive.engine.arena, m.demand.tenant
	dr.heldMu.Lock()
	defer dr.heldMu.Unlock()
	var want []kvstore.BlockKey
	for _, k := range keys {
		if lease, ok := dr.held[k]; ok && lease == 0 {
			continue
		}
		if st, _ := a.Lookup(t, k); st == kvstore.BlockPresent {
			want = append(want, k)
		}
	}
	for len(want) > 0 {
		_, _, err := a.Acquire(m.owner, t, want, -1)
		if err == nil {
			break
		}
		gone, ok := errors.AsType[*kvstore.BlockError](err)
		if !ok || !errors.Is(err, kvstore.ErrBlockNotFound) {
			return err
		}
		want = slices.Delete(want, gone.Index, gone.Index+1) // evicted since the look
	}
	for _, k := range want {
		if lease := dr.held[k]; lease != 0 {
			_ = a.Release(lease) // the batch's lease holds the block now
		}
		dr.held[k] = 0
	}
	return nil
}

// holdLanded keeps a block that has just landed, until the next holdPresent takes it into its lease. A block that can't
// be held is looked for again then.
func (m *migration) holdLanded(k kvstore.BlockKey) {
	lease, _, err := m.drive.engine.arena.Acquire(m.owner, m.demand.tenant, []kvstore.BlockKey{k}, -1)
	if err != nil {
		return
	}
	m.drive.heldMu.Lock()
	defer m.drive.heldMu.Unlock()
	m.drive.held[k] = lease
}

// abortWanted gives back reserved slots that did not land. The transfer must be quiet.
func (m *migration) abortWanted() {
	m.giveBack(m.drive.wanted)
	m.drive.wanted = m.drive.wanted[:0]
}

// renewLink replaces a link that has ended since the offer, as one does on which another migration's call got no answer. The offer is the
// source's process's, over any link.
func (m *migration) renewLink(ctx context.Context) error {
	dr := &m.drive
	if dr.link.Err() == nil {
		return nil
	}
	link, err := m.d.links.get(ctx, dr.source)
	if err != nil {
		return err
	}
	if link.Peer().Incarnation != dr.sourceInc {
		return fmt.Errorf("node %q: %w", dr.source, transfer.ErrPeerRestarted)
	}
	m.mu.Lock() // the renewer reads it
	dr.link = link
	m.mu.Unlock()
	return nil
}

// maxRelinks bounds how often a migration goes on over another link.
const maxRelinks = 3

// relink goes on over another link with what is missing, where cause is that this side has closed the one before: for no fault of this
// migration's, see suspect.
func (m *migration) relink(ctx context.Context, cause error) (event, error) {
	_, remote := errors.AsType[*transfer.RemoteError](cause)
	if remote || !errors.Is(cause, transfer.ErrClosed) || m.drive.link.Err() == nil || m.drive.relinked == maxRelinks || ctx.Err() != nil {
		return 0, cause
	}
	m.drive.relinked++
	if err := m.renewLink(ctx); err != nil {
		return 0, err
	}
	return evLanded, nil
}

// transfer moves the wanted blocks and waits for the last page.
func (m *migration) transfer(ctx context.Context) (event, error) {
	dr := &m.drive
	if err := m.renewLink(ctx); err != nil {
		m.abortWanted()
		return 0, err
	}
	if dr.mode == planner.ModeHybrid && !dr.met {
		dr.met = true
		ev, err := m.hybrid(ctx)
		if m.queuedTooLong(err) && ctx.Err() == nil {
			return m.giveUp(ctx)
		}
		return ev, err
	}
	layout := dr.engine.layout
	order, err := m.pageOrder(len(dr.wanted))
	if err != nil {
		m.abortWanted()
		return 0, err
	}
	local, remote := m.descriptors(dr.wanted, order)
	land := newLanding(m, dr.wanted, order)
	m.want(int64(len(dr.wanted)) * layout.BlockBytes())
	t, err := dr.link.Prepare(transfer.Read, local, remote, transfer.TransferOptions{
		Token: dr.offer.id, OnLanded: land.landed, ProgressTimeout: m.d.cfg.Link.ProgressTimeout, QueueTimeout: m.d.cfg.Link.QueueTimeout,
		Class: m.demand.class, Deadline: m.timeLeft(),
	})
	if err != nil {
		m.abortWanted()
		return m.relink(ctx, err)
	}
	started := time.Now()
	dr.log.beginRound(land.round)
	dr.engine.beginLanding(dr.log)
	m.startProgress(t, int64(order.layers), layout.BlockBytes())
	if err = t.Post(ctx); err == nil {
		var res transfer.Result
		stop := m.watchFetch(ctx, t)
		res, err = t.Wait(ctx)
		stop()
		dr.wire, dr.retried = dr.wire+res.WireBytes, dr.retried+int64(res.PagesAgain)
	}
	_ = t.Release() // quiet from here on
	dr.log.endRound(land.round)
	m.mu.Lock()
	m.mu.landing, m.mu.transfer = nil, nil
	m.mu.Unlock()
	dr.transfer += time.Since(started)
	if err == nil {
		dr.wanted = dr.wanted[:0]
		return evLanded, nil
	}
	m.abortWanted()
	if (errors.Is(err, transfer.ErrCancelled) && dr.replanned.Load() != nil || m.queuedTooLong(err)) && ctx.Err() == nil {
		return m.giveUp(ctx)
	}
	if errors.Is(err, transfer.ErrChecksumMismatch) && ctx.Err() == nil {
		return m.accuse(ctx, remote, err)
	}
	if errors.Is(err, transfer.ErrClosed) {
		return m.relink(ctx, err)
	}
	if m.demand.mode == planner.ModeNone && len(m.demand.keys) == 0 && m.memoryGone(err) {
		return evLanded, nil // what has landed stays
	}
	return 0, err
}

// memoryLost reports whether a source that fails so has not got a session's blocks any more: their arena is damaged, or was replaced.
func memoryLost(r Reason) bool { return r == ReasonArenaFault || r == ReasonArenaStale }

// memoryGone reports whether a fetch failed because the source's memory is gone, and if so notes that it offers nothing any more: it can still hand
// over. A fault of this node's own memory is none.
func (m *migration) memoryGone(err error) bool {
	ce, ok := errors.AsType[*transfer.ChunkError](err)
	if !ok || !ce.Remote || !memoryLost(classify(err).Reason) && !errors.Is(err, transfer.ErrUnknownMemory) {
		return false
	}
	m.drive.offer.available, m.drive.offer.slots, m.drive.failure = 0, nil, classify(err)
	return true
}

// queuedTooLong reports whether the source has had the fetch wait for too long, where the planner may choose again: then it
// recomputes, and says why.
func (m *migration) queuedTooLong(err error) bool {
	if !errors.Is(err, transfer.ErrQueued) || m.demand.mode != planner.ModeNone || len(m.demand.keys) > 0 {
		return false
	}
	why := fmt.Sprintf("the fetch waited in the source's queue for link.queue_timeout (%v)", m.d.cfg.Link.QueueTimeout)
	m.drive.replanned.Store(&why)
	m.d.log.LogAttrs(context.Background(), slog.LevelInfo, "fetch given up", slog.String("migration_id", m.id), slog.String("why", why))
	return true
}

// accuse has the source re-verify the block whose page failed twice. If it is bad there, the source drops it and this
// node fetches the prefix before it and no more; if it is good there, the path damages it and the migration fails.
func (m *migration) accuse(ctx context.Context, remote []transfer.Desc, cause error) (event, error) {
	dr := &m.drive
	ce, ok := errors.AsType[*transfer.ChunkError](cause)
	if !ok || ce.Pair < 0 || ce.Pair >= len(remote) {
		return 0, cause
	}
	slot := kvstore.SlotRef{Slot: uint32(remote[ce.Pair].Offset / dr.offer.stride), Generation: remote[ce.Pair].Generation}
	resp, err := m.d.callPeer(ctx, dr.link, &pb.PeerRequest{Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: dr.offer.id, Slot: refToProto(slot)}}})
	keeps := dr.mode == planner.ModeHybrid || m.demand.mode == planner.ModeNone && len(m.demand.keys) == 0
	if err != nil && memoryLost(classify(err).Reason) && keeps { // it has lost more than that
		dr.offer.available, dr.offer.slots, dr.failure = 0, nil, classify(err)
		return evLanded, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w; asking the source to re-verify it: %w", cause, err)
	}
	if !resp.GetAccuse().GetDropped() {
		return 0, cause
	}
	for i, s := range dr.offer.slots {
		if s == slot { // what is before it may not have landed yet, and is still good there
			dr.offer.available, dr.offer.slots = i, dr.offer.slots[:i]
			break
		}
	}
	dr.failure = classify(cause)
	return evLanded, nil
}

// pageCount is a number of pages and their bytes.
type pageCount struct{ pages, bytes int64 }

// startProgress adds the wanted blocks to what is to come.
func (m *migration) startProgress(t *transfer.Transfer, blockPages, blockBytes int64) {
	dr, n := &m.drive, int64(len(m.drive.wanted))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.landing = make(map[kvstore.BlockKey]struct{}, n)
	for _, w := range dr.wanted {
		m.mu.landing[w.key] = struct{}{}
	}
	m.mu.total = pageCount{dr.pages.Load() + n*blockPages, dr.bytes.Load() + n*blockBytes}
	m.mu.transfer, m.mu.noted = t, time.Time{}
	m.notifyLocked()
}

// noteProgress tells those who watch that a page has landed.
func (m *migration) noteProgress() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.noted = time.Now()
	m.notifyLocked()
}

// progressLocked makes the counters a message, nil before the first transfer.
func (m *migration) progressLocked() *pb.MigrationProgress {
	if m.mu.total == (pageCount{}) {
		return nil
	}
	p := &pb.MigrationProgress{
		PagesTotal: m.mu.total.pages, BytesTotal: m.mu.total.bytes, PagesDone: m.drive.pages.Load(), BytesDone: m.drive.bytes.Load(),
	}
	if !m.mu.noted.IsZero() {
		p.Elapsed = durationpb.New(m.mu.noted.Sub(m.mu.started))
	}
	if m.mu.transfer != nil {
		if q := m.mu.transfer.Progress().Queue; q.Waits {
			p.Waits, p.TransfersAhead, p.BytesAhead = true, int64(q.Transfers), q.Bytes
		}
	}
	return p
}
