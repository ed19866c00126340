package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/bench/hybrid"
	"github.com/kvferry/kvferry/bench/results"
)

// TestBenchHybrid: a cell by flags, as JSON and as text, kept, drawn, and compared with itself.
func TestBenchHybrid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept, picture := filepath.Join(dir, "hybrid.json"), filepath.Join(dir, "hybrid.svg")
	flags := strings.Fields("bench hybrid --goodput 8Gbps --rtt 90ms --prefix 4096 --gpu 8xH100-BF16 --sigma 0,0.3 --draws 200 --seed 3 --claim-cost 1ms --claim 16 --real 0")
	run := func(more ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		a := &app{stdout: &stdout, stderr: &stderr}
		if code := a.run(t.Context(), append(append([]string{}, flags...), more...)); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr.String())
		}
		return stdout.String()
	}
	f, err := results.Parse([]byte(run("-o", "json", "--save", kept, "--out", picture)))
	if err != nil {
		t.Fatal(err)
	}
	var body hybrid.Result
	if err := f.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	if f.Kind != results.KindHybrid || len(body.Cells) != 2 { // 4096 tokens take 8 GPUs less time than three round trips: no goodput makes them equal
		t.Errorf("%d cells: %+v", len(body.Cells), body.Cells)
	}
	if b, err := os.ReadFile(picture); err != nil || !bytes.Contains(b, []byte("<svg")) {
		t.Errorf("picture: %v", err)
	}
	if text := run("--diff", kept); !strings.Contains(text, "hybrid.mean/8xH100-BF16/4096tokens/90ms") || !strings.Contains(text, "What hybrid is held to") {
		t.Errorf("%s", text)
	}
}

func TestBenchHybridRefuses(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"--goodput 8":               "Gbps",
		"--goodput 8Gbps,8Gbps":     "given once",
		"--gpu abacus":              "2xH100-FP8",
		"--sigma -1":                "0 to 2",
		"--model gpt-0":             "llama-3.1-70b",
		"--out hybrid.gif":          ".svg or .png",
		"--prefix 1":                "tokens",
		"--claim-cost 5s":           "1e-6 to 1",
		"--diff /nowhere/old.json":  "--diff",
		"--save /nowhere/some.json": "folder",
	} {
		var stdout, stderr bytes.Buffer
		a := &app{stdout: &stdout, stderr: &stderr}
		code := a.run(t.Context(), append([]string{"bench", "hybrid"}, strings.Fields(flags)...))
		if code != exitUsage || !strings.Contains(stderr.String(), want) || stdout.Len() != 0 {
			t.Errorf("%s: exit code %d, %q", flags, code, stderr.String())
		}
	}
}

func TestBenchHybridInterruptedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr}
	if code := a.run(ctx, []string{"bench", "hybrid", "--quick"}); code != exitCancelled || stdout.Len() != 0 {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
	if !strings.Contains(stderr.String(), "before anything was simulated") {
		t.Errorf("stderr %q", stderr.String())
	}
}
