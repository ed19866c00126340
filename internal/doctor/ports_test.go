package doctor_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
	"github.com/kvferry/kvferry/nvml"
)

// A TCP port that is held is the daemon's when it runs, and somebody else's when it does not, which keeps it from starting.
func TestPortsTaken(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"listen.grpc", "listen.admin"} {
		for _, running := range []bool{false, true} {
			s := newScene(t)
			l := listenTCP(t)
			t.Cleanup(func() { _ = l.Close() })
			if field == "listen.grpc" {
				s.setup.Config.Listen.GRPC = l.Addr().String()
			} else {
				s.setup.Config.Listen.Admin = l.Addr().String()
			}
			want, detail, fix := doctor.OK, "the daemon is bound to TCP "+l.Addr().String(), ""
			if !running {
				s.setup.Daemon, s.setup.Config.Peers = nil, nil
				want, detail, fix = doctor.Fail, "TCP "+l.Addr().String()+" is held by another process", "set "+field+" to another port"
			}
			byName, _ := s.run()
			if f := byName[field]; f.Status != want || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Fix, fix) {
				t.Errorf("%s, daemon running %v: %+v", field, running, f)
			}
		}
	}
}

// Two listeners on one port are in each other's way, on one address or on all of them.
func TestPortsAlike(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		grpc, admin string
		want        doctor.Status
	}{
		{"127.0.0.1:PORT", "127.0.0.1:PORT", doctor.Fail},
		{"0.0.0.0:PORT", "127.0.0.1:PORT", doctor.Fail},
		{"127.0.0.1:PORT", "127.0.0.2:PORT", doctor.OK},
		{"off", "127.0.0.1:PORT", doctor.OK},
		{"off", "off", doctor.OK},
	} {
		s := newScene(t)
		_, port, err := net.SplitHostPort(freeTCP(t))
		if err != nil {
			t.Fatal(err)
		}
		fill := strings.NewReplacer("PORT", port)
		s.setup.Config.Listen.GRPC, s.setup.Config.Listen.Admin = fill.Replace(tc.grpc), fill.Replace(tc.admin)
		byName, _ := s.run()
		for _, field := range []string{"listen.grpc", "listen.admin"} {
			if f := byName[field]; f.Status != tc.want || tc.want == doctor.Fail && !strings.Contains(f.Detail, "are both TCP port "+port) {
				t.Errorf("%s and %s: %s is %+v", tc.grpc, tc.admin, field, f)
			}
		}
	}
}

// Without a file nothing says which ports are the daemon's.
func TestPortsNeedAFile(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.setup.Configured = false
	if byName, _ := s.run(); byName["listen.grpc"].Name != "" || byName["listen.admin"].Name != "" {
		t.Errorf("looked at: %+v, %+v", byName["listen.grpc"], byName["listen.admin"])
	}
}

// What an engine is said to compute on is held to what the driver shows, also when it shows nothing.
func TestEngineGPUs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		gpus   []string
		snap   nvml.Snapshot
		want   doctor.Status
		detail string
	}{
		{"all there", []string{"0", "GPU-b", "MIG-c"}, twoGPUs(), doctor.OK, "0, GPU-b, MIG-c"},
		{"index of an instance", []string{"2"}, twoGPUs(), doctor.Fail, "names 2, and this host has 0 GPU-a, 1 GPU-b, MIG-c"},
		{"no driver", []string{"0"}, nvml.Snapshot{State: nvml.StateUnavailable, Reason: "no library"}, doctor.Fail, "no GPU of this host can be read: unavailable"},
		{"no GPU", []string{"0"}, nvml.Snapshot{State: nvml.StateAvailable}, doctor.Fail, "this host has none"},
		{"hung", []string{"0"}, nvml.Snapshot{State: nvml.StateHung}, doctor.Unknown, "see gpu"},
	} {
		s := newScene(t)
		s.setup.Config.Engines = []daemon.EngineConfig{{ID: "vllm-0", GPUs: tc.gpus}, {ID: "unlisted"}}
		reads := 0
		s.setup.Host.GPU = func(context.Context) (nvml.Snapshot, error) { reads++; return tc.snap, nil }
		byName, _ := s.run()
		if f := byName["engine.vllm-0.gpus"]; f.Status != tc.want || !strings.Contains(f.Detail, tc.detail) {
			t.Errorf("%s: %+v", tc.name, f)
		}
		if _, there := byName["engine.unlisted.gpus"]; there || reads != 1 {
			t.Errorf("%s: an engine without GPUs is looked at: %v; %d reads", tc.name, there, reads)
		}
	}
}
