package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
)

// exitCode is what the process returns. The numbers are stable.
type exitCode int

const (
	exitOK          exitCode = 0
	exitFailed      exitCode = 1
	exitUsage       exitCode = 2
	exitUnreachable exitCode = 3
	exitNotFound    exitCode = 4
	exitRefused     exitCode = 5
	exitCancelled   exitCode = 6
)

// exitTexts is total over the codes; the help prints it.
var exitTexts = [...]string{
	exitOK:          "ok",
	exitFailed:      "failed",
	exitUsage:       "usage: a flag, argument or value that is not allowed",
	exitUnreachable: "not reachable: no daemon at the address, TLS failed, or the other region is cut off",
	exitNotFound:    "not found: session, migration, engine or node",
	exitRefused:     "refused: understood, but the state of things or a right that is missing forbids it",
	exitCancelled:   "cancelled, by Ctrl-C or by someone else",
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for code, text := range exitTexts {
		fmt.Fprintf(&b, "  %d  %s\n", code, text)
	}
	b.WriteString("\nErrors say what happened and, after \"fix:\", what to do. With -o json they are {\"error\":{code,reason,message,fix}} on\nstderr, code being the exit code.")
	return b.String()
}

// codeExits is total over gRPC's codes.
var codeExits = [...]exitCode{
	codes.OK:                 exitOK,
	codes.Canceled:           exitCancelled,
	codes.Unknown:            exitFailed,
	codes.InvalidArgument:    exitUsage,
	codes.DeadlineExceeded:   exitFailed,
	codes.NotFound:           exitNotFound,
	codes.AlreadyExists:      exitRefused,
	codes.PermissionDenied:   exitRefused,
	codes.ResourceExhausted:  exitRefused,
	codes.FailedPrecondition: exitRefused,
	codes.Aborted:            exitRefused,
	codes.OutOfRange:         exitUsage,
	codes.Unimplemented:      exitRefused,
	codes.Internal:           exitFailed,
	codes.Unavailable:        exitUnreachable,
	codes.DataLoss:           exitFailed,
	codes.Unauthenticated:    exitRefused,
}

// reasonExits is total over the reasons that the daemon sends, in errors and in the reports of failed migrations. A
// reason that is not here, of a newer daemon, goes by its gRPC code, and is exitFailed in a report.
var reasonExits = map[daemon.Reason]exitCode{
	daemon.ReasonInvalid:           exitUsage,
	daemon.ReasonSessionNotFound:   exitNotFound,
	daemon.ReasonMigrationNotFound: exitNotFound,
	daemon.ReasonEngineNotFound:    exitNotFound,
	daemon.ReasonEngineAmbiguous:   exitRefused,
	daemon.ReasonEngineMismatch:    exitRefused,
	daemon.ReasonEngineInUse:       exitRefused,
	daemon.ReasonNodeNotFound:      exitNotFound,
	daemon.ReasonBlockNotFound:     exitNotFound,
	daemon.ReasonLayoutMismatch:    exitRefused,
	daemon.ReasonStaleGeneration:   exitRefused,
	daemon.ReasonNotReserved:       exitRefused,
	daemon.ReasonLeaseExpired:      exitRefused,
	daemon.ReasonLeaseNotFound:     exitNotFound,
	daemon.ReasonArenaFull:         exitRefused,
	daemon.ReasonArenaSpace:        exitRefused,
	daemon.ReasonArenaFault:        exitFailed,
	daemon.ReasonArenaStale:        exitRefused,
	daemon.ReasonNotOwner:          exitRefused,
	daemon.ReasonFenced:            exitRefused,
	daemon.ReasonRequestMismatch:   exitRefused,
	daemon.ReasonAlreadyMigrating:  exitRefused,
	daemon.ReasonHandOverPending:   exitRefused,
	daemon.ReasonTooManyMigrations: exitRefused,
	daemon.ReasonModeUnavailable:   exitRefused,
	daemon.ReasonPeerUnreachable:   exitUnreachable,
	daemon.ReasonPeerIdentity:      exitRefused,
	daemon.ReasonPeerRestarted:     exitFailed,
	daemon.ReasonStalled:           exitFailed,
	daemon.ReasonChecksumMismatch:  exitFailed,
	daemon.ReasonVersionMismatch:   exitRefused,
	daemon.ReasonCancelled:         exitCancelled,
	daemon.ReasonDeadline:          exitFailed,
	daemon.ReasonQueued:            exitFailed,
	daemon.ReasonShuttingDown:      exitUnreachable,
	daemon.ReasonPermission:        exitRefused,
	daemon.ReasonPolicyDenied:      exitRefused,
	daemon.ReasonTooManyHops:       exitRefused,
	daemon.ReasonStorage:           exitFailed,
	daemon.ReasonInternal:          exitFailed,
}

// fault is an error ready for print: what happened, the stable reason, and what to do.
type fault struct {
	Code    exitCode `json:"code"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Fix     string   `json:"fix"`
}

// Error makes a fault an error, so that commands can return one.
func (f *fault) Error() string { return f.Message }

// usagef is a fault of usage. Value and allowed make the fix.
func usagef(value, allowed, format string, args ...any) *fault {
	fix := "want " + allowed
	if value != "" {
		fix = fmt.Sprintf("instead of %.100q use %s", value, allowed)
	}
	return &fault{Code: exitUsage, Reason: "USAGE", Message: fmt.Sprintf(format, args...), Fix: fix}
}

// asUsage makes a fault of usage of what cobra returns before a command runs.
func asUsage(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*fault](err); ok {
		return err
	}
	message, fix := err.Error(), "see '"+cmd.CommandPath()+" --help'"
	if i := strings.LastIndex(message, ": want "); i >= 0 { // our own flags say what they want
		message, fix = message[:i], message[i+2:]
	}
	if strings.Contains(message, "[ca cert key]") {
		fix = "give --ca, --cert and --key together, or none of them"
	}
	return &fault{Code: exitUsage, Reason: "USAGE", Message: message, Fix: fix}
}

// faultOf finds the fault in an error, or makes the one that fits.
func faultOf(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if carrier, ok := errors.AsType[statusCarrier](err); ok && carrier.GRPCStatus().Code() != codes.OK {
		return statusFault(carrier.GRPCStatus())
	}
	out := &fault{Code: exitFailed, Reason: "FAILED", Message: err.Error(), Fix: certs.Explain(err)}
	switch {
	case errors.Is(err, context.Canceled):
		out.Code, out.Reason = exitCancelled, "CANCELLED"
	case errors.Is(err, fs.ErrNotExist):
		out.Code, out.Reason = exitNotFound, "NOT_FOUND"
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrPermission):
		out.Code, out.Reason = exitRefused, "REFUSED"
	}
	if in, ok := errors.AsType[*certs.InputError](err); ok {
		out.Code, out.Reason, out.Fix = exitUsage, "USAGE", "want "+in.Allowed
	}
	return out
}

// statusCarrier is an error of a gRPC call. Found this way, its message comes without "rpc error: code = ...".
type statusCarrier interface {
	error
	GRPCStatus() *status.Status
}

// statusFault reads what the daemon sent, or what gRPC says when there is no daemon.
func statusFault(st *status.Status) *fault {
	out := &fault{Code: exitFailed, Reason: codeReason(st.Code()), Message: st.Message()}
	if int(st.Code()) < len(codeExits) {
		out.Code = codeExits[st.Code()]
	}
	if f, ok := daemon.FailureFromError(st.Err()); ok && len(st.Details()) > 0 {
		out.Reason, out.Fix = string(f.Reason), f.Fix
		if code, ok := reasonExits[f.Reason]; ok {
			out.Code = code
		}
		for _, field := range f.Fields {
			out.Message += fmt.Sprintf("; %s: %s", field.Field, field.Fault)
		}
		return out
	}
	out.Fix = codeFix(st)
	return out
}

// codeReason names a gRPC code as reasons are written.
func codeReason(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' && c != codes.OK {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// codeFix advises on statuses that carry no detail, most of them made on this side.
func codeFix(st *status.Status) string {
	if fix := certs.Explain(errors.New(st.Message())); fix != "" {
		return fix
	}
	switch st.Code() {
	case codes.Unavailable:
		return "check that kvferryd runs and that --addr names it"
	case codes.DeadlineExceeded:
		return "give a longer --timeout, or look at the daemon's log"
	case codes.Unimplemented:
		return "the daemon is of another release; run the same one on both sides"
	case codes.PermissionDenied, codes.Unauthenticated:
		return "give --ca, --cert and --key of the daemon's authority"
	}
	return ""
}

// reportFault is the fault of a migration that ended badly; nil when it ended well.
func reportFault(state, reason, message string) *fault {
	switch state {
	case "CANCELLED":
		return &fault{
			Code: exitCancelled, Reason: "CANCELLED", Message: orDefault(message, "the migration was cancelled"),
			Fix: "the session is whole at its owner; migrate again when it suits",
		}
	case "FAILED":
		out := &fault{Code: exitFailed, Reason: orDefault(reason, "FAILED"), Message: orDefault(message, "the migration failed")}
		if code, ok := reasonExits[daemon.Reason(reason)]; ok {
			out.Code = code
		}
		// The daemon's sentence ends with its advice.
		if what, fix, ok := strings.Cut(out.Message, " (fix: "); ok && strings.HasSuffix(fix, ")") {
			out.Message, out.Fix = what, strings.TrimSuffix(fix, ")")
		}
		return out
	}
	return nil
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
