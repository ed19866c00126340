package compare

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// machineCPU is the processor time that all of the machine has used, seconds; false where the system does not say.
func machineCPU() (float64, bool) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, false
	}
	defer func() { _ = f.Close() }()
	s := bufio.NewScanner(f)
	if !s.Scan() {
		return 0, false
	}
	return parseStat(s.Text())
}

// parseStat reads the first line of /proc/stat: "cpu", then ticks of 1/100 s: user, nice, system, idle, iowait, irq, softirq,
// steal; what follows is in user and nice already (proc_stat(5)).
func parseStat(line string) (float64, bool) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, false
	}
	var ticks uint64
	for i, f := range fields[1:9] {
		v, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 { // idle, iowait
			ticks += v
		}
	}
	return float64(ticks) / 100, true
}
