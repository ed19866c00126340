package daemon

import (
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWatchProcessSeesDeath(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	exited := make(chan struct{})
	stop, err := watchProcess(&localProcess{pid: cmd.Process.Pid, pidfd: fd}, func() { close(exited) })
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-exited:
		t.Fatal("reported dead while alive")
	default:
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	select {
	case <-exited:
	case <-time.After(10 * time.Second):
		t.Fatal("death not seen")
	}
	stop()
}

func TestWatchProcessStops(t *testing.T) {
	fd, err := unix.PidfdOpen(unix.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	stop, err := watchProcess(&localProcess{pid: unix.Getpid(), pidfd: fd}, func() { t.Error("reported dead while alive") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
}

func TestLocalCredsNameThePeer(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, info, err := localCreds{}.ServerHandshake(server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := info.(*localProcess)
	if p.pid != unix.Getpid() || p.uid != uint32(unix.Getuid()) || p.pidfd < 0 {
		t.Errorf("peer = %+v, want pid %d uid %d and a pidfd", p, unix.Getpid(), unix.Getuid())
	}
}
