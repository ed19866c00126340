//go:build netns && linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// Ctrl-C removes the namespaces and prints the counters.
func TestBenchWanNamespaces(t *testing.T) {
	east, west := fmt.Sprintf("kvfcli%d-e", os.Getpid()), fmt.Sprintf("kvfcli%d-w", os.Getpid())
	there := func(name string) bool {
		_, err := os.Stat("/run/netns/" + name)
		return !errors.Is(err, os.ErrNotExist)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	a := &app{stdout: &out, stderr: writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("namespaces: "+east+" (10.55.0.1) <-> "+west+" (10.55.0.2), rtt=70ms")) {
			if !there(east) || !there(west) {
				t.Error("the namespaces are not there")
			}
			if r := run(t, "bench", "wan", "--netns", east+","+west); r.code != exitRefused {
				t.Errorf("the same names again: exit %d: %s", r.code, r.stderr)
			} else {
				wantText(t, r.stderr, "exists", "fix: give other names, or remove the old ones: ip netns del "+east)
			}
			cancel()
		}
		return errOut.Write(b)
	})}
	code := a.run(ctx, []string{"bench", "wan", "--netns", east + "," + west, "--net", "10.55.0.0/16", "-o", "json"})
	if code == exitRefused && os.Geteuid() != 0 {
		t.Skip(errOut.String())
	}
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, &errOut)
	}
	if there(east) || there(west) {
		t.Error("the namespaces are left")
	}
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, &out)
	}
	wantFields(t, v, map[string]any{"form": "netns", "netns.a": east, "netns.address_b": "10.55.0.2", "netns.device_drops_a": 0.0, "up.packets": 0.0})
}
