package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

const (
	// DefaultCAValidity is how long a new authority lasts.
	DefaultCAValidity = 10 * 365 * 24 * time.Hour
	// NodeValidity is how long a node's certificate lasts, unless its authority ends before.
	NodeValidity = 365 * 24 * time.Hour
	// clockSkew is how far back certificates begin, for hosts whose clocks lag.
	clockSkew = time.Hour
	// maxHosts bounds the host names of a certificate.
	maxHosts = 64
)

// CA is a certificate authority with its key.
type CA struct {
	// Cert is the authority's own certificate, self-signed.
	Cert *x509.Certificate

	key *ecdsa.PrivateKey
}

// NewCA makes an authority with a fresh key. The name, 1 to 64 bytes, is for people. Validity is how long it lasts from
// now; zero means [DefaultCAValidity]; negative is an error. It returns an [*InputError] for a bad name or validity.
func NewCA(name string, validity time.Duration) (*CA, error) {
	if name == "" || len(name) > 64 {
		return nil, &InputError{Field: "CA name", Value: name, Allowed: "1 to 64 bytes"}
	}
	if validity < 0 {
		return nil, &InputError{Field: "validity", Value: validity.String(), Allowed: "0 (ten years) or a positive duration"}
	}
	if validity == 0 {
		validity = DefaultCAValidity
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name, Organization: []string{"kvferry"}},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, key, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, key: key}, nil
}

// Issue makes a node's certificate and key. Hosts are IP addresses or DNS names under which the node is dialled, at most
// 64; none means localhost, 127.0.0.1 and ::1. The certificate lasts [NodeValidity] or as long as the authority,
// whichever is shorter. It returns an [*InputError] for a bad region, node or host, and an error when the authority has
// expired.
func (ca *CA) Issue(region, node string, hosts ...string) (*Pair, error) {
	uri, err := identityURL(region, node)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	end := now.Add(NodeValidity)
	if ca.Cert.NotAfter.Before(end) {
		end = ca.Cert.NotAfter
	}
	if !end.After(now) {
		return nil, fmt.Errorf("issue certificate for %s: the authority %q expired at %s; make a new one with 'kvferry certs init'",
			node, ca.Cert.Subject.CommonName, ca.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	begin := now.Add(-clockSkew)
	if begin.Before(ca.Cert.NotBefore) {
		begin = ca.Cert.NotBefore
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName(node), Organization: []string{"kvferry"}},
		NotBefore:   begin,
		NotAfter:    end,
		URIs:        []*url.URL{uri},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		// Without this an empty basic-constraints extension is left out; with it the leaf says that it is no authority.
		BasicConstraintsValid: true,
	}
	if err := addHosts(template, hosts); err != nil {
		return nil, err
	}
	cert, key, err := sign(template, ca)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: cert, Region: region, Node: node, key: key}, nil
}

// Pool returns a fresh pool that holds the authority and nothing else.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// commonName cuts a node id to what X.520 allows; the identity is in the URI, not here.
func commonName(node string) string { return node[:min(len(node), 64)] }

func addHosts(template *x509.Certificate, hosts []string) error {
	if len(hosts) == 0 {
		hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if len(hosts) > maxHosts {
		return &InputError{Field: "hosts", Value: fmt.Sprint(len(hosts), " hosts"), Allowed: fmt.Sprint("at most ", maxHosts)}
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if !isDNSName(h) {
			return &InputError{Field: "host", Value: h, Allowed: "an IP address or a DNS name, without port"}
		}
		template.DNSNames = append(template.DNSNames, h)
	}
	return nil
}

// isDNSName accepts letter-digit-hyphen names (RFC 1123 section 2.1), with one leading wildcard label.
func isDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimPrefix(s, "*."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
		}
	}
	return true
}

// sign makes a key and a certificate for it, signed by ca or, when ca is nil, by itself.
func sign(template *x509.Certificate, ca *CA) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	// RFC 5280 section 4.1.2.2: positive, at most 20 octets.
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("choose serial number: %w", err)
	}
	template.SerialNumber.Add(template.SerialNumber, big.NewInt(1))
	parent, parentKey := template, key
	if ca != nil {
		parent, parentKey = ca.Cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("create certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse own certificate: %w", err)
	}
	return cert, key, nil
}
