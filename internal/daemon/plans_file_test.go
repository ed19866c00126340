package daemon

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Plans outlive a restart to the bit, at most as many as are kept.
func TestPlansSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		keep := 1024
		r := newRig(t, fast, func(name string, c *Config, p *Parts) {
			onDisk(dir)(name, c, p)
			c.Migration.Keep = keep
		})
		for _, id := range []string{"one", "two", "three"} {
			r.ea.session(id, 20)
			r.b.mustMigrate(request(id), committed)
		}
		before := r.b.plans(&pb.ListPlansRequest{})
		same := func(n *node, want []*pb.PlanRecord) {
			t.Helper()
			got := n.plans(&pb.ListPlansRequest{})
			if len(want) == 0 || len(got) != len(want) {
				t.Fatalf("%d plans, want %d", len(got), len(want))
			}
			for i := range want {
				if !proto.Equal(got[i], want[i]) {
					t.Errorf("record %v, want %v", got[i], want[i])
				}
			}
		}
		same(r.restart("b"), before)
		keep = 2
		same(r.restart("b"), before[:2])
		r.settle()
	})
}

// What is written is read again; a file that is not ours is refused, dropped and replaced.
func TestPlansFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "plans.pb")
	p, err := openPlans(file, 10)
	if err != nil || len(p.mu.records) != 0 {
		t.Fatalf("no file: %v, %v", p.mu.records, err)
	}
	for i := range 12 {
		p.add(record(i, float64(i)))
	}
	if err := p.flush(false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("written within a minute")
	}
	if err := p.flush(true); err != nil {
		t.Fatal(err)
	}
	again, err := openPlans(file, 10)
	if err != nil || len(again.mu.records) != 10 || !proto.Equal(again.mu.records[0], record(2, 2)) || !proto.Equal(again.mu.records[9], record(11, 11)) {
		t.Fatalf("read again: %v, %v", again.mu.records, err)
	}
	bad := func(edit func(*pb.PlanRecord)) string {
		r := record(1, 1)
		edit(r)
		b, err := proto.Marshal(&pb.ListPlansResponse{Plans: []*pb.PlanRecord{r}})
		if err != nil {
			t.Fatal(err)
		}
		// It is never written either.
		if out, err := encodePlans([]*pb.PlanRecord{r}); err != nil || string(out) != plansMagic {
			t.Errorf("a bad record is written as %q, %v", out, err)
		}
		return plansMagic + string(b)
	}
	zero, inf := 0.0, math.Inf(1)
	for name, content := range map[string]string{
		"empty": "", "other": "x", "another version": "kvferry plans 2\n", "cut": plansMagic + "\x0a\x05a",
		"no id":             bad(func(r *pb.PlanRecord) { r.MigrationId = "" }),
		"no plan":           bad(func(r *pb.PlanRecord) { r.Plan = nil }),
		"took nothing":      bad(func(r *pb.PlanRecord) { r.ActualOverPredicted = &zero }),
		"took for ever":     bad(func(r *pb.PlanRecord) { r.ActualOverPredicted = &inf }),
		"no number":         bad(func(r *pb.PlanRecord) { r.ActualSeconds = math.NaN() }),
		"no number inside":  bad(func(r *pb.PlanRecord) { r.Plan.Modes = []*pb.ModePlan{{Seconds: 1}, {Seconds: math.Inf(-1)}} }),
		"control character": bad(func(r *pb.PlanRecord) { r.Session.SessionId = "a\x1b[2J" }),
		"long text":         bad(func(r *pb.PlanRecord) { r.Replanned = strings.Repeat("x", maxPlanText+1) }),
		"no time":           bad(func(r *pb.PlanRecord) { r.Ended = nil }),
		"too long":          strings.Repeat(" ", maxPlansBytes+1),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := openPlans(file, 10)
		if err == nil || !strings.Contains(err.Error(), "read past plans") || len(p.mu.records) != 0 {
			t.Errorf("%s: %v, %v", name, p.mu.records, err)
		}
		p.add(record(1, 1))
		if err := p.flush(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	p.file = filepath.Join(file, "nowhere")
	p.mu.changed = true
	if err := p.flush(true); err == nil || !strings.Contains(err.Error(), "write past plans") {
		t.Errorf("write to nowhere: %v", err)
	}
}

// Of more records than the file may hold the newest are written.
func TestPlansFileBounded(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", maxPlanText)
	var records []*pb.PlanRecord
	for i := range 700 {
		r := record(i, 1)
		for range 8 {
			r.Plan.Modes = append(r.Plan.Modes, &pb.ModePlan{Reason: text})
		}
		records = append(records, r)
	}
	b, err := encodePlans(records)
	if err != nil || len(b) > maxPlansBytes || len(b) < maxPlansBytes-9*maxPlanText {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got, err := decodePlans(b)
	if err != nil || len(got) == 0 || len(got) == len(records) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	for i, r := range got {
		if !proto.Equal(r, records[len(records)-len(got)+i]) {
			t.Fatalf("record %d is %s", i, r.GetMigrationId())
		}
	}
}

// FuzzPlans: the decoder never panics, and what it accepts comes back from what is written of it.
func FuzzPlans(f *testing.F) {
	b, err := encodePlans([]*pb.PlanRecord{record(1, 2), record(2, 0)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(plansMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := decodePlans(b)
		if err != nil {
			return
		}
		out, err := encodePlans(records)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodePlans(out)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&pb.ListPlansResponse{Plans: records}, &pb.ListPlansResponse{Plans: again}) {
			t.Errorf("%v comes back as %v", records, again)
		}
	})
}
