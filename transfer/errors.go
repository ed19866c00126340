package transfer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// Sentinels for the branches that callers take. errors.Is finds them in the
// errors of this package whether the fault arose here or at the peer; a
// *RemoteError in the chain, or ChunkError.Remote, tells the two apart.
var (
	// ErrChecksumMismatch: a page did not verify. A Sink returns an error that
	// wraps it; such a page is asked for once more, and the second mismatch
	// fails the transfer.
	ErrChecksumMismatch = errors.New("page checksum mismatch")
	// ErrStaleGeneration: a descriptor names a block that has been reused.
	ErrStaleGeneration = errors.New("stale generation")
	// ErrLeaseExpired: the source no longer holds the blocks for the transfer.
	ErrLeaseExpired = errors.New("lease expired")
	// ErrUnknownMemory: no such memory is registered.
	ErrUnknownMemory = errors.New("unknown memory")
	// ErrOutOfRange: a descriptor reaches beyond its memory.
	ErrOutOfRange = errors.New("descriptor out of range")
	// ErrNotPermitted: the memory may not be read, or not be written, by peers.
	ErrNotPermitted = errors.New("operation not permitted on this memory")
	// ErrCancelled: the transfer was cancelled, here or at the peer.
	ErrCancelled = errors.New("transfer cancelled")
	// ErrStalled: no page arrived within the progress timeout.
	ErrStalled = errors.New("transfer stalled")
	// ErrQueued: the source had the transfer wait its turn for longer than its queue
	// timeout. The error is context.DeadlineExceeded, too.
	ErrQueued = errors.New("queued for too long")
	// ErrPeerGone: the link has no connection left and could not be restored.
	ErrPeerGone = errors.New("peer gone")
	// ErrPeerRestarted: the peer's incarnation changed.
	ErrPeerRestarted = errors.New("peer restarted")
	// ErrPeerIdentity: the peer's certificate names another node.
	ErrPeerIdentity = errors.New("unexpected peer identity")
	// ErrCertificate: a certificate was refused, ours by the peer or the peer's
	// by us. The error is a *CertificateError.
	ErrCertificate = errors.New("certificate refused")
	// ErrUnreachable: nothing answered at the address in time.
	ErrUnreachable = errors.New("peer unreachable over UDP")
	// ErrVersion: the peer speaks another protocol version. The error is a
	// *VersionError.
	ErrVersion = errors.New("protocol version mismatch")
	// ErrProtocol: the peer sent what the protocol does not allow.
	ErrProtocol = errors.New("protocol violation")
	// ErrBusy: a bound on concurrent work was reached.
	ErrBusy = errors.New("too much in progress")
	// ErrAnswerLost: the connection that carried a call broke before the answer
	// came; whether the peer acted on the call is unknown.
	ErrAnswerLost = errors.New("answer lost")
	// ErrClosed: the agent, link or transfer is closed.
	ErrClosed = errors.New("closed")
)

// A Code is an error on the wire: the QUIC application code of a closed
// connection, the stream code of a reset stream, the code of a refusal or of a
// failed call or transfer. Codes below CodeUser belong to this package.
type Code uint16

// The codes of this package. Their numbers are part of the protocol.
const (
	CodeOK Code = iota // an orderly end
	CodeInternal
	CodeClosed
	CodeVersion
	CodePeerIdentity
	CodePeerRestarted
	CodeProtocol
	CodeChecksum
	CodeStaleGeneration
	CodeUnknownMemory
	CodeOutOfRange
	CodeNotPermitted
	CodeLeaseExpired
	CodeCancelled
	CodeStalled
	CodeStripeLost
	CodeBusy
	CodeUnknownTransfer
	CodePeerGone
	CodeTimeout
	CodeHandler
	CodeHedged // the chunk goes over another stripe
	codeEnd

	// CodeUser is the first code that a Handler may use as its own.
	CodeUser Code = 1024
)

// String names the code.
func (c Code) String() string {
	switch c {
	case CodeOK:
		return "ok"
	case CodeInternal:
		return "internal error"
	case CodeClosed:
		return "closed"
	case CodeVersion:
		return "version mismatch"
	case CodePeerIdentity:
		return "unexpected identity"
	case CodePeerRestarted:
		return "peer restarted"
	case CodeProtocol:
		return "protocol violation"
	case CodeChecksum:
		return "checksum mismatch"
	case CodeStaleGeneration:
		return "stale generation"
	case CodeUnknownMemory:
		return "unknown memory"
	case CodeOutOfRange:
		return "out of range"
	case CodeNotPermitted:
		return "not permitted"
	case CodeLeaseExpired:
		return "lease expired"
	case CodeCancelled:
		return "cancelled"
	case CodeStalled:
		return "stalled"
	case CodeStripeLost:
		return "stripe lost"
	case CodeBusy:
		return "busy"
	case CodeUnknownTransfer:
		return "unknown transfer"
	case CodePeerGone:
		return "peer gone"
	case CodeTimeout:
		return "timeout"
	case CodeHandler:
		return "handler error"
	case CodeHedged:
		return "hedged"
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// sentinel returns the error that a code stands for, nil for a code that stands
// for none. codeOf is its inverse; a test holds both to the list of codes.
func (c Code) sentinel() error {
	switch c {
	case CodeClosed:
		return ErrClosed
	case CodeVersion:
		return ErrVersion
	case CodePeerIdentity:
		return ErrPeerIdentity
	case CodePeerRestarted:
		return ErrPeerRestarted
	case CodeProtocol:
		return ErrProtocol
	case CodeChecksum:
		return ErrChecksumMismatch
	case CodeStaleGeneration:
		return ErrStaleGeneration
	case CodeUnknownMemory:
		return ErrUnknownMemory
	case CodeOutOfRange:
		return ErrOutOfRange
	case CodeNotPermitted:
		return ErrNotPermitted
	case CodeLeaseExpired:
		return ErrLeaseExpired
	case CodeCancelled:
		return ErrCancelled
	case CodeStalled:
		return ErrStalled
	case CodeBusy:
		return ErrBusy
	case CodePeerGone:
		return ErrPeerGone
	case CodeTimeout:
		return context.DeadlineExceeded
	}
	return nil // CodeOK, CodeInternal, CodeStripeLost, CodeUnknownTransfer, CodeHandler, CodeHedged, codes of the user
}

// codeOf returns the code that tells the peer about err.
func codeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	if re, ok := errors.AsType[*RemoteError](err); ok {
		return re.Code
	}
	for c := CodeOK; c < codeEnd; c++ {
		if s := c.sentinel(); s != nil && errors.Is(err, s) {
			return c
		}
	}
	if errors.Is(err, wire.ErrMalformed) {
		return CodeProtocol
	}
	if errors.Is(err, context.Canceled) {
		return CodeCancelled
	}
	return CodeInternal
}

// A RemoteError came from the peer. errors.Is matches the sentinel of its code.
//
// A Handler that wants its caller to see a code and details of its own returns
// a *RemoteError with a code of CodeUser or more; every other error arrives at
// the caller with the code of the sentinel it wraps, or CodeHandler.
type RemoteError struct {
	Code    Code
	Message string // at most wire.MaxMessage bytes arrive
	Details []byte // opaque, at most wire.MaxDetails bytes
}

func (e *RemoteError) Error() string {
	if e.Message == "" {
		return "peer: " + e.Code.String()
	}
	return "peer: " + e.Message
}

// Is reports whether target is the sentinel that the code stands for.
func (e *RemoteError) Is(target error) bool {
	s := e.Code.sentinel()
	return s != nil && s == target
}

// A ChunkError is a fault of one page or descriptor of a transfer.
type ChunkError struct {
	Transfer uint64
	Pair     int  // index of the descriptor pair, -1 when of none
	Page     int  // page in the descriptor, -1 when of none
	Remote   bool // found by the peer
	Err      error
}

func (e *ChunkError) Error() string {
	where := "here"
	if e.Remote {
		where = "at the peer"
	}
	switch {
	case e.Pair < 0:
		return fmt.Sprintf("transfer %d, %s: %v", e.Transfer, where, e.Err)
	case e.Page < 0:
		return fmt.Sprintf("transfer %d, descriptor %d, %s: %v", e.Transfer, e.Pair, where, e.Err)
	}
	return fmt.Sprintf("transfer %d, descriptor %d, page %d, %s: %v", e.Transfer, e.Pair, e.Page, where, e.Err)
}

// Unwrap returns Err.
func (e *ChunkError) Unwrap() error { return e.Err }

// A FieldError says which field of a Config, Memory, descriptor or option is
// wrong, and how to put it right.
type FieldError struct {
	Field   string
	Value   any
	Allowed string
	Fix     string
	Err     error // a sentinel where one applies, or nil
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %v, allowed: %s; %s", e.Field, e.Value, e.Allowed, e.Fix)
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// A VersionError says which protocol versions met. It matches ErrVersion.
type VersionError struct {
	Ours, Theirs uint16
	Remote       bool // the peer refused us
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("protocol version mismatch: this node speaks %d, the peer %d; run the same release on both", e.Ours, e.Theirs)
}

// Is reports whether target is ErrVersion.
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// A CertificateError says whose certificate was refused, why, and what to do.
// It matches ErrCertificate.
type CertificateError struct {
	Remote bool // the peer refused ours; otherwise we refused the peer's
	Fix    string
	Err    error
}

func (e *CertificateError) Error() string {
	if e.Remote {
		return fmt.Sprintf("the peer refused our certificate: %v; %s", e.Err, e.Fix)
	}
	return fmt.Sprintf("the peer's certificate was refused: %v; %s", e.Err, e.Fix)
}

// Is reports whether target is ErrCertificate.
func (e *CertificateError) Is(target error) bool { return target == ErrCertificate }

// Unwrap returns Err.
func (e *CertificateError) Unwrap() error { return e.Err }

// connError turns an error of a QUIC connection into one of this package.
func connError(err error) error {
	if app, ok := errors.AsType[*quic.ApplicationError](err); ok {
		c := Code(min(uint64(app.ErrorCode), uint64(CodeInternal)))
		if app.ErrorCode < quic.ApplicationErrorCode(codeEnd) {
			c = Code(app.ErrorCode)
		}
		if !app.Remote {
			return fmt.Errorf("connection closed: %s: %w", app.ErrorMessage, ErrClosed)
		}
		return &RemoteError{Code: c, Message: app.ErrorMessage}
	}
	if te, ok := errors.AsType[*quic.TransportError](err); ok && te.ErrorCode.IsCryptoError() {
		return certificateError(te)
	}
	if te, ok := errors.AsType[*quic.TransportError](err); ok && te.Remote && te.ErrorCode == quic.ConnectionRefused {
		return fmt.Errorf("the peer takes no connection at the moment: %w: %w", ErrBusy, err)
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

func certificateError(te *quic.TransportError) error {
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](te); ok {
		return &CertificateError{Remote: te.Remote, Err: cert.Err, Fix: "have both nodes' certificates issued by one CA"}
	}
	alert := tls.AlertError(uint8(te.ErrorCode - 0x100))
	fix := "look at the TLS set-up of both nodes"
	switch uint8(alert) {
	case 42, 43, 46, 48, 116: // bad, unsupported, unknown certificate; unknown CA; certificate required
		fix = "have this node's certificate issued by the CA that the peer trusts"
	case 44, 45: // revoked, expired
		fix = "renew this node's certificate and check both clocks"
	case 120: // no application protocol
		fix = "this port does not belong to a kvferry agent of this version"
	}
	return &CertificateError{Remote: te.Remote, Err: alert, Fix: fix}
}

// verifyChain checks a peer's chain against roots without a host name: nodes are
// named by URI, and the identity is compared by the caller.
func verifyChain(certs []*x509.Certificate, opts x509.VerifyOptions) error {
	if len(certs) == 0 {
		return errors.New("no certificate")
	}
	opts.Intermediates = x509.NewCertPool()
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := certs[0].Verify(opts)
	return err
}

// failure encodes err for the peer.
func failure(err error) []byte {
	f := wire.Failure{Code: uint16(codeOf(err)), Pair: wire.NoIndex, Page: wire.NoIndex, Message: clip(err.Error(), wire.MaxMessage)}
	if ce, ok := errors.AsType[*ChunkError](err); ok {
		f.Message = clip(ce.Err.Error(), wire.MaxMessage)
		if ce.Pair >= 0 {
			f.Pair = uint32(ce.Pair)
		}
		if ce.Page >= 0 {
			f.Page = uint32(ce.Page)
		}
	}
	if re, ok := errors.AsType[*RemoteError](err); ok {
		f.Message = clip(re.Message, wire.MaxMessage)
		f.Details = re.Details[:min(len(re.Details), wire.MaxDetails)]
	}
	b, encErr := wire.AppendFailure(nil, f)
	if encErr != nil { // clip leaves nothing that can fail
		b, _ = wire.AppendFailure(nil, wire.Failure{Code: f.Code, Pair: f.Pair, Page: f.Page})
	}
	return b
}

// remoteFailure decodes the peer's failure payload into an error of transfer id.
func remoteFailure(id uint64, payload []byte) error {
	f, err := wire.DecodeFailure(payload)
	if err != nil {
		return fmt.Errorf("decode failure: %w: %w", ErrProtocol, err)
	}
	ce := &ChunkError{Transfer: id, Pair: -1, Page: -1, Remote: true, Err: &RemoteError{Code: Code(f.Code), Message: f.Message, Details: f.Details}}
	if f.Pair != wire.NoIndex {
		ce.Pair = int(f.Pair)
	}
	if f.Page != wire.NoIndex {
		ce.Page = int(f.Page)
	}
	return ce
}
