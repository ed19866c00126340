package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
)

// A SIGHUP reads certificates and policy again at once, opens audit_log anew, and does not end the daemon.
func TestHangUpReloads(t *testing.T) {
	dir, err := os.MkdirTemp("", "kvf") // short: a socket's path has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	put := func() {
		t.Helper()
		for _, name := range []string{"a.crt", "a.key"} {
			_ = os.Remove(filepath.Join(dir, name))
		}
		pair, err := ca.Issue("r", "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	put()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("policy.yaml"), []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := daemon.Config{
		Node:   daemon.NodeConfig{ID: "a", Region: "r"},
		Listen: daemon.ListenConfig{Unix: at("s"), GRPC: "off", Admin: "off", QUIC: "127.0.0.1:0"},
		TLS:    daemon.TLSConfig{CA: at("ca.crt"), Cert: at("a.crt"), Key: at("a.key")},
		Policy: at("policy.yaml"), AuditLog: at("audit"), StateDir: at("state"), LogLevel: "error",
	}.WithDefaults()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1) // one result
	go func() { done <- run(ctx, cfg) }()
	wait := func(what string, ok func(lines []string) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			b, _ := os.ReadFile(at("audit"))
			if ok(strings.Split(strings.TrimSpace(string(b)), "\n")) {
				return
			}
			select {
			case err := <-done:
				t.Fatalf("%s: the daemon ended: %v", what, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
		t.Fatalf("%s: it does not come to it", what)
	}
	has := func(line, event string) bool {
		var l struct{ Event, Decision string }
		return json.Unmarshal([]byte(line), &l) == nil && l.Event == event && l.Decision == "granted"
	}
	wait("start", func(lines []string) bool { return has(lines[0], "start") })
	put()
	if err := os.Rename(at("audit"), at("audit.1")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("reload", func(lines []string) bool {
		return len(lines) == 2 && has(lines[0], "certificate") && has(lines[1], "policy")
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}
