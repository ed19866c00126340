package bed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deadPID is the id of a process that has ended.
func deadPID(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Skip("no process can be started: ", err)
	}
	return cmd.Process.Pid
}

// Only what a killed run of this user left goes: not a running one's, not a locked one, not one that is being made, not other names.
func TestSweepFolders(t *testing.T) {
	dir, pid := t.TempDir(), deadPID(t)
	mk := func(name string, lock bool) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "arena"), 0o700); err != nil {
			t.Fatal(err)
		}
		if lock {
			if err := os.WriteFile(filepath.Join(path, lockName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	stale := mk(fmt.Sprintf("%s%d-1", folderPrefix, pid), true)
	old := mk(fmt.Sprintf("%s%d-2", folderPrefix, pid), false)
	reused := mk(fmt.Sprintf("%s%d-7", folderPrefix, os.Getpid()), true) // the number is another process's by now
	unlocked := mk(fmt.Sprintf("%s%d-8", folderPrefix, os.Getpid()), false)
	for _, path := range []string{old, reused, unlocked} {
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	kept := []string{
		mk(fmt.Sprintf("%s%d-3", folderPrefix, pid), false), // young
		mk(fmt.Sprintf("%s%d-4", folderPrefix, os.Getpid()), true),
		mk(folderPrefix+"123", true), mk(folderPrefix+"x-1", true), mk(folderPrefix+"-1-1", true), mk(fmt.Sprintf("other-%d-1", pid), true),
	}
	locked := mk(fmt.Sprintf("%s%d-5", folderPrefix, pid), true)
	kept = append(kept, locked, unlocked)
	if err := os.Chtimes(locked, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(locked, lockName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, fmt.Sprintf("%s%d-6", folderPrefix, pid))
	if err := os.Symlink(kept[0], link); err != nil {
		t.Fatal(err)
	}
	f, err := makeFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{stale, old, reused} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", filepath.Base(path), err)
		}
	}
	for _, path := range append(kept, link, f.path) {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s is gone: %v", filepath.Base(path), err)
		}
	}
	if !strings.HasPrefix(filepath.Base(f.path), fmt.Sprintf("%s%d-", folderPrefix, os.Getpid())) {
		t.Errorf("folder %s", f.path)
	}
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.path); !os.IsNotExist(err) {
		t.Errorf("its own folder stays: %v", err)
	}
	if _, err := makeFolder(filepath.Join(dir, "missing")); err == nil {
		t.Error("a folder in one that is not there")
	}
}
