package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/internal/policy"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

// policies holds the policy in force. Without a file it is nil, and everything is allowed.
type policies struct {
	path    string
	current atomic.Pointer[policy.Policy]
	mu      struct {
		sync.Mutex
		seen fileStamp
	}
}

// fileStamp tells a file from what it was; the zero value is that of no file.
type fileStamp struct {
	info os.FileInfo
	time time.Time
	size int64
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info, info.ModTime(), info.Size()}
}

func (s fileStamp) same(o fileStamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return s.time.Equal(o.time) && s.size == o.size && os.SameFile(s.info, o.info)
}

// openPolicy reads the file, if one is named. A file that can't be used is an error: the daemon does not start without the
// policy that it was given.
func openPolicy(path string) (*policies, error) {
	p := &policies{path: path}
	if path == "" {
		return p, nil
	}
	_, err := p.reload(true)
	return p, err
}

// get is the policy in force; nil for none.
func (p *policies) get() *policy.Policy {
	if p == nil {
		return nil
	}
	return p.current.Load()
}

// reload takes the file in if it has changed, or in any case with force. What can't be used leaves in force what was there, and so does
// a file that is gone: a policy is taken away by configuration only.
func (p *policies) reload(force bool) (changed bool, err error) {
	if p.path == "" {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := stampOf(p.path)
	if now.same(p.mu.seen) && !force {
		return false, nil
	}
	p.mu.seen = now
	data, err := readPolicy(p.path)
	if err != nil {
		return false, err
	}
	next, err := policy.Parse(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w; correct it, `kvferry policy check %s` says when it is right", p.path, err, p.path)
	}
	p.current.Store(next)
	return true, nil
}

func readPolicy(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	data, err := io.ReadAll(io.LimitReader(f, policy.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return data, nil
}

// denied is the failure of a decision, the same whether or not what was asked for exists.
func denied(d policy.Decision, format string, args ...any) *Failure {
	rule := "no rule of the policy allows it"
	if d.Rule != "" {
		rule = fmt.Sprintf("rule %q of the policy", d.Rule)
	}
	f := failf(ReasonPolicyDenied, "serve the session from a region that the policy allows, or change the policy file of that node", "%s: %s", fmt.Sprintf(format, args...), rule)
	return f.with("rule", d.Rule)
}

// mayPull holds a peer's call about a tenant to the policy, before anything is looked up.
func (d *Daemon) mayPull(from transfer.Peer, ev auditEvent, t kvstore.Tenant, id kvstore.SessionID) error {
	dec := d.policy.get().Pull(from.Region, string(t))
	if dec.Allowed {
		return nil
	}
	err := denied(dec, "region %q may not pull tenant %.64q", from.Region, string(t))
	d.metrics.identity.denials.WithLabelValues(string(ev)).Inc()
	d.audit.refuse(ev, string(from.ID), err, joinAttrs(peerAttrs(from), sessionAttrs(t, id), []slog.Attr{slog.String("rule", dec.Rule)})...)
	return err
}

// mayHold says whether this node's own region may pull a tenant's sessions.
func (d *Daemon) mayHold(t kvstore.Tenant) error {
	if dec := d.policy.get().Pull(d.cfg.Node.Region, string(t)); !dec.Allowed {
		return denied(dec, "this node's region %q may not pull tenant %.64q", d.cfg.Node.Region, string(t))
	}
	return nil
}

// enforce ends what a new policy does not allow: offers of peers, whose reads fail from here on, and migrations into this node.
func (d *Daemon) enforce() {
	p := d.policy.get()
	ended := d.offers.revoke(func(of *offer) error {
		if dec := p.Pull(of.region, string(of.session.Tenant)); !dec.Allowed {
			return denied(dec, "region %q may not pull tenant %.64q any more", of.region, string(of.session.Tenant))
		}
		return nil
	})
	for _, of := range ended {
		d.metrics.identity.denials.WithLabelValues(string(auditOffer)).Inc()
		d.audit.refuse(auditPolicy, string(of.peer), of.revoked, joinAttrs(peerAttrs(transfer.Peer{ID: of.peer, Region: of.region}),
			sessionAttrs(of.session.Tenant, of.session.ID), []slog.Attr{slog.String("migration_id", clipped(of.migration))})...)
	}
	for _, m := range d.migrations.list("", true, 1<<30) {
		if err := d.mayHold(m.demand.tenant); err != nil {
			d.audit.refuse(auditPolicy, "self", err, joinAttrs(sessionAttrs(m.demand.tenant, m.demand.session), []slog.Attr{slog.String("migration_id", m.id)})...)
			m.cancel(err)
		}
	}
}

// permitRead binds a read to the peer that the offer was made to, as its certificate then said that it is.
func (d *Daemon) permitRead(from transfer.Peer, token []byte) error {
	of, err := d.offers.find(token, "")
	if err == nil && (of.peer != from.ID || of.region != from.Region) {
		err = failf(ReasonPermission, "read by an offer of this node's own", "the offer was made to another node")
		d.audit.refuse(auditRead, string(from.ID), err, peerAttrs(from)...)
		return peerFailure(err)
	}
	return transferError(err)
}

// quota is how many slots of stride bytes a tenant may take of an arena; 0: any number.
func (d *Daemon) quota(t kvstore.Tenant, stride int64) int {
	l, ok := d.policy.get().Limit(string(t))
	if !ok || l.BytesAtRest == 0 {
		return 0
	}
	return int(max(1, min(l.BytesAtRest/stride, kvstore.MaxSlots)))
}

// tenantRate is the least of the rates that the configuration and the policy let leave for a tenant over all links; 0: no bound.
func (d *Daemon) tenantRate(t kvstore.Tenant) int64 {
	l, _ := d.policy.get().Limit(string(t))
	return leastRate(d.cfg.Tenants[string(t)].MaxRate, l.MaxRate)
}

// maxRate is the least of the rates that hold what is sent of a tenant to one peer; 0: none does.
func (d *Daemon) maxRate(t kvstore.Tenant) int64 {
	return leastRate(d.cfg.Link.MaxRate, d.tenantRate(t))
}

// leastRate is the lesser of two rates of which 0 is none.
func leastRate(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// logReload tells of a file that was read again, once a failure.
func (d *Daemon) logReload(file string, ev auditEvent, changed bool, err error) {
	m := d.metrics.identity
	switch {
	case err != nil:
		m.reloads.WithLabelValues(file, refused).Inc()
		m.failing.WithLabelValues(file).Set(1)
		d.log.LogAttrs(context.Background(), slog.LevelError, "changed file is refused, what was there before stays in force", slog.String("file", file), slog.Any("error", err))
		d.audit.refuse(ev, "self", err)
	case changed:
		m.reloads.WithLabelValues(file, "taken").Inc()
		m.failing.WithLabelValues(file).Set(0)
		d.log.LogAttrs(context.Background(), slog.LevelInfo, "changed file is in force", slog.String("file", file))
		d.audit.grant(ev, "self", d.reloadAttrs(ev)...)
	}
}

// reloadAttrs say what is in force.
func (d *Daemon) reloadAttrs(ev auditEvent) []slog.Attr {
	if ev == auditPolicy {
		p := d.policy.get()
		if p == nil {
			return nil
		}
		return []slog.Attr{slog.Int("rules", len(p.Rules)), slog.Int("callers", len(p.Callers)), slog.Int("limits", len(p.Limits))}
	}
	leaf, _ := d.certificates()
	if leaf == nil {
		return nil
	}
	return []slog.Attr{slog.String("serial", fmt.Sprintf("%x", leaf.SerialNumber)), slog.Time("not_after", leaf.NotAfter)}
}
