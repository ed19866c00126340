package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/results"
)

// A server that breaks down in the second round: the first is printed and kept, and the exit code is that of what happened. Its
// password is nowhere.
func TestCrossoverKeepsRounds(t *testing.T) {
	t.Parallel()
	const calibration, aRound = 12, 2 // prefills
	var prefills atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"served"}]}`))
			return
		}
		var req struct{ Prompt []int }
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || prefills.Add(1) > calibration+aRound+1 {
			http.Error(w, "out of memory", http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintf(w, `{"usage":{"prompt_tokens":%d}}`, len(req.Prompt))
	}))
	defer srv.Close()
	dir := t.TempDir()
	kept, csv := filepath.Join(dir, "x.json"), filepath.Join(dir, "x.csv")
	var stdout, stderr bytes.Buffer
	code := (&app{stdout: &stdout, stderr: &stderr}).run(t.Context(), []string{
		"bench", "crossover", "--wan", "rtt=1ms,rate=1Gbps", "--openai", strings.Replace(srv.URL, "//", "//me:secret@", 1),
		"--prefix", "16,32", "--max-prefix", "64", "--repeats", "3", "--quick", "--save", kept, "--csv", csv,
	})
	if code != exitUnreachable || !strings.Contains(stderr.String(), "out of memory") || strings.Count(stderr.String(), "check the address") != 1 {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
	if out := stdout.String(); !strings.Contains(out, "Fetch against recompute") || !strings.Contains(out, "warning: the rounds ended early") {
		t.Errorf("printed %s", out)
	}
	f, err := results.Load(kept)
	if err != nil {
		t.Fatal(err)
	}
	var body crossover.Result
	if err := f.DecodeBody(&body); err != nil || body.Rounds != 1 || !f.Interrupted {
		t.Errorf("kept %d rounds, interrupted %v, %v", body.Rounds, f.Interrupted, err)
	}
	var whole bytes.Buffer
	if err := f.WriteFlat(&whole); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(whole.String()+stdout.String()+stderr.String(), "secret") {
		t.Error("the password is shown")
	}
	if b, err := os.ReadFile(csv); err != nil || !bytes.Contains(b, []byte("\n32,")) {
		t.Errorf("the table of numbers: %q, %v", b, err)
	}
}
