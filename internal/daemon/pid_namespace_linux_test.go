package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDaemonProcess is a daemon of its own process: it says where its socket is, and, a line for each it reads, what its
// arena holds.
func TestDaemonProcess(t *testing.T) {
	if os.Getenv(engineSocket) != "daemon" {
		t.Skip("started by TestSiblingNamespaces")
	}
	n := newRealNode(t, nil)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "socket" {
			fmt.Println("answer:", n.socket)
			continue
		}
		st := n.arenaStatus()
		fmt.Printf("answer: %d reserved, %d leases\n", st.GetSlotsReserved(), st.GetLeases())
	}
}

// Engines that the daemon's pid namespace does not contain, as those of another container, have no number there. They are
// told apart and watched all the same.
func TestSiblingNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace needs root")
	}
	d := startProcess(t, "TestDaemonProcess", "daemon", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	socket := d.do("socket")
	t.Cleanup(func() {
		d.end()
		if _, err := os.Stat(filepath.Dir(socket)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the daemon's process leaves its folders: %v", err)
		}
	})
	one, two := startProcess(t, "TestEngineProcess", socket, nil), startProcess(t, "TestEngineProcess", socket, nil)
	id := one.do("register e 0 2")
	two.want(id, "register e 1 2")
	slots := one.do("reserve s 2")
	one.want("INVALID_ARGUMENT", "commit 1 2 %s", slots) // the other one's rank
	one.want("false false", "commit 0 2 %s", slots)
	two.want("true true", "commit 1 2 %s", slots)
	one.want("ok", "acquire s 2")
	two.want("ok", "acquire s 2")
	two.do("reserve t 3")
	d.want("3 reserved, 2 leases", "status")
	one.kill()
	eventually(t, "what the dead process held, and its engine can't fill without it, is given back", func() bool {
		return d.do("status") == "0 reserved, 1 leases"
	})
	two.want("ok", "acquire s 1")
	two.kill()
	eventually(t, "what the other one held is given back", func() bool { return d.do("status") == "0 reserved, 0 leases" })
}

// Processes without a number are as many as there are connections, where the kernel has no inodes for them.
func TestProcessKeys(t *testing.T) {
	a, b := &localProcess{pidfd: -1}, &localProcess{pidfd: -1}
	a.identify()
	b.identify()
	same := &localProcess{pid: 7, pidfd: -1}
	same.identify()
	if a.key == b.key || a.key.String() == b.key.String() || a.key == (processKey{}) || same.key != (processKey{pid: 7}) || processKeyOf(nil) != (processKey{}) {
		t.Errorf("keys %v, %v, %v", a.key, b.key, same.key)
	}
}
