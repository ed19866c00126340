package results

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessCPU returns the processor time that this process has used, in user and in system mode, seconds; 0 where the system does not
// say. It may be called concurrently.
func ProcessCPU() float64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}
