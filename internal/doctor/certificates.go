package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
)

const (
	// expiresSoon is how long before its end a certificate is warned about.
	expiresSoon = 14 * 24 * time.Hour
	// maxPEM bounds a file that is read, bytes.
	maxPEM = 1 << 20
)

// identity is our certificate as far as it could be read.
type identity struct {
	named bool // the configuration or the flags name files
	files daemon.TLSConfig
	// err is why authority or certificate can't be looked at; keyErr, without err, why the key can't be used with them. Each with its fix.
	err, keyErr error
	fix, keyFix string

	pair         tls.Certificate
	roots        *x509.CertPool
	authorities  []*x509.Certificate
	region, node string
	identityErr  error
}

// readIdentity reads the files and takes them apart, without judging.
func (d *doctor) readIdentity() *identity {
	id := &identity{files: d.Config.TLS}
	t := id.files
	if t.CA == "" && t.Cert == "" && t.Key == "" && !d.Configured {
		return id
	}
	id.named = true
	const make = "kvferry certs init --dir DIR; kvferry certs issue --dir DIR --region REGION --node NODE --host HOST"
	read := func(key, path string) (data []byte, fix string, err error) {
		if path == "" {
			return nil, "set " + key + " to a PEM file; make one with: " + make, fmt.Errorf("%s is not set", key)
		}
		data, err = readBounded(path)
		fix = "give this user the right to read it"
		if errors.Is(err, os.ErrNotExist) {
			fix = "correct the path, or make the files: " + make
		}
		return data, fix, err
	}
	var authority, certificate []byte
	if authority, id.fix, id.err = read("tls.ca", t.CA); id.err != nil {
		return id
	}
	if certificate, id.fix, id.err = read("tls.cert", t.Cert); id.err != nil {
		return id
	}
	id.roots = x509.NewCertPool()
	if id.authorities = parseAll(authority); len(id.authorities) == 0 {
		id.err, id.fix = fmt.Errorf("%s holds no certificate", t.CA), "set tls.ca to the ca.crt that 'kvferry certs init' wrote"
		return id
	}
	for _, c := range id.authorities {
		id.roots.AddCert(c)
	}
	chain := parseAll(certificate)
	if len(chain) == 0 {
		id.err, id.fix = fmt.Errorf("%s holds no certificate", t.Cert), "set tls.cert to the .crt that 'kvferry certs issue' wrote"
		return id
	}
	for _, c := range chain {
		id.pair.Certificate = append(id.pair.Certificate, c.Raw)
	}
	id.pair.Leaf = chain[0]
	id.region, id.node, id.identityErr = certs.Identity(id.pair.Leaf)
	var key []byte
	if key, id.keyFix, id.keyErr = read("tls.key", t.Key); id.keyErr != nil {
		return id
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		id.keyErr = fmt.Errorf("%s with %s: %w", t.Cert, t.Key, err)
		id.keyFix = "set tls.cert and tls.key to the two files of one 'kvferry certs issue'"
		return id
	}
	id.pair = pair
	return id
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	data, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err == nil && len(data) > maxPEM {
		err = fmt.Errorf("read %s: more than %d bytes", path, maxPEM)
	}
	return data, err
}

func parseAll(data []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			out = append(out, c)
		}
	}
}

// readable returns our certificate, or the finding for a check that can't look at one.
func (d *doctor) readable() (*identity, Finding, bool) {
	if f, ok := d.settings(); !ok {
		return nil, f, false
	}
	id := d.tls()
	switch {
	case !id.named:
		return nil, unknown("no certificates are named: give --config, or --ca, --cert and --key"), false
	case id.err != nil:
		return nil, unknown("not looked at: see certificate.authority"), false
	}
	return id, Finding{}, true
}

// verify holds the chain to the authority at a moment at which the certificate is valid: its dates are another check's.
func (id *identity) verify() error {
	opts := x509.VerifyOptions{
		Roots: id.roots, Intermediates: x509.NewCertPool(), CurrentTime: id.pair.Leaf.NotBefore.Add(time.Second),
	}
	for _, der := range id.pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("parse intermediate: %w", err)
		}
		opts.Intermediates.AddCert(c)
	}
	for _, u := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		opts.KeyUsages = []x509.ExtKeyUsage{u}
		if _, err := id.pair.Leaf.Verify(opts); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) issueCommand() string {
	region, node := d.Config.Node.Region, d.Config.Node.ID
	if region == "" || node == "" {
		region, node = "REGION", "NODE"
	}
	return fmt.Sprintf("kvferry certs issue --dir DIR --region %s --node %s --host HOST, and set tls.cert and tls.key to what it writes", region, node)
}

func (d *doctor) checkAuthority(context.Context) Finding {
	id, f, readable := d.readable()
	if !readable {
		if d.ConfigErr == nil && d.tls().err != nil {
			return fail(d.tls().fix, "%v", d.tls().err)
		}
		return f
	}
	if err := id.verify(); err != nil {
		return fail("set tls.ca to the authority that signed it, or "+d.issueCommand(), "%s is not a node's certificate of %s: %v", id.files.Cert, id.files.CA, err)
	}
	return ok("%s is of %q", id.files.Cert, id.authorities[0].Subject.CommonName)
}

func (d *doctor) checkExpiry(context.Context) Finding {
	id, f, readable := d.readable()
	if !readable {
		return f
	}
	now := d.Host.Now()
	var soon *Finding
	judge := func(what, path, fix string, c *x509.Certificate) *Finding {
		left := c.NotAfter.Sub(now)
		switch {
		case now.Before(c.NotBefore):
			return new(fail("correct this host's clock (timedatectl), or "+fix, "%s %s is valid from %s on, and it is %s", what, path, day(c.NotBefore), day(now)))
		case left <= 0:
			return new(fail(fix, "%s %s expired at %s", what, path, day(c.NotAfter)))
		case left < expiresSoon:
			soon = new(warn(fix, "%s %s expires at %s, in %.1f days", what, path, day(c.NotAfter), left.Hours()/24))
		}
		return nil
	}
	for _, c := range id.authorities {
		if f := judge("authority", id.files.CA, "kvferry certs init --dir DIR, and issue every node's certificate again", c); f != nil {
			return *f
		}
	}
	if f := judge("certificate", id.files.Cert, d.issueCommand(), id.pair.Leaf); f != nil {
		return *f
	}
	if soon != nil {
		return *soon
	}
	return ok("until %s", day(id.pair.Leaf.NotAfter))
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

func (d *doctor) checkIdentity(context.Context) Finding {
	id, f, readable := d.readable()
	if !readable {
		return f
	}
	if id.identityErr != nil {
		return fail(d.issueCommand(), "%s: %v", id.files.Cert, id.identityErr)
	}
	want := d.Config.Node
	if d.Configured && (id.node != want.ID || id.region != want.Region) {
		return fail(fmt.Sprintf("set node.id to %s and node.region to %s, or %s", id.node, id.region, d.issueCommand()),
			"%s is of node %s of region %s; the configuration says node %s of region %s", id.files.Cert, id.node, id.region, want.ID, want.Region)
	}
	return ok("node %s of region %s", id.node, id.region)
}

func (d *doctor) checkKey(context.Context) Finding {
	id, f, readable := d.readable()
	if !readable {
		return f
	}
	if id.keyErr != nil {
		return fail(id.keyFix, "%v", id.keyErr)
	}
	st, err := os.Stat(id.files.Key)
	if err != nil {
		return fail("set tls.key to the node's key", "%v", err)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return warn("chmod 600 "+id.files.Key, "%s has mode %04o: others than its owner may use it", id.files.Key, mode)
	}
	return ok("%s has mode %04o", id.files.Key, st.Mode().Perm())
}

// usable is our certificate for a handshake; the finding is what to return when it is not fit for one.
func (d *doctor) usable() (*identity, Finding, bool) {
	id, f, readable := d.readable()
	if !readable {
		return nil, f, false
	}
	for _, c := range []struct {
		name  string
		check func(context.Context) Finding
	}{{"authority", d.checkAuthority}, {"expiry", d.checkExpiry}, {"identity", d.checkIdentity}, {"key", d.checkKey}} {
		if c.check(context.Background()).Status == Fail {
			return nil, unknown("not tried: see certificate.%s", c.name), false
		}
	}
	return id, Finding{}, true
}
