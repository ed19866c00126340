package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/results"
)

// trigger calls f once, when text has been written.
type trigger struct {
	bytes.Buffer
	text string
	f    func()
}

func (t *trigger) Write(b []byte) (int, error) {
	n, err := t.Buffer.Write(b)
	if t.f != nil && strings.Contains(t.String(), t.text) {
		t.f()
		t.f = nil
	}
	return n, err
}

// TestBenchGoodputInterrupted: Ctrl-C prints what was measured until then, as JSON that decodes, and exits with 6.
func TestBenchGoodputInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name, at string
		runs     int
	}{{"with a whole transfer", "repeat 2 of 6", 1}, {"with nothing", "warm-up", 0}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stdout bytes.Buffer
			stderr := &trigger{text: tc.at, f: cancel}
			a := &app{stdout: &stdout, stderr: stderr, terminal: true} // a terminal has progress beside JSON
			code := a.run(ctx, strings.Fields("bench goodput --wan rtt=10ms,rate=100Mbps,loss=0 --bytes 2MiB --pages-per-block 16 -o json"))
			if code != exitCancelled || !strings.Contains(stderr.String(), `"reason":"CANCELLED"`) {
				t.Fatalf("exit %d, stderr %s", code, stderr.String())
			}
			if tc.runs == 0 {
				if stdout.Len() > 0 {
					t.Errorf("stdout %s", stdout.String())
				}
				return
			}
			f, err := results.Parse(stdout.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			var body goodput.Body
			if err := f.DecodeBody(&body); err != nil {
				t.Fatal(err)
			}
			if !f.Interrupted || f.Kind != results.KindGoodput || len(body.Runs) != tc.runs || body.GoodputBps <= 0 || *body.LinkShare > 1 {
				t.Errorf("file %+v, body %+v", f, body)
			}
			if want := "--bytes=2MiB"; !strings.Contains(strings.Join(f.Command, " "), want) {
				t.Errorf("command %v, want %s in it", f.Command, want)
			}
		})
	}
}

func TestByteFlag(t *testing.T) {
	for text, want := range map[string]int64{"256MiB": 256 << 20, "1GB": 1e9, "64 KiB": 64 << 10, "1.5gib": 3 << 29, "4096": 4096, "4096B": 4096, "2tib": 2 << 40} {
		var got int64
		if err := newBytes(&got, 0, 1, 1<<50).Set(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "0", "NaN", "Inf", "1e300", "5 parsecs"} {
		var got int64
		if err := newBytes(&got, 0, 1, 1<<50).Set(text); err == nil || !strings.HasPrefix(err.Error(), "want 1 B to") {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}
