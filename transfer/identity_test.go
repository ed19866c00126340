package transfer

import (
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
)

// identityPair is a server and a client over a model link, each changed as the test wants.
func identityPair(t *testing.T, server, client func(*Config)) (a, b *Agent) {
	t.Helper()
	ca := newTestCA(t)
	n := wan.NewNetwork(wan.Model{RTT: 20 * time.Millisecond, Rate: 1e8})
	t.Cleanup(func() { _ = n.Close() })
	a = openTest(t, n, netip.MustParseAddrPort("10.0.0.1:4433"), Config{Name: "spiffe://test/a", TLS: ca.node("a")}, server)
	b = openTest(t, n, netip.MustParseAddrPort("10.0.0.2:4433"), Config{Name: "spiffe://test/b", TLS: ca.node("b")}, client)
	t.Cleanup(func() {
		if err := errors.Join(b.Close(), a.Close()); err != nil {
			t.Error(err)
		}
	})
	return a, b
}

// A link is of one region: a connection whose certificate is of another does not join it, and the peer's own word about itself, its
// metadata, changes nothing.
func TestLinkIsOfOneRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		a, b := identityPair(t, func(c *Config) {
			c.Region = func(*x509.Certificate) (string, error) {
				if asked.Add(1) == 1 {
					return "home", nil
				}
				return "elsewhere", nil
			}
		}, func(c *Config) { c.Stripes = 4 })
		l, err := b.Connect(t.Context(), "10.0.0.1:4433", "spiffe://test/a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		links := a.Links()
		if len(links) != 1 || links[0].Peer() != (Peer{ID: "spiffe://test/b", Incarnation: b.Peer().Incarnation, Region: "home"}) {
			t.Fatalf("links at the server: %d, peer %+v", len(links), links[0].Peer())
		}
		if n := links[0].Stats().Stripes; n != 1 || asked.Load() < 4 {
			t.Errorf("%d stripes of %d connections have joined, want the first one", n, asked.Load())
		}
		if m := links[0].Metadata(); m.Peer.Region != "home" {
			t.Errorf("the peer's metadata are of %+v", m.Peer)
		}
		if l.Peer().Region != "" {
			t.Errorf("a region without Config.Region: %+v", l.Peer())
		}
	})
}

// Who dials may refuse a node for more than its name, before anything is sent to it.
func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := identityPair(t, nil, func(c *Config) {
			c.Expect = func(want PeerID, cert *x509.Certificate) error {
				if want != "spiffe://test/a" || cert.URIs[0].String() != string(want) {
					t.Errorf("asked about %q with a certificate of %v", want, cert.URIs)
				}
				return errors.New("it is of another region")
			}
		})
		_, err := b.Connect(t.Context(), "10.0.0.1:4433", "spiffe://test/a")
		if !errors.Is(err, ErrPeerIdentity) || !strings.Contains(err.Error(), "another region") {
			t.Errorf("connect: %v, want %v with the reason", err, ErrPeerIdentity)
		}
	})
}

// A certificate without a region, where one is asked for, is refused at both ends.
func TestRegionUnknown(t *testing.T) {
	none := func(c *Config) {
		c.Region = func(*x509.Certificate) (string, error) { return "", errors.New("no region in it") }
	}
	for name, edit := range map[string][2]func(*Config){"server": {none, nil}, "client": {nil, none}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := identityPair(t, edit[0], edit[1])
				if _, err := b.Connect(t.Context(), "10.0.0.1:4433", "spiffe://test/a"); !errors.Is(err, ErrPeerIdentity) {
					t.Errorf("connect: %v, want %v", err, ErrPeerIdentity)
				}
			})
		})
	}
}

// A read that Permit refuses ends with its error before any page is read; the peer that it is asked about is that of the certificate.
func TestPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := identityPair(t, func(c *Config) {
			c.Permit = func(from Peer, token []byte) error {
				if from.ID != "spiffe://test/b" {
					t.Errorf("asked about %+v", from)
				}
				if string(token) != "good" {
					return ErrLeaseExpired
				}
				return nil
			}
		}, nil)
		there, err := a.Register(Bytes(make([]byte, 4096), 1024))
		if err != nil {
			t.Fatal(err)
		}
		here, err := b.Register(Bytes(make([]byte, 4096), 1024))
		if err != nil {
			t.Fatal(err)
		}
		l, err := b.Connect(t.Context(), "10.0.0.1:4433", "spiffe://test/a")
		if err != nil {
			t.Fatal(err)
		}
		for token, want := range map[string]error{"good": nil, "bad": ErrLeaseExpired, "": ErrLeaseExpired} {
			x, err := l.Prepare(Read, []Desc{{Memory: here, Pages: 4}}, []Desc{{Memory: there, Pages: 4}}, TransferOptions{Token: []byte(token)})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Post(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := x.Wait(t.Context()); !errors.Is(err, want) {
				t.Errorf("token %q: %v, want %v", token, err, want)
			}
			x.Release()
		}
	})
}
