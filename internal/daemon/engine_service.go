package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

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

// engineCall is a request of a process that has registered.
type engineCall interface {
	GetEngineId() string
	GetArenaId() string
}

// caller resolves the engine that a call names and the process that calls. One that has not registered since the arena was
// opened knows another arena's slots, or none, and maps a file that nobody reads: it is told to register.
func (s *engineService) caller(ctx context.Context, req engineCall) (*engine, *engineProcess, error) {
	e, err := s.d.engines.get(req.GetEngineId())
	switch {
	case err != nil && req.GetArenaId() != "":
		return nil, nil, arenaStale("no engine %q is registered: it has unregistered, or never registered with this daemon since that started", req.GetEngineId())
	case err != nil:
		return nil, nil, err
	case req.GetArenaId() == "":
		return nil, nil, invalid("arena_id", `""`, "the arena_id that RegisterEngine answered to this process")
	case req.GetArenaId() != e.arenaID:
		return nil, nil, arenaStale("arena %.64q of engine %q is gone", req.GetArenaId(), e.id)
	}
	p := e.process(processKeyOf(callerProcess(ctx)))
	if p == nil {
		return nil, nil, arenaStale("this process has not registered with engine %q", e.id)
	}
	return e, p, nil
}

// keysCall is an engineCall on blocks.
type keysCall interface {
	engineCall
	GetKeys() [][]byte
}

// callerKeys is caller, and the call's keys, checked.
func (s *engineService) callerKeys(ctx context.Context, req keysCall) (*engine, *engineProcess, []kvstore.BlockKey, error) {
	e, proc, err := s.caller(ctx, req)
	if err != nil {
		return nil, nil, nil, err
	}
	keys, err := keysFromProto("keys", req.GetKeys(), maxKeysPerCall, false)
	return e, proc, keys, err
}

func arenaStale(format string, args ...any) *Failure {
	return failf(ReasonArenaStale, "register again, map the new file, and forget the slots, leases and blocks of before", format, args...)
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
		rank: int(req.GetRank()), world: world, speed: req.GetPrefill(), proc: callerProcess(ctx), writeThrough: req.GetWriteThrough(), claims: req.GetClaimsPrefill(),
	})
	who, _ := callerOf(ctx) // a local call: it can be read
	attrs := append(who.attrs(), slog.String("engine_id", req.GetEngineId()), slog.Int("rank", int(req.GetRank())))
	if err != nil {
		s.d.audit.refuse(auditRegister, who.name(), err, attrs...)
		return nil, err
	}
	s.d.audit.grant(auditRegister, who.name(), append(attrs, slog.Int64("bytes", e.arenaBytes))...)
	st, pin := e.arena.Stats(), layout.Pin()
	return &pb.RegisterEngineResponse{
		Node: s.d.nodeProto(), ArenaPath: e.arena.Path(), Slots: uint32(e.arena.Slots()), StrideBytes: layout.Stride(), BlockBytes: layout.BlockBytes(),
		PageBytes: layout.PageBytes(), LayoutPin: pin[:], PinnedBytes: st.PinnedBytes, PinNote: st.PinError,
		ArenaId: e.arenaID,
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

// UnregisterEngine takes an engine away that nobody else uses.
func (s *engineService) UnregisterEngine(ctx context.Context, req *pb.UnregisterEngineRequest) (*pb.UnregisterEngineResponse, error) {
	e, proc, err := s.caller(ctx, req)
	if err != nil {
		return nil, err
	}
	err = s.d.engines.unregister(ctx, e, proc)
	who, _ := callerOf(ctx) // a local call: it can be read
	s.d.audit.decide(auditUnregister, who.name(), err, append(who.attrs(), slog.String("engine_id", req.GetEngineId()))...)
	if err != nil {
		return nil, err
	}
	return &pb.UnregisterEngineResponse{}, nil
}

// ReserveBlocks takes slots.
func (s *engineService) ReserveBlocks(ctx context.Context, req *pb.ReserveBlocksRequest) (*pb.ReserveBlocksResponse, error) {
	e, proc, keys, err := s.callerKeys(ctx, req)
	if err != nil {
		return nil, err
	}
	parent := kvstore.BlockKey(req.GetParentKey())
	if parent != "" {
		if err := parent.Validate(); err != nil {
			return nil, err
		}
	}
	got, err := e.arena.ReserveAfter(e.owner(), kvstore.Tenant(req.GetTenant()), parent, keys)
	e.heldBy(proc)
	if err != nil {
		return nil, err
	}
	_, ranks := e.ranksOf(proc)
	resp := &pb.ReserveBlocksResponse{Reservations: make([]*pb.Reservation, len(got))}
	for i, r := range got {
		out := &pb.Reservation{}
		switch r.State {
		case kvstore.Reserved:
			if e.arena.HasParts(r.Ref, ranks) { // written by this process, and perhaps being sealed
				out.State = pb.ReservationState_RESERVATION_STATE_LANDING
				break
			}
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

// CommitBlocks takes a rank's word that its parts are written: the rank is one that the calling process has registered for. It stops at the first slot that fails; those before it
// are committed, and the error's message names the slot.
func (s *engineService) CommitBlocks(ctx context.Context, req *pb.CommitBlocksRequest) (*pb.CommitBlocksResponse, error) {
	e, proc, err := s.caller(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(req.GetSlots()) > maxKeysPerCall {
		return nil, invalid("slots", len(req.GetSlots()), "at most 65536; split the call")
	}
	rank, world := int(req.GetRank()), max(1, int(req.GetWorld()))
	switch registered, ranks := e.ranksOf(proc); {
	case world != registered:
		return nil, invalid("world", world, fmt.Sprintf("%d, as the engine registered", registered))
	case !slices.Contains(ranks, rank):
		return nil, invalid("rank", rank, fmt.Sprintf("one that this process has registered for: %v", ranks))
	}
	resp := &pb.CommitBlocksResponse{}
	for _, slot := range req.GetSlots() {
		done, err := e.arena.CommitPart(e.owner(), refFromProto(slot), rank, world, fidelityFromProto(req.GetFidelity()))
		if err != nil {
			return nil, err
		}
		resp.Committed = append(resp.Committed, done)
	}
	return resp, nil
}

// LookupBlocks answers for each key.
func (s *engineService) LookupBlocks(ctx context.Context, req *pb.LookupBlocksRequest) (*pb.LookupBlocksResponse, error) {
	e, _, keys, err := s.callerKeys(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := &pb.LookupBlocksResponse{Blocks: make([]*pb.BlockStatus, len(keys))}
	var count prefixCount
	landing := sync.OnceValue(func() landings { return s.d.migrations.landings(kvstore.Tenant(req.GetTenant())) })
	for i, k := range keys {
		out := &pb.BlockStatus{State: pb.BlockState_BLOCK_STATE_ABSENT}
		switch st, ref := e.arena.Lookup(kvstore.Tenant(req.GetTenant()), k); st {
		case kvstore.BlockPresent:
			out.State = pb.BlockState_BLOCK_STATE_PRESENT
			count.found(e, ref)
		case kvstore.BlockLanding:
			out.State = pb.BlockState_BLOCK_STATE_LANDING
			out.MigrationId, out.ExpectedIn = landing().of(k)
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
	e, proc, keys, err := s.callerKeys(ctx, req)
	if err != nil {
		return nil, err
	}
	tenant := kvstore.Tenant(req.GetTenant())
	defer e.heldBy(proc)
	owner := e.processOwner(proc)
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
	e, proc, err := s.caller(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, id := range req.GetLeaseIds() {
		if rerr := e.arena.ReleaseHeld(e.processOwner(proc), kvstore.LeaseID(id)); err == nil {
			err = rerr
		}
	}
	for _, ref := range req.GetAborted() {
		slot := refFromProto(ref)
		aerr := e.arena.Abort(e.owner(), slot)
		if errors.Is(aerr, kvstore.ErrStaleGeneration) && e.arena.Quiet(e.processOwner(proc), slot) {
			aerr = nil // it was aborted when another rank died, and waited for this process
		}
		if err == nil {
			err = aerr
		}
	}
	return &pb.ReleaseBlocksResponse{}, err
}

// maxEpoch leaves hand-overs room to count on from: an engine only repeats an epoch that it was told.
const maxEpoch = 1 << 62

// PublishSession records a turn's end.
func (s *engineService) PublishSession(ctx context.Context, req *pb.PublishSessionRequest) (*pb.PublishSessionResponse, error) {
	e, _, err := s.caller(ctx, req)
	if err != nil {
		return nil, err
	}
	tenant, id, err := sessionRefFromProto(req.GetSession())
	if err != nil {
		return nil, err
	}
	if req.GetEpoch() > maxEpoch {
		return nil, invalid("epoch", req.GetEpoch(), "0, or the epoch that the engine last saw")
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
	e, _, err := s.caller(stream.Context(), req)
	if err != nil {
		return err
	}
	size := int(req.GetLandedLayers())
	if err := checkLayers(size, e); err != nil {
		return err
	}
	sub, unsubscribe := e.subscribe(size)
	defer unsubscribe()
	if err := stream.SendHeader(nil); err != nil { // tells the engine that nothing from here on is missed
		return err
	}
	behind := failf(ReasonStalled, "open the stream again and look blocks up", "the engine fell %d events behind", maxPending)
	for {
		select {
		case <-sub.ready:
			for ev := e.next(sub); ev != nil; ev = e.next(sub) {
				select {
				case <-sub.lost:
					return behind
				default:
				}
				if err := stream.Send(ev); err != nil {
					return err
				}
			}
			if size > 0 {
				s.gather(stream.Context(), e)
			}
		case <-sub.lost:
			return behind
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-e.gone:
			return arenaStale("the arena of engine %q was replaced, or it has unregistered", e.id)
		case <-s.d.closing:
			return failf(ReasonShuttingDown, "open the stream again when the daemon is back", "the daemon is shutting down")
		}
	}
}

// layersEvery is the time between two looks at the layers that landed: pages come one by one, by the thousand a second.
const layersEvery = 2 * time.Millisecond

// gather lets pages gather for one event, unless the stream is to end.
func (s *engineService) gather(ctx context.Context, e *engine) {
	t := time.NewTimer(layersEvery)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-e.gone:
	case <-s.d.closing:
	}
}
