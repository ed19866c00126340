package daemon

import (
	"os"
	"runtime"
	"strings"
	"sync"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// hostInfo describes the machine, read once; what can't be read is empty.
var hostInfo = sync.OnceValue(func() *pb.HostInfo {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return &pb.HostInfo{
		Os: runtime.GOOS, Arch: runtime.GOARCH, Cpu: cpuModel(string(cpuinfo)), Cores: int64(runtime.NumCPU()), Kernel: strings.TrimSpace(string(kernel)),
	}
})

// cpuModel is the processor's name in /proc/cpuinfo; on ARM, which has none, implementer and part.
func cpuModel(cpuinfo string) string {
	found := map[string]string{}
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && found[strings.TrimSpace(name)] == "" {
			found[strings.TrimSpace(name)] = strings.TrimSpace(value)
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
