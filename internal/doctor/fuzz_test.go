package doctor

import (
	"bytes"
	"encoding/pem"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
)

// Whatever stands in a PEM file: its certificates are found, in their order, and are the same when they alone are written down.
func FuzzParseAll(f *testing.F) {
	ca, err := certs.NewCA("fuzz", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.CertPEM())
	f.Add(append(append(key, ca.CertPEM()...), ca.CertPEM()...))
	f.Add(append([]byte("-----BEGIN CERTIFICATE-----\n"), ca.CertPEM()...))
	f.Fuzz(func(t *testing.T, data []byte) {
		all := parseAll(data)
		var alone []byte
		for _, c := range all {
			alone = append(alone, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		again := parseAll(alone)
		if len(again) != len(all) {
			t.Fatalf("%d certificates, %d when written down", len(all), len(again))
		}
		for i, c := range all {
			if !bytes.Equal(again[i].Raw, c.Raw) {
				t.Fatalf("certificate %d comes back as another", i)
			}
		}
	})
}
