package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// reclaims are the sessions that this node handed over and whose new owners have not been heard to have them. Each new owner
// is asked. One that knows nothing of the session and has no migration of it running will not record it any more, on the strength of this hand-over: it died, its
// disk failed, or the answer was lost. Then the session is this node's again. A migration that begins there meanwhile asks here, and one of the two is fenced.
type reclaims struct {
	mu struct {
		sync.Mutex
		open  map[transfer.PeerID]map[sessionKey]kvstore.Forwarded
		retry map[transfer.PeerID]backoff
		done  []kvstore.Forwarded // heard of, to be recorded
		busy  bool
	}
}

func newReclaims() *reclaims {
	r := &reclaims{}
	r.mu.open, r.mu.retry = map[transfer.PeerID]map[sessionKey]kvstore.Forwarded{}, map[transfer.PeerID]backoff{}
	return r
}

// add has the new owner of each asked.
func (r *reclaims) add(list ...kvstore.Forwarded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range list {
		p := transfer.PeerID(f.To)
		if r.mu.open[p] == nil {
			r.mu.open[p] = map[sessionKey]kvstore.Forwarded{}
		}
		r.mu.open[p][sessionKey{f.Tenant, f.ID}] = f
		delete(r.mu.retry, p)
	}
}

// restarted has p asked at once: another process has come up there.
func (r *reclaims) restarted(p transfer.PeerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.retry, p)
}

// settled takes f off what p is asked for; known: it is to be recorded.
func (r *reclaims) settled(f kvstore.Forwarded, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, k := transfer.PeerID(f.To), sessionKey{f.Tenant, f.ID}
	if r.mu.open[p][k] == f { // else it was handed over once more meanwhile
		if delete(r.mu.open[p], k); len(r.mu.open[p]) == 0 {
			delete(r.mu.open, p)
			delete(r.mu.retry, p)
		}
	}
	if known {
		r.mu.done = append(r.mu.done, f)
	}
}

// later has p asked again after a while, ever less often.
func (r *reclaims) later(p transfer.PeerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.open[p]) > 0 {
		r.mu.retry[p] = r.mu.retry[p].longer(time.Now())
	}
}

// begin is what is to be asked of whom now, and what is to be recorded; end must follow unless there is nothing.
func (r *reclaims) begin(now time.Time) (due map[transfer.PeerID][]kvstore.Forwarded, done []kvstore.Forwarded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.busy {
		return nil, nil
	}
	due = map[transfer.PeerID][]kvstore.Forwarded{}
	for p, open := range r.mu.open {
		if now.Before(r.mu.retry[p].at) {
			continue
		}
		for _, f := range open {
			due[p] = append(due[p], f)
		}
	}
	done, r.mu.done = r.mu.done, nil
	r.mu.busy = len(due) > 0 || len(done) > 0
	return due, done
}

func (r *reclaims) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.busy = false
}

// confirmForwarded asks the new owners that are due. One round runs at a time, in the background, one goroutine a peer.
func (d *Daemon) confirmForwarded(now time.Time) {
	due, done := d.reclaims.begin(now)
	if len(due) == 0 && len(done) == 0 {
		return
	}
	d.wg.Go(func() { // owner: d; ends when the peers have answered or are out of reach, or d closes
		defer d.reclaims.end()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			select {
			case <-d.closing:
				cancel()
			case <-ctx.Done():
			}
		})
		if err := d.sessions.Confirm(done); err != nil {
			d.log.LogAttrs(ctx, slog.LevelWarn, "confirmed hand-overs are not recorded, and are asked for after a restart", slog.Any("error", err))
		}
		var asking sync.WaitGroup
		for p, list := range due {
			asking.Go(func() { d.confirmAt(ctx, p, list) })
		}
		asking.Wait()
		cancel()
		wg.Wait()
	})
}

// confirmAt asks p about each of list, until it can't be reached.
func (d *Daemon) confirmAt(ctx context.Context, p transfer.PeerID, list []kvstore.Forwarded) {
	defer d.reclaims.later(p) // what is left
	for _, f := range list {
		incarnation, a, err := d.askConfirm(ctx, p, f)
		switch {
		case err != nil:
			d.log.LogAttrs(ctx, slog.LevelDebug, "confirm hand-over", slog.String("peer", string(p)), slog.Any("error", err))
			return
		case a.GetKnown():
			d.reclaims.settled(f, true)
		case !a.GetPending():
			d.reclaim(ctx, f, incarnation)
		}
	}
}

// askConfirm asks over the link that p dialled, else over one that is dialled. The incarnation is that of the process that
// answered.
func (d *Daemon) askConfirm(ctx context.Context, p transfer.PeerID, f kvstore.Forwarded) (incarnation string, a *pb.ConfirmAnswer, err error) {
	req := &pb.PeerRequest{Call: &pb.PeerRequest_Confirm{Confirm: &pb.ConfirmCall{
		Session: &pb.SessionRef{Tenant: string(f.Tenant), SessionId: string(f.ID)}, Epoch: f.Epoch, RepinSeq: f.RepinSeq,
	}}}
	if link := d.linkOf(p); link != nil {
		// Shorter than the call time-out, which would end a link that other calls may wait on.
		short, cancel := context.WithTimeout(ctx, d.cfg.Migration.CallTimeout/2)
		defer cancel()
		if resp, err := d.callPeer(short, link, req); err == nil || ctx.Err() != nil {
			return link.Peer().Incarnation, resp.GetConfirm(), err
		} else if f, ok := errors.AsType[*Failure](err); ok {
			return "", nil, f
		}
	}
	link, resp, err := d.callNode(ctx, p, req)
	if err != nil {
		return "", nil, err
	}
	return link.Peer().Incarnation, resp.GetConfirm(), nil
}

// linkOf is the youngest live link with a peer, whoever dialled it; nil: there is none.
func (d *Daemon) linkOf(p transfer.PeerID) (youngest *transfer.Link) {
	var since time.Time
	for _, l := range d.agent.Links() {
		if l.Peer().ID != p || l.Err() != nil {
			continue
		}
		if st := l.Stats(); st.Stripes > 0 && (youngest == nil || st.Since.After(since)) {
			youngest, since = l, st.Since
		}
	}
	return youngest
}

// reclaim makes this node the owner again of a session that was lost with the process it went to.
func (d *Daemon) reclaim(ctx context.Context, f kvstore.Forwarded, incarnation string) {
	s, err := d.sessions.Reclaim(f)
	if err != nil {
		d.log.LogAttrs(ctx, slog.LevelWarn, "reclaim session", slog.String("session_id", string(f.ID)), slog.Any("error", err))
		if _, fenced := errors.AsType[*kvstore.FencedError](err); fenced || errors.Is(err, kvstore.ErrSessionNotFound) {
			d.reclaims.settled(f, false)
		}
		return
	}
	d.reclaims.settled(f, false)
	d.metrics.reclaimed.Inc()
	d.audit.grant(auditReclaim, "self", append(sessionAttrs(f.Tenant, f.ID), slog.String("from", string(f.To)), slog.Uint64("epoch", s.Epoch))...)
	d.log.LogAttrs(ctx, slog.LevelWarn, "session reclaimed", slog.String("session_id", string(f.ID)), slog.String("from", string(f.To)),
		slog.String("incarnation", incarnation), slog.Uint64("epoch", s.Epoch))
	d.flip(s.Tenant, s.ID, d.self, s.Epoch)
	d.yields.add(d.links.ids(), s)
}

// answerConfirm says whether a session that was handed over to this node, or went on from here, is known. A node that may not have
// it is told yes, whatever there is: it learns nothing, and takes nothing back.
func (d *Daemon) answerConfirm(from transfer.Peer, call *pb.ConfirmCall) (*pb.ConfirmAnswer, error) {
	tenant, id, err := sessionRefFromProto(call.GetSession())
	if err != nil {
		return nil, err
	}
	if d.mayPull(from, auditConfirm, tenant, id) != nil {
		return &pb.ConfirmAnswer{Known: true}, nil
	}
	pending := d.migrations.migrating(tenant, id) // before the look at the record: one that ends between the two has left it
	s, err := d.sessions.Get(tenant, id)
	if err != nil && !errors.Is(err, kvstore.ErrSessionNotFound) {
		return nil, err
	}
	// At the same rank a record that names the caller as the owner is of a hand-over that crossed this one: neither has the session by it.
	rank := cmp.Or(cmp.Compare(s.RepinSeq, call.GetRepinSeq()), cmp.Compare(s.Epoch, call.GetEpoch()))
	known := err == nil && (rank > 0 || rank == 0 && s.Owner != kvstore.NodeID(from.ID))
	return &pb.ConfirmAnswer{Known: known, Pending: !known && pending}, nil
}
