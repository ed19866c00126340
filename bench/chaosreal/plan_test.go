package chaosreal

import (
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/fault"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A seed is one plan, another seed another; every kind of fault comes up, and each can be read by a daemon.
func TestPlans(t *testing.T) {
	t.Parallel()
	seen, own, texts := map[Kind]int{}, 0, map[string]uint64{}
	for seed := range uint64(300) {
		p := newPlan(seed, true)
		text := p.String()
		if again := newPlan(seed, true).String(); again != text {
			t.Fatalf("seed %d gives two plans:\n%s\n%s", seed, text, again)
		}
		_, body, _ := strings.Cut(text, "\n")
		if other, ok := texts[body]; ok {
			t.Errorf("seeds %d and %d give the same plan", other, seed)
		}
		texts[body] = seed
		for _, f := range p.faults {
			seen[f.Kind]++
			if f.Migration < 0 || f.Migration >= planWaves*planAtOnce || f.Lasts < 0 || f.Role >= roles {
				t.Errorf("seed %d: %s", seed, f)
			}
		}
		for _, s := range p.daemons {
			if len(s) > 0 {
				own++
			}
			if back, err := fault.Parse(s.String()); err != nil || back.String() != s.String() {
				t.Errorf("seed %d: a daemon can't read %q: %v", seed, s, err)
			}
		}
		if without := newPlan(seed, false); without.fills() {
			t.Errorf("seed %d fills a disk that there is not", seed)
		}
	}
	for k := range kinds {
		if seen[k] < 10 {
			t.Errorf("%s comes up %d times in 300 plans", k, seen[k])
		}
	}
	if own < 100 {
		t.Errorf("daemons have faults of their own %d times in 300 plans", own)
	}
}

// The checker tells one owner from none, from two, and from one who has missed that he is not.
func TestOneOwner(t *testing.T) {
	t.Parallel()
	rec := func(owner string, repin, epoch uint64) *pb.Session {
		return &pb.Session{OwnerNodeId: owner, RepinSeq: repin, Epoch: epoch}
	}
	for _, c := range []struct {
		name               string
		a, b, c            *pb.Session
		unsettled, settled string // what is said; empty: nothing
	}{
		{"one", rec("a", 0, 1), rec("a", 0, 1), nil, "", ""},
		{"handed over", rec("b", 1, 2), rec("b", 1, 2), rec("a", 0, 1), "", ""},
		{"taken over, not heard of", rec("a", 0, 1), rec("b", 1, 2), nil, "2 owners", "2 owners"},
		{"handed over, not adopted", rec("b", 1, 2), nil, nil, "", "no owner"},
		{"not the newest", rec("b", 2, 3), rec("b", 1, 2), nil, "", "not the newest"},
		{"unknown", nil, nil, nil, "", "no owner"},
	} {
		var records []*pb.Session
		var by []string
		for i, r := range []*pb.Session{c.a, c.b, c.c} {
			if r != nil {
				records, by = append(records, r), append(by, string(rune('a'+i)))
			}
		}
		for settled, want := range map[bool]string{false: c.unsettled, true: c.settled} {
			err := oneOwner(records, by, settled)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, settled %v: %v, want %q", c.name, settled, err, want)
			}
		}
	}
}

// A report that can't be is found out.
func TestSensible(t *testing.T) {
	t.Parallel()
	req := newRequest("r", &pb.SessionRef{SessionId: "s"}, pb.Mode_MODE_FETCH, 1)
	for _, c := range []struct {
		name   string
		report *pb.MigrationReport
		ok     bool
	}{
		{"committed", &pb.MigrationReport{State: pb.MigrationState_MIGRATION_STATE_COMMITTED, Ownership: pb.Ownership_OWNERSHIP_MOVED}, true},
		{"committed and not moved", &pb.MigrationReport{State: pb.MigrationState_MIGRATION_STATE_COMMITTED, Ownership: pb.Ownership_OWNERSHIP_UNMOVED}, false},
		{"failed and moved", &pb.MigrationReport{State: pb.MigrationState_MIGRATION_STATE_FAILED, Code: "X", Ownership: pb.Ownership_OWNERSHIP_MOVED}, false},
		{"failed without a code", &pb.MigrationReport{State: pb.MigrationState_MIGRATION_STATE_FAILED, Ownership: pb.Ownership_OWNERSHIP_UNMOVED}, false},
		{"not terminal", &pb.MigrationReport{State: pb.MigrationState_MIGRATION_STATE_TRANSFERRING, Ownership: pb.Ownership_OWNERSHIP_UNMOVED}, false},
		{"more usable than there are", &pb.MigrationReport{
			State: pb.MigrationState_MIGRATION_STATE_RECOMPUTE, Ownership: pb.Ownership_OWNERSHIP_UNMOVED, BlocksTotal: 2, BlocksUsable: 3,
		}, false},
	} {
		if err := sensible(req, c.report); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
