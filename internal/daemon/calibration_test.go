package daemon

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// sameReplicas compares what files hold.
func sameReplicas(t *testing.T, want, got map[string]*replica) {
	t.Helper()
	opts := cmp.Options{
		cmp.AllowUnexported(replica{}, observedPrefill{}), cmpopts.IgnoreFields(replica{}, "prior", "fit", "drift", "steady"),
		cmp.Comparer(func(a, b time.Time) bool { return a.Unix() == b.Unix() }), cmpopts.EquateEmpty(),
	}
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Error(d)
	}
}

const testPin = "00ff"

// observe has c see n prefills of 1,024 tokens and more at a pace, and returns how many alarms that made.
func (c *calibration) see(t *testing.T, id string, n int, perToken, sigma float64, seed uint64) (alarms int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	for range n {
		u := int64(1024 + rng.IntN(4096))
		p := planner.Prefill{Cached: int64(rng.IntN(8192)), Uncached: u, Seconds: perToken * float64(u) * math.Exp(sigma*rng.NormFloat64())}
		since, err := c.observe(id, testPin, planner.PrefillLaw{Linear: 1e-4}, observedPrefill{p, time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if since > 0 {
			alarms++
		}
	}
	return alarms
}

// A prior holds until enough was observed; a change of pace is an alarm, once, after which the new pace is known.
func TestCalibration(t *testing.T) {
	t.Parallel()
	prior := planner.PrefillLaw{Linear: 1e-4}
	for _, sigma := range []float64{0, 0.03, 0.1, 0.3} {
		c, err := openCalibration("")
		if err != nil {
			t.Fatal(err)
		}
		pace := func() float64 { f := c.fit("e", testPin, prior); return f.Law.Seconds(2048, 4096) / 4096 }
		if f := c.fit("e", testPin, prior); f.kept != 0 || f.usable() {
			t.Errorf("before anything: %+v", f)
		}
		c.see(t, "e", 2, 2e-4, sigma, 1)
		if f := c.fit("e", testPin, prior); f.usable() || f.kept != 2 {
			t.Errorf("sigma %v: two observations are believed: %+v", sigma, f)
		}
		if n := c.see(t, "e", 500, 2e-4, sigma, 2); n > 0 {
			t.Errorf("sigma %v: %d alarms while nothing changed", sigma, n)
		}
		if got := pace(); math.Abs(got/2e-4-1) > 0.01+0.4*sigma {
			t.Errorf("sigma %v: pace %v, want 2e-4", sigma, got)
		}
		if f := c.fit("e", testPin, prior); sigma <= 0.1 != f.usable() && sigma != 0.3 {
			t.Errorf("sigma %v: usable %v, %v", sigma, f.usable(), f.PrefillFit)
		}
		// Twice as fast.
		if n := c.see(t, "e", 12, 1e-4, sigma, 3); n != 1 {
			t.Errorf("sigma %v: %d alarms at a change by two", sigma, n)
		}
		if got := pace(); math.Abs(got/1e-4-1) > 0.02+1.2*sigma {
			t.Errorf("sigma %v: pace %v after a change, want 1e-4", sigma, got)
		}
		if f := c.fit("e", "another", prior); f.kept != 0 {
			t.Errorf("another layout has %+v", f)
		}
	}
}

// Engines that nobody hears of make room for others.
func TestCalibrationBounded(t *testing.T) {
	t.Parallel()
	c, _ := openCalibration("")
	for i := range maxReplicas + 50 {
		id := fmt.Sprintf("e%d", i)
		for range 200 / (1 + i) {
			_, _ = c.observe(id, testPin, planner.PrefillLaw{}, observedPrefill{planner.Prefill{Uncached: 100, Seconds: 1}, time.Unix(int64(i), 0)})
		}
		_, _ = c.observe(id, testPin, planner.PrefillLaw{}, observedPrefill{planner.Prefill{Uncached: 100, Seconds: 1}, time.Unix(int64(i), 0)})
	}
	if len(c.mu.replicas) != maxReplicas || c.mu.replicas["e0"] != nil || c.mu.replicas["e60"] == nil {
		t.Errorf("%d engines", len(c.mu.replicas))
	}
	for range 1000 {
		_, _ = c.observe("e60", testPin, planner.PrefillLaw{}, observedPrefill{planner.Prefill{Uncached: 100, Seconds: 1}, time.Now()})
	}
	if n := len(c.mu.replicas["e60"].kept); n != keptPrefills {
		t.Errorf("%d prefills kept", n)
	}
	if _, err := c.observe("e60", testPin, planner.PrefillLaw{}, observedPrefill{planner.Prefill{Uncached: 100}, time.Now()}); err == nil {
		t.Error("a prefill that took no time was taken")
	}
}

// What is written is read again, with its age and the same fit; a file that is not ours is refused and dropped.
func TestCalibrationFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "calibration.json")
	c, err := openCalibration(file)
	if err != nil {
		t.Fatal(err)
	}
	c.see(t, "e", 40, 2e-4, 0.02, 1)
	c.see(t, "f", 300, 3e-4, 0.02, 2)
	if err := c.flush(false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("written within a minute")
	}
	if err := c.flush(true); err != nil {
		t.Fatal(err)
	}
	again, err := openCalibration(file)
	if err != nil {
		t.Fatal(err)
	}
	sameReplicas(t, c.mu.replicas, again.mu.replicas)
	for _, id := range []string{"e", "f"} {
		prior := planner.PrefillLaw{Linear: 1e-4}
		a, b := c.fit(id, testPin, prior), again.fit(id, testPin, prior)
		if !b.usable() || a.kept != b.kept || math.Abs(a.Law.Seconds(0, 5000)/b.Law.Seconds(0, 5000)-1) > 0.01 {
			t.Errorf("%s: %v, read again %v", id, a.PrefillFit, b.PrefillFit)
		}
	}
	one := `{"engine":"e","layout_pin":"00","prefills":[{"cached_tokens":0,"uncached_tokens":9,"seconds":1,"unix_seconds":1}]}`
	with := func(from, to string) string {
		return `{"version":1,"replicas":[` + strings.Replace(one, from, to, 1) + `]}`
	}
	if _, err := decodeCalibration([]byte(with("", ""))); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty": "", "not JSON": "x", "another version": `{"version":2,"replicas":[]}`, "something follows": `{"version":1,"replicas":[]} {}`,
		"unknown key": `{"version":1,"replicas":[],"z":1}`, "too long": strings.Repeat(" ", maxCalibrationBytes+1),
		"no engine": with(`"e"`, `""`), "not an id": with(`"e"`, `"a b"`), "no pin": with(`"00"`, `""`), "twice": `{"version":1,"replicas":[` + one + "," + one + `]}`,
		"nothing computed": with(`"uncached_tokens":9`, `"uncached_tokens":0`), "no time": with(`"seconds":1`, `"seconds":0`),
		"endless": with(`"seconds":1`, `"seconds":1e300`), "negative": with(`"cached_tokens":0`, `"cached_tokens":-1`), "before 1970": with(`"unix_seconds":1`, `"unix_seconds":-1`),
		"no prefill":    `{"version":1,"replicas":[{"engine":"e","layout_pin":"00","prefills":[]}]}`,
		"many prefills": with(`[{"cached`, `[`+strings.Repeat(`{"cached_tokens":0,"uncached_tokens":9,"seconds":1,"unix_seconds":1},`, keptPrefills)+`{"cached`),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := openCalibration(file)
		if err == nil || !strings.Contains(err.Error(), "read observed prefills") || len(c.mu.replicas) != 0 {
			t.Errorf("%s: %v, %v", name, c.mu.replicas, err)
		}
		c.see(t, "e", 3, 1e-4, 0, 1)
		if err := c.flush(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	// The bound holds what can be kept.
	full, _ := openCalibration("")
	for i := range maxReplicas {
		r := &replica{pin: strings.Repeat("f", 64)}
		for range keptPrefills {
			r.kept = append(r.kept, observedPrefill{planner.Prefill{Cached: 1 << 30, Uncached: 1 << 30, Seconds: math.Pi * 1e8}, time.Unix(math.MaxInt32*8, 0)})
		}
		full.mu.replicas[fmt.Sprintf("%064d", i)] = r
	}
	if b, err := encodeCalibration(full.mu.replicas); err != nil || len(b) > maxCalibrationBytes {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// FuzzCalibration: the decoder never panics, and what it accepts comes back from what is written of it, and can be fitted.
func FuzzCalibration(f *testing.F) {
	f.Add([]byte(`{"version":1,"replicas":[]}`))
	f.Add([]byte(`{"version":1,"replicas":[{"engine":"e","layout_pin":"00","prefills":[{"cached_tokens":7,"uncached_tokens":9,"seconds":1.5,"unix_seconds":1733000000}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		replicas, err := decodeCalibration(b)
		if err != nil {
			return
		}
		out, err := encodeCalibration(replicas)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeCalibration(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		sameReplicas(t, replicas, again)
		for _, r := range again {
			r.rebuild()
			if v := r.fit.Fit().Law.Seconds(0, 1000); math.IsNaN(v) || v < 0 {
				t.Errorf("%v s", v)
			}
		}
	})
}

// The plan's recompute becomes what the engine's prefill takes, though it has registered half of that; again after the pace has doubled, which
// is counted once; and after a restart, with its age.
func TestCalibratedByClaims(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, onDisk(dir))
		b := r.b
		per := 60 * time.Millisecond // a block
		register := func() {
			t.Helper()
			if _, err := b.engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{
				EngineId: "e", Layout: testLayout(), WriteThrough: true, ClaimsPrefill: true, ArenaBytes: 4 << 20,
				Prefill: &pb.PrefillSpeed{SecondsPerToken: per.Seconds() / 16 / 2},
			}); err != nil {
				t.Fatal(err)
			}
		}
		register()
		cold := "cold"
		r.ea.session(cold, 200)
		plan := func() (seconds float64, source string) {
			t.Helper()
			resp, err := b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: auto(cold)})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range resp.GetPlan().GetModes() {
				if m.GetMode() == pb.Mode_MODE_RECOMPUTE {
					return m.GetSeconds(), resp.GetPlan().GetComputeSource()
				}
			}
			t.Fatal("recompute is not priced")
			return 0, ""
		}
		tokens := 200.0*16 + 3 // as session publishes
		off := func(s float64) float64 { return s/(tokens/16*per.Seconds()) - 1 }
		drifts := func() float64 { return b.samples()[`kvferry_planner_drift_total{what="replica"}`] }
		s, source := plan()
		if !strings.HasPrefix(source, "prior: ") || math.Abs(off(s)+0.5) > 0.02 {
			t.Errorf("before: %v s, %s", s, source)
		}
		// learn migrates until the plan is within 5 % for good, at most so many times.
		n := 0
		learn := func(most int) {
			t.Helper()
			within := 0
			for i := range most {
				name := fmt.Sprint("s", n)
				n++
				keys := r.ea.session(name, 200)
				front := r.eb.front(per, keys)
				run := b.begin(hybridRequest(name))
				front.start(run.id())
				rep := run.end()
				<-front.done
				wantReport(t, rep, committed, "", moved)
				s, source := plan()
				t.Logf("%d: %d prefilled in %v; recompute off by %+.3f; %s", i+1, rep.GetBlocksComputed(), front.took, off(s), source)
				switch {
				case math.Abs(off(s)) > 0.05 && within > 0:
					t.Errorf("off by %v after it was within 5 %%", off(s))
				case math.Abs(off(s)) <= 0.05 && within == 0:
					within = i + 1
				}
			}
			if within == 0 {
				t.Errorf("not within 5 %% after %d migrations", most)
			}
			t.Logf("within 5 %% after %d migrations", within)
		}
		learn(6)
		if drifts() != 0 {
			t.Errorf("%v drifts at one pace", drifts())
		}
		per *= 2
		learn(4)
		if got := drifts(); got != 1 {
			t.Errorf("%v drifts after one change", got)
		}
		per /= 2
		learn(4)
		if got := drifts(); got != 2 {
			t.Errorf("%v drifts after two changes", got)
		}
		before, _ := plan()
		// away is a time in which nobody runs: a day of two daemons that look after themselves every second takes as long as all else here.
		away := func(d time.Duration) {
			t.Helper()
			r.a.stop()
			r.b.stop()
			time.Sleep(d)
			r.a, r.b = r.addNode(0), r.addNode(1)
			b = r.b
			register()
			r.ea = r.a.register("e", testLayout(), 4<<20)
			cold += "+"
			r.ea.session(cold, 200)
		}
		away(time.Hour + time.Minute)
		s, source = plan()
		if math.Abs(s/before-1) > 0.01 || !strings.Contains(source, "the last 1h1m") {
			t.Errorf("after a restart %v s, %v before: %s", s, before, source)
		}
		if testing.Short() {
			away(24 * time.Hour)
		} else {
			time.Sleep(24 * time.Hour)
		}
		if s, source = plan(); math.Abs(off(s)+0.5) > 0.02 || !strings.Contains(source, "prior: ") || !strings.Contains(source, "do not suffice") {
			t.Errorf("a day later %v s, %s", s, source)
		}
	})
}

// Whatever the link does, whatever is here before, and however the front claims: each observation is the front's own pace. Nothing that was
// passed over, fetched or waited for is taken for prefill.
func TestClaimsObserveThePace(t *testing.T) {
	total := 0
	for seed := range uint64(thinned(12, 6)) {
		bubble(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			model := slow
			model.Rate, model.RTT, model.Loss = 1e6*math.Pow(4, rng.Float64()), time.Duration(1+rng.IntN(100))*time.Millisecond, 0.003*rng.Float64()
			r := newRig(t, model, nil)
			keys := r.ea.session("s", 100+rng.IntN(200))
			for range rng.IntN(4) { // parts are here
				at := rng.IntN(len(keys) - 20)
				for _, k := range keys[at : at+1+rng.IntN(19)] {
					if !r.eb.front(0, [][]byte{k}).here(0) {
						r.eb.write("", [][]byte{k})
					}
				}
			}
			f := r.eb.front(time.Duration(1+rng.IntN(30))*time.Millisecond, keys)
			f.want = uint32(1 + rng.IntN(30))
			run := r.b.begin(hybridRequest("s"))
			id := run.id()
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			f.start(id)
			run.end()
			<-f.done
			want := f.block.Seconds() / 16
			c := r.b.d.calibration
			c.mu.Lock()
			defer c.mu.Unlock()
			rep := c.mu.replicas["e"]
			if rep == nil {
				return
			}
			for _, p := range rep.kept {
				total++
				if got := p.Seconds / float64(p.Uncached); math.Abs(got/want-1) > 0.02 {
					t.Errorf("seed %d, %d blocks a claim: %d tokens after %d took %v s each, want %v", seed, f.want, p.Uncached, p.Cached, got, want)
				}
			}
		})
	}
	t.Logf("%d observations", total)
	if total < thinned(12, 4) {
		t.Errorf("only %d observations in all", total)
	}
}

// The fit, the engine's metrics and its word, in that order while the fit is fresh; an older one after the metrics.
func TestFitBeforeMetrics(t *testing.T) {
	t.Parallel()
	word := &pb.PrefillSpeed{SecondsPerToken: 5e-4}
	scraped := engineload.Load{Prefill: engineload.Prefill{SecondsPerToken: known(3e-4), Tokens: 9999, Until: time.Now()}}
	fit := func(age time.Duration, r2 float64, kept int) fitted {
		return fitted{planner.PrefillFit{Law: planner.PrefillLaw{Fixed: 0.01, Linear: 1e-4, Quadratic: 1e-9}, Observed: 9, R2: r2, Sigma: 0.04}, kept, age}
	}
	for name, tc := range map[string]struct {
		fit     fitted
		loadErr error
		want    float64
		source  string
	}{
		"fresh":              {fit(time.Minute, 0.99, 9), nil, 1e-4, "fitted to 9 observed prefills, R2 0.9900, sigma 4.0 %, the last 1m0s ago"},
		"two hours old":      {fit(2*time.Hour, 0.99, 9), nil, 3e-4, "metrics over 9999 tokens"},
		"and no metrics":     {fit(2*time.Hour, 0.99, 9), errNotScraped, 1e-4, "fitted to"},
		"two days old":       {fit(48*time.Hour, 0.99, 9), errNotScraped, 5e-4, "prior: measured by the engine, not observed here; 9 observed prefills do not suffice"},
		"explains little":    {fit(time.Minute, 0.5, 9), errNotScraped, 5e-4, "do not suffice (R2 0.50"},
		"of two":             {fit(time.Minute, 1, 2), errNotScraped, 5e-4, "2 observed prefills do not suffice"},
		"nothing observed":   {fitted{}, errNotScraped, 5e-4, "prior: measured by the engine, not observed here"},
		"metrics, a bad fit": {fit(time.Minute, 0.5, 9), nil, 3e-4, "metrics over"},
	} {
		c, measured := speedOf(scraped, tc.loadErr, word, tc.fit, planner.Request{PrefixTokens: 4096})
		if c.SecondsPerToken != tc.want || !strings.Contains(c.Source, tc.source) || measured != (tc.want != 5e-4) {
			t.Errorf("%s: %v from %q, measured %v", name, c.SecondsPerToken, c.Source, measured)
		}
		if err := c.Validate(); err != nil || c.Spread <= 0 {
			t.Errorf("%s: spread %v, %v", name, c.Spread, err)
		}
		if tc.want == 1e-4 && (c.FixedSeconds != 0.01 || c.SecondsPerTokenSquared != 1e-9 || c.Spread != 0.04) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
