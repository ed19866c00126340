package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/kvferry/kvferry/transfer/udp"
)

// wantBuffer is what the daemon asks of the kernel for a socket, bytes.
const wantBuffer = udp.DefaultBuffer

func (d *doctor) checkBuffers(context.Context) Finding {
	var small, fix, seen []string
	for _, name := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		v, err := d.readInt("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		if err != nil {
			return unknown("%s: %v", name, err)
		}
		seen = append(seen, fmt.Sprintf("%s is %d", name, v))
		if v < wantBuffer {
			small = append(small, fmt.Sprintf("%s is %d bytes", name, v))
			fix = append(fix, fmt.Sprintf("%s=%d", name, wantBuffer))
		}
	}
	if len(small) > 0 {
		return warn("sysctl -w "+strings.Join(fix, " ")+", and the same lines in /etc/sysctl.d/kvferry.conf",
			"%s, less than %d: packets may be dropped in this host when the daemon is not scheduled for a moment", strings.Join(small, ", "), wantBuffer)
	}
	return ok("%s", strings.Join(seen, ", "))
}

func (d *doctor) readInt(path string) (int64, error) {
	data, err := d.Host.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// capIPCLock is the capability that lifts the limit on locked memory, as a bit of CapEff in /proc/PID/status
// (capabilities(7)).
const capIPCLock = 14

func (d *doctor) checkMemlock(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	if lock := d.Config.Arena.Lock; lock != nil && !*lock {
		return ok("arena.lock is off")
	}
	const fix = "set LimitMEMLOCK=infinity in the unit of kvferryd (systemctl edit kvferryd), or ulimit -l unlimited before it starts; or set arena.lock to false"
	if d.Daemon != nil && len(d.Daemon.PinNotes) > 0 {
		return warn(fix, "the daemon could not lock all of its arenas: %s", strings.Join(d.Daemon.PinNotes, "; "))
	}
	who, dir := "this process", "/proc/self/"
	if d.Daemon != nil && d.Daemon.PID > 0 {
		who, dir = fmt.Sprintf("the daemon (pid %d)", d.Daemon.PID), fmt.Sprintf("/proc/%d/", d.Daemon.PID)
	}
	status, err := d.Host.ReadFile(dir + "status")
	if err != nil {
		return unknown("limits of %s: %v", who, err)
	}
	if caps, err := strconv.ParseUint(procField(status, "CapEff:"), 16, 64); err == nil && caps&(1<<capIPCLock) != 0 {
		return ok("%s has CAP_IPC_LOCK: locked memory is not limited", who)
	}
	limits, err := d.Host.ReadFile(dir + "limits")
	if err != nil {
		return unknown("limits of %s: %v", who, err)
	}
	soft := procField(limits, "Max locked memory")
	if soft == "unlimited" {
		return ok("locked memory of %s is not limited", who)
	}
	n, err := strconv.ParseInt(soft, 10, 64)
	if err != nil {
		return unknown("limits of %s: locked memory is %q", who, soft)
	}
	if need := d.Config.Arena.Bytes; n < need {
		return warn(fix, "%s may lock %s, and an arena has %s (arena.bytes): the rest can be paged out", who, size(n), size(need))
	}
	return ok("%s may lock %s, an arena has %s", who, size(n), size(d.Config.Arena.Bytes))
}

// procField returns the first word after a line's name in a file of /proc.
func procField(data []byte, name string) string {
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, name); found {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// slowClocks are clock sources that take a trap or a device access a reading: about a microsecond instead of 20 ns, and
// QUIC reads the clock for each packet.
var slowClocks = []string{"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"}

func (d *doctor) checkClock(context.Context) Finding {
	const dir = "/sys/devices/system/clocksource/clocksource0/"
	data, err := d.Host.ReadFile(dir + "current_clocksource")
	if errors.Is(err, fs.ErrNotExist) {
		return unknown("this system does not name its clock source")
	}
	if err != nil {
		return unknown("%v", err)
	}
	source := strings.TrimSpace(string(data))
	if slices.Contains(slowClocks, source) {
		choice, _ := d.Host.ReadFile(dir + "available_clocksource") // for the text only
		return warn("echo tsc > "+dir+"current_clocksource, where the hardware's tsc is stable", "the clock source is %s, which is slow to read; available: %s", source, strings.TrimSpace(string(choice)))
	}
	return ok("the clock source is %s", source)
}

// size is bytes for a person.
func size(b int64) string {
	v, units, i := float64(b), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}, 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + units[i]
}
