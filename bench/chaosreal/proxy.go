package chaosreal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// outcome is how a migration ended, as its caller saw it.
type outcome struct {
	report *pb.MigrationReport // nil when it was refused
	code   string              // of the report or the refusal, empty on success
	from   int
	to     int
	again  int // times that the caller had to ask again, because the daemon had gone
}

// String is the outcome's name in tables.
func (o outcome) String() string {
	if o.report == nil {
		return "refused"
	}
	return strings.ToLower(strings.TrimPrefix(o.report.GetState().String(), "MIGRATION_STATE_"))
}

// watcher is told of each message of a migration's stream. When it says drop, the stream is dropped and the caller comes back.
type watcher func(*pb.MigrateResponse) (drop bool)

// callMigrate asks a node for a migration, as a proxy does: whose stream breaks, that comes back with the same request id until it is
// answered. Its error is a promise broken: an answer that came too late, or two that differ.
func callMigrate(ctx context.Context, n *node, req *pb.MigrateRequest, watch watcher) (out outcome, err error) {
	began, starts := time.Now(), n.starts()
	ctx, cancel := context.WithTimeoutCause(ctx, 3*(moveDeadline+moveGrace)+freezeLongest, errors.New("the caller has asked again and again and has no answer"))
	defer cancel()
	for {
		report, err := follow(ctx, n, req, watch)
		if now := n.starts(); now != starts { // another daemon, which has not heard of it
			began, starts = time.Now(), now
			out.again++
		}
		switch {
		case ctx.Err() != nil:
			return out, context.Cause(ctx)
		case err == nil:
			out.report, out.code = report, report.GetCode()
			return out, answered(ctx, n, req, report, starts)
		case status.Code(err) != codes.Unavailable && !errors.Is(err, errDropped):
			out.code = reason(err)
			return out, refusal(err)
		case alive(n.current().daemon) && !n.frozen() && time.Since(began) > req.GetDeadline().AsDuration()+moveGrace:
			return out, fmt.Errorf("no answer %v after it was asked for, with a deadline of %v: %w", time.Since(began).Truncate(time.Millisecond), req.GetDeadline().AsDuration(), err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// errDropped ends a stream that its reader gives up.
var errDropped = errors.New("the caller drops the stream")

// follow reads one stream to its report. A stream that says nothing for longer than the migration may take is a promise broken.
func follow(ctx context.Context, n *node, req *pb.MigrateRequest, watch watcher) (*pb.MigrationReport, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := fmt.Errorf("the stream did not end within the deadline of %v and %v", req.GetDeadline().AsDuration(), moveGrace)
	defer patience(n, req.GetDeadline().AsDuration()+moveGrace, func() { cancel(late) })()
	stream, err := n.move.Migrate(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		u, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the stream ended without a report")
		case err != nil && errors.Is(context.Cause(ctx), late):
			return nil, late
		case err != nil:
			return nil, err
		}
		drop := watch != nil && watch(u)
		if u.GetReport() != nil {
			return u.GetReport(), nil
		}
		if drop {
			return nil, errDropped
		}
	}
}

// patience calls expire once limit has passed in which the node's daemon ran.
func patience(n *node, limit time.Duration, expire func()) (stop func()) {
	const every = 100 * time.Millisecond
	quit := make(chan struct{})
	go func() { // ends at stop
		tick := time.NewTicker(every)
		defer tick.Stop()
		for limit > 0 {
			select {
			case <-quit:
				return
			case <-tick.C:
				if !n.frozen() {
					limit -= every
				}
			}
		}
		expire()
	}()
	return func() { close(quit) }
}

// answered holds a report to the promises: it is one of those there can be, and who asks again is told the same.
func answered(ctx context.Context, n *node, req *pb.MigrateRequest, report *pb.MigrationReport, starts int) error {
	if err := sensible(req, report); err != nil {
		return err
	}
	got, err := n.move.GetMigration(ctx, &pb.GetMigrationRequest{RequestId: req.GetRequestId()})
	if n.starts() != starts || status.Code(err) == codes.Unavailable {
		return nil // it has been forgotten with the daemon
	}
	if err != nil {
		return fmt.Errorf("the migration has ended and GetMigration says: %w", err)
	}
	if !proto.Equal(got.GetMigration().GetReport(), report) {
		return fmt.Errorf("two answers: the stream's report was %v, GetMigration has %v", report, got.GetMigration().GetReport())
	}
	return nil
}

// sensible says what of a report can't be.
func sensible(req *pb.MigrateRequest, r *pb.MigrationReport) error {
	moved := r.GetOwnership() == pb.Ownership_OWNERSHIP_MOVED
	named := len(req.GetKeys()) > 0
	ok := false
	switch r.GetState() {
	case pb.MigrationState_MIGRATION_STATE_COMMITTED:
		ok = moved || named
	case pb.MigrationState_MIGRATION_STATE_RECOMPUTE:
		ok = true // unknown where a hand-over was asked for and not answered
	case pb.MigrationState_MIGRATION_STATE_REDIRECT:
		ok = r.GetOwnership() == pb.Ownership_OWNERSHIP_UNMOVED
	case pb.MigrationState_MIGRATION_STATE_FAILED:
		ok = !moved && r.GetCode() != ""
	case pb.MigrationState_MIGRATION_STATE_CANCELLED:
		ok = !moved
	}
	if !ok {
		return fmt.Errorf("a report of state %v, ownership %v, code %q", r.GetState(), r.GetOwnership(), r.GetCode())
	}
	if r.GetBlocksUsable() > r.GetBlocksTotal() || r.GetBlocksMoved() < 0 || r.GetTotal().AsDuration() > req.GetDeadline().AsDuration()+moveGrace+freezeLongest {
		return fmt.Errorf("a report of %d of %d blocks usable, %d moved, after %v", r.GetBlocksUsable(), r.GetBlocksTotal(), r.GetBlocksMoved(), r.GetTotal().AsDuration())
	}
	return nil
}

// freezeLongest is how long a destination that is stopped may add to what its clock says.
const freezeLongest = 30 * time.Second

// refusal is nil for an error that a daemon may answer a migration with.
func refusal(err error) error {
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.DataLoss, codes.Unimplemented:
		return fmt.Errorf("the call ended with %w", err)
	}
	if reason(err) == "" {
		return fmt.Errorf("a refusal without a reason: %w", err)
	}
	return nil
}

// reason is the ErrorInfo's, empty for none.
func reason(err error) string {
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// newRequest is what all migrations have.
func newRequest(id string, ref *pb.SessionRef, mode pb.Mode, repin uint64) *pb.MigrateRequest {
	return &pb.MigrateRequest{
		RequestId: id, Session: ref, EngineId: engineID, Mode: mode, RepinSeq: repin, Deadline: durationpb.New(moveDeadline), ExpectedTurns: 4,
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
