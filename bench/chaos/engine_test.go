//go:build chaos

package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	engineID    = "e"
	blockTokens = 16
	layers      = 4
)

// layout has pages of 2 KiB, blocks of 8.
func layout() *pb.Layout {
	return &pb.Layout{
		ModelId: "chaos", Dtype: pb.Dtype_DTYPE_BF16, Kind: pb.LayoutKind_LAYOUT_KIND_GQA, Layers: layers, KvHeads: 2, HeadDim: 16, BlockTokens: blockTokens,
		PositionScheme: "rope", HashAlgorithm: "sha256_chain", HashSeed: "0", SaltPolicy: "tenant",
	}
}

const blockBytes = layers * 2 * 2 * 16 * blockTokens * 2

// chain returns n block keys of a sequence.
func chain(seed string, n int) [][]byte {
	keys := make([][]byte, n)
	parent := []byte(seed)
	for i := range keys {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint32(parent, uint32(i)))
		parent = sum[:]
		keys[i] = sum[:]
	}
	return keys
}

// content is what a tenant's block holds: it depends on both, and on nothing else.
func content(tenant string, key []byte) []byte {
	out := make([]byte, blockBytes)
	rng := rand.NewChaCha8(sha256.Sum256(append([]byte(tenant+"\x00"), key...)))
	_, _ = rng.Read(out)
	return out
}

// engine is an engine's registration with one daemon.
type engine struct {
	n       *node
	id      string
	file    *os.File
	stride  int64
	damaged bool // its arena was truncated; guarded by the node's lock
}

// register has the node's engine register, for the first time or again.
func (n *node) register() error {
	reg, err := n.eng.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{
		EngineId: engineID, EngineName: "chaos", EngineVersion: "1", Layout: layout(), ArenaBytes: int64(n.h.r.spec.slots) * blockBytes,
		Prefill: &pb.PrefillSpeed{SecondsPerToken: 0.002}, WriteThrough: true, ClaimsPrefill: true,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	file, err := os.OpenFile(reg.GetArenaPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine != nil {
		_ = n.engine.file.Close()
	}
	n.engine = &engine{n: n, id: reg.GetArenaId(), file: file, stride: reg.GetStrideBytes()}
	return nil
}

// current is the node's engine.
func (n *node) current() *engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine
}

func (n *node) closeEngine() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine != nil {
		_ = n.engine.file.Close()
	}
}

// gone says that what e sees is nobody's any more.
func (e *engine) gone() bool {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e.damaged || e.n.engine != e || e.n.isDead()
}

// damage truncates the arena.
func (e *engine) damage() {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.damaged = true
	_ = e.file.Truncate(4096)
}

// write reserves, fills and commits what is not there. What can't be committed is given back.
func (e *engine) write(tenant string, keys [][]byte) error {
	ctx, r := context.Background(), e.n.h.r
	res, err := e.n.eng.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: engineID, ArenaId: e.id, Tenant: tenant, Keys: keys})
	if err != nil {
		return err
	}
	r.note(tenant, keys)
	var slots []*pb.SlotRef
	for i, x := range res.GetReservations() {
		if x.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
			continue
		}
		if e.gone() { // writing would make a truncated file longer
			return os.ErrClosed
		}
		if _, err := e.file.WriteAt(content(tenant, keys[i]), int64(x.GetSlot().GetSlot())*e.stride); err != nil && !e.gone() {
			r.failf("harness", "write a block: %v", err)
		}
		slots = append(slots, x.GetSlot())
	}
	var first error
	for len(slots) > 0 {
		com, err := e.n.eng.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: engineID, ArenaId: e.id, Slots: slots})
		if err == nil {
			slots = slots[len(com.GetCommitted()):]
			continue
		}
		if first = err; e.gone() {
			return err
		}
		// Those that were committed can't be aborted, and say so.
		_, _ = e.n.eng.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: engineID, ArenaId: e.id, Aborted: slots})
		break
	}
	return first
}

// publish records a session's first n blocks.
func (e *engine) publish(s *session, keys [][]byte) error {
	_, err := e.n.eng.PublishSession(context.Background(), &pb.PublishSessionRequest{
		EngineId: engineID, ArenaId: e.id, Session: s.ref(), BlockKeys: keys, Tokens: int64(len(keys)*blockTokens + 3),
	})
	return err
}

func (s *session) ref() *pb.SessionRef { return &pb.SessionRef{Tenant: s.tenant, SessionId: s.id} }

// lease is blocks that an engine holds.
type lease struct {
	e      *engine
	tenant string
	id     uint64
	keys   [][]byte
	slots  []*pb.SlotRef
}

// acquire leases the present prefix of keys; nil: there is none, or it can't be had.
func (e *engine) acquire(tenant string, keys [][]byte) *lease {
	got, err := e.n.eng.AcquireBlocks(context.Background(), &pb.AcquireBlocksRequest{EngineId: engineID, ArenaId: e.id, Tenant: tenant, Keys: keys, Prefix: true})
	if err != nil || len(got.GetSlots()) == 0 {
		return nil
	}
	return &lease{e: e, tenant: tenant, id: got.GetLeaseId(), keys: keys[:len(got.GetSlots())], slots: got.GetSlots()}
}

// check compares every byte.
func (l *lease) check() error {
	got := make([]byte, blockBytes)
	for i, s := range l.slots {
		if _, err := l.e.file.ReadAt(got, int64(s.GetSlot())*l.e.stride); err != nil {
			return fmt.Errorf("read block %d of %d: %w", i, len(l.slots), err)
		}
		if want := content(l.tenant, l.keys[i]); !bytes.Equal(got, want) {
			for _, other := range []string{"", "t1"} {
				if bytes.Equal(got, content(other, l.keys[i])) {
					return fmt.Errorf("block %d (%x) of tenant %q holds what tenant %q wrote", i, l.keys[i][:4], l.tenant, other)
				}
			}
			bad := 0
			for p := range layers {
				if n := blockBytes / layers; !bytes.Equal(got[p*n:(p+1)*n], want[p*n:(p+1)*n]) {
					bad = p
					break
				}
			}
			return fmt.Errorf("block %d (%x) of tenant %q in slot %d generation %d differs from what was written, from page %d on", i, l.keys[i][:4], l.tenant, s.GetSlot(), s.GetGeneration(), bad)
		}
	}
	return nil
}

func (l *lease) release() error {
	_, err := l.e.n.eng.ReleaseBlocks(context.Background(), &pb.ReleaseBlocksRequest{EngineId: engineID, ArenaId: l.e.id, LeaseIds: []uint64{l.id}})
	return err
}
