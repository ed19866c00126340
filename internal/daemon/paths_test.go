package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

func measured(v float64, age time.Duration) transfer.Estimate {
	return transfer.Estimate{Value: v, Spread: v / 4, Samples: 7, Age: age, Basis: transfer.Measured}
}

// samePaths compares what files hold: to the second, and durations to the microsecond.
func samePaths(t *testing.T, want, got map[transfer.PeerID]pastPath) {
	t.Helper()
	opts := cmp.Options{
		cmp.AllowUnexported(pastPath{}), cmp.Comparer(func(a, b time.Time) bool { return a.Unix() == b.Unix() }),
		cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= time.Microsecond }),
		cmpopts.EquateEmpty(), cmpopts.IgnoreFields(transfer.Estimate{}, "Basis"),
	}
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Error(d)
	}
}

// What is written is read again; a file that is not ours is refused and dropped.
func TestPathsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "paths.json")
	p, err := openPaths(file)
	if err != nil || p.recall("a") != (transfer.Estimates{}) {
		t.Fatalf("no file: %v, %v", p.recall("a"), err)
	}
	est := transfer.Estimates{
		Goodput: measured(1e8, time.Hour), Capacity: measured(1.1e8, time.Minute), RTTMin: measured(0.07, 0), Loss: measured(1e-3, time.Second), Stripes: 9,
		Ratio: measured(1.47, time.Minute), CodecRate: measured(8e8, time.Minute),
	}
	est.Coding[codec.FP8] = transfer.CodingEstimates{Ratio: measured(1.1, time.Minute), CodecRate: measured(4e8, time.Minute)}
	p.learn("a", est)
	p.learn("b", transfer.Estimates{RTTMin: measured(0.01, 0)}) // no news
	if err := p.flush(false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("written within a minute")
	}
	if err := p.flush(true); err != nil {
		t.Fatal(err)
	}
	again, err := openPaths(file)
	if err != nil {
		t.Fatal(err)
	}
	samePaths(t, p.mu.known, again.mu.known)
	if _, ok := again.mu.known["b"]; ok {
		t.Error("a round trip alone was remembered")
	}
	got := again.recall("a")
	if g := got.Goodput; g.Basis != transfer.Persisted || g.Value != 1e8 || g.Samples != 7 || g.Age < time.Hour || g.Age > time.Hour+time.Minute || got.Stripes != 9 || got.Ramp.Known() || got.Ratio.Value != 1.47 || got.CodecRate.Value != 8e8 ||
		got.Coding[codec.FP8].Ratio.Value != 1.1 || got.Coding[codec.FP8].CodecRate.Value != 4e8 || got.Coding[codec.BF16].Ratio.Known() {
		t.Errorf("recalled %+v", got)
	}
	// One number that is measured anew leaves the others as old as they are.
	again.learn("a", transfer.Estimates{Goodput: measured(2e8, 0), Capacity: got.Capacity})
	if got := again.recall("a"); got.Goodput.Value != 2e8 || got.Goodput.Age > time.Minute || got.Loss.Value != 1e-3 || got.Capacity.Age < time.Minute || got.Stripes != 9 {
		t.Errorf("after another measurement %+v", got)
	}

	// What is not ours is dropped, and replaced.
	for name, content := range map[string]string{
		"empty": "", "not JSON": "x", "another version": `{"version":9,"paths":[]}`, "the one before": `{"version":2,"paths":[]}`, "something follows": `{"version":4,"paths":[]} {}`, "unknown key": `{"version":4,"paths":[],"z":1}`,
		"no peer":          `{"version":4,"paths":[{"peer":"","unix_seconds":1,"stripes":1,"numbers":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"five numbers":     `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":1,"numbers":[{},{},{},{},{}]}]}`,
		"too many stripes": `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":65,"numbers":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"negative":         `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":1,"numbers":[{"value":-1,"samples":1},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"no samples":       `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":1,"numbers":[{"value":1},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"loss above one":   `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":1,"numbers":[{},{},{},{},{"value":2,"samples":1},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"ancient":          `{"version":4,"paths":[{"peer":"a","unix_seconds":1,"stripes":1,"numbers":[{"value":2,"samples":1,"age_seconds":1e18},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}]}`,
		"too long":         strings.Repeat(" ", maxPathsBytes+1),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := openPaths(file)
		if err == nil || !strings.Contains(err.Error(), "read past paths") || len(p.mu.known) != 0 {
			t.Errorf("%s: %v, %v", name, p.mu.known, err)
		}
		p.learn("a", est)
		if err := p.flush(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// FuzzPaths: the decoder never panics, and what it accepts comes back from what is written of it.
func FuzzPaths(f *testing.F) {
	f.Add([]byte(`{"version":4,"paths":[]}`))
	f.Add([]byte(`{"version":4,"paths":[{"peer":"a","unix_seconds":1733000000,"stripes":3,"numbers":[{"value":1e8,"spread":5,"samples":3,"age_seconds":1.5},{},{},{},{"value":1e-3,"samples":1},{},{},{"value":3e9,"samples":2},{},{},{},{},{},{},{"value":1.1,"samples":2},{}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		known, err := decodePaths(b)
		if err != nil {
			return
		}
		out, err := encodePaths(known)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodePaths(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		samePaths(t, known, again)
	})
}

// A daemon that restarts plans with what it measured before, and says so.
func TestPathsSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		r.ea.session("s", 150)
		r.b.mustEnd(request("s"), committed, "", moved)
		links := func(n *node) *pb.LinkStatus {
			t.Helper()
			resp, err := n.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
			if err != nil || len(resp.GetLinks()) != 1 {
				t.Fatalf("links %v, %v", resp, err)
			}
			return resp.GetLinks()[0]
		}
		before := links(r.b)
		if g := before.GetGoodput(); g.GetBasis() != pb.EstimateBasis_ESTIMATE_BASIS_MEASURED || g.GetValue() != before.GetGoodputBps() || !before.GetMeasured() {
			t.Errorf("before %v", before)
		}
		time.Sleep(time.Hour)
		b := r.restart("b")
		after := links(b)
		g := after.GetGoodput()
		if g.GetBasis() != pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED || g.GetValue() != before.GetGoodputBps() || after.GetMeasured() || after.GetGoodputBps() != before.GetGoodputBps() {
			t.Errorf("after %v, before %v", after, before)
		}
		if age := g.GetAge().AsDuration(); age < time.Hour || age > time.Hour+time.Minute {
			t.Errorf("remembered for %v, want an hour", age)
		}
		link, err := b.d.links.get(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		in := b.d.linkInputs(link, codec.BF16, 0)
		if !in.Cold || in.Goodput != planner.Rate(before.GetGoodputBps()) || in.Age < time.Hour || !strings.Contains(in.Source, "earlier link") {
			t.Errorf("planner gets %+v", in)
		}
	})
}

// What links export of a path equals what ListLinks says of it.
func TestPathMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil) // 1.2 MB take ten seconds: many looks at the path
		r.ea.session("s", 150)
		r.b.mustEnd(request("s"), committed, "", moved)
		time.Sleep(5 * time.Second) // for the last acknowledgements
		r.wantLinkMetrics(r.b.samples())
		resp, err := r.b.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
		if err != nil {
			t.Fatal(err)
		}
		l := resp.GetLinks()[0]
		c := l.GetCapacity()
		if c.GetBasis() != pb.EstimateBasis_ESTIMATE_BASIS_MEASURED || c.GetValue() < 0.8*slow.Rate || c.GetValue() > 1.2*slow.Rate {
			t.Errorf("capacity %v of a link of %g bit/s", c, slow.Rate)
		}
		if l.GetLoss().GetBasis() != pb.EstimateBasis_ESTIMATE_BASIS_MEASURED || l.GetRtt().GetValue() != l.GetRttMin().AsDuration().Seconds() {
			t.Errorf("link %v", l)
		}
		got := r.b.samples()
		wantSamples(t, got, map[string]float64{`kvferry_link_capacity_age_seconds{peer="a"}`: c.GetAge().AsDuration().Seconds()})
		r.settle()
	})
}

// A file with a number that no path has is refused whole; nothing that was learned makes such a file.
func TestPathsBounds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "paths.json")
	const unknown = `{"value":0,"spread":0,"samples":0,"age_seconds":0}`
	number := func(value, spread string) string {
		return `{"value":` + value + `,"spread":` + spread + `,"samples":1,"age_seconds":1}`
	}
	for name, c := range map[string]struct {
		at     int
		number string
		good   bool
	}{
		"goodput":               {0, number("1e8", "1e7"), true},
		"no goodput":            {0, number("0", "0"), false},
		"goodput of nothing":    {0, number("1e-300", "0"), false},
		"goodput without bound": {0, number("1e308", "0"), false},
		"spread without bound":  {0, number("1e8", "1e308"), false},
		"capacity":              {1, number("1e300", "0"), false},
		"round trip of an hour": {2, number("3600", "0"), false},
		"smoothed of an age":    {3, number("1e300", "0"), false},
		"loses more than all":   {4, number("1.5", "0"), false},
		"ramp of a day":         {5, number("86400", "0"), false},
		"ratio":                 {6, number("1.45", "0.1"), true},
		"coded to more":         {6, number("0.9", "0"), false},
		"codec rate":            {7, number("8e8", "0"), true},
		"codec without bound":   {7, number("1e14", "0"), false},
		"ratio of FP8":          {12, number("1.1", "0.1"), true},
		"others coded to more":  {14, number("0.9", "0"), false},
		"their codec's rate":    {15, number("8e8", "0"), true},
		"rate without bound":    {15, number("1e14", "0"), false},
	} {
		numbers := make([]string, pathNumbers)
		for i := range numbers {
			numbers[i] = unknown
		}
		numbers[c.at] = c.number
		text := `{"version":4,"paths":[{"peer":"a","unix_seconds":1790000000,"stripes":4,"numbers":[` + strings.Join(numbers, ",") + `]}]}`
		if _, err := decodePaths([]byte(text)); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := decodePaths([]byte(text + "}")); err == nil {
			t.Errorf("%s: a brace too many was taken", name)
		}
	}
	p, err := openPaths(file)
	if err != nil {
		t.Fatal(err)
	}
	p.learn("a", transfer.Estimates{Goodput: measured(1e20, 0), Capacity: measured(1e8, 0), RTTMin: measured(1e6, 0), Loss: measured(0.1, 0)})
	if err := p.flush(true); err != nil {
		t.Fatal(err)
	}
	again, err := openPaths(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.recall("a"); got.Goodput.Known() || got.RTTMin.Known() || got.Capacity.Value != 1e8 || got.Loss.Value != 0.1 {
		t.Errorf("read back %+v", got)
	}
}
