package results

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/kvferry/kvferry/transfer/udp"
)

// Machine describes where a result was measured. Text is empty and numbers are zero where they are unknown. It holds
// nothing that names the machine or its user.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPU  string `json:"cpu"` // the model, as the system calls it
	// Cores is how many logical processors the process may run on, 0 for unknown.
	Cores int `json:"cores"`
	// CPUQuota is the number of processors' time that the control group allows, as 1.5; 0 for no limit.
	CPUQuota    float64 `json:"cpu_quota"`
	Governor    string  `json:"governor"` // of the first processor's frequency: "performance", "schedutil"
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Clocksource string  `json:"clocksource"` // of the kernel: "tsc" is cheap to read
	// UDPRecvBufferMax and UDPSendBufferMax are the most that a socket's buffers may be set to, in bytes
	// (net.core.rmem_max, net.core.wmem_max).
	UDPRecvBufferMax int64   `json:"udp_recv_buffer_max"`
	UDPSendBufferMax int64   `json:"udp_send_buffer_max"`
	Load1            float64 `json:"load1"` // runnable tasks over the last minute, when the result was started
	GoVersion        string  `json:"go_version"`
	GoMaxProcs       int     `json:"go_max_procs"`
}

// ThisMachine describes this machine as well as it can. It does not fail: what cannot be read stays zero.
func ThisMachine() Machine {
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(),
		GoVersion: runtime.Version(), GoMaxProcs: runtime.GOMAXPROCS(0),
	}
	m.readSystem("/")
	return m
}

// Cautions returns what about the machine may set the numbers in the place of what is measured: load, clock, frequency
// governor, a processor quota, small UDP buffers. Each says how to mend it. Empty when there is nothing to say.
func (m Machine) Cautions() []string {
	var cs []string
	say := func(format string, args ...any) { cs = append(cs, fmt.Sprintf(format, args...)) }
	if m.Cores > 0 && m.Load1 > 0.5*float64(m.Cores) {
		say("the machine was busy at the start: load %.1f on %d cores; measure when it is idle", m.Load1, m.Cores)
	}
	cheap := []string{"", "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"}
	if !slices.Contains(cheap, m.Clocksource) {
		say("the clock source is %q, slow to read: it costs processor time a packet; use tsc if the kernel trusts it", m.Clocksource)
	}
	if m.Governor == "powersave" || m.Governor == "conservative" || m.Governor == "ondemand" {
		say("the frequency governor is %q: set it to performance for numbers that repeat", m.Governor)
	}
	if m.CPUQuota > 0 && m.CPUQuota < float64(m.Cores) {
		say("the control group allows %.3g of %d cores: processor time may set the numbers", m.CPUQuota, m.Cores)
	}
	for _, b := range []struct {
		name  string
		bytes int64
	}{{"net.core.rmem_max", m.UDPRecvBufferMax}, {"net.core.wmem_max", m.UDPSendBufferMax}} {
		if b.bytes > 0 && b.bytes < udp.DefaultBuffer {
			say("%s is %d bytes, less than the %d that sockets ask for: packets may be dropped when the process is not scheduled for a moment; sysctl -w %s=%d", b.name, b.bytes, udp.DefaultBuffer, b.name, udp.DefaultBuffer)
		}
	}
	return cs
}

// validate returns every violation joined.
func (m Machine) validate() error {
	var errs []error
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"cores", float64(m.Cores)},
		{"cpu_quota", m.CPUQuota},
		{"memory_bytes", float64(m.MemoryBytes)},
		{"udp_recv_buffer_max", float64(m.UDPRecvBufferMax)},
		{"udp_send_buffer_max", float64(m.UDPSendBufferMax)},
		{"load1", m.Load1},
		{"go_max_procs", float64(m.GoMaxProcs)},
	} {
		if !finite(v.value) || v.value < 0 {
			errs = append(errs, fmt.Errorf("machine.%s is %v, want a finite number >= 0", v.name, v.value))
		}
	}
	return errors.Join(errs...)
}
