package transfer

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"

	"github.com/quic-go/quic-go"
)

// resetKey is what a node's process and the ones after it make stateless resets from (RFC 9000, section 10.3): a peer whose
// connections were lost with the process before, or with an outage that only this side saw, hears so a round trip after it sends
// something, and not after its idle timeout. It comes from the private key, which stays over a restart and which nobody else has;
// where that can't be had it is random, and holds for this process.
func resetKey(name PeerID, t *tls.Config) *quic.StatelessResetKey {
	key := quic.StatelessResetKey{}
	secret := privateKey(t)
	if secret == nil {
		_, _ = rand.Read(key[:]) // never fails
		return &key
	}
	h := sha256.New()
	h.Write([]byte("kvferry stateless reset v1\x00" + string(name) + "\x00"))
	h.Write(secret)
	h.Sum(key[:0])
	return &key
}

// privateKey is the encoded private key of the node's certificate; nil: it is not in memory.
func privateKey(t *tls.Config) []byte {
	var cert *tls.Certificate
	switch {
	case len(t.Certificates) > 0:
		cert = &t.Certificates[0]
	case t.GetCertificate != nil:
		cert, _ = t.GetCertificate(&tls.ClientHelloInfo{})
	}
	if cert == nil {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil
	}
	return der
}
