package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/policy"
	"github.com/kvferry/kvferry/kvstore"
)

// caller is who makes a gRPC call: a local process, or the holder of a certificate.
type caller struct {
	proc         *localProcess // of the unix socket; nil for an in-memory listener
	remote       bool
	node, region string // of a remote caller, as its certificate says
}

// callerOf reads who calls off the connection: nothing in a request says so.
func callerOf(ctx context.Context) (caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, nil
	}
	switch info := p.AuthInfo.(type) {
	case *localProcess:
		return caller{proc: info}, nil
	case credentials.TLSInfo:
		if len(info.State.PeerCertificates) == 0 {
			return caller{}, failf(ReasonPermission, "call with a certificate of the fleet's authority", "the caller has no certificate")
		}
		region, node, err := certs.Identity(info.State.PeerCertificates[0])
		if err != nil {
			return caller{}, failf(ReasonPermission, "call with a certificate that `kvferry certs issue` made", "%v", err)
		}
		return caller{remote: true, node: node, region: region}, nil
	}
	return caller{}, nil
}

// name is what audit lines are counted by.
func (c caller) name() string {
	switch {
	case c.remote:
		return c.node
	case c.proc != nil && c.proc.known:
		return fmt.Sprintf("uid %d", c.proc.uid)
	}
	return "local"
}

func (c caller) attrs() []slog.Attr {
	switch {
	case c.remote:
		return []slog.Attr{slog.String("caller", c.node), slog.String("caller_region", c.region)}
	case c.proc != nil && c.proc.known:
		return []slog.Attr{slog.Int("pid", c.proc.pid), slog.Uint64("uid", uint64(c.proc.uid)), slog.Uint64("gid", uint64(c.proc.gid))}
	}
	return []slog.Attr{slog.String("caller", "local")}
}

// may holds a call about a tenant to the policy. Local callers may do all that the socket lets in.
func (d *Daemon) may(ctx context.Context, call policy.Call, t kvstore.Tenant) error {
	who, err := callerOf(ctx)
	if err != nil || !who.remote {
		return err
	}
	dec := d.policy.get().Call(who.node, who.region, call, string(t))
	return d.callDecided(who, call, dec, "%q of region %q may not %s for tenant %.64q", who.node, who.region, call, string(t))
}

// mayAny holds a call that is of no tenant.
func (d *Daemon) mayAny(ctx context.Context, call policy.Call) error {
	who, err := callerOf(ctx)
	if err != nil || !who.remote {
		return err
	}
	dec := d.policy.get().CallAny(who.node, who.region, call)
	return d.callDecided(who, call, dec, "%q of region %q may not %s", who.node, who.region, call)
}

func (d *Daemon) callDecided(who caller, call policy.Call, dec policy.Decision, format string, args ...any) error {
	if dec.Allowed {
		return nil
	}
	err := denied(dec, format, args...)
	err.Fix = "have the policy's callers allow it, or call with another certificate"
	ev := auditObserve
	if call == policy.Migrate {
		ev = auditMigrate
	}
	d.metrics.identity.denials.WithLabelValues(string(ev)).Inc()
	d.audit.refuse(ev, who.name(), err, append(who.attrs(), slog.String("rule", dec.Rule))...)
	return err
}

// sees says which tenants' records a caller is shown. What it is not shown does not exist for it.
func (d *Daemon) sees(ctx context.Context) (func(tenant string) bool, error) {
	if err := d.mayAny(ctx, policy.Observe); err != nil {
		return nil, err
	}
	who, _ := callerOf(ctx) // it was read
	p := d.policy.get()
	if !who.remote || p == nil {
		return func(string) bool { return true }, nil
	}
	return func(t string) bool { return p.Call(who.node, who.region, policy.Observe, t).Allowed }, nil
}

// findFor finds a migration that the caller may act on or see; one that it may not is not found.
func (d *Daemon) findFor(ctx context.Context, call policy.Call, id, requestID string) (*migration, error) {
	m, err := d.migrations.find(id, requestID)
	if err != nil {
		return nil, err
	}
	if d.may(ctx, call, m.demand.tenant) != nil {
		return nil, noMigration(id + requestID)
	}
	return m, nil
}

// admit holds a demand to the policy: who asks, and whether this node may have the session.
func (d *Daemon) admit(ctx context.Context, call policy.Call, q demand) error {
	if err := d.may(ctx, call, q.tenant); err != nil {
		return err
	}
	err := d.mayHold(q.tenant)
	if err == nil && call != policy.Migrate {
		return nil
	}
	who, _ := callerOf(ctx) // may has read it
	if err != nil {
		d.metrics.identity.denials.WithLabelValues(string(auditMigrate)).Inc()
	}
	d.audit.decide(auditMigrate, who.name(), err, joinAttrs(who.attrs(), sessionAttrs(q.tenant, q.session), []slog.Attr{slog.String("request_id", q.requestID)})...)
	return err
}

// admitLocal holds a process to listen.allow_uids. The daemon's own user and root are always let in, as are all that the socket's mode lets
// in where the list is empty.
func (d *Daemon) admitLocal(ctx context.Context) error {
	list := d.cfg.Listen.AllowUIDs
	if len(list) == 0 {
		return nil
	}
	who, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if p := who.proc; p != nil && p.known && (p.uid == 0 || int(p.uid) == os.Geteuid() || slices.Contains(list, int(p.uid))) {
		return nil
	}
	err = failf(ReasonPermission, "add the process's uid to listen.allow_uids, or run it as one that is there", "%s may not use this socket", who.name())
	d.audit.refuse(auditSocket, who.name(), err, who.attrs()...)
	return err
}

func (d *Daemon) localUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := d.admitLocal(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d *Daemon) localStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := d.admitLocal(stream.Context()); err != nil {
		return err
	}
	return handler(srv, stream)
}
