package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// Files are the paths of PEM files; all three are required.
type Files struct {
	// CA holds the authorities that are trusted; at least one certificate.
	CA string
	// Cert holds our certificate, then any intermediates.
	Cert string
	// Key holds our key.
	Key string
}

// Material is what a node needs for mutual TLS.
type Material struct {
	// Roots are the authorities trusted for peers, and nobody else: the system's are not used.
	Roots *x509.CertPool
	// Authorities are the certificates in Roots, for showing.
	Authorities []*x509.Certificate
	// Certificate is our own, with key.
	Certificate tls.Certificate
	// Region and Node are our own identity.
	Region, Node string
}

// Load reads and checks certificates: the key belongs to the certificate, the certificate is of the authority and valid
// at this moment, and it carries an identity. It returns a [*FileError] that names the file and the fix, and wraps an
// [*IdentityError], [ErrNoIdentity] or an error of crypto/x509 where that is the cause.
func Load(f Files) (*Material, error) {
	for _, c := range []struct{ field, path string }{{"CA file", f.CA}, {"certificate file", f.Cert}, {"key file", f.Key}} {
		if c.path == "" {
			return nil, &InputError{Field: c.field, Value: "", Allowed: "the path of a PEM file; CA, certificate and key go together"}
		}
	}
	const fix = "make certificates with 'kvferry certs init' and 'kvferry certs issue'"
	caBytes, err := readFile(f.CA, fix)
	if err != nil {
		return nil, err
	}
	certBytes, err := readFile(f.Cert, fix)
	if err != nil {
		return nil, err
	}
	keyBytes, err := readFile(f.Key, fix)
	if err != nil {
		return nil, err
	}
	roots, authorities := x509.NewCertPool(), parseAuthorities(caBytes)
	for _, c := range authorities {
		roots.AddCert(c)
	}
	if len(authorities) == 0 {
		return nil, &FileError{Op: "parse", Path: f.CA, Err: errors.New("no certificate found"), Fix: "give the ca.crt that 'kvferry certs init' wrote"}
	}
	pair, err := tls.X509KeyPair(certBytes, keyBytes)
	if err != nil {
		return nil, &FileError{Op: "parse", Path: f.Cert + " with " + f.Key, Err: err, Fix: "the two must be PEM and belong together"}
	}
	if err := verify(pair.Leaf, pair.Certificate[1:], roots, x509.ExtKeyUsageAny); err != nil {
		return nil, &FileError{Op: "verify", Path: f.Cert, Err: err, Fix: "it must be signed by " + f.CA + " and valid; issue a new one with 'kvferry certs issue'"}
	}
	region, node, err := Identity(pair.Leaf)
	if err != nil {
		return nil, &FileError{Op: "verify", Path: f.Cert, Err: err, Fix: "issue one with 'kvferry certs issue'"}
	}
	return &Material{Roots: roots, Authorities: authorities, Certificate: pair, Region: region, Node: node}, nil
}

// parseAuthorities returns the certificates of a PEM file; what is none is left out, as [x509.CertPool.AppendCertsFromPEM] does.
func parseAuthorities(data []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// ServerConfig is for a listener: TLS 1.3, a client certificate is required, of our authority and with an identity.
// [Identity] of the connection's first peer certificate then says who calls.
func (m *Material) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		Certificates:     []tls.Certificate{m.Certificate},
		ClientCAs:        m.Roots,
		ClientAuth:       tls.RequireAndVerifyClientCert,
		VerifyConnection: hasIdentity,
	}
}

// ClientConfig is for dialling a node of which only the address is known: TLS 1.3, the server's certificate must be of
// our authority, name the host that is dialled, and carry an identity.
func (m *Material) ClientConfig() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		Certificates:     []tls.Certificate{m.Certificate},
		RootCAs:          m.Roots,
		VerifyConnection: hasIdentity,
	}
}

// PeerConfig is for dialling a node whose identity is known: TLS 1.3, the server's certificate must be of our authority
// and carry exactly this region and node. The host name is not looked at, because the identity says more. An empty
// region means any region; an empty node means any node.
func (m *Material) PeerConfig(region, node string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.Certificate},
		RootCAs:      m.Roots,
		// The standard verification insists on a host name. VerifyConnection below verifies the chain and the
		// identity instead; it runs on every handshake, resumed ones included.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return ErrNoIdentity
			}
			leaf := state.PeerCertificates[0]
			rest := make([][]byte, 0, len(state.PeerCertificates)-1)
			for _, c := range state.PeerCertificates[1:] {
				rest = append(rest, c.Raw)
			}
			if err := verify(leaf, rest, m.Roots, x509.ExtKeyUsageServerAuth); err != nil {
				return fmt.Errorf("verify peer: %w", err)
			}
			gotRegion, gotNode, err := Identity(leaf)
			if err != nil {
				return fmt.Errorf("verify peer: %w", err)
			}
			if region != "" && gotRegion != region || node != "" && gotNode != node {
				return &PeerError{WantRegion: region, WantNode: node, GotRegion: gotRegion, GotNode: gotNode}
			}
			return nil
		},
	}
}

// PeerError is a peer that proved to be another node than the one dialled.
type PeerError struct {
	// WantRegion and WantNode are who was dialled; empty means anyone.
	WantRegion, WantNode string
	// GotRegion and GotNode are who answered.
	GotRegion, GotNode string
}

// Error names both.
func (e *PeerError) Error() string {
	return fmt.Sprintf("peer is node %q of region %q, want node %q of region %q; check the address and the peer's certificate",
		e.GotNode, e.GotRegion, e.WantNode, e.WantRegion)
}

// hasIdentity refuses a verified peer without an identity.
func hasIdentity(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return ErrNoIdentity
	}
	_, _, err := Identity(state.PeerCertificates[0])
	return err
}

func verify(leaf *x509.Certificate, rest [][]byte, roots *x509.CertPool, usage x509.ExtKeyUsage) error {
	intermediates := x509.NewCertPool()
	for _, der := range rest {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("parse intermediate: %w", err)
		}
		intermediates.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}
