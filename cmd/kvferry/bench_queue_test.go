package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/results"
)

// TestBenchQueueInterrupted: what was measured before Ctrl-C is printed whole, and the exit code says that it is not all.
func TestBenchQueueInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr}
	// So many replications that the crossovers cannot be done before.
	args := strings.Fields("bench queue --jobs 100000 --replications 1000 --utilization 0.5 --no-link -o json --seed 3 --spread 2 --quick")
	time.AfterFunc(500*time.Millisecond, cancel)
	if code := a.run(ctx, args); code != exitCancelled {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("stderr %q", stderr.String())
	}
	if stdout.Len() == 0 {
		return // not even a point was done, on a slow machine
	}
	f, err := results.Parse(stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var body queue.Result
	if err := f.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	if !f.Interrupted || len(body.Points) == 0 {
		t.Errorf("interrupted %v, %d points", f.Interrupted, len(body.Points))
	}
}

func TestBenchQueueInterruptedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr}
	if code := a.run(ctx, []string{"bench", "queue", "--quick"}); code != exitCancelled || stdout.Len() != 0 {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
	if !strings.Contains(stderr.String(), "before anything was measured") {
		t.Errorf("stderr %q", stderr.String())
	}
}
