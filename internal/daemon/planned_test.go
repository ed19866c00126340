package daemon

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Without a fixed mode the planner decides, and the report says what was carried out: a link that is slow against prefill
// leads to recompute, a fast one to fetch.
func TestPlannerDecides(t *testing.T) {
	for _, tc := range []struct {
		name            string
		secondsPerToken float64
		priorBps        float64
		want            pb.Mode
		state           pb.MigrationState
	}{
		{"slow prefill", 1, 1e9, pb.Mode_MODE_FETCH, committed},
		{"fast prefill", 1e-6, 1e6, pb.Mode_MODE_RECOMPUTE, recompute},
		{"no prior", 1e-3, -1, pb.Mode_MODE_RECOMPUTE, recompute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFleetEdited(t, fast, func(_ string, c *Config, _ *Parts) { c.Peers[0].PriorBps = tc.priorBps }, "a", "b")
				a, b, ctx := f.nodes["a"], f.nodes["b"], context.Background()
				ea := a.register("e", testLayout(), 1<<20)
				if _, err := b.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{
					EngineId: "e", Layout: testLayout(), ArenaBytes: 1 << 20, Prefill: &pb.PrefillSpeed{SecondsPerToken: tc.secondsPerToken},
				}); err != nil {
					t.Fatal(err)
				}
				keys := ea.session("s", 16)
				dry, err := b.mig.Plan(ctx, &pb.PlanRequest{Migrate: auto("s")})
				if err != nil || dry.GetPlan().GetWinner() != tc.want || dry.GetBytesMissing() != 16*8192 || dry.GetSource().GetRegionId() != "r-a" {
					t.Fatalf("plan %v, %v", dry, err)
				}
				if got := a.idle(); got != (idle{}) {
					t.Errorf("a dry run left %+v at the source", got)
				}
				rep := b.mustEnd(auto("s"), tc.state, "", moved)
				if rep.GetMode() != tc.want || (rep.GetBytes() > 0) != (tc.want == pb.Mode_MODE_FETCH) {
					t.Errorf("report %v", rep)
				}
				if tc.want == pb.Mode_MODE_RECOMPUTE && rep.GetTailTokens() != 16*16+3 {
					t.Errorf("%d tail tokens, want all", rep.GetTailTokens())
				}
				f.wantOwner("s", "b")
				ea.check("", keys)
				f.settle()
			})
		})
	}
}

// A redirect moves nothing, the owner included.
func TestRedirect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 4)
		req := request("s")
		req.Mode = pb.Mode_MODE_REDIRECT
		rep := r.b.mustEnd(req, redirect, "", unmoved)
		if rep.GetBytes() != 0 || rep.GetMode() != pb.Mode_MODE_REDIRECT || rep.GetSource().GetNodeId() != "a" {
			t.Errorf("report %v", rep)
		}
		r.ea.check("", keys)
		r.wantOwner("s", "a")
		r.settle()
	})
}

// PlannerService prices plain numbers; bad ones are named.
func TestEvaluate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		client := pb.NewPlannerServiceClient(f.nodes["a"].conn)
		good := func() *pb.EvaluateRequest {
			return &pb.EvaluateRequest{
				Model:   &pb.PlannerModel{Preset: "llama-3.1-70b"},
				Compute: &pb.PlannerCompute{SecondsPerToken: 353.89e-6},
				Link:    &pb.PlannerLink{GoodputBps: 1e11, Measured: true},
				Demand:  &pb.PlannerDemand{PrefixTokens: 1000},
			}
		}
		resp, err := client.Evaluate(context.Background(), good())
		if err != nil || resp.GetPlan().GetWinner() == pb.Mode_MODE_UNSPECIFIED {
			t.Errorf("%v, %v", resp, err)
		}
		// A constant cost is a term, and both spreads rank by P95: fetch would be the faster one, but it is the less certain.
		wide := good()
		wide.Link.Rtt = durationpb.New(70 * time.Millisecond)
		wide.Link.FixedSeconds, wide.Link.Spread, wide.Compute.Spread = 0.2, 1, 0.01
		resp, err = client.Evaluate(context.Background(), wide)
		if err != nil || !resp.GetPlan().GetRankedByP95() || resp.GetPlan().GetWinner() != pb.Mode_MODE_RECOMPUTE {
			t.Errorf("%v, %v", resp, err)
		}
		for _, m := range resp.GetPlan().GetModes() {
			switch m.GetMode() {
			case pb.Mode_MODE_FETCH:
				if math.Abs(m.GetSigmaSeconds()-m.GetSeconds()) > 1e-9 || math.Abs(m.GetP95Seconds()-2.6448536*m.GetSeconds()) > 1e-6 || m.GetSeconds() < 0.2 {
					t.Errorf("fetch %v", m)
				}
			case pb.Mode_MODE_RECOMPUTE:
				if math.Abs(m.GetSigmaSeconds()-0.01*m.GetSeconds()) > 1e-9 {
					t.Errorf("recompute %v", m)
				}
			case pb.Mode_MODE_HYBRID: // not a normal one
				if m.GetEligible() || m.GetP95Seconds() < m.GetSeconds() {
					t.Errorf("hybrid %v", m)
				}
			default:
				if m.SigmaSeconds != nil {
					t.Errorf("%v has a spread", m)
				}
			}
		}
		for _, edit := range []func(*pb.EvaluateRequest){
			func(q *pb.EvaluateRequest) { q.Link.Spread = -1 },
			func(q *pb.EvaluateRequest) { q.Link.FixedSeconds = math.NaN() },
			func(q *pb.EvaluateRequest) { q.Compute.Spread = math.Inf(1) },
			func(q *pb.EvaluateRequest) { q.Demand.PrefixTokens = -1 },
			func(q *pb.EvaluateRequest) { q.Compute.SecondsPerToken = -1 },
			func(q *pb.EvaluateRequest) { q.Link.GoodputBps = -1 },
			func(q *pb.EvaluateRequest) { q.Model.Preset = "no-such-model" },
		} {
			req := good()
			edit(req)
			_, err := client.Evaluate(context.Background(), req)
			fl := wantError(t, err, ReasonInvalid)
			if len(fl.Fields) == 0 || strings.TrimSpace(fl.Fields[0].Fault) == "" {
				t.Errorf("failure %+v", fl)
			}
		}
		f.settle()
	})
}
