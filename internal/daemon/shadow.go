package daemon

import (
	"log/slog"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// In shadow mode a migration runs as far as its plan, on a dry offer: the source leases nothing and draws no ticket, this node reserves
// nothing, no page moves and nobody's directory changes. It ends in REDIRECT, the answer that has a caller serve the session from where
// it is, and what would have been done is in its report, its plan and the log.

// pretend ends a migration of shadow mode in place of carrying out what was decided, once it is known that it could have been begun.
func (m *migration) pretend(missing int) (event, error) {
	if m.drive.decided == planner.ModeFetch {
		if _, err := m.pageOrder(missing); err != nil {
			return 0, err
		}
	}
	m.meeting.close(meetingRecompute) // who claims without looking prefills
	m.drive.mode = planner.ModeRedirect
	return evRedirect, nil
}

// shadowAttrs are what the log says of a migration that would have been.
func (m *migration) shadowAttrs(r *pb.MigrationReport) []slog.Attr {
	if !m.demand.shadow {
		return nil
	}
	return []slog.Attr{
		slog.Bool("shadow", true), slog.String("decided", m.drive.decided.String()), slog.Float64("predicted_seconds", r.GetPredictedSeconds()),
		slog.String("source", string(m.drive.source)),
	}
}
