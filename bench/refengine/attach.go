package refengine

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/bench/arenafile"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// attach registers every rank and maps the arena that the daemon answers, in
// place of the one mapped so far. What the engine knew of blocks in that one
// is forgotten; its own cache stays. On error nothing has changed. The caller
// holds the turn, or is Open.
func (e *Engine) attach(ctx context.Context) error {
	m := e.cfg.Model
	var reg *kvferryv1.RegisterEngineResponse
	for rank := range e.cfg.World {
		r, err := e.client.RegisterEngine(ctx, &kvferryv1.RegisterEngineRequest{
			EngineId: e.cfg.EngineID, EngineName: engineName, EngineVersion: engineVersion,
			Layout: e.cfg.layout(), ArenaBytes: e.cfg.ArenaBytes,
			Rank: uint32(rank), World: uint32(e.cfg.World), WriteThrough: true, ClaimsPrefill: true,
			Prefill: &kvferryv1.PrefillSpeed{
				SecondsPerToken: e.perToken, ParamsActive: float64(m.parameters()), QueryHeads: uint32(m.QueryHeads),
			},
		})
		if err != nil {
			return fmt.Errorf("refengine: register engine %q with %s: %w", e.cfg.EngineID, e.cfg.Addr, err)
		}
		if reg != nil && reg.GetArenaId() != r.GetArenaId() {
			return errors.New("refengine: the daemon restarted while the ranks registered")
		}
		reg = r
	}
	a, err := arenafile.Map(reg, int64(m.blockBytes()), int64(m.pageBytes()))
	if err != nil {
		return fmt.Errorf("refengine: %w", err)
	}
	old := e.arena
	e.arena = a
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.registered = reg
	if old != nil {
		clear(e.mu.published)
		e.mu.status.Attached++
	}
	return old.Close()
}

// registration is the daemon's answer to the latest registration.
func (e *Engine) registration() *kvferryv1.RegisterEngineResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.registered
}

func (e *Engine) arenaID() string { return e.registration().GetArenaId() }

// renew attaches again unless a turn has done so since the arena called id was
// found gone. It waits for the turn.
func (e *Engine) renew(id string) error {
	if err := e.begin(e.closing); err != nil {
		return err
	}
	defer e.end()
	if e.arenaID() != id {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.closing, callTimeout)
	defer cancel()
	return e.attach(ctx)
}

// arenaGone says that err means that the arena this engine has mapped is not
// the daemon's any more, or is broken: the cure is to register again.
func arenaGone(err error) bool {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return false
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			switch info.GetReason() {
			case "ARENA_STALE", "ARENA_FAULT", "ENGINE_NOT_FOUND":
				return true
			}
		}
	}
	return false
}

// attachAgain is what a turn does about err: when the arena is gone it
// attaches to the new one, once, and says true. Slots and what the daemon held
// are forgotten then; the turn goes on with what it has computed.
func (t *turn) attachAgain(err error) bool {
	if !arenaGone(err) {
		return false
	}
	t.forgetDaemon()
	if t.attached {
		return false
	}
	t.attached = true
	ctx, cancel := t.call()
	defer cancel()
	if err := t.e.attach(ctx); err != nil {
		t.warn("the daemon's arena is gone: %v", err)
		return false
	}
	t.warn("the daemon's arena is gone: registered again")
	return true
}

func (t *turn) forgetDaemon() {
	t.slots, t.elsewhere, t.inDaemon, t.pending = map[int]*kvferryv1.SlotRef{}, map[int]bool{}, map[int]bool{}, nil
}

// reserveAgain asks for slots in a new arena for the turn's blocks, and writes
// those that the cache holds. With a watermark it ends before a block that is
// computed and not final: it can't be perturbed any more, since others were
// computed on it.
func (t *turn) reserveAgain() {
	n := len(t.keys)
	if t.watermark() != nil {
		for i, final := range t.seq.final {
			if !final {
				n = i
				break
			}
		}
	}
	t.reserve(0, t.keys[:min(n, len(t.keys))])
}
