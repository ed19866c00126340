package nvml

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// GPU is the state of one GPU, or of one MIG instance of a GPU. Its zero value has every reading unavailable.
type GPU struct {
	// Index is the driver's index, from 0; an instance has its parent's. It can change with a restart of the driver: UUID
	// is the identity.
	Index int
	UUID  string // "GPU-…", an instance's "MIG-…"; "" when it was never read
	Name  string // product name; "" when it was never read
	BusID string // PCI address as the driver writes it, "00000000:18:00.0"; "" when unknown and for instances

	// Parent is the UUID of the GPU that an instance is part of, or "index N" when that was never read; "" for a whole GPU.
	// An instance has memory, processes and the MIG readings that say so; everything else is to be read from its parent.
	Parent string

	// State is [StateAvailable] when the driver answers for this GPU, whatever single readings say. Lost, hung and
	// unavailable GPUs have no reading. Cause and Reason say why, and list a degraded GPU's damage.
	State  State
	Cause  Cause
	Reason string

	Utilization Utilization
	Memory      Memory
	PCIe        PCIe
	Power       Power
	Clocks      Clocks
	Temperature Reading[float64] // of the GPU's die, degrees Celsius
	Health      Health
	MIG         MIG
	// Processes hold memory of this GPU for compute, by ascending PID; at most 1,024. With MIG the driver may list them
	// under the instance and not under its parent. The PIDs are those of the driver's PID namespace, the host's.
	Processes Reading[[]Process]
}

// Utilization is what the driver calls utilization. Neither is the utilization of a queue: a GPU that decodes one sequence
// reads near 1, and so does one that decodes a hundred.
type Utilization struct {
	GPU    Reading[float64] // share of the driver's last period (1/6 s to 1 s) in which any kernel ran, 0 to 1
	Memory Reading[float64] // share of it in which device memory was read or written, 0 to 1
}

// Memory is the device memory, in bytes. Total = Used + Free + Reserved with a driver of 510 or later (version 2 of the
// struct). An older one does not tell Reserved apart: it is missing, and counted in Used.
type Memory struct {
	Total    Reading[uint64]
	Used     Reading[uint64] // allocated
	Free     Reading[uint64]
	Reserved Reading[uint64] // kept by driver and firmware
}

// PCIe is the traffic of the bus as the driver counts it over 20 ms, in bytes a second (the driver's KB are taken as 1,000
// bytes): it misses bursts in between.
type PCIe struct {
	Receive  Reading[float64] // into the GPU
	Transmit Reading[float64] // out of the GPU
	Replays  Reading[uint64]  // link-level retries since the driver loaded
}

// Power is the draw of the board, in watts.
type Power struct {
	Draw  Reading[float64] // averaged over 1 s by Ampere and later, but A100; instantaneous on others
	Limit Reading[float64] // the lowest of all limits that are set
}

// Clocks are in hertz.
type Clocks struct {
	SM         Reading[uint64]
	SMMax      Reading[uint64]
	Memory     Reading[uint64]
	MemoryMax  Reading[uint64]
	Throttling Reading[Throttle] // what sets the clocks; 0: nothing holds them down
}

// Health is what the GPU reports of its own faults.
type Health struct {
	// Corrected and Uncorrected are ECC errors of memory since the driver loaded. Not supported while ECC is off.
	Corrected, Uncorrected Reading[uint64]
	// LastXid is the last Xid event (a Xid of 0: there was none) since the sampler was opened, the driver was loaded, or the
	// GPU came back from being lost. It is missing where events cannot be listened to.
	LastXid Reading[Xid]
	// Rows are DRAM rows that were remapped; GPUs before Ampere have Retired instead.
	Rows Reading[Rows]
	// Retired is the number of pages taken out of use; Ampere and later have Rows instead.
	Retired Reading[uint64]
}

// Xid is one error event of the driver. The numbers are in NVIDIA's "XID Errors" document.
type Xid struct {
	Code uint64    // 0: none so far
	At   time.Time // when a pass found it; up to a period late
	// Count is how many events there were in that time.
	Count uint64
}

// Rows counts remapped DRAM rows over the GPU's life.
type Rows struct {
	Corrected, Uncorrected uint64 // by what caused them
	Pending                bool   // a remapping waits for a reset of the GPU
	Failed                 bool   // a remapping failed: the memory is to be replaced
}

// MIG is the partitioning of a GPU.
type MIG struct {
	Enabled         Reading[bool] // whole GPUs only; not supported where the GPU cannot be partitioned
	Instances       Reading[int]  // whole GPUs with MIG only: how many entries follow this one
	GPUInstance     Reading[int]  // instances only: the driver's id of the GPU instance
	ComputeInstance Reading[int]  // instances only: the driver's id of the compute instance in it
	Multiprocessors Reading[int]  // instances only
}

// Process is one process that holds memory of a GPU.
type Process struct {
	PID    uint32
	Memory Reading[uint64] // bytes; often missing in a container and under MIG
}

// IsInstance reports whether this is a MIG instance and not a whole GPU.
func (g GPU) IsInstance() bool { return g.Parent != "" }

// bare is the GPU without its readings, which are all missing for that reason.
func (g GPU) bare(state State, cause Cause, reason string) GPU {
	b := GPU{Index: g.Index, UUID: g.UUID, Name: g.Name, BusID: g.BusID, Parent: g.Parent}
	b.State, b.Cause, b.Reason = state, cause, reason
	b.eachReading(func(fill func(Cause, string)) { fill(cause, reason) })
	return b
}

// eachReading calls do for each reading, with a function that gives it a cause if nothing has read it.
func (g *GPU) eachReading(do func(fill func(Cause, string))) {
	do(filler(&g.Utilization.GPU))
	do(filler(&g.Utilization.Memory))
	do(filler(&g.Memory.Total))
	do(filler(&g.Memory.Used))
	do(filler(&g.Memory.Free))
	do(filler(&g.Memory.Reserved))
	do(filler(&g.PCIe.Receive))
	do(filler(&g.PCIe.Transmit))
	do(filler(&g.PCIe.Replays))
	do(filler(&g.Power.Draw))
	do(filler(&g.Power.Limit))
	do(filler(&g.Clocks.SM))
	do(filler(&g.Clocks.SMMax))
	do(filler(&g.Clocks.Memory))
	do(filler(&g.Clocks.MemoryMax))
	do(filler(&g.Clocks.Throttling))
	do(filler(&g.Temperature))
	do(filler(&g.Health.Corrected))
	do(filler(&g.Health.Uncorrected))
	do(filler(&g.Health.LastXid))
	do(filler(&g.Health.Rows))
	do(filler(&g.Health.Retired))
	do(filler(&g.MIG.Enabled))
	do(filler(&g.MIG.Instances))
	do(filler(&g.MIG.GPUInstance))
	do(filler(&g.MIG.ComputeInstance))
	do(filler(&g.MIG.Multiprocessors))
	do(filler(&g.Processes))
}

func filler[T any](r *Reading[T]) func(Cause, string) {
	return func(cause Cause, reason string) {
		if r.Cause() == CauseNotSampled {
			*r = Missing[T](cause, reason)
		}
	}
}

// clone returns a copy that shares no memory with g.
func (g GPU) clone() GPU {
	if list, ok := g.Processes.Get(); ok {
		g.Processes = Available(slices.Clone(list))
	}
	return g
}

// applicationXids are faults of a program and not of the GPU: graphics exception, page fault, stopped processing,
// preemptive clean-up, video exception, context-switch time-out. It is the list that NVIDIA's Kubernetes device plugin
// ignores.
var applicationXids = []uint64{13, 31, 43, 45, 68, 109}

// judge sets the state of a GPU that answered: degraded when it reports damage.
func (g *GPU) judge() {
	g.State = StateAvailable
	var damage []string
	if n, ok := g.Health.Uncorrected.Get(); ok && n > 0 {
		damage = append(damage, "uncorrected ECC errors")
	}
	if rows, ok := g.Health.Rows.Get(); ok {
		if rows.Failed {
			damage = append(damage, "a row remapping failed")
		}
		if rows.Pending {
			damage = append(damage, "a row remapping waits for a reset")
		}
	}
	if xid, ok := g.Health.LastXid.Get(); ok && xid.Code != 0 && !slices.Contains(applicationXids, xid.Code) {
		damage = append(damage, fmt.Sprintf("a hardware or driver fault (Xid %d)", xid.Code))
	}
	if len(damage) > 0 {
		g.State, g.Reason = StateDegraded, strings.Join(damage, ", ")
	}
}
