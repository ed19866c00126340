package refengine

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestHandler(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, nil)
	srv := httptest.NewServer(Handler(e))
	defer srv.Close()
	do := func(method, path, body string) (int, string) {
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
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	code, body := do("POST", "/generate", `{"tokens":[1,2,3],"max_new":4,"use_cache":true}`)
	var res Result
	if err := json.Unmarshal([]byte(body), &res); err != nil || code != 200 || len(res.Steps) != 4 || len(res.Steps[0].LogitsHash) != 64 {
		t.Errorf("generate: %d %s %v", code, body, err)
	}
	code, body = do("GET", "/status", "")
	var st Status
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 || st.Counters.Tokens != 4 || st.EngineID != "ref" {
		t.Errorf("status: %d %s %v", code, body, err)
	}
	if code, body = do("POST", "/forget", ""); code != 200 || body != "{}\n" {
		t.Errorf("forget: %d %s", code, body)
	}
	for body, want := range map[string]string{
		`{"tokens":[1],"max":4}`:       "unknown field",
		`{"tokens":[]}`:                "tokens are empty",
		`{"tokens":[1]} {}`:            "data after the request",
		`{"tokens":[999],"max_new":1}`: "token 999",
		`nonsense`:                     "invalid character",
	} {
		if code, got := do("POST", "/generate", body); code != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s, want 400 and %q", body, code, got, want)
		}
	}
	d.fail["PublishSession"] = status.Error(codes.FailedPrecondition, "owner is elsewhere")
	code, body = do("POST", "/generate", `{"tokens":[1],"max_new":1,"use_cache":true,"commit":true,"publish":true,"session":"s"}`)
	if code != 502 || !strings.Contains(body, "owner is elsewhere") || !strings.Contains(body, `"steps"`) {
		t.Errorf("publish refused: %d %s", code, body)
	}
}

func TestServe(t *testing.T) {
	e := open(t, newFakeDaemon(t, 4), nil)
	for _, addr := range []string{"127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "engine.sock")} {
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan net.Addr, 1), make(chan error, 1)
		go func() { done <- Serve(ctx, addr, e, func(a net.Addr) { ready <- a }) }()
		at := <-ready
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
			},
		}}
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://engine/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		cancel()
		if err := <-done; err != nil || res.StatusCode != 200 {
			t.Errorf("%s: %d, %v", addr, res.StatusCode, err)
		}
	}
	if err := Serve(t.Context(), "unix:///no/such/folder/x", e, nil); err == nil || !strings.Contains(err.Error(), "want unix:///path or host:port") {
		t.Errorf("bad address: %v", err)
	}
}
