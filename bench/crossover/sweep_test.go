package crossover

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

func link(t *testing.T, s string) wan.Model {
	t.Helper()
	m, err := wan.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// bubble runs f in virtual time: the processor sets no number, and no goroutine may be left.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	runtime.GC() // finalisers of earlier tests belong outside
	synctest.Test(t, f)
}

// The planner's times and crossover against those of two whole daemons, in virtual time: what remains is the model's error.
func TestPredictionHolds(t *testing.T) {
	perToken, model, lengths, stripes := 3e-3, "rtt=70ms,rate=1Gbps", []int64{80, 112, 160, 224}, 0
	if testing.Short() { // fewer bytes: the race detector makes cryptography ten times slower
		perToken, model, lengths, stripes = 20e-3, "rtt=70ms,rate=100Mbps", []int64{16, 32, 48}, 1
	}
	bubble(t, func(t *testing.T) {
		rate := link(t, model).Rate
		res, err := Run(t.Context(), Config{WAN: link(t, model), PrefillSecondsPerToken: perToken, Quick: true, Lengths: lengths, Stripes: stripes})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range res.Points {
			if e := math.Abs(p.PredictedFetch-p.Fetch.Median) / p.Fetch.Median; e > 0.1 {
				t.Errorf("%d tokens: fetch took %v, predicted %v", p.PrefixTokens, p.Fetch, p.PredictedFetch)
			}
			if e := math.Abs(p.DaemonFetch-p.Fetch.Median) / p.Fetch.Median; e > 0.1 {
				t.Errorf("%d tokens: fetch took %v, the daemon predicted %v", p.PrefixTokens, p.Fetch, p.DaemonFetch)
			}
			if slices.Contains(res.Calibration.Lengths, p.PrefixTokens) || len(res.Calibration.Lengths) == 0 {
				t.Errorf("%d tokens: the prediction rests on lengths %v", p.PrefixTokens, res.Calibration.Lengths)
			}
			for _, s := range p.RecomputeSamples { // a pause in virtual time is exact
				if math.Abs(s-perToken*float64(p.PrefixTokens)) > 1e-9 {
					t.Errorf("%d tokens: recompute took %v", p.PrefixTokens, s)
				}
			}
			if p.Bytes != p.PrefixTokens*131072 || p.Blocks*16 != p.PrefixTokens || len(p.FetchSamples) != 3 {
				t.Errorf("point %+v", p)
			}
			if p.Fetch.Median < 0.21+float64(p.Bytes)*8/rate {
				t.Errorf("%d tokens in %v s: faster than three round trips and the link's rate", p.PrefixTokens, p.Fetch.Median)
			}
		}
		m, x := res.Measured, res.Measured.Crossover
		if m.Verdict != Crosses || x == nil || res.Predicted.Crossover == nil || res.ErrorPct == nil {
			t.Fatalf("measured %+v, predicted %+v", m, res.Predicted)
		}
		if d := math.Abs(*res.Predicted.Crossover - x.Mean); d > max(16, 0.1*x.Mean) {
			t.Errorf("crossover %.1f, predicted %.1f", x.Mean, *res.Predicted.Crossover)
		}
		if !(x.Low <= x.Mean && x.Mean <= x.High) || m.Bracket == nil || x.Mean < float64(m.Bracket[0])-16 || x.Mean > float64(m.Bracket[1])+16 {
			t.Errorf("crossover %+v, bracket %v", x, m.Bracket)
		}
		if res.LimitedBy != LimitLink || res.Machine.PacketsLost != 0 || *res.Calibration.LinkShare < 0.9 {
			t.Errorf("limit %s: %s, %+v, %+v", res.LimitedBy, res.Why, res.Calibration, res.Machine)
		}
		t.Log(res.Conclusion)
		checkFile(t, res)
	})
}

// checkFile holds the result's forms to one another: JSON, tables, CSV, plot.
func checkFile(t *testing.T, res *Result) {
	t.Helper()
	f, err := res.File([]string{"kvferry", "bench", "crossover"})
	if err != nil {
		t.Fatal(err)
	}
	var flat bytes.Buffer
	if err := f.WriteFlat(&flat); err != nil {
		t.Fatal(err)
	}
	var top struct {
		Measured struct {
			Crossover *struct{ Mean, Low, High *float64 } `json:"crossover_tokens"`
		} `json:"measured"`
		Predicted struct {
			Crossover *float64 `json:"crossover_tokens"`
		} `json:"predicted"`
		Points []map[string]json.RawMessage `json:"points"`
	}
	if err := json.Unmarshal(flat.Bytes(), &top); err != nil {
		t.Fatal(err)
	}
	if (top.Measured.Crossover == nil) != (res.Measured.Crossover == nil) || (top.Predicted.Crossover == nil) != (res.Predicted.Crossover == nil) || len(top.Points) != len(res.Points) {
		t.Errorf("flat form %s", flat.String())
	}
	for _, key := range []string{"prefix_tokens", "fetch_seconds", "recompute_seconds", "predicted_fetch_seconds", "predicted_recompute_seconds"} {
		if top.Points[0][key] == nil {
			t.Errorf("no %s in a point", key)
		}
	}
	again, err := results.Parse(flat.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := again.DecodeBody(&back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(res.Points, back.Points); d != "" {
		t.Errorf("points read back (-want +got):\n%s", d)
	}
	if d := cmp.Diff(res.Measured, back.Measured); d != "" {
		t.Errorf("measured read back (-want +got):\n%s", d)
	}
	for _, r := range []*Result{res, &back} {
		if _, err := r.Plot().SVG(); err != nil {
			t.Errorf("plot: %v", err)
		}
		if n := len(r.Tables()); n != 2 {
			t.Errorf("%d tables", n)
		}
	}
	var b strings.Builder
	if err := res.CSV(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil || len(rows) != len(res.Points)+1 {
		t.Fatalf("CSV %q: %v", b.String(), err)
	}
	for i, p := range res.Points {
		if v, err := strconv.ParseFloat(rows[i+1][3], 64); err != nil || v != p.Fetch.Median || rows[i+1][0] != strconv.FormatInt(p.PrefixTokens, 10) {
			t.Errorf("CSV row %v of %+v", rows[i+1], p)
		}
	}
}

// On a link on which a token takes longer to fetch than to recompute, neither side finds a crossover.
func TestNeverPays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		res, err := Run(t.Context(), Config{WAN: link(t, "rtt=20ms,rate=50Mbps"), PrefillSecondsPerToken: 1e-3, Quick: true, Lengths: []int64{16, 32}, Repeats: 1})
		if err != nil {
			t.Fatal(err)
		}
		if res.Measured.Verdict != NeverPays || res.Measured.Crossover != nil || res.Predicted.Crossover != nil || res.ErrorPct != nil {
			t.Errorf("measured %+v, predicted %+v", res.Measured, res.Predicted)
		}
		if !strings.Contains(res.Conclusion, "never pays") {
			t.Errorf("conclusion %q", res.Conclusion)
		}
		checkFile(t, res)
	})
}

// A run that is interrupted keeps its whole rounds, and nothing of the one that was cut.
func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name, at string
		rounds   int
	}{{"calibrating", "calibrate", 0}, {"second round", "round 2 of 3", 1}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cfg := Config{WAN: link(t, "rtt=20ms,rate=1Gbps"), PrefillSecondsPerToken: 3e-3, Quick: true, Lengths: []int64{16, 32}}
				cfg.Progress = func(p Progress) {
					if p.Stage == tc.at {
						time.AfterFunc(25*time.Millisecond, cancel) // within a migration or a pause
					}
				}
				res, err := Run(ctx, cfg)
				if tc.rounds == 0 {
					if !errors.Is(err, ErrNothing) || !errors.Is(err, context.Canceled) {
						t.Errorf("error %v", err)
					}
					return
				}
				if err != nil || !res.Interrupted() || res.Rounds != tc.rounds {
					t.Fatalf("result %+v, error %v", res, err)
				}
				if len(res.Warnings()) == 0 {
					t.Error("no warning of few rounds")
				}
				checkFile(t, res)
			})
		})
	}
}
