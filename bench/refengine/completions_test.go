package refengine

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompletions(t *testing.T) {
	e := open(t, newFakeDaemon(t, 64), nil)
	srv := httptest.NewServer(Handler(e))
	defer srv.Close()
	do := func(method, path, body string, v any) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err == nil && v != nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, b)
		}
		return res.StatusCode
	}
	if code := do("GET", "/health", "", nil); code != 200 {
		t.Errorf("health: %d", code)
	}
	var models modelList
	if code := do("GET", "/v1/models", "", &models); code != 200 || len(models.Data) != 1 || models.Data[0].ID != e.cfg.Names.ModelID || models.Data[0].MaxModelLen != e.cfg.Model.MaxTokens {
		t.Errorf("models: %d %+v", code, models)
	}
	tokens := prompt(1, 48, 256)
	want, err := e.Generate(t.Context(), Request{Tokens: tokens, MaxNew: 3})
	if err != nil {
		t.Fatal(err)
	}
	body := func(n int, more string) string {
		ids, _ := json.Marshal(tokens[:n])
		return `{"model":"kvferry/refengine","prompt":` + string(ids) + `,"max_tokens":3,"temperature":0,"logprobs":null` + more + `}`
	}
	var first, second completion
	if code := do("POST", "/v1/completions", body(32, ""), &first); code != 200 || first.Usage != (completionUsage{PromptTokens: 32, CompletionTokens: 3, TotalTokens: 35}) {
		t.Errorf("first: %d %+v", code, first)
	}
	code := do("POST", "/v1/completions", body(48, `,"kv_transfer_params":{"kvferry_migration_id":"m","kvferry_session_id":"chat"}`), &second)
	if code != 200 || !slices.Equal(second.Choices[0].TokenIDs, want.Tokens) || second.Usage.Details.CachedTokens != 32 {
		t.Errorf("second: %d %+v, want tokens %v", code, second, want.Tokens)
	}
	if n := e.Status().Counters.WrittenBlocks; n != 3 {
		t.Errorf("%d blocks were written, want 3", n)
	}
	var text struct{ Tokens []int }
	if code := do("POST", "/tokenize", `{"prompt":"ab"}`, &text); code != 200 || !slices.Equal(text.Tokens, []int{'a', 'b'}) {
		t.Errorf("tokenize: %d %v", code, text.Tokens)
	}
	for body, want := range map[string]string{
		`{"prompt":[1],"model":"gpt"}`:                                 `model "gpt" does not exist`,
		`{"prompt":[1],"max_tokens":0}`:                                "max_tokens 0: want 1 or more",
		`{"prompt":[1],"temperature":0.7}`:                             "temperature 0.7: want 0",
		`{"prompt":[1],"stream":true}`:                                 "no stream",
		`{"prompt":[1],"n":2}`:                                         "one choice",
		`{"prompt":[]}`:                                                "want a list of token ids",
		`{"prompt":[[1],[2]]}`:                                         "want a list of token ids",
		`{"prompt":[1,999]}`:                                           "token 999 at position 1",
		`{"prompt":[1],"max_tokens":1000000}`:                          "max_new 1000000",
		`{"prompt":[1]} {}`:                                            "after top-level value",
		`{"prompt":[1],"kv_transfer_params":{"kvferry_session_id":3}}`: "cannot unmarshal number",
	} {
		var got struct{ Error apiError }
		if code := do("POST", "/v1/completions", body, &got); code != 400 || !strings.Contains(got.Error.Message, want) || got.Error.Type != "BadRequestError" || got.Error.Code != 400 {
			t.Errorf("%s: %d %+v, want 400 and %q", body, code, got, want)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	var gone struct{ Error apiError }
	if code := do("POST", "/v1/completions", body(16, ""), &gone); code != 503 || gone.Error.Message != ErrClosed.Error() {
		t.Errorf("closed: %d %+v", code, gone)
	}
}

// What is accepted can be served, and means the same when it is written out again.
func FuzzDecodeCompletion(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":[1,2,3],"max_tokens":1,"temperature":0,"kv_transfer_params":{"kvferry_migration_id":"x","kvferry_session_id":"s"}}`))
	f.Add([]byte(`{"prompt":"text","cache_salt":"t"}`))
	f.Add([]byte(`{"prompt":[[5]],"n":1,"stream":false}`))
	m := small().withDefaults()
	names := Names{ModelID: "m"}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := decodeCompletion(bytes.NewReader(body), names, m)
		if err != nil {
			return
		}
		if err := req.validate(m); err != nil || req.MaxNew < 1 {
			t.Fatalf("%+v: %v", req, err)
		}
		again, err := json.Marshal(map[string]any{
			"prompt": req.Tokens, "max_tokens": req.MaxNew, "cache_salt": req.Tenant, "kv_transfer_params": map[string]string{"kvferry_session_id": req.Session},
		})
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeCompletion(bytes.NewReader(again), names, m)
		if diff := cmp.Diff(req, back); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}
