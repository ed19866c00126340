package daemon

import (
	"context"
	"log/slog"
	"sync"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// yields are sessions that this node took over from an owner who could not be asked; each peer is told when it can be
// reached again. They are kept in memory: after a restart the returning owner learns of it at the next hand-over, which
// is fenced by the higher (repin_seq, epoch).
type yields struct {
	mu struct {
		sync.Mutex
		pending map[sessionKey]kvstore.Session
		busy    bool
	}
}

func newYields() *yields {
	y := &yields{}
	y.mu.pending = map[sessionKey]kvstore.Session{}
	return y
}

func (y *yields) add(s kvstore.Session) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.mu.pending[sessionKey{s.Tenant, s.ID}] = s
}

// yieldPending tells every reachable peer of what was taken over. One round runs at a time, in the background.
func (d *Daemon) yieldPending() {
	d.yields.mu.Lock()
	defer d.yields.mu.Unlock()
	if d.yields.mu.busy || len(d.yields.mu.pending) == 0 {
		return
	}
	d.yields.mu.busy = true
	round := make([]kvstore.Session, 0, len(d.yields.mu.pending))
	for _, s := range d.yields.mu.pending {
		round = append(round, s)
	}
	d.wg.Go(func() { // owner: d; ends within the connect and call time-outs
		for _, s := range round {
			if d.tellAll(s) {
				d.yields.mu.Lock()
				delete(d.yields.mu.pending, sessionKey{s.Tenant, s.ID})
				d.yields.mu.Unlock()
			}
		}
		d.yields.mu.Lock()
		d.yields.mu.busy = false
		d.yields.mu.Unlock()
	})
}

// tellAll tells every configured peer that this node owns s; true when all have answered.
func (d *Daemon) tellAll(s kvstore.Session) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all := true
	for _, id := range d.links.ids() {
		select {
		case <-d.closing:
			return false
		default:
		}
		err := d.tell(ctx, id, s)
		if err == nil {
			continue
		}
		switch classify(err).Reason {
		case ReasonSessionNotFound, ReasonFenced, ReasonInvalid: // it has nothing to give up, or knows better
		default:
			all = false
			d.log.LogAttrs(ctx, slog.LevelDebug, "tell of takeover", slog.String("peer", string(id)), slog.Any("error", err))
		}
	}
	return all
}

func (d *Daemon) tell(ctx context.Context, id transfer.PeerID, s kvstore.Session) error {
	_, _, err := d.callNode(ctx, id, &pb.PeerRequest{Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{
		Session: &pb.SessionRef{Tenant: string(s.Tenant), SessionId: string(s.ID)}, Epoch: s.Epoch, RepinSeq: s.RepinSeq,
	}}})
	return err
}
