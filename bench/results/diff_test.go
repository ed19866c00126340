package results

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func withMetric(t *testing.T, m Metric) *File {
	t.Helper()
	f := New(KindGoodput, nil, map[string]any{"rtt": "70ms"})
	f.Add(m)
	return f
}

func metric(better Direction, samples ...float64) Metric {
	return Metric{Name: "m", Unit: "s", Better: better, Samples: samples}
}

func TestDiffVerdicts(t *testing.T) {
	around := func(mid, step float64) []float64 {
		var s []float64
		for i := range 9 {
			s = append(s, mid+step*float64(i-4))
		}
		return s
	}
	fixed := func(better Direction, median, low, high float64) Metric {
		return Metric{Name: "m", Unit: "s", Better: better, Median: median, Low: low, High: high}
	}
	tests := []struct {
		name     string
		old, new Metric
		want     Verdict
		why      string
	}{
		{"more is better", metric(Higher, around(100, 1)...), metric(Higher, around(120, 1)...), Better, "apart, p = "},
		{"more is worse", metric(Lower, around(100, 1)...), metric(Lower, around(120, 1)...), Worse, "apart"},
		{"less is better", metric(Lower, around(120, 1)...), metric(Lower, around(100, 1)...), Better, "apart"},
		{"less is worse", metric(Higher, around(120, 1)...), metric(Higher, around(100, 1)...), Worse, "apart"},
		{"neither", metric(Neither, around(120, 1)...), metric(Neither, around(100, 1)...), Changed, "apart"},
		{"the same", metric(Lower, around(100, 0.1)...), metric(Lower, around(100.1, 0.1)...), Same, "within 2 %"},
		{"surely different, by nothing that matters", metric(Lower, around(100, 0.01)...), metric(Lower, around(101, 0.01)...), Same, "within"},
		{"noise", metric(Lower, around(100, 5)...), metric(Lower, around(110, 5)...), Unclear, "overlap"},
		{"three each", metric(Lower, 1, 1.1, 1.2), metric(Lower, 2, 2.1, 2.2), Unclear, "p = 0.1"},
		{"two each", metric(Lower, 1, 1.1), metric(Lower, 2, 2.1), Unclear, "too few samples (2 and 2)"},
		{"four each", metric(Lower, 1, 1.1, 1.2, 1.3), metric(Lower, 2, 2.1, 2.2, 2.3), Worse, "apart"},
		{"one each", metric(Lower, 1), metric(Lower, 2), Unclear, "too few"},
		{"one each, equal", metric(Lower, 1), metric(Lower, 1), Unclear, "too few"},
		{"all zero", metric(Lower, 0, 0, 0, 0, 0), metric(Lower, 0, 0, 0, 0, 0), Same, "within"},
		{"from zero", metric(Lower, 0, 0, 0, 0, 0), metric(Lower, 5, 6, 7, 8, 9), Worse, "apart"},
		{"negative", metric(Higher, -5, -6, -7, -8, -9), metric(Higher, -1, -2, -3, -4, -4.5), Better, "apart"},
		{"fits apart", fixed(Higher, 100, 90, 110), fixed(Higher, 150, 140, 160), Better, "apart"},
		{"fits overlap", fixed(Higher, 100, 90, 110), fixed(Higher, 115, 105, 125), Unclear, "overlap"},
		{"fits the same", fixed(Higher, 100, 99.7, 100.3), fixed(Higher, 100.2, 99.8, 100.6), Same, "within"},
		{"counts equal", fixed(Lower, 7, 7, 7), fixed(Lower, 7, 7, 7), Same, "within"},
		{"counts differ", fixed(Lower, 7, 7, 7), fixed(Lower, 8, 8, 8), Worse, "apart"},
		{"fit beside samples", fixed(Higher, 100, 90, 110), metric(Higher, around(150, 1)...), Better, "apart"},
		{"about the tolerance", metric(Lower, around(100, 0.1)...), metric(Lower, around(101.9, 0.1)...), Unclear, "about the tolerance"},
		{"huge", metric(Lower, 1e-300, 1e-300, 1e-300, 1e-300), metric(Lower, 1e300, 1e300, 1e300, 1e300), Worse, "apart"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := Diff(withMetric(t, test.old), withMetric(t, test.new))
			if err != nil {
				t.Fatal(err)
			}
			got := c.Changes[0]
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("verdict is %s (%s), want %s (%s); %+v", got.Verdict, got.Why, test.want, test.why, got)
			}
			if c.Count(test.want) != 1 {
				t.Errorf("it is counted %d times", c.Count(test.want))
			}
			if r := got.Ratio; r.Level > 0 && !(r.Low <= r.Value && r.Value <= r.High && finite(r.Low) && finite(r.High)) {
				t.Errorf("ratio is %+v", r)
			}
			var b strings.Builder
			if err := c.Table(&b); err != nil || !strings.Contains(b.String(), string(test.want)) {
				t.Errorf("table (%v):\n%s", err, b.String())
			}
		})
	}
}

// TestDiffNoise: of comparisons of the same with itself few are called different, of those with a large change most.
func TestDiffNoise(t *testing.T) {
	r := rng(10)
	draw := func(mean float64) Metric {
		var s []float64
		for range 10 {
			s = append(s, mean*math.Exp(0.05*r.NormFloat64()))
		}
		return metric(Lower, s...)
	}
	old, fresh := withMetric(t, draw(1)), withMetric(t, draw(1))
	const rounds = 500
	count := func(mean float64) (better, worse, held int) {
		for range rounds {
			old.Metrics, fresh.Metrics = nil, nil
			old.Add(draw(1))
			fresh.Add(draw(mean))
			c, err := Diff(old, fresh)
			if err != nil {
				t.Fatal(err)
			}
			better += c.Count(Better)
			worse += c.Count(Worse)
			if ratio := c.Changes[0].Ratio; ratio.Low <= mean && mean <= ratio.High {
				held++
			}
		}
		return better, worse, held
	}
	if better, worse, held := count(1); better+worse > rounds/50 || held < rounds*92/100 {
		t.Errorf("of %d that did not change %d are better, %d worse; the ratio's interval holds %d", rounds, better, worse, held)
	}
	if better, worse, held := count(1.2); better > 0 || worse < rounds*95/100 || held < rounds*92/100 {
		t.Errorf("of %d that are 1.2 times worse %d are worse, %d better; the ratio's interval holds %d", rounds, worse, better, held)
	}
}

func TestDiffUnlike(t *testing.T) {
	base := func() *File {
		f := withMetric(t, metric(Lower, 1, 2, 3, 4, 5))
		f.Machine.CPU, f.Machine.Cores = "one", 4
		f.Remote = map[string]Machine{"destination": {OS: "linux", CPU: "one", Cores: 4, Kernel: "6"}}
		return f
	}
	tests := []struct {
		name   string
		change func(*File)
		fields []string
		allow  []string
	}{
		{"kind", func(f *File) { f.Kind = KindQueue; f.Params["rtt"] = 1 }, []string{"kind", "params.rtt"}, nil},
		{"params", func(f *File) { f.Params["rtt"] = "80ms"; f.Params["seed"] = 1 }, []string{"params.rtt", "params.seed"}, []string{AllowParams}},
		{"absent", func(f *File) { delete(f.Params, "rtt") }, []string{"params.rtt"}, []string{AllowParams}},
		{"machine", func(f *File) { f.Machine.CPU = "two"; f.Machine.Cores = 8 }, []string{"machine.cpu", "machine.cores"}, []string{AllowMachine}},
		{"remote machine", func(f *File) {
			f.Remote = map[string]Machine{"destination": {OS: "linux", CPU: "another", Cores: 8}}
		}, []string{"remote.destination.cpu", "remote.destination.cores"}, []string{AllowMachine}},
		{"remote machine unknown", func(f *File) { f.Remote = nil }, []string{"remote.destination.os", "remote.destination.cpu", "remote.destination.cores"}, []string{AllowMachine}},
		{"both", func(f *File) { f.Params["rtt"] = 1; f.Machine.OS = "plan9" }, []string{"params.rtt", "machine.os"}, []string{AllowParams, AllowMachine}},
		{"unit", func(f *File) { f.Metrics[0].Unit = "ms" }, []string{"m unit"}, []string{AllowUnits}},
		{"direction", func(f *File) { f.Metrics[0].Better = Higher }, []string{"m better"}, []string{AllowUnits}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fresh := base()
			test.change(fresh)
			_, err := Diff(base(), fresh)
			unlike, ok := errors.AsType[*UnlikeError](err)
			if !ok {
				t.Fatalf("error is %v, want an UnlikeError", err)
			}
			var fields []string
			for _, d := range unlike.Differences {
				fields = append(fields, d.Field)
				if !strings.Contains(err.Error(), d.Field) {
					t.Errorf("%q does not name %q", err, d.Field)
				}
			}
			if !cmp.Equal(fields, test.fields) || !cmp.Equal(unlike.Allow, test.allow) {
				t.Errorf("fields %q, allow %q, want %q, %q", fields, unlike.Allow, test.fields, test.allow)
			}
			c, err := DiffConfig{Allow: []string{AllowParams, AllowMachine, AllowUnits}}.Diff(base(), fresh)
			if test.allow == nil {
				if err == nil {
					t.Error("allowing everything lets it pass")
				}
				return
			}
			if err != nil || len(c.Unlike) != len(test.fields) {
				t.Errorf("allowed, it is %+v (%v), want %d differences", c.Unlike, err, len(test.fields))
			}
			if units := test.allow[0] == AllowUnits; units != (c.Count(Missing) == 1) {
				t.Errorf("changes are %+v", c.Changes)
			}
			var b strings.Builder
			if err := c.Table(&b); err != nil || !strings.Contains(b.String(), "unlike: "+test.fields[0]) {
				t.Errorf("table does not say it (%v):\n%s", err, b.String())
			}
		})
	}
}

func TestDiffRest(t *testing.T) {
	old, fresh := withMetric(t, metric(Lower, 1, 2, 3, 4, 5)), withMetric(t, metric(Lower, 1, 2, 3, 4, 5))
	old.Add(Metric{Name: "gone", Unit: "1", Better: Higher, Median: 1, Low: 1, High: 1})
	fresh.Add(Metric{Name: "come", Unit: "1", Better: Higher, Median: 1, Low: 1, High: 1})
	old.Interrupted, fresh.Interrupted, old.Machine.Kernel, old.Versions["go"] = true, true, "1.0", "go1.0"
	c, err := Diff(old, fresh)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, ch := range c.Changes {
		names = append(names, ch.Name+" "+string(ch.Verdict))
	}
	if want := []string{"m unclear", "come missing", "gone missing"}; !cmp.Equal(names, want) {
		t.Errorf("changes are %q, want %q", names, want)
	}
	if len(c.Notes) != 4 {
		t.Errorf("notes are %q, want four", c.Notes)
	}
	for name, cfg := range map[string]DiffConfig{
		"allow": {Allow: []string{"kind"}}, "level": {Level: 1}, "tolerance": {Tolerance: 1}, "nan": {Tolerance: math.NaN()}, "level nan": {Level: math.NaN()},
	} {
		if _, err := cfg.Diff(old, fresh); err == nil || !strings.Contains(err.Error(), "want") && name != "nan" {
			t.Errorf("%s: %v, want an error", name, err)
		}
	}
	if c, err := (DiffConfig{Tolerance: -1}).Diff(old, old); err != nil || c.Changes[0].Verdict != Unclear || c.Changes[1].Verdict != Same {
		t.Errorf("without tolerance: %+v (%v), want unclear samples and the same number", c.Changes, err)
	}
	old.Kind = "x"
	if _, err := Diff(old, fresh); err == nil || !strings.Contains(err.Error(), "the old result") {
		t.Errorf("an invalid old result: %v", err)
	}
	if _, err := Diff(fresh, old); err == nil || !strings.Contains(err.Error(), "the new result") {
		t.Errorf("an invalid new result: %v", err)
	}
}

// TestDiffLarge compares more samples than are counted out.
func TestDiffLarge(t *testing.T) {
	r := rng(11)
	draw := func(mean float64) Metric {
		s := make([]float64, 20_000)
		for i := range s {
			s[i] = mean * r.ExpFloat64()
		}
		return metric(Lower, s...)
	}
	c, err := Diff(withMetric(t, draw(1)), withMetric(t, draw(0.8)))
	if err != nil {
		t.Fatal(err)
	}
	if ch := c.Changes[0]; ch.Verdict != Better || math.Abs(ch.Ratio.Value-0.8) > 0.03 || ch.Ratio.Low > 0.8 || ch.Ratio.High < 0.8 {
		t.Errorf("change is %+v, want better, ratio about 0.8", ch)
	}
}

// Holm's method against its definition by hand: the least p counts for all tests, the next for one less, never less than one before.
func TestHolm(t *testing.T) {
	t.Parallel()
	got := holm(map[string]float64{"a": 0.03, "b": 0.01, "c": 0.04, "d": 0.9})
	for name, want := range map[string]float64{"b": 0.04, "a": 0.09, "c": 0.09, "d": 0.9} {
		if math.Abs(got[name].adjusted-want) > 1e-12 || got[name].of != 4 {
			t.Errorf("%s: %+v, want %v of 4", name, got[name], want)
		}
	}
}

// Five samples a side that do not overlap have p = 1/126: enough alone, too little for one of ten metrics.
func TestDiffCorrects(t *testing.T) {
	t.Parallel()
	for _, metrics := range []int{1, 6, 7, 10} {
		old, fresh := New(KindGoodput, nil, nil), New(KindGoodput, nil, nil)
		for i := range metrics {
			shift := 0.0
			if i == 0 {
				shift = 100
			}
			name := fmt.Sprintf("m/%d", i)
			old.Add(Metric{Name: name, Unit: "s", Better: Lower, Samples: []float64{10, 11, 12, 13, 14}})
			fresh.Add(Metric{Name: name, Unit: "s", Better: Lower, Samples: []float64{10 + shift, 11 + shift, 12 + shift, 13 + shift, 14 + shift}})
		}
		c, err := Diff(old, fresh)
		if err != nil {
			t.Fatal(err)
		}
		want := Worse
		if float64(metrics)/126 > 0.05 {
			want = Unclear
		}
		if ch := c.Changes[0]; ch.Verdict != want || math.Abs(ch.Adjusted-float64(metrics)/126) > 1e-9 {
			t.Errorf("%d metrics: %s, %s, p %v and %v", metrics, ch.Verdict, ch.Why, ch.P, ch.Adjusted)
		}
	}
}

func TestDiffTellsWhatToDoubt(t *testing.T) {
	t.Parallel()
	body := func(limit string) *File {
		f := New(KindGoodput, nil, nil)
		if err := f.SetBody(map[string]any{"results": []any{map[string]any{"limited_by": limit}}}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, c := range []struct{ old, fresh, want string }{
		{"link", "link", ""}, {"machine", "link", "numbers of the old"}, {"link", "processors", "numbers of the new"}, {"others", "machine", "numbers of both"},
	} {
		old, fresh := body(c.old), body(c.fresh)
		old.Warn("busy")
		old.Warn("slow disk")
		fresh.Warn("busy")
		fresh.Warn("late timers")
		got, err := Diff(old, fresh)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(got.Notes, "\n")
		for _, want := range []string{c.want, "warning of both: busy", "warning of the old: slow disk", "warning of the new: late timers"} {
			if !strings.Contains(notes, want) {
				t.Errorf("%s, then %s: notes %q lack %q", c.old, c.fresh, notes, want)
			}
		}
		if c.want == "" && strings.Contains(notes, "the machine set") {
			t.Errorf("notes %q", notes)
		}
	}
}
