package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// elsewhereKept is how long this node goes by a migration's word that a session is another node's, and elsewhereEvery how often what is older is looked for.
const (
	elsewhereKept  = 7 * 24 * time.Hour
	elsewhereEvery = time.Hour
)

// noteElsewhere begins to note that the session is another node's, which owner may be, until it has arrived: an engine here may prefill it whatever becomes
// of the migration, and of this process, and must not publish it for its own. The disk works beside the offer.
func (m *migration) noteElsewhere(owner transfer.PeerID) {
	if m.dry {
		return
	}
	noted := make(chan struct{})
	m.drive.noted = noted
	m.d.wg.Go(func() { // owner: d; ends with the write
		defer close(noted)
		m.markElsewhere(kvstore.Elsewhere{Owner: kvstore.NodeID(owner)})
	})
}

func (m *migration) markElsewhere(e kvstore.Elsewhere) {
	e.Since = time.Now()
	if err := m.d.sessions.MarkElsewhere(m.demand.tenant, m.demand.session, e); err != nil {
		m.d.log.LogAttrs(context.Background(), slog.LevelWarn, "that a session is another node's is known until a restart only", slog.String("migration_id", m.id), slog.Any("error", err))
	}
}

// awaitNoted waits until it is noted, which has taken no longer than the offer, or ctx ends.
func (m *migration) awaitNoted(ctx context.Context) error {
	if m.drive.noted == nil {
		return nil
	}
	select {
	case <-m.drive.noted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settleElsewhere notes what has become known of who owns a session that has not come here; nothing, where every node was asked and none knows it: then it is
// anybody's to begin.
func (m *migration) settleElsewhere() {
	dr := &m.drive
	if dr.noted == nil {
		return
	}
	<-dr.noted
	switch {
	case dr.ownership == pb.Ownership_OWNERSHIP_MOVED: // the record has taken the mark away
	case dr.nobody:
		if err := m.d.sessions.DropElsewhere(m.demand.tenant, m.demand.session); err != nil {
			m.d.log.LogAttrs(context.Background(), slog.LevelWarn, "that nobody knows a session is known until a restart only", slog.String("migration_id", m.id), slog.Any("error", err))
		}
	default:
		m.markElsewhere(kvstore.Elsewhere{Owner: kvstore.NodeID(dr.source), Epoch: dr.session.Epoch})
	}
}

// expireElsewhere forgets what is older than elsewhereKept.
func (d *Daemon) expireElsewhere(now time.Time) {
	n, err := d.sessions.ExpireElsewhere(now.Add(-elsewhereKept))
	if err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "forget sessions that have not come here", slog.Any("error", err))
	}
	if n > 0 {
		d.log.LogAttrs(context.Background(), slog.LevelInfo, "forgot sessions that have not come here", slog.Int("sessions", n))
	}
}
