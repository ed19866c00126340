package daemon

import (
	"context"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// dryRun locates the session, asks its owner for a price and plans. Nothing is leased, reserved or moved.
func (d *Daemon) dryRun(ctx context.Context, q demand) (*pb.PlanResponse, error) {
	m := &migration{d: d, id: "plan", demand: q, dry: true}
	dr := &m.drive
	ev, err := m.locate(ctx)
	if err != nil {
		return nil, err
	}
	if ev == evHere {
		resp := m.planResponse()
		resp.Plan = &pb.Plan{Reason: "the session is owned by this node already: nothing moves"}
		return resp, nil
	}
	if _, err := m.offer(ctx); err != nil {
		return nil, err
	}
	_, plan, missing, err := m.decide()
	if err != nil {
		return nil, err
	}
	resp := m.planResponse()
	resp.Plan = plan
	resp.BytesMissing = int64(missing) * dr.engine.layout.BlockBytes()
	resp.TailTokens = tailTokens(dr.session.Tokens, dr.offer.available, dr.engine.layout.BlockTokens)
	return resp, nil
}

func (m *migration) planResponse() *pb.PlanResponse {
	dr := &m.drive
	resp := &pb.PlanResponse{
		Source:      &pb.Node{NodeId: string(dr.source), RegionId: dr.sourceReg, Incarnation: dr.sourceInc},
		BlocksTotal: int64(len(dr.session.Keys)), BlocksPresent: dr.present0, TailTokens: 1,
	}
	if dr.engine != nil {
		resp.TailTokens = tailTokens(dr.session.Tokens, int(dr.present0), dr.engine.layout.BlockTokens)
	}
	return resp
}
