package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvferry/kvferry/internal/policy"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// migrationService is MigrationService.
type migrationService struct {
	pb.UnimplementedMigrationServiceServer
	d *Daemon
}

// demandFromProto checks a request. planning: request_id may be empty.
func (d *Daemon) demandFromProto(req *pb.MigrateRequest, planning bool) (demand, error) {
	q := demand{
		requestID: req.GetRequestId(), engineID: req.GetEngineId(), hint: transfer.PeerID(req.GetSourceHint()), repinSeq: req.GetRepinSeq(),
		takeover: req.GetTakeover(), expectedTurns: req.GetExpectedTurns(), landed: req.GetLanded(), redirectAllowed: req.GetRedirectAllowed(),
		shadow: req.GetShadow() || d.cfg.Shadow,
	}
	if n := len(q.requestID); n > 128 || n == 0 && !planning {
		return q, invalid("request_id", n, "1 to 128 bytes, chosen by the caller and the same in a retry")
	}
	if !printable(q.requestID) {
		return q, invalid("request_id", strconv.QuoteToASCII(q.requestID), "UTF-8 without control characters")
	}
	if !(q.expectedTurns >= 0 && q.expectedTurns < 1e9) {
		return q, invalid("expected_turns", q.expectedTurns, "0 (not given) or more")
	}
	if q.engineID != "" && !engineIDPattern.MatchString(q.engineID) {
		return q, invalid("engine_id", q.engineID, "the id of a registered engine, or empty")
	}
	if q.hint != "" && !idPattern.MatchString(string(q.hint)) {
		return q, invalid("source_hint", string(q.hint), "a node id, or empty")
	}
	if q.takeover && q.repinSeq == 0 {
		return q, invalid("repin_seq", q.repinSeq, "higher than the recorded one when takeover is set")
	}
	var err error
	if q.class, err = classFromProto(req.GetClass()); err != nil {
		return q, err
	}
	if q.mode, err = modeFromProto(req.GetMode()); err != nil {
		return q, err
	}
	if q.deadline, err = duration("deadline", req.GetDeadline()); err != nil {
		return q, err
	}
	if err = d.checkOrder(&q, req); err != nil {
		return q, err
	}
	q.wanted = q.deadline
	q.deadline = orDefault(q.deadline, d.cfg.Migration.Deadline)
	if len(req.GetKeys()) > 0 {
		return d.replicationDemand(q, req)
	}
	if q.tenant, q.session, err = sessionRefFromProto(req.GetSession()); err != nil {
		return q, err
	}
	q.fingerprint, err = fingerprint(req)
	return q, err
}

// checkOrder checks how layers are told and fetched; against the layout where it is known which engine it is.
func (d *Daemon) checkOrder(q *demand, req *pb.MigrateRequest) error {
	switch req.GetOrder() {
	case pb.FetchOrder_FETCH_ORDER_UNSPECIFIED, pb.FetchOrder_FETCH_ORDER_WHOLE_BLOCKS:
	case pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR:
		q.groupMajor = true
	default:
		return invalid("order", req.GetOrder(), "WHOLE_BLOCKS, LAYER_GROUP_MAJOR, or unspecified")
	}
	if q.groupMajor && q.mode == planner.ModeHybrid {
		return invalid("order", req.GetOrder(), "WHOLE_BLOCKS or unspecified with mode hybrid: its back is whole blocks")
	}
	if q.groupMajor && req.GetLandedLayers() == 0 {
		return invalid("landed_layers", 0, "1 or more, the layers a group, when order is LAYER_GROUP_MAJOR")
	}
	if n := req.GetLandedLayers(); n > kvstore.MaxLayers {
		return invalid("landed_layers", n, "0 (off) or 1 to the layers of the layout")
	}
	q.landedLayers = int(req.GetLandedLayers())
	var e *engine
	if all := d.engines.list(); q.engineID == "" && len(all) == 1 {
		e = all[0]
	} else if q.engineID != "" {
		e, _ = d.engines.get(q.engineID) // the migration meets the error
	}
	return checkLayers(q.landedLayers, e)
}

// checkLayers holds a group's size to an engine's layout, if there is one.
func checkLayers(size int, e *engine) error {
	if e != nil && size > e.layout.Layers {
		f := invalid("landed_layers", size, fmt.Sprintf("0 (off) or 1 to %d, the layers of engine %q", e.layout.Layers, e.id))
		f.Fix = "ask for groups of no more layers than the layout has"
		return f
	}
	return nil
}

// replicationDemand checks a request for named blocks.
func (d *Daemon) replicationDemand(q demand, req *pb.MigrateRequest) (demand, error) {
	if req.GetSession().GetSessionId() != "" {
		return q, invalid("session.session_id", req.GetSession().GetSessionId(), "empty when keys are given: named blocks move without a hand-over")
	}
	if q.hint == "" {
		return q, invalid("source_hint", `""`, "the node that has the blocks when keys are given")
	}
	if q.mode != planner.ModeNone && q.mode != planner.ModeFetch {
		return q, invalid("mode", q.mode, "fetch or unspecified when keys are given")
	}
	var err error
	if q.keys, err = keysFromProto("keys", req.GetKeys(), maxKeysPerCall, false); err != nil {
		return q, err
	}
	q.tenant = kvstore.Tenant(req.GetSession().GetTenant())
	if len(q.tenant) > 128 {
		return q, invalid("session.tenant", len(q.tenant), "at most 128 bytes")
	}
	if !printable(string(q.tenant)) {
		return q, invalid("session.tenant", strconv.QuoteToASCII(string(q.tenant)), "UTF-8 without control characters")
	}
	q.fingerprint, err = fingerprint(req)
	return q, err
}

// fingerprint names what is asked for: not what the stream is to show of it, which each watcher chooses.
func fingerprint(req *pb.MigrateRequest) (string, error) {
	req = proto.CloneOf(req)
	req.Landed = false
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	sum := sha256.Sum256(b)
	return string(sum[:]), err
}

// progressEvery bounds how often a stream sends progress.
const progressEvery = 100 * time.Millisecond

// waitEvery is how often a stream sends progress at least, in which it says where a transfer waits.
const waitEvery = time.Second

// Migrate starts or re-attaches, then streams. The stream's end by the client leaves the migration running.
func (s *migrationService) Migrate(req *pb.MigrateRequest, stream pb.MigrationService_MigrateServer) error {
	q, err := s.d.demandFromProto(req, false)
	if err != nil {
		return err
	}
	if err := s.d.admit(stream.Context(), policy.Migrate, q); err != nil {
		return err
	}
	m, err := s.d.migrations.start(s.d, q)
	if err != nil {
		return err
	}
	if err := s.d.mayHold(q.tenant); err != nil { // a policy that came into force meanwhile has not seen it
		m.cancel(err)
	}
	ctx := stream.Context()
	var sentPlan bool
	landed := &landedReader{blocks: q.landed, layers: newLayerPlace(q.landedLayers)}
	every := progressEvery
	if landed.blocks || landed.layers != nil {
		landed.log = m.landedLog()
	}
	if landed.layers != nil {
		every = progressEvery / 10
	}
	look := time.NewTicker(waitEvery)
	defer look.Stop()
	var lastState pb.MigrationState
	for {
		snap, changed := m.snapshot()
		out := &pb.MigrateResponse{MigrationId: m.id, State: snap.GetState(), Progress: snap.GetProgress(), Report: snap.GetReport()}
		if !sentPlan && snap.GetPlan() != nil {
			out.Plan, sentPlan = snap.GetPlan(), true
		}
		landed.look()
		for landed.fill(out) {
			part := &pb.MigrateResponse{
				MigrationId: m.id, State: snap.GetState(), Progress: snap.GetProgress(), Landed: out.GetLanded(), LandedLayers: out.GetLandedLayers(),
			}
			if err := stream.Send(part); err != nil {
				return err
			}
			out.Landed, out.LandedLayers = nil, nil
		}
		if err := stream.Send(out); err != nil {
			return err
		}
		if snap.GetReport() != nil {
			return nil
		}
		if snap.GetState() == lastState { // mere progress: not more often than people or programs can use
			if err := m.pause(ctx, every); err != nil {
				return err
			}
		}
		lastState = snap.GetState()
		select {
		case <-changed:
		case <-look.C: // a transfer that waits lands nothing
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause waits for d, for ctx or for m's end.
func (m *migration) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.done:
	case <-t.C:
	}
	return nil
}

// Plan runs a migration's first steps without leasing, reserving or moving anything.
func (s *migrationService) Plan(ctx context.Context, req *pb.PlanRequest) (*pb.PlanResponse, error) {
	q, err := s.d.demandFromProto(req.GetMigrate(), true)
	if err != nil {
		return nil, err
	}
	if err := s.d.admit(ctx, policy.Observe, q); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, min(q.deadline, time.Minute))
	defer cancel()
	return s.d.dryRun(ctx, q)
}

// GetMigration returns one.
func (s *migrationService) GetMigration(ctx context.Context, req *pb.GetMigrationRequest) (*pb.GetMigrationResponse, error) {
	m, err := s.d.findFor(ctx, policy.Observe, req.GetMigrationId(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	snap, _ := m.snapshot()
	return &pb.GetMigrationResponse{Migration: snap}, nil
}

// ListMigrations returns the newest.
func (s *migrationService) ListMigrations(ctx context.Context, req *pb.ListMigrationsRequest) (*pb.ListMigrationsResponse, error) {
	limit := orDefault(int(req.GetLimit()), 100)
	if limit > 1000 {
		return nil, invalid("limit", limit, "at most 1000")
	}
	sees, err := s.d.sees(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListMigrationsResponse{}
	for _, m := range s.d.migrations.list(req.GetTenant(), req.GetActiveOnly(), math.MaxInt) {
		if !sees(string(m.demand.tenant)) {
			continue
		}
		if len(resp.GetMigrations()) == limit {
			break
		}
		snap, _ := m.snapshot()
		resp.Migrations = append(resp.Migrations, snap)
	}
	return resp, nil
}

// maxClaim bounds a claim's places: no session has more blocks.
const maxClaim = maxSessionKeys

// ClaimPrefill answers at once, but for a take-over: that waits until the fetch of what is taken over is quiet.
func (s *migrationService) ClaimPrefill(ctx context.Context, req *pb.ClaimPrefillRequest) (*pb.ClaimPrefillResponse, error) {
	switch n, want := req.GetComputedBlocks(), req.GetWantBlocks(); {
	case n > maxClaim:
		return nil, invalid("computed_blocks", n, fmt.Sprintf("0 to %d", maxClaim))
	case req.GetGivesUp() && want != 0:
		return nil, invalid("want_blocks", want, "0 with gives_up")
	case !req.GetGivesUp() && (want < 1 || want > maxKeysPerCall):
		return nil, invalid("want_blocks", want, fmt.Sprintf("1 to %d", maxKeysPerCall))
	}
	m, err := s.d.findFor(ctx, policy.Migrate, req.GetMigrationId(), "")
	if err != nil {
		return nil, err
	}
	if req.GetGivesUp() {
		return m.frontGivesUp(int(req.GetComputedBlocks())), nil
	}
	return m.claim(ctx, int(req.GetComputedBlocks()), int(req.GetWantBlocks()))
}

// CancelMigration ends one and waits for its end. A hand-over in flight is not undone: its answer decides.
func (s *migrationService) CancelMigration(ctx context.Context, req *pb.CancelMigrationRequest) (*pb.CancelMigrationResponse, error) {
	m, err := s.d.findFor(ctx, policy.Migrate, req.GetMigrationId(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	who, _ := callerOf(ctx) // findFor has read it
	s.d.audit.grant(auditMigrate, who.name(), joinAttrs(who.attrs(), sessionAttrs(m.demand.tenant, m.demand.session),
		[]slog.Attr{slog.String("migration_id", m.id), slog.String("request_id", m.demand.requestID), slog.String("act", "cancel")})...)
	m.cancel(errCancelled)
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	snap, _ := m.snapshot()
	return &pb.CancelMigrationResponse{Migration: snap}, nil
}
