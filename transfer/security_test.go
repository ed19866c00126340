package transfer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/bench/wan"
)

// TestRefused has each reason for which two agents do not link up arrive as a
// typed error that says what to do, and leave nothing behind at either end.
func TestRefused(t *testing.T) {
	ours, other := newTestCA(t), newTestCA(t)
	for _, tc := range []struct {
		name           string
		server, client func(*Config)
		want           PeerID
		is             error
		says           string
		within         time.Duration
	}{
		{
			name: "server of another CA", server: func(c *Config) { c.TLS = other.node("a"); c.TLS.ClientCAs = ours.pool },
			is: ErrCertificate, says: "one CA", within: time.Second,
		},
		{
			name: "client of another CA", client: func(c *Config) { c.TLS = other.node("b"); c.TLS.RootCAs = ours.pool },
			is: ErrCertificate, says: "CA that the peer trusts", within: time.Second,
		},
		{
			name: "server with a client's certificate", server: func(c *Config) { c.TLS = ours.nodeFor("a", year2100, x509.ExtKeyUsageClientAuth) },
			is: ErrCertificate, says: "incompatible key usage", within: time.Second,
		},
		{
			name: "client with a server's certificate", client: func(c *Config) { c.TLS = ours.nodeFor("b", year2100, x509.ExtKeyUsageServerAuth) },
			is: ErrCertificate, says: "certificate", within: time.Second,
		},
		{name: "another node", want: "spiffe://test/c", is: ErrPeerIdentity, says: "spiffe://test/a", within: time.Second},
		{name: "other version", server: func(c *Config) { c.version = 9 }, is: ErrVersion, says: "the peer 9", within: time.Second},
		{name: "nobody", want: "nobody", is: ErrUnreachable, says: "UDP port open", within: 10 * time.Second},
		{
			name: "expired certificate", client: func(c *Config) { c.TLS = ours.nodeUntil("b", time.Date(1999, 6, 1, 0, 0, 0, 0, time.UTC)) },
			is: ErrCertificate, says: "renew", within: time.Second,
		},
		{
			name: "a stranger's name", client: func(c *Config) {
				c.Name = "spiffe://test/x"
				c.TLS.GetCertificate, c.TLS.GetClientCertificate = hide(c.TLS)
			},
			is: ErrPeerIdentity, says: "names \"spiffe://test/b\"", within: time.Second,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := wan.NewNetwork(wan.Model{RTT: 70 * time.Millisecond, Rate: 1e8})
				defer n.Close()
				a, b := netip.MustParseAddrPort("10.0.0.1:4433"), netip.MustParseAddrPort("10.0.0.2:4433")
				server := openTest(t, n, a, Config{Name: "spiffe://test/a", TLS: ours.node("a")}, tc.server)
				client := openTest(t, n, b, Config{Name: "spiffe://test/b", TLS: ours.node("b")}, tc.client)
				addr, want := a.String(), orDefault(tc.want, server.cfg.Name)
				if want == "nobody" {
					addr = "10.0.0.3:4433"
				}
				start := time.Now()
				l, err := client.Connect(t.Context(), addr, want)
				if l != nil || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("connect: %v", err)
				}
				if d := time.Since(start); d > tc.within {
					t.Errorf("took %v", d)
				}
				time.Sleep(time.Minute)
				if len(client.Links())+len(server.Links()) != 0 {
					t.Errorf("%d and %d links left", len(client.Links()), len(server.Links()))
				}
				if err := errors.Join(client.Close(), server.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// hide moves the certificate where Open cannot compare it with the name.
func hide(c *tls.Config) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) {
	cert := c.Certificates[0]
	c.Certificates = nil
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
		func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
}

func TestOpenRefuses(t *testing.T) {
	ours := newTestCA(t)
	good := Config{Name: "spiffe://test/a", TLS: ours.node("a")}
	for _, tc := range []struct {
		name  string
		edit  func(*Config)
		field string
	}{
		{"no name", func(c *Config) { c.Name = "" }, "Config.Name"},
		{"another name", func(c *Config) { c.Name = "b" }, "Config.Name"},
		{"no TLS", func(c *Config) { c.TLS = nil }, "Config.TLS"},
		{"no CA", func(c *Config) { c.TLS.RootCAs = nil }, "Config.TLS.RootCAs"},
		{"no certificate", func(c *Config) { c.TLS.Certificates = nil }, "Config.TLS.Certificates"},
		{"stripes", func(c *Config) { c.Stripes = 65 }, "Config.Stripes"},
		{"chunk", func(c *Config) { c.ChunkBytes = 100 }, "Config.ChunkBytes"},
		{"streams", func(c *Config) { c.StreamsPerStripe = -1 }, "Config.StreamsPerStripe"},
		{"timeout", func(c *Config) { c.ConnectTimeout = -1 }, "Config.ConnectTimeout"},
		{"window", func(c *Config) { c.ConnWindow = 1 }, "Config.ConnWindow"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good
			c.TLS = good.TLS.Clone()
			tc.edit(&c)
			a, err := Open(c)
			fe, ok := errors.AsType[*FieldError](err)
			if a != nil || !ok || fe.Field != tc.field || fe.Allowed == "" || fe.Fix == "" {
				t.Errorf("open: %v", err)
			}
		})
	}
	a, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if a.Addr() != nil {
		t.Errorf("an agent without a socket listens on %v", a.Addr())
	}
	if _, err := a.Connect(t.Context(), "nonsense", "b"); err == nil {
		t.Error("connected to nonsense")
	}
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
	if _, err := a.Register(Bytes(make([]byte, 8), 8)); !errors.Is(err, ErrClosed) {
		t.Errorf("register after Close: %v", err)
	}
	if _, err := a.Connect(t.Context(), "127.0.0.1:1", "b"); !errors.Is(err, ErrClosed) {
		t.Errorf("connect after Close: %v", err)
	}
	var _ net.Addr = a.Addr()
}

// tickets is a client's cache of TLS sessions that counts what servers give it.
type tickets struct{ given atomic.Int64 }

func (c *tickets) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c *tickets) Put(string, *tls.ClientSessionState)        { c.given.Add(1) }

// No session is resumed over UDP, which would outlive the authority that vouched for it: the agent gives no ticket. A server that does
// shows that it would be seen.
func TestNoTicketsOverUDP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		giving := b.ca.node("x")
		giving.NextProtos = []string{ALPN}
		socket, err := b.net.Listen(netip.MustParseAddrPort("10.0.0.8:4433"))
		if err != nil {
			t.Fatal(err)
		}
		other := &quic.Transport{Conn: socket}
		l, err := other.Listen(giving, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(l.Close(), other.Close(), socket.Close()) }()
		for addr, want := range map[string]int64{serverAddr.String(): 0, "10.0.0.8:4433": 1} {
			cache := &tickets{}
			conf := clientOf(b.ca, "c")
			conf.ClientSessionCache, conf.ServerName = cache, "x"
			x := b.attacker(netip.MustParseAddr("10.0.0.9"), conf)
			conn, err := x.transport.Dial(t.Context(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)), conf, nil)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			time.Sleep(time.Second)
			if got := cache.given.Load(); got != want {
				t.Errorf("%s gave %d tickets, want %d", addr, got, want)
			}
			_ = conn.CloseWithError(0, "")
			x.close()
		}
	})
}
