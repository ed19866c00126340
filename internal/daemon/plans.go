package daemon

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// plans remembers the plans of migrations that have ended, each beside what came of it, over restarts. Records are not changed once
// they are in it. Losing it costs history and nothing else, so a file that can't be read is dropped. Safe for concurrent use.
type plans struct {
	keep int
	file string // empty: memory only
	mu   struct {
		sync.Mutex
		records []*pb.PlanRecord // oldest first, at most keep
		changed bool
		written time.Time
	}
}

// add remembers r, and forgets the oldest beyond the configured number.
func (p *plans) add(r *pb.PlanRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.mu.records); n >= p.keep {
		p.mu.records = slices.Delete(p.mu.records, 0, n-p.keep+1)
	}
	p.mu.records = append(p.mu.records, r)
	p.mu.changed = true
}

// find returns the newest record with either id.
func (p *plans) find(id, requestID string) (*pb.PlanRecord, error) {
	if (id == "") == (requestID == "") {
		return nil, invalid("migration_id, request_id", []string{id, requestID}, "given, exactly one of them")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range slices.Backward(p.mu.records) {
		if id != "" && r.GetMigrationId() == id || requestID != "" && r.GetRequestId() == requestID {
			return r, nil
		}
	}
	return nil, failf(ReasonMigrationNotFound, "`kvferry plans` shows those that are remembered; a migration that has not ended, or ended before it was planned, has none",
		"no plan of a migration %q", id+requestID)
}

// list returns up to limit records that keep says to take: the newest first, or with worst the comparable ones whose prediction was
// farthest off, by the factor between the two.
func (p *plans) list(worst bool, limit int, keep func(*pb.PlanRecord) bool) []*pb.PlanRecord {
	var out []*pb.PlanRecord
	p.mu.Lock()
	for _, r := range slices.Backward(p.mu.records) {
		if !worst && len(out) == limit {
			break
		}
		if keep(r) && (!worst || r.ActualOverPredicted != nil) {
			out = append(out, r)
		}
	}
	p.mu.Unlock()
	if worst {
		slices.SortStableFunc(out, func(a, b *pb.PlanRecord) int { return cmp.Compare(offBy(b), offBy(a)) })
	}
	return out[:min(limit, len(out))]
}

// offBy is the distance of a prediction from what came, alike for twice and half.
func offBy(r *pb.PlanRecord) float64 { return math.Abs(math.Log(r.GetActualOverPredicted())) }

// planOf is one mode of a plan; nil: it is not in it.
func planOf(p *pb.Plan, mode pb.Mode) *pb.ModePlan {
	for _, m := range p.GetModes() {
		if m.GetMode() == mode {
			return m
		}
	}
	return nil
}

// planRecord puts m's plan beside its report; nil when it had none.
func (m *migration) planRecord(r *pb.MigrationReport) *pb.PlanRecord {
	m.mu.Lock()
	plan := m.mu.plan
	m.mu.Unlock()
	if plan == nil {
		return nil
	}
	out := &pb.PlanRecord{
		MigrationId: m.id, RequestId: m.demand.requestID, Session: m.demand.ref(), Source: r.GetSource(), Plan: plan,
		Asked: modeToProto(m.demand.mode), Decided: r.GetDecided(), CarriedOut: r.GetMode(), Shadow: r.GetShadow(), State: r.GetState(), Code: r.GetCode(),
		Replanned: r.GetReplanned(), ActualSeconds: actualSeconds(r), Bytes: r.GetBytes(), BlocksMoved: r.GetBlocksMoved(),
		BlocksTotal: r.GetBlocksTotal(), Tokens: r.GetTokens(), Ended: timestamppb.Now(),
	}
	for s, took := range m.drive.steps {
		if took > 0 {
			out.Steps = append(out.Steps, &pb.PlanStep{State: stateToProto(state(s)), Seconds: took.Seconds()})
		}
	}
	if r.GetPredictedSeconds() > 0 {
		out.PredictedSeconds = &r.PredictedSeconds
		if mode := planOf(plan, r.GetDecided()); mode != nil {
			out.PredictedP95Seconds = mode.P95Seconds
		}
	}
	if asDecided(r) {
		ratio := out.GetActualSeconds() / r.GetPredictedSeconds()
		out.ActualOverPredicted = &ratio
	}
	return out
}

// asDecided reports whether a migration did what was predicted of it. The engine's prefill after a recompute is not seen here, so only
// what moved blocks has an actual time.
func asDecided(r *pb.MigrationReport) bool {
	return r.GetState() == pb.MigrationState_MIGRATION_STATE_COMMITTED && r.GetPredictedSeconds() > 0 && r.GetBlocksMoved() > 0 &&
		r.GetMode() == r.GetDecided() && actualSeconds(r) > 0
}

// keepPlan remembers and counts m's plan, if it had one.
func (m *migration) keepPlan(r *pb.MigrationReport) {
	rec := m.planRecord(r)
	if rec == nil {
		return
	}
	m.d.metrics.migration.plans.count(rec)
	m.d.plans.add(rec)
}

// actualSeconds is what a prediction is held against: the whole migration, of a hybrid until the session was warm.
func actualSeconds(r *pb.MigrationReport) float64 {
	if r.GetWarm() != nil {
		return r.GetWarm().AsDuration().Seconds()
	}
	return r.GetTotal().AsDuration().Seconds()
}
