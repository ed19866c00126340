package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

const (
	// replanEvery is the time between two looks at a fetch.
	replanEvery = 250 * time.Millisecond
	// replanMargin is how much longer the rest of a fetch must take than prefilling it before the fetch is given up.
	replanMargin = 1.1
	// replanLooks is how many looks in a row must say so.
	replanLooks = 3
	// replanForgives is how often a fetch may stand still and be measured anew: one that does so all the time is slow.
	replanForgives = 10 * time.Second
)

// replanner watches a fetch that the planner chose, and gives it up where prefilling what is missing has become the faster way: at
// every look it compares what the link will take for the rest, at the speed of the last seconds, with the price of a recompute
// that begins after the blocks which have landed from the front.
type replanner struct {
	m    *migration
	rate byteRate
	said int // looks in a row that would give it up

	bytes  int64     // landed at the last look
	moved  time.Time // when bytes had landed since the look before
	moving float64   // bytes a second then
	again  time.Time // when it went on after it had stood still
}

// replans says that the running fetch may be given up: the planner chose it, and the engine can prefill.
func (m *migration) replans() bool {
	in := &m.drive.inputs
	return m.demand.mode == planner.ModeNone && len(m.demand.keys) == 0 && !m.demand.groupMajor && in.veto == "" && !in.compute.PrefillUnavailable &&
		planner.Recompute(in.request, in.model, in.compute).Priced
}

// watchFetch runs a replanner beside a transfer, where one may run, until stop, which waits for it.
func (m *migration) watchFetch(ctx context.Context, t *transfer.Transfer) (stop func()) {
	if !m.replans() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { (&replanner{m: m}).run(ctx, t) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// run looks until ctx ends, and cancels t when the fetch is to be given up.
func (r *replanner) run(ctx context.Context, t *transfer.Transfer) {
	tick := time.NewTicker(replanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		fetch, prefill, ok := r.look(time.Now(), t.Progress())
		if !ok || fetch <= replanMargin*prefill {
			r.said = 0
			continue
		}
		if r.said++; r.said < replanLooks {
			continue
		}
		why := fmt.Sprintf("the rest of the fetch would take %.3g s, prefilling it %.3g s", fetch, prefill)
		r.m.d.log.LogAttrs(ctx, slog.LevelInfo, "fetch given up", slog.String("migration_id", r.m.id), slog.String("why", why))
		r.m.drive.replanned.Store(&why)
		t.Cancel()
		return
	}
}

// look says what is left of the fetch, and of a recompute instead, seconds. ok is false while the speed is not known. A link that has
// stopped is taken to stand still for as long again as it has, and to go on as it did; the progress time-out bounds that.
func (r *replanner) look(now time.Time, p transfer.Progress) (fetch, prefill float64, ok bool) {
	m := r.m
	span := max(time.Second, 4*m.rtt())
	stood := !r.moved.IsZero() && now.Sub(r.moved) > span/2
	if stood && p.BytesDone > r.bytes && now.Sub(r.again) > replanForgives { // the speed is not that of the time it stood still
		r.rate, r.again = byteRate{}, now
	}
	rate, ok := r.rate.look(now, p.BytesDone, span)
	if p.BytesDone > r.bytes {
		r.bytes, r.moved, stood = p.BytesDone, now, false
		if ok {
			r.moving = rate
		}
	}
	if p.BytesDone == p.BytesTotal || !ok && !stood || r.moving == 0 {
		return 0, 0, false
	}
	left := p.BytesTotal - p.BytesDone
	if p.Queue.Waits {
		left += p.Queue.Bytes
	}
	if stood {
		fetch = now.Sub(r.moved).Seconds() + float64(left)/max(r.moving, 1)
	} else {
		fetch = float64(left) / max(rate, 1)
	}
	request := m.drive.inputs.request
	block := int64(m.drive.engine.layout.BlockTokens)
	here := int64(presentPrefix(m.drive.engine.arena, m.demand.tenant, m.drive.session.Keys)) * block
	request.PresentTokens, request.MissingBytes = min(here, request.PrefixTokens), 0
	rest := planner.Recompute(request, m.drive.inputs.model, m.drive.inputs.compute)
	// What a fetch leaves to prefill is left either way.
	tail := request
	tail.PresentTokens = request.PrefixTokens / block * block
	after := planner.Recompute(tail, m.drive.inputs.model, m.drive.inputs.compute)
	return fetch, rest.Seconds - after.Seconds, rest.Priced
}

// giveUp makes a recompute of a fetch: what has landed whole from the front stays. A source that does not answer can't hand over.
func (m *migration) giveUp(ctx context.Context) (event, error) {
	dr := &m.drive
	asking, cancel := context.WithTimeout(ctx, max(2*time.Second, 8*m.rtt()))
	defer cancel()
	if _, err := m.d.callPeer(asking, dr.link, &pb.PeerRequest{Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: dr.offer.id}}}); err != nil {
		return 0, failf(ReasonStalled, "check the link with `kvferry links`, and migrate again", "%s, and the source does not answer: %v", *dr.replanned.Load(), err)
	}
	if err := m.holdPresent(dr.session.Keys); err != nil {
		return 0, err
	}
	dr.mode = planner.ModeRecompute
	dr.lost = len(dr.session.Keys) - presentPrefix(dr.engine.arena, m.demand.tenant, dr.session.Keys)
	m.meeting.close(meetingRecompute)
	return evPrefixOnly, nil
}
