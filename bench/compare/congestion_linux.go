package compare

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// congestionControl sets a socket's, which the kernel must have.
func congestionControl(name string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) })
		if err != nil {
			return fmt.Errorf("congestion control %q: %w: load it with modprobe tcp_%s", name, err, name)
		}
		return cerr
	}
}
