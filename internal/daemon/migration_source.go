package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// locate finds the owner: the hint, else our own directory, else all peers at once.
func (m *migration) locate(ctx context.Context) (event, error) {
	q, dr := m.demand, &m.drive
	if q.engineID != "" {
		e, err := m.d.engines.get(q.engineID)
		if err != nil {
			return 0, err
		}
		dr.engine = e
	} else if all := m.d.engines.list(); len(all) == 1 {
		dr.engine = all[0]
	}
	m.meeting.says(m.d.blockTime(dr.engine, 0))
	if len(q.keys) > 0 {
		dr.source = q.hint
		return evLocated, nil
	}
	s, err := m.d.sessions.Get(q.tenant, q.session)
	known := err == nil
	if err != nil && !errors.Is(err, kvstore.ErrSessionNotFound) {
		return 0, err
	}
	if known && q.repinSeq < s.RepinSeq {
		return 0, &kvstore.FencedError{Tenant: q.tenant, ID: q.session, Epoch: s.Epoch, Owner: s.Owner, RepinSeq: s.RepinSeq}
	}
	if known && s.Owner == m.d.self {
		return m.here(s)
	}
	dr.session = s // what is known if the source can't be asked; its offer replaces it
	if known {
		m.noteElsewhere(transfer.PeerID(s.Owner))
	}
	switch {
	case q.hint != "" && q.hint != transfer.PeerID(m.d.self):
		dr.source = q.hint
	case known:
		dr.source = transfer.PeerID(s.Owner)
	default:
		m.noteElsewhere("")
		if dr.source, err = m.d.askAll(ctx, q.ref(), ""); err != nil {
			dr.nobody = classify(err).Reason == ReasonSessionNotFound
			return 0, err
		}
	}
	if dr.noted == nil {
		m.noteElsewhere(dr.source)
	}
	return evLocated, nil
}

// here ends a migration of a session that this node owns already.
func (m *migration) here(s kvstore.Session) (event, error) {
	dr := &m.drive
	dr.session, dr.epoch, dr.ownership, dr.mode = s, s.Epoch, pb.Ownership_OWNERSHIP_MOVED, planner.ModeFetch
	dr.source, dr.sourceReg, dr.sourceInc = transfer.PeerID(m.d.self), m.d.cfg.Node.Region, m.d.incarnation
	if dr.engine == nil || dr.engine.layout.Pin() != s.Pin {
		dr.engine = mostPresent(m.d.engines.byPin(s.Pin), s.Tenant, s.Keys)
	}
	if dr.engine != nil {
		dr.present0 = int64(presentPrefix(dr.engine.arena, s.Tenant, s.Keys))
	}
	return evHere, nil
}

// located is one peer's answer to a locate call.
type located struct {
	from   transfer.PeerID
	answer *pb.LocateAnswer
	err    error
}

// source is the node to ask for an offer. A peer that says this node is the owner has handed the session over here and
// the answer was lost: it is the one to ask.
func (l *located) source(self kvstore.NodeID) transfer.PeerID {
	if owner := l.answer.GetOwnerNodeId(); owner != string(self) {
		return transfer.PeerID(owner)
	}
	return l.from
}

// newer reports whether l orders after old by (repin_seq, epoch).
func (l *located) newer(old *located) bool {
	if old == nil {
		return true
	}
	return cmp.Or(cmp.Compare(l.answer.GetRepinSeq(), old.answer.GetRepinSeq()), cmp.Compare(l.answer.GetEpoch(), old.answer.GetEpoch())) > 0
}

// locateGrace is how long the other peers may take once one has answered that it knows the session.
const locateGrace = time.Second

// askAll asks every configured peer but skip at once; the highest (repin_seq, epoch) wins. A peer that can't be reached
// counts as not knowing, but when nobody knows and somebody was out of reach, the answer is that, not "not found".
// Once somebody knows, silent ones are waited for no longer than locateGrace.
func (d *Daemon) askAll(ctx context.Context, ref *pb.SessionRef, skip transfer.PeerID) (transfer.PeerID, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ids := slices.DeleteFunc(d.links.ids(), func(id transfer.PeerID) bool { return id == skip })
	results := make(chan *located, len(ids)) // who answers late does not block
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, id := range ids {
		wg.Go(func() { results <- d.ask(ctx, id, ref) })
	}
	var best *located
	var unreachable error
	grace := time.NewTimer(locateGrace)
	grace.Stop()
	defer grace.Stop()
	for range ids {
		select {
		case l := <-results:
			switch {
			case l.err != nil:
				unreachable = l.err
			case l.answer.GetKnown() && l.newer(best):
				if best == nil {
					grace.Reset(locateGrace)
				}
				best = l
			}
		case <-grace.C:
			return best.source(d.self), nil
		}
	}
	switch {
	case best != nil:
		return best.source(d.self), nil
	case unreachable != nil:
		return "", unreachable
	}
	return "", failf(ReasonSessionNotFound, "check the tenant and the session id; the engine publishes a session at the end of a turn",
		"no node knows session %q of tenant %q", ref.GetSessionId(), ref.GetTenant())
}

// ask makes one locate call.
func (d *Daemon) ask(ctx context.Context, id transfer.PeerID, ref *pb.SessionRef) *located {
	_, resp, err := d.callNode(ctx, id, &pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: ref}}})
	a := resp.GetLocate()
	if err == nil && a.GetKnown() && (!idPattern.MatchString(a.GetOwnerNodeId()) || a.GetEpoch() == 0 || a.GetEpoch() > maxEpoch) {
		err = failf(ReasonVersionMismatch, "run the same release on both nodes", "node %q names an owner %.64q at epoch %d", string(id), a.GetOwnerNodeId(), a.GetEpoch())
	}
	return &located{from: id, answer: a, err: err}
}

// offer asks the source for the session, following at most maxHops forwarding records.
func (m *migration) offer(ctx context.Context) (event, error) {
	dr := &m.drive
	var from string // who says that dr.source owns the session; empty: the caller, or this node's own record
	for {
		err := m.askOffer(ctx)
		f, refused := errors.AsType[*Failure](err)
		switch {
		case err == nil:
			return evOffered, m.awaitNoted(ctx)
		case refused && f.Reason == ReasonNotOwner && f.Meta["owner_node_id"] != "" && f.Meta["owner_node_id"] != string(dr.source):
			if dr.hops++; dr.hops > maxHops {
				return 0, failf(ReasonTooManyHops, "name the owner with source_hint", "gave up after %d forwarding hops at node %q", maxHops, dr.source)
			}
			from, dr.source = fmt.Sprintf("node %q", dr.source), transfer.PeerID(f.Meta["owner_node_id"])
		case refused && f.Reason == ReasonSessionNotFound && dr.hops > 0 && len(m.demand.keys) == 0:
			return 0, handOverPending(from, dr.source)
		case wrongHint(err) && dr.source == m.demand.hint && dr.hops == 0 && len(m.demand.keys) == 0,
			refused && f.Reason == ReasonSessionNotFound && dr.hops == 0 && len(m.demand.keys) == 0:
			// A wrong hint costs a round trip, one that does not answer a connect time-out, no more.
			dr.hops++
			source, askErr := m.d.askAll(ctx, m.demand.ref(), dr.source)
			reason := classify(err).Reason
			unknown := reason == ReasonSessionNotFound // else it may know
			none := askErr != nil && classify(askErr).Reason == ReasonSessionNotFound
			dr.nobody = none && (unknown || reason == ReasonNodeNotFound) // one that is no peer is never asked, hint or not
			switch {
			case none && unknown && dr.session.Owner == kvstore.NodeID(dr.source):
				if m.ownerForgot() {
					return 0, askErr // it is anybody's to begin
				}
				return 0, handOverPending("this node", dr.source)
			case askErr != nil && unknown:
				return 0, askErr // not found, or somebody who may know can't be asked
			case askErr == nil && source == dr.source && unknown:
				return 0, handOverPending("another node", source)
			case askErr != nil || source == dr.source:
				return 0, err
			}
			from, dr.source = "another node", source
		default:
			return 0, err
		}
	}
}

// handOverPending is the failure of asking a node for a session that by somebody's record it owns, and that it does not know: it is about to, or the
// hand-over was lost.
func handOverPending(from string, owner transfer.PeerID) *Failure {
	return failf(ReasonHandOverPending, "migrate again in a few seconds: who handed it over asks whether it has arrived, and takes it back where it has not; if that goes on, the node has lost it: take it over with takeover and a higher repin_seq",
		"%s has handed the session over to node %q, which does not have it, or not yet", from, string(owner))
}

// ownerForgot has this node forget where a session went that nobody has any more, the recorded owner included: it had it, and has forgotten it. False: it may not have
// got it yet.
func (m *migration) ownerForgot() bool {
	if m.dry {
		return false
	}
	gone, err := m.d.sessions.ForgetLost(m.demand.tenant, m.demand.session, m.drive.session.Owner)
	if err != nil {
		m.d.log.LogAttrs(context.Background(), slog.LevelWarn, "forget a session that nobody has", slog.String("migration_id", m.id), slog.Any("error", err))
	}
	return gone
}

// wrongHint reports whether err, of the node that the caller named as the source, leaves others worth asking.
func wrongHint(err error) bool {
	switch classify(err).Reason {
	case ReasonSessionNotFound, ReasonNodeNotFound, ReasonPeerUnreachable:
		return true
	default:
		return false
	}
}

// askOffer asks for an offer, part by part where its keys do not fit one answer, and takes it over.
func (m *migration) askOffer(ctx context.Context) error {
	call := &pb.OfferCall{Session: m.demand.ref(), MigrationId: m.id, Keys: keysToProto(m.demand.keys), DryRun: m.dry, Class: classToProto(m.demand.class)}
	if d := m.timeLeft(); d > 0 {
		call.Deadline = durationpb.New(d)
	}
	if e := m.drive.engine; e != nil {
		call.Layout = layoutToProto(e.layout)
	}
	whole, err := m.callOffer(ctx, call)
	if err != nil {
		return err
	}
	if whole.GetKeysTotal() > maxSessionKeys {
		return badOffer("%d keys", whole.GetKeysTotal())
	}
	for s, parts := whole.GetSession(), 1; len(s.GetBlockKeys()) < int(whole.GetKeysTotal()); parts++ {
		if n := len(s.GetBlockKeys()); n < parts*partKeys {
			m.d.endOffer(ctx, m.drive.link, whole.GetOfferId())
			return badOffer("%d of %d keys in %d parts", n, whole.GetKeysTotal(), parts)
		}
		call.OfferId, call.First = whole.GetOfferId(), uint32(len(s.GetBlockKeys()))
		part, err := m.callOffer(ctx, call)
		if err != nil {
			m.d.endOffer(ctx, m.drive.link, whole.GetOfferId())
			return err
		}
		if part.GetSession().GetVersion() != s.GetVersion() { // only a dry run can meet this: an offer is of one version
			return failf(ReasonStaleGeneration, "ask again", "the session grew while it was being described")
		}
		s.BlockKeys = append(s.BlockKeys, part.GetSession().GetBlockKeys()...)
		whole.Slots = append(whole.Slots, part.GetSlots()...)
		if keys, slots := len(s.GetBlockKeys()), len(whole.GetSlots()); keys > int(whole.GetKeysTotal()) || slots > keys {
			m.d.endOffer(ctx, m.drive.link, whole.GetOfferId())
			return badOffer("%d keys of %d and %d slots", keys, whole.GetKeysTotal(), slots)
		}
	}
	return m.takeOffer(whole)
}

// offerGrace is how long an offer's answer is waited for after its migration has ended, to end the offer.
const offerGrace = 5 * time.Second

// callOffer makes one offer call and notes the link that it went over. When ctx ends meanwhile, an offer that is answered later is ended
// at once, and not by its lease's time.
func (m *migration) callOffer(ctx context.Context, call *pb.OfferCall) (*pb.OfferAnswer, error) {
	dr, source := &m.drive, m.drive.source
	type answer struct {
		link *transfer.Link
		resp *pb.PeerResponse
		err  error
	}
	answers := make(chan answer) // taken, or the end of ctx is
	m.d.wg.Go(func() {           // owner: the daemon; ends offerGrace after ctx
		calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), errShutdown) { // the source sees this node go
				cancel()
				return
			}
			time.AfterFunc(offerGrace, cancel)
		})()
		var a answer
		a.link, a.resp, a.err = m.d.callNode(calling, source, &pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: call}})
		select {
		case answers <- a:
		case <-ctx.Done():
			m.d.endOffer(ctx, a.link, a.resp.GetOffer().GetOfferId())
		}
	})
	var link *transfer.Link
	var resp *pb.PeerResponse
	var err error
	select {
	case a := <-answers:
		link, resp, err = a.link, a.resp, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if link != nil {
		m.mu.Lock() // the renewer reads it
		dr.link = link
		m.mu.Unlock()
		peer := link.Peer()
		dr.sourceInc, dr.sourceReg = peer.Incarnation, peer.Region
	}
	return resp.GetOffer(), err
}

// maxTokens is more than any session has.
const maxTokens = 1 << 40

// badOffer is the failure of an answer that no kvferryd of this release gives.
func badOffer(format string, args ...any) *Failure {
	return failf(ReasonVersionMismatch, "run the same release on both nodes", "the source's offer makes no sense: "+format, args...)
}

// checkOffer holds an answer to the question: a peer is believed about its own blocks and nothing else.
func (m *migration) checkOffer(a *pb.OfferAnswer, s kvstore.Session) error {
	dry, slots, ttl := m.dry, len(a.GetSlots()), a.GetLeaseTtl().AsDuration()
	switch {
	case s.Tenant != m.demand.tenant || s.ID != m.demand.session:
		return badOffer("it is of session %.64q of tenant %.64q", string(s.ID), string(s.Tenant))
	case len(m.demand.keys) == 0 && (s.Epoch == 0 || s.Epoch > maxEpoch || s.Version == 0 || s.Version > maxEpoch || s.Tokens < 0 || s.Tokens > maxTokens):
		return badOffer("epoch %d, version %d, %d tokens", s.Epoch, s.Version, s.Tokens)
	case a.GetBlocksAvailable() < 0 || a.GetBlocksAvailable() > int64(len(s.Keys)) || !dry && a.GetBlocksAvailable() != int64(slots) || dry && slots > 0:
		return badOffer("%d blocks and %d slots for %d keys", a.GetBlocksAvailable(), slots, len(s.Keys))
	case slots > 0 && len(a.GetOfferId()) == 0, len(a.GetOfferId()) > 0 && (dry || len(a.GetOfferId()) != len(offerID{})):
		return badOffer("an id of %d bytes", len(a.GetOfferId()))
	case ttl <= 0 || ttl > 24*time.Hour || a.GetEgressBacklogBytes() < 0 || a.GetMaxRate() < 0:
		return badOffer("a lease of %v, a backlog of %d bytes, a rate of %d bytes a second", ttl, a.GetEgressBacklogBytes(), a.GetMaxRate())
	}
	return nil
}

func (m *migration) takeOffer(a *pb.OfferAnswer) error {
	dr := &m.drive
	s, err := sessionFromProto(a.GetSession())
	if err != nil {
		return err
	}
	if len(m.demand.keys) > 0 {
		s.Keys = m.demand.keys
	}
	if err := m.checkOffer(a, s); err != nil {
		m.d.endOffer(context.Background(), dr.link, a.GetOfferId())
		return err
	}
	dr.session, dr.lost = s, 0
	of := offered{
		id: a.GetOfferId(), memory: transfer.MemoryID(a.GetMemoryId()), stride: uint64(a.GetStrideBytes()), backlog: a.GetEgressBacklogBytes(), maxRate: a.GetMaxRate(),
		available: int(a.GetBlocksAvailable()),
	}
	for _, r := range a.GetSlots() {
		of.slots = append(of.slots, refFromProto(r))
	}
	m.mu.Lock() // the renewer reads it
	dr.offer = of
	m.mu.Unlock()
	if dr.renewer == nil && len(dr.offer.id) > 0 && !m.dry {
		dr.renewer = m.startRenewer(a.GetLeaseTtl().AsDuration())
	}
	if dr.engine == nil {
		switch matching := m.d.engines.byPin(s.Pin); len(matching) {
		case 1:
			dr.engine = matching[0]
		case 0:
			return failf(ReasonEngineNotFound, "start an engine with the session's layout, or name another with engine_id", "no engine here has the session's layout (pin %s)", s.Pin)
		default:
			return failf(ReasonEngineAmbiguous, "name one with engine_id", "%d engines here have the session's layout", len(matching))
		}
	}
	if len(of.slots) > 0 && (of.stride != uint64(dr.engine.layout.Stride()) || s.Pin != dr.engine.layout.Pin()) {
		return badOffer("a stride of %d bytes, layout pin %s", of.stride, s.Pin)
	}
	return nil
}

// renewer keeps the source's offer alive and its ticket true.
type renewer struct {
	kick chan struct{}
	quit chan struct{}
	wg   sync.WaitGroup
}

func (r *renewer) stop() {
	close(r.quit)
	r.wg.Wait()
}

// currentOffer is the offer held now; a delta replaces it.
func (m *migration) currentOffer() ([]byte, *transfer.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drive.offer.id, m.drive.link
}

// startRenewer renews every third of the lease, and at once when the driver says what is wanted.
func (m *migration) startRenewer(ttl time.Duration) *renewer {
	r := &renewer{kick: make(chan struct{}, 1), quit: make(chan struct{})} // one kick pending is enough
	ctx, cancel := context.WithCancel(context.Background())
	r.wg.Go(func() { <-r.quit; cancel() })
	r.wg.Go(func() { // owner: the migration; ends in finish
		tick := time.NewTicker(max(ttl/3, 10*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-r.quit:
				return
			case <-tick.C:
			case <-r.kick:
			}
			id, link := m.currentOffer()
			if link == nil || len(id) == 0 {
				continue
			}
			m.d.sessions.Use(m.demand.tenant, m.demand.session) // a record of where it is to come from is not forgotten meanwhile
			// A refusal needs no answer here: the transfer meets it, too.
			_, _ = m.d.callPeer(ctx, link, &pb.PeerRequest{Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: id, BytesLeft: m.drive.left.Load()}}})
		}
	})
	return r
}

// want tells the source what is still wanted, so that its backlog is true for others.
func (m *migration) want(bytes int64) {
	m.drive.left.Store(bytes)
	if m.drive.renewer == nil {
		return
	}
	select {
	case m.drive.renewer.kick <- struct{}{}:
	default:
	}
}
