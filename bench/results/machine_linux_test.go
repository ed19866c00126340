package results

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestReadSystem(t *testing.T) {
	root := tree(t, map[string]string{
		"proc/cpuinfo":               "processor\t: 0\nmodel name\t: AMD EPYC 7: B\n\nprocessor\t: 1\nmodel name\t: other\n",
		"proc/meminfo":               "MemFree: 1 kB\nMemTotal:       1024 kB\n",
		"proc/loadavg":               "1.25 0.5 0.1 1/200 99\n",
		"proc/sys/kernel/osrelease":  "6.1.0\n",
		"proc/sys/net/core/rmem_max": "212992\n",
		"proc/sys/net/core/wmem_max": "16777216\n",
		"proc/self/cgroup":           "1:name=x:/y\n0::/a/b\n",
		"sys/fs/cgroup/a/b/cpu.max":  "max 100000\n",
		"sys/fs/cgroup/a/cpu.max":    "150000 100000\n",
		"sys/fs/cgroup/cpu.max":      "800000 100000\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":            "powersave\n",
	})
	m := Machine{Cores: 2}
	m.readSystem(root)
	want := Machine{
		Cores: 2, CPU: "AMD EPYC 7: B", CPUQuota: 1.5, Governor: "powersave", MemoryBytes: 1 << 20, Kernel: "6.1.0", Clocksource: "hpet",
		UDPRecvBufferMax: 212992, UDPSendBufferMax: 16 << 20, Load1: 1.25,
	}
	if d := cmp.Diff(want, m); d != "" {
		t.Errorf("machine (-want +got):\n%s", d)
	}
	cautions := strings.Join(m.Cautions(), "\n")
	for _, want := range []string{"load 1.2 on 2 cores", `"hpet"`, `"powersave"`, "allows 1.5 of 2 cores", "net.core.rmem_max is 212992 bytes, less than the 8388608 ", "may be dropped", "sysctl -w net.core.rmem_max=8388608"} {
		if !strings.Contains(cautions, want) {
			t.Errorf("no caution has %q:\n%s", want, cautions)
		}
	}
	if strings.Contains(cautions, "wmem_max") {
		t.Errorf("a buffer of 16 MiB is cautioned of:\n%s", cautions)
	}
}

// TestReadSystemBroken: nothing there, or nonsense, is nothing known.
func TestReadSystemBroken(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing": nil,
		"nonsense": {
			"proc/cpuinfo": "model name", "proc/meminfo": "MemTotal: x kB\n", "proc/loadavg": "NaN", "proc/sys/net/core/rmem_max": "-5",
			"proc/sys/net/core/wmem_max": "99999999999999999999", "proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "x y",
		},
	} {
		var m Machine
		m.readSystem(tree(t, files))
		if m != (Machine{}) {
			t.Errorf("%s: %+v, want nothing", name, m)
		}
		if c := m.Cautions(); len(c) != 0 {
			t.Errorf("%s: cautions %q", name, c)
		}
	}
	if got := cpuModel("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"); got != "implementer 0x41 part 0xd0c" {
		t.Errorf("model is %q", got)
	}
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine()
	if m.OS != runtime.GOOS || m.Cores < 1 || m.GoVersion == "" || m.MemoryBytes < 1<<20 || m.Kernel == "" {
		t.Errorf("machine is %+v", m)
	}
	if err := m.validate(); err != nil {
		t.Error(err)
	}
}
