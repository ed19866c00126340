package daemon

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const callersOfTest = `
callers:
  - {name: acme-proxies, nodes: ["proxy-*"], regions: [r-x], tenants: [acme], calls: [migrate, observe], decision: allow}
  - {name: look, nodes: [alice], regions: [r-x], tenants: [acme], calls: [observe], decision: allow}
`

// Over TCP a caller may do what the policy's callers say, by its certificate; what it may not see is not there. Local callers may all.
func TestCallersOverTCP(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, callersOfTest, "* * allow")
		x := newFiled(t, fast, dir, withPolicy("a", file))
		for _, tenant := range []string{"acme", "other"} {
			keys := chain(tenant, 2)
			x.eb.write(tenant, keys)
			for _, id := range []string{"s-" + tenant, "t-" + tenant} {
				x.eb.publish(tenant, id, keys, 35)
			}
			req := request("s-" + tenant)
			req.Session.Tenant, req.RequestId = tenant, "first-"+tenant
			x.a.mustEnd(req, committed, "", moved)
		}
		for _, tc := range []struct {
			node, region, tenant   string
			observe, any, migrates bool
		}{
			{"proxy-1", "r-x", "acme", true, true, true},
			{"proxy-1", "r-x", "other", false, true, false},
			{"alice", "r-x", "acme", true, true, false},
			{"alice", "r-x", "other", false, true, false},
			{"proxy-1", "r-y", "acme", false, false, false},
			{"mallory", "r-x", "acme", false, false, false},
			{"b", "r-b", "acme", false, false, false}, // a peer's certificate is a caller's like any other
		} {
			conn := x.dialTLS(issue(t, x.ca, tc.region, tc.node).Material(x.ca).PeerConfig("r-a", "a"))
			mig, region := pb.NewMigrationServiceClient(conn), pb.NewRegionServiceClient(conn)
			want := func(what string, ok bool, reason Reason, err error) {
				t.Helper()
				if ok && err != nil {
					t.Errorf("%s of %s, tenant %s: %s: %v", tc.node, tc.region, tc.tenant, what, err)
				} else if !ok {
					wantError(t, err, reason)
				}
			}
			_, err := region.Status(t.Context(), &pb.StatusRequest{})
			want("status", tc.any, ReasonPolicyDenied, err)
			_, err = region.ListLinks(t.Context(), &pb.ListLinksRequest{})
			want("links", tc.any, ReasonPolicyDenied, err)
			_, err = pb.NewPlannerServiceClient(conn).Evaluate(t.Context(), &pb.EvaluateRequest{})
			if got := status.Code(err) == codes.PermissionDenied; got == tc.any {
				t.Errorf("%s of %s evaluates: %v", tc.node, tc.region, err)
			}
			sessions, err := region.ListSessions(t.Context(), &pb.ListSessionsRequest{})
			want("sessions", tc.any, ReasonPolicyDenied, err)
			for _, s := range sessions.GetSessions() {
				if s.GetSession().GetRef().GetTenant() != "acme" {
					t.Errorf("%s is shown %v", tc.node, s)
				}
			}
			list, err := mig.ListMigrations(t.Context(), &pb.ListMigrationsRequest{Tenant: tc.tenant})
			want("migrations", tc.any, ReasonPolicyDenied, err)
			if n := len(list.GetMigrations()); tc.any && n > 0 != tc.observe {
				t.Errorf("%s is shown %d migrations of %s", tc.node, n, tc.tenant)
			}
			plans, err := mig.ListPlans(t.Context(), &pb.ListPlansRequest{Tenant: tc.tenant})
			want("plans", tc.any, ReasonPolicyDenied, err)
			if n := len(plans.GetPlans()); tc.any && n > 0 != tc.observe {
				t.Errorf("%s is shown %d plans of %s", tc.node, n, tc.tenant)
			}
			_, err = mig.GetMigration(t.Context(), &pb.GetMigrationRequest{RequestId: "first-" + tc.tenant})
			want("migration", tc.observe, ReasonMigrationNotFound, err)
			_, err = mig.GetPlan(t.Context(), &pb.GetPlanRequest{RequestId: "first-" + tc.tenant})
			want("plan kept", tc.observe, ReasonMigrationNotFound, err)
			_, err = mig.CancelMigration(t.Context(), &pb.CancelMigrationRequest{RequestId: "first-" + tc.tenant})
			want("cancel", tc.migrates, ReasonMigrationNotFound, err)
			first, err := x.a.mig.GetMigration(t.Context(), &pb.GetMigrationRequest{RequestId: "first-" + tc.tenant})
			if err != nil {
				t.Fatal(err)
			}
			_, err = mig.ClaimPrefill(t.Context(), &pb.ClaimPrefillRequest{MigrationId: first.GetMigration().GetMigrationId(), WantBlocks: 1})
			want("claim", tc.migrates, ReasonMigrationNotFound, err)
			req := request("t-" + tc.tenant)
			req.Session.Tenant = tc.tenant
			_, err = mig.Plan(t.Context(), &pb.PlanRequest{Migrate: req})
			want("plan", tc.observe, ReasonPolicyDenied, err)
			stream, err := mig.Migrate(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			want("migrate", tc.migrates, ReasonPolicyDenied, err)
			if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("health: %v", err)
			}
			// Engines' calls are not served over TCP at all.
			_, err = pb.NewEngineServiceClient(conn).LookupBlocks(t.Context(), &pb.LookupBlocksRequest{})
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("an engine's call over TCP: %v", err)
			}
		}
		req := request("t-other")
		req.Session.Tenant = "other"
		x.a.mustEnd(req, committed, "", moved) // over the unix socket
		time.Sleep(time.Minute)
	})
}

// Without a policy file every certificate of the authority may call, and one of another may not.
func TestCallersWithoutPolicy(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		x := newFiled(t, fast, dir, nil)
		if _, err := x.served(issue(t, x.ca, "r-x", "anybody"), x.ca); err != nil {
			t.Error(err)
		}
		other := newFiledCA(t)
		if _, err := x.served(issue(t, other, "r-x", "anybody"), x.ca); err == nil {
			t.Error("a certificate of another authority is let in")
		}
	})
}
