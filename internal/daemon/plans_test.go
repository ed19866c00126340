package daemon

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// plan is what the node remembers of req's plan.
func (n *node) plan(req *pb.MigrateRequest) *pb.PlanRecord {
	n.f.t.Helper()
	resp, err := n.mig.GetPlan(context.Background(), &pb.GetPlanRequest{RequestId: req.GetRequestId()})
	if err != nil {
		n.f.t.Fatal(err)
	}
	return resp.GetPlan()
}

// plans lists.
func (n *node) plans(req *pb.ListPlansRequest) []*pb.PlanRecord {
	n.f.t.Helper()
	resp, err := n.mig.ListPlans(context.Background(), req)
	if err != nil {
		n.f.t.Fatal(err)
	}
	return resp.GetPlans()
}

// Every migration that had a plan leaves it, with the terms of every mode, beside what its report says; one that did not, nothing.
func TestPlansKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		var want []*pb.MigrateRequest
		reports := map[string]*pb.MigrationReport{}
		end := func(req *pb.MigrateRequest, st pb.MigrationState) {
			reports[req.GetRequestId()] = r.b.mustMigrate(req, st)
			want = append(want, req)
			time.Sleep(time.Second)
		}
		r.ea.session("fetched", 150)
		end(request("fetched"), committed)
		r.ea.session("chosen", 150)
		end(auto("chosen"), committed)
		r.ea.session("prefilled", 3)
		req := request("prefilled")
		req.Mode = pb.Mode_MODE_RECOMPUTE
		end(req, recompute)
		r.ea.session("left", 3)
		req = request("left")
		req.Mode = pb.Mode_MODE_REDIRECT
		end(req, redirect)
		r.b.mustMigrate(request("fetched"), committed)      // it is here: nothing to plan
		r.b.mustMigrate(request("nobody knows it"), failed) // nor here

		got := r.b.plans(&pb.ListPlansRequest{})
		if len(got) != len(want) {
			t.Fatalf("%d plans, want %d", len(got), len(want))
		}
		slices.Reverse(want) // newest first
		for i, req := range want {
			rec, rep := got[i], reports[req.GetRequestId()]
			if rec.GetRequestId() != req.GetRequestId() || !proto.Equal(rec.GetSession(), req.GetSession()) || rec.GetAsked() != req.GetMode() ||
				rec.GetDecided() != rep.GetMode() || rec.GetCarriedOut() != rep.GetMode() || rec.GetState() != rep.GetState() || rec.GetShadow() ||
				rec.GetBytes() != rep.GetBytes() || rec.GetTokens() != rep.GetTokens() || rec.GetSource().GetNodeId() != "a" ||
				rec.GetActualSeconds() != rep.GetTotal().AsDuration().Seconds() || rec.GetPredictedSeconds() != rep.GetPredictedSeconds() {
				t.Errorf("record %v\nof report %v", rec, rep)
			}
			if !proto.Equal(rec, r.b.plan(req)) {
				t.Errorf("get gives %v, the list %v", r.b.plan(req), rec)
			}
			// The terms add up to the prediction, and the steps to the time, as the last one ended just now.
			var terms, steps float64
			for _, term := range planOf(rec.GetPlan(), rec.GetDecided()).GetTerms() {
				terms += term.GetSeconds()
			}
			for _, s := range rec.GetSteps() {
				steps += s.GetSeconds()
			}
			if math.Abs(terms-rec.GetPredictedSeconds()) > 1e-9 || math.Abs(steps-rec.GetActualSeconds()) > 1e-9 {
				t.Errorf("terms of %v s for %v s, steps of %v s for %v s", terms, rec.GetPredictedSeconds(), steps, rec.GetActualSeconds())
			}
			if at := rec.GetEnded().AsTime(); time.Since(at).Round(time.Second) < time.Duration(i+1)*time.Second || time.Since(at) > time.Minute {
				t.Errorf("it ended %v ago", time.Since(at))
			}
			ratio, moves := rep.GetTotal().AsDuration().Seconds()/rep.GetPredictedSeconds(), rep.GetState() == committed
			if moves != (rec.ActualOverPredicted != nil) || moves && rec.GetActualOverPredicted() != ratio {
				t.Errorf("%v took %v of what was predicted, want %v", rep.GetMode(), rec.ActualOverPredicted, ratio)
			}
		}
		if n := len(r.b.plans(&pb.ListPlansRequest{Worst: true})); n != 2 {
			t.Errorf("%d can be compared, want the two that moved blocks", n)
		}
		if got := r.b.plans(&pb.ListPlansRequest{Mode: pb.Mode_MODE_RECOMPUTE}); len(got) != 1 || got[0].GetSession().GetSessionId() != "prefilled" {
			t.Errorf("of recompute: %v", got)
		}
		if n := len(r.a.plans(&pb.ListPlansRequest{})); n != 0 {
			t.Errorf("the source has %d plans", n)
		}
		if _, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: auto("left")}); err != nil || len(r.b.plans(&pb.ListPlansRequest{})) != len(want) {
			t.Errorf("a question alone left a plan, or %v", err)
		}
		r.settle()
	})
}

// A bad question is told apart, field by field.
func TestPlansRefuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		m, ctx := f.nodes["a"].mig, context.Background()
		for _, req := range []*pb.ListPlansRequest{{Limit: 1001}, {Mode: 99}} {
			_, err := m.ListPlans(ctx, req)
			wantError(t, err, ReasonInvalid)
		}
		for _, req := range []*pb.GetPlanRequest{{}, {MigrationId: "a", RequestId: "b"}} {
			_, err := m.GetPlan(ctx, req)
			wantError(t, err, ReasonInvalid)
		}
		_, err := m.GetPlan(ctx, &pb.GetPlanRequest{MigrationId: "none"})
		wantError(t, err, ReasonMigrationNotFound)
		f.settle()
	})
}

// record is one with a ratio; 0: it can't be compared.
func record(i int, ratio float64) *pb.PlanRecord {
	r := &pb.PlanRecord{
		MigrationId: fmt.Sprintf("m%d", i), RequestId: fmt.Sprintf("r%d", i), Session: &pb.SessionRef{Tenant: fmt.Sprintf("t%d", i%3), SessionId: "s"},
		Plan: &pb.Plan{Winner: pb.Mode_MODE_FETCH}, Decided: []pb.Mode{pb.Mode_MODE_FETCH, pb.Mode_MODE_HYBRID}[i%2], Shadow: ratio == 0,
		Ended: timestamppb.New(time.Unix(int64(i), 0)),
	}
	if ratio > 0 {
		r.ActualOverPredicted = &ratio
	}
	return r
}

// The list against a plain one: every pair in order, nothing missing, bounded, old ones gone; twice is as bad as half.
func TestPlansWorst(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	const all, keep = 500, 300
	p := &plans{keep: keep}
	var records []*pb.PlanRecord
	for i := range all {
		ratio := math.Exp(rng.NormFloat64())
		if i%5 == 0 {
			ratio = 0
		}
		records = append(records, record(i, ratio))
		p.add(records[i])
	}
	if len(p.mu.records) != keep {
		t.Fatalf("%d are kept", len(p.mu.records))
	}
	kept := records[all-keep:]
	for _, of := range []func(*pb.PlanRecord) bool{
		func(*pb.PlanRecord) bool { return true },
		func(r *pb.PlanRecord) bool { return r.GetDecided() == pb.Mode_MODE_HYBRID },
		func(r *pb.PlanRecord) bool { return r.GetShadow() },
	} {
		want := map[*pb.PlanRecord]bool{}
		for _, r := range kept {
			if of(r) && !r.GetShadow() {
				want[r] = true
			}
		}
		got := p.list(true, all, of)
		factor := func(r *pb.PlanRecord) float64 {
			return max(r.GetActualOverPredicted(), 1/r.GetActualOverPredicted())
		}
		for i, r := range got {
			if !want[r] || i > 0 && factor(got[i-1]) < factor(r)*(1-1e-12) {
				t.Fatalf("%v after %v", r, got[max(0, i-1)])
			}
			delete(want, r)
		}
		if len(want) > 0 {
			t.Errorf("%d are missing", len(want))
		}
		if top := p.list(true, 7, of); !slices.Equal(top, got[:min(7, len(got))]) {
			t.Error("the first seven are not the list's")
		}
	}
	newest := p.list(false, 10, func(*pb.PlanRecord) bool { return true })
	for i, r := range newest {
		if r != records[all-1-i] {
			t.Errorf("place %d has %v", i, r)
		}
	}
	if offBy(record(1, 2)) != offBy(record(1, 0.5)) {
		t.Error("twice is not as bad as half")
	}
	if _, err := p.find("m0", ""); err == nil {
		t.Error("a forgotten one is found")
	}
	if r, err := p.find("", "r499"); err != nil || r != records[499] {
		t.Errorf("%v, %v", r, err)
	}
}

// Metrics of plans add up to what the records say, and what came above its P95 counts as that.
func TestPlanMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for i := range 8 { // the spread of fetches is known from the fifth on
			id := fmt.Sprintf("s%d", i)
			r.ea.session(id, 140+i)
			r.b.mustMigrate(request(id), committed)
		}
		// A path that is longer than what is known of it.
		late := fast
		late.RTT = 400 * time.Millisecond
		if err := r.net.SetModel(r.a.ip, r.b.ip, late); err != nil {
			t.Fatal(err)
		}
		r.ea.session("late", 150)
		req := request("late")
		r.b.mustMigrate(req, committed)
		rec := r.b.plan(req)
		if rec.PredictedP95Seconds == nil || rec.GetActualSeconds() <= rec.GetPredictedP95Seconds() {
			t.Fatalf("record %v", rec)
		}
		if worst := r.b.plans(&pb.ListPlansRequest{Worst: true, Limit: 1}); len(worst) != 1 || !proto.Equal(worst[0], rec) {
			t.Errorf("the worst is %v", worst)
		}
		want := map[string]float64{
			`kvferry_migration_predicted_bound_total{mode="fetch",result="within"}`: 0, `kvferry_migration_predicted_bound_total{mode="fetch",result="above"}`: 0,
			`kvferry_migration_predicted_bound_total{mode="hybrid",result="above"}`: 0, `kvferry_migration_shadow_total{mode="fetch"}`: 0, "kvferry_daemon_shadow": 0,
			`kvferry_migration_actual_over_predicted_ratio_count{mode="fetch"}`: 9, `kvferry_migration_actual_over_predicted_ratio_count{mode="hybrid"}`: 0,
		}
		for _, p := range r.b.plans(&pb.ListPlansRequest{}) {
			if p.PredictedP95Seconds != nil {
				result := "within"
				if p.GetActualSeconds() > p.GetPredictedP95Seconds() {
					result = "above"
				}
				want[fmt.Sprintf(`kvferry_migration_predicted_bound_total{mode="fetch",result=%q}`, result)]++
			}
		}
		if want[`kvferry_migration_predicted_bound_total{mode="fetch",result="within"}`] == 0 {
			t.Error("none stayed within its P95")
		}
		wantSamples(t, r.b.samples(), want)
		r.settle()
	})
}

// A fetch that is given up for a recompute is no measure of the plan.
func TestPlanGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		model := fast
		model.Rate = 4e6
		r := replanRig(t, model, 30*time.Millisecond)
		r.ea.session("s", 300)
		req := auto("s")
		run := r.b.begin(req)
		run.landed(100 * 8192)
		model.Rate = 6e5
		if err := r.net.SetModel(r.a.ip, r.b.ip, model); err != nil {
			t.Fatal(err)
		}
		rep := run.end()
		rec := r.b.plan(req)
		if rep.GetReplanned() == "" || rec.GetReplanned() != rep.GetReplanned() || rec.GetDecided() != pb.Mode_MODE_FETCH || rec.GetCarriedOut() != rep.GetMode() || rec.ActualOverPredicted != nil {
			t.Errorf("record %v", rec)
		}
		r.settle()
	})
}

// Names come back as they were given, and a session's is not taken for another tenant's.
func TestPlansNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		name, tenant := strings.Repeat("ü", 128), `a{b="c"}`
		keys := chain("names", 2)
		r.ea.write(tenant, keys)
		r.ea.publish(tenant, name, keys, 35)
		req := request(name)
		req.Session.Tenant, req.Deadline = tenant, durationpb.New(time.Minute)
		req.RequestId = "<script>"
		r.b.mustMigrate(req, committed)
		if got := r.b.plans(&pb.ListPlansRequest{Tenant: tenant}); len(got) != 1 || !proto.Equal(got[0].GetSession(), req.GetSession()) || got[0].GetRequestId() != "<script>" {
			t.Errorf("plans %v", got)
		}
		if got := r.b.plans(&pb.ListPlansRequest{Tenant: "a"}); len(got) != 0 {
			t.Errorf("plans %v", got)
		}
		r.settle()
	})
}
