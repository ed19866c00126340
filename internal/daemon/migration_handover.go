package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// handOver asks the authority for the session until it answers, within four call time-outs. ctx does not end with a
// cancel: the answer decides who owns the session.
func (m *migration) handOver(ctx context.Context) (event, error) {
	dr := &m.drive
	m.want(0)
	if dr.session.Owner == m.d.self { // the source's record says so already: an earlier attempt's answer was lost
		return m.adopt(dr.session.Epoch, 0)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*m.d.cfg.Migration.CallTimeout)
	defer cancel()
	asked := false
	for {
		answer, err := m.askHandOver(ctx)
		if errors.Is(err, transfer.ErrAnswerLost) || errors.Is(err, context.DeadlineExceeded) {
			asked = true
		}
		switch {
		case err == nil && answer.GetMoved():
			return m.adopt(answer.GetEpoch(), answer.GetStaleTailTokens())
		case err == nil:
			if again, err := m.grew(ctx); err != nil || !again {
				return evGrown, err
			}
			continue
		case ctx.Err() == nil && sourceGone(classify(err).Reason) || ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		default:
			if asked {
				dr.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
				return evFailed, failf(ReasonPeerUnreachable, "migrate again: the owner's record decides, and the same hand-over is not done twice", "the hand-over was asked for and not answered: %v", err)
			}
			if ctx.Err() != nil {
				return 0, failf(ReasonPeerUnreachable, "migrate again; the session is still its owner's", "the hand-over could not be asked for: %v", err)
			}
			return 0, err
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (m *migration) askHandOver(ctx context.Context) (*pb.HandOverAnswer, error) {
	dr := &m.drive
	link, err := m.d.links.get(ctx, dr.source)
	if err != nil {
		return nil, err
	}
	resp, err := m.d.callPeer(ctx, link, &pb.PeerRequest{Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{
		Session: m.demand.ref(), MigrationId: m.id, Epoch: dr.session.Epoch, Version: dr.session.Version, Tokens: dr.session.Tokens,
		RepinSeq: m.demand.repinSeq, AcceptStale: dr.grown >= maxGrown,
	}}})
	return resp.GetHandOver(), err
}

// grew takes over the session as it is now. again is true when nothing has to move and the hand-over can be asked for
// at once; otherwise the delta's blocks are offered and are to be fetched.
func (m *migration) grew(ctx context.Context) (again bool, err error) {
	dr := &m.drive
	dr.grown++
	old := dr.offer.id
	if err := m.askOffer(ctx); err != nil {
		return false, err
	}
	m.d.endOffer(ctx, dr.link, old)
	return !brings(dr.mode), nil
}

// adopt records that this node owns the session.
func (m *migration) adopt(epoch uint64, stale int64) (event, error) {
	dr := &m.drive
	s := dr.session
	s.Owner, s.Epoch, s.RepinSeq = m.d.self, epoch, max(s.RepinSeq, m.demand.repinSeq)
	if err := m.d.sessions.Adopt(s); err != nil {
		dr.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
		return 0, err
	}
	_ = fault.At(fault.Adopted, string(m.d.self))
	dr.session, dr.epoch, dr.stale, dr.ownership = s, epoch, stale, pb.Ownership_OWNERSHIP_MOVED
	m.d.flip(s.Tenant, s.ID, m.d.self, epoch)
	if brings(dr.mode) && dr.lost == 0 {
		return evMovedWarm, nil
	}
	return evMovedCold, nil
}
