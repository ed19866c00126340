package daemon

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// meeting is where the two ends of a migration stand: an engine prefills from the front what it has been granted, whole blocks
// arrive from the back. Its zero value is one whose fetch has not begun. Blocks are counted from the start of the session.
//
// A block is granted or asked for, never both: granted <= frontier. What may change that is a take-over, which waits until the
// fetch of the blocks is quiet.
type meeting struct {
	mu struct {
		sync.Mutex
		phase      meetingPhase
		total      int // blocks of the source's offer
		blockBytes int64
		granted    int  // blocks before it are the front's
		computed   int  // as claimed last
		frontier   int  // blocks from it on have been asked for, or are here
		gaveUp     bool // the front computes no more
		heard      time.Time
		forward    time.Time // when it was heard of another place last
		front      frontSpeed
		said       time.Duration // what a block takes by past prefills or by the engine's word; 0: neither, or it is not known which engine
		rate       byteRate
		units      []*unit // in flight, in the order they were asked for: from the back to the front
		taken      int     // blocks that were asked for and granted then
		alone      bool    // nothing more is fetched: all that is not here is the front's
	}
	kick chan struct{} // capacity 1: the driver is to look
}

// meetingPhase is what claims are answered by.
type meetingPhase uint8

const (
	// meetingSoon: there is no plan yet. The front gets what it wants: computing at once is what bounds the time.
	meetingSoon meetingPhase = iota
	// meetingOpen: both ends move.
	meetingOpen
	// meetingFetch: the rest is fetched; nothing more is granted.
	meetingFetch
	// meetingRecompute: nothing is fetched; everything is granted.
	meetingRecompute
)

// unit is a run of blocks that one transfer brings.
type unit struct {
	first, end int // in the session
	blocks     []wanted
	t          *transfer.Transfer
	landing    *landing
	asked      time.Time
	cancelled  bool          // the front takes it over; guarded by the meeting
	done       chan struct{} // closed when it is quiet and what did not land is given back
	res        transfer.Result
	err        error
}

// left is the bytes that have not landed.
func (u *unit) left() int64 {
	p := u.t.Progress()
	return p.BytesTotal - p.BytesDone
}

// frontSpeed measures how fast the front computes, by its claims.
type frontSpeed struct {
	since time.Time
	at    int
	block time.Duration // per block; 0: not known
}

// claimed notes a claim. What was loaded counts as computed, so that the speed may be too high: a front that loads is not one that waits.
func (f *frontSpeed) claimed(now time.Time, computed int) {
	if f.since.IsZero() {
		f.since, f.at = now, computed
		return
	}
	if n := computed - f.at; n > 0 {
		f.block = now.Sub(f.since) / time.Duration(n)
	}
}

// byteRate is bytes a second over the last span or two.
type byteRate struct {
	from, mark           time.Time
	fromBytes, markBytes int64
}

// look takes in that so many bytes have landed by now. ok is false until a span has passed since the first did.
func (r *byteRate) look(now time.Time, bytes int64, span time.Duration) (rate float64, ok bool) {
	switch {
	case bytes == 0:
		return 0, false
	case r.mark.IsZero():
		r.mark, r.markBytes = now, bytes
	case now.Sub(r.mark) >= span:
		r.from, r.fromBytes, r.mark, r.markBytes = r.mark, r.markBytes, now, bytes
	}
	if r.from.IsZero() {
		return 0, false
	}
	return float64(bytes-r.fromBytes) / now.Sub(r.from).Seconds(), true
}

// wake has the driver look.
func (h *meeting) wake() {
	select {
	case h.kick <- struct{}{}:
	default: // it is going to
	}
}

// says notes how fast the engine is by what was known before: 0: nothing.
func (h *meeting) says(block time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.said = block
}

// open begins the fetch of total blocks, of which the first here are present.
func (h *meeting) open(here, total int, blockBytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.phase, h.mu.total, h.mu.frontier, h.mu.blockBytes = meetingOpen, total, total, blockBytes
	h.mu.granted = min(max(h.mu.granted, here), total)
}

// close ends the granting, or with meetingRecompute the holding back.
func (h *meeting) close(p meetingPhase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.phase = p
}

// leave ends the fetch, which is quiet, for good: the front may have all that is not here.
func (h *meeting) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.alone, h.mu.frontier = true, h.mu.total
}

// next takes the next run of at most n blocks for the fetch, from the back; ok is false when the ends have met.
func (h *meeting) next(n int) (first, end int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, end = max(h.mu.granted, h.mu.frontier-n), h.mu.frontier
	if first >= end {
		return 0, 0, false
	}
	h.mu.frontier = first
	return first, end, true
}

// add and remove keep the list of units in flight.
func (h *meeting) add(u *unit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.units = append(h.mu.units, u)
}

func (h *meeting) remove(u *unit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.units = slices.DeleteFunc(h.mu.units, func(o *unit) bool { return o == u })
}

// asked is the bytes in flight.
func (h *meeting) asked() (bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.mu.units {
		bytes += u.left()
	}
	return bytes
}

// stands is where the ends are.
func (h *meeting) stands() (granted, frontier int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.granted, h.mu.frontier
}

// silent says that the front has not come forward since last, and is not waited for any longer: it says nothing, or asks for too long.
func (h *meeting) silent(last time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.gaveUp || time.Since(maxTime(last, h.mu.heard)) > frontPatience || time.Since(maxTime(last, h.mu.forward)) > frontLongest
}

// flying is the units in flight.
func (h *meeting) flying() []*unit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.mu.units)
}

// takes says that the front takes the unit over.
func (h *meeting) takes(u *unit) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return u.cancelled
}

// landedRate is bytes a second lately, of which so many have landed; ok is false when it is not known yet.
func (h *meeting) landedRate(landed int64, rtt time.Duration) (rate float64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.rate.look(time.Now(), landed, rateSpan(rtt))
}

// rateSpan is what a rate is measured over.
func rateSpan(rtt time.Duration) time.Duration { return max(2*rtt, 50*time.Millisecond) }

// takenOver is how many blocks the front took from the fetch.
func (h *meeting) takenOver() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.taken
}

// claim is one claim of the front.
func (m *migration) claim(ctx context.Context, computed, want int) (*pb.ClaimPrefillResponse, error) {
	m.observed(m.claims.claimed(time.Now(), computed))
	for {
		u, out := m.answerClaim(computed, want)
		if u == nil {
			m.observed(m.claims.answered(time.Now(), computed, int(out.GetGrantedUntil()), out.GetEnded()))
			return out, nil
		}
		u.t.Cancel()
		select {
		case <-u.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// frontGivesUp gives what the front has not computed of its grant to the fetch.
func (m *migration) frontGivesUp(computed int) *pb.ClaimPrefillResponse {
	h, ended := &m.meeting, m.state().terminal()
	defer h.wake()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.phase == meetingSoon || h.mu.phase == meetingOpen {
		h.mu.gaveUp, h.mu.granted = true, min(h.mu.granted, computed)
	}
	return &pb.ClaimPrefillResponse{GrantedUntil: uint32(computed), FetchFrontier: uint32(h.mu.frontier), Stop: true, Ended: ended}
}

// observed takes in what the front has shown of the engine's prefill; ok: anything.
func (m *migration) observed(e *engine, p planner.Prefill, ok bool) {
	if ok {
		m.d.observePrefill(e, p)
	}
}

// answerClaim answers a claim, or names the unit that is to be taken over, and to be quiet, before it is asked again.
func (m *migration) answerClaim(computed, want int) (*unit, *pb.ClaimPrefillResponse) {
	h, ended := &m.meeting, m.state().terminal()
	defer h.wake()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.mu.gaveUp = false                                                                       // another front, or the same one after all
	if h.mu.heard = now; h.mu.forward.IsZero() || min(computed, h.mu.total) > h.mu.computed { // to ask again is not to come forward
		h.mu.forward = now
	}
	h.mu.front.claimed(now, computed)
	h.mu.computed = max(h.mu.computed, computed)
	all := computed + want
	switch {
	case ended:
		return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(all), FetchFrontier: uint32(h.mu.frontier), Stop: true, Ended: true}
	case h.mu.phase == meetingRecompute:
		h.mu.granted = max(h.mu.granted, all)
		return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(all), FetchFrontier: uint32(h.mu.frontier), Stop: true}
	case h.mu.phase == meetingSoon:
		h.mu.granted = max(h.mu.granted, min(all, computed+h.soonLocked()))
		return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(max(h.mu.granted, computed))}
	case h.mu.phase == meetingFetch:
		return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(max(h.mu.granted, computed)), FetchFrontier: uint32(h.mu.frontier), Stop: true}
	}
	if h.mu.alone {
		h.mu.granted = max(h.mu.granted, min(all, h.mu.total))
		return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(max(h.mu.granted, computed)), FetchFrontier: uint32(h.mu.total)}
	}
	rate, block := h.speedsLocked(now, m)
	if until := min(computed+h.shareLocked(computed, want, rate, block), h.mu.frontier); until > h.mu.granted {
		h.mu.granted = until
	}
	if computed >= h.mu.frontier && computed < h.mu.total {
		if u := h.lateLocked(computed, now, m.rtt(), rate, block); u != nil {
			u.cancelled = true
			return u, nil
		}
	}
	return nil, &pb.ClaimPrefillResponse{GrantedUntil: uint32(max(h.mu.granted, computed)), FetchFrontier: uint32(h.mu.frontier)}
}

// speedsLocked is how fast the ends are: the link in bytes a second, by what lands now, else by past transfers, negative: not known; the
// front in time a block, by its claims, else by what the engine says of itself, 0: not known.
func (h *meeting) speedsLocked(now time.Time, m *migration) (rate float64, block time.Duration) {
	rate, ok := h.mu.rate.look(now, m.drive.bytes.Load(), rateSpan(m.rtt()))
	if !ok {
		if rate = m.linkRate(); rate == 0 {
			rate = -1
		}
	}
	return rate, orDefault(h.mu.front.block, h.mu.said)
}

// shareLocked is how many of the blocks that the front wants it gets: of those that nobody has yet no more than it computes while the link
// brings the others, so that neither end waits for the other at last.
func (h *meeting) shareLocked(computed, want int, rate float64, block time.Duration) int {
	if rate <= 0 || block == 0 || h.mu.blockBytes == 0 {
		return want
	}
	gap := float64(h.mu.frontier - computed)
	perBlock := float64(h.mu.blockBytes) / rate // of the link
	return max(1, min(want, int(math.Round(gap*perBlock/(perBlock+block.Seconds())))))
}

// soonLocked is how many blocks are granted at a time before there is a plan: about as long as that takes, so that a slow front has not got
// more than its share by then.
func (h *meeting) soonLocked() int {
	block := orDefault(h.mu.front.block, h.mu.said)
	if block == 0 {
		return 1
	}
	return int(max(1, soonTime/block))
}

// soonTime is about what finding the session and planning take.
const soonTime = 50 * time.Millisecond

// lateLocked is the unit in flight that brings a block, when computing what is missing of it takes less time than waiting for it; nil:
// there is none.
func (h *meeting) lateLocked(at int, now time.Time, rtt time.Duration, rate float64, block time.Duration) *unit {
	var ahead int64
	for _, u := range h.mu.units {
		ahead += u.left()
		if at < u.first || at >= u.end {
			continue
		}
		switch {
		case u.cancelled:
			return u
		case block == 0:
			return nil
		}
		compute := time.Duration(u.missing(at)) * block
		if rate <= 0 {
			return u
		}
		// Its bytes come after those ahead of it, and the first of them a round trip after they were asked for.
		wait := max(float64(ahead)/rate, u.asked.Add(rtt).Sub(now).Seconds()+float64(u.left())/rate)
		if wait > compute.Seconds() {
			return u
		}
		return nil
	}
	return nil
}

// missing is how many blocks of the unit from place at on have not landed whole.
func (u *unit) missing(at int) (n int) {
	for i, b := range u.blocks {
		if b.index >= at && u.landing.left[i].Load() > 0 {
			n++
		}
	}
	return n
}

// give hands a unit that is quiet to the front.
func (h *meeting) give(u *unit, blocks int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.granted, h.mu.frontier = max(h.mu.granted, u.end), max(h.mu.frontier, u.end)
	h.mu.taken += blocks
}

// rtt is the link's least round trip; 0: not known.
func (m *migration) rtt() time.Duration {
	if m.drive.link == nil {
		return 0
	}
	st := m.drive.link.Stats()
	return orDefault(st.RTTMin, st.RTTSmoothed)
}

// linkRate is the link's goodput from past transfers, bytes a second; 0: not known.
func (m *migration) linkRate() float64 {
	if m.drive.link == nil {
		return 0
	}
	return m.drive.link.Stats().Estimates.Goodput.Value
}

// blockTime is what the prefill of an engine's block at takes, as observed, else as the engine said; 0: it said nothing.
func (d *Daemon) blockTime(e *engine, at int) time.Duration {
	if e == nil {
		return 0
	}
	if f := d.prefillFit(e); f.usable() {
		n := int64(e.layout.BlockTokens)
		f.Law.Fixed = 0 // of a prefill, not of each block
		return time.Duration(f.Law.Seconds(n*int64(at), n) * float64(time.Second))
	}
	return time.Duration(e.speed().GetSecondsPerToken() * float64(e.layout.BlockTokens) * float64(time.Second))
}

// brings says that the mode moves blocks.
func brings(mode planner.Mode) bool { return mode == planner.ModeFetch || mode == planner.ModeHybrid }

// allPresent says that every block of keys is readable.
func allPresent(a *kvstore.Arena, t kvstore.Tenant, keys []kvstore.BlockKey) bool {
	for _, k := range keys {
		if st, _ := a.Lookup(t, k); st != kvstore.BlockPresent {
			return false
		}
	}
	return true
}
