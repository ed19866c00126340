package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// engine is one registered engine: an arena, and the processes that write into it. It outlives its processes, so that
// an engine that restarts finds its blocks again. An engine whose arena is replaced is another one of the same id.
type engine struct {
	id           string
	layout       kvstore.Layout
	arena        *kvstore.Arena
	arenaID      string // names this arena and no other
	memory       transfer.MemoryID
	arenaBytes   int64
	writeThrough bool
	landed       []atomic.Uint64 // a slot: generation of the block that a migration brought into it
	layerReaders atomic.Int32    // subscribers that are told of layers
	gone         chan struct{}   // closed when another arena takes this one's place
	mu           struct {
		sync.Mutex
		software string // name and version, as registered last
		world    int
		speed    *pb.PrefillSpeed
		claims   bool // it asks before it prefills blocks that a migration brings, as registered last
		subs     map[*subscriber]struct{}
		logs     map[*landedLog]struct{} // of the migrations that run into it
		procs    map[processKey]*engineProcess
		before   map[string]func() // of earlier starts and perhaps at the memory still, by name; each stops watching it
		closed   bool              // no process is watched any more
	}
}

func (e *engine) speed() *pb.PrefillSpeed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.speed
}

// claims says that the engine can run a hybrid.
func (e *engine) claims() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.claims
}

// engines is the registry.
type engines struct {
	cfg    ArenaConfig
	node   string // in file names: several daemons may share a host
	agent  *transfer.Agent
	offers *offers
	log    *slog.Logger
	// quota is how many slots of so many bytes a tenant may take of an arena, 0: any number. It is set before the first engine.
	quota func(kvstore.Tenant, int64) int
	// metrics is told of engines that come and go, under opening. It is set before the first of them.
	metrics *metrics
	// opening is held while an arena is opened, which takes as long as the system needs to find the memory; look-ups go
	// on meanwhile. It is taken before mu.
	opening sync.Mutex
	kept    keptArenas // guarded by opening
	// nextAlive is when noteAlive is due.
	nextAlive time.Time
	mu        struct {
		sync.Mutex
		byID   map[string]*engine
		ending map[*engine]struct{}          // out of byID, their arenas not closed yet
		ended  map[string]kvstore.ArenaStats // counters of closed arenas, by the label of their engines
		bytes  int64                         // of all arenas
		closed bool
	}
}

func newEngines(node string, cfg ArenaConfig, agent *transfer.Agent, offers *offers, log *slog.Logger) *engines {
	e := &engines{node: node, cfg: cfg, agent: agent, offers: offers, log: log}
	e.mu.byID, e.mu.ending, e.mu.ended = map[string]*engine{}, map[*engine]struct{}{}, map[string]kvstore.ArenaStats{}
	e.takeFormerNames()
	e.sweepKept(time.Now())
	return e
}

// newArenaID names one opening of one arena.
func newArenaID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// registration is what RegisterEngine brings, checked.
type registration struct {
	id, software string
	layout       kvstore.Layout
	bytes        int64
	rank, world  int
	writeThrough bool
	claims       bool // it asks before it prefills blocks that a migration brings
	speed        *pb.PrefillSpeed
	proc         *localProcess
}

// register opens an arena for a new engine or adds a process to one that has it. Registrations are serialised.
func (r *engines) register(ctx context.Context, reg registration) (*engine, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	e, closed := r.mu.byID[reg.id], r.mu.closed
	r.mu.Unlock()
	if closed {
		return nil, failf(ReasonShuttingDown, "register again when the daemon is back", "the daemon is shutting down")
	}
	if why := e.replaceable(reg.layout); why != "" {
		r.log.LogAttrs(ctx, slog.LevelWarn, "arena is replaced", slog.String("engine_id", e.id), slog.String("arena", e.arena.Path()), slog.String("why", why))
		if err := r.retire(e); err != nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "close the arena that is replaced", slog.String("engine_id", e.id), slog.Any("error", err))
		}
		e = nil
	}
	if e == nil {
		var err error
		if e, err = r.open(reg); err != nil {
			r.closed(reg.id) // it may have had an arena, which is replaced
			return nil, err
		}
		r.metrics.engineOpened(e.id)
		r.mu.Lock()
		r.mu.byID[reg.id] = e
		r.mu.bytes += e.arenaBytes
		r.mu.Unlock()
		r.log.LogAttrs(ctx, slog.LevelInfo, "engine registered", slog.String("engine_id", e.id),
			slog.String("arena", e.arena.Path()), slog.Int64("arena_bytes", e.arenaBytes), slog.String("layout_pin", e.layout.Pin().String()))
	}
	if diff := e.layout.Diff(reg.layout); len(diff) > 0 {
		f := layoutMismatch(fmt.Sprintf("engine %q is registered with another layout", reg.id), "this registration", "the earlier one", reg.layout.Diff(e.layout))
		f.Fix += "; for another layout stop all processes of the engine first, or use another engine_id"
		return nil, f
	}
	return e, r.adopt(e, reg)
}

// replaceable says why a registration with layout l gets a fresh arena in place of e's; "" when it does not, as for no engine.
func (e *engine) replaceable(l kvstore.Layout) string {
	switch {
	case e == nil:
		return ""
	case errors.Is(e.arena.CheckFile(), kvstore.ErrArenaFault):
		return "somebody truncated or removed its file"
	case len(e.layout.Diff(l)) > 0 && e.processes() == 0:
		return "the engine has another layout now"
	}
	return ""
}

// isGone reports whether another arena has taken this one's place.
func (e *engine) isGone() bool {
	select {
	case <-e.gone:
		return true
	default:
		return false
	}
}

// lookAtArena finds out that somebody has truncated or removed an arena's file, before anybody touches the memory: status, metrics and the log say so.
func (d *Daemon) lookAtArena(e *engine) {
	if e.arena.Stats().Broken {
		return
	}
	err := e.arena.CheckFile()
	if errors.Is(err, kvstore.ErrArenaFault) {
		d.log.LogAttrs(context.Background(), slog.LevelError, "an arena's memory is gone: its engine gets another when it registers again", slog.String("engine_id", e.id),
			slog.String("arena", e.arena.Path()), slog.Any("error", err))
	}
}

// retire takes an engine out of the registry and closes its arena. What still uses it fails.
func (r *engines) retire(e *engine) error {
	r.forget(e)
	err := errors.Join(r.agent.Deregister(e.memory), e.arena.Discard())
	r.settle(e)
	return err
}

// settle keeps what the arena of a forgotten engine counted. The arena is closed, so that it counts no more.
func (r *engines) settle(e *engine) {
	st, label := e.arena.Stats(), r.metrics.engines.label(e.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.ending, e)
	r.mu.ended[label] = addCounters(r.mu.ended[label], st)
}

// closed has the metrics forget an engine that is not registered any more. What it counted goes with its own label, if it had
// one; under a label that others share it stays, because a counter does not go down.
func (r *engines) closed(id string) {
	if own := r.metrics.engineClosed(id); own {
		r.mu.Lock()
		delete(r.mu.ended, id)
		r.mu.Unlock()
	}
}

// counted is every engine with its label, and what arenas that are gone counted under each label. An arena that is being closed is
// in exactly one of them: among the engines, with gauge false.
func (r *engines) counted() (live []labelled, ended map[string]kvstore.ArenaStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.mu.byID {
		live = append(live, labelled{e, r.metrics.engines.label(e.id), true})
	}
	for e := range r.mu.ending {
		live = append(live, labelled{e, r.metrics.engines.label(e.id), false})
	}
	return live, maps.Clone(r.mu.ended)
}

// labelled is an engine with its label in metrics. Of one without gauge only the counters count.
type labelled struct {
	*engine
	label string
	gauge bool
}

// forget takes an engine out of the registry; settle is owed once its arena is closed. r.opening is held, so that nobody takes its
// id meanwhile.
func (r *engines) forget(e *engine) {
	r.mu.Lock()
	delete(r.mu.byID, e.id)
	r.mu.ending[e] = struct{}{}
	r.mu.bytes -= e.arenaBytes
	r.mu.Unlock()
	close(e.gone)
	e.stopWatching()
}

// unregister takes e away for its process p, which may hold what it likes; while anybody else holds something nothing changes.
func (r *engines) unregister(ctx context.Context, e *engine, p *engineProcess) error {
	r.opening.Lock()
	defer r.opening.Unlock()
	if now, err := r.get(e.id); err != nil || now != e {
		return arenaStale("engine %q has unregistered, or has another arena", e.id)
	}
	if n := e.processes(); n > 1 {
		return failf(ReasonEngineInUse, "stop them first, or have the last one unregister", "%d other processes of engine %q live", n-1, e.id)
	}
	if err := e.arena.CloseIdle(e.processOwner(p), e.owner()); err != nil {
		if _, busy := errors.AsType[*kvstore.ArenaBusyError](err); busy {
			return err
		}
		// It is closed all the same; its file may have been left behind.
		r.log.LogAttrs(ctx, slog.LevelWarn, "close the arena of an engine that unregisters", slog.String("engine_id", e.id), slog.Any("error", err))
	}
	r.forget(e)
	r.settle(e)
	r.closed(e.id)
	if err := r.agent.Deregister(e.memory); err != nil {
		return fmt.Errorf("unregister engine %q: %w", e.id, err)
	}
	r.log.LogAttrs(ctx, slog.LevelInfo, "engine unregistered", slog.String("engine_id", e.id), slog.String("arena", e.arena.Path()))
	return nil
}

// open opens the arena of a new engine.
func (r *engines) open(reg registration) (*engine, error) {
	r.mu.Lock()
	used := r.mu.bytes
	r.mu.Unlock()
	bytes := reg.bytes
	if bytes == 0 {
		bytes = r.cfg.Bytes
	}
	name := ArenaPrefix(r.node) + reg.id
	if left := r.cfg.MaxBytes - used - r.makeRoom(name, bytes+used-r.cfg.MaxBytes); bytes > left {
		return nil, failf(ReasonArenaSpace, "ask for less, or raise arena.max_bytes", "engine %q asks for %d bytes, %d of arena.max_bytes are left", reg.id, bytes, left)
	}
	lock := kvstore.LockTry
	if !*r.cfg.Lock {
		lock = kvstore.LockOff
	}
	arena, err := r.openArena(kvstore.ArenaConfig{
		Dir: r.cfg.Dir, Name: name, Layout: reg.layout, Bytes: bytes, Lock: lock, GroupID: r.cfg.Group, Keep: r.identity(reg.id),
		TenantSlots: func(t kvstore.Tenant) int { return r.quota(t, reg.layout.Stride()) },
	})
	if err != nil {
		return nil, err
	}
	e := &engine{
		id: reg.id, layout: reg.layout, arena: arena, arenaID: newArenaID(), arenaBytes: bytes, writeThrough: reg.writeThrough,
		landed: make([]atomic.Uint64, arena.Slots()), gone: make(chan struct{}),
	}
	e.mu.world, e.mu.subs, e.mu.procs = reg.world, map[*subscriber]struct{}{}, map[processKey]*engineProcess{}
	e.mu.logs, e.mu.before = map[*landedLog]struct{}{}, map[string]func(){}
	for _, ref := range arena.RestoredByPage() {
		e.landedFrom(ref)
	}
	mem := &arenaMemory{arena: arena, stride: uint64(reg.layout.Stride()), page: uint64(reg.layout.PageBytes()), offers: r.offers}
	e.memory, err = r.agent.Register(transfer.Memory{
		PageBytes: int(reg.layout.PageBytes()), Length: int64(arena.Slots()) * reg.layout.Stride(), Source: mem, Sink: mem, Element: elements[reg.layout.DType],
	})
	if err != nil {
		_ = arena.Discard()
		return nil, fmt.Errorf("register arena of engine %q: %w", reg.id, err)
	}
	r.watchBefore(e)
	return e, nil
}

// elements is what pages of a layout hold, for the choice of their codec.
var elements = map[kvstore.DType]codec.Element{
	kvstore.DTypeBF16: codec.BF16, kvstore.DTypeFP16: codec.FP16, kvstore.DTypeFP8E4M3: codec.FP8, kvstore.DTypeFP8E5M2: codec.FP8,
}

// invalidate tells the engine whose arena a is that it must not use blocks which it may have leased or keep a copy of.
func (r *engines) invalidate(a *kvstore.Arena, t kvstore.Tenant, keys []kvstore.BlockKey, reason string) {
	ev := &pb.Invalidate{Tenant: string(t), Keys: keysToProto(keys), Reason: reason}
	for _, e := range r.list() {
		if e.arena == a {
			e.publish(&pb.EventsResponse{Event: &pb.EventsResponse_Invalidate{Invalidate: ev}})
		}
	}
}

// get returns the engine with that id.
func (r *engines) get(id string) (*engine, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.byID[id]; e != nil {
		return e, nil
	}
	return nil, failf(ReasonEngineNotFound, "call RegisterEngine first, or look at `kvferry status`", "no engine %q is registered here", id)
}

// byPin returns the engines with that layout.
func (r *engines) byPin(pin kvstore.Pin) []*engine {
	var out []*engine
	for _, e := range r.list() {
		if e.layout.Pin() == pin {
			out = append(out, e)
		}
	}
	return out
}

// list returns all engines by id.
func (r *engines) list() []*engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*engine, 0, len(r.mu.byID))
	for _, e := range r.mu.byID {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *engine) int { return cmp.Compare(a.id, b.id) })
	return out
}

// close stops the watchers and closes the arenas. The agent must be closed already: nobody writes.
func (r *engines) close() error {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	r.mu.closed = true
	r.mu.Unlock()
	var first error
	for _, e := range r.list() {
		e.stopWatching()
		if err := e.arena.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// layoutMismatch names each differing field and its fix.
func layoutMismatch(message, ours, theirs string, diff []kvstore.FieldDiff) *Failure {
	f := &Failure{Reason: ReasonLayoutMismatch, Message: message, Fix: "run both engines with the same model, layout and hashing; every field above must be equal"}
	for _, d := range diff {
		f.Fields = append(f.Fields, FieldFault{d.Field, fmt.Sprintf("%s has %s, %s has %s; %s", ours, d.Ours, theirs, d.Theirs, d.Fix)})
	}
	return f
}

// arenaMemory shows an arena to the transfer package: descriptors are slots, tokens are offers.
type arenaMemory struct {
	arena        *kvstore.Arena
	stride, page uint64
	offers       *offers
}

func (m *arenaMemory) ref(d transfer.Desc) (kvstore.SlotRef, int) {
	return kvstore.SlotRef{Slot: uint32(d.Offset / m.stride), Generation: d.Generation}, int(d.Offset % m.stride / m.page)
}

// ReadPages serves pages to the holder of an offer, and keeps its lease alive.
func (m *arenaMemory) ReadPages(token []byte, _ int, d transfer.Desc, first int, dst []byte, sums []uint32) error {
	lease, err := m.offers.progress(token, m.arena)
	if err != nil {
		return transferError(err)
	}
	ref, page := m.ref(d)
	return transferError(m.arena.ReadPages(lease, ref, page+first, len(sums), dst, sums))
}

// LandPage verifies p and puts it into its slot.
func (m *arenaMemory) LandPage(_ int, d transfer.Desc, page int, p []byte, sum uint32) error {
	ref, base := m.ref(d)
	return transferError(m.arena.WritePage(ref, base+page, p, sum))
}

// transferError gives a store's error the sentinel by which the transfer package and the peer know it; any other
// travels as the failure it is.
func transferError(err error) error {
	if err == nil {
		return nil
	}
	for _, pair := range []struct{ store, transfer error }{
		{kvstore.ErrChecksumMismatch, transfer.ErrChecksumMismatch},
		{kvstore.ErrStaleGeneration, transfer.ErrStaleGeneration},
		{kvstore.ErrBlockNotFound, transfer.ErrStaleGeneration},
		{kvstore.ErrLeaseExpired, transfer.ErrLeaseExpired},
		{kvstore.ErrLeaseNotFound, transfer.ErrLeaseExpired},
		{&Failure{Reason: ReasonLeaseExpired}, transfer.ErrLeaseExpired},
	} {
		if errors.Is(err, pair.store) {
			return fmt.Errorf("%w: %w", pair.transfer, err)
		}
	}
	return peerFailure(err)
}
