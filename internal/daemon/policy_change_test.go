package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/internal/policy"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// An offer that is made while a policy comes into force that denies it does not outlive that: whoever looks first, one of the two sees the
// other.
func TestOfferWhilePolicyChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "* * allow")
		f := newFleetEdited(t, fast, withPolicy("a", file), "a", "b")
		a := f.nodes["a"].d
		f.nodes["a"].register("e", testLayout(), 1<<20).session("s", 2)
		allow, deny := a.policy.get(), &policy.Policy{Version: policy.Version}
		from := transfer.Peer{ID: "b", Region: "r-b", Incarnation: "one"}
		made := 0
		for range 40 {
			a.policy.current.Store(allow)
			var wg sync.WaitGroup
			first, ids := make(chan struct{}, 4), make([][][]byte, 4)
			for i := range ids {
				wg.Go(func() {
					for {
						answer, err := a.offerTo(from, &pb.OfferCall{Session: &pb.SessionRef{SessionId: "s"}})
						if err != nil {
							return
						}
						if ids[i] = append(ids[i], answer.GetOfferId()); len(ids[i]) == 1 {
							first <- struct{}{}
						}
					}
				})
			}
			<-first
			a.policy.current.Store(deny)
			a.enforce()
			wg.Wait()
			for _, id := range slices.Concat(ids...) {
				made++
				if err := a.permitRead(from, id); err == nil {
					t.Fatal("an offer holds that the policy in force denies")
				}
				_ = a.offers.end(id, "b")
			}
		}
		if made < 40 {
			t.Errorf("%d offers were made", made)
		}
		if n := a.offers.count(); n != 0 {
			t.Errorf("%d offers are left", n)
		}
	})
}

// A caller that uses another tenant's request id learns that it is taken, and not by which migration.
func TestRequestIDOfAnotherTenant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := chain("s", 2)
		for _, tenant := range []string{"acme", "other"} {
			r.ea.write(tenant, keys)
			r.ea.publish(tenant, "s", keys, 35)
		}
		req := request("s")
		req.Session.Tenant = "acme"
		r.b.mustEnd(req, committed, "", moved)
		first, err := r.b.mig.GetMigration(t.Context(), &pb.GetMigrationRequest{RequestId: req.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		for tenant, want := range map[string]string{"acme": first.GetMigration().GetMigrationId(), "other": ""} {
			again := request("s")
			again.RequestId, again.Session.Tenant, again.RepinSeq = req.GetRequestId(), tenant, 3
			_, _, err := r.b.migrate(again)
			if got := wantError(t, err, ReasonRequestMismatch).Meta["migration_id"]; got != want {
				t.Errorf("tenant %q is told of migration %q, want %q", tenant, got, want)
			}
		}
		// A tenant's name is shown to people: no call may put control characters into it.
		named := request("")
		named.Session.Tenant, named.Keys, named.SourceHint = "a\x1b[2J\n", keys, "a"
		_, _, err = r.b.migrate(named)
		wantError(t, err, ReasonInvalid)
		r.settle()
	})
}

// Whoever ends a migration is in the audit.
func TestAuditCancel(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, func(name string, c *Config, _ *Parts) { c.AuditLog = filepath.Join(dir, name) })
		r.ea.session("s", 64)
		req := request("s")
		run := r.b.begin(req)
		run.landed(8192)
		if _, err := r.b.mig.CancelMigration(t.Context(), &pb.CancelMigrationRequest{RequestId: req.GetRequestId()}); err != nil {
			t.Fatal(err)
		}
		run.end()
		want := []string{"granted caller=local session_id=s act=<nil>", "granted caller=local session_id=s act=cancel"}
		if diff := cmp.Diff(want, auditOf(readAudit(t, filepath.Join(dir, "b")), "migrate", "caller", "session_id", "act")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		time.Sleep(10 * time.Second) // what the slow link had taken in goes by
		r.settle()
	})
}

// hookLog is a log whose lines a test sees as they are written.
type hookLog struct {
	slog.Handler
	line func(slog.Record)
}

func (h hookLog) Enabled(context.Context, slog.Level) bool { return true }

func (h hookLog) Handle(_ context.Context, r slog.Record) error {
	h.line(r)
	return nil
}

// A policy that comes into force between the look of Migrate at the one before and the migration's beginning, so that what it ends is not
// there yet, ends it all the same.
func TestMigrationWhilePolicyChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "* * allow")
		var b atomic.Pointer[Daemon]
		granted := func(line slog.Record) { // written after the look
			event := ""
			line.Attrs(func(a slog.Attr) bool {
				if a.Key == "event" {
					event = a.Value.String()
				}
				return event == ""
			})
			if d := b.Load(); d != nil && line.Message == "audit" && event == string(auditMigrate) {
				d.policy.current.Store(&policy.Policy{Version: policy.Version}) // denies; there is no migration to end yet
			}
		}
		r := newRig(t, fast, func(name string, c *Config, p *Parts) {
			if name == "b" {
				c.Policy = file
				p.Log = slog.New(hookLog{slog.DiscardHandler, granted})
			}
		})
		r.ea.session("s", 2)
		b.Store(r.b.d)
		r.b.mustEnd(request("s"), failed, ReasonPolicyDenied, unmoved)
		r.wantOwner("s", "a")
		r.settle()
	})
}
