package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/nvml"
)

// GPUReader is what the daemon needs of the reader of this host's GPUs; [nvml.Open] returns one.
type GPUReader interface {
	// Sample returns the last readings and their age without waiting.
	Sample(ctx context.Context) (nvml.Snapshot, error)
	// Close ends reading.
	Close() error
}

// EngineLoadReader is what the daemon needs of the reader of one engine's load; [engineload.Scraper] is one.
type EngineLoadReader interface {
	// Run reads again and again until ctx ends.
	Run(ctx context.Context) error
	// Load returns the latest without waiting; an error says that there is none, or that it is too old to be used.
	Load() (engineload.Load, error)
}

// load is what is read about the machines behind the engines: the host's GPUs and the engines' queues.
type load struct {
	gpus    GPUReader
	maxAge  time.Duration // of GPU readings
	engines []engineSource
	cancel  context.CancelFunc
	wg      sync.WaitGroup // a reader each
}

// engineSource is one engine of the configuration.
type engineSource struct {
	cfg    EngineConfig
	reader EngineLoadReader // nil without an address
}

// openLoad starts reading. On error nothing is left running.
func openLoad(cfg Config, parts Parts) (_ *load, err error) {
	l := &load{gpus: parts.GPUs, maxAge: 3*cfg.GPU.Interval + 5*time.Second}
	defer func() {
		if err != nil && l.gpus != nil {
			_ = l.gpus.Close()
		}
	}()
	if parts.EngineLoad == nil {
		parts.EngineLoad = func(e EngineConfig) (EngineLoadReader, error) {
			return engineload.New(engineload.Config{URL: e.MetricsURL})
		}
	}
	for _, e := range cfg.Engines {
		source := engineSource{cfg: e}
		if e.MetricsURL != "" {
			r, err := parts.EngineLoad(e)
			if err != nil {
				return nil, fmt.Errorf("engine %q: %w", e.ID, err)
			}
			source.reader = r
		}
		l.engines = append(l.engines, source)
	}
	if l.gpus == nil && !*cfg.GPU.Enabled {
		l.gpus = nvml.Unavailable("gpu.enabled is false")
	}
	if l.gpus == nil {
		if l.gpus, err = nvml.OpenWith(nvml.Config{Period: cfg.GPU.Interval}); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for _, e := range l.engines {
		if e.reader != nil {
			l.wg.Go(func() { _ = e.reader.Run(ctx) }) // owner: l; ends with close. Its error is ctx's
		}
	}
	return l, nil
}

func (l *load) close() error {
	l.cancel()
	l.wg.Wait()
	return l.gpus.Close()
}

// gpuText is the GPUs' state for people.
func (l *load) gpuText(ctx context.Context) string {
	snap, err := l.gpus.Sample(ctx)
	if err != nil {
		return "unavailable: " + err.Error()
	}
	return snap.String()
}

// config is what the configuration says about an engine; zero when it is not listed.
func (l *load) config(id string) EngineConfig {
	for _, e := range l.engines {
		if e.cfg.ID == id {
			return e.cfg
		}
	}
	return EngineConfig{}
}

// errNotScraped is the answer about an engine that has no metrics_url.
var errNotScraped = errors.New("its metrics are not read: give engines[].metrics_url")

// engine returns an engine's latest load.
func (l *load) engine(id string) (engineload.Load, error) {
	for _, e := range l.engines {
		if e.cfg.ID == id && e.reader != nil {
			return e.reader.Load()
		}
	}
	return engineload.Load{}, errNotScraped
}

// device is one GPU, or one MIG instance, that an engine computes on.
type device struct {
	nvml.GPU          // state, memory
	whole    nvml.GPU // the parent of an instance, else the same: clocks, utilization
}

func (v device) String() string {
	if v.IsInstance() {
		return "MIG instance " + v.UUID
	}
	return "GPU " + strconv.Itoa(v.Index)
}

// devicesOf returns what the engine computes on: the GPUs that the configuration lists, else those on which one of its
// processes holds memory. problem says why it is not known, or not whole; "" also when this host has no GPU.
func (l *load) devicesOf(id string, pids []int) (devices []device, problem string) {
	snap, err := l.gpus.Sample(context.Background())
	switch {
	case err != nil:
		return nil, "GPUs unknown: " + err.Error()
	case snap.State == nvml.StateHung:
		return nil, "GPUs unknown: " + snap.String()
	case snap.State != nvml.StateAvailable:
		return nil, "" // no GPU that can be read is the usual case on a host without one
	}
	gpus := snap.Fresh(l.maxAge)
	if gpus == nil {
		return nil, fmt.Sprintf("GPUs unknown: last read %v ago", snap.Age.Round(time.Second))
	}
	whole := map[string]nvml.GPU{}
	for _, g := range gpus {
		if !g.IsInstance() {
			whole[g.UUID] = g
		}
	}
	listed := l.config(id).GPUs
	found := map[string]bool{}
	for _, g := range gpus {
		v := device{GPU: g, whole: g}
		if g.IsInstance() {
			v.whole = whole[g.Parent]
		}
		name, used := usedBy(g, listed, pids)
		if used {
			found[name] = true
			devices = append(devices, v)
		}
	}
	for _, name := range listed {
		if !found[name] {
			return devices, fmt.Sprintf("GPU %q of engines[].gpus is not on this host", name)
		}
	}
	if len(devices) == 0 && len(gpus) > 0 {
		return nil, "GPU not known: list it in engines[].gpus"
	}
	return devices, ""
}

// usedBy reports whether an engine computes on g, and the name in listed by which.
func usedBy(g nvml.GPU, listed []string, pids []int) (name string, used bool) {
	for _, name := range listed {
		if g.UUID != "" && name == g.UUID || !g.IsInstance() && name == strconv.Itoa(g.Index) {
			return name, true
		}
	}
	if len(listed) > 0 {
		return "", false
	}
	holders, _ := g.Processes.Get()
	return "", slices.ContainsFunc(holders, func(p nvml.Process) bool { return slices.Contains(pids, int(p.PID)) })
}
