package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/nvml"
)

// readGPUs asks the driver.
func readGPUs(ctx context.Context) (nvml.Snapshot, error) {
	sampler, err := nvml.Open()
	if err != nil {
		return nvml.Snapshot{}, err
	}
	defer func() { _ = sampler.Close() }() // a driver that hangs is a state already
	return sampler.Sample(ctx)
}

// gpus are this host's, read once for all checks.
type gpus struct {
	once sync.Once
	snap nvml.Snapshot
	err  error
}

func (d *doctor) readGPUs(ctx context.Context) (nvml.Snapshot, error) {
	d.gpus.once.Do(func() { d.gpus.snap, d.gpus.err = d.Host.GPU(ctx) })
	return d.gpus.snap, d.gpus.err
}

func (d *doctor) checkGPU(ctx context.Context) Finding {
	snap, err := d.readGPUs(ctx)
	text := snap.String()
	switch {
	case err != nil:
		return unknown("%v", err)
	case snap.State == nvml.StateHung:
		return warn("nvidia-smi; if it hangs too, restart the driver or the host", "%s", text)
	case snap.State != nvml.StateAvailable:
		return unknown("%s; without it clocks, throttling and memory do not enter plans", text)
	case strings.Contains(text, "not well"):
		return warn("nvidia-smi -q shows which and why; nvidia-smi --gpu-reset -i N resets one", "%s", text)
	}
	return ok("%s", text)
}

// checkEngineGPUs holds the GPUs that the configuration gives to an engine to those that the driver shows: a name that is none
// leaves the engine's clocks, memory and a lost GPU out of every plan.
func (d *doctor) checkEngineGPUs(ctx context.Context, e daemon.EngineConfig) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	field := "engines[id=" + e.ID + "].gpus"
	if on := d.Config.GPU.Enabled; on != nil && !*on {
		return warn("set gpu.enabled to true, or take "+field+" out", "%s names %s, and gpu.enabled is false: they are not read", field, strings.Join(e.GPUs, ", "))
	}
	snap, err := d.readGPUs(ctx)
	switch {
	case err != nil:
		return unknown("%v", err)
	case snap.State == nvml.StateHung:
		return unknown("not looked at: see gpu")
	case snap.State != nvml.StateAvailable:
		return fail("install the driver, so that nvidia-smi -L lists them, or take "+field+" out", "%s names %s, and no GPU of this host can be read: %s", field, strings.Join(e.GPUs, ", "), snap)
	}
	var missing, ill []string
	for _, name := range e.GPUs {
		switch g, found := gpuNamed(snap.GPUs, name); {
		case !found:
			missing = append(missing, name)
		case g.State != nvml.StateAvailable:
			ill = append(ill, fmt.Sprintf("%s is %s", name, g.State))
		}
	}
	if len(missing) > 0 {
		return fail("set "+field+" to names that nvidia-smi -L prints, or to indices from 0", "%s names %s, and this host has %s", field, strings.Join(missing, ", "), gpuList(snap.GPUs))
	}
	if len(ill) > 0 {
		return warn("nvidia-smi -q shows why; nvidia-smi --gpu-reset -i N resets one", "%s: %s", field, strings.Join(ill, ", "))
	}
	return ok("%s: %s", field, strings.Join(e.GPUs, ", "))
}

// gpuNamed finds a GPU or a MIG instance as the daemon does: by UUID, or a whole GPU by its index.
func gpuNamed(gpus []nvml.GPU, name string) (nvml.GPU, bool) {
	for _, g := range gpus {
		if g.UUID != "" && g.UUID == name || !g.IsInstance() && strconv.Itoa(g.Index) == name {
			return g, true
		}
	}
	return nvml.GPU{}, false
}

// maxListed bounds a list for people.
const maxListed = 16

func gpuList(gpus []nvml.GPU) string {
	if len(gpus) == 0 {
		return "none"
	}
	var out []string
	for _, g := range gpus[:min(len(gpus), maxListed)] {
		name := g.UUID
		if !g.IsInstance() {
			name = strings.TrimSpace(strconv.Itoa(g.Index) + " " + g.UUID)
		}
		out = append(out, name)
	}
	if more := len(gpus) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
