package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// certFiles are a node's certificate files.
type certFiles struct {
	t   *testing.T
	dir string
}

func (c certFiles) config() TLSConfig {
	return TLSConfig{CA: filepath.Join(c.dir, "ca.crt"), Cert: filepath.Join(c.dir, "node.crt"), Key: filepath.Join(c.dir, "node.key")}
}

// put writes what is given: authorities, and a pair. Files are renamed into place, as renewal tools do: two that are written within one
// tick of the filesystem's clock may have the same time and size.
func (c certFiles) put(pair *certs.Pair, authorities ...*certs.CA) string {
	c.t.Helper()
	write := func(name string, data []byte) {
		path := filepath.Join(c.dir, name)
		if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
			c.t.Fatal(err)
		}
	}
	if len(authorities) > 0 {
		var all []byte
		for _, ca := range authorities {
			all = append(all, ca.CertPEM()...)
		}
		write("ca.crt", all)
	}
	if pair == nil {
		return ""
	}
	key, err := pair.KeyPEM()
	if err != nil {
		c.t.Fatal(err)
	}
	write("node.crt", pair.CertPEM())
	write("node.key", key)
	return fmt.Sprintf("%x", pair.Cert.SerialNumber)
}

func issue(t *testing.T, ca *certs.CA, region, node string) *certs.Pair {
	t.Helper()
	pair, err := ca.Issue(region, node)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// filed is nodes a and b whose certificates are files, with gRPC over TLS in memory at a.
type filed struct {
	*rig
	files  map[string]certFiles
	remote *bufconn.Listener // of a
}

func newFiled(t *testing.T, model wan.Model, dir string, edit func(string, *Config, *Parts)) *filed {
	t.Helper()
	ca, err := certs.NewCA("test", 24*365*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	x := &filed{files: map[string]certFiles{}, remote: bufconn.Listen(1 << 20)}
	f := &fleet{t: t, net: wan.NewNetwork(model), ca: ca, nodes: map[string]*node{}, names: []string{"a", "b"}}
	t.Cleanup(func() { _ = f.net.Close() })
	f.edit = func(name string, c *Config, p *Parts) {
		files := certFiles{t, filepath.Join(dir, name)}
		if err := os.MkdirAll(files.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		files.put(issue(t, ca, "r-"+name, name), ca)
		c.TLS, p.TLS, x.files[name] = files.config(), nil, files
		if name == "a" {
			c.Listen.GRPC, p.Remote = "127.0.0.1:1", x.remote
		}
		if edit != nil {
			edit(name, c, p)
		}
	}
	a, b := f.addNode(0), f.addNode(1)
	x.rig = &rig{fleet: f, a: a, b: b, ea: a.register("e", testLayout(), 4<<20), eb: b.register("e", testLayout(), 4<<20)}
	return x
}

// dialTLS opens a gRPC connection to a with a client's certificate.
func (x *filed) dialTLS(t *tls.Config) *grpc.ClientConn {
	x.t.Helper()
	conn, err := grpc.NewClient("passthrough:///remote", grpc.WithTransportCredentials(credentials.NewTLS(t)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return x.remote.DialContext(ctx) }))
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// served is the serial number of the certificate that a shows over TCP to a new connection; an error when there is none.
func (x *filed) served(client *certs.Pair, ca *certs.CA) (string, error) {
	serial := ""
	t := client.Material(ca).PeerConfig("r-a", "a")
	verify := t.VerifyConnection
	t.VerifyConnection = func(s tls.ConnectionState) error {
		serial = fmt.Sprintf("%x", s.PeerCertificates[0].SerialNumber)
		return verify(s)
	}
	conn := x.dialTLS(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := pb.NewRegionServiceClient(conn).Status(ctx, &pb.StatusRequest{})
	return serial, err
}

// shown is the serial number of the certificate that a shows to a new QUIC connection of b's.
func (x *filed) shown(ca *certs.CA, from *certs.Pair) (string, error) {
	serial := ""
	conf := from.Material(ca).PeerConfig("", "")
	agent, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(from.Node), TLS: conf, Identify: identify, Stripes: 1,
		Expect: func(_ transfer.PeerID, c *x509.Certificate) error {
			serial = fmt.Sprintf("%x", c.SerialNumber)
			return nil
		},
		DialPacket: func(context.Context) (net.PacketConn, error) {
			return x.net.Listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 9}), 0))
		},
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = agent.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = agent.Connect(ctx, netip.AddrPortFrom(x.a.ip, 7441).String(), "a")
	return serial, err
}

// A certificate that is issued anew comes into force under a transfer that goes on: connections of before stay, later ones, over TCP
// and QUIC, have the new one.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		x := newFiled(t, slow, dir, nil)
		keys := x.ea.session("s", 160)
		old := x.a.certificate()
		before := x.dialTLS(issue(t, x.ca, "r-x", "alice").Material(x.ca).PeerConfig("r-a", "a"))
		if _, err := pb.NewRegionServiceClient(before).Status(t.Context(), &pb.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
		run := x.b.begin(request("s"))
		run.landed(8 * 8192)
		link := x.b.link("a")
		serial := x.files["a"].put(issue(t, x.ca, "r-a", "a"))
		x.files["b"].put(issue(t, x.ca, "r-b", "b"))
		time.Sleep(reloadEvery + time.Millisecond)
		if got := x.a.certificate(); got.GetSerial() != serial || got.GetSerial() == old.GetSerial() || got.GetRefused() != "" {
			t.Errorf("certificate in force %v, was %v, written %s", got, old, serial)
		}
		if _, err := pb.NewRegionServiceClient(before).Status(t.Context(), &pb.StatusRequest{}); err != nil {
			t.Errorf("a connection of before: %v", err)
		}
		if got, err := x.served(issue(t, x.ca, "r-x", "bob"), x.ca); err != nil || got != serial {
			t.Errorf("a new TCP connection gets %s, %v; want %s", got, err, serial)
		}
		if got, err := x.shown(x.ca, issue(t, x.ca, "r-c", "c")); err != nil || got != serial {
			t.Errorf("a new QUIC connection gets %s, %v; want %s", got, err, serial)
		}
		if state := run.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil); state.GetProgress().GetBytesDone() >= 160*8192 {
			t.Error("the transfer was over before the reload; the test shows nothing")
		}
		rep := run.end()
		wantReport(t, rep, committed, "", moved)
		if rep.GetPagesRetried() != 0 || link.Err() != nil || x.b.link("a") != link {
			t.Errorf("%d pages were asked for again, the link of before: %v; want it to go on", rep.GetPagesRetried(), link.Err())
		}
		x.eb.check("", keys)
		wantSamples(t, x.a.samples(), map[string]float64{
			`kvferry_identity_reloads_total{file="certificate",result="taken"}`: 1, `kvferry_identity_reload_refused{file="certificate"}`: 0,
		})
		x.settle()
	})
}

func (n *node) certificate() *pb.CertificateStatus {
	n.f.t.Helper()
	st, err := n.region.Status(context.Background(), &pb.StatusRequest{})
	if err != nil {
		n.f.t.Fatal(err)
	}
	return st.GetCertificate()
}

// Files that can't be used, or that are another node's, leave in force what was there, told of once; a certificate that is not valid yet
// is taken in when it is.
func TestCertificateReloadRefuses(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		x := newFiled(t, fast, dir, nil)
		serial := x.a.certificate().GetSerial()
		files := x.files["a"]
		other, err := certs.NewCA("other", 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, tc := range []struct {
			name, want string
			spoil      func()
		}{
			{"another node", `peer is node "b" of region "r-a", want node "a" of region "r-a"`, func() { files.put(issue(t, x.ca, "r-a", "b")) }},
			{"another region", `region "r-b"`, func() { files.put(issue(t, x.ca, "r-b", "a")) }},
			{"another authority", "unknown authority", func() { files.put(issue(t, other, "r-a", "a")) }},
			{"a key of another", "private key does not match", func() {
				files.put(issue(t, x.ca, "r-a", "a"))
				key, _ := issue(t, x.ca, "r-a", "a").KeyPEM()
				_ = os.WriteFile(filepath.Join(files.dir, "node.key"), key, 0o600)
			}},
			{"half a file", "failed to find any PEM data", func() { _ = os.WriteFile(filepath.Join(files.dir, "node.crt"), []byte("-----BEGIN CERT"), 0o600) }},
			{"gone", "no such file", func() { _ = os.Remove(filepath.Join(files.dir, "node.crt")) }},
		} {
			tc.spoil()
			time.Sleep(2*reloadEvery + time.Millisecond)
			got := x.a.certificate()
			if got.GetSerial() != serial || !strings.Contains(got.GetRefused(), tc.want) {
				t.Errorf("%s: serial %s, was %s; refused %q, want %q", tc.name, got.GetSerial(), serial, got.GetRefused(), tc.want)
			}
			wantSamples(t, x.a.samples(), map[string]float64{
				`kvferry_identity_reloads_total{file="certificate",result="refused"}`: float64(i + 1), `kvferry_identity_reload_refused{file="certificate"}`: 1,
			})
			if now, err := x.served(issue(t, x.ca, "r-x", "bob"), x.ca); err != nil || now != serial {
				t.Errorf("%s: a new connection gets %s, %v", tc.name, now, err)
			}
		}
		if err := x.a.d.Reload(); err == nil {
			t.Error("Reload has no error")
		}
		serial = files.put(issue(t, x.ca, "r-a", "a"))
		time.Sleep(reloadEvery + time.Millisecond)
		if got := x.a.certificate(); got.GetSerial() != serial || got.GetRefused() != "" {
			t.Errorf("after all of it: %v, want serial %s", got, serial)
		}
	})
}

// When the authority changes, handshakes from then on go by the new one, and links that are up stay.
func TestAuthorityReload(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		x := newFiled(t, fast, dir, nil)
		x.ea.session("s", 2)
		x.b.mustEnd(request("s"), committed, "", moved)
		next, err := certs.NewCA("next", 0)
		if err != nil {
			t.Fatal(err)
		}
		x.files["a"].put(nil, x.ca, next) // both, then the new one alone
		time.Sleep(reloadEvery + time.Millisecond)
		for _, ca := range []*certs.CA{x.ca, next} {
			pair := issue(t, ca, "r-c", "c")
			if _, err := x.shown(x.ca, pair); err != nil {
				t.Errorf("with both authorities: %v", err)
			}
		}
		x.files["a"].put(issue(t, next, "r-a", "a"), next)
		if err := x.a.d.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, err := x.shown(next, issue(t, x.ca, "r-c", "c")); !errors.Is(err, transfer.ErrCertificate) {
			t.Errorf("a peer of the old authority: %v, want %v", err, transfer.ErrCertificate)
		}
		if _, err := x.served(issue(t, x.ca, "r-x", "bob"), next); err == nil {
			t.Error("a caller of the old authority is let in")
		}
		if _, err := x.shown(next, issue(t, next, "r-c", "c")); err != nil {
			t.Errorf("a peer of the new authority: %v", err)
		}
		x.ea.session("t", 2)
		x.b.mustEnd(request("t"), committed, "", moved) // over the link of before
	})
}

// When certificates end shows in the metrics and the status.
func TestCertificateExpiryIsShown(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		x := newFiled(t, fast, dir, nil)
		pair := issue(t, x.ca, "r-a", "a")
		x.files["a"].put(pair)
		time.Sleep(time.Hour)
		wantSamples(t, x.a.samples(), map[string]float64{
			`kvferry_tls_certificate_expiry_seconds{certificate="node"}`:      float64(pair.Cert.NotAfter.Unix()),
			`kvferry_tls_certificate_expiry_seconds{certificate="authority"}`: float64(x.ca.Cert.NotAfter.Unix()),
		})
		got := x.a.certificate()
		if want := time.Until(pair.Cert.NotAfter); got.GetExpiresIn().AsDuration() != want || got.GetAuthorityExpiresIn().AsDuration() != time.Until(x.ca.Cert.NotAfter) {
			t.Errorf("status %v, want it to end in %v", got, want)
		}
	})
}

func newFiledCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("another", 0)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// tickets is a client's cache of TLS sessions that counts what servers give it.
type tickets struct{ given int }

func (c *tickets) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c *tickets) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.given++
	}
}

// No session is resumed over TCP, which would outlive the authority that vouched for it: the server gives no ticket, with certificates that are
// read again or not. One that gives them shows that they would be seen.
func TestNoSessionTickets(t *testing.T) {
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair := issue(t, ca, "r-a", "a")
	ticketed := pair.Material(ca).ServerConfig()
	n := newRealNode(t, nil)
	for name, tc := range map[string]struct {
		server *tls.Config
		given  int
	}{
		"certificates of a file":   {n.d.remoteTLS(n.d.certs.TLS()), 0},
		"certificates of the test": {(&Daemon{}).remoteTLS(ticketed), 0},
		"with tickets":             {ticketed, 1},
	} {
		cert, roots := pair, ca
		if name == "certificates of a file" {
			cert, roots = issue(t, n.ca, "r-a", "operator"), n.ca
		}
		cache, server, done := &tickets{}, tc.server.Clone(), make(chan error, 1)
		in, out := net.Pipe()
		go func() {
			conn := tls.Server(out, server)
			_, err := conn.Write([]byte{1}) // after the handshake, and the ticket
			done <- errors.Join(err, out.Close())
		}()
		conn := tls.Client(in, &tls.Config{
			Certificates: []tls.Certificate{cert.TLS()}, RootCAs: roots.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2"}, ClientSessionCache: cache,
		})
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = in.Close()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if cache.given != tc.given {
			t.Errorf("%s: %d tickets, want %d", name, cache.given, tc.given)
		}
	}
}
