package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestBenchWanUsage(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.txt")
	if err := os.WriteFile(bad, []byte("at 1s cut\nat 2s burn\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := []string{"--listen", "127.0.0.1:0", "--target", "127.0.0.1:1"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"neither a relay nor namespaces", "--netns A,B"}},
		{[]string{"--listen", "127.0.0.1:0"}, []string{"--listen and --target go together"}},
		{append([]string{"--netns", "a,b"}, relay...), []string{"--netns excludes --listen"}},
		{append([]string{"--net", "10.0.0.0/24"}, relay...), []string{"--net has no meaning for a relay"}},
		{[]string{"--netns", "a"}, []string{"--netns names 1 namespace", "east,west"}},
		{[]string{"--netns", "a,a"}, []string{"another name than A"}},
		{[]string{"--netns", "a,../b"}, []string{"1 to 64 of"}},
		{[]string{"--netns", "a,b", "--net", "10.0.0.0"}, []string{"--net", "10.77.0.0/24"}},
		{append([]string{"--wan", "rtt=70"}, relay...), []string{"--wan: wan: rtt=70"}},
		{append([]string{"--schedule", bad}, relay...), []string{"bad.txt: wan: schedule line 2: action \"burn\"", "fix: want lines such as"}},
		{append([]string{"--schedule", bad + "x"}, relay...), []string{"no such file"}},
		{[]string{"--listen", "127.0.0.1:0", "--target", "nonsense"}, []string{"--target nonsense is no UDP address", "HOST:PORT"}},
		{[]string{"--listen", "127.0.0.1:0", "--target", "127.0.0.1"}, []string{"--target 127.0.0.1 is no UDP address"}},
		{[]string{"--listen", "127.0.0.1:0", "--target", ":7001"}, []string{"--target :7001 is no UDP address"}},
		{[]string{"--listen", "127.0.0.1:0", "--target", "127.0.0.1:0"}, []string{"--target 127.0.0.1:0 is no UDP address"}},
		{[]string{"--listen", "127.0.0.1:70000", "--target", "127.0.0.1:1"}, []string{"--listen 127.0.0.1:70000 is no UDP address"}},
		{append([]string{"--save", "x"}, relay...), []string{"measures nothing"}},
	} {
		r := run(t, append([]string{"bench", "wan"}, c.args...)...)
		if r.code != exitUsage {
			t.Errorf("%v: exit %d: %s", c.args, r.code, r.stderr)
		}
		wantText(t, r.stderr, c.want...)
	}
	for _, c := range [][]string{{"--listen", "192.0.2.1:7", "--target", "127.0.0.1:1"}} {
		if r := run(t, append([]string{"bench", "wan"}, c...)...); r.code != exitFailed || !strings.Contains(r.stderr, "fix: give --listen a free UDP address") {
			t.Errorf("%v: exit %d: %s", c, r.code, r.stderr)
		}
	}
}

// A schedule's stop ends the relay; what it carried and dropped is printed.
func TestBenchWanRelay(t *testing.T) {
	t.Parallel()
	echo, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // until echo is closed
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	defer func() { _ = echo.Close(); <-done }()
	file := filepath.Join(t.TempDir(), "schedule.txt")
	if err := os.WriteFile(file, []byte("at 0s set rtt=40ms\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	ready := regexp.MustCompile(`relay: UDP (\S+) ->`)
	at := make(chan string, 1) // capacity 1: the relay says once where it listens
	set := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: writerFunc(func(b []byte) (int, error) {
		if m := ready.FindSubmatch(b); m != nil {
			at <- string(m[1])
		}
		if bytes.Contains(b, []byte("set rtt=40ms,rate=unlimited,loss=0")) {
			close(set)
		}
		return len(b), nil
	})}
	code := make(chan exitCode, 1) // capacity 1: read at the end
	go func() {
		code <- a.run(ctx, []string{"bench", "wan", "--listen", "127.0.0.1:0", "--target", echo.LocalAddr().String(), "--wan", "rtt=20s,rate=unlimited,loss=0", "--schedule", file, "-o", "json"})
	}()
	client, err := net.Dial("udp", <-at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	<-set
	began := time.Now()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := client.SetReadDeadline(began.Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := client.Read(buf)
	if rtt := time.Since(began); err != nil || string(buf[:n]) != "hello" || rtt < 40*time.Millisecond {
		t.Errorf("%q, %v after %v", buf[:n], err, rtt)
	}
	cancel() // Ctrl-C
	if c := <-code; c != exitOK {
		t.Errorf("exit %d", c)
	}
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, &out)
	}
	wantFields(t, v, map[string]any{
		"form": "relay", "events": 1.0, "wan": "rtt=20s,rate=unlimited,loss=0", "relay.flows": 1.0, "relay.evicted": 0.0,
		"up.packets": 1.0, "up.bytes": 33.0, "up.delivered": 1.0, "up.dropped_loss": 0.0, "down.packets": 1.0, "down.bytes": 33.0, // the last delivery may not be counted yet
	})
}

// The schedule's stop ends it without a signal, and the table names every count.
func TestBenchWanStops(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "schedule.txt")
	if err := os.WriteFile(file, []byte("at 0s cut\nat 1ms heal\nat 2ms stop\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, "bench", "wan", "--listen", "127.0.0.1:0", "--target", "127.0.0.1:1", "--schedule", file)
	if r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	wantText(t, r.stdout, "TO TARGET TO CLIENTS", "packets 0 0", "dropped: queue full 0 0", "3 events of the schedule")
	wantText(t, r.stderr, "0.0s cut", "heal", "stop")
}
