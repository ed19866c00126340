package results

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// readSystem fills in what procfs and sysfs under root tell.
func (m *Machine) readSystem(root string) {
	text := func(path string) string {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	m.CPU = cpuModel(text("proc/cpuinfo"))
	m.Kernel = text("proc/sys/kernel/osrelease")
	m.Clocksource = text("sys/devices/system/clocksource/clocksource0/current_clocksource")
	m.Governor = text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	m.UDPRecvBufferMax = number(text("proc/sys/net/core/rmem_max"))
	m.UDPSendBufferMax = number(text("proc/sys/net/core/wmem_max"))
	for line := range strings.Lines(text("proc/meminfo")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			m.MemoryBytes = number(f[1]) * 1024
		}
	}
	if f := strings.Fields(text("proc/loadavg")); len(f) > 0 {
		m.Load1 = fraction(f[0])
	}
	m.CPUQuota = cpuQuota(text)
}

// cpuModel returns the model's name, or what of it ARM's cpuinfo has.
func cpuModel(cpuinfo string) string {
	found := map[string]string{}
	for line := range strings.Lines(cpuinfo) {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if ok && found[name] == "" {
			found[name] = strings.TrimSpace(value)
		}
	}
	if s := found["model name"]; s != "" {
		return s
	}
	if i, p := found["CPU implementer"], found["CPU part"]; i != "" && p != "" {
		return "implementer " + i + " part " + p
	}
	return ""
}

// cpuQuota returns the tightest limit from the process's control group (version 2) up to the root.
func cpuQuota(text func(path string) string) float64 {
	group := "/"
	for line := range strings.Lines(text("proc/self/cgroup")) {
		if g, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			group = filepath.Clean("/" + g)
		}
	}
	tightest := 0.0
	for {
		f := strings.Fields(text(filepath.Join("sys/fs/cgroup", group, "cpu.max")))
		if len(f) == 2 {
			if quota, period := fraction(f[0]), fraction(f[1]); quota > 0 && period > 0 {
				if q := quota / period; tightest == 0 || q < tightest {
					tightest = q
				}
			}
		}
		if group == "/" {
			return tightest
		}
		group = filepath.Dir(group)
	}
}

// number and fraction return 0 for what is none, or is negative.
func number(s string) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace([]byte(s))), 10, 64)
	if err != nil || n < 0 || n > 1<<53 {
		return 0
	}
	return n
}

func fraction(s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !finite(x) || x < 0 {
		return 0
	}
	return x
}
