package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// yields are sessions that this node owns and whose earlier owner may not know it: taken over while it could not be asked,
// or owned since before this start. Each peer is told once it can be reached; one that knows better is believed.
type yields struct {
	mu struct {
		sync.Mutex
		pending map[transfer.PeerID]map[sessionKey]kvstore.Session // what each peer has yet to hear
		retry   map[transfer.PeerID]backoff
		busy    bool
	}
}

// backoff is when a peer that can't be reached is tried again.
type backoff struct {
	at   time.Time
	wait time.Duration
}

// longer is the next one after another failure: twice the wait, from yieldRetry to yieldRetryMax.
func (b backoff) longer(now time.Time) backoff {
	wait := min(max(yieldRetry, 2*b.wait), yieldRetryMax)
	return backoff{at: now.Add(wait), wait: wait}
}

const (
	yieldRetry    = time.Second
	yieldRetryMax = 30 * time.Second
)

func newYields() *yields {
	y := &yields{}
	y.mu.pending, y.mu.retry = map[transfer.PeerID]map[sessionKey]kvstore.Session{}, map[transfer.PeerID]backoff{}
	return y
}

// add has every peer told that this node owns s.
func (y *yields) add(peers []transfer.PeerID, s kvstore.Session) {
	s.Keys = nil
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, p := range peers {
		if y.mu.pending[p] == nil {
			y.mu.pending[p] = map[sessionKey]kvstore.Session{}
		}
		y.mu.pending[p][sessionKey{s.Tenant, s.ID}] = s
	}
}

// settled reports whether every peer has heard that this node owns the session.
func (y *yields) settled(t kvstore.Tenant, id kvstore.SessionID) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, sessions := range y.mu.pending {
		if _, waits := sessions[sessionKey{t, id}]; waits {
			return false
		}
	}
	return true
}

// due are the peers to be told something now.
func (y *yields) due(now time.Time) []transfer.PeerID {
	var out []transfer.PeerID
	for p, sessions := range y.mu.pending {
		if len(sessions) > 0 && !now.Before(y.mu.retry[p].at) {
			out = append(out, p)
		}
	}
	return out
}

func (y *yields) next(p transfer.PeerID) (kvstore.Session, bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, s := range y.mu.pending[p] {
		return s, true
	}
	return kvstore.Session{}, false
}

// told notes how telling p of s went. Out of reach, it is tried later, ever less often. What came up meanwhile is still to be told.
func (y *yields) told(p transfer.PeerID, s kvstore.Session, reached bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if reached {
		delete(y.mu.retry, p)
		key := sessionKey{s.Tenant, s.ID}
		if now := y.mu.pending[p][key]; cmp.Or(cmp.Compare(now.RepinSeq, s.RepinSeq), cmp.Compare(now.Epoch, s.Epoch)) <= 0 {
			delete(y.mu.pending[p], key)
		}
		return
	}
	y.mu.retry[p] = y.mu.retry[p].longer(time.Now())
}

// announceOwned has the peers told of every session that came here, by a hand-over, a re-pin or a reclaim: of those taken over
// before a restart nobody else keeps account.
func (d *Daemon) announceOwned() {
	for _, s := range d.sessions.List() {
		if s.Owner == d.self && (s.RepinSeq > 0 || s.Epoch > 1) {
			d.yields.add(d.links.ids(), s)
		}
	}
}

// yieldPending tells the peers that are due. One round runs at a time, in the background, one goroutine a peer.
func (d *Daemon) yieldPending() {
	d.yields.mu.Lock()
	defer d.yields.mu.Unlock()
	due := d.yields.due(time.Now())
	if d.yields.mu.busy || len(due) == 0 {
		return
	}
	d.yields.mu.busy = true
	d.wg.Go(func() { // owner: d; ends when the peers are told or out of reach
		var wg sync.WaitGroup
		for _, p := range due {
			wg.Go(func() { d.tellPeer(p) })
		}
		wg.Wait()
		d.yields.mu.Lock()
		d.yields.mu.busy = false
		d.yields.mu.Unlock()
	})
}

// tellPeer tells p of what it has yet to hear, until it has heard all or can't be reached.
func (d *Daemon) tellPeer(p transfer.PeerID) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-d.closing:
			return
		default:
		}
		s, ok := d.yields.next(p)
		if !ok {
			return
		}
		switch now, err := d.sessions.Get(s.Tenant, s.ID); {
		case err != nil || now.Owner == kvstore.NodeID(p):
			d.yields.told(p, s, true) // forgotten, or the peer's own
			continue
		case now.Owner == d.self:
			s = now
		default: // it has gone on: p, which may still take itself for the owner, hears who was, and is forwarded from here
		}
		_, _, err := d.callNode(ctx, p, &pb.PeerRequest{Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{
			Session: &pb.SessionRef{Tenant: string(s.Tenant), SessionId: string(s.ID)}, Epoch: s.Epoch, RepinSeq: s.RepinSeq,
		}}})
		reached := err == nil
		if err != nil {
			f := classify(err)
			reached = f.Reason == ReasonSessionNotFound || f.Reason == ReasonInvalid || f.Reason == ReasonFenced || f.Reason == ReasonPolicyDenied
			if f.Reason == ReasonFenced {
				d.believe(ctx, p, s, f)
			}
		}
		d.yields.told(p, s, reached)
		if !reached {
			d.log.LogAttrs(ctx, slog.LevelDebug, "tell of ownership", slog.String("peer", string(p)), slog.Any("error", err))
			return
		}
	}
}

// believe gives a session up to the owner that a peer's refusal names, if that orders above what this node has: then this
// node's takeover was the stale one. At the same rank only the owner itself is believed: a hand-over to it may be lost. A peer whose region
// may not have the session has no word in it, and neither has one whose record is older than that of the node it names.
func (d *Daemon) believe(ctx context.Context, p transfer.PeerID, s kvstore.Session, f *Failure) {
	owner := kvstore.NodeID(f.Meta["owner_node_id"])
	epoch, err1 := strconv.ParseUint(f.Meta["epoch"], 10, 64)
	repin, err2 := strconv.ParseUint(f.Meta["repin_seq"], 10, 64)
	if !idPattern.MatchString(string(owner)) || owner == d.self || epoch > maxEpoch || err1 != nil || err2 != nil || epoch == s.Epoch && repin == s.RepinSeq && owner != kvstore.NodeID(p) {
		return
	}
	from := transfer.Peer{ID: p, Region: d.links.peers[p].Region} // to which a dialled peer's certificate was held
	if d.mayPull(from, auditYield, s.Tenant, s.ID) != nil {
		return
	}
	if owner != kvstore.NodeID(p) && d.ownerDenies(ctx, transfer.PeerID(owner), s, epoch, repin) {
		return
	}
	if err := d.sessions.Yield(s.Tenant, s.ID, owner, epoch, repin); err != nil {
		return // this node's record is the newer one after all
	}
	d.audit.grant(auditYield, "self", append(sessionAttrs(s.Tenant, s.ID), slog.String("to", string(owner)), slog.Uint64("epoch", epoch))...)
	d.log.LogAttrs(context.Background(), slog.LevelWarn, "session yielded", slog.String("session_id", string(s.ID)), slog.String("to", string(owner)), slog.Uint64("epoch", epoch))
	d.flip(s.Tenant, s.ID, owner, epoch)
}

// ownerDenies reports whether the node that a third one takes for the owner of s says that this node is: it has forgotten the session since it had that rank, and
// the session has begun anew. A hand-over that is on its way there may be of that rank.
func (d *Daemon) ownerDenies(ctx context.Context, owner transfer.PeerID, s kvstore.Session, epoch, repin uint64) bool {
	ref := &pb.SessionRef{Tenant: string(s.Tenant), SessionId: string(s.ID)}
	_, resp, err := d.callNode(ctx, owner, &pb.PeerRequest{Call: &pb.PeerRequest_Confirm{Confirm: &pb.ConfirmCall{Session: ref, Epoch: epoch, RepinSeq: repin}}})
	if err != nil || resp.GetConfirm().GetPending() {
		return false
	}
	l := d.ask(ctx, owner, ref)
	return l.err == nil && l.answer.GetKnown() && l.answer.GetOwnerNodeId() == string(d.self)
}
