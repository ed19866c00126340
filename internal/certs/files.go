package certs

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxFile bounds a PEM file that is read, bytes.
const maxFile = 1 << 20

// Pair is a node's certificate with its key.
type Pair struct {
	// Cert is the certificate.
	Cert *x509.Certificate
	// Region and Node are what it says.
	Region, Node string

	key *ecdsa.PrivateKey
}

// TLS returns the pair as crypto/tls wants it.
func (p *Pair) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{p.Cert.Raw}, PrivateKey: p.key, Leaf: p.Cert}
}

// Material joins the pair with its authority, as [Load] does from files.
func (p *Pair) Material(ca *CA) *Material {
	return &Material{Roots: ca.Pool(), Authorities: []*x509.Certificate{ca.Cert}, Certificate: p.TLS(), Region: p.Region, Node: p.Node}
}

// CertPEM returns the certificate as PEM.
func (p *Pair) CertPEM() []byte { return certPEM(p.Cert) }

// KeyPEM returns the key as PKCS #8 PEM. It is a secret.
func (p *Pair) KeyPEM() ([]byte, error) { return keyPEM(p.key) }

// Save writes dir/<node>.crt (0644) and dir/<node>.key (0600), making dir (0700) when it is not there. It never
// overwrites: an existing file is a [*FileError] that wraps [os.ErrExist].
func (p *Pair) Save(dir string) error { return save(dir, p.Node, p.Cert, p.key) }

// CertPEM returns the authority's certificate as PEM.
func (ca *CA) CertPEM() []byte { return certPEM(ca.Cert) }

// KeyPEM returns the authority's key as PKCS #8 PEM. It is a secret.
func (ca *CA) KeyPEM() ([]byte, error) { return keyPEM(ca.key) }

// Save writes dir/ca.crt (0644) and dir/ca.key (0600), making dir (0700) when it is not there. It never overwrites: an
// existing file is a [*FileError] that wraps [os.ErrExist].
func (ca *CA) Save(dir string) error { return save(dir, "ca", ca.Cert, ca.key) }

// LoadCA reads an authority that [CA.Save] wrote. It returns a [*FileError].
func LoadCA(dir string) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	const fix = "make an authority with 'kvferry certs init --dir DIR'"
	certBytes, err := readFile(certPath, fix)
	if err != nil {
		return nil, err
	}
	keyBytes, err := readFile(keyPath, "only the host that made the authority can issue certificates; copy ca.key there or "+fix)
	if err != nil {
		return nil, err
	}
	return ParseCA(certBytes, keyBytes, certPath, keyPath)
}

// ParseCA reads an authority from PEM. The names stand for the two inputs in errors. It returns a [*FileError].
func ParseCA(certBytes, keyBytes []byte, certName, keyName string) (*CA, error) {
	pair, err := tls.X509KeyPair(certBytes, keyBytes)
	if err != nil {
		return nil, &FileError{Op: "parse", Path: certName + " with " + keyName, Err: err, Fix: "the two must be PEM and belong together"}
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, &FileError{Op: "parse", Path: keyName, Err: fmt.Errorf("key is a %T", pair.PrivateKey), Fix: "want an ECDSA key"}
	}
	if !pair.Leaf.IsCA {
		return nil, &FileError{Op: "parse", Path: certName, Err: errors.New("certificate is not an authority's"), Fix: "give the ca.crt that 'kvferry certs init' wrote"}
	}
	return &CA{Cert: pair.Leaf, key: key}, nil
}

func certPEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// save writes both files or neither.
func save(dir, name string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	keyBytes, err := keyPEM(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &FileError{Op: "write", Path: dir, Err: err, Fix: "choose a folder that you may write"}
	}
	certPath, keyPath := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := writeNew(certPath, certPEM(cert), 0o644); err != nil {
		return err
	}
	if err := writeNew(keyPath, keyBytes, 0o600); err != nil {
		// The certificate is of no use without its key, and would block the next attempt.
		return errors.Join(err, os.Remove(certPath))
	}
	return nil
}

// writeNew writes a file that does not exist yet, and leaves none behind on failure.
func writeNew(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		fix := "choose a folder that you may write"
		if errors.Is(err, os.ErrExist) {
			fix = "it is not overwritten: choose another folder, or move the old file away first"
		}
		return &FileError{Op: "write", Path: path, Err: errors.Unwrap(err), Fix: fix}
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(&FileError{Op: "write", Path: path, Err: err}, os.Remove(path))
	}
	return nil
}

// readFile reads a file of at most maxFile bytes.
func readFile(path, fix string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &FileError{Op: "read", Path: path, Err: errors.Unwrap(err), Fix: fix}
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, &FileError{Op: "read", Path: path, Err: err, Fix: fix}
	}
	if len(data) > maxFile {
		return nil, &FileError{Op: "read", Path: path, Err: fmt.Errorf("is larger than %d bytes", maxFile), Fix: "give a PEM file"}
	}
	return data, nil
}
