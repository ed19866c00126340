package daemon

import (
	"context"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/internal/policy"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// regionService is RegionService.
type regionService struct {
	pb.UnimplementedRegionServiceServer
	d *Daemon
}

func (d *Daemon) nodeProto() *pb.Node {
	return &pb.Node{NodeId: d.cfg.Node.ID, RegionId: d.cfg.Node.Region, Incarnation: d.incarnation}
}

// Status describes the node.
func (s *regionService) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	d := s.d
	if err := d.mayAny(ctx, policy.Observe); err != nil {
		return nil, err
	}
	resp := &pb.StatusResponse{
		Node: d.nodeProto(), Version: d.version, Uptime: durationpb.New(time.Since(d.started)), ActiveMigrations: int64(d.migrations.active()),
		EgressBacklogBytes: d.offers.backlog(), Goroutines: int64(runtime.NumGoroutine()), Offers: int64(d.offers.count()), Gpu: d.load.gpuText(ctx),
		Host: hostInfo(), Shadow: d.cfg.Shadow,
	}
	resp.Certificate, resp.Policy, resp.Sessions = d.certificateStatus(), d.policyStatus(), d.sessionsStatus()
	for _, e := range d.engines.list() {
		st, pin := e.arena.Stats(), e.layout.Pin()
		e.mu.Lock()
		software := e.mu.software
		e.mu.Unlock()
		resp.Arenas = append(resp.Arenas, &pb.ArenaStatus{
			EngineId: e.id, Engine: software, Layout: layoutToProto(e.layout), LayoutPin: pin[:], Path: e.arena.Path(), BlockBytes: e.layout.BlockBytes(),
			Slots: int64(st.SlotsTotal), SlotsFree: int64(st.SlotsFree), SlotsReserved: int64(st.SlotsReserved), SlotsCommitted: int64(st.SlotsCommitted),
			SlotsDraining: int64(st.SlotsDraining), Leases: int64(st.Leases), LeasedBlocks: int64(st.LeasedBlocks), Evictions: st.Evictions,
			PinnedBytes: st.PinnedBytes, PinNote: st.PinError, ChecksumFailures: st.SumFailures, Broken: st.Broken,
		})
	}
	return resp, nil
}

// Sessions a page of ListSessions.
const (
	sessionsPage    = 1000
	sessionsPageMax = 10_000
)

// ListSessions lists a page of the directory's records, without keys: those of one long session can fill a message.
func (s *regionService) ListSessions(ctx context.Context, req *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	limit := orDefault(int(req.GetLimit()), sessionsPage)
	if limit > sessionsPageMax {
		return nil, invalid("limit", limit, "at most 10000; ask for the next page")
	}
	sees, err := s.d.sees(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListSessionsResponse{}
	tenant, id, _ := strings.Cut(req.GetPage(), "\x00")
	page, more := s.d.sessions.Page(kvstore.Tenant(tenant), kvstore.SessionID(id), func(t kvstore.Tenant) bool {
		return (req.GetTenant() == "" || req.GetTenant() == string(t)) && sees(string(t))
	}, limit)
	if more {
		last := page[len(page)-1]
		resp.NextPage = string(last.Tenant) + "\x00" + string(last.ID) // control characters are not allowed in names
	}
	for _, sess := range page {
		st := &pb.SessionStatus{BlocksTotal: int64(len(sess.Keys))}
		if e := mostPresent(s.d.engines.byPin(sess.Pin), sess.Tenant, sess.Keys); e != nil {
			st.BlocksPresent = int64(len(sess.Keys) - missingBlocks(e.arena, sess.Tenant, sess.Keys))
		}
		sess.Keys = nil
		st.Session = sessionToProto(sess)
		resp.Sessions = append(resp.Sessions, st)
	}
	return resp, nil
}

// ListLinks lists peers and links.
func (s *regionService) ListLinks(ctx context.Context, _ *pb.ListLinksRequest) (*pb.ListLinksResponse, error) {
	if err := s.d.mayAny(ctx, policy.Observe); err != nil {
		return nil, err
	}
	resp := &pb.ListLinksResponse{}
	for _, v := range s.d.links.views() {
		l := &pb.LinkStatus{
			Peer: &pb.Node{NodeId: string(v.peer), RegionId: v.region}, Address: v.config.Address, Connected: v.connected,
		}
		if v.err != nil {
			l.Error = classify(v.err).Error()
		}
		if v.connected {
			st := v.stats
			l.Peer.Incarnation = v.incarnation
			l.Stripes, l.BytesSent, l.BytesReceived, l.PacketsLost = uint32(st.Stripes), int64(st.BytesSent), int64(st.BytesReceived), int64(st.PacketsLost)
			l.PacketsSent, l.PacketsRepaired = int64(st.PacketsSent), int64(st.Repair.Repaired)
			l.ParityPacketsSent, l.ParityBytesSent = int64(st.Repair.ParityPackets), int64(st.Repair.ParityBytes)
			l.PagesSent, l.PagesReceived = codingToProto(st.Sent), codingToProto(st.Received)
			l.RttMin, l.RttSmoothed = durationpb.New(st.RTTMin), durationpb.New(st.RTTSmoothed)
			l.EgressBacklogBytes, l.Transfers, l.Streams = st.QueuedBytes, int64(st.Transfers), int64(st.Streams)
		}
		e := v.stats.Estimates
		if !e.Goodput.Known() && v.config.PriorBps > 0 {
			e.Goodput = transfer.Estimate{Value: v.config.PriorBps / 8, Basis: transfer.Configured}
		}
		l.GoodputBps, l.Measured = 8*e.Goodput.Value, e.Goodput.Basis == transfer.Measured
		if l.Measured {
			l.Age = durationpb.New(e.Goodput.Age)
		}
		l.Goodput, l.Capacity = estimateToProto(e.Goodput, 8), estimateToProto(e.Capacity, 8)
		l.Rtt, l.Loss, l.Ramp = estimateToProto(e.RTTMin, 1), estimateToProto(e.Loss, 1), estimateToProto(e.Ramp, 1)
		l.CodecRatio, l.CodecRate = estimateToProto(e.Ratio, 1), estimateToProto(e.CodecRate, 8)
		resp.Links = append(resp.Links, l)
	}
	return resp, nil
}

func codingToProto(c transfer.Coding) *pb.PageCoding {
	out := &pb.PageCoding{PageBytes: int64(c.PageBytes), WireBytes: int64(c.WireBytes), CodedBytes: int64(c.CodedBytes), Busy: durationpb.New(c.Busy)}
	if c.PageBytes > 0 {
		out.Codec = c.Codec.String()
	}
	return out
}

// estimateToProto scales an estimate.
func estimateToProto(e transfer.Estimate, scale float64) *pb.Estimate {
	out := &pb.Estimate{Value: scale * e.Value, Spread: scale * e.Spread, Samples: int64(e.Samples), Age: durationpb.New(e.Age)}
	switch e.Basis {
	case transfer.Measured:
		out.Basis = pb.EstimateBasis_ESTIMATE_BASIS_MEASURED
	case transfer.Persisted:
		out.Basis = pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED
	case transfer.Configured:
		out.Basis = pb.EstimateBasis_ESTIMATE_BASIS_CONFIGURED
	case transfer.Unknown:
		return &pb.Estimate{Basis: pb.EstimateBasis_ESTIMATE_BASIS_UNKNOWN}
	}
	return out
}

// plannerService is PlannerService.
type plannerService struct {
	pb.UnimplementedPlannerServiceServer
	d *Daemon
}

// Evaluate prices modes from plain numbers.
func (s plannerService) Evaluate(ctx context.Context, req *pb.EvaluateRequest) (*pb.EvaluateResponse, error) {
	if err := s.d.mayAny(ctx, policy.Observe); err != nil {
		return nil, err
	}
	return Evaluate(req)
}
