package prefill

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Prefixes double, every block is granted, and the report is what the clock says.
func TestRunDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e := &fakeDaemon{answer: generous(100)}, &fakeEngine{token: time.Millisecond}
		began := time.Now()
		rep, err := Run(t.Context(), testConfig(d, e, 100))
		if err != nil {
			t.Fatal(err)
		}
		checkBlocks(t, e, 1, 3, 7, 15, 31, 63, 100)
		want := Report{
			End: EndStopped, Requests: 7, Claims: 7, GrantedBlocks: 100, ComputedBlocks: 100, Tokens: 400,
			CachedTokens: 4 * (1 + 3 + 7 + 15 + 31 + 63), RequestSeconds: 0.4, SecondsPerToken: 0.001,
		}
		if diff := cmp.Diff(want, rep, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took != 400*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// A costly request makes steps as large as keeps its share at MaxOverhead, eight times doubled at the most, and StepTokens does not
// hold that; without cost StepTokens bounds a step.
func TestRunSteps(t *testing.T) {
	for name, c := range map[string]struct {
		overhead time.Duration
		edit     func(*Config)
		want     []int
	}{
		"a block costs 4 ms, a request 8: 20 blocks": {8 * time.Millisecond, func(c *Config) { c.StepTokens = 4 }, []int{1, 3, 23, 43, 63, 83, 100}},
		"a share of a half: 4 blocks":                {8 * time.Millisecond, func(c *Config) { c.StepTokens, c.MaxOverhead = 4, 0.5 }, append([]int{1}, seq(3, 99, 4, 100)...)},
		"not more than eight times doubled":          {time.Second, func(*Config) {}, []int{1, 3, 35, 100}},
		"any share":                                  {time.Second, func(c *Config) { c.MaxOverhead = -1 }, []int{1, 3, 7, 15, 31, 63, 100}},
		"free requests, 64 tokens a step":            {0, func(c *Config) { c.StepTokens = 64 }, []int{1, 3, 7, 15, 31, 47, 63, 79, 95, 100}},
		"unbounded":                                  {0, func(c *Config) { c.StepTokens = -1 }, []int{1, 3, 7, 15, 31, 63, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{token: time.Millisecond, overhead: c.overhead}
				cfg := testConfig(&fakeDaemon{answer: generous(100)}, e, 100)
				c.edit(&cfg)
				rep, err := Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				checkBlocks(t, e, c.want...)
				if want := c.overhead.Seconds() * float64(rep.Requests); math.Abs(rep.OverheadSeconds-want) > 1e-6 {
					t.Errorf("%v s of overhead, want %v", rep.OverheadSeconds, want)
				}
			})
		})
	}
}

// seq is from, from+step... to, and last.
func seq(from, to, step, last int) (s []int) {
	for i := from; i <= to; i += step {
		s = append(s, i)
	}
	return append(s, last)
}

// What is sent is what vLLM takes, with the caller's fields and headers.
func TestRunRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		cfg := testConfig(&fakeDaemon{answer: generous(1)}, e, 2)
		cfg.Model, cfg.Extra, cfg.Header = "llama", map[string]any{"cache_salt": "t1", "priority": -1}, http.Header{"Authorization": {"Bearer k"}}
		if _, err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"model": "llama", "prompt": []any{0., 7., 14., 21.}, "max_tokens": 1., "temperature": 0., "stream": false, "n": 1.,
			"kv_transfer_params": map[string]any{"kvferry_migration_id": "m1"}, "cache_salt": "t1", "priority": -1.,
		}
		if diff := cmp.Diff([]map[string]any{want}, e.bodies); diff != "" {
			t.Error(diff)
		}
		if h := e.headers[0]; h.Get("Authorization") != "Bearer k" || h.Get("Content-Type") != "application/json" {
			t.Error(h)
		}
		if len(cfg.Header) != 1 || len(cfg.Extra) != 2 {
			t.Error("the caller's configuration was changed")
		}
	})
}

// A text is made tokens by the engine.
func TestRunText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		e.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/tokenize" {
				_, _ = io.WriteString(w, `{"count":9,"tokens":[1,2,3,4,5,6,7,8,9]}`)
			}
			return r.URL.Path == "/tokenize"
		}
		cfg := testConfig(&fakeDaemon{answer: generous(9)}, e, 0)
		cfg.Text, cfg.Tokens, cfg.Model = "nine words", nil, "m"
		rep, err := Run(t.Context(), cfg)
		if err != nil || rep.End != EndComputed || rep.ComputedBlocks != 2 {
			t.Errorf("%+v, %v", rep, err)
		}
		if diff := cmp.Diff(map[string]any{"prompt": "nine words", "model": "m"}, e.bodies[0]); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]any{1., 2., 3., 4., 5., 6., 7., 8.}, e.bodies[2]["prompt"]); diff != "" {
			t.Error(diff)
		}
	})
}

// Nothing granted: it asks again at Poll and computes nothing; an end ends it, whatever that grants.
func TestRunWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e := &fakeDaemon{}, &fakeEngine{}
		d.answer = func(context.Context, *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
			if len(d.claims) <= 10 {
				return &kvferryv1.ClaimPrefillResponse{FetchFrontier: 0}, nil
			}
			return &kvferryv1.ClaimPrefillResponse{GrantedUntil: 5, Ended: true, Stop: true}, nil
		}
		cfg := testConfig(d, e, 5)
		cfg.Poll = 7 * time.Millisecond
		began := time.Now()
		rep, err := Run(t.Context(), cfg)
		if diff := cmp.Diff(Report{End: EndMigration, Claims: 11}, rep); diff != "" || err != nil || len(e.blocks) != 0 || time.Since(began) != 70*time.Millisecond {
			t.Errorf("%s %v, %d requests, after %v", diff, err, len(e.blocks), time.Since(began))
		}
	})
}

// While a request is under way the daemon hears of the front each second.
func TestRunBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e := &fakeDaemon{answer: generous(1)}, &fakeEngine{overhead: 3500 * time.Millisecond}
		rep, err := Run(t.Context(), testConfig(d, e, 2))
		if err != nil || rep.Claims != 1 || len(d.claims) != 4 {
			t.Fatalf("%+v, %v, %d claims", rep, err, len(d.claims))
		}
		for i, q := range d.claims {
			if got := d.at[i].Sub(d.at[0]); got != time.Duration(i)*time.Second || q.GetComputedBlocks() != 0 || q.GetWantBlocks() != 1 {
				t.Errorf("claim %d: %v after %v", i, q, got)
			}
		}
	})
}

// With less left than the fetch asks for in the time of one request, none is sent until the fetch has had that time; if it has not
// moved on by then, the front goes on.
func TestRunHoldsBack(t *testing.T) {
	for name, c := range map[string]struct {
		dies time.Duration // of the fetch
		want []int
		took time.Duration
	}{
		"the fetch goes on":  {time.Hour, []int{1, 3, 20}, 405 * time.Millisecond},
		"the fetch has died": {300 * time.Millisecond, []int{1, 3, 20, 30}, 545 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				granted := 0
				d := &fakeDaemon{answer: func(_ context.Context, q *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
					at := int(q.GetComputedBlocks())
					frontier := max(granted, 60-int(min(time.Since(began), c.dies)/(10*time.Millisecond))) // 10 ms a block
					granted = frontier
					if n, ok := map[int]int{0: 1, 1: 3, 3: 20}[at]; ok {
						granted = n
					}
					return &kvferryv1.ClaimPrefillResponse{GrantedUntil: uint32(granted), FetchFrontier: uint32(frontier), Stop: granted == frontier}, nil
				}}
				e := &fakeEngine{token: time.Millisecond, overhead: 100 * time.Millisecond}
				rep, err := Run(t.Context(), testConfig(d, e, 60))
				if took := time.Since(began); err != nil || rep.End != EndStopped || (took-c.took).Abs() > 2*time.Millisecond {
					t.Errorf("%v: %+v, %v", took, rep, err)
				}
				checkBlocks(t, e, c.want...)
			})
		})
	}
}

// Whatever fails ends the front with an error that says what, and the report of what was done before.
func TestRunErrors(t *testing.T) {
	answer := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for name, c := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool // from the third request on
		edit   func(*Config)
		want   string
		is     error
	}{
		"4xx of vLLM":       {before: answer(400, `{"error":{"message":"max context is 10","type":"BadRequestError","code":400}}`), want: "for 7 blocks: status 400: max context is 10"},
		"4xx of old vLLM":   {before: answer(404, `{"object":"error","message":"no such model"}`), want: "status 404: no such model"},
		"4xx of FastAPI":    {before: answer(401, `{"detail":"Unauthorized"}`), want: "status 401: Unauthorized"},
		"error as a string": {before: answer(401, `{"error":"Unauthorized"}`), want: "status 401: Unauthorized"},
		"5xx in text":       {before: answer(502, "bad gateway"), want: "status 502: bad gateway"},
		"5xx without words": {before: answer(500, ""), want: "for 7 blocks: status 500"},
		"long words":        {before: answer(500, strings.Repeat("é", 4000)), want: strings.Repeat("é", 256)},
		"not JSON":          {before: answer(200, "<html>"), want: "read the completion: invalid character"},
		"no choices":        {before: answer(200, "{}"), want: "it has no choices"},
		"other tokens":      {before: answer(200, `{"choices":[{}],"usage":{"prompt_tokens":29}}`), want: "it counts 29 tokens of a prompt of 28"},
		"more cached":       {before: answer(200, `{"choices":[{}],"usage":{"prompt_tokens":28,"prompt_tokens_details":{"cached_tokens":29}}}`), want: "cached_tokens 29: want 0 to prompt_tokens"},
		"cached of nothing": {before: answer(200, `{"choices":[{}],"usage":{"prompt_tokens_details":{"cached_tokens":29}}}`), want: "it had 29 tokens in its cache of a prompt of 28"},
		"nothing cached":    {before: answer(200, `{"choices":[{}],"usage":{"prompt_tokens":28,"prompt_tokens_details":{"cached_tokens":0}}}`), want: "0 tokens were cached, of 12", is: ErrPrefixNotCached},
		"endless":           {before: answer(200, strings.Repeat(" ", maxAnswer+1)), want: "an answer of more than 1048576 bytes"},
		"silent":            {before: func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, edit: func(c *Config) { c.RequestTimeout = time.Second }, want: "no answer in 1s", is: context.DeadlineExceeded},
		"bad Extra":         {edit: func(c *Config) { c.Extra = map[string]any{"f": func() {}} }, want: "is all of Extra JSON?"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{token: time.Millisecond}
				e.before = func(w http.ResponseWriter, r *http.Request) bool {
					return len(e.blocks) == 3 && c.before(w, r)
				}
				d := &fakeDaemon{answer: generous(50)}
				cfg := testConfig(d, e, 50)
				if c.edit != nil {
					c.edit(&cfg)
				}
				rep, err := Run(t.Context(), cfg)
				if _, ok := errors.AsType[*EngineError](err); !ok || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if rep.End != EndEngine || c.edit == nil && c.is == nil && (rep.ComputedBlocks != 3 || rep.GrantedBlocks != 7 || rep.Requests != 2) {
					t.Errorf("%+v", rep)
				}
				// What was granted and is not computed is given back.
				last := d.claims[len(d.claims)-1]
				if gives := rep.GrantedBlocks > rep.ComputedBlocks; last.GetGivesUp() != gives || gives && (int(last.GetComputedBlocks()) != rep.ComputedBlocks || last.GetWantBlocks() != 0) {
					t.Errorf("the last claim is %v after %+v", last, rep)
				}
			})
		})
	}
}

func TestRunClaimErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDaemon{answer: func(context.Context, *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
			return nil, status.Error(codes.NotFound, "no migration m1")
		}}
		rep, err := Run(t.Context(), testConfig(d, &fakeEngine{}, 3))
		if status.Code(err) != codes.NotFound || rep.End != EndClaim || !strings.Contains(err.Error(), "from block 0 of migration m1") {
			t.Errorf("%+v, %v", rep, err)
		}
		d.answer = func(ctx context.Context, _ *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		began := time.Now()
		rep, err = Run(t.Context(), testConfig(d, &fakeEngine{}, 3))
		if !errors.Is(err, context.DeadlineExceeded) || rep.End != EndClaim || time.Since(began) != 10*time.Second {
			t.Errorf("%+v, %v after %v", rep, err, time.Since(began))
		}
	})
}

// A cancelled caller gets its cause, and the engine is let go; also while nothing is granted, and in a claim.
func TestRunCancelled(t *testing.T) {
	cause := errors.New("the user left")
	nothing := func(context.Context, *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
		return &kvferryv1.ClaimPrefillResponse{}, nil
	}
	for name, answer := range map[string]func(context.Context, *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error){
		"in a request": generous(5), "waiting": nothing,
		"in a claim": func(ctx context.Context, _ *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(1500*time.Millisecond, func() { cancel(cause) })
				began := time.Now()
				d := &fakeDaemon{answer: answer}
				rep, err := Run(ctx, testConfig(d, &fakeEngine{overhead: time.Hour}, 5))
				if last := d.claims[len(d.claims)-1]; last.GetGivesUp() != (name == "in a request") {
					t.Errorf("the last claim is %v", last)
				}
				if !errors.Is(err, cause) || rep.End != EndCancelled || rep.Requests != 0 || time.Since(began) != 1500*time.Millisecond {
					t.Errorf("%+v, %v after %v", rep, err, time.Since(began))
				}
			})
		})
	}
}

// An engine that does not say what it had cached is taken to have cached what it computed.
func TestRunSilentUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rep, err := Run(t.Context(), testConfig(&fakeDaemon{answer: generous(9)}, &fakeEngine{silent: true, token: time.Millisecond}, 9))
		if err != nil || rep.Tokens != 36 || rep.CachedTokens != 0 || math.Abs(rep.RequestSeconds-0.036) > 1e-9 {
			t.Errorf("%+v, %v", rep, err)
		}
	})
}

func TestReportJSON(t *testing.T) {
	b, err := json.Marshal(Report{End: EndStopped, Requests: 2})
	if want := `{"end":"stopped","requests":2,"claims":0,"granted_blocks":0,"computed_blocks":0,"tokens":0,"cached_tokens":0,"request_seconds":0,"overhead_seconds":0,"seconds_per_token":0}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}
