package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/results/resultstest"
	"github.com/kvferry/kvferry/bench/wan"
)

// quick is a run of all parts that takes a few seconds of real time.
func quick() Config {
	return Config{Quick: true, Jobs: 20_000, Replications: 4, Duration: 500 * time.Millisecond, Utilizations: []float64{.3, .6}, Seed: 1}
}

// TestRunReal: the schema is strict; the numbers over QUIC are loose, because the machine may be busy.
func TestRunReal(t *testing.T) {
	if testing.Short() {
		t.Skip("real time; the same is run in virtual time")
	}
	cfg := quick()
	cfg.LinkUtilizations = []float64{.3} // with each sender
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Points) != 6*2+2 {
		t.Fatalf("%d points", len(res.Points))
	}
	for _, p := range res.Points[12:] {
		if p.QUIC == nil || p.Source != SourceQUIC || p.Jobs == 0 || math.Abs(p.Wait.Measured) > 30 {
			t.Errorf("point %+v", p)
		}
	}
	if l := res.Link; l.RateBps < 1e6 || l.RateBps > 240e6 || l.Discipline == "" {
		t.Errorf("link %+v", *l)
	}
	path := filepath.Join(t.TempDir(), "queue.json")
	f, err := res.File([]string{"kvferry", "bench", "queue"})
	if err != nil {
		t.Fatal(err)
	}
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
	if body.Conclusion == "" || len(body.Points) != len(res.Points) || back.Kind != results.KindQueue {
		t.Errorf("read back %+v", body)
	}
	checkShape(t, f)
	checkText(t, res)
}

// checkShape holds the flat form to the fields that scripts use.
func checkShape(t *testing.T, f *results.File) {
	t.Helper()
	var b bytes.Buffer
	if err := f.WriteFlat(&b); err != nil {
		t.Fatal(err)
	}
	var v struct {
		Points []struct {
			Utilization *float64            `json:"utilization"`
			Wait        map[string]*float64 `json:"wait_seconds"`
		} `json:"points"`
		Crossover struct {
			Measured  map[string]*float64 `json:"measured"`
			Predicted float64             `json:"predicted"`
		} `json:"crossover_utilization"`
	}
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	for i, p := range v.Points {
		if p.Utilization == nil {
			t.Errorf("points[%d] has no utilization", i)
		}
		for _, name := range []string{"measured", "mm1", "mg1", "ps", "backlog"} {
			if p.Wait[name] == nil {
				t.Errorf("points[%d].wait_seconds has no %s", i, name)
			}
		}
		if len(p.Wait) != 5 {
			t.Errorf("points[%d].wait_seconds is %v", i, p.Wait)
		}
	}
	for _, name := range []string{"mean", "low", "high"} {
		if v.Crossover.Measured[name] == nil {
			t.Errorf("crossover_utilization.measured has no %s", name)
		}
	}
	if math.Abs(v.Crossover.Predicted-.7255) > 5e-5 {
		t.Errorf("predicted %v", v.Crossover.Predicted)
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
	for _, want := range []string{"M/G/1", "processor sharing, own size", "quic", "0.7255", "correlation", " QUIC ", "Fetch stops paying"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, b.String())
		}
	}
	resultstest.CheckPicture(t, res.Plot())
}

func TestSimulatorOnly(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.LinkOff = true
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if res.Link != nil || len(res.Points) != 12 || strings.Contains(res.Conclusion, "QUIC") || len(res.Tables()) != 2 {
		t.Errorf("link %v, %d points, %q", res.Link, len(res.Points), res.Conclusion)
	}
	f, err := res.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Params["wan"]; ok {
		t.Error("the link is among the parameters of a run without it")
	}
	checkShape(t, f)
	resultstest.CheckPicture(t, res.Plot())
	for _, name := range []string{"wait/simulator/ps/lognormal/0.6", "crossover/M/M/1", "crossover/processor_sharing+own_size"} {
		if _, ok := f.Metric(name); !ok {
			t.Errorf("no metric %q", name)
		}
	}
	// The same run again is the same.
	again, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	g, err := again.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.Body, g.Body) {
		t.Error("the same seed gave other numbers")
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
	if !res.Interrupted() || len(res.Points) != 0 || len(res.Tables()) != 0 || res.Conclusion == "" {
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
		{"utilizations", Config{Utilizations: []float64{.5, 1}}},
		{"utilizations", Config{Utilizations: []float64{0}}},
		{"utilizations", Config{Utilizations: []float64{math.NaN()}}},
		{"utilizations", Config{Utilizations: []float64{.5, .5}}},
		{"utilizations", Config{Utilizations: make([]float64, 101)}},
		{"jobs", Config{Jobs: 999}},
		{"jobs", Config{Jobs: -1}},
		{"jobs", Config{Jobs: maxJobs + 1}},
		{"spread", Config{Spread: -1}},
		{"spread", Config{Spread: math.NaN()}},
		{"replications", Config{Replications: 2}},
		{"link utilizations", Config{LinkUtilizations: []float64{.99}}},
		{"duration", Config{Duration: time.Millisecond}},
		{"duration", Config{Duration: time.Hour}},
		{"duration", Config{Duration: maxDuration, WAN: wan.Model{Rate: 1e12}}},
		{"job bytes", Config{JobBytes: 1}},
		{"chunk bytes", Config{ChunkBytes: 5 << 20}},
		{"chunk bytes", Config{ChunkBytes: -1}},
		{"stripes", Config{Stripes: 65}},
		{"wan", Config{WAN: wan.Model{RTT: time.Second}}},
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
	for _, ok := range []Config{{}, {Quick: true}, {LinkOff: true, Stripes: 1000}, quick()} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
}
