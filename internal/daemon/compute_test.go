package daemon

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/nvml"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// fakeGPUs and fakeLoad stand in for the driver and for an engine's endpoint.
type fakeGPUs struct {
	snap   nvml.Snapshot
	closed bool
}

func (f *fakeGPUs) Sample(context.Context) (nvml.Snapshot, error) { return f.snap, nil }
func (f *fakeGPUs) Close() error                                  { f.closed = true; return nil }

type fakeLoad struct {
	load engineload.Load
	err  error
}

func (f *fakeLoad) Load() (engineload.Load, error) { return f.load, f.err }
func (f *fakeLoad) Run(ctx context.Context) error  { <-ctx.Done(); return context.Cause(ctx) }

func known(v float64) engineload.Reading { return engineload.Reading{Value: v, Known: true} }

// gpu is a healthy one with an idle process table.
func gpu(index int, edit func(*nvml.GPU)) nvml.GPU {
	g := nvml.GPU{Index: index, UUID: "GPU-" + string(rune('a'+index)), State: nvml.StateAvailable}
	g.Clocks.Throttling = nvml.Available(nvml.Throttle(0))
	g.Clocks.SM, g.Clocks.SMMax = nvml.Available(uint64(1e9)), nvml.Available(uint64(2e9))
	g.Memory.Free = nvml.Available(uint64(1 << 30))
	g.Utilization.GPU = nvml.Available(0.97)
	g.Processes = nvml.Available([]nvml.Process{{PID: uint32(100 + index)}})
	if edit != nil {
		edit(&g)
	}
	return g
}

func snapshot(gpus ...nvml.GPU) nvml.Snapshot {
	return nvml.Snapshot{State: nvml.StateAvailable, Driver: "1", GPUs: gpus, Taken: time.Now()}
}

func throttled(g *nvml.GPU) { g.Clocks.Throttling = nvml.Available(nvml.ThrottleSoftwarePower) }

// What the planner is told of an engine, from what is read: order of the speeds, queue, clocks, vetoes, and what is unknown.
func TestComputeInputs(t *testing.T) {
	measured := engineload.Prefill{SecondsPerToken: known(2e-4), Tokens: 4096, Until: time.Now()}
	registered := &pb.PrefillSpeed{SecondsPerToken: 1e-4}
	flops := &pb.PrefillSpeed{PeakFlops: 1e15, Mfu: 0.5, ParamsActive: 7e10}
	busyLoad := engineload.Load{Prefill: measured, Waiting: known(3), ComputedTokens: known(5000), QueueRequests: known(10)}
	for _, tc := range []struct {
		name    string
		load    engineload.Load
		loadErr error
		speed   *pb.PrefillSpeed
		snap    nvml.Snapshot
		gpus    []string // listed
		need    int64
		want    planner.Compute // Source left out
		source  []string        // parts of it
		silent  []string        // what it must not say
	}{
		{
			name: "registered only", loadErr: errNotScraped, speed: registered, want: planner.Compute{SecondsPerToken: 1e-4},
			source: []string{"measured by the engine"}, silent: []string{"queue", "GPU"},
		},
		{
			name: "scraped before registered", load: engineload.Load{Prefill: measured, Waiting: known(0)}, speed: registered,
			want: planner.Compute{SecondsPerToken: 2e-4, QueueKnown: true}, source: []string{"metrics over 4096 tokens", "no request waits"},
		},
		{
			name: "stale", load: busyLoad, loadErr: &engineload.StaleError{Age: time.Minute, MaxAge: time.Second}, speed: registered,
			want: planner.Compute{SecondsPerToken: 1e-4}, source: []string{"queue unknown: ", "stale"},
		},
		{
			name: "speed not measured yet", load: engineload.Load{Waiting: known(0)}, speed: registered,
			want: planner.Compute{SecondsPerToken: 1e-4, QueueKnown: true},
		},
		{
			name: "queue", load: busyLoad, speed: registered,
			want: planner.Compute{SecondsPerToken: 2e-4, QueueSeconds: 3 * 500 * 2e-4, QueueKnown: true}, source: []string{"3 requests wait, about 500 tokens each"},
		},
		{
			name: "queue at a speed from FLOPS", load: engineload.Load{Waiting: known(2), ComputedTokens: known(1000), QueueRequests: known(1)}, speed: flops,
			want: planner.Compute{PeakFLOPS: 1e15, MFU: 0.5, QueueSeconds: 2 * 1000 * 2 * 7e10 / 5e14, QueueKnown: true},
		},
		{
			name: "waiting unknown", load: engineload.Load{Prefill: measured}, want: planner.Compute{SecondsPerToken: 2e-4}, source: []string{"queue unknown"},
		},
		{
			name: "tokens unknown", load: engineload.Load{Prefill: measured, Waiting: known(3)}, want: planner.Compute{SecondsPerToken: 2e-4},
			source: []string{"queue unknown: 3 requests wait"},
		},
		{
			name: "speed unknown", load: engineload.Load{Waiting: known(3), ComputedTokens: known(1), QueueRequests: known(1)}, want: planner.Compute{},
			source: []string{"unknown: the engine gave no prefill speed", "queue unknown"},
		},
		{
			name: "absurd queue", load: engineload.Load{Prefill: measured, Waiting: known(1e12), ComputedTokens: known(1e12), QueueRequests: known(1)},
			want: planner.Compute{SecondsPerToken: 2e-4, QueueSeconds: 86400, QueueKnown: true},
		},
		{
			name: "absurd speed", load: engineload.Load{Prefill: engineload.Prefill{SecondsPerToken: known(1e9)}, Waiting: known(0)}, speed: registered,
			want: planner.Compute{SecondsPerToken: 1e-4, QueueKnown: true},
		},
		{
			name: "throttled", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(0, throttled), gpu(1, nil)),
			want: planner.Compute{SecondsPerToken: 2e-4}, source: []string{"GPU 0 at 50 % of its clock (software_power)", "busy 97 %"},
		},
		{
			name: "throttled FLOPS", loadErr: errNotScraped, speed: flops, snap: snapshot(gpu(0, throttled)), want: planner.Compute{PeakFLOPS: 5e14, MFU: 0.5},
		},
		{
			name: "throttled but measured", load: engineload.Load{Prefill: measured, Waiting: known(0)}, snap: snapshot(gpu(0, throttled)),
			want: planner.Compute{SecondsPerToken: 2e-4, QueueKnown: true}, source: []string{"not charged again"},
		},
		{
			name: "another's GPU is throttled", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(0, nil), gpu(1, throttled)),
			want: planner.Compute{SecondsPerToken: 1e-4}, silent: []string{"clock"},
		},
		{
			name: "listed by index", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(0, nil), gpu(1, throttled)), gpus: []string{"0", "1"},
			want: planner.Compute{SecondsPerToken: 2e-4}, source: []string{"GPU 1 at 50 %"},
		},
		{
			name: "listed by UUID, and one that is not there", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(1, throttled)),
			gpus: []string{"GPU-b", "GPU-z"}, want: planner.Compute{SecondsPerToken: 2e-4}, source: []string{`"GPU-z" of engines[].gpus is not on this host`},
		},
		{
			name: "GPU not known", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(3, throttled)), want: planner.Compute{SecondsPerToken: 1e-4},
			source: []string{"GPU not known: list it"},
		},
		{
			name: "idle clock unknown", loadErr: errNotScraped, speed: registered, want: planner.Compute{SecondsPerToken: 1e-4},
			snap: snapshot(gpu(0, func(g *nvml.GPU) {
				g.Clocks.Throttling = nvml.Available(nvml.ThrottleIdle | nvml.ThrottleSoftwarePower)
			})),
		},
		{
			name: "memory veto", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(0, nil)), need: 1<<30 + 1,
			want: planner.Compute{SecondsPerToken: 1e-4, PrefillUnavailable: true}, source: []string{"no prefill: GPU 0 has 1073741824 bytes free"},
		},
		{
			name: "memory just enough", loadErr: errNotScraped, speed: registered, snap: snapshot(gpu(0, nil)), need: 1 << 30, want: planner.Compute{SecondsPerToken: 1e-4},
		},
		{
			name: "memory unknown is no veto", loadErr: errNotScraped, speed: registered, need: 1 << 40, want: planner.Compute{SecondsPerToken: 1e-4},
			snap: snapshot(gpu(0, func(g *nvml.GPU) { g.Memory.Free = nvml.Missing[uint64](nvml.CauseFailed, "") })),
		},
		{
			name: "lost", loadErr: errNotScraped, speed: registered, gpus: []string{"GPU-a"},
			snap: snapshot(nvml.GPU{Index: 0, UUID: "GPU-a", State: nvml.StateLost, Cause: nvml.CauseLost, Reason: "off the bus"}),
			want: planner.Compute{SecondsPerToken: 1e-4, PrefillUnavailable: true}, source: []string{"GPU 0 is lost: off the bus"},
		},
		{
			name: "MIG instance: its memory, its parent's clocks", loadErr: errNotScraped, speed: registered, need: 1 << 20, gpus: []string{"MIG-1"},
			snap: snapshot(gpu(0, throttled), nvml.GPU{Index: 0, UUID: "MIG-1", Parent: "GPU-a", State: nvml.StateAvailable, Memory: nvml.Memory{Free: nvml.Available(uint64(7))}}),
			want: planner.Compute{SecondsPerToken: 2e-4, PrefillUnavailable: true}, source: []string{"MIG instance MIG-1 has 7 bytes free"},
		},
		{
			name: "hung", loadErr: errNotScraped, speed: registered, snap: nvml.Snapshot{State: nvml.StateHung, Cause: nvml.CauseHung, Reason: "in a call"},
			want: planner.Compute{SecondsPerToken: 1e-4}, source: []string{"GPUs unknown: hung: in a call"},
		},
		{
			name: "old readings", loadErr: errNotScraped, speed: registered, want: planner.Compute{SecondsPerToken: 1e-4}, source: []string{"GPUs unknown: last read 1m0s ago"},
			snap: func() nvml.Snapshot { s := snapshot(gpu(0, throttled)); s.Age = time.Minute; return s }(),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{Engines: []EngineConfig{{ID: "e", GPUs: tc.gpus}}, GPU: GPUConfig{PrefillBytes: tc.need}}.WithDefaults()
			d := &Daemon{cfg: cfg, load: &load{
				gpus: &fakeGPUs{snap: tc.snap}, maxAge: 8 * time.Second,
				engines: []engineSource{{cfg: cfg.Engines[0], reader: &fakeLoad{tc.load, tc.loadErr}}},
			}}
			e := &engine{id: "e"}
			e.mu.speed, e.mu.procs = tc.speed, map[processKey]*engineProcess{{pid: 100}: {pid: 100}}
			m := planner.Model{ParamsActive: tc.speed.GetParamsActive()}
			got, veto := d.computeInputs(e, m, planner.Request{PrefixTokens: 1000})
			source := got.Source
			got.Source = ""
			tc.want.Spread = spreadOf(tc.want, source, tc.snap)
			if math.Abs(got.QueueSeconds-tc.want.QueueSeconds) < 1e-12*tc.want.QueueSeconds {
				got.QueueSeconds = tc.want.QueueSeconds
			}
			if got != tc.want {
				t.Errorf("compute %+v, want %+v", got, tc.want)
			}
			if (veto != "") != tc.want.PrefillUnavailable {
				t.Errorf("veto %q", veto)
			}
			for _, s := range tc.source {
				if !strings.Contains(source, s) {
					t.Errorf("source %q does not say %q", source, s)
				}
			}
			for _, s := range tc.silent {
				if strings.Contains(source, s) {
					t.Errorf("source %q says %q", source, s)
				}
			}
			if err := got.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// spreadOf is the spread of a speed by its source, 1.97 times that on a device that is busy 97 % of the time.
func spreadOf(c planner.Compute, source string, snap nvml.Snapshot) float64 {
	base := 0.0
	switch {
	case strings.Contains(source, "metrics over"):
		base = 0.10
	case c.SecondsPerToken > 0:
		base = 0.15
	case c.PeakFLOPS > 0:
		base = 0.20
	}
	if strings.Contains(source, "busy 97 %") && snap.State == nvml.StateAvailable {
		base *= 1 + 0.97
	}
	return base
}

// A busier GPU widens the spread up to twice, and moves nothing else; the busiest of several counts.
func TestUtilizationWidensSpread(t *testing.T) {
	cfg := Config{Engines: []EngineConfig{{ID: "e", GPUs: []string{"0", "1"}}}}.WithDefaults()
	e := &engine{id: "e"}
	e.mu.speed = &pb.PrefillSpeed{SecondsPerToken: 1e-4}
	last := planner.Compute{}
	for i, busy := range []float64{0, 0.25, 0.5, 1} {
		at := func(u float64) func(*nvml.GPU) {
			return func(g *nvml.GPU) { g.Utilization.GPU = nvml.Available(u) }
		}
		d := &Daemon{cfg: cfg, load: &load{
			gpus: &fakeGPUs{snap: snapshot(gpu(0, at(busy)), gpu(1, at(busy/2)))}, maxAge: time.Minute, engines: []engineSource{{cfg: cfg.Engines[0]}},
		}}
		c, _ := d.computeInputs(e, planner.Model{}, planner.Request{PrefixTokens: 1000})
		if want := registeredSpread * (1 + busy); math.Abs(c.Spread-want) > 1e-12 {
			t.Errorf("busy %v: spread %v, want %v", busy, c.Spread, want)
		}
		p := planner.Recompute(planner.Request{PrefixTokens: 1000}, planner.Model{}, c)
		q := planner.Recompute(planner.Request{PrefixTokens: 1000}, planner.Model{}, last)
		if i > 0 && (p.Seconds != q.Seconds || p.P95Seconds <= q.P95Seconds) {
			t.Errorf("busy %v: %v s, P95 %v s; less busy %v s and %v s", busy, p.Seconds, p.P95Seconds, q.Seconds, q.P95Seconds)
		}
		last = c
	}
}

// Load and GPUs reach a real plan: a queue turns recompute into fetch, a lost GPU refuses recompute with its reason.
func TestLoadDecides(t *testing.T) {
	gpus, load := &fakeGPUs{snap: snapshot(gpu(0, nil))}, &fakeLoad{err: engineload.ErrNoScrape}
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, c *Config, p *Parts) {
			c.Peers[0].PriorBps = 1e7 // 16 blocks of 8 KiB take about a tenth of a second
			if name == "b" {
				c.Engines = []EngineConfig{{ID: "e", MetricsURL: "http://127.0.0.1:1", GPUs: []string{"0"}}}
				p.GPUs, p.EngineLoad = gpus, func(EngineConfig) (EngineLoadReader, error) { return load, nil }
			}
		})
		if _, err := r.b.engine.RegisterEngine(context.Background(), &pb.RegisterEngineRequest{
			EngineId: "e", Layout: testLayout(), Prefill: &pb.PrefillSpeed{SecondsPerToken: 1e-6},
		}); err != nil {
			t.Fatal(err)
		}
		r.ea.session("s", 16)
		plan := func() *pb.Plan {
			resp, err := r.b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: auto("s")})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetPlan()
		}
		if p := plan(); p.GetWinner() != pb.Mode_MODE_RECOMPUTE || !strings.Contains(p.GetComputeSource(), "queue unknown: engine has not been scraped yet") {
			t.Errorf("plan %v", p)
		}
		load.err = nil
		load.load = engineload.Load{Waiting: known(4), ComputedTokens: known(1e6), QueueRequests: known(1)}
		p := plan()
		if p.GetWinner() != pb.Mode_MODE_FETCH {
			t.Errorf("with a queue of four seconds: plan %v", p)
		}
		for _, m := range p.GetModes() {
			for _, term := range m.GetTerms() {
				if m.GetMode() == pb.Mode_MODE_RECOMPUTE && term.GetName() == planner.TermComputeQueue && math.Abs(term.GetSeconds()-4) > 1e-9 {
					t.Errorf("queue is %v, want 4 s", term)
				}
			}
		}
		load.load = engineload.Load{Waiting: known(0)}
		gpus.snap = snapshot(nvml.GPU{State: nvml.StateLost, UUID: "GPU-a", Reason: "off the bus"})
		p = plan()
		for _, m := range p.GetModes() {
			if m.GetMode() == pb.Mode_MODE_RECOMPUTE && (m.GetEligible() || !strings.Contains(m.GetReason(), "GPU 0 is lost: off the bus")) {
				t.Errorf("recompute with a lost GPU: %v", m)
			}
		}
		if p.GetWinner() != pb.Mode_MODE_FETCH {
			t.Errorf("plan %v", p)
		}
		st, err := r.b.region.Status(context.Background(), &pb.StatusRequest{})
		if err != nil || !strings.HasPrefix(st.GetGpu(), "available: 1 GPU(s) of which 1 not well") {
			t.Errorf("status says %q, %v", st.GetGpu(), err)
		}
		r.settle()
		r.b.stop()
		if !gpus.closed {
			t.Error("the GPU reader was not closed")
		}
	})
}

// A reader that can't be made is an error of Open, which closes what it was given.
func TestOpenLoadFails(t *testing.T) {
	gpus := &fakeGPUs{}
	cfg := Config{Engines: []EngineConfig{{ID: "e", MetricsURL: "http://h"}}}.WithDefaults()
	bad := errors.New("bad")
	_, err := openLoad(cfg, Parts{GPUs: gpus, EngineLoad: func(EngineConfig) (EngineLoadReader, error) { return nil, bad }})
	if !errors.Is(err, bad) || !gpus.closed {
		t.Errorf("error %v, closed: %v", err, gpus.closed)
	}
}
