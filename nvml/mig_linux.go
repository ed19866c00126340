//go:build cgo

package nvml

import (
	"cmp"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// instances reads the MIG mode of a GPU into g, and returns its instances.
func (d *nvmlDriver) instances(dev *device, g *GPU) []GPU {
	g.MIG.Enabled = ask(d, dev, fnMIGMode, func() (bool, nvml.Return) {
		current, _, ret := dev.handle.GetMigMode()
		return current == nvml.DEVICE_MIG_ENABLE, ret
	}, Available)
	if on, ok := g.MIG.Enabled.Get(); !ok || !on {
		return nil
	}
	most := ask(d, dev, fnMIGMax, dev.handle.GetMaxMigDeviceCount, func(n int) Reading[int] {
		if n < 0 || n > maxInstances {
			return Missing[int](CauseInvalid, fmt.Sprintf("the driver says %d instances", n))
		}
		return Available(n)
	})
	n, ok := most.Get()
	if !ok {
		g.MIG.Instances = most
		return nil
	}
	var list []GPU
	var failed Reading[nvml.Device]
	for i := range n {
		handle := ask(d, dev, fnMIGHandle, func() (nvml.Device, nvml.Return) { return dev.handle.GetMigDeviceHandleByIndex(i) }, Available)
		h, ok := handle.Get()
		switch {
		case ok:
			list = append(list, d.instance(dev, h))
		case handle.Cause() != CauseNoData && handle.Cause() != CauseNotSampled: // not found: no instance at that place
			failed = handle
		}
	}
	g.MIG.Instances = Available(len(list))
	if failed.Cause() != CauseNotSampled {
		g.MIG.Instances = missingAs[int](failed)
	}
	return list
}

// instance reads one MIG instance.
func (d *nvmlDriver) instance(dev *device, h nvml.Device) GPU {
	parent := cmp.Or(dev.UUID, fmt.Sprintf("index %d", dev.Index))
	g := GPU{Index: dev.Index, Parent: parent, State: StateAvailable}
	g.UUID, _ = ask(d, dev, fnUUID, h.GetUUID, Available).Get()
	g.Name, _ = ask(d, dev, fnName, h.GetName, Available).Get()
	g.Memory = d.memory(dev, h)
	g.Processes = d.processes(dev, h)
	g.MIG.GPUInstance = ask(d, dev, fnGPUInstance, h.GetGpuInstanceId, Available)
	g.MIG.ComputeInstance = ask(d, dev, fnComputeInstance, h.GetComputeInstanceId, Available)
	g.MIG.Multiprocessors = ask(d, dev, fnAttributes, h.GetAttributes, func(a nvml.DeviceAttributes) Reading[int] {
		return Available(int(a.MultiprocessorCount))
	})
	g.eachReading(func(fill func(Cause, string)) { fill(CauseNotSupported, "read it from the parent GPU") })
	return g
}
