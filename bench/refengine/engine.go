package refengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/bench/arenafile"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// ErrClosed is returned by an engine after Close.
var ErrClosed = errors.New("refengine: engine is closed")

// engineName and engineVersion are what the daemon records of this software.
const (
	engineName    = "kvferry-refengine"
	engineVersion = "1"
)

// An Engine is one registered engine. It owns a client connection, a mapping
// of the arena and the goroutine that reads the daemon's events.
type Engine struct {
	cfg      Config
	compute  computer
	perToken float64 // seconds, as told to the daemon; 0 is not told
	conn     *grpc.ClientConn
	client   kvferryv1.EngineServiceClient
	arena    *arenafile.Arena
	tasks    sync.WaitGroup // the event reader

	// turn holds one token: whoever has it owns cache and the arena mapping.
	turn  chan struct{}
	cache localCache

	closing context.Context // ends at Close; a field because it outlives every call
	cancel  context.CancelCauseFunc

	mu struct {
		sync.Mutex
		registered *kvferryv1.RegisterEngineResponse // as answered last
		stale      []*kvferryv1.Invalidate           // not yet applied to cache
		staleAll   bool                              // there were too many of them
		published  map[string]published              // by tenant and session
		status     Counters
	}
}

// published is what the engine last knew of a session.
type published struct {
	keys   [][]byte
	tokens int64
}

// maxPublished bounds the sessions remembered for publish-now events.
const maxPublished = 1024

// Open builds the model, registers with the daemon, maps the arena and starts
// to read events. ctx bounds Open alone. It returns Validate's error, the gRPC
// status of the registration, or an error of the arena file. Close is owed.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg.withDefaults(), turn: make(chan struct{}, 1)}
	e.cache.keep = e.cfg.KeepSequences
	e.mu.published = map[string]published{}
	e.closing, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if p := e.cfg.Pace; p != nil {
		e.compute = pacedGPU{cfg: e.cfg.Model, pace: *p, root: rootKey(e.cfg.Names.HashSeed)}
	} else {
		e.compute = transformer{newModel(e.cfg.Model)}
	}
	switch s := e.cfg.PrefillSecondsPerToken; {
	case s > 0:
		e.perToken = s
	case s == 0:
		e.perToken = e.compute.prefillSecondsPerToken(ctx)
	}
	if err := e.connect(ctx); err != nil {
		e.cancel(ErrClosed)
		return nil, errors.Join(err, e.disconnect())
	}
	e.turn <- struct{}{}
	e.tasks.Go(e.readEvents)
	return e, nil
}

// connect registers every rank and maps the arena.
func (e *Engine) connect(ctx context.Context) error {
	// A daemon on this host that restarts is back in no time: gRPC's own first wait is a second.
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: time.Second}
	opts := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon)}, e.cfg.DialOptions...)
	conn, err := grpc.NewClient(e.cfg.Addr, opts...)
	if err != nil {
		return fmt.Errorf("refengine: daemon address %q: %w", e.cfg.Addr, err)
	}
	e.conn, e.client = conn, kvferryv1.NewEngineServiceClient(conn)
	return e.attach(ctx)
}

func (e *Engine) disconnect() error {
	err := e.arena.Close()
	if e.conn != nil {
		err = errors.Join(err, e.conn.Close())
	}
	return err
}

// begin waits for the engine's turn. The caller gives it back with end.
func (e *Engine) begin(ctx context.Context) error {
	select {
	case <-e.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.closing.Done():
		return ErrClosed
	}
	if e.closing.Err() != nil {
		e.end()
		return ErrClosed
	}
	return nil
}

func (e *Engine) end() { e.turn <- struct{}{} }

// Close stops a generation under way, ends the event stream, unmaps the arena
// and closes the connection; the daemon ends the engine's leases when it sees
// the process go. It is idempotent and waits.
func (e *Engine) Close() error {
	e.cancel(ErrClosed)
	e.tasks.Wait()
	<-e.turn
	defer e.end() // a second Close finds everything closed
	e.cache.forget()
	err := e.disconnect()
	e.conn = nil
	return err
}

// Forget drops the engine's own cache, so that the next request finds its
// prefix in the daemon or computes it. It waits for a turn and returns ctx's
// cause or ErrClosed.
func (e *Engine) Forget(ctx context.Context) error {
	if err := e.begin(ctx); err != nil {
		return err
	}
	defer e.end()
	e.cache.forget()
	return nil
}

// Counters are what an engine has done since Open.
type Counters struct {
	Requests       int64  `json:"requests"`
	Tokens         int64  `json:"tokens"` // generated
	LoadedBlocks   int64  `json:"loaded_blocks"`
	WrittenBlocks  int64  `json:"written_blocks"`
	Events         int64  `json:"events"`
	EventsAttached bool   `json:"events_attached"` // the event stream is up
	Attached       int64  `json:"attached"`        // to another arena of the daemon, which had restarted or replaced it
	EventsError    string `json:"events_error,omitempty"`
}

// Status is a snapshot of an engine.
type Status struct {
	EngineID               string      `json:"engine_id"`
	NodeID                 string      `json:"node_id"`
	RegionID               string      `json:"region_id"`
	Model                  ModelConfig `json:"model"`
	LayoutPin              []byte      `json:"layout_pin"`
	ArenaPath              string      `json:"arena_path"`
	Slots                  uint32      `json:"slots"`
	BlockBytes             int64       `json:"block_bytes"`
	PageBytes              int64       `json:"page_bytes"`
	PinnedBytes            int64       `json:"pinned_bytes"`
	PinNote                string      `json:"pin_note,omitempty"`
	PrefillSecondsPerToken float64     `json:"prefill_seconds_per_token"` // as told to the daemon; 0 is not told
	Watermarked            bool        `json:"watermarked"`
	Paced                  bool        `json:"paced"`
	World                  int         `json:"world"`
	Counters               Counters    `json:"counters"`
}

// Status returns a snapshot; it does not wait for a turn.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.mu.registered
	return Status{
		EngineID: e.cfg.EngineID, NodeID: r.GetNode().GetNodeId(), RegionID: r.GetNode().GetRegionId(),
		Model: e.cfg.Model, LayoutPin: r.GetLayoutPin(),
		ArenaPath: r.GetArenaPath(), Slots: r.GetSlots(), BlockBytes: r.GetBlockBytes(), PageBytes: r.GetPageBytes(),
		PinnedBytes: r.GetPinnedBytes(), PinNote: r.GetPinNote(), PrefillSecondsPerToken: e.perToken,
		Watermarked: e.cfg.Watermark != nil, Paced: e.cfg.Pace != nil, World: e.cfg.World, Counters: e.mu.status,
	}
}

// count changes the counters.
func (e *Engine) count(f func(*Counters)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.mu.status)
}

// callTimeout bounds one call to the daemon that holds a turn.
const callTimeout = 10 * time.Second
