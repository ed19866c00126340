package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// incarnations is which process of each peer was heard of last. What was kept for the one before is dropped: it asks for
// nothing any more.
type incarnations struct {
	mu struct {
		sync.Mutex
		of map[transfer.PeerID]string
	}
}

func newIncarnations() *incarnations {
	i := &incarnations{}
	i.mu.of = map[transfer.PeerID]string{}
	return i
}

// is reports whether the peer's process was heard of last.
func (i *incarnations) is(p transfer.Peer) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.of[p.ID] == p.Incarnation
}

// note takes in which processes there are, and returns the peers that have another one than before.
func (i *incarnations) note(now map[transfer.PeerID]string) (changed []transfer.Peer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for p, inc := range now {
		if old := i.mu.of[p]; old != "" && old != inc {
			changed = append(changed, transfer.Peer{ID: p, Incarnation: inc})
		}
		i.mu.of[p] = inc
	}
	return changed
}

// lookAtPeers finds peers that have been restarted, by their youngest links, and drops what was held for the processes before.
func (d *Daemon) lookAtPeers() {
	type seen struct {
		incarnation string
		since       time.Time
	}
	youngest := map[transfer.PeerID]seen{}
	for _, l := range d.agent.Links() {
		p, since := l.Peer(), l.Stats().Since
		if p.Incarnation != "" && l.Err() == nil && since.After(youngest[p.ID].since) {
			youngest[p.ID] = seen{p.Incarnation, since}
		}
	}
	now := make(map[transfer.PeerID]string, len(youngest))
	for p, s := range youngest {
		now[p] = s.incarnation
	}
	for _, p := range d.incarnations.note(now) {
		d.reclaims.restarted(p.ID)
		n := d.offers.restarted(p)
		d.log.LogAttrs(context.Background(), slog.LevelInfo, "peer was restarted", slog.String("peer", string(p.ID)), slog.String("incarnation", p.Incarnation), slog.Int("offers_dropped", n))
	}
}
