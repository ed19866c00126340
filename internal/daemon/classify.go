package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"google.golang.org/protobuf/proto"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	"github.com/kvferry/kvferry/transfer"
)

// This file turns errors of the domain packages into Failures: one table a package.

// classify finds the Failure in err, or makes the one that fits.
func classify(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if re, ok := errors.AsType[*transfer.RemoteError](err); ok && re.Code == codeFailure {
		return failureFromDetails(re)
	}
	if f := classifyStore(err); f != nil {
		return f
	}
	if f := classifyTransfer(err); f != nil {
		return f
	}
	if f := classifyPlanner(err); f != nil {
		return f
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failf(ReasonCancelled, "", "cancelled: %v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return failf(ReasonDeadline, "give a longer deadline, or look at the link with `kvferry links`", "out of time: %v", err)
	}
	return failf(ReasonInternal, "see the daemon's log", "%v", err)
}

// failureFromDetails unpacks the Failure of a peer's refusal.
func failureFromDetails(re *transfer.RemoteError) *Failure {
	var st statuspb.Status
	if err := proto.Unmarshal(re.Details, &st); err != nil || len(re.Details) == 0 {
		return failf(ReasonInternal, "see the log of the other node", "%s", re.Message)
	}
	f := failureFromProto(&st)
	f.Err = &transfer.RemoteError{Code: re.Code, Message: re.Message} // what it carried is in f
	return f
}

// classifyStore is the table of kvstore's errors.
func classifyStore(err error) *Failure {
	if fe, ok := errors.AsType[*kvstore.FieldError](err); ok {
		f := &Failure{Reason: ReasonInvalid, Message: err.Error(), Err: err}
		f.Fields = []FieldFault{{fe.Field, fmt.Sprintf("is %s, allowed: %s; %s", fe.Value, fe.Allowed, fe.Fix)}}
		f.Message = "a field is not allowed"
		return f
	}
	if e, ok := errors.AsType[*kvstore.NotOwnerError](err); ok {
		return failf(ReasonNotOwner, "ask the owner, or take the session over with takeover and a higher repin_seq", "%v", err).
			with("owner_node_id", string(e.Owner)).with("epoch", fmt.Sprint(e.Epoch))
	}
	if e, ok := errors.AsType[*kvstore.ElsewhereError](err); ok {
		f := failf(ReasonNotOwner, "migrate it here again, once its owner can be reached; if it is gone for good, migrate with takeover and a repin_seq above all that the session had, in any mode but fetch", "%v", err)
		if e.Epoch > 0 {
			f.with("epoch", fmt.Sprint(e.Epoch))
		}
		if e.Owner != "" {
			f.with("owner_node_id", string(e.Owner))
		}
		return f
	}
	if e, ok := errors.AsType[*kvstore.FencedError](err); ok {
		return failf(ReasonFenced, "look the session up again and use a higher repin_seq", "%v", err).
			with("owner_node_id", string(e.Owner)).with("epoch", fmt.Sprint(e.Epoch)).with("repin_seq", fmt.Sprint(e.RepinSeq))
	}
	if _, ok := errors.AsType[*kvstore.MigrationConflictError](err); ok {
		return failf(ReasonRequestMismatch, "use a new request_id", "%v", err)
	}
	if _, ok := errors.AsType[*kvstore.ArenaFullError](err); ok {
		return failf(ReasonArenaFull, "wait for leases to end, or give the engine a larger arena", "%v", err)
	}
	if _, ok := errors.AsType[*kvstore.ArenaBusyError](err); ok {
		return failf(ReasonEngineInUse, "wait for migrations from and into it to end, then ask again", "%v", err)
	}
	if _, ok := errors.AsType[*kvstore.ArenaSpaceError](err); ok {
		return failf(ReasonArenaSpace, "make the arena smaller or the filesystem larger (containers: --shm-size, or an emptyDir of medium Memory)", "%v", err)
	}
	if _, ok := errors.AsType[*kvstore.ArenaDirError](err); ok {
		return failf(ReasonArenaSpace, "set arena.dir to a memory filesystem such as /dev/shm", "%v", err)
	}
	for _, disk := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, disk) {
			return failf(ReasonStorage, "free space in state_dir, or make it writable, then migrate again; ownership says whether it has moved", "%v", err)
		}
	}
	for _, row := range []struct {
		err    error
		reason Reason
		fix    string
	}{
		{kvstore.ErrBlockNotFound, ReasonBlockNotFound, "look the keys up again; the block was evicted or never committed"},
		{kvstore.ErrStaleGeneration, ReasonStaleGeneration, "look the keys up again and use the slots that the daemon answers"},
		{kvstore.ErrNotOwner, ReasonNotReserved, "write only slots that this engine reserved"},
		{kvstore.ErrCommitted, ReasonNotReserved, "a committed block can't be written; reserve another"},
		{kvstore.ErrIncomplete, ReasonNotReserved, "commit a block after all its pages are in"},
		{kvstore.ErrInvalidated, ReasonStaleGeneration, "reserve the block again"},
		{kvstore.ErrMixedFill, ReasonNotReserved, "fill a slot either by ranks or by pages"},
		{kvstore.ErrChecksumMismatch, ReasonChecksumMismatch, "the page was damaged; move or compute it again"},
		{kvstore.ErrPageConflict, ReasonChecksumMismatch, "the page was damaged; move or compute it again"},
		{kvstore.ErrFidelityUnsupported, ReasonModeUnavailable, "commit exact blocks only"},
		{kvstore.ErrLeaseNotFound, ReasonLeaseNotFound, "acquire the blocks again"},
		{kvstore.ErrLeaseExpired, ReasonLeaseExpired, "acquire the blocks again and renew in time"},
		{kvstore.ErrLeaseLimit, ReasonArenaFull, "release leases that are not used"},
		{kvstore.ErrArenaFault, ReasonArenaFault, "have the engine register again: it gets a fresh arena; something truncated the file of this one"},
		{kvstore.ErrArenaInUse, ReasonArenaSpace, "another daemon uses this arena file; give the engine another id or the daemon another arena.dir"},
		{kvstore.ErrSessionNotFound, ReasonSessionNotFound, "check the tenant and the session id; `kvferry sessions` lists them"},
		{kvstore.ErrSessionLimit, ReasonTooManyMigrations, "wait: records of sessions that have not changed for an hour go as soon as room is needed; `kvferry status` shows how much they take"},
		{kvstore.ErrArenaClosed, ReasonArenaStale, "ask again once the engine has registered: the arena was replaced, or its engine has unregistered"},
		{kvstore.ErrClosed, ReasonShuttingDown, "try again when the daemon is back"},
	} {
		if errors.Is(err, row.err) {
			return failf(row.reason, row.fix, "%v", err)
		}
	}
	return nil
}

// classifyTransfer is the table of transfer's errors.
func classifyTransfer(err error) *Failure {
	if fe, ok := errors.AsType[*transfer.FieldError](err); ok {
		return &Failure{Reason: ReasonInvalid, Message: "a field is not allowed", Err: err, Fields: []FieldFault{{fe.Field, fe.Error()}}}
	}
	for _, row := range []struct {
		err    error
		reason Reason
		fix    string
	}{
		{transfer.ErrChecksumMismatch, ReasonChecksumMismatch, "a page did not verify twice; the source re-checks its copy"},
		{transfer.ErrStaleGeneration, ReasonStaleGeneration, "migrate again; the source's blocks have changed"},
		{transfer.ErrLeaseExpired, ReasonLeaseExpired, "migrate again; the source had given the blocks up"},
		{transfer.ErrPeerIdentity, ReasonPeerIdentity, "the certificate names another node: check peers and both certificates"},
		{transfer.ErrCertificate, ReasonPeerIdentity, "have both nodes' certificates issued by one CA and not expired (`kvferry certs`)"},
		{transfer.ErrVersion, ReasonVersionMismatch, "run the same release on both nodes"},
		{transfer.ErrPeerRestarted, ReasonPeerRestarted, "migrate again"},
		{transfer.ErrQueued, ReasonQueued, "look at the source's queue with `kvferry links`, or raise link.queue_timeout; the session can be recomputed"},
		{transfer.ErrStalled, ReasonStalled, "look at the link with `kvferry links`; the session can be recomputed"},
		{transfer.ErrCancelled, ReasonCancelled, ""},
		{transfer.ErrPeerGone, ReasonPeerUnreachable, "check the link and the other daemon; the session can be recomputed"},
		{transfer.ErrUnreachable, ReasonPeerUnreachable, "check that kvferryd runs there and that UDP is open both ways"},
		{transfer.ErrAnswerLost, ReasonPeerUnreachable, "migrate again; the owner's record decides what happened"},
		{transfer.ErrClosed, ReasonPeerUnreachable, "migrate again"},
		{transfer.ErrBusy, ReasonTooManyMigrations, "try again later"},
		{transfer.ErrProtocol, ReasonVersionMismatch, "run the same release on both nodes"},
		{transfer.ErrUnknownMemory, ReasonStaleGeneration, "migrate again; the source's engine has changed"},
		{transfer.ErrOutOfRange, ReasonInvalid, "report this: a descriptor was out of range"},
		{transfer.ErrNotPermitted, ReasonPermission, "the source does not let this memory be read"},
	} {
		if errors.Is(err, row.err) {
			return failf(row.reason, row.fix, "%v", err)
		}
	}
	return nil
}

// classifyPlanner is the table of planner's errors: what is wrong with its inputs.
func classifyPlanner(err error) *Failure {
	faults := inputErrors(err)
	if len(faults) == 0 {
		return nil
	}
	f := &Failure{Reason: ReasonInvalid, Message: "the planner's inputs are not allowed", Err: err}
	for _, ie := range faults {
		f.Fields = append(f.Fields, FieldFault{ie.Field, fmt.Sprintf("is %s, allowed: %s; %s", ie.Value, ie.Allowed, ie.Fix)})
	}
	return f
}

// inputErrors finds every *planner.InputError in a tree of joined errors.
func inputErrors(err error) []*planner.InputError {
	switch e := err.(type) {
	case nil:
		return nil
	case *planner.InputError:
		return []*planner.InputError{e}
	case interface{ Unwrap() []error }:
		var out []*planner.InputError
		for _, inner := range e.Unwrap() {
			out = append(out, inputErrors(inner)...)
		}
		return out
	default:
		return inputErrors(errors.Unwrap(err))
	}
}
