package certs

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"
)

// Whatever stands in PEM files: an authority is one that issues certificates which verify under it and reads back the same, or is refused
// with the file's name and what to do; the authorities of a file are those that crypto/x509 finds in it.
func FuzzPEM(f *testing.F) {
	ca, err := NewCA("fuzz", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		f.Fatal(err)
	}
	node, err := ca.Issue("r", "n")
	if err != nil {
		f.Fatal(err)
	}
	nodeKey, err := node.KeyPEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.CertPEM(), key)
	f.Add(append(ca.CertPEM(), node.CertPEM()...), key)
	f.Add(node.CertPEM(), nodeKey) // is no authority
	f.Add(append([]byte("text\n"), ca.CertPEM()[:100]...), bytes.Replace(key, []byte("PRIVATE"), []byte("PUBLIC"), 2))
	f.Fuzz(func(t *testing.T, certBytes, keyBytes []byte) {
		pool, got := x509.NewCertPool(), x509.NewCertPool()
		pool.AppendCertsFromPEM(certBytes)
		for _, c := range parseAuthorities(certBytes) {
			got.AddCert(c)
		}
		if !got.Equal(pool) {
			t.Fatal("other authorities than crypto/x509 finds")
		}
		ca, err := ParseCA(certBytes, keyBytes, "ca.crt", "ca.key")
		if err != nil {
			if ca != nil || !as[*FileError](err) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		key, err := ca.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseCA(ca.CertPEM(), key, "ca.crt", "ca.key")
		if err != nil || !again.Cert.Equal(ca.Cert) || !again.key.Equal(ca.key) {
			t.Fatalf("comes back as another: %v", err)
		}
		p, err := ca.Issue("r", "n")
		if err != nil {
			return // it has expired, or may not
		}
		if err := p.Cert.CheckSignatureFrom(ca.Cert); err != nil {
			t.Fatalf("what it issued: %v", err)
		}
	})
}
