package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
)

// find runs one check of a set-up on this machine, with nothing injected.
func find(t *testing.T, s doctor.Setup, name string) doctor.Finding {
	t.Helper()
	for _, c := range doctor.Checks(s) {
		if c.Name == name {
			return doctor.Run(t.Context(), []doctor.Check{c}, doctor.Options{})[0]
		}
	}
	t.Fatalf("no check %q", name)
	return doctor.Finding{}
}

func configured(c daemon.Config) doctor.Setup {
	return doctor.Setup{Configured: true, Config: c, Daemon: &doctor.Daemon{}}
}

// The limit that is read is the process's own, as getrlimit(2) says it.
func TestRealMemlock(t *testing.T) {
	t.Parallel()
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{4096, 1 << 50} {
		f := find(t, configured(daemon.Config{Arena: daemon.ArenaConfig{Bytes: bytes}}), "host.memlock")
		want := doctor.OK
		if lim.Cur != unix.RLIM_INFINITY && lim.Cur < uint64(bytes) && !strings.Contains(f.Detail, "CAP_IPC_LOCK") {
			want = doctor.Warn
		}
		if f.Status != want {
			t.Errorf("arena of %d bytes, limit %d: %+v", bytes, lim.Cur, f)
		}
	}
}

func TestRealBuffers(t *testing.T) {
	t.Parallel()
	if f := find(t, doctor.Setup{}, "host.udp_buffers"); f.Status == doctor.Unknown {
		t.Errorf("%+v", f)
	}
	if f := find(t, doctor.Setup{}, "host.clock"); f.Status == doctor.Fail {
		t.Errorf("%+v", f)
	}
}

func TestRealFilesystems(t *testing.T) {
	t.Parallel()
	if f := find(t, configured(daemon.Config{Arena: daemon.ArenaConfig{Dir: "/dev/shm", Bytes: 4096}}), "arena.dir"); f.Status != doctor.OK {
		t.Errorf("/dev/shm: %+v", f)
	}
	if f := find(t, configured(daemon.Config{Arena: daemon.ArenaConfig{Dir: "/dev/shm", Bytes: 1 << 60, MaxBytes: 1 << 60}}), "arena.space"); f.Status != doctor.Fail {
		t.Errorf("an arena of an exbibyte fits in /dev/shm: %+v", f)
	}
	// /proc and /sys are on every Linux, hold no arenas, and can't be written, by root neither.
	if f := find(t, configured(daemon.Config{Arena: daemon.ArenaConfig{Dir: "/proc"}}), "arena.dir"); f.Status != doctor.Fail {
		t.Errorf("/proc: %+v", f)
	}
	if f := find(t, configured(daemon.Config{Arena: daemon.ArenaConfig{Dir: "/nowhere"}}), "arena.dir"); f.Status != doctor.Fail || !strings.Contains(f.Fix, "mkdir -p /nowhere") {
		t.Errorf("/nowhere: %+v", f)
	}
	if f := find(t, configured(daemon.Config{StateDir: t.TempDir()}), "state_dir"); f.Status == doctor.Fail {
		t.Errorf("%+v", f)
	}
	if f := find(t, configured(daemon.Config{StateDir: filepath.Join(t.TempDir(), "a", "b")}), "state_dir"); f.Status == doctor.Fail || f.Status == doctor.OK && !strings.Contains(f.Detail, "will be made") {
		t.Errorf("%+v", f)
	}
	if f := find(t, configured(daemon.Config{StateDir: "/dev/shm"}), "state_dir"); f.Status != doctor.Warn {
		t.Errorf("/dev/shm: %+v", f)
	}
}

// A real tmpfs of 1 MiB, and one that is read-only.
func TestRealMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs, which takes root; TestBroken has the same with a filesystem made up")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount: %v; TestBroken has the same with a filesystem made up", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	small := configured(daemon.Config{Arena: daemon.ArenaConfig{Dir: dir, Bytes: 2 << 20}})
	if f := find(t, small, "arena.space"); f.Status != doctor.Fail || !strings.Contains(f.Detail, "has 1 MiB free") || !strings.Contains(f.Fix, "size=2M") {
		t.Errorf("%+v", f)
	}
	if f := find(t, small, "arena.dir"); f.Status != doctor.OK {
		t.Errorf("%+v", f)
	}
	// What a daemon left for its engines to find is room of its own.
	if err := os.WriteFile(filepath.Join(dir, "kvferry-n@e"), make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]doctor.Status{"n": doctor.OK, "m": doctor.Fail} {
		s := configured(daemon.Config{Node: daemon.NodeConfig{ID: node}, Arena: daemon.ArenaConfig{Dir: dir, Bytes: 1 << 20}})
		if f := find(t, s, "arena.space"); f.Status != want {
			t.Errorf("node %s: %+v", node, f)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("remount: %v", err)
	}
	if f := find(t, small, "arena.dir"); f.Status != doctor.Fail || !strings.Contains(f.Detail, "read-only") {
		t.Errorf("%+v", f)
	}
	if f := find(t, configured(daemon.Config{StateDir: filepath.Join(dir, "state")}), "state_dir"); f.Status != doctor.Fail || !strings.Contains(f.Detail, "read-only file system") {
		t.Errorf("%+v", f)
	}
}

// A real tmpfs as state_dir: with room, nearly full, full, and out of inodes.
func TestRealStateDirFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a tmpfs, which takes root; TestBroken has the same with a filesystem made up")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=80m,nr_inodes=100"); err != nil {
		t.Skipf("mount: %v; TestBroken has the same with a filesystem made up", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fill := func(bytes int64) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "fill"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), 0, 0, bytes); err != nil {
			t.Fatal(err)
		}
	}
	look := func(status doctor.Status, detail, fix string) {
		t.Helper()
		before, _ := os.ReadDir(dir)
		f := find(t, configured(daemon.Config{StateDir: filepath.Join(dir, "state")}), "state_dir")
		if f.Status != status || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Fix, fix) {
			t.Errorf("%+v, want %v with %q and %q", f, status, detail, fix)
		}
		if after, _ := os.ReadDir(dir); len(after) != len(before) {
			t.Errorf("looking leaves %v", after)
		}
	}
	look(doctor.Warn, "is on tmpfs: who owns which session is forgotten", "set state_dir to")
	fill(40 << 20)
	look(doctor.Warn, "nearly full, 40 MiB are left", "df -h "+dir)
	fill(80<<20 - 512<<10)
	look(doctor.Fail, "can't take 1 MiB more: no space left on device", "df -h "+dir)
	fill(80 << 20)
	look(doctor.Fail, "no space left on device. Then hand-overs are refused", "or set state_dir to another disk")
	if err := os.Remove(filepath.Join(dir, "fill")); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			break
		}
	}
	look(doctor.Fail, "no space left on device", "df -i "+dir)
}

// The fix for a GPU that is not there must not stop a host without one.
func TestRealGPU(t *testing.T) {
	t.Parallel()
	if f := find(t, doctor.Setup{}, "gpu"); f.Status == doctor.Fail || f.Detail == "" {
		t.Errorf("%+v", f)
	}
}

func TestSocketOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := doctor.SocketOwner(path)
	if err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v, want %d", pid, err, os.Getpid())
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := doctor.SocketOwner(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Checks run at once, each to its own time; one that hangs is left behind.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		hang := make(chan struct{})
		wait := func(d time.Duration) func(context.Context) doctor.Finding {
			return func(ctx context.Context) doctor.Finding {
				select {
				case <-time.After(d):
					return doctor.Finding{Status: doctor.OK, Detail: "slept"}
				case <-ctx.Done():
					return doctor.Finding{Status: doctor.Fail, Detail: "cut short", Fix: "f"}
				}
			}
		}
		var order []string
		list := doctor.Run(t.Context(), []doctor.Check{
			{"slow", wait(9 * time.Second)},
			{"quick", wait(time.Second)},
			{"late", wait(time.Minute)},
			{"hangs", func(context.Context) doctor.Finding { <-hang; return doctor.Finding{} }},
		}, doctor.Options{Done: func(f doctor.Finding) { order = append(order, f.Name) }})
		if got, want := time.Since(began), 10500*time.Millisecond; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		want := "[{slow ok slept } {quick ok slept } {late fail cut short f} {hangs warn no result within 10s run it again"
		if got := fmt.Sprint(list); !strings.HasPrefix(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got := fmt.Sprint(order); got != "[quick slow late hangs]" {
			t.Errorf("ended in the order %s", got)
		}
		close(hang)
	})
}

func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		hang := make(chan struct{})
		list := doctor.Run(ctx, []doctor.Check{{"hangs", func(context.Context) doctor.Finding { <-hang; return doctor.Finding{} }}}, doctor.Options{})
		if f := list[0]; f.Status != doctor.Unknown || f.Detail != "interrupted" {
			t.Errorf("%+v", f)
		}
		close(hang)
	})
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for s, want := range map[doctor.Status]string{doctor.Unknown: "unknown", doctor.OK: "ok", doctor.Warn: "warn", doctor.Fail: "fail", 9: "status(9)"} {
		if s.String() != want {
			t.Errorf("%d is %q, want %q", s, s, want)
		}
	}
	if doctor.Worst(nil) != doctor.OK || doctor.Worst([]doctor.Finding{{}, {Status: doctor.Warn}, {Status: doctor.OK}}) != doctor.Warn {
		t.Error("worst is wrong")
	}
}
