package daemon

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// handOver asks the authority for the session until it answers, or has been silent for as long as a transfer may be. ctx does
// not end with a cancel: the answer decides who owns the session.
func (m *migration) handOver(ctx context.Context) (event, error) {
	m.want(0)
	if err := m.d.sessions.Writable(m.drive.session); err != nil { // what it can't note it must not be given
		return 0, err
	}
	for {
		answer, asked, err := m.untilAnswered(ctx)
		switch {
		case err == nil && answer.GetMoved() && !m.believable(answer):
			m.drive.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
			return 0, badOffer("handed over with epoch %d after %d, %d stale tokens", answer.GetEpoch(), m.drive.session.Epoch, answer.GetStaleTailTokens())
		case err == nil && answer.GetMoved():
			return m.adopt(answer)
		case err == nil:
			if again, err := m.grew(ctx); err != nil || !again {
				return evGrown, err
			}
		case m.wentBack(err):
			if again, err := m.grew(ctx); err != nil || !again {
				return evGrown, err
			}
		case asked: // nobody here can tell whether the source has handed over
			m.drive.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
			return 0, failf(ReasonPeerUnreachable, "migrate again: the owner's record decides, and the same hand-over is not done twice", "the hand-over was asked for and not answered: %v", err)
		default:
			return 0, err
		}
	}
}

// wentBack reports whether a hand-over is refused because the source has taken the session back since its offer: this node, which is the owner by the
// source's earlier record, had not got it. Another offer is of its own. Or the other way: an earlier migration's question, kept by the network until now, has made
// this node the owner, which asks again as such.
func (m *migration) wentBack(err error) bool {
	f := classify(err)
	epoch, err1 := strconv.ParseUint(f.Meta["epoch"], 10, 64)
	repin, err2 := strconv.ParseUint(f.Meta["repin_seq"], 10, 64)
	before, now := m.drive.session.Owner, kvstore.NodeID(f.Meta["owner_node_id"])
	source := kvstore.NodeID(m.drive.source)
	return f.Reason == ReasonFenced && err1 == nil && err2 == nil && (before == m.d.self && now == source || before == source && now == m.d.self && !fault.Planted(fault.CommitDoubled)) &&
		epoch > m.drive.session.Epoch && repin <= m.demand.repinSeq
}

// believable reports whether an answer is one that a kvferryd gives.
func (m *migration) believable(a *pb.HandOverAnswer) bool {
	return a.GetEpoch() >= m.drive.session.Epoch && a.GetEpoch() <= maxEpoch && a.GetStaleTailTokens() >= 0 && a.GetStaleTailTokens() <= maxTokens
}

// handOverRetry is the pause between two questions.
const handOverRetry = 50 * time.Millisecond

// untilAnswered asks until the source answers, which may be a refusal. asked says that an error may hide an answer: the
// question has left, and the source may have done what it asks.
func (m *migration) untilAnswered(ctx context.Context) (answer *pb.HandOverAnswer, asked bool, err error) {
	// Time for a question over a connection that is dead, and for one over a fresh one.
	patience := max(m.d.cfg.Link.ProgressTimeout, m.d.cfg.Migration.CallTimeout+m.d.cfg.Link.ConnectTimeout)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer, sent, err := m.askHandOver(ctx)
		if err == nil {
			return answer, false, nil
		}
		reason := classify(err).Reason
		gone := errors.Is(err, context.DeadlineExceeded) || sourceGone(reason)
		if re, ok := errors.AsType[*transfer.RemoteError](err); ok && re.Code == codeFailure {
			if !asked || reason == ReasonFenced || reason == ReasonSessionNotFound {
				return nil, false, err
			}
			gone = true // a source that can't do it now may have done it when it was asked before
		} else {
			asked = asked || sent
		}
		if gone && ctx.Err() == nil {
			timer := time.NewTimer(handOverRetry)
			select {
			case <-ctx.Done():
				timer.Stop()
			case <-timer.C:
				continue
			}
		}
		if !gone && ctx.Err() == nil {
			return nil, asked, err
		}
		return nil, asked, failf(ReasonPeerUnreachable, "migrate again; the session is still its owner's", "the source did not answer within %v: %v", patience, err)
	}
}

// askHandOver asks once. sent is false when the question has not left for certain.
func (m *migration) askHandOver(ctx context.Context) (answer *pb.HandOverAnswer, sent bool, err error) {
	dr := &m.drive
	link, err := m.d.links.get(ctx, dr.source)
	if err != nil {
		return nil, false, err
	}
	if err := link.Err(); err != nil {
		return nil, false, err
	}
	known, _ := m.d.sessions.Get(m.demand.tenant, m.demand.session)
	resp, err := m.d.callPeer(ctx, link, &pb.PeerRequest{Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{
		Session: m.demand.ref(), MigrationId: m.id, Epoch: dr.session.Epoch, Version: dr.session.Version, Tokens: dr.session.Tokens,
		RepinSeq: m.demand.repinSeq, AcceptStale: dr.grown >= maxGrown, Above: known.Epoch,
	}}})
	return resp.GetHandOver(), true, err
}

// grew takes over the session as it is now. again is true when nothing has to move and the hand-over can be asked for
// at once; otherwise the delta's blocks are offered and are to be fetched.
func (m *migration) grew(ctx context.Context) (again bool, err error) {
	dr := &m.drive
	if dr.grown++; dr.grown > maxGrown { // it was asked to hand over what it has all the same
		return false, badOffer("the session grew %d times, the last time although a stale tail was accepted", dr.grown)
	}
	old := dr.offer.id
	if err := m.askOffer(ctx); err != nil {
		return false, err
	}
	m.d.endOffer(ctx, dr.link, old)
	return !brings(dr.mode), nil
}

// adopt records that this node owns the session.
func (m *migration) adopt(answer *pb.HandOverAnswer) (event, error) {
	dr, epoch := &m.drive, answer.GetEpoch()
	s := dr.session
	if s.Owner != m.d.self { // else the source has only said again what its record says
		s.RepinSeq = max(s.RepinSeq, m.demand.repinSeq)
	}
	s.Owner, s.Epoch = m.d.self, epoch
	if err := m.d.sessions.Adopt(s); err != nil {
		dr.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
		return 0, err
	}
	_ = fault.At(fault.Adopted, string(m.d.self))
	if m.demand.repinSeq > s.RepinSeq { // this node's to raise, now that it is the owner
		raised, err := m.d.sessions.Take(s.Tenant, s.ID, m.demand.repinSeq)
		if err != nil {
			dr.ownership = pb.Ownership_OWNERSHIP_UNKNOWN
			return 0, err
		}
		s, epoch = raised, raised.Epoch
	}
	dr.session, dr.epoch, dr.stale, dr.ownership = s, epoch, answer.GetStaleTailTokens(), pb.Ownership_OWNERSHIP_MOVED
	m.d.yields.add([]transfer.PeerID{dr.source}, s) // whose answer may be older than what it knows: then it says so
	m.d.flip(s.Tenant, s.ID, m.d.self, epoch)
	if !answer.GetSettled() { // before this node is asked for it in turn
		m.d.yields.add(m.d.links.ids(), s)
	}
	if brings(dr.mode) && dr.lost == 0 {
		return evMovedWarm, nil
	}
	return evMovedCold, nil
}
