package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// What came is held to what was predicted, or it is said why it can't be.
func TestPlanVerdict(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		edit func(*pb.PlanRecord)
		want []string
	}{
		{"within", func(*pb.PlanRecord) {}, []string{"1.07x what was predicted, within its P95"}},
		{"above", func(r *pb.PlanRecord) { *r.PredictedP95Seconds = 1.59 }, []string{"1.07x what was predicted, above its P95"}},
		{"no spread", func(r *pb.PlanRecord) { r.PredictedP95Seconds = nil }, []string{"predicted: 1.5 s took:", "1.07x what was predicted"}},
		{"no price", func(r *pb.PlanRecord) {
			r.PredictedSeconds, r.PredictedP95Seconds, r.ActualOverPredicted = nil, nil, nil
		}, []string{"predicted: ?", "not what was predicted"}},
		{"shadow", func(r *pb.PlanRecord) { r.Shadow, r.ActualOverPredicted = true, nil }, []string{"carried out: nothing: shadow mode"}},
		{"by the request", func(r *pb.PlanRecord) { r.Asked = pb.Mode_MODE_FETCH }, []string{"decided: fetch by the request"}},
		{"given up", func(r *pb.PlanRecord) {
			r.Replanned, r.CarriedOut, r.ActualOverPredicted = "the rest would take longer", pb.Mode_MODE_RECOMPUTE, nil
		}, []string{"carried out: recompute the rest would take longer"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := testPlanRecord()
			tc.edit(r)
			a, out := newTestApp()
			v := viewPlanRecord(r)
			if err := a.print(v, v.table); err != nil {
				t.Fatal(err)
			}
			wantText(t, out.String(), tc.want...)
		})
	}
}

// The list says how long ago, and what was given up.
func TestPlansTable(t *testing.T) {
	t.Parallel()
	r := testPlanRecord()
	r.Replanned = "why"
	a, out := newTestApp()
	list := []planRecordView{viewPlanRecord(r)}
	if err := a.print(nil, func(w io.Writer) { plansTable(w, list, r.GetEnded().AsTime().Add(90*time.Second)) }); err != nil {
		t.Fatal(err)
	}
	wantText(t, out.String(), "fetch, given up", "90 s ago")
}

func TestPlansFaults(t *testing.T) {
	t.Parallel()
	d := &fakeDaemon{end: refuse(t, codes.NotFound, "MIGRATION_NOT_FOUND", "no plan", "look")}
	addr := serve(t, d)
	for _, tc := range []struct {
		args []string
		code exitCode
		want string
	}{
		{[]string{"plans", "get", "m9"}, exitNotFound, "fix: look"},
		{[]string{"plans", "get"}, exitUsage, "exactly one of a migration id and --request-id"},
		{[]string{"plans", "m9"}, exitUsage, "use a command of 'kvferry plans': get"},
		{[]string{"plans", "--mode", "auto"}, exitUsage, "fix: want one of fetch, hybrid, recompute, redirect"},
		{[]string{"plans", "-n", "1001"}, exitUsage, "fix: want a whole number from 1 to 1000"},
	} {
		r := run(t, append([]string{"--addr", addr}, tc.args...)...)
		if r.code != tc.code {
			t.Errorf("%v: exit %d: %s", tc.args, r.code, r.stderr)
		}
		wantText(t, r.stderr, tc.want)
	}
}

// A migration of shadow mode says so, as it is shown to people and to programs.
func TestMigrateShadow(t *testing.T) {
	t.Parallel()
	report := testReport()
	report.State, report.Mode, report.Decided, report.Shadow = pb.MigrationState_MIGRATION_STATE_REDIRECT, pb.Mode_MODE_REDIRECT, pb.Mode_MODE_FETCH, true
	d := &fakeDaemon{script: []*pb.MigrateResponse{{MigrationId: "m1", State: report.GetState(), Plan: testPlan(), Report: report}}}
	addr := serve(t, d)
	r := run(t, "migrate", "--addr", addr, "--session", "chat", "--shadow", "-o", "json")
	if r.code != exitOK || !d.last().(*pb.MigrateRequest).GetShadow() {
		t.Fatalf("exit %d, asked %v", r.code, d.last())
	}
	wantFields(t, r.object(t), map[string]any{"migration.shadow": true, "migration.decided": "fetch", "migration.mode": "redirect"})
	wantText(t, run(t, "migrate", "--addr", addr, "--session", "chat").stdout, "mode: shadow: fetch was decided, and nothing moved")
	if d.last().(*pb.MigrateRequest).GetShadow() {
		t.Error("shadow was asked for without the flag")
	}
	report.Decided = pb.Mode_MODE_UNSPECIFIED
	wantText(t, run(t, "migrate", "--addr", addr, "--session", "chat").stdout, "mode: shadow: it did not come to a decision, and nothing moved")
	report.Decided = pb.Mode_MODE_FETCH
	report.Shadow, report.Mode = false, pb.Mode_MODE_RECOMPUTE
	wantText(t, run(t, "migrate", "--addr", addr, "--session", "chat").stdout, "mode: recompute, fetch was decided")
}

func newTestApp() (*app, *bytes.Buffer) {
	var out bytes.Buffer
	return &app{stdout: &out, stderr: &out}, &out
}
