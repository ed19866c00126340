package certs

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fleet is one authority with two nodes.
type fleet struct {
	ca   *CA
	a, b *Material
}

func newFleet(t *testing.T, validity time.Duration) fleet {
	t.Helper()
	ca, err := NewCA("test", validity)
	if err != nil {
		t.Fatal(err)
	}
	node := func(region, name string) *Material {
		p, err := ca.Issue(region, name)
		if err != nil {
			t.Fatal(err)
		}
		return p.Material(ca)
	}
	return fleet{ca: ca, a: node("us-east", "node-a"), b: node("eu-west", "node-b")}
}

// handshake runs both sides to the end and returns their errors.
func handshake(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	c, s := net.Pipe()
	done := make(chan error, 1) // capacity 1: the server never waits for the reader
	go func() {
		conn := tls.Server(s, server)
		err := conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte{1})
		}
		done <- err
		_ = s.Close()
	}()
	conn := tls.Client(c, client)
	clientErr = conn.Handshake()
	if clientErr == nil {
		// In TLS 1.3 a refused client certificate shows at the first read.
		_, clientErr = conn.Read(make([]byte, 1))
	}
	_ = c.Close()
	return clientErr, <-done
}

func dial(host string, c *tls.Config) *tls.Config { c.ServerName = host; return c }

func TestMutualTLS(t *testing.T) {
	f := newFleet(t, time.Hour)
	other := newFleet(t, time.Hour)
	for _, c := range []struct {
		name           string
		client, server *tls.Config
		client1        func(error) bool // nil: succeeds
		server1        func(error) bool
	}{
		{name: "client config", client: dial("localhost", f.a.ClientConfig()), server: f.b.ServerConfig()},
		{name: "ip address", client: dial("127.0.0.1", f.a.ClientConfig()), server: f.b.ServerConfig()},
		{name: "peer config", client: f.a.PeerConfig("eu-west", "node-b"), server: f.b.ServerConfig()},
		{name: "peer config, any node", client: f.a.PeerConfig("", ""), server: f.b.ServerConfig()},
		{
			name: "wrong host", client: dial("example.com", f.a.ClientConfig()), server: f.b.ServerConfig(),
			client1: as[x509.HostnameError], server1: isAny,
		},
		{
			name: "wrong node", client: f.a.PeerConfig("eu-west", "node-c"), server: f.b.ServerConfig(),
			client1: as[*PeerError], server1: isAny,
		},
		{
			name: "wrong region", client: f.a.PeerConfig("us-east", "node-b"), server: f.b.ServerConfig(),
			client1: as[*PeerError], server1: isAny,
		},
		{
			name: "server of another authority", client: dial("localhost", f.a.ClientConfig()), server: other.b.ServerConfig(),
			client1: as[x509.UnknownAuthorityError], server1: isAny,
		},
		{
			name: "peer of another authority", client: f.a.PeerConfig("", ""), server: other.b.ServerConfig(),
			client1: as[x509.UnknownAuthorityError], server1: isAny,
		},
		{
			// crypto/tls holds a certificate back when the server's authorities did not sign it.
			name: "client of another authority", client: foreign(other.a, f.a.Roots), server: f.b.ServerConfig(),
			client1: isAny, server1: isAny,
		},
		{
			name: "no client certificate", client: &tls.Config{RootCAs: f.a.Roots, ServerName: "localhost"}, server: f.b.ServerConfig(),
			client1: isAny, server1: isAny,
		},
		{
			name: "old version", client: &tls.Config{RootCAs: f.a.Roots, ServerName: "localhost", MaxVersion: tls.VersionTLS12}, server: f.b.ServerConfig(),
			client1: isAny, server1: isAny,
		},
		{
			name: "server without identity", client: dial("localhost", f.a.ClientConfig()), server: plain(t, f.ca).ServerConfig(),
			client1: is(ErrNoIdentity), server1: isAny,
		},
		{
			name: "peer without identity", client: f.a.PeerConfig("", ""), server: plain(t, f.ca).ServerConfig(),
			client1: is(ErrNoIdentity), server1: isAny,
		},
		{
			name: "client without identity", client: dial("localhost", plain(t, f.ca).ClientConfig()), server: f.b.ServerConfig(),
			client1: isAny, server1: is(ErrNoIdentity),
		},
		{
			name: "server with a client's certificate", client: dial("localhost", f.a.ClientConfig()), server: usedFor(t, f.ca, x509.ExtKeyUsageClientAuth).ServerConfig(),
			client1: isWrongUse, server1: isAny,
		},
		{
			name: "peer with a client's certificate", client: f.a.PeerConfig("eu-west", "node-x"), server: usedFor(t, f.ca, x509.ExtKeyUsageClientAuth).ServerConfig(),
			client1: isWrongUse, server1: isAny,
		},
		{
			name: "client with a server's certificate", client: foreign(usedFor(t, f.ca, x509.ExtKeyUsageServerAuth), f.a.Roots), server: f.b.ServerConfig(),
			client1: isAny, server1: isWrongUse,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clientErr, serverErr := handshake(t, c.client, c.server)
			check(t, "client", clientErr, c.client1)
			check(t, "server", serverErr, c.server1)
		})
	}
}

func check(t *testing.T, side string, err error, want func(error) bool) {
	t.Helper()
	switch {
	case want == nil && err != nil:
		t.Errorf("%s: %v, want success", side, err)
	case want != nil && (err == nil || !want(err)):
		t.Errorf("%s: %v (%T) is not the error wanted", side, err, err)
	}
}

func isAny(err error) bool { return err != nil }

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// foreign has m's certificate, presented whatever the server asks for, and trusts roots.
func foreign(m *Material, roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		RootCAs: roots, ServerName: "localhost",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.Certificate, nil },
	}
}

// isWrongUse is a certificate that is not for what it was shown for.
func isWrongUse(err error) bool {
	e, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && e.Reason == x509.IncompatibleUsage
}

// usedFor is a node's certificate for one end of a connection only.
func usedFor(t *testing.T, ca *CA, usage x509.ExtKeyUsage) *Material {
	t.Helper()
	uri, err := identityURL("eu-west", "node-x")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := sign(&x509.Certificate{
		NotBefore: ca.Cert.NotBefore, NotAfter: ca.Cert.NotAfter, URIs: []*url.URL{uri}, DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, ca)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pair{Cert: cert, key: key, Region: "eu-west", Node: "node-x"}
	return p.Material(ca)
}

// plain is a certificate of ca without any URI.
func plain(t *testing.T, ca *CA) *Material {
	t.Helper()
	cert, key, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "plain"}, NotBefore: ca.Cert.NotBefore, NotAfter: ca.Cert.NotAfter, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pair{Cert: cert, key: key}
	return p.Material(ca)
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Hour)
		if e, s := handshake(t, f.a.PeerConfig("", "node-b"), f.b.ServerConfig()); e != nil || s != nil {
			t.Fatal(e, s)
		}
		time.Sleep(time.Hour + time.Second)
		clientErr, _ := handshake(t, f.a.PeerConfig("", "node-b"), f.b.ServerConfig())
		if e, ok := errors.AsType[x509.CertificateInvalidError](clientErr); !ok || e.Reason != x509.Expired {
			t.Errorf("handshake after expiry: %v, want an expired certificate", clientErr)
		}
		if !strings.Contains(Explain(clientErr), "expired") {
			t.Errorf("Explain(%v) = %q", clientErr, Explain(clientErr))
		}
		if _, err := f.ca.Issue("r", "n"); err == nil || !strings.Contains(err.Error(), "certs init") {
			t.Errorf("Issue by an expired authority: %v", err)
		}
	})
}

func TestValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, c := range []struct {
			name       string
			ca         time.Duration
			wantCA     time.Time
			wantNodeTo time.Time
		}{
			{"default", 0, now.Add(DefaultCAValidity), now.Add(NodeValidity)},
			{"authority ends first", 24 * time.Hour, now.Add(24 * time.Hour), now.Add(24 * time.Hour)},
		} {
			ca, err := NewCA("x", c.ca)
			if err != nil {
				t.Fatal(err)
			}
			p, err := ca.Issue("r", "n")
			if err != nil {
				t.Fatal(err)
			}
			if !ca.Cert.NotAfter.Equal(c.wantCA) || !p.Cert.NotAfter.Equal(c.wantNodeTo) {
				t.Errorf("%s: authority to %v, node to %v; want %v, %v", c.name, ca.Cert.NotAfter, p.Cert.NotAfter, c.wantCA, c.wantNodeTo)
			}
			if p.Cert.IsCA || !ca.Cert.IsCA {
				t.Errorf("%s: node is authority %v, authority is authority %v", c.name, p.Cert.IsCA, ca.Cert.IsCA)
			}
		}
	})
}

func TestBadInput(t *testing.T) {
	ca, err := NewCA("x", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		call func() error
		want string
	}{
		{"empty CA name", func() error { _, err := NewCA("", 0); return err }, "CA name"},
		{"negative validity", func() error { _, err := NewCA("x", -1); return err }, "validity"},
		{"empty region", func() error { _, err := ca.Issue("", "n"); return err }, "region"},
		{"slash", func() error { _, err := ca.Issue("r", "a/b"); return err }, "node"},
		{"dots", func() error { _, err := ca.Issue("..", "n"); return err }, "region"},
		{"long", func() error { _, err := ca.Issue("r", strings.Repeat("x", 129)); return err }, "node"},
		{"host with port", func() error { _, err := ca.Issue("r", "n", "localhost:1"); return err }, "host"},
		{"empty host", func() error { _, err := ca.Issue("r", "n", ""); return err }, "host"},
		{"hyphen", func() error { _, err := ca.Issue("r", "n", "-a.b"); return err }, "host"},
		{"many hosts", func() error { _, err := ca.Issue("r", "n", make([]string, 65)...); return err }, "hosts"},
		{"no path", func() error { _, err := Load(Files{CA: "x", Cert: "y"}); return err }, "key file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, ok := errors.AsType[*InputError](c.call())
			if !ok || e.Field != c.want {
				t.Errorf("got %v, want an InputError of %q", e, c.want)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	long := strings.Repeat("n", 128)
	for _, c := range []struct{ uri, region, node, reason string }{
		{uri: "spiffe://kvferry/region/us-east/node/a", region: "us-east", node: "a"},
		{uri: "spiffe://kvferry/region/r_1.x/node/" + long, region: "r_1.x", node: long},
		{uri: "spiffe://kvferry/region/node/node/node", region: "node", node: "node"},
		{uri: "spiffe://other/region/r/node/n", reason: "begin"},
		{uri: "https://kvferry/region/r/node/n", reason: "begin"},
		{uri: "SPIFFE://kvferry/region/r/node/n", reason: "begin"},
		{uri: "spiffe://kvferry:1/region/r/node/n", reason: "begin"},
		{uri: "spiffe://u@kvferry/region/r/node/n", reason: "begin"},
		{uri: "spiffe://kvferry/region/r", reason: "no /node/"},
		{uri: "spiffe://kvferry/region/r/n", reason: "no /node/"},
		{uri: "spiffe://kvferry/region//node/n", reason: "region is empty"},
		{uri: "spiffe://kvferry/region/r/node/", reason: "node is empty"},
		{uri: "spiffe://kvferry/region/r/node/n/", reason: "node has '/'"},
		{uri: "spiffe://kvferry/region/r/node/n/x", reason: "node has '/'"},
		{uri: "spiffe://kvferry/region/r/node/n?", reason: "node has '?'"},
		{uri: "spiffe://kvferry/region/r/node/n#f", reason: "node has '#'"},
		{uri: "spiffe://kvferry/region/r%41/node/n", reason: "region has '%'"},
		{uri: "spiffe://kvferry/region/../node/n", reason: "relative"},
		{uri: "spiffe://kvferry/region/r/node/.", reason: "relative"},
		{uri: "spiffe://kvferry/region/r/node/" + long + "n", reason: "129 bytes"},
		{uri: "", reason: "begin"},
	} {
		region, node, err := ParseIdentity(c.uri)
		if region != c.region || node != c.node {
			t.Errorf("ParseIdentity(%q) = %q, %q; want %q, %q", c.uri, region, node, c.region, c.node)
		}
		e, ok := errors.AsType[*IdentityError](err)
		if ok != (c.reason != "") || ok && !strings.Contains(e.Reason, c.reason) {
			t.Errorf("ParseIdentity(%q): %v, want reason %q", c.uri, err, c.reason)
		}
	}
}

func TestIdentityOfCertificate(t *testing.T) {
	u := &url.URL{Scheme: "spiffe", Host: "kvferry", Path: "/region/r/node/n"}
	if r, n, err := Identity(&x509.Certificate{URIs: []*url.URL{u}}); r != "r" || n != "n" || err != nil {
		t.Errorf("got %q, %q, %v", r, n, err)
	}
	if _, _, err := Identity(nil); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("nil: %v", err)
	}
	if _, _, err := Identity(&x509.Certificate{}); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("no URI: %v", err)
	}
	if _, _, err := Identity(&x509.Certificate{URIs: []*url.URL{u, u}}); !as[*IdentityError](err) {
		t.Errorf("two URIs: %v", err)
	}
	query := *u
	query.ForceQuery = true
	if _, _, err := Identity(&x509.Certificate{URIs: []*url.URL{&query}}); !as[*IdentityError](err) {
		t.Errorf("empty query: %v", err)
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("spiffe://kvferry/region/us-east/node/a")
	f.Add("spiffe://kvferry/region/a/node/b/node/c")
	f.Add("spiffe://kvferry/region/%2e/node/..")
	f.Fuzz(func(t *testing.T, uri string) {
		region, node, err := ParseIdentity(uri)
		if err != nil {
			if !as[*IdentityError](err) || region != "" || node != "" {
				t.Fatalf("%q: %q, %q, %v", uri, region, node, err)
			}
			return
		}
		if again, err := FormatIdentity(region, node); err != nil || again != uri {
			t.Fatalf("%q reads as %q, %q, which writes %q, %v", uri, region, node, again, err)
		}
		u, err := identityURL(region, node)
		if err != nil || u.String() != uri {
			t.Fatalf("%q in a certificate is %v, %v", uri, u, err)
		}
	})
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	ca, err := NewCA("dev", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := loaded.Issue("us-east", "node-a", "10.0.0.7", "a.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Save(dir); err != nil {
		t.Fatal(err)
	}
	m, err := Load(Files{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "node-a.crt"), filepath.Join(dir, "node-a.key")})
	if err != nil {
		t.Fatal(err)
	}
	if m.Region != "us-east" || m.Node != "node-a" {
		t.Errorf("identity %q, %q", m.Region, m.Node)
	}
	if diff := cmp.Diff([]string{"a.example"}, m.Certificate.Leaf.DNSNames); diff != "" {
		t.Error(diff)
	}
	if c, s := handshake(t, dial("10.0.0.7", m.ClientConfig()), m.ServerConfig()); c != nil || s != nil {
		t.Error(c, s)
	}
	for name, want := range map[string]os.FileMode{"ca.key": 0o600, "node-a.key": 0o600, ".": 0o700 | os.ModeDir} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, st.Mode(), err, want)
		}
	}

	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"authority": ca.Save(dir), "node": pair.Save(dir)} {
		if !errors.Is(err, os.ErrExist) || Explain(err) == "" {
			t.Errorf("%s again: %v", name, err)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "ca.key")); string(after) != string(before) {
		t.Error("the authority's key was overwritten")
	}
}

// A key that can't be written leaves no certificate behind that would block the next attempt.
func TestSaveBothOrNeither(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := NewCA("dev", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(dir); !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.crt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ca.crt: %v, want none", err)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	f, other := newFleet(t, 0), newFleet(t, 0)
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pair := func(ca *CA) (string, string) {
		p, err := ca.Issue("r", "n")
		if err != nil {
			t.Fatal(err)
		}
		key, err := p.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		name := p.Cert.SerialNumber.String()
		return write(name+".crt", p.CertPEM()), write(name+".key", key)
	}
	caPath := write("ca.crt", f.ca.CertPEM())
	cert, key := pair(f.ca)
	otherCert, otherKey := pair(other.ca)
	junk := write("junk", []byte("not pem"))
	big := write("big", make([]byte, maxFile+1))
	p := plain(t, f.ca)
	plainPair := &Pair{Cert: p.Certificate.Leaf, key: nil}
	plainCert := write("plain.crt", plainPair.CertPEM())
	plainKeyBytes, err := keyPEM(mustKey(t, p))
	if err != nil {
		t.Fatal(err)
	}
	plainKey := write("plain.key", plainKeyBytes)
	if _, err := Load(Files{caPath, cert, key}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files Files
		op    string
	}{
		{"no CA", Files{filepath.Join(dir, "none"), cert, key}, "read"},
		{"no certificate", Files{caPath, filepath.Join(dir, "none"), key}, "read"},
		{"no key", Files{caPath, cert, filepath.Join(dir, "none")}, "read"},
		{"junk CA", Files{junk, cert, key}, "parse"},
		{"junk certificate", Files{caPath, junk, key}, "parse"},
		{"big key", Files{caPath, cert, big}, "read"},
		{"key of another", Files{caPath, cert, otherKey}, "parse"},
		{"other authority", Files{caPath, otherCert, otherKey}, "verify"},
		{"no identity", Files{caPath, plainCert, plainKey}, "verify"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(c.files)
			e, ok := errors.AsType[*FileError](err)
			if !ok || e.Op != c.op || e.Fix == "" || Explain(err) != e.Fix {
				t.Errorf("got %v, want a FileError of op %q with a fix", err, c.op)
			}
		})
	}
	if _, err := LoadCA(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("LoadCA of nothing: %v", err)
	}
	caKey, err := f.ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCA(f.ca.CertPEM(), caKey, "a", "b"); err != nil {
		t.Error(err)
	}
	nodePair, err := f.ca.Issue("r", "n")
	if err != nil {
		t.Fatal(err)
	}
	nodeKey, err := nodePair.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCA(nodePair.CertPEM(), nodeKey, "a", "b"); err == nil {
		t.Error("a node's certificate was accepted as an authority")
	}
}

func mustKey(t *testing.T, m *Material) *ecdsa.PrivateKey {
	t.Helper()
	key, ok := m.Certificate.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("key is a %T", m.Certificate.PrivateKey)
	}
	return key
}
