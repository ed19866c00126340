package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// demand is a MigrateRequest, checked and converted.
type demand struct {
	requestID       string
	tenant          kvstore.Tenant
	session         kvstore.SessionID // empty when keys are given
	engineID        string
	hint            transfer.PeerID
	mode            planner.Mode // ModeNone: the planner chooses
	deadline        time.Duration
	wanted          time.Duration // the deadline that the caller named, 0: none
	class           transfer.Class
	landed          bool // the stream names blocks that landed
	landedLayers    int  // and groups of so many layers, 0: no; the size of the groups of groupMajor
	groupMajor      bool // fetch one group of layers of every block, then the next
	repinSeq        uint64
	takeover        bool
	keys            []kvstore.BlockKey
	expectedTurns   float64
	redirectAllowed bool
	shadow          bool   // plan and log, move nothing
	fingerprint     string // equal for equal requests
}

func (q demand) ref() *pb.SessionRef {
	return &pb.SessionRef{Tenant: string(q.tenant), SessionId: string(q.session)}
}

// migration is one attempt to make a session warm here. Its driver goroutine owns the fields of drive; everyone else
// reads snapshots.
type migration struct {
	d      *Daemon
	id     string
	demand demand
	owner  kvstore.Owner // who holds its slots and leases
	cancel context.CancelCauseFunc
	done   chan struct{} // closed after the last step
	dry    bool          // plan only, or shadow mode: nothing is leased, reserved or moved
	drive  drive

	meeting meeting
	claims  claimTimer

	mu struct {
		sync.Mutex
		state    state
		plan     *pb.Plan
		total    pageCount          // of all transfers so far
		noted    time.Time          // of the last page
		transfer *transfer.Transfer // the running one
		watched  bool               // somebody has changed
		log      *landedLog         // nil when it has ended; streams that began before have it
		report   *pb.MigrationReport
		landing  map[kvstore.BlockKey]struct{} // blocks that the running transfer brings
		changed  chan struct{}                 // closed and replaced at each change
		started  time.Time
	}
}

// drive is what the driver has found out so far.
type drive struct {
	engine    *engine
	source    transfer.PeerID
	sourceReg string // region
	sourceInc string
	link      *transfer.Link
	session   kvstore.Session
	offer     offered
	mode      planner.Mode
	decided   planner.Mode              // what was planned; mode is what is carried out
	steps     [stateCount]time.Duration // spent in each state
	inputs    inputs                    // of the plan
	warm      time.Duration             // until a hybrid had every block here; 0: it has not
	replanned atomic.Pointer[string]    // why the fetch was given up; nil: it was not
	met       bool                      // a hybrid's ends have met: what is missing after it is fetched
	predicted float64
	alone     bool // on a measured link, when it was planned
	lost      int  // blocks at the end of the session that the source does not have
	grown     int
	hops      int
	relinked  int
	failure   *Failure
	noted     chan struct{} // closed when it is noted that the session is elsewhere; nil: it need not be
	nobody    bool          // every node was asked, and none knows the session
	ownership pb.Ownership
	epoch     uint64
	stale     int64

	held     map[kvstore.BlockKey]kvstore.LeaseID // blocks kept from eviction until the end; 0: by a lease of many
	heldMu   sync.Mutex
	wanted   []wanted
	present0 int64 // blocks that were here at the start
	moved    atomic.Int64
	pages    atomic.Int64
	bytes    atomic.Int64
	wire     int64
	retried  int64
	left     atomic.Int64 // bytes still wanted of the offer
	log      *landedLog
	transfer time.Duration
	renewer  *renewer
}

// offered is the source's answer.
type offered struct {
	id        []byte
	memory    transfer.MemoryID
	stride    uint64
	slots     []kvstore.SlotRef
	available int
	backlog   int64
	maxRate   int64 // bytes a second that the source's configuration allows; 0: no bound
}

// wanted is one block to fetch.
type wanted struct {
	index int // in the session's keys
	key   kvstore.BlockKey
	local kvstore.SlotRef
}

var (
	errCancelled = errors.New("cancelled by the caller")
	errDeadline  = errors.New("the migration's deadline has passed")
)

// maxHops bounds forwarding from owner to owner; maxGrown bounds fetching deltas of a session that keeps growing.
const (
	maxHops  = 2
	maxGrown = 3
)

// run drives m from its first state to a terminal one. It is the only goroutine that does.
func (m *migration) run(ctx context.Context) {
	defer close(m.done)
	ctx, stop := context.WithTimeoutCause(ctx, m.demand.deadline, errDeadline)
	defer stop()
	for s := m.state(); !s.terminal(); s = m.state() {
		began := time.Now()
		ev, err := m.step(ctx, s)
		took := time.Since(began)
		m.drive.steps[s] += took
		m.d.metrics.migration.stepped(s, took)
		m.fire(ctx, ev, err)
	}
	m.finish(ctx)
}

// step does what state s asks for and says what happened.
func (m *migration) step(ctx context.Context, s state) (event, error) {
	ev, err := m.act(ctx, s)
	if err == nil {
		return ev, nil
	}
	if ctx.Err() != nil && s != stateHandingOver {
		cause := context.Cause(ctx)
		switch {
		case errors.Is(cause, errCancelled):
			return evCancel, failf(ReasonCancelled, "", "%v", cause)
		case errors.Is(cause, errDeadline):
			return evDeadline, failf(ReasonDeadline, "give a longer deadline, or look at the link with `kvferry links`", "%v: it was %v; last: %v", cause, m.demand.deadline, err)
		}
		if f, ok := errors.AsType[*Failure](cause); ok { // the policy has changed
			return evFailed, f
		}
		return evFailed, failf(ReasonShuttingDown, "ask again when the daemon is back", "the daemon is shutting down")
	}
	f := classify(err)
	if e := m.drive.engine; e != nil && e.isGone() && (memoryLost(f.Reason) || f.Reason == ReasonStaleGeneration) {
		return evFailed, failf(ReasonArenaStale, "migrate again when the engine has registered", "the arena of engine %q was replaced under the migration, or the engine has unregistered: %v", e.id, f.Message)
	}
	if (sourceGone(f.Reason) || m.demand.takeover && sourceLost(f.Reason)) && m.demand.mode != planner.ModeFetch {
		return evSourceGone, f
	}
	return evFailed, f
}

// act does what state s asks for. A panic fails the migration, not the daemon.
func (m *migration) act(ctx context.Context, s state) (ev event, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = m.d.panicked(ctx, "migration "+s.String(), r)
		}
	}()
	switch s {
	case stateLocating:
		ev, err = m.locate(ctx)
	case stateOffering:
		ev, err = m.offer(ctx)
	case statePlanning:
		ev, err = m.plan(ctx)
	case stateReserving:
		ev, err = m.reserve(ctx)
	case stateTransferring:
		ev, err = m.transfer(ctx)
	case stateHandingOver:
		ev, err = m.handOver(context.WithoutCancel(ctx)) // once asked, the authority's answer must be heard
	default:
		err = failf(ReasonInternal, "report this", "BUG: no step for state %s", s)
	}
	return ev, err
}

// sourceGone reports whether a failure means that the source is out of reach, so that only recompute is left.
func sourceGone(r Reason) bool {
	return r == ReasonPeerUnreachable || r == ReasonPeerRestarted || r == ReasonStalled || r == ReasonLeaseExpired || r == ReasonStaleGeneration
}

// sourceLost reports whether a failure means that the recorded owner does not have the session, is no peer any more or another node is at its address, or
// records lead in a circle: a takeover gives it an owner then.
func sourceLost(r Reason) bool {
	switch r {
	case ReasonSessionNotFound, ReasonHandOverPending, ReasonTooManyHops, ReasonNodeNotFound, ReasonPeerIdentity:
		return true
	default:
		return false
	}
}

// fire moves the machine and tells the watchers.
func (m *migration) fire(ctx context.Context, ev event, err error) {
	m.mu.Lock()
	from := m.mu.state
	to, changed := next(from, ev)
	m.mu.state = to
	if err != nil {
		m.drive.failure = classify(err)
	}
	m.notifyLocked()
	m.mu.Unlock()
	attrs := []slog.Attr{slog.String("migration_id", m.id), slog.String("from", from.String()), slog.String("event", ev.String()), slog.String("to", to.String())}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	m.d.log.LogAttrs(ctx, slog.LevelDebug, "migration step", attrs...)
	if !changed { // every event that a step returns has an entry; staying would loop for ever
		panic("BUG: migration in state " + from.String() + " stays on " + ev.String())
	}
}

func (m *migration) notifyLocked() {
	if !m.mu.watched {
		return
	}
	m.mu.watched = false
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
}

// landedLog is what has landed, nil when the migration has ended.
func (m *migration) landedLog() *landedLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.log
}

// timeLeft is what is left until the deadline that the caller named, 0: none.
func (m *migration) timeLeft() time.Duration {
	if m.demand.wanted == 0 || m.dry {
		return m.demand.wanted
	}
	return max(m.demand.wanted-time.Since(m.started()), time.Millisecond)
}

// lands reports whether the running transfer brings block k.
func (m *migration) lands(k kvstore.BlockKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.mu.landing[k]
	return ok
}

func (m *migration) started() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.started
}

func (m *migration) state() state {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.state
}

// snapshot is m as it stands, and a channel that closes at the next change.
func (m *migration) snapshot() (*pb.Migration, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.watched = true
	return &pb.Migration{
		MigrationId: m.id, RequestId: m.demand.requestID, Session: m.demand.ref(), State: stateToProto(m.mu.state),
		Plan: m.mu.plan, Progress: m.progressLocked(), Report: m.mu.report, Age: durationpb.New(time.Since(m.mu.started)),
	}, m.mu.changed
}

func stateToProto(s state) pb.MigrationState {
	return [stateCount]pb.MigrationState{
		pb.MigrationState_MIGRATION_STATE_LOCATING, pb.MigrationState_MIGRATION_STATE_OFFERING, pb.MigrationState_MIGRATION_STATE_PLANNING,
		pb.MigrationState_MIGRATION_STATE_RESERVING, pb.MigrationState_MIGRATION_STATE_TRANSFERRING, pb.MigrationState_MIGRATION_STATE_HANDING_OVER,
		pb.MigrationState_MIGRATION_STATE_COMMITTED, pb.MigrationState_MIGRATION_STATE_RECOMPUTE, pb.MigrationState_MIGRATION_STATE_REDIRECT,
		pb.MigrationState_MIGRATION_STATE_FAILED, pb.MigrationState_MIGRATION_STATE_CANCELLED,
	}[s]
}

// finish releases everything on every path, then reports once.
func (m *migration) finish(ctx context.Context) {
	st := m.state()
	if st == stateRecompute && m.demand.takeover && !m.dry && m.drive.failure != nil && m.drive.ownership != pb.Ownership_OWNERSHIP_MOVED {
		m.takeOver()
	}
	if m.drive.renewer != nil {
		m.drive.renewer.stop()
	}
	report := m.makeReport(st)
	if m.drive.engine != nil {
		m.drive.engine.arena.ReleaseOwner(m.owner)
		m.drive.engine.endLanding(m.drive.log)
		m.drive.log = nil
	}
	m.d.endOffer(ctx, m.drive.link, m.drive.offer.id)
	m.settleElsewhere()
	report.Total = durationpb.New(time.Since(m.started()))
	m.learn(st, report.GetTotal().AsDuration())
	m.d.migrations.ended(m) // before the report: who has it may migrate the session again at once
	m.d.metrics.migration.count(report, m.blockBytes())
	m.keepPlan(report)
	m.forget()
	m.mu.Lock()
	m.mu.report = report
	m.notifyLocked()
	m.mu.Unlock()
	level, attrs := slog.LevelInfo, []slog.Attr{
		slog.String("migration_id", m.id), slog.String("session_id", string(m.demand.session)), slog.String("state", st.String()),
		slog.String("mode", m.drive.mode.String()), slog.Int64("bytes", report.GetBytes()), slog.Duration("total", report.GetTotal().AsDuration()),
	}
	attrs = append(attrs, m.shadowAttrs(report)...)
	if f := m.drive.failure; f != nil && st != stateCommitted {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", string(f.Reason)), slog.String("error", f.Error()))
	}
	m.d.log.LogAttrs(ctx, level, "migration ended", attrs...)
}

// forget drops what only a running migration needs: ended ones are remembered by the thousand.
func (m *migration) forget() {
	dr := &m.drive
	m.mu.Lock() // snapshots copy the demand
	m.demand.keys, dr.session.Keys, dr.wanted, dr.offer.slots, dr.link, m.mu.log = nil, nil, nil, nil, nil, nil
	m.mu.Unlock()
	dr.heldMu.Lock()
	defer dr.heldMu.Unlock()
	dr.held = nil
}

// blockBytes is the size of the session's blocks, 0 when the engine is not known.
func (m *migration) blockBytes() int64 {
	if m.drive.engine == nil {
		return 0
	}
	return m.drive.engine.layout.BlockBytes()
}

// makeReport says what came of it. Called before the leases are released, so that what it counts is still there.
func (m *migration) makeReport(st state) *pb.MigrationReport {
	dr := &m.drive
	r := &pb.MigrationReport{
		State: stateToProto(st), Mode: modeToProto(dr.mode), Decided: modeToProto(dr.decided), Shadow: m.demand.shadow, Ownership: dr.ownership, Epoch: dr.epoch,
		BlocksTotal: int64(len(dr.session.Keys)), BlocksPresent: dr.present0, BlocksMoved: dr.moved.Load(), Pages: dr.pages.Load(),
		Bytes: dr.bytes.Load(), WireBytes: dr.wire, PagesRetried: dr.retried, Tokens: dr.session.Tokens, StaleTailTokens: dr.stale,
		Transfer: durationpb.New(dr.transfer), PredictedSeconds: dr.predicted, Fidelity: fidelityToProto(dr.session.Fidelity),
	}
	if st == stateRecompute && dr.mode == planner.ModeNone { // the source went out of reach before there was a plan
		r.Mode = pb.Mode_MODE_RECOMPUTE
	}
	if dr.source != "" {
		r.Source = &pb.Node{NodeId: string(dr.source), RegionId: dr.sourceReg, Incarnation: dr.sourceInc}
	}
	if why := dr.replanned.Load(); why != nil {
		r.Replanned = *why
	}
	if f := dr.failure; f != nil && st != stateCommitted && st != stateRedirect {
		r.Code, r.Message = string(f.Reason), f.Error()
	}
	if r.GetEpoch() == 0 {
		r.Epoch = dr.session.Epoch // as last seen: nothing moved
	}
	if dr.engine != nil && dr.session.Tokens > 0 {
		usable := presentPrefix(dr.engine.arena, m.demand.tenant, dr.session.Keys)
		r.BlocksUsable = int64(usable)
		if dr.mode == planner.ModeHybrid {
			r.BlocksComputed = max(0, r.GetBlocksUsable()-r.GetBlocksPresent()-r.GetBlocksMoved())
			if dr.warm > 0 {
				r.Warm = durationpb.New(dr.warm)
			}
			r.DuplicateBytes = int64(m.meeting.takenOver()) * dr.engine.layout.BlockBytes()
		}
		r.TailTokens = tailTokens(dr.session.Tokens, usable, dr.engine.layout.BlockTokens)
	}
	if r.GetOwnership() == pb.Ownership_OWNERSHIP_UNSPECIFIED && len(m.demand.keys) == 0 {
		r.Ownership = pb.Ownership_OWNERSHIP_UNMOVED
	}
	return r
}

// tailTokens is what is to be prefilled after usable whole blocks: at least the last token, whose logits are needed.
func tailTokens(tokens int64, usable, blockTokens int) int64 {
	return max(1, tokens-int64(usable)*int64(blockTokens))
}

// takeOver makes this node the owner of a session whose source is out of reach; a higher repin_seq wins.
func (m *migration) takeOver() {
	dr := &m.drive
	s, err := m.d.sessions.Get(m.demand.tenant, m.demand.session)
	// The source's record, when it was still heard, is the newer one.
	heard := dr.session.Epoch > 0 && (errors.Is(err, kvstore.ErrSessionNotFound) || err == nil && dr.session.Epoch >= s.Epoch)
	switch {
	case heard && dr.session.RepinSeq >= m.demand.repinSeq:
		err = &kvstore.FencedError{Tenant: m.demand.tenant, ID: m.demand.session, Epoch: dr.session.Epoch, Owner: dr.session.Owner, RepinSeq: dr.session.RepinSeq}
	case heard, errors.Is(err, kvstore.ErrSessionNotFound) && dr.engine != nil:
		s = kvstore.Session{
			Tenant: m.demand.tenant, ID: m.demand.session, Pin: dr.session.Pin, Keys: dr.session.Keys, Tokens: dr.session.Tokens, BlockTokens: dr.session.BlockTokens,
			Owner: m.d.self, Epoch: dr.session.Epoch + 1, Version: max(1, dr.session.Version), RepinSeq: m.demand.repinSeq, Fidelity: dr.session.Fidelity,
		}
		if s.Pin.IsZero() {
			s.Pin = dr.engine.layout.Pin()
		}
		err = m.d.sessions.Adopt(s)
	case err == nil:
		s, err = m.d.sessions.Take(m.demand.tenant, m.demand.session, m.demand.repinSeq)
	case errors.Is(err, kvstore.ErrSessionNotFound): // a record has a layout, which is that of an engine
		err = failf(ReasonEngineAmbiguous, "name one with engine_id", "the session's layout is not known, and there are %d engines here", len(m.d.engines.list()))
		if len(m.d.engines.list()) == 0 {
			err = failf(ReasonEngineNotFound, "start an engine with the session's layout", "the session's layout is not known, and no engine is here")
		}
	}
	m.d.audit.decide(auditTakeover, "self", err, append(sessionAttrs(m.demand.tenant, m.demand.session), slog.String("from", string(dr.source)),
		slog.String("migration_id", m.id), slog.Uint64("epoch", s.Epoch), slog.Uint64("repin_seq", m.demand.repinSeq))...)
	if err != nil {
		dr.failure = classify(err)
		return
	}
	dr.ownership, dr.epoch = pb.Ownership_OWNERSHIP_MOVED, s.Epoch
	m.d.flip(s.Tenant, s.ID, m.d.self, s.Epoch)
	m.d.yields.add(m.d.links.ids(), s)
}
