package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

const (
	// reloadEvery is how often certificate and policy files are looked at.
	reloadEvery = 5 * time.Second
	// reloadRetry is how often those that were refused are tried though nobody has touched them: a certificate may not be valid yet.
	reloadRetry = time.Minute
)

// reloads is the state of reading files again.
type reloads struct {
	mu struct {
		sync.Mutex // held for a whole round
		refused    map[string]error
		tried      map[string]time.Time
	}
	shown struct {
		sync.Mutex
		refused map[string]string
	}
}

func newReloads() *reloads {
	r := &reloads{}
	r.mu.refused, r.mu.tried, r.shown.refused = map[string]error{}, map[string]time.Time{}, map[string]string{}
	return r
}

// refusal is why what a file holds now is not in force; "" when it is.
func (r *reloads) refusal(file string) string {
	r.shown.Lock()
	defer r.shown.Unlock()
	return r.shown.refused[file]
}

func (r *reloads) show(file string, err error) {
	r.shown.Lock()
	defer r.shown.Unlock()
	delete(r.shown.refused, file)
	if err != nil {
		r.shown.refused[file] = err.Error()
	}
}

// Reload reads the certificate and policy files again and opens audit_log anew, whether or not they have changed; the daemon looks for
// changes every five seconds by itself. Links stay up. What can't be used leaves in force what was there before, and is in the error.
func (d *Daemon) Reload() error { return d.reloadFiles(true) }

func (d *Daemon) reloadFiles(force bool) error {
	d.reloads.mu.Lock()
	defer d.reloads.mu.Unlock()
	var errs []error
	if force {
		err := d.audit.reopen()
		if err != nil {
			d.log.LogAttrs(context.Background(), slog.LevelError, "audit_log can't be opened anew: lines go on into the file that was open", slog.Any("error", err))
		}
		errs = append(errs, err)
	}
	if d.certs != nil {
		errs = append(errs, d.reloadOne(fileCertificate, auditCert, force, d.certs.Reload, func() {}))
	}
	if d.policy.path != "" {
		errs = append(errs, d.reloadOne(filePolicy, auditPolicy, force, d.policy.reload, d.enforce))
	}
	return errors.Join(errs...)
}

// reloadOne reads what one file holds, if it is another than before, and tells of it.
func (d *Daemon) reloadOne(file string, ev auditEvent, force bool, reload func(bool) (bool, error), then func()) error {
	st := &d.reloads.mu
	before, now := st.refused[file], time.Now()
	retry := before != nil && now.Sub(st.tried[file]) >= reloadRetry
	changed, err := reload(force || retry)
	if !changed && err == nil {
		return nil
	}
	st.tried[file], st.refused[file] = now, err
	d.reloads.show(file, err)
	if err != nil && before != nil && before.Error() == err.Error() && !force {
		return err // told of already
	}
	if changed {
		then()
	}
	d.logReload(file, ev, changed, err)
	return err
}

// watchFiles looks for changes until the daemon closes.
func (d *Daemon) watchFiles() {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.closing:
			return
		case <-tick.C:
			_ = d.reloadFiles(false) // logged
		}
	}
}

// openIdentity reads what says who this node is and what others may do here. It comes first: nothing is answered without.
func (d *Daemon) openIdentity(parts *Parts) (err error) {
	d.identity = newIdentityMetrics(maker{d.registry})
	if err := d.openTLS(parts); err != nil {
		return err
	}
	if d.leaf, err = checkIdentity(d.cfg, parts.TLS); err != nil {
		return err
	}
	if d.policy, err = openPolicy(d.cfg.Policy); err != nil {
		return err
	}
	d.audit, err = openAudit(d.cfg.AuditLog, d.log)
	if d.audit != nil {
		d.audit.metrics = &d.identity.audit
	}
	return err
}

// openTLS loads the certificates that the configuration names.
func (d *Daemon) openTLS(parts *Parts) (err error) {
	if parts.TLS != nil {
		return nil
	}
	if err := d.cfg.validateTLS(); err != nil {
		return err
	}
	if d.certs, err = certs.OpenKeeper(certs.Files{CA: d.cfg.TLS.CA, Cert: d.cfg.TLS.Cert, Key: d.cfg.TLS.Key}); err != nil {
		return err
	}
	parts.TLS = d.certs.TLS()
	return nil
}

// currentTLS is the transfer.Config.CurrentTLS: nil where certificates do not change.
func (d *Daemon) currentTLS() func() *tls.Config {
	if d.certs == nil {
		return nil
	}
	return d.certs.TLS
}

// remoteTLS is for the gRPC listener: what holds when a handshake begins.
func (d *Daemon) remoteTLS(given *tls.Config) *tls.Config {
	server := func(t *tls.Config) *tls.Config {
		t = t.Clone()
		t.ClientAuth, t.MinVersion, t.NextProtos = tls.RequireAndVerifyClientCert, tls.VersionTLS13, []string{"h2"}
		t.SessionTicketsDisabled = true // a session that is resumed would outlive the authority that vouched for it
		if t.ClientCAs == nil {
			t.ClientCAs = t.RootCAs
		}
		return t
	}
	t := server(given)
	if d.certs != nil {
		t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return server(d.certs.TLS()), nil }
	}
	return t
}

// certificates are this node's own and the authorities, as they are in force; without files the authorities are not known.
func (d *Daemon) certificates() (leaf *x509.Certificate, authorities []*x509.Certificate) {
	if d.certs != nil {
		m := d.certs.Material()
		return m.Certificate.Leaf, m.Authorities
	}
	return d.leaf, nil
}

// certificateStatus is what Status says of the certificate.
func (d *Daemon) certificateStatus() *pb.CertificateStatus {
	leaf, authorities := d.certificates()
	out := &pb.CertificateStatus{
		Serial: fmt.Sprintf("%x", leaf.SerialNumber), ExpiresIn: durationpb.New(time.Until(leaf.NotAfter)), Refused: d.reloads.refusal(fileCertificate),
	}
	if len(authorities) > 0 {
		out.AuthorityExpiresIn = durationpb.New(time.Until(firstEnd(authorities)))
	}
	return out
}

// policyStatus is what Status says of the policy; nil without one.
func (d *Daemon) policyStatus() *pb.PolicyStatus {
	p := d.policy.get()
	if p == nil {
		return nil
	}
	return &pb.PolicyStatus{
		Path: d.policy.path, Rules: int64(len(p.Rules)), Callers: int64(len(p.Callers)), Limits: int64(len(p.Limits)), Refused: d.reloads.refusal(filePolicy),
	}
}

// regionOf is the transfer.Config.Region: a peer is where its certificate says.
func regionOf(c *x509.Certificate) (string, error) {
	region, _, err := certs.Identity(c)
	return region, err
}

// expect is the transfer.Config.Expect: a peer that is dialled is of the region that the configuration says.
func (d *Daemon) expect(want transfer.PeerID, c *x509.Certificate) error {
	region, err := regionOf(c)
	if err != nil {
		return err
	}
	for _, p := range d.cfg.Peers {
		if p.Node != string(want) || p.Region == region {
			continue
		}
		return fmt.Errorf("the configuration says that node %q is of region %q, its certificate says %q: correct peers[].region", string(want), p.Region, region)
	}
	return nil
}

// startAttrs are what the first audit line says.
func (d *Daemon) startAttrs() []slog.Attr {
	return append([]slog.Attr{
		slog.String("node", d.cfg.Node.ID), slog.String("node_region", d.cfg.Node.Region), slog.String("incarnation", d.incarnation), slog.String("policy_file", d.cfg.Policy),
	}, append(d.reloadAttrs(auditCert), d.reloadAttrs(auditPolicy)...)...)
}

// logStart writes it.
func (d *Daemon) logStart() {
	d.audit.grant(auditStart, "self", d.startAttrs()...)
	if d.cfg.Policy == "" {
		d.log.LogAttrs(context.Background(), slog.LevelInfo, "no policy file: every peer of the authority may pull every tenant")
	}
}
