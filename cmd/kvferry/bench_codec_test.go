package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/codecbench"
	"github.com/kvferry/kvferry/bench/results"
)

// tinyShape has pages of 8 KiB, a block of 4.
const tinyShape = `{"layers":4,"hidden":64,"kv_heads":2,"head_dim":64}`

func runBench(t *testing.T, ctx context.Context, want exitCode, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	if code := a.run(ctx, append([]string{"bench"}, args...)); code != want {
		t.Fatalf("%v: exit code %d, want %d: %s", args, code, want, errs.String())
	}
	return out.String(), errs.String()
}

// TestBenchCodecSchema holds the JSON to what scripts read: with no flags huff, split4, zstd and s2 are there once each, with the numbers of BF16.
func TestBenchCodecSchema(t *testing.T) {
	t.Parallel()
	stdout, _ := runBench(t, t.Context(), exitOK, "codec", "-o", "json", "--rounds", "1", "--count", "2")
	f, err := results.Parse([]byte(stdout))
	if err != nil || f.Kind != results.KindCodec || f.Interrupted {
		t.Fatalf("%v: %+v", err, f)
	}
	var body codecbench.Result
	if err := f.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	var flat struct {
		Codecs []struct {
			Name       string   `json:"name"`
			DType      string   `json:"dtype"`
			Ratio      *float64 `json:"ratio"`
			Bound      *float64 `json:"bound_ratio"`
			EncodeGBps *float64 `json:"encode_gbps_core"`
			DecodeGBps *float64 `json:"decode_gbps_core"`
			CPU        *float64 `json:"cpu_seconds_per_gb"`
			RawPages   *int     `json:"raw_pages"`
		} `json:"codecs"`
		Data []codecbench.Data `json:"data"`
		Run  json.RawMessage   `json:"run"`
	}
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&flat); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, c := range flat.Codecs {
		seen[c.Name]++
		if c.DType != "bf16" || c.Ratio == nil || *c.Ratio < 1 || c.Bound == nil || *c.Bound < 1.4 || *c.EncodeGBps <= 0 || *c.DecodeGBps <= 0 || c.CPU == nil || c.RawPages == nil {
			t.Errorf("%+v", c)
		}
		for _, m := range []string{"encode", "decode", "cpu", "ratio"} {
			if _, ok := f.Metric(m + "/bf16/" + c.Name); !ok {
				t.Errorf("no metric %s of %s", m, c.Name)
			}
		}
	}
	if d := cmp.Diff(map[string]int{"huff": 1, "split4": 1, "zstd": 1, "zstd-planes": 1, "s2": 1, "s2-planes": 1}, seen); d != "" {
		t.Error(d)
	}
}

// TestBenchCodecFile records pages, measures them, and compares the result with another one of the same pages and of others.
func TestBenchCodecFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pages, saved := filepath.Join(dir, "pages.kv"), filepath.Join(dir, "codec.json")
	stdout, _ := runBench(t, t.Context(), exitOK, "kv-dump", pages, "--shape", tinyShape, "--max-bytes", "128KiB", "-o", "json")
	var view kvdumpView
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&view); err != nil {
		t.Fatal(err)
	}
	want := kvdumpView{
		File: pages, Bytes: 128 << 10, Blocks: 4, Pages: 16, PageBytes: 8 << 10, Model: "kvferry/refengine", DType: "bf16", Kind: "gqa",
		Source: "reference engine, prefill of 64 tokens", Left: 89,
	}
	if d := cmp.Diff(want, view); d != "" {
		t.Error(d)
	}
	stdout, _ = runBench(t, t.Context(), exitOK, "codec", "--pages", pages, "--rounds", "2", "--save", saved)
	for _, text := range []string{"huff", "split4", "16  16", "prefill of 64 tokens"} {
		if !strings.Contains(stdout, text) {
			t.Errorf("no %q in\n%s", text, stdout)
		}
	}
	stdout, _ = runBench(t, t.Context(), exitOK, "codec", "--pages", pages, "--rounds", "2", "--diff", saved)
	if !strings.Contains(stdout, "cpu/bf16/huff") || !strings.Contains(stdout, "ratio/bf16/huff") {
		t.Errorf("no comparison of processor time in\n%s", stdout)
	}
	if _, stderr := runBench(t, t.Context(), exitRefused, "codec", "--pages", pages, "--count", "8", "--rounds", "2", "--diff", saved); !strings.Contains(stderr, "data") {
		t.Errorf("other pages were compared: %s", stderr)
	}
	b, err := os.ReadFile(pages)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(pages, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr := runBench(t, t.Context(), exitFailed, "codec", "--pages", pages, "--count", "1"); stdout != "" || !strings.Contains(stderr, "page 15 of 16") {
		t.Errorf("a damaged file: %q, %q", stdout, stderr)
	}
	if stdout, _ = runBench(t, t.Context(), exitOK, "codec", "--dtype", "all", "--count", "2", "--rounds", "1"); !strings.Contains(stdout, "fp16    huff16") || !strings.Contains(stdout, "fp8     huff8") {
		t.Errorf("not all elements are in\n%s", stdout)
	}
}

// TestBenchCodecInterrupted: Ctrl-C in a round prints what whole rounds gave, and exits with 6; before that it prints nothing.
func TestBenchCodecInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(700*time.Millisecond, cancel)
	stdout, stderr := runBench(t, ctx, exitCancelled, "codec", "--count", "16", "--rounds", "1000", "-o", "json")
	if !strings.Contains(stderr, "CANCELLED") {
		t.Errorf("stderr %s", stderr)
	}
	if stdout != "" { // a slow machine may not have got to a whole round
		if f, err := results.Parse([]byte(stdout)); err != nil || !f.Interrupted {
			t.Errorf("%v, interrupted %v", err, f != nil && f.Interrupted)
		}
	}
	for _, args := range [][]string{{"codec"}, {"kv-dump", filepath.Join(t.TempDir(), "x")}} {
		if stdout, stderr := runBench(t, ctx, exitCancelled, args...); stdout != "" || !strings.Contains(stderr, "interrupted") {
			t.Errorf("%v: %q, %q", args, stdout, stderr)
		}
	}
}
