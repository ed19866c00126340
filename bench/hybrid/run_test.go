package hybrid

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/results/resultstest"
	"github.com/kvferry/kvferry/planner"
)

func quick() Config { return Config{Quick: true, Seed: 1} }

// The aims, on the small grid; the numbers of the whole one are what the command prints.
func TestAims(t *testing.T) {
	t.Parallel()
	res, err := Run(t.Context(), quick())
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Cells) != 3*1*2*2*4 {
		t.Fatalf("%d cells", len(res.Cells))
	}
	for _, name := range []string{AimRegret0, AimRegret50, AimGain, AimP99} {
		a, ok := res.Aim(name)
		if !ok || a.Cells == 0 || a.Met != a.Cells || a.Worst > a.Limit || a.Median > a.Worst {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for _, c := range res.Cells {
		o, h := c.Oracle, c.Hybrid
		if h.Mean < o.Mean*(1-1e-9) || o.Mean > min(c.Fetch.Mean, c.Recompute.Mean, c.StaticSplit.Mean)*(1+1e-9) {
			t.Errorf("something beats the oracle: %+v", c)
		}
		for _, s := range []Seconds{c.Fetch, c.Recompute, c.StaticSplit, h, o} {
			if !(s.Mean > 0) || s.P99 < s.Mean*(1-1e-9) && c.Sigma == 0 || math.IsInf(s.P99, 0) {
				t.Errorf("%+v", c)
			}
		}
		if c.Equal && c.Sigma == 0 && math.Abs(c.Fetch.Mean-c.Recompute.Mean) > 1e-6*c.Fetch.Mean {
			t.Errorf("not equal: %+v", c)
		}
		if c.Sigma == 0 && c.Hybrid.Mean != c.Hybrid.P99 {
			t.Errorf("a certain link scatters: %+v", c)
		}
	}
	body := checkShape(t, res)
	checkText(t, res)
	checkText(t, body) // a report has only that
}

// An independent simulation of the same setting: 32,000 tokens, two H100 at 3.29 s of prefill, 70 ms once, pages coded 1.33:1, sigma 0.5;
// seconds, mean and p99. It knew no blocks and no windows.
func TestAgainstIndependentSimulation(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Goodputs: []float64{5e9, 25e9}, RTTs: []time.Duration{70 * time.Millisecond}, PrefixTokens: []int64{32_000}, GPUs: []string{"2xH100-FP8"},
		Sigmas: []float64{.5}, RoundTrips: 1, CodecRatio: 1.33, Draws: 20_000,
	}.withDefaults()
	all, err := settings(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := map[float64]struct{ static, hybrid Seconds }{
		5e9:  {Seconds{3.49, 8.92}, Seconds{2.56, 3.03}},
		25e9: {Seconds{1.89, 4.72}, Seconds{1.48, 2.32}},
	}
	fetch := Seconds{3.29, 9.01} // at 25 Gbps
	z, m := normals(3, cfg.Draws), meeting{}
	near := func(what string, got, want Seconds) {
		t.Helper()
		if math.Abs(got.Mean/want.Mean-1) > .03 || math.Abs(got.P99/want.P99-1) > .06 {
			t.Errorf("%s: %+v, the other simulation had %+v", what, got, want)
		}
	}
	for _, s := range all {
		if s.cell.Equal {
			continue
		}
		k := 3.29 / s.cum[len(s.cum)-1]
		s.compute.PeakFLOPS /= k
		s.cum = slices.Clone(s.cum)
		for i := range s.cum {
			s.cum[i] *= k
		}
		c, err := s.simulate(z, &m)
		if err != nil {
			t.Fatal(err)
		}
		w := want[c.GoodputBps]
		near("fixed split", c.StaticSplit, w.static)
		near("hybrid", c.Hybrid, w.hybrid)
		if c.GoodputBps == 25e9 {
			near("fetch", c.Fetch, fetch)
		}
	}
}

// The draws have the mean that is believed, and the sigma asked for.
func TestDraws(t *testing.T) {
	t.Parallel()
	z := normals(5, 200_000)
	var sum, squares, rate float64
	for _, v := range z {
		sum, squares, rate = sum+v, squares+v*v, rate+math.Exp(.8*v-.32)
	}
	n := float64(len(z))
	if math.Abs(sum/n) > .01 || math.Abs(squares/n-1) > .02 || math.Abs(rate/n-1) > .02 {
		t.Errorf("mean %v, mean square %v, mean rate %v", sum/n, squares/n, rate/n)
	}
}

// checkShape holds the flat form to the fields that scripts use, and to no others.
func checkShape(t *testing.T, res *Result) *Result {
	t.Helper()
	f, err := res.File([]string{"kvferry", "bench", "hybrid"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.WriteFlat(&b); err != nil {
		t.Fatal(err)
	}
	type seconds struct {
		Mean *float64 `json:"mean"`
		P99  *float64 `json:"p99"`
	}
	type aim struct {
		Name      *string  `json:"name"`
		Limit     *float64 `json:"limit"`
		Cells     *int     `json:"cells"`
		Met       *int     `json:"met"`
		Median    *float64 `json:"median"`
		Worst     *float64 `json:"worst"`
		WorstCell *int     `json:"worst_cell"`
	}
	type cell struct {
		Goodput   *float64 `json:"goodput_bps"`
		RTT       *float64 `json:"rtt_seconds"`
		Tokens    *int64   `json:"prefix_tokens"`
		Prefill   *float64 `json:"prefill_us_per_token"`
		Sigma     *float64 `json:"sigma"`
		GPU       *string  `json:"gpu"`
		Equal     *bool    `json:"equal"`
		Fetch     *seconds `json:"fetch"`
		Recompute *seconds `json:"recompute"`
		Static    *seconds `json:"static_split"`
		Hybrid    *seconds `json:"hybrid"`
		Oracle    *seconds `json:"oracle"`
		Regret    *float64 `json:"regret"`
		Gain      *float64 `json:"gain"`
		TakenOver *float64 `json:"taken_over"`
		Duplicate *float64 `json:"duplicate_bytes"`
	}
	var v struct {
		Cells      []cell          `json:"cells"`
		Draws      *int            `json:"draws"`
		Real       []any           `json:"real"`
		Aims       []aim           `json:"aims"`
		Conclusion *string         `json:"conclusion"`
		Run        json.RawMessage `json:"run"`
	}
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if len(v.Cells) != len(res.Cells) || len(v.Aims) != 4 || v.Real == nil || len(v.Real) != 0 {
		t.Fatalf("%d cells, %d aims, %d with real bytes", len(v.Cells), len(v.Aims), len(v.Real))
	}
	requireAll(t, "", reflect.ValueOf(v))
	path := filepath.Join(t.TempDir(), "hybrid.json")
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	back, err := results.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var body Result
	if err := back.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	if back.Kind != results.KindHybrid || !slices.Equal(body.Cells, res.Cells) || body.Conclusion != res.Conclusion {
		t.Error("what was read back differs")
	}
	if len(back.Metrics) != 2*len(res.Cells) {
		t.Errorf("%d metrics of %d cells", len(back.Metrics), len(res.Cells))
	}
	if _, err := results.Diff(f, back); err != nil {
		t.Error(err)
	}
	return &body
}

// requireAll wants every pointer below v to be there.
func requireAll(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Kind() { //nolint:exhaustive // the others hold nothing
	case reflect.Pointer:
		if v.IsNil() {
			t.Errorf("%s is missing", path)
			return
		}
		requireAll(t, path, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			requireAll(t, path+"."+v.Type().Field(i).Tag.Get("json"), v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			requireAll(t, path, v.Index(i))
		}
	}
}

// checkText looks at what people read: tables, the paragraph, the picture.
func checkText(t *testing.T, res *Result) {
	t.Helper()
	var b strings.Builder
	for _, table := range res.Tables() {
		if err := table.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"believed", "fixed split", "oracle", AimP99, "In the mean hybrid takes", "2xH100-FP8"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, b.String())
		}
	}
	resultstest.CheckPicture(t, res.Plot())
}

// The same run again is the same, on however many processors; another seed is another.
func TestSameSeedSameNumbers(t *testing.T) {
	t.Parallel()
	cfg := Config{Quick: true, Seed: 7, PrefixTokens: []int64{4096}, Draws: 200}
	var runs [3][]Cell
	for i := range runs {
		if i == 2 {
			cfg.Seed++
		}
		res, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		runs[i] = res.Cells
	}
	if !slices.Equal(runs[0], runs[1]) || slices.Equal(runs[0], runs[2]) {
		t.Error("the same seed gave other numbers, or another the same")
	}
}

func TestInterruptedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := Run(ctx, quick())
	if err != nil {
		t.Fatal(err)
	}
	if !res.Interrupted() || len(res.Cells) != 0 || len(res.Tables()) != 0 || res.Conclusion == "" || len(res.Warnings()) != 1 {
		t.Errorf("%+v", res)
	}
	f, err := res.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(); err != nil || !f.Interrupted {
		t.Errorf("file: %v, interrupted %v", err, f.Interrupted)
	}
	resultstest.CheckPicture(t, res.Plot())
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		field string
		cfg   Config
	}{
		{"goodput", Config{Goodputs: []float64{1}}},
		{"goodput", Config{Goodputs: []float64{math.NaN()}}},
		{"goodput", Config{Goodputs: []float64{1e9, 1e9}}},
		{"goodput", Config{Goodputs: make([]float64, 21)}},
		{"rtt", Config{RTTs: []time.Duration{time.Microsecond}}},
		{"prefix", Config{PrefixTokens: []int64{15}}},
		{"prefix", Config{PrefixTokens: []int64{1 << 21}}},
		{"sigma", Config{Sigmas: []float64{-1}}},
		{"sigma", Config{Sigmas: []float64{math.Inf(1)}}},
		{"gpu", Config{GPUs: []string{"abacus"}}},
		{"draws", Config{Draws: 99}},
		{"draws", Config{Draws: 1_000_000, PrefixTokens: []int64{1 << 20}}},
		{"round trips", Config{RoundTrips: .5}},
		{"codec ratio", Config{CodecRatio: .5}},
		{"claim", Config{ClaimBlocks: -1}},
		{"claim seconds", Config{ClaimSeconds: 2}},
		{"model", Config{Model: "gpt-0"}},
	} {
		err := tc.cfg.Validate()
		in, ok := errors.AsType[*InputError](err)
		if !ok || in.Field != tc.field || in.Allowed == "" || !strings.Contains(err.Error(), in.Field) {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
		if res, err := Run(t.Context(), tc.cfg); err == nil || res != nil {
			t.Errorf("%+v runs", tc.cfg)
		}
	}
	for _, ok := range []Config{{}, quick(), {Model: "llama-3.1-8b"}} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
}

// Prefill of blocks adds up to the planner's recompute.
func TestPrefillOf(t *testing.T) {
	t.Parallel()
	all, err := settings(Config{PrefixTokens: []int64{1000}}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		p := planner.Recompute(s.request, s.model, s.compute)
		if last := s.cum[len(s.cum)-1]; len(s.cum) != 1+1000/16 || s.cum[0] != 0 || math.Abs(last-p.Seconds) > 1e-12 || s.cell.PrefixTokens != 992 {
			t.Fatalf("%d blocks take %v s, the planner says %v s", len(s.cum)-1, last, p.Seconds)
		}
	}
}
