package prefill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// fakeDaemon answers claims by a function, and notes them.
type fakeDaemon struct {
	kvferryv1.MigrationServiceClient
	answer func(ctx context.Context, q *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error)

	mu     sync.Mutex
	claims []*kvferryv1.ClaimPrefillRequest
	at     []time.Time
}

func (d *fakeDaemon) ClaimPrefill(ctx context.Context, q *kvferryv1.ClaimPrefillRequest, _ ...grpc.CallOption) (*kvferryv1.ClaimPrefillResponse, error) {
	d.mu.Lock()
	d.claims, d.at = append(d.claims, q), append(d.at, time.Now())
	d.mu.Unlock()
	return d.answer(ctx, q)
}

// generous grants what is wanted, up to a block, and stops there.
func generous(frontier int) func(context.Context, *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
	return func(_ context.Context, q *kvferryv1.ClaimPrefillRequest) (*kvferryv1.ClaimPrefillResponse, error) {
		until := min(q.GetComputedBlocks()+q.GetWantBlocks(), uint32(frontier))
		return &kvferryv1.ClaimPrefillResponse{GrantedUntil: until, FetchFrontier: uint32(frontier), Stop: until == uint32(frontier)}, nil
	}
}

// fakeEngine is a completions server that takes so long a request and a token that its cache lacks, in the process and without a
// socket, so that it works in a bubble.
type fakeEngine struct {
	overhead, token time.Duration
	silent          bool // does not say what was cached
	forgets         bool // has no prefix cache
	before          func(w http.ResponseWriter, r *http.Request) (answered bool)

	mu      sync.Mutex
	cached  int
	bodies  []map[string]any
	headers []http.Header
	blocks  []int
}

const testBlock = 4 // tokens

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	e.mu.Lock()
	e.bodies, e.headers = append(e.bodies, body), append(e.headers, r.Header.Clone())
	prompt, _ := body["prompt"].([]any)
	e.blocks = append(e.blocks, len(prompt)/testBlock)
	cached := e.cached
	if e.forgets {
		cached = 0
	}
	e.mu.Unlock()
	if e.before != nil && e.before(w, r) {
		return
	}
	select {
	case <-time.After(e.overhead + time.Duration(len(prompt)-cached)*e.token):
	case <-r.Context().Done():
		return
	}
	e.mu.Lock()
	e.cached = len(prompt)
	e.mu.Unlock()
	details := fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	if e.silent {
		details = `,"prompt_tokens_details":null`
	}
	fmt.Fprintf(w, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":%d%s}}`, len(prompt), details)
}

// RoundTrip makes it a transport.
func (e *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.ServeHTTP(w, r)
	}()
	select {
	case <-done:
	case <-r.Context().Done():
		<-done // it looks at the context itself
		return nil, r.Context().Err()
	}
	return w.Result(), nil
}

func testTokens(n int) []int {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = i * 7 % 1000
	}
	return tokens
}

// testConfig has a prompt of so many blocks and two tokens.
func testConfig(d *fakeDaemon, e *fakeEngine, blocks int) Config {
	return Config{
		Migrations: d, MigrationID: "m1", URL: "http://engine/", Client: &http.Client{Transport: e},
		Tokens: testTokens(blocks*testBlock + 2), BlockTokens: testBlock,
	}
}

func checkBlocks(t *testing.T, e *fakeEngine, want ...int) {
	t.Helper()
	if !slices.Equal(e.blocks, want) {
		t.Errorf("requests of %v blocks, want %v", e.blocks, want)
	}
}
