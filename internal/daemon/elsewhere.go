package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// sessionsKept is how long this node remembers a session that nothing changes of, its own or where it went, and goes by a migration's word that one is another
// node's. sessionsEvery is how often what is older is looked for.
const (
	sessionsKept  = 7 * 24 * time.Hour
	sessionsEvery = time.Hour
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

// expireSessions forgets what is older than sessionsKept: nobody says when a session ends.
func (d *Daemon) expireSessions(now time.Time) {
	for _, of := range []struct {
		what   string
		expire func(before time.Time) (int, error)
	}{{"sessions that nothing changed of", d.sessions.Expire}, {"sessions that have not come here", d.sessions.ExpireElsewhere}} {
		n, err := of.expire(now.Add(-sessionsKept))
		if err != nil {
			d.log.LogAttrs(context.Background(), slog.LevelWarn, "forget "+of.what, slog.Any("error", err))
		}
		if n > 0 {
			d.log.LogAttrs(context.Background(), slog.LevelInfo, "forgot "+of.what, slog.Int("sessions", n))
		}
	}
}
