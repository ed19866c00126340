package crossover

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/bed"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	engineID = "kvferry-crossover"
	tenant   = "kvferry-bench"
	// migrateDeadline bounds one migration of the sweep.
	migrateDeadline = 10 * time.Minute
	// leaseLook is how often a full arena is looked at while the migration before lets its blocks go.
	leaseLook = 5 * time.Millisecond
)

// writer is the engine that the bench plays at one daemon. It writes through the arena file, as engines do through their
// mapping.
type writer struct {
	n    *bed.Node
	reg  *pb.RegisterEngineResponse
	file *os.File
}

// openWriter registers with room for slots blocks.
func openWriter(ctx context.Context, n *bed.Node, l *pb.Layout, slots int, secondsPerToken float64) (*writer, error) {
	block := layoutBlockBytes(l)
	stride := (block + 4095) &^ 4095
	reg, err := n.Engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{
		EngineId: engineID, EngineName: "kvferry bench", EngineVersion: "1", Layout: l, ArenaBytes: int64(slots) * stride, World: 1, WriteThrough: true,
		Prefill: &pb.PrefillSpeed{SecondsPerToken: secondsPerToken},
	})
	if err != nil {
		return nil, fmt.Errorf("register at the %s: %w", n.ID, err)
	}
	if reg.GetBlockBytes() != block || int(reg.GetSlots()) < slots {
		return nil, fmt.Errorf("BUG: the %s gave %d slots of %d bytes, not %d of %d", n.ID, reg.GetSlots(), reg.GetBlockBytes(), slots, block)
	}
	f, err := os.OpenFile(reg.GetArenaPath(), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open arena: %w", err)
	}
	return &writer{n: n, reg: reg, file: f}, nil
}

func (w *writer) close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}

// layoutBlockBytes is the size of a block of l.
func layoutBlockBytes(l *pb.Layout) int64 {
	parts := int64(2) // K and V
	if l.GetKind() == pb.LayoutKind_LAYOUT_KIND_MLA {
		parts = 1
	}
	return parts * 2 * int64(l.GetLayers()) * int64(l.GetKvHeads()) * int64(l.GetHeadDim()) * int64(l.GetBlockTokens())
}

// chain returns n keys of a session's blocks.
func chain(session string, n int) [][]byte {
	keys := make([][]byte, n)
	parent := []byte(session)
	for i := range keys {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint32(parent, uint32(i)))
		keys[i] = sum[:]
		parent = append(parent[:0:0], sum[:]...)
	}
	return keys
}

// content fills b with what block key holds: bytes that do not compress.
func content(b, key []byte) {
	_, _ = rand.NewChaCha8([32]byte(key)).Read(b) // never fails
}

// publish writes a session's blocks and publishes it.
func (w *writer) publish(ctx context.Context, session string, keys [][]byte, tokens int64) error {
	res, err := w.reserve(ctx, keys)
	if err != nil {
		return fmt.Errorf("reserve %d blocks at the %s: %w", len(keys), w.n.ID, err)
	}
	buf := make([]byte, w.reg.GetBlockBytes())
	slots := make([]*pb.SlotRef, 0, len(keys))
	for i, r := range res.GetReservations() {
		if r.GetState() != pb.ReservationState_RESERVATION_STATE_RESERVED {
			return fmt.Errorf("BUG: block %d of a fresh session is %v", i, r.GetState())
		}
		content(buf, keys[i])
		if _, err := w.file.WriteAt(buf, int64(r.GetSlot().GetSlot())*w.reg.GetStrideBytes()); err != nil {
			return fmt.Errorf("write block %d: %w", i, err)
		}
		slots = append(slots, r.GetSlot())
	}
	done, err := w.n.Engine.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: engineID, ArenaId: w.reg.GetArenaId(), Slots: slots, World: 1, Fidelity: pb.Fidelity_FIDELITY_EXACT})
	if err != nil {
		return fmt.Errorf("commit blocks: %w", err)
	}
	for i, ok := range done.GetCommitted() {
		if !ok {
			return fmt.Errorf("BUG: block %d is not committed", i)
		}
	}
	_, err = w.n.Engine.PublishSession(ctx, &pb.PublishSessionRequest{
		EngineId: engineID, ArenaId: w.reg.GetArenaId(), Session: &pb.SessionRef{Tenant: tenant, SessionId: session}, BlockKeys: keys, Tokens: tokens, Fidelity: pb.Fidelity_FIDELITY_EXACT,
	})
	if err != nil {
		return fmt.Errorf("publish session: %w", err)
	}
	return nil
}

// reserve takes slots, and waits while the migration before still holds them.
func (w *writer) reserve(ctx context.Context, keys [][]byte) (*pb.ReserveBlocksResponse, error) {
	for {
		res, err := w.n.Engine.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: engineID, ArenaId: w.reg.GetArenaId(), Tenant: tenant, Keys: keys})
		if err == nil || status.Code(err) != codes.ResourceExhausted {
			return res, err
		}
		if err := pause(ctx, leaseLook); err != nil {
			return nil, err
		}
	}
}

// verify compares landed blocks with what was written at the source.
func (w *writer) verify(ctx context.Context, keys [][]byte) (err error) {
	lease, err := w.n.Engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: engineID, ArenaId: w.reg.GetArenaId(), Tenant: tenant, Keys: keys})
	if err != nil {
		return fmt.Errorf("look at landed blocks: %w", err)
	}
	defer func() {
		_, rerr := w.n.Engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: engineID, ArenaId: w.reg.GetArenaId(), LeaseIds: []uint64{lease.GetLeaseId()}})
		err = errors.Join(err, rerr)
	}()
	if len(lease.GetSlots()) != len(keys) {
		return fmt.Errorf("%d of %d landed blocks are there", len(lease.GetSlots()), len(keys))
	}
	got, want := make([]byte, w.reg.GetBlockBytes()), make([]byte, w.reg.GetBlockBytes())
	for i, s := range lease.GetSlots() {
		if _, err := w.file.ReadAt(got, int64(s.GetSlot())*w.reg.GetStrideBytes()); err != nil {
			return fmt.Errorf("read block %d: %w", i, err)
		}
		if content(want, keys[i]); !bytes.Equal(got, want) {
			return fmt.Errorf("block %d at the destination differs from what was written at the source", i)
		}
	}
	return nil
}

// MigrationError is a migration that did not end as a fetch of every block.
type MigrationError struct{ State, Code, Message string }

// Error says how the migration ended.
func (e *MigrationError) Error() string {
	return fmt.Sprintf("the migration ended as %s %s: %s", e.State, e.Code, e.Message)
}

// fetch migrates a session to n and returns the report and the time as its caller sees it. When ctx ends the migration is cancelled.
func fetch(ctx context.Context, n *bed.Node, request, session string, blocks int) (rep *pb.MigrationReport, took time.Duration, err error) {
	defer func() {
		if ctx.Err() != nil && err != nil { // a dropped stream alone would let it run on
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_, _ = n.Move.CancelMigration(stop, &pb.CancelMigrationRequest{RequestId: request}) // too late is as good
			err = context.Cause(ctx)
		}
	}()
	began := time.Now()
	stream, err := n.Move.Migrate(ctx, &pb.MigrateRequest{
		RequestId: request, Session: &pb.SessionRef{Tenant: tenant, SessionId: session}, EngineId: engineID, SourceHint: bed.SourceID, Mode: pb.Mode_MODE_FETCH,
		Deadline: durationpb.New(migrateDeadline),
	})
	if err != nil {
		return nil, 0, fmt.Errorf("migrate: %w", err)
	}
	for rep == nil {
		u, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, 0, errors.New("BUG: the daemon ended the stream without a report")
		case err != nil:
			return nil, 0, fmt.Errorf("migrate: %w", err)
		}
		rep = u.GetReport()
	}
	took = time.Since(began)
	if rep.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED || rep.GetBlocksMoved() != int64(blocks) {
		return rep, 0, &MigrationError{rep.GetState().String(), rep.GetCode(), fmt.Sprintf("%d of %d blocks moved; %s", rep.GetBlocksMoved(), blocks, rep.GetMessage())}
	}
	return rep, took, nil
}

// pause waits d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
