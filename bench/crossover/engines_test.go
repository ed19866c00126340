package crossover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/results"
)

// endpoint is an OpenAI-compatible server that takes a fixed time and one a token.
type endpoint struct {
	fixed, perToken time.Duration
	broken          atomic.Bool     // it answers with an error
	count           func(n int) int // of prompt tokens, as it says
	mu              sync.Mutex
	prompts         [][]int
	keys            []string
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.keys = append(e.keys, r.Header.Get("Authorization"))
	e.mu.Unlock()
	if e.broken.Load() {
		http.Error(w, "out of memory", http.StatusInternalServerError)
		return
	}
	switch r.URL.Path {
	case "/v1/models":
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"served"},{"id":"other"}]}`))
	case "/v1/completions":
		var req struct {
			Model     string
			Prompt    []int
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Model != "served" || req.MaxTokens != 1 {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		e.mu.Lock()
		e.prompts = append(e.prompts, req.Prompt)
		e.mu.Unlock()
		select {
		case <-r.Context().Done():
		case <-time.After(e.fixed + time.Duration(len(req.Prompt))*e.perToken):
		}
		n := len(req.Prompt)
		if e.count != nil {
			n = e.count(n)
		}
		_, _ = fmt.Fprintf(w, `{"choices":[{"text":"a"}],"usage":{"prompt_tokens":%d}}`, n)
	default:
		http.NotFound(w, r)
	}
}

// A whole run in real time against an endpoint: its time to the first token is what recompute takes, its cache is busted, and
// its key stays out of the result.
func TestOpenAI(t *testing.T) {
	e := &endpoint{fixed: 4 * time.Millisecond, perToken: time.Millisecond}
	srv := httptest.NewServer(e)
	defer srv.Close()
	res, err := Run(t.Context(), Config{
		WAN: link(t, "rtt=5ms,rate=1Gbps"), Engine: EngineOpenAI, OpenAIURL: srv.URL, OpenAIKey: "hush", Lengths: []int64{16, 32}, Repeats: 1, Quick: true, MaxPrefix: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.Points {
		if least := 4e-3 + 1e-3*float64(p.PrefixTokens); p.Recompute.Low < least {
			t.Errorf("%d tokens in %v s, the endpoint alone takes %v", p.PrefixTokens, p.Recompute, least)
		}
	}
	if res.Predicted.PrefillSource != "measured" || res.Predicted.PrefillSecondsPerToken <= 0 || !strings.Contains(res.EngineWhat, "served") {
		t.Errorf("predicted %+v from %s", res.Predicted, res.EngineWhat)
	}
	first := map[int]bool{}
	for _, p := range e.prompts {
		if first[p[0]] && len(e.prompts) < 40 {
			t.Errorf("two of %d prompts begin with %d: a prefix cache may know them", len(e.prompts), p[0])
		}
		first[p[0]] = true
	}
	if slices.ContainsFunc(e.keys, func(k string) bool { return k != "Bearer hush" }) {
		t.Errorf("keys %v", e.keys)
	}
	f, err := res.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Params["openai_model"] != "served" || "http://"+f.Params["openai_host"].(string) != srv.URL {
		t.Errorf("parameters %v do not name the model and the endpoint", f.Params)
	}
	for name, value := range map[string]string{"openai_model": "other", "openai_host": "elsewhere:8000"} {
		other, err := res.File(nil)
		if err != nil {
			t.Fatal(err)
		}
		other.Params = maps.Clone(other.Params)
		other.Params[name] = value
		if un, ok := errors.AsType[*results.UnlikeError](func() error { _, err := results.Diff(f, other); return err }()); !ok || !strings.Contains(un.Error(), name) {
			t.Errorf("results of different %s were compared", name)
		}
	}
	if b, err := json.Marshal(f); err != nil || strings.Contains(string(b), "hush") {
		t.Errorf("the key is in the result, or: %v", err)
	}
}

func TestOpenAIFaults(t *testing.T) {
	off := httptest.NewServer(nil)
	off.Close()
	for name, tc := range map[string]struct {
		handler http.Handler
		want    string
	}{
		"counts otherwise": {&endpoint{count: func(n int) int { return 3 * n }}, "counted 48 tokens in a prompt of 16"},
		"no models":        {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[]}`)) }), "lists no model"},
		"no JSON":          {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }), "invalid character"},
		"refuses":          {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no key", http.StatusUnauthorized) }), "(HTTP 401): no key"},
		"long words": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat("x", 1<<20), http.StatusInternalServerError)
		}), "(HTTP 500): xxx"},
		"not there": {nil, "reaches it"},
	} {
		t.Run(name, func(t *testing.T) {
			url := off.URL
			if tc.handler != nil {
				srv := httptest.NewServer(tc.handler)
				defer srv.Close()
				url = srv.URL + "/v1/"
			}
			o, err := openOpenAI(t.Context(), Config{OpenAIURL: url})
			if err == nil {
				_, err = o.prefill(t.Context(), 16)
			}
			end, ok := errors.AsType[*EndpointError](err)
			if !ok || !strings.Contains(err.Error(), tc.want) || end.Fix == "" || len(err.Error()) > 800 {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

// The reference engine computes each prefix: twice as many tokens take longer, and nothing of a prefix is taken from a cache.
func TestRealEngine(t *testing.T) {
	cfg := Config{WAN: link(t, "rtt=1ms"), Engine: EngineReal, MaxPrefix: 64}.withDefaults()
	b, err := bed.Open(bed.Config{WAN: cfg.WAN, ArenaDir: cfg.ArenaDir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	preset := presetOf(t, cfg.Model)
	r, err := openReal(t.Context(), cfg, preset, b.Destination)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	least := map[int64]float64{}
	for range 3 {
		for _, n := range []int64{16, 64} {
			s, err := r.prefill(t.Context(), n)
			if err != nil || s <= 0 {
				t.Fatalf("%d tokens: %v s, %v", n, s, err)
			}
			if least[n] == 0 || s < least[n] {
				least[n] = s
			}
		}
	}
	if least[64] < least[16] {
		t.Errorf("64 tokens took %v, 16 took %v", least[64], least[16])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.prefill(ctx, 16); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// An endpoint that fails ends the run, and what was open is closed.
func TestRunWithoutEndpoint(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	_, err := Run(t.Context(), Config{WAN: link(t, "rtt=1ms,rate=1Gbps"), Engine: EngineOpenAI, OpenAIURL: srv.URL})
	if end, ok := errors.AsType[*EndpointError](err); !ok || end.Status != http.StatusNotFound {
		t.Errorf("error %v", err)
	}
}

// An endpoint that fails in the second round leaves what the first gave, beside the error; one that fails in the first, nothing
// whose lengths no line goes through.
func TestRunWithFailingEndpoint(t *testing.T) {
	for _, tc := range []struct {
		at     string
		rounds int
	}{{"round 1 of 3", 0}, {"round 2 of 3", 1}} {
		t.Run(tc.at, func(t *testing.T) {
			e := &endpoint{fixed: time.Millisecond}
			srv := httptest.NewServer(e)
			defer srv.Close()
			cfg := Config{WAN: link(t, "rtt=1ms,rate=1Gbps"), Engine: EngineOpenAI, OpenAIURL: srv.URL, Lengths: []int64{16, 32}, Repeats: 3, Quick: true, MaxPrefix: 64}
			cfg.Progress = func(p Progress) {
				if p.Stage == tc.at {
					e.broken.Store(true)
				}
			}
			res, err := Run(t.Context(), cfg)
			if end, ok := errors.AsType[*EndpointError](err); !ok || end.Status != http.StatusInternalServerError {
				t.Fatalf("error %v", err)
			}
			if tc.rounds == 0 {
				if res != nil {
					t.Errorf("a result of nothing: %+v", res)
				}
				return
			}
			if res == nil || res.Rounds != tc.rounds || len(res.Points) != 2 || !res.Interrupted() {
				t.Fatalf("result %+v", res)
			}
			if w := strings.Join(res.Warnings(), "\n"); !strings.Contains(w, "out of memory") || strings.Contains(w, "fix:") {
				t.Errorf("warnings %q", w)
			}
			checkFile(t, res)
		})
	}
}

// A user and password of the address are sent, and stand in no error and no result.
func TestOpenAIPassword(t *testing.T) {
	e := &endpoint{}
	srv := httptest.NewServer(e)
	defer srv.Close()
	address := strings.Replace(srv.URL, "http://", "http://me:secret@", 1)
	o, err := openOpenAI(t.Context(), Config{OpenAIURL: address})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.prefill(t.Context(), 16); err != nil {
		t.Fatal(err)
	}
	if len(e.keys) != 2 || !strings.HasPrefix(e.keys[1], "Basic ") {
		t.Errorf("sent %q", e.keys)
	}
	hidden := func(name string, err error) {
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "xxxxx@") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	e.broken.Store(true)
	_, err = o.prefill(t.Context(), 16)
	hidden("status", err)
	srv.Close()
	_, err = o.prefill(t.Context(), 16)
	hidden("not there", err)
	_, err = openOpenAI(t.Context(), Config{OpenAIURL: address})
	hidden("no models", err)
	ok := Config{WAN: link(t, "rtt=1ms"), Engine: EngineOpenAI, OpenAIURL: address}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"ftp://me:secret@host", "http://me:secret%zz@host", "me:secret@host", address + "/v1?key=secret", address + "#secret@x"} {
		c := ok
		c.OpenAIURL = bad
		hidden(bad, c.Validate())
	}
	c := ok
	c.Engine, c.PrefillSecondsPerToken = EnginePaced, 1e-3
	hidden("another engine", c.Validate())
}
