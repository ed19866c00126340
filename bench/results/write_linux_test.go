package results

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What is no plain file is written to and stays what it is.
func TestWriteFileDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that a writer does not wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	write(t, pipe, "through")
	got := make([]byte, 7)
	if _, err := reader.Read(got); err != nil || string(got) != "through" {
		t.Errorf("the pipe gave %q, %v", got, err)
	}
	if fi, err := os.Lstat(pipe); err != nil || fi.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("the pipe became %v, %v", fi, err)
	}

	null := filepath.Join(dir, "null")
	switch err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err {
	case nil:
		write(t, null, "gone")
	default: // a link to the one that is there, which only root could replace
		if err := os.Symlink(os.DevNull, null); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			write(t, null, "gone")
		}
	}
	if fi, err := os.Stat(null); err != nil || fi.Mode()&fs.ModeCharDevice == 0 {
		t.Errorf("the device became %v, %v", fi, err)
	}

	full := filepath.Join(dir, "full")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if err := WriteFile(full, []byte("x")); err == nil {
			t.Error("a full device took it")
		}
	}

	open, err := os.Create(filepath.Join(dir, "open")) // as /dev/stdout of a command whose output goes to a file
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	if _, err := open.WriteString("before\n"); err != nil {
		t.Fatal(err)
	}
	write(t, fmt.Sprintf("/proc/self/fd/%d", open.Fd()), "after\n")
	wantText(t, open.Name(), "before\nafter\n")
}

// A file system without room leaves the file that is there.
func TestWriteFileFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small file system takes rights that are missing: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, 0) }()
	path := filepath.Join(dir, "plot.svg")
	write(t, path, "old")
	if err := WriteFile(path, make([]byte, 128<<10)); err == nil {
		t.Error("128 KiB fit 64")
	}
	wantText(t, path, "old")
	wantNames(t, dir, "plot.svg")
}
