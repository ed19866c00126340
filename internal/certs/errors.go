package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// ErrNoIdentity is returned by [Identity] for a certificate without a URI.
var ErrNoIdentity = errors.New("certificate has no kvferry identity: it carries no URI; issue one with 'kvferry certs issue'")

// IdentityError says why a URI is not a kvferry identity.
type IdentityError struct {
	// URI is what was found, as it is.
	URI string
	// Reason says what is wrong with it.
	Reason string
}

// Error names the URI, the fault and the form that is allowed.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("identity %.200q: %s; want spiffe://kvferry/region/<region>/node/<node>", e.URI, e.Reason)
}

// InputError is a value that can't be used, with what is allowed and how to fix it.
type InputError struct {
	// Field names the value.
	Field string
	// Value is what was given.
	Value string
	// Allowed says what may be given.
	Allowed string
}

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s %.200q: want %s", e.Field, e.Value, e.Allowed)
}

// FileError is a certificate or key file that can't be read, written or used.
type FileError struct {
	// Op is "read", "write", "parse" or "verify".
	Op string
	// Path is the file.
	Path string
	// Fix says what to do.
	Fix string
	// Err is the cause.
	Err error
}

// Error names the file, the cause and the fix.
func (e *FileError) Error() string {
	s := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Explain says what to do about an error of a TLS handshake or of this package: the empty string when it knows no
// advice. It also recognises what the peer's alert says ("remote error: tls: ..."), which arrives as text.
func Explain(err error) string {
	if err == nil {
		return ""
	}
	if file, ok := errors.AsType[*FileError](err); ok && file.Fix != "" {
		return file.Fix
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the peer's certificate is of another authority: give both sides certificates of one CA, and that CA's ca.crt"
	}
	if inv, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if inv.Reason == x509.Expired {
			return "the peer's certificate is expired or not valid yet: check both clocks, then issue a new one with 'kvferry certs issue'"
		}
		return "the peer's certificate can't be used here: issue a new one with 'kvferry certs issue'"
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("the peer's certificate does not name %q: issue it with '--host %s'", host.Host, host.Host)
	}
	if _, ok := errors.AsType[*IdentityError](err); ok || errors.Is(err, ErrNoIdentity) {
		return "issue the peer's certificate with 'kvferry certs issue --region REGION --node NODE'"
	}
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return explainAlert(alert.Error())
	}
	return explainAlert(err.Error())
}

// explainAlert matches the texts of crypto/tls alerts, which gRPC and QUIC pass on without their types.
func explainAlert(text string) string {
	for _, c := range []struct{ part, fix string }{
		{"certificate signed by unknown authority", "the peer's certificate is of another authority: give both sides certificates of one CA, and that CA's ca.crt"},
		{"tls: unknown certificate authority", "the peer does not know our certificate's authority: give both sides certificates of one CA"},
		{"tls: certificate required", "the peer wants a client certificate: give --ca, --cert and --key"},
		{"tls: expired certificate", "our certificate is expired: issue a new one with 'kvferry certs issue'"},
		{"certificate has expired or is not yet valid", "the peer's certificate is expired or not valid yet: check both clocks, then issue a new one with 'kvferry certs issue'"},
		{"tls: bad certificate", "the peer refused our certificate: check that both are of one CA and neither is expired"},
		{"first record does not look like a TLS handshake", "the address does not speak TLS: check the port, or leave out --ca, --cert and --key"},
	} {
		if strings.Contains(text, c.part) {
			return c.fix
		}
	}
	return ""
}
