package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
)

// Every code of gRPC has an exit code, and every exit code a text.
func TestExitTablesAreTotal(t *testing.T) {
	t.Parallel()
	if want := int(codes.Unauthenticated) + 1; len(codeExits) != want {
		t.Errorf("codeExits has %d entries, gRPC %d codes", len(codeExits), want)
	}
	for c, exit := range codeExits {
		if (exit == exitOK) != (codes.Code(c) == codes.OK) {
			t.Errorf("%v exits with %d", codes.Code(c), exit)
		}
	}
	for code, text := range exitTexts {
		if text == "" {
			t.Errorf("exit code %d has no text", code)
		}
		if !strings.Contains(exitHelp(), fmt.Sprintf("  %d  %s\n", code, text)) {
			t.Errorf("exit code %d is not in the help", code)
		}
	}
}

// Every reason that the daemon declares has an exit code, and no other has.
func TestReasonsAreTotal(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/daemon/status.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[daemon.Reason]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Reason" {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		s, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		declared[daemon.Reason(s)] = true
		return true
	})
	if len(declared) < 20 {
		t.Fatalf("found %d reasons only; they have moved", len(declared))
	}
	for r := range declared {
		if _, ok := reasonExits[r]; !ok {
			t.Errorf("reason %s has no exit code", r)
		}
	}
	for r := range reasonExits {
		if !declared[r] {
			t.Errorf("the daemon has no reason %s", r)
		}
	}
}

func TestFaultOf(t *testing.T) {
	t.Parallel()
	withDetails := func(c codes.Code, reason, fix string) error {
		st, err := status.New(c, "what").WithDetails(
			&errdetails.ErrorInfo{Reason: reason, Domain: "kvferry.v1"},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "f", Description: "must be less"}}},
			&errdetails.Help{Links: []*errdetails.Help_Link{{Description: fix}}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	_, certErr := certs.NewCA("", 0)
	for _, c := range []struct {
		name string
		err  error
		want fault
	}{
		{"daemon's", withDetails(codes.NotFound, "SESSION_NOT_FOUND", "look"), fault{exitNotFound, "SESSION_NOT_FOUND", "what; f: must be less", "look"}},
		{"a reason stronger than its code", withDetails(codes.Unavailable, "TRANSFER_STALLED", ""), fault{exitFailed, "TRANSFER_STALLED", "what; f: must be less", ""}},
		{"a reason of a newer daemon", withDetails(codes.FailedPrecondition, "NEWER", ""), fault{exitRefused, "NEWER", "what; f: must be less", ""}},
		{"wrapped", fmt.Errorf("call: %w", withDetails(codes.Aborted, "ALREADY_MIGRATING", "wait")), fault{exitRefused, "ALREADY_MIGRATING", "what; f: must be less", "wait"}},
		{"gRPC's own", status.Error(codes.Unavailable, "no"), fault{exitUnreachable, "UNAVAILABLE", "no", "check that kvferryd runs and that --addr names it"}},
		{"deadline", status.FromContextError(context.DeadlineExceeded).Err(), fault{exitFailed, "DEADLINE_EXCEEDED", "context deadline exceeded", "give a longer --timeout, or look at the daemon's log"}},
		{"cancelled", context.Canceled, fault{exitCancelled, "CANCELLED", "context canceled", ""}},
		{"file missing", os.ErrNotExist, fault{exitNotFound, "NOT_FOUND", "file does not exist", ""}},
		{"certs", certErr, fault{exitUsage, "USAGE", `CA name "": want 1 to 64 bytes`, "want 1 to 64 bytes"}},
		{"other", errors.New("x"), fault{exitFailed, "FAILED", "x", ""}},
		{"fault", usagef("v", "w", "x"), fault{exitUsage, "USAGE", "x", `instead of "v" use w`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, *faultOf(c.err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReportFault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state, reason string
		want          exitCode
	}{
		{"COMMITTED", "", exitOK},
		{"RECOMPUTE", "", exitOK},
		{"REDIRECT", "", exitOK},
		{"CANCELLED", "", exitCancelled},
		{"FAILED", "", exitFailed},
		{"FAILED", "NEWER", exitFailed},
		{"FAILED", "SESSION_NOT_FOUND", exitNotFound},
		{"FAILED", "LAYOUT_MISMATCH", exitRefused},
		{"FAILED", "PEER_UNREACHABLE", exitUnreachable},
		{"FAILED", "CANCELLED", exitCancelled},
	} {
		got := exitOK
		if f := reportFault(c.state, c.reason, "m"); f != nil {
			got = f.Code
		}
		if got != c.want {
			t.Errorf("%s %s: exit %d, want %d", c.state, c.reason, got, c.want)
		}
	}
	if diff := cmp.Diff(&fault{exitNotFound, "SESSION_NOT_FOUND", "no session", "look (twice)"}, reportFault("FAILED", "SESSION_NOT_FOUND", "no session (fix: look (twice))")); diff != "" {
		t.Error(diff)
	}
}
