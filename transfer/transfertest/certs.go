// Package transfertest makes certificates for tests that run agents of package
// transfer.
//
// # Usage
//
//	ca := transfertest.NewCA()
//	cfg.Name, cfg.TLS = transfertest.Name("us-east", "a"), ca.Node("us-east", "a")
//
// # Concurrency
//
// A CA is safe for concurrent use.
//
// # Limitations
//
// For tests only: it panics where a test would fail, and certificates are valid
// from 1999, so that they serve in a bubble of testing/synctest, whose clock
// starts in 2000.
package transfertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// A CA issues certificates to nodes.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

// NewCA returns a CA with a key of its own.
func NewCA() *CA {
	key := newKey()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: notBefore, NotAfter: notAfter,
	}
	cert := sign(t, t, key, key)
	ca := &CA{cert: cert, key: key, pool: x509.NewCertPool()}
	ca.pool.AddCert(cert)
	return ca
}

// Name returns the name of a node as its certificate gives it:
// spiffe://kvferry/region/<region>/node/<node>.
func Name(region, node string) transfer.PeerID {
	return transfer.PeerID(nodeURI(region, node).String())
}

// Pool returns a pool that holds the CA.
func (ca *CA) Pool() *x509.CertPool { return ca.pool }

// Node returns what transfer.Config.TLS needs for a node: a fresh certificate
// with its URI and the CA for both directions.
func (ca *CA) Node(region, node string) *tls.Config {
	key := newKey()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: node}, URIs: []*url.URL{nodeURI(region, node)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   notBefore, NotAfter: notAfter,
	}
	cert := sign(t, ca.cert, key, ca.key)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}},
		RootCAs:      ca.pool, ClientCAs: ca.pool, MinVersion: tls.VersionTLS13,
	}
}

var (
	notBefore = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

func nodeURI(region, node string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: "kvferry", Path: fmt.Sprintf("/region/%s/node/%s", region, node)}
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func sign(t, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), by)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return cert
}
