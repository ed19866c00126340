package goodput

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// daemonProcess is a daemon's process on this host; 0: not known.
type daemonProcess int

// findDaemon asks a socket who listens. A socket that ssh forwards belongs to ssh, which does not count.
func findDaemon(socket string) daemonProcess {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || string(bytes.TrimSpace(name)) != "kvferryd" {
		return 0
	}
	return daemonProcess(pid)
}

// clockTicks a second, of /proc: 100 on every Linux that Go runs on (USER_HZ).
const clockTicks = 100

// cpu is the processor time that the process has used, seconds; negative when it is not known.
func (p daemonProcess) cpu() float64 {
	if p == 0 {
		return -1
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", int(p)))
	if err != nil {
		return -1
	}
	_, rest, ok := bytes.Cut(b, []byte(") ")) // after the name, which may hold anything but comes last with ")"
	f := bytes.Fields(rest)
	if !ok || len(f) < 13 {
		return -1
	}
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return -1
	}
	return float64(user+system) / clockTicks
}
