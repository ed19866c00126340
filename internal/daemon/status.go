package daemon

import (
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// errorDomain is ErrorInfo.domain of every error the daemon sends.
const errorDomain = "kvferry.v1"

// Reason is ErrorInfo.reason: what a program branches on. It is stable.
type Reason string

// Reasons. Each has a gRPC code in reasonCodes.
const (
	ReasonInvalid           Reason = "INVALID_ARGUMENT"
	ReasonSessionNotFound   Reason = "SESSION_NOT_FOUND"
	ReasonMigrationNotFound Reason = "MIGRATION_NOT_FOUND"
	ReasonEngineNotFound    Reason = "ENGINE_NOT_FOUND"
	ReasonEngineAmbiguous   Reason = "ENGINE_AMBIGUOUS"
	ReasonEngineMismatch    Reason = "ENGINE_MISMATCH"
	ReasonEngineInUse       Reason = "ENGINE_IN_USE"
	ReasonNodeNotFound      Reason = "NODE_NOT_FOUND"
	ReasonBlockNotFound     Reason = "BLOCK_NOT_FOUND"
	ReasonLayoutMismatch    Reason = "LAYOUT_MISMATCH"
	ReasonStaleGeneration   Reason = "STALE_GENERATION"
	ReasonNotReserved       Reason = "NOT_RESERVED"
	ReasonLeaseExpired      Reason = "LEASE_EXPIRED"
	ReasonLeaseNotFound     Reason = "LEASE_NOT_FOUND"
	ReasonArenaFull         Reason = "ARENA_FULL"
	ReasonArenaSpace        Reason = "ARENA_SPACE"
	ReasonArenaFault        Reason = "ARENA_FAULT"
	ReasonArenaStale        Reason = "ARENA_STALE"
	ReasonNotOwner          Reason = "NOT_OWNER"
	ReasonFenced            Reason = "FENCED"
	ReasonRequestMismatch   Reason = "REQUEST_MISMATCH"
	ReasonAlreadyMigrating  Reason = "ALREADY_MIGRATING"
	ReasonHandOverPending   Reason = "HAND_OVER_PENDING"
	ReasonTooManyMigrations Reason = "TOO_MANY_MIGRATIONS"
	ReasonModeUnavailable   Reason = "MODE_UNAVAILABLE"
	ReasonPeerUnreachable   Reason = "PEER_UNREACHABLE"
	ReasonPeerIdentity      Reason = "PEER_IDENTITY"
	ReasonPeerRestarted     Reason = "PEER_RESTARTED"
	ReasonStalled           Reason = "TRANSFER_STALLED"
	ReasonQueued            Reason = "QUEUE_TIMEOUT"
	ReasonChecksumMismatch  Reason = "CHECKSUM_MISMATCH"
	ReasonVersionMismatch   Reason = "VERSION_MISMATCH"
	ReasonCancelled         Reason = "CANCELLED"
	ReasonDeadline          Reason = "DEADLINE_EXCEEDED"
	ReasonShuttingDown      Reason = "SHUTTING_DOWN"
	ReasonPermission        Reason = "PERMISSION_DENIED"
	ReasonPolicyDenied      Reason = "POLICY_DENIED"
	ReasonTooManyHops       Reason = "TOO_MANY_HOPS"
	ReasonStorage           Reason = "STORAGE"
	ReasonInternal          Reason = "INTERNAL"
)

// reasonCodes is total over the reasons above.
var reasonCodes = map[Reason]codes.Code{
	ReasonInvalid:           codes.InvalidArgument,
	ReasonSessionNotFound:   codes.NotFound,
	ReasonMigrationNotFound: codes.NotFound,
	ReasonEngineNotFound:    codes.NotFound,
	ReasonEngineAmbiguous:   codes.FailedPrecondition,
	ReasonEngineMismatch:    codes.FailedPrecondition,
	ReasonEngineInUse:       codes.FailedPrecondition,
	ReasonNodeNotFound:      codes.NotFound,
	ReasonBlockNotFound:     codes.NotFound,
	ReasonLayoutMismatch:    codes.FailedPrecondition,
	ReasonStaleGeneration:   codes.FailedPrecondition,
	ReasonNotReserved:       codes.FailedPrecondition,
	ReasonLeaseExpired:      codes.FailedPrecondition,
	ReasonLeaseNotFound:     codes.NotFound,
	ReasonArenaFull:         codes.ResourceExhausted,
	ReasonArenaSpace:        codes.ResourceExhausted,
	ReasonArenaFault:        codes.DataLoss,
	ReasonArenaStale:        codes.FailedPrecondition,
	ReasonNotOwner:          codes.FailedPrecondition,
	ReasonFenced:            codes.FailedPrecondition,
	ReasonRequestMismatch:   codes.AlreadyExists,
	ReasonAlreadyMigrating:  codes.Aborted,
	ReasonHandOverPending:   codes.Aborted,
	ReasonTooManyMigrations: codes.ResourceExhausted,
	ReasonModeUnavailable:   codes.FailedPrecondition,
	ReasonPeerUnreachable:   codes.Unavailable,
	ReasonPeerIdentity:      codes.PermissionDenied,
	ReasonPeerRestarted:     codes.Unavailable,
	ReasonStalled:           codes.Unavailable,
	ReasonQueued:            codes.Unavailable,
	ReasonChecksumMismatch:  codes.DataLoss,
	ReasonVersionMismatch:   codes.FailedPrecondition,
	ReasonCancelled:         codes.Canceled,
	ReasonDeadline:          codes.DeadlineExceeded,
	ReasonShuttingDown:      codes.Unavailable,
	ReasonPermission:        codes.PermissionDenied,
	ReasonPolicyDenied:      codes.PermissionDenied,
	ReasonTooManyHops:       codes.FailedPrecondition,
	ReasonStorage:           codes.ResourceExhausted,
	ReasonInternal:          codes.Internal,
}

// Failure is an error with what the other side needs: a stable reason, a sentence that says what happened, what to do
// about it, and data.
type Failure struct {
	// Reason is stable; programs branch on it.
	Reason Reason
	// Message says what happened, for a person.
	Message string
	// Fix says what to do; may be empty.
	Fix string
	// Meta is data, such as migration_id; may be nil.
	Meta map[string]string
	// Fields are the faults of single fields; may be nil.
	Fields []FieldFault
	// Err is the cause; may be nil. It does not travel.
	Err error
}

// FieldFault is what is wrong with one field.
type FieldFault struct {
	// Field is its name as in the request or layout.
	Field string
	// Fault says what is wrong and what to do.
	Fault string
}

func (f *Failure) Error() string {
	var b strings.Builder
	b.WriteString(f.Message)
	for _, ff := range f.Fields {
		fmt.Fprintf(&b, "; %s: %s", ff.Field, ff.Fault)
	}
	if f.Fix != "" {
		fmt.Fprintf(&b, " (fix: %s)", f.Fix)
	}
	return b.String()
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Is matches another *Failure by reason.
func (f *Failure) Is(target error) bool {
	t, ok := target.(*Failure)
	return ok && t.Reason == f.Reason
}

// Bounds of a failure's texts, bytes, and of their number. Callers and peers are quoted in them, and reports that are kept hold them.
const (
	maxFaultText  = 1024
	maxFaultParts = 64
)

// shortened is s, or its beginning.
func shortened(s string) string {
	if len(s) <= maxFaultText {
		return s
	}
	return strings.ToValidUTF8(s[:maxFaultText-3], "") + "..."
}

// heard is a text of a peer's, fit to be kept and shown.
func heard(s string) string {
	return shortened(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 2*maxFaultText)], "?")))
}

func failf(r Reason, fix, format string, args ...any) *Failure {
	f := &Failure{Reason: r, Fix: shortened(fix), Message: shortened(fmt.Sprintf(format, args...))}
	for _, a := range args {
		if err, ok := a.(error); ok {
			f.Err = err
		}
	}
	return f
}

// invalid is the failure of one field of a request.
func invalid(field string, value any, allowed string) *Failure {
	return &Failure{
		Reason: ReasonInvalid, Message: shortened(fmt.Sprintf("%s = %v is not allowed", field, value)),
		Fields: []FieldFault{{field, "must be " + allowed}},
	}
}

func (f *Failure) with(key, value string) *Failure {
	if f.Meta == nil {
		f.Meta = map[string]string{}
	}
	f.Meta[key] = value
	return f
}

// proto returns f as it travels: in gRPC statuses and on the control stream between daemons.
func (f *Failure) proto() *statuspb.Status {
	code, ok := reasonCodes[f.Reason]
	if !ok {
		code = codes.Internal
	}
	st := &statuspb.Status{Code: int32(code), Message: shortened(f.Message)}
	add := func(m proto.Message) {
		if a, err := anypb.New(m); err == nil {
			st.Details = append(st.Details, a)
		}
	}
	add(&errdetails.ErrorInfo{Reason: string(f.Reason), Domain: errorDomain, Metadata: f.Meta})
	if len(f.Fields) > 0 && f.Reason == ReasonInvalid {
		br := &errdetails.BadRequest{}
		for _, ff := range f.Fields[:min(len(f.Fields), maxFaultParts)] {
			br.FieldViolations = append(br.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: shortened(ff.Field), Description: shortened(ff.Fault)})
		}
		add(br)
	} else if len(f.Fields) > 0 {
		pf := &errdetails.PreconditionFailure{}
		for _, ff := range f.Fields[:min(len(f.Fields), maxFaultParts)] {
			pf.Violations = append(pf.Violations, &errdetails.PreconditionFailure_Violation{Type: string(f.Reason), Subject: shortened(ff.Field), Description: shortened(ff.Fault)})
		}
		add(pf)
	}
	if f.Fix != "" {
		add(&errdetails.Help{Links: []*errdetails.Help_Link{{Description: f.Fix}}})
	}
	return st
}

// failureFromProto is proto's inverse. An unknown reason is kept; a status without ErrorInfo is internal. What a peer says is
// shortened, and control characters in it are replaced: it is logged, shown and kept.
func failureFromProto(st *statuspb.Status) *Failure {
	f := &Failure{Reason: ReasonInternal, Message: heard(st.GetMessage())}
	for _, a := range st.GetDetails()[:min(len(st.GetDetails()), maxFaultParts)] {
		m, err := a.UnmarshalNew()
		if err != nil {
			continue
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			f.Reason = Reason(heard(m.GetReason()))
			for k, v := range m.GetMetadata() {
				if len(f.Meta) < maxFaultParts {
					f.with(heard(k), heard(v))
				}
			}
		case *errdetails.BadRequest:
			for _, v := range m.GetFieldViolations() {
				f.heardOf(v.GetField(), v.GetDescription())
			}
		case *errdetails.PreconditionFailure:
			for _, v := range m.GetViolations() {
				f.heardOf(v.GetSubject(), v.GetDescription())
			}
		case *errdetails.Help:
			for _, l := range m.GetLinks() {
				f.Fix = heard(l.GetDescription())
			}
		}
	}
	return f
}

func (f *Failure) heardOf(field, fault string) {
	if len(f.Fields) < maxFaultParts {
		f.Fields = append(f.Fields, FieldFault{heard(field), heard(fault)})
	}
}

// FailureFromError returns the Failure that a gRPC error of a kvferry daemon carries. ok is false when err is not a
// gRPC status; a status without details gets the reason that fits its code best.
func FailureFromError(err error) (f *Failure, ok bool) {
	st, ok := status.FromError(err)
	if !ok || st.Code() == codes.OK {
		return nil, false
	}
	f = failureFromProto(st.Proto())
	if f.Reason == ReasonInternal && len(st.Details()) == 0 {
		switch st.Code() {
		case codes.Unavailable:
			f.Reason, f.Fix = ReasonPeerUnreachable, "check that kvferryd runs and that the address and certificates are right"
		case codes.Canceled:
			f.Reason = ReasonCancelled
		case codes.DeadlineExceeded:
			f.Reason = ReasonDeadline
		case codes.PermissionDenied, codes.Unauthenticated:
			f.Reason = ReasonPermission
		case codes.InvalidArgument:
			f.Reason = ReasonInvalid
		default:
		}
	}
	return f, true
}

// toStatus is the one way an error leaves a service.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromProto(classify(err).proto()).Err()
}
