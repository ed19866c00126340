package daemon

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	"github.com/kvferry/kvferry/transfer"
)

// allReasons reads the Reason constants from the source.
func allReasons(t *testing.T) []Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "status.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []Reason
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Reason" {
			return true
		}
		s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Reason(s))
		return true
	})
	if len(out) < 30 {
		t.Fatalf("found only %d reasons", len(out))
	}
	return out
}

// Every reason has a gRPC code, and no code is left without a reason.
func TestReasonCodesAreTotal(t *testing.T) {
	all := map[Reason]bool{}
	for _, r := range allReasons(t) {
		if all[r] {
			t.Errorf("%s is declared twice", r)
		}
		all[r] = true
		if c, ok := reasonCodes[r]; !ok || c == codes.OK || c == codes.Unknown {
			t.Errorf("%s has code %v", r, c)
		}
	}
	for r := range reasonCodes {
		if !all[r] {
			t.Errorf("code for %s, which is no reason", r)
		}
	}
}

// A failure is the same after it has travelled, as a gRPC status and between daemons.
func TestFailureRoundTrip(t *testing.T) {
	for _, r := range allReasons(t) {
		for _, f := range []*Failure{
			{Reason: r, Message: "what happened"},
			{Reason: r, Message: "what happened", Fix: "what to do", Meta: map[string]string{"migration_id": "m"}},
			{Reason: r, Message: "what happened", Fields: []FieldFault{{"a", "b"}, {"c", "d"}}, Fix: "what to do"},
		} {
			if diff := cmp.Diff(f, failureFromProto(f.proto()), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-sent +received):\n%s", r, diff)
			}
			err := toStatus(fmt.Errorf("wrapped: %w", f))
			got, ok := FailureFromError(err)
			if !ok || status.Code(err) != reasonCodes[r] || cmp.Diff(f, got, cmpopts.EquateEmpty()) != "" {
				t.Errorf("%s over gRPC: %v", r, got)
			}
			re, ok := errors.AsType[*transfer.RemoteError](peerFailure(f))
			if !ok {
				t.Fatalf("%s: not a remote error", r)
			}
			back := classify(fmt.Errorf("call: %w", re))
			if diff := cmp.Diff(f, back, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Failure{}, "Err")); diff != "" {
				t.Errorf("%s between daemons (-sent +received):\n%s", r, diff)
			}
			if !errors.Is(back, &Failure{Reason: r}) || errors.Is(back, &Failure{Reason: "OTHER"}) {
				t.Errorf("%s does not match by reason", r)
			}
		}
	}
}

// An unknown reason, of a later release, is kept; a status without details gets what fits its code.
func TestFailureFromForeignErrors(t *testing.T) {
	f := &Failure{Reason: "FROM_THE_FUTURE", Message: "m"}
	if got, _ := FailureFromError(toStatus(f)); got.Reason != f.Reason {
		t.Errorf("reason %s", got.Reason)
	}
	for c, want := range map[codes.Code]Reason{
		codes.Unavailable: ReasonPeerUnreachable, codes.Canceled: ReasonCancelled, codes.DeadlineExceeded: ReasonDeadline,
		codes.PermissionDenied: ReasonPermission, codes.Unauthenticated: ReasonPermission, codes.InvalidArgument: ReasonInvalid, codes.Aborted: ReasonInternal,
	} {
		if got, ok := FailureFromError(status.Error(c, "m")); !ok || got.Reason != want {
			t.Errorf("%v is %v, want %s", c, got, want)
		}
	}
	if _, ok := FailureFromError(nil); ok {
		t.Error("nil is a failure")
	}
	if _, ok := FailureFromError(errors.New("plain")); ok {
		t.Error("a plain error is a gRPC failure")
	}
	re := &transfer.RemoteError{Code: codeFailure, Message: "m", Details: []byte{0xff}}
	if got := classify(re); got.Reason != ReasonInternal || got.Message != "m" {
		t.Errorf("damaged details: %+v", got)
	}
}

// A node that keeps as many sessions as it can names a way out that there is: no call removes one.
func TestSessionLimitSaysWhatToDo(t *testing.T) {
	if f := classify(fmt.Errorf("publish: %w", kvstore.ErrSessionLimit)); !strings.Contains(f.Fix, "an hour") {
		t.Errorf("fix %q", f.Fix)
	}
}

// Each sentinel of the domain packages has its reason, also when it is wrapped.
func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want Reason
	}{
		{kvstore.ErrBlockNotFound, ReasonBlockNotFound},
		{kvstore.ErrStaleGeneration, ReasonStaleGeneration},
		{kvstore.ErrNotOwner, ReasonNotReserved},
		{kvstore.ErrCommitted, ReasonNotReserved},
		{kvstore.ErrIncomplete, ReasonNotReserved},
		{kvstore.ErrInvalidated, ReasonStaleGeneration},
		{kvstore.ErrMixedFill, ReasonNotReserved},
		{kvstore.ErrChecksumMismatch, ReasonChecksumMismatch},
		{kvstore.ErrPageConflict, ReasonChecksumMismatch},
		{kvstore.ErrFidelityUnsupported, ReasonModeUnavailable},
		{kvstore.ErrLeaseNotFound, ReasonLeaseNotFound},
		{kvstore.ErrLeaseExpired, ReasonLeaseExpired},
		{kvstore.ErrLeaseLimit, ReasonArenaFull},
		{kvstore.ErrArenaFault, ReasonArenaFault},
		{kvstore.ErrArenaInUse, ReasonArenaSpace},
		{kvstore.ErrClosed, ReasonShuttingDown},
		{kvstore.ErrArenaClosed, ReasonArenaStale},
		{kvstore.ErrSessionNotFound, ReasonSessionNotFound},
		{kvstore.ErrSessionLimit, ReasonTooManyMigrations},
		{&kvstore.FieldError{Field: "f", Allowed: "a"}, ReasonInvalid},
		{&kvstore.BlockError{Err: kvstore.ErrBlockNotFound}, ReasonBlockNotFound},
		{&kvstore.NotOwnerError{Owner: "x"}, ReasonNotOwner},
		{&kvstore.ElsewhereError{}, ReasonNotOwner},
		{&kvstore.FencedError{Owner: "x"}, ReasonFenced},
		{&kvstore.MigrationConflictError{}, ReasonRequestMismatch},
		{&kvstore.ArenaFullError{}, ReasonArenaFull},
		{&kvstore.ArenaSpaceError{}, ReasonArenaSpace},
		{&kvstore.ArenaDirError{}, ReasonArenaSpace},
		{transfer.ErrChecksumMismatch, ReasonChecksumMismatch},
		{transfer.ErrStaleGeneration, ReasonStaleGeneration},
		{transfer.ErrLeaseExpired, ReasonLeaseExpired},
		{transfer.ErrUnknownMemory, ReasonStaleGeneration},
		{transfer.ErrOutOfRange, ReasonInvalid},
		{transfer.ErrNotPermitted, ReasonPermission},
		{transfer.ErrCancelled, ReasonCancelled},
		{&kvstore.ArenaBusyError{Leases: 1}, ReasonEngineInUse},
		{transfer.ErrStalled, ReasonStalled},
		{transfer.ErrPeerGone, ReasonPeerUnreachable},
		{transfer.ErrPeerRestarted, ReasonPeerRestarted},
		{transfer.ErrPeerIdentity, ReasonPeerIdentity},
		{transfer.ErrCertificate, ReasonPeerIdentity},
		{transfer.ErrUnreachable, ReasonPeerUnreachable},
		{transfer.ErrVersion, ReasonVersionMismatch},
		{transfer.ErrProtocol, ReasonVersionMismatch},
		{transfer.ErrBusy, ReasonTooManyMigrations},
		{transfer.ErrAnswerLost, ReasonPeerUnreachable},
		{transfer.ErrClosed, ReasonPeerUnreachable},
		{&transfer.FieldError{Field: "f"}, ReasonInvalid},
		{&planner.InputError{Field: "f"}, ReasonInvalid},
		{errors.Join(errors.New("x"), &planner.InputError{Field: "f"}), ReasonInvalid},
		{context.Canceled, ReasonCancelled},
		{context.DeadlineExceeded, ReasonDeadline},
		{errors.New("anything"), ReasonInternal},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("do this: %w", tc.err)} {
			f := classify(err)
			if f.Reason != tc.want {
				t.Errorf("%T %v is %s, want %s", tc.err, err, f.Reason, tc.want)
			}
			if f.Message == "" || f.Fix == "" && len(f.Fields) == 0 && f.Reason != ReasonCancelled {
				t.Errorf("%v: does not say what to do: %+v", err, f)
			}
		}
	}
}

// Whatever status a peer sends becomes a failure.
func FuzzFailureFromProto(f *testing.F) {
	for _, seed := range []*Failure{
		{Reason: ReasonInvalid, Message: "m", Fields: []FieldFault{{"a", "b"}}},
		{Reason: ReasonLayoutMismatch, Message: "m", Fix: "f", Fields: []FieldFault{{"a", "b"}}, Meta: map[string]string{"k": "v"}},
	} {
		b, err := proto.Marshal(seed.proto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		_ = classify(&transfer.RemoteError{Code: codeFailure, Message: "m", Details: in}).Error()
		var st statuspb.Status
		if proto.Unmarshal(in, &st) != nil {
			return
		}
		got := failureFromProto(&st)
		if got.Reason == "" {
			return // a status may name an empty reason
		}
		again := failureFromProto(got.proto())
		if again.Reason != got.Reason || again.Message != got.Message || again.Fix != got.Fix || len(again.Fields) != len(got.Fields) {
			t.Errorf("%+v became %+v", got, again)
		}
	})
}
