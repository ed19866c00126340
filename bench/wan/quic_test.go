package wan_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/bench/wan"
)

func tlsConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	// A bubble's clock starts in the year 2000.
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"wan"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(nil, cert, cert, public, private)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, NextProtos: []string{"wan"}}
	return server, &tls.Config{RootCAs: pool, ServerName: "wan", NextProtos: []string{"wan"}}
}

// transfer moves size bytes over k QUIC connections in a bubble and returns
// the virtual time the handshake of the first and then the whole took.
func transfer(t *testing.T, m wan.Model, k int, size int64) (handshake, total time.Duration, stats wan.LinkStats) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	synctest.Test(t, func(t *testing.T) {
		serverTLS, clientTLS := tlsConfigs(t)
		cfg := &quic.Config{
			InitialStreamReceiveWindow: 32 << 20, MaxStreamReceiveWindow: 32 << 20,
			InitialConnectionReceiveWindow: 64 << 20, MaxConnectionReceiveWindow: 64 << 20,
		}
		n := wan.NewNetwork(m)
		defer n.Close()
		pc, err := n.Listen(netip.AddrPortFrom(a, 4433))
		if err != nil {
			t.Fatal(err)
		}
		server := &quic.Transport{Conn: pc}
		defer server.Close()
		ln, err := server.Listen(serverTLS, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for {
				conn, err := ln.Accept(ctx)
				if err != nil {
					return
				}
				go func() {
					s, err := conn.OpenUniStream()
					if err != nil {
						return
					}
					buf := make([]byte, 1<<20)
					for left := size / int64(k); left > 0; left -= int64(len(buf)) {
						if _, err := s.Write(buf[:min(left, int64(len(buf)))]); err != nil {
							return
						}
					}
					_ = s.Close()
				}()
			}
		}()
		start := time.Now()
		done := make(chan int64, k)
		for i := range k {
			pc, err := n.Listen(netip.AddrPortFrom(b, 0))
			if err != nil {
				t.Fatal(err)
			}
			client := &quic.Transport{Conn: pc}
			defer client.Close()
			conn, err := client.Dial(ctx, ln.Addr(), clientTLS, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.CloseWithError(0, "")
			if i == 0 {
				handshake = time.Since(start)
			}
			go func() {
				s, err := conn.AcceptUniStream(ctx)
				if err != nil {
					done <- 0
					return
				}
				got, _ := io.Copy(io.Discard, s)
				done <- got
			}()
		}
		var got int64
		for range k {
			got += <-done
		}
		total = time.Since(start)
		if got != size {
			t.Errorf("%d of %d bytes arrived", got, size)
		}
		stats = n.Stats(a, b)
	})
	return handshake, total, stats
}

func TestQUIC(t *testing.T) {
	handshake, total, stats := transfer(t, wan.Model{RTT: 70 * time.Millisecond, Rate: 1e9}, 4, 16<<20)
	if handshake < 70*time.Millisecond || handshake > 80*time.Millisecond {
		t.Errorf("handshake took %v, want one round trip of 70ms", handshake)
	}
	if floor := time.Duration(float64(16<<20) * 8); total < floor {
		t.Errorf("16 MiB in %v, faster than the link's %v", total, floor)
	}
	t.Logf("16 MiB over 4 connections in %v of virtual time, %+v", total, stats)
}

func TestQUICWithLoss(t *testing.T) {
	_, total, stats := transfer(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 1e9, Loss: 0.01, Seed: 1}, 2, 2<<20)
	if stats.DroppedLoss == 0 {
		t.Errorf("nothing was lost: %+v", stats)
	}
	t.Logf("2 MiB in %v of virtual time, %+v", total, stats)
}

// TestQUICCost logs what the model costs in wall time; most of it is QUIC's.
// 128 MiB over this link took 1.5 s of wall time on 2 Zen 4 cores.
func TestQUICCost(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 32 MiB, for a number only")
	}
	start := time.Now()
	_, total, stats := transfer(t, wan.Model{RTT: 70 * time.Millisecond, Rate: 1e9}, 8, 32<<20)
	t.Logf("32 MiB over 8 connections: %v of virtual time, %v of wall time, %+v", total, time.Since(start), stats)
}
