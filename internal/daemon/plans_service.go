package daemon

import (
	"context"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// ListPlans returns the plans of ended migrations beside what came of them.
func (s *migrationService) ListPlans(_ context.Context, req *pb.ListPlansRequest) (*pb.ListPlansResponse, error) {
	limit := orDefault(int(req.GetLimit()), 100)
	if limit > 1000 {
		return nil, invalid("limit", limit, "at most 1000")
	}
	if _, ok := modes[req.GetMode()]; !ok {
		return nil, invalid("mode", req.GetMode(), "redirect, fetch, recompute, hybrid, or unspecified for all")
	}
	return &pb.ListPlansResponse{Plans: s.d.plans.list(req.GetWorst(), limit, func(r *pb.PlanRecord) bool {
		return (req.GetMode() == pb.Mode_MODE_UNSPECIFIED || r.GetDecided() == req.GetMode()) &&
			(req.GetTenant() == "" || r.GetSession().GetTenant() == req.GetTenant()) && (!req.GetShadowOnly() || r.GetShadow())
	})}, nil
}

// GetPlan returns one.
func (s *migrationService) GetPlan(_ context.Context, req *pb.GetPlanRequest) (*pb.GetPlanResponse, error) {
	r, err := s.d.plans.find(req.GetMigrationId(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &pb.GetPlanResponse{Plan: r}, nil
}
