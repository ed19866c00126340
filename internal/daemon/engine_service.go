package daemon

import (
	"context"
	"regexp"

	"google.golang.org/grpc/peer"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// engineService is EngineService. It is served on the unix socket only.
type engineService struct {
	pb.UnimplementedEngineServiceServer
	d *Daemon
}

var engineIDPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// callerProcess is the process behind a call, nil when the transport does not say (an in-memory listener).
func callerProcess(ctx context.Context) *localProcess {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	proc, _ := p.AuthInfo.(*localProcess)
	return proc
}

// caller resolves the engine that a call names and who holds what it takes. A process that calls without having
// registered is watched, too: what it holds must not outlive it.
func (s *engineService) caller(ctx context.Context, engineID string) (*engine, kvstore.Owner, error) {
	e, err := s.d.engines.get(engineID)
	if err != nil {
		return nil, "", err
	}
	p := callerProcess(ctx)
	if p == nil {
		return e, e.owner(0), nil
	}
	return e, e.owner(p.pid), s.d.engines.watch(e, p)
}

// RegisterEngine opens an arena, or adds a process to it.
func (s *engineService) RegisterEngine(ctx context.Context, req *pb.RegisterEngineRequest) (*pb.RegisterEngineResponse, error) {
	if !engineIDPattern.MatchString(req.GetEngineId()) {
		return nil, invalid("engine_id", req.GetEngineId(), "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'")
	}
	if len(req.GetEngineName()) > 64 || len(req.GetEngineVersion()) > 64 {
		return nil, invalid("engine_name, engine_version", "longer", "at most 64 bytes each")
	}
	world := max(1, int(req.GetWorld()))
	if world > 1024 || int(req.GetRank()) >= world {
		return nil, invalid("rank, world", []uint32{req.GetRank(), req.GetWorld()}, "a world of 1 to 1024 and a rank below it")
	}
	if req.GetArenaBytes() < 0 {
		return nil, invalid("arena_bytes", req.GetArenaBytes(), "0 for the daemon's default, or more")
	}
	layout, err := layoutFromProto(req.GetLayout())
	if err != nil {
		return nil, err
	}
	if err := checkSpeed(req.GetPrefill()); err != nil {
		return nil, err
	}
	e, err := s.d.engines.register(ctx, registration{
		id: req.GetEngineId(), software: req.GetEngineName() + " " + req.GetEngineVersion(), layout: layout, bytes: req.GetArenaBytes(),
		world: world, speed: req.GetPrefill(), proc: callerProcess(ctx), writeThrough: req.GetWriteThrough(),
	})
	if err != nil {
		return nil, err
	}
	st, pin := e.arena.Stats(), layout.Pin()
	s.d.metrics.engineOpened(e.id)
	return &pb.RegisterEngineResponse{
		Node: s.d.nodeProto(), ArenaPath: e.arena.Path(), Slots: uint32(e.arena.Slots()), StrideBytes: layout.Stride(), BlockBytes: layout.BlockBytes(),
		PageBytes: layout.PageBytes(), LayoutPin: pin[:], PinnedBytes: st.PinnedBytes, PinNote: st.PinError,
	}, nil
}

func checkSpeed(p *pb.PrefillSpeed) error {
	if v := p.GetSecondsPerToken(); !(v >= 0 && v < 1e6) {
		return invalid("prefill.seconds_per_token", v, "0 (not measured) or more")
	}
	if v := p.GetMfu(); !(v >= 0 && v <= 1) {
		return invalid("prefill.mfu", v, "0 (unknown) to 1")
	}
	if v := p.GetPeakFlops(); !(v >= 0 && v < 1e21) {
		return invalid("prefill.peak_flops", v, "0 (unknown) or FLOP a second")
	}
	if v := p.GetParamsActive(); !(v >= 0 && v < 1e16) {
		return invalid("prefill.params_active", v, "0 (unknown) or parameters")
	}
	return nil
}

// ReserveBlocks takes slots.
func (s *engineService) ReserveBlocks(ctx context.Context, req *pb.ReserveBlocksRequest) (*pb.ReserveBlocksResponse, error) {
	e, owner, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	keys, err := keysFromProto("keys", req.GetKeys(), maxKeysPerCall, false)
	if err != nil {
		return nil, err
	}
	parent := kvstore.BlockKey(req.GetParentKey())
	if parent != "" {
		if err := parent.Validate(); err != nil {
			return nil, err
		}
	}
	got, err := e.arena.ReserveAfter(owner, kvstore.Tenant(req.GetTenant()), parent, keys)
	e.heldBy(callerProcess(ctx))
	if err != nil {
		return nil, err
	}
	resp := &pb.ReserveBlocksResponse{Reservations: make([]*pb.Reservation, len(got))}
	for i, r := range got {
		out := &pb.Reservation{}
		switch r.State {
		case kvstore.Reserved:
			out.State, out.Slot = pb.ReservationState_RESERVATION_STATE_RESERVED, refToProto(r.Ref)
		case kvstore.Present:
			out.State = pb.ReservationState_RESERVATION_STATE_PRESENT
		case kvstore.Pending:
			out.State = pb.ReservationState_RESERVATION_STATE_LANDING
		}
		resp.Reservations[i] = out
	}
	return resp, nil
}

// CommitBlocks takes a rank's word that its parts are written. It stops at the first slot that fails; those before it
// are committed, and the error's message names the slot.
func (s *engineService) CommitBlocks(ctx context.Context, req *pb.CommitBlocksRequest) (*pb.CommitBlocksResponse, error) {
	e, owner, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	if len(req.GetSlots()) > maxKeysPerCall {
		return nil, invalid("slots", len(req.GetSlots()), "at most 65536; split the call")
	}
	world := max(1, int(req.GetWorld()))
	if world != e.world {
		return nil, invalid("world", world, "the world that the engine registered with")
	}
	resp := &pb.CommitBlocksResponse{}
	for _, slot := range req.GetSlots() {
		done, err := e.arena.CommitPart(owner, refFromProto(slot), int(req.GetRank()), world, fidelityFromProto(req.GetFidelity()))
		if err != nil {
			return nil, err
		}
		resp.Committed = append(resp.Committed, done)
	}
	return resp, nil
}

// LookupBlocks answers for each key.
func (s *engineService) LookupBlocks(ctx context.Context, req *pb.LookupBlocksRequest) (*pb.LookupBlocksResponse, error) {
	e, _, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	keys, err := keysFromProto("keys", req.GetKeys(), maxKeysPerCall, false)
	if err != nil {
		return nil, err
	}
	resp := &pb.LookupBlocksResponse{Blocks: make([]*pb.BlockStatus, len(keys))}
	var count prefixCount
	for i, k := range keys {
		out := &pb.BlockStatus{State: pb.BlockState_BLOCK_STATE_ABSENT}
		switch st, ref := e.arena.Lookup(kvstore.Tenant(req.GetTenant()), k); st {
		case kvstore.BlockPresent:
			out.State = pb.BlockState_BLOCK_STATE_PRESENT
			count.found(e, ref)
		case kvstore.BlockLanding:
			out.State = pb.BlockState_BLOCK_STATE_LANDING
			out.MigrationId, out.ExpectedIn = s.d.migrations.landing(kvstore.Tenant(req.GetTenant()), k)
			count.landing++
		case kvstore.BlockAbsent:
			count.absent++
		}
		resp.Blocks[i] = out
	}
	s.d.metrics.asked(e, callLookup, count)
	return resp, nil
}

// AcquireBlocks leases blocks until they are released or the process dies; no timer ends it.
func (s *engineService) AcquireBlocks(ctx context.Context, req *pb.AcquireBlocksRequest) (*pb.AcquireBlocksResponse, error) {
	e, owner, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	keys, err := keysFromProto("keys", req.GetKeys(), maxKeysPerCall, false)
	if err != nil {
		return nil, err
	}
	tenant := kvstore.Tenant(req.GetTenant())
	defer e.heldBy(callerProcess(ctx))
	var leased []kvstore.SlotRef
	defer func() {
		count := prefixCount{absent: len(keys) - len(leased)}
		for _, ref := range leased {
			count.found(e, ref)
		}
		s.d.metrics.asked(e, callAcquire, count)
	}()
	if req.GetPrefix() {
		lease, refs, n, err := e.arena.AcquirePrefix(owner, tenant, keys, -1)
		leased = refs
		if err != nil || n == 0 {
			return &pb.AcquireBlocksResponse{}, err
		}
		return &pb.AcquireBlocksResponse{LeaseId: uint64(lease), Slots: refsToProto(refs)}, nil
	}
	lease, refs, err := e.arena.Acquire(owner, tenant, keys, -1)
	leased = refs
	if err != nil {
		return nil, err
	}
	return &pb.AcquireBlocksResponse{LeaseId: uint64(lease), Slots: refsToProto(refs)}, nil
}

// ReleaseBlocks ends leases and aborts reservations; it does all of them and answers the first error.
func (s *engineService) ReleaseBlocks(ctx context.Context, req *pb.ReleaseBlocksRequest) (*pb.ReleaseBlocksResponse, error) {
	e, owner, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	for _, id := range req.GetLeaseIds() {
		if rerr := e.arena.Release(kvstore.LeaseID(id)); err == nil {
			err = rerr
		}
	}
	for _, ref := range req.GetAborted() {
		if aerr := e.arena.Abort(owner, refFromProto(ref)); err == nil {
			err = aerr
		}
	}
	return &pb.ReleaseBlocksResponse{}, err
}

// PublishSession records a turn's end.
func (s *engineService) PublishSession(ctx context.Context, req *pb.PublishSessionRequest) (*pb.PublishSessionResponse, error) {
	e, _, err := s.caller(ctx, req.GetEngineId())
	if err != nil {
		return nil, err
	}
	tenant, id, err := sessionRefFromProto(req.GetSession())
	if err != nil {
		return nil, err
	}
	keys, err := keysFromProto("block_keys", req.GetBlockKeys(), maxSessionKeys, true)
	if err != nil {
		return nil, err
	}
	if need := int64(len(keys)) * int64(e.layout.BlockTokens); req.GetTokens() < need || req.GetTokens() < 1 {
		return nil, invalid("tokens", req.GetTokens(), "at least 1 and at least block_keys x block_tokens; count the whole sequence")
	}
	out, err := s.d.sessions.Publish(kvstore.Session{
		Tenant: tenant, ID: id, Pin: e.layout.Pin(), Keys: keys, Tokens: req.GetTokens(), BlockTokens: e.layout.BlockTokens,
		Epoch: req.GetEpoch(), Fidelity: fidelityFromProto(req.GetFidelity()),
	})
	if err != nil {
		return nil, err
	}
	return &pb.PublishSessionResponse{Session: sessionToProto(out)}, nil
}

// Events streams until the engine goes away, the daemon closes, or the engine falls too far behind.
func (s *engineService) Events(req *pb.EventsRequest, stream pb.EngineService_EventsServer) error {
	e, err := s.d.engines.get(req.GetEngineId())
	if err != nil {
		return err
	}
	sub, unsubscribe := e.subscribe()
	defer unsubscribe()
	if err := stream.SendHeader(nil); err != nil { // tells the engine that nothing from here on is missed
		return err
	}
	behind := failf(ReasonStalled, "open the stream again and look blocks up", "the engine fell %d events behind", subscriberQueue)
	for {
		select {
		case ev := <-sub.events:
			select {
			case <-sub.lost:
				return behind
			default:
			}
			if err := stream.Send(ev); err != nil {
				return err
			}
		case <-sub.lost:
			return behind
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-s.d.closing:
			return failf(ReasonShuttingDown, "open the stream again when the daemon is back", "the daemon is shutting down")
		}
	}
}
