package certs

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// uriPrefix begins every identity.
const uriPrefix = "spiffe://kvferry/region/"

// maxName bounds a region and a node id, bytes.
const maxName = 128

// Identity reads a certificate's region and node. It returns [ErrNoIdentity] when there is no URI and an
// [*IdentityError] when there are several or the only one is not of the form that the package documents.
// It says nothing about who signed the certificate.
func Identity(cert *x509.Certificate) (region, node string, err error) {
	if cert == nil || len(cert.URIs) == 0 {
		return "", "", ErrNoIdentity
	}
	if len(cert.URIs) > 1 {
		return "", "", &IdentityError{URI: cert.URIs[0].String(), Reason: fmt.Sprintf("is one of %d URIs", len(cert.URIs))}
	}
	return ParseIdentity(cert.URIs[0].String())
}

// ParseIdentity reads an identity's region and node. It accepts exactly what [FormatIdentity] writes; anything else is
// an [*IdentityError].
func ParseIdentity(uri string) (region, node string, err error) {
	bad := func(reason string) (string, string, error) {
		return "", "", &IdentityError{URI: uri, Reason: reason}
	}
	rest, ok := strings.CutPrefix(uri, uriPrefix)
	if !ok {
		return bad("does not begin with " + uriPrefix)
	}
	region, rest, ok = strings.Cut(rest, "/")
	if !ok {
		return bad("has no /node/ part")
	}
	node, ok = strings.CutPrefix(rest, "node/")
	if !ok {
		return bad("has no /node/ part")
	}
	if reason := badName(region); reason != "" {
		return bad("region " + reason)
	}
	if reason := badName(node); reason != "" {
		return bad("node " + reason)
	}
	return region, node, nil
}

// FormatIdentity writes the identity of a node. It returns an [*InputError] for a region or node that is not 1 to 128
// bytes of [a-zA-Z0-9._-], or is "." or "..".
func FormatIdentity(region, node string) (string, error) {
	const allowed = "1 to 128 of [a-zA-Z0-9._-], and neither \".\" nor \"..\""
	if badName(region) != "" {
		return "", &InputError{Field: "region", Value: region, Allowed: allowed}
	}
	if badName(node) != "" {
		return "", &InputError{Field: "node", Value: node, Allowed: allowed}
	}
	return uriPrefix + region + "/node/" + node, nil
}

// identityURL is FormatIdentity as certificates want it.
func identityURL(region, node string) (*url.URL, error) {
	s, err := FormatIdentity(region, node)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "spiffe", Host: "kvferry", Path: strings.TrimPrefix(s, "spiffe://kvferry")}, nil
}

// badName says what is wrong with a region or node id, or nothing.
func badName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxName:
		return fmt.Sprintf("has %d bytes, more than %d", len(s), maxName)
	case s == "." || s == "..":
		return "is a relative path element"
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Sprintf("has %q, which is not of [a-zA-Z0-9._-]", c)
		}
	}
	return ""
}
