package daemon

import (
	"context"

	"github.com/kvferry/kvferry/internal/policy"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// ListPlans returns the plans of ended migrations beside what came of them.
func (s *migrationService) ListPlans(ctx context.Context, req *pb.ListPlansRequest) (*pb.ListPlansResponse, error) {
	limit := orDefault(int(req.GetLimit()), 100)
	if limit > 1000 {
		return nil, invalid("limit", limit, "at most 1000")
	}
	if _, ok := modes[req.GetMode()]; !ok {
		return nil, invalid("mode", req.GetMode(), "redirect, fetch, recompute, hybrid, or unspecified for all")
	}
	sees, err := s.d.sees(ctx)
	if err != nil {
		return nil, err
	}
	return &pb.ListPlansResponse{Plans: s.d.plans.list(req.GetWorst(), limit, func(r *pb.PlanRecord) bool {
		return (req.GetMode() == pb.Mode_MODE_UNSPECIFIED || r.GetDecided() == req.GetMode()) &&
			(req.GetTenant() == "" || r.GetSession().GetTenant() == req.GetTenant()) && (!req.GetShadowOnly() || r.GetShadow()) &&
			sees(r.GetSession().GetTenant())
	})}, nil
}

// GetPlan returns one.
func (s *migrationService) GetPlan(ctx context.Context, req *pb.GetPlanRequest) (*pb.GetPlanResponse, error) {
	r, err := s.d.plans.find(req.GetMigrationId(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	if s.d.may(ctx, policy.Observe, kvstore.Tenant(r.GetSession().GetTenant())) != nil {
		return nil, noMigration(req.GetMigrationId() + req.GetRequestId())
	}
	return &pb.GetPlanResponse{Plan: r}, nil
}
