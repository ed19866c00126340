package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/wire"
)

// codeFailure is the call code whose details hold a google.rpc.Status made from a Failure.
const codeFailure = transfer.CodeUser

// answerPeer is the transfer.Config.Handler: one control call of a peer. A panic fails the call, not the daemon.
func (d *Daemon) answerPeer(ctx context.Context, from transfer.Peer, payload []byte) (answer []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			answer, err = nil, peerFailure(d.panicked(ctx, "peer call", r))
		}
	}()
	var req pb.PeerRequest
	if err := proto.Unmarshal(payload, &req); err != nil {
		return nil, peerFailure(failf(ReasonVersionMismatch, "run the same release on both nodes", "the call can't be decoded: %v", err))
	}
	if !d.incarnations.is(from) {
		d.lookAtPeers()
	}
	resp := &pb.PeerResponse{}
	switch call := req.GetCall().(type) {
	case *pb.PeerRequest_Locate:
		resp.Answer = &pb.PeerResponse_Locate{Locate: d.answerLocate(from, call.Locate)}
	case *pb.PeerRequest_Offer:
		var a *pb.OfferAnswer
		a, err = d.offerTo(from, call.Offer)
		resp.Answer = &pb.PeerResponse_Offer{Offer: a}
	case *pb.PeerRequest_Renew:
		if err = d.offers.renew(call.Renew.GetOfferId(), from.ID, call.Renew.GetBytesLeft()); err == nil {
			d.useOffered(call.Renew.GetOfferId(), from.ID)
		}
		resp.Answer = &pb.PeerResponse_Renew{Renew: &pb.RenewAnswer{LeaseTtl: durationpb.New(d.cfg.Migration.LeaseTTL)}}
	case *pb.PeerRequest_EndOffer:
		err = d.offers.end(call.EndOffer.GetOfferId(), from.ID)
		resp.Answer = &pb.PeerResponse_EndOffer{EndOffer: &pb.EndOfferAnswer{}}
	case *pb.PeerRequest_HandOver:
		var a *pb.HandOverAnswer
		a, err = d.answerHandOver(ctx, from, call.HandOver)
		resp.Answer = &pb.PeerResponse_HandOver{HandOver: a}
	case *pb.PeerRequest_Accuse:
		var a *pb.AccuseAnswer
		a, err = d.answerAccuse(ctx, from, call.Accuse)
		resp.Answer = &pb.PeerResponse_Accuse{Accuse: a}
	case *pb.PeerRequest_Yield:
		err = d.answerYield(from, call.Yield)
		resp.Answer = &pb.PeerResponse_Yield{Yield: &pb.YieldAnswer{}}
	case *pb.PeerRequest_Confirm:
		var a *pb.ConfirmAnswer
		a, err = d.answerConfirm(from, call.Confirm)
		resp.Answer = &pb.PeerResponse_Confirm{Confirm: a}
	default:
		err = failf(ReasonVersionMismatch, "run the same release on both nodes", "the call is of a kind that this release does not know")
	}
	if hit := fault.At(fault.Reply, string(d.self)); hit != nil {
		return nil, loseAnswer(ctx)
	}
	if err != nil {
		return nil, peerFailure(err)
	}
	out, err := proto.Marshal(resp)
	if err == nil && len(out) > wire.MaxPayload {
		err = peerFailure(tooLarge(len(out)))
	}
	return out, err
}

// loseAnswer returns when nobody waits for a call's answer any more.
func loseAnswer(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// peerFailure packs err for the caller.
func peerFailure(err error) error {
	f := classify(err)
	details, merr := proto.Marshal(f.proto())
	if merr != nil {
		details = nil
	}
	return &transfer.RemoteError{Code: codeFailure, Message: f.Error(), Details: details}
}

// callPeer makes one control call and unpacks its failure. It is bounded by the configured call time-out.
func (d *Daemon) callPeer(outer context.Context, link *transfer.Link, req *pb.PeerRequest) (*pb.PeerResponse, error) {
	ctx, cancel := context.WithTimeout(outer, d.cfg.Migration.CallTimeout)
	defer cancel()
	payload, err := proto.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode call: %w", err)
	}
	answer, err := link.Call(ctx, payload)
	if err != nil {
		if re, ok := errors.AsType[*transfer.RemoteError](err); ok && re.Code == codeFailure {
			return nil, failureFromDetails(re)
		}
		if ctx.Err() != nil && outer.Err() == nil {
			suspect(link)
			err = failf(ReasonPeerUnreachable, "check the link and the other daemon; the session can be recomputed", "no answer within migration.call_timeout (%v): %v", d.cfg.Migration.CallTimeout, err)
		}
		return nil, fmt.Errorf("call node %q: %w", link.Peer().ID, err)
	}
	var resp pb.PeerResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return nil, failf(ReasonVersionMismatch, "run the same release on both nodes", "the answer of node %q can't be decoded: %v", link.Peer().ID, err)
	}
	return &resp, nil
}

// suspect ends a link on which a call got no answer while no transfer runs: its peer is gone or was restarted, or the
// connection that carries its calls waits out a loss, and QUIC would take its idle time-out to find out. The next call
// dials afresh. A link with transfers is left to their progress time-out.
func suspect(link *transfer.Link) {
	if link.Stats().Transfers == 0 {
		_ = link.Close(transfer.CodePeerGone) // always nil; takes a second at most
	}
}

// maxLost bounds how often a call is made again because the connection under it broke. A peer that was restarted resets each of a
// link's connections when it is used, until one that is dialled instead shows that it is another process.
const maxLost = 16

// callNode makes one call that may be made several times, over the live link to a node or a fresh one. A link that ends under
// the call, or turns out to be dead, is replaced once; one that has lost a connection carries the call over the next.
func (d *Daemon) callNode(ctx context.Context, id transfer.PeerID, req *pb.PeerRequest) (*transfer.Link, *pb.PeerResponse, error) {
	replaced := false
	for lost := 0; ; {
		link, err := d.links.get(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		resp, err := d.callPeer(ctx, link, req)
		switch {
		case err == nil || ctx.Err() != nil:
			return link, resp, err
		case link.Err() != nil && !replaced:
			replaced = true
		case errors.Is(err, transfer.ErrAnswerLost) && lost < maxLost:
			lost++
		default:
			return link, resp, err
		}
	}
}

// answerLocate says what this node knows of a session: nothing, to a peer that may not have it.
func (d *Daemon) answerLocate(from transfer.Peer, call *pb.LocateCall) *pb.LocateAnswer {
	tenant, id, err := sessionRefFromProto(call.GetSession())
	if err != nil {
		return &pb.LocateAnswer{}
	}
	if d.mayPull(from, auditLocate, tenant, id) != nil {
		return &pb.LocateAnswer{}
	}
	s, err := d.sessions.Get(tenant, id)
	if err != nil {
		return &pb.LocateAnswer{}
	}
	return &pb.LocateAnswer{Known: true, OwnerNodeId: string(s.Owner), Epoch: s.Epoch, RepinSeq: s.RepinSeq}
}

// offerTo is answerOffer, held to the policy and with a line in the audit: none a part of an offer, or a price.
func (d *Daemon) offerTo(from transfer.Peer, call *pb.OfferCall) (*pb.OfferAnswer, error) {
	if len(call.GetOfferId()) > 0 {
		return d.continueOffer(from, call)
	}
	tenant, id := kvstore.Tenant(call.GetSession().GetTenant()), kvstore.SessionID(call.GetSession().GetSessionId())
	if err := d.mayPull(from, auditOffer, tenant, id); err != nil {
		return nil, err
	}
	answer, err := d.answerOffer(from, call)
	if err == nil { // a policy that came into force meanwhile has not seen the offer
		if err = d.mayPull(from, auditOffer, tenant, id); err != nil {
			_ = d.offers.end(answer.GetOfferId(), from.ID) // there is none in a dry run
			return nil, err
		}
	}
	if call.GetDryRun() && err == nil {
		return answer, nil
	}
	attrs := joinAttrs(peerAttrs(from), sessionAttrs(tenant, id), []slog.Attr{slog.String("migration_id", clipped(call.GetMigrationId()))})
	if err == nil {
		d.sessions.Use(tenant, id)
		attrs = append(attrs, slog.Int64("blocks", answer.GetBlocksAvailable()), slog.Int64("bytes", answer.GetBlocksAvailable()*answer.GetStrideBytes()))
	}
	d.audit.decide(auditOffer, string(from.ID), err, attrs...)
	return answer, err
}

// useOffered keeps the record of a session from being forgotten while it is on its way.
func (d *Daemon) useOffered(offer []byte, peer transfer.PeerID) {
	if of, err := d.offers.find(offer, peer); err == nil {
		d.sessions.Use(of.session.Tenant, of.session.ID)
	}
}

// answerOffer leases a session's blocks (or named blocks) to the caller, or prices them in a dry run.
func (d *Daemon) answerOffer(from transfer.Peer, call *pb.OfferCall) (*pb.OfferAnswer, error) {
	urgent, err := urgencyFromProto(call)
	if err != nil {
		return nil, err
	}
	tenant, err := askerFromProto(call)
	if err != nil {
		return nil, err
	}
	session := kvstore.Session{Tenant: tenant}
	var candidates []*engine
	if len(call.GetKeys()) > 0 {
		if session.Keys, err = keysFromProto("keys", call.GetKeys(), maxKeysPerCall, false); err != nil {
			return nil, err
		}
		candidates = d.engines.list()
	} else {
		_, id, err := sessionRefFromProto(call.GetSession())
		if err != nil {
			return nil, err
		}
		if session, err = d.sessions.Get(tenant, id); err != nil {
			return nil, err
		}
		// The recorded owner may ask, too: the answer that made it the owner may have been lost.
		if session.Owner != d.self && session.Owner != kvstore.NodeID(from.ID) {
			return nil, &kvstore.NotOwnerError{Tenant: tenant, ID: id, Owner: session.Owner, Epoch: session.Epoch}
		}
		candidates = d.engines.byPin(session.Pin)
		if call.GetLayout() != nil {
			if err := d.checkLayout(call.GetLayout(), session); err != nil {
				return nil, err
			}
		}
	}
	e := mostPresent(candidates, tenant, session.Keys)
	if len(call.GetKeys()) > 0 && call.GetLayout() != nil && e != nil {
		want, err := layoutFromProto(call.GetLayout())
		if err != nil {
			return nil, err
		}
		if diff := want.Diff(e.layout); len(diff) > 0 {
			return nil, layoutMismatch("the layouts of source and destination differ", "the destination", "the source", diff)
		}
	}
	answer := &pb.OfferAnswer{LeaseTtl: durationpb.New(d.cfg.Migration.LeaseTTL), MaxRate: d.maxRate(tenant)}
	if len(call.GetKeys()) > 0 { // the caller has the keys
		answer.Session = sessionToProto(kvstore.Session{Tenant: tenant, Pin: session.Pin})
	} else {
		offerPart(answer, session, nil, int(call.GetFirst()))
	}
	if e == nil { // the blocks died with an earlier incarnation; the session can still be handed over
		return answer, nil
	}
	if len(call.GetKeys()) > 0 { // named blocks have the layout of the engine that holds them
		pin := e.layout.Pin()
		answer.Session.LayoutPin = pin[:]
	}
	answer.MemoryId, answer.StrideBytes, answer.Layout = uint32(e.memory), e.layout.Stride(), layoutToProto(e.layout)
	if call.GetDryRun() {
		answer.BlocksAvailable = int64(presentPrefix(e.arena, tenant, session.Keys))
		answer.EgressBacklogBytes = d.offers.price(from.ID, urgent, session, answer.GetBlocksAvailable()*e.layout.BlockBytes())
		return answer, nil
	}
	if !e.writeThrough {
		e.publish(&pb.EventsResponse{Event: &pb.EventsResponse_PublishNow{PublishNow: &pb.PublishNow{Session: call.GetSession(), MigrationId: call.GetMigrationId()}}})
	}
	of, before, err := d.offers.make(e, from, call.GetMigrationId(), urgent, session)
	if (errors.Is(err, kvstore.ErrArenaFault) || errors.Is(err, kvstore.ErrArenaClosed)) && len(call.GetKeys()) == 0 { // the blocks are gone; the session is not
		return answer, nil
	}
	if err != nil {
		return nil, err
	}
	answer.BlocksAvailable, answer.OfferId, answer.EgressBacklogBytes = int64(len(of.refs)), of.id[:], before
	if len(call.GetKeys()) == 0 {
		offerPart(answer, session, of.refs, 0)
		return answer, nil
	}
	answer.Slots = refsToProto(of.refs)
	if n := proto.Size(answer); n > maxAnswer {
		_ = d.offers.end(of.id[:], from.ID)
		return nil, tooLarge(n)
	}
	return answer, nil
}

// askerFromProto checks what names an offer: it is kept, shown and told to engines.
func askerFromProto(call *pb.OfferCall) (kvstore.Tenant, error) {
	t, m := call.GetSession().GetTenant(), call.GetMigrationId()
	switch {
	case len(t) > 128 || !printable(t):
		return "", invalid("session.tenant", len(t), "at most 128 bytes of UTF-8 without control characters")
	case len(m) > 128 || !printable(m):
		return "", invalid("migration_id", len(m), "at most 128 bytes of UTF-8 without control characters")
	case len(call.GetKeys()) > 0 && call.GetSession().GetSessionId() != "":
		return "", invalid("session.session_id", len(call.GetSession().GetSessionId()), "empty when keys are given")
	}
	return kvstore.Tenant(t), nil
}

// urgencyFromProto is what the caller says of the transfer that will follow.
func urgencyFromProto(call *pb.OfferCall) (u urgency, err error) {
	if u.class, err = classFromProto(call.GetClass()); err != nil {
		return u, err
	}
	d, err := duration("deadline", call.GetDeadline())
	if d > 0 {
		u.deadline = time.Now().Add(d)
	}
	return u, err
}

// partKeys is how many keys of 64 bytes, with their slots, fit one answer with room to spare.
const partKeys = 8192

// offerPart puts the session and the part of its keys and slots that begins at first into an answer.
func offerPart(answer *pb.OfferAnswer, s kvstore.Session, refs []kvstore.SlotRef, first int) {
	answer.KeysTotal = uint32(len(s.Keys))
	first = min(first, len(s.Keys))
	end := min(first+partKeys, len(s.Keys))
	answer.Slots = refsToProto(refs[min(first, len(refs)):min(end, len(refs))])
	s.Keys = s.Keys[first:end]
	answer.Session = sessionToProto(s)
}

// continueOffer answers another part of an offer's keys and slots.
func (d *Daemon) continueOffer(from transfer.Peer, call *pb.OfferCall) (*pb.OfferAnswer, error) {
	of, err := d.offers.find(call.GetOfferId(), from.ID)
	if err != nil {
		return nil, err
	}
	answer := &pb.OfferAnswer{LeaseTtl: durationpb.New(d.cfg.Migration.LeaseTTL), OfferId: of.id[:], BlocksAvailable: int64(len(of.refs))}
	offerPart(answer, of.session, of.refs, int(call.GetFirst()))
	return answer, nil
}

// maxAnswer leaves room for the frame around an answer.
const maxAnswer = wire.MaxPayload - 1024

func tooLarge(n int) *Failure {
	return failf(ReasonModeUnavailable, "name fewer blocks a call", "the named blocks are too many for one answer: %d bytes, at most %d", n, maxAnswer)
}

// checkLayout compares the destination's layout with the session's, field by field where an engine here has it.
func (d *Daemon) checkLayout(theirs *pb.Layout, s kvstore.Session) error {
	want, err := layoutFromProto(theirs)
	if err != nil {
		return err
	}
	if want.Pin() == s.Pin {
		return nil
	}
	for _, e := range d.engines.byPin(s.Pin) {
		return layoutMismatch("the layouts of source and destination differ", "the destination", "the source", want.Diff(e.layout))
	}
	return failf(ReasonLayoutMismatch, "run both engines with the same model, layout and hashing",
		"the session's layout pin is %s, the destination's is %s", s.Pin, want.Pin())
}

// mostPresent is the engine that holds the longest prefix of keys; nil without candidates.
func mostPresent(candidates []*engine, t kvstore.Tenant, keys []kvstore.BlockKey) *engine {
	var best *engine
	most := -1
	for _, e := range candidates {
		if n := presentPrefix(e.arena, t, keys); n > most {
			best, most = e, n
		}
	}
	return best
}

// presentPrefix is how many leading keys are present.
func presentPrefix(a *kvstore.Arena, t kvstore.Tenant, keys []kvstore.BlockKey) int {
	for i, k := range keys {
		if st, _ := a.Lookup(t, k); st != kvstore.BlockPresent {
			return i
		}
	}
	return len(keys)
}

// answerHandOver is the compare-and-set; the forwarding record is on disk when it returns.
func (d *Daemon) answerHandOver(ctx context.Context, from transfer.Peer, call *pb.HandOverCall) (*pb.HandOverAnswer, error) {
	tenant, id, err := sessionRefFromProto(call.GetSession())
	if err != nil {
		return nil, err
	}
	if call.GetAbove() >= maxEpoch {
		return nil, invalid("above", call.GetAbove(), "less than 2^62: it grows by one with each owner")
	}
	if err := d.mayPull(from, auditHandOver, tenant, id); err != nil {
		return nil, err
	}
	attrs := joinAttrs(peerAttrs(from), sessionAttrs(tenant, id), []slog.Attr{slog.String("migration_id", clipped(call.GetMigrationId()))})
	before, _ := d.sessions.Get(tenant, id)
	settled := before.Owner == d.self && d.yields.settled(tenant, id) // asked again, it is not known any more: nobody here keeps account
	res, err := d.sessions.HandOver(kvstore.HandOver{
		Tenant: tenant, ID: id, Migration: call.GetMigrationId(), To: kvstore.NodeID(from.ID), Incarnation: from.Incarnation, Epoch: call.GetEpoch(),
		Version: call.GetVersion(), Tokens: call.GetTokens(), RepinSeq: call.GetRepinSeq(), AcceptStale: call.GetAcceptStale(), Above: call.GetAbove(),
	})
	if err != nil {
		d.audit.refuse(auditHandOver, string(from.ID), err, attrs...)
		return nil, err
	}
	if res.Outcome == kvstore.Moved {
		if f, awaits := d.sessions.UnconfirmedOf(tenant, id); awaits { // whatever becomes of the answer
			d.reclaims.add(f)
		}
	}
	if hit := fault.At(fault.HandedOver, string(d.self)); hit != nil {
		return nil, loseAnswer(ctx)
	}
	if res.Outcome != kvstore.Moved {
		res.Session.Keys = nil // the caller asks for another offer
		return &pb.HandOverAnswer{Epoch: res.Epoch, Grown: sessionToProto(res.Session)}, nil
	}
	d.log.LogAttrs(ctx, slog.LevelInfo, "session handed over", slog.String("session_id", string(id)), slog.String("to", string(from.ID)),
		slog.Uint64("epoch", res.Epoch), slog.String("migration_id", call.GetMigrationId()))
	d.audit.grant(auditHandOver, string(from.ID), append(attrs, slog.Uint64("epoch", res.Epoch))...)
	d.flip(tenant, id, kvstore.NodeID(from.ID), res.Epoch)
	return &pb.HandOverAnswer{Moved: true, Epoch: res.Epoch, StaleTailTokens: res.StaleTailTokens, Settled: settled}, nil
}

// answerAccuse re-verifies one of our own blocks and drops it when it is bad.
func (d *Daemon) answerAccuse(ctx context.Context, from transfer.Peer, call *pb.AccuseCall) (*pb.AccuseAnswer, error) {
	of, err := d.offers.find(call.GetOfferId(), from.ID)
	if err != nil {
		return nil, err
	}
	ref := refFromProto(call.GetSlot())
	if !slices.Contains(of.refs, ref) { // it costs a look at memory, and says what is in it
		return nil, invalid("slot", ref, "one of the offer's")
	}
	err = of.arena.VerifyBlock(ref)
	if err == nil {
		d.metrics.accused.WithLabelValues("good").Inc()
		return &pb.AccuseAnswer{}, nil
	}
	if errors.Is(err, kvstore.ErrBlockNotFound) { // another puller's accusation was quicker: the offer still holds the slot
		return &pb.AccuseAnswer{Dropped: true}, nil
	}
	if !errors.Is(err, kvstore.ErrChecksumMismatch) {
		return nil, err
	}
	d.log.LogAttrs(ctx, slog.LevelError, "own block is corrupt", slog.String("arena", of.arena.Path()), slog.String("slot", ref.String()), slog.Any("error", err))
	if err := of.arena.DropBlock(ref); err != nil {
		return nil, err
	}
	d.audit.grant(auditInvalidate, string(from.ID), joinAttrs(peerAttrs(from), sessionAttrs(of.session.Tenant, of.session.ID),
		[]slog.Attr{slog.Int("blocks", 1), slog.String("why", "its checksum does not hold")})...)
	if page, ok := errors.AsType[*kvstore.PageError](err); ok {
		d.engines.invalidate(of.arena, of.session.Tenant, []kvstore.BlockKey{page.Key}, "its checksum does not hold")
	}
	d.metrics.accused.WithLabelValues("dropped").Inc()
	return &pb.AccuseAnswer{Dropped: true}, nil
}

// answerYield gives up a session that the caller owns by a higher (repin_seq, epoch).
func (d *Daemon) answerYield(from transfer.Peer, call *pb.YieldCall) error {
	tenant, id, err := sessionRefFromProto(call.GetSession())
	if err != nil {
		return err
	}
	if call.GetEpoch() > maxEpoch {
		return invalid("epoch", call.GetEpoch(), "at most 2^62: it grows by one with each owner")
	}
	if err := d.mayPull(from, auditYield, tenant, id); err != nil {
		return err
	}
	// Names decide between two takeovers of one rank. A session that was never re-pinned is nobody's to take for its name.
	if s, err := d.sessions.Get(tenant, id); err == nil && s.Owner == d.self && s.RepinSeq == 0 && call.GetRepinSeq() == 0 && call.GetEpoch() <= s.Epoch {
		return &kvstore.FencedError{Tenant: tenant, ID: id, Epoch: s.Epoch, Owner: s.Owner, RepinSeq: s.RepinSeq}
	}
	err = d.sessions.Yield(tenant, id, kvstore.NodeID(from.ID), call.GetEpoch(), call.GetRepinSeq())
	if !errors.Is(err, kvstore.ErrSessionNotFound) { // every node that it is told to may say so
		d.audit.decide(auditYield, string(from.ID), err, joinAttrs(peerAttrs(from), sessionAttrs(tenant, id), []slog.Attr{slog.Uint64("epoch", call.GetEpoch())})...)
	}
	if err != nil {
		return err
	}
	d.flip(tenant, id, kvstore.NodeID(from.ID), call.GetEpoch())
	return nil
}

// flip tells every engine who owns a session from here on.
func (d *Daemon) flip(t kvstore.Tenant, id kvstore.SessionID, owner kvstore.NodeID, epoch uint64) {
	ev := &pb.EventsResponse{Event: &pb.EventsResponse_Flip{Flip: &pb.Flip{
		Session:     &pb.SessionRef{Tenant: string(t), SessionId: string(id)},
		OwnerNodeId: string(owner), Epoch: epoch,
	}}}
	for _, e := range d.engines.list() {
		e.publish(ev)
	}
}
