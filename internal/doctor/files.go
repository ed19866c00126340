package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Filesystem describes a mounted filesystem.
type Filesystem struct {
	// Type is its name, such as tmpfs, or its magic number in hexadecimal.
	Type string
	// Memory says that its files are in memory: tmpfs, ramfs, hugetlbfs.
	Memory bool
	// Free is what an ordinary user may still write, bytes; -1 where there is no limit.
	Free int64
	// ReadOnly says that it is mounted so.
	ReadOnly bool
}

const shm = "/dev/shm"

// arenaFS describes the filesystem of arena.dir, or returns the finding for a check that can't look at it.
func (d *doctor) arenaFS() (Filesystem, Finding, bool) {
	if f, isSet := d.settings(); !isSet {
		return Filesystem{}, f, false
	}
	fsys, err := d.Host.Filesystem(d.Config.Arena.Dir)
	if err != nil {
		return fsys, unknown("not looked at: see arena.dir"), false
	}
	return fsys, Finding{}, true
}

func (d *doctor) checkArenaDir(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	dir := d.Config.Arena.Dir
	const fix = "set arena.dir to a directory on tmpfs or hugetlbfs, such as " + shm
	fsys, err := d.Host.Filesystem(dir)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return unknown("%s: filesystems are looked at on Linux only", dir)
	case errors.Is(err, fs.ErrNotExist):
		return fail("mkdir -p "+dir+"; mount -t tmpfs tmpfs "+dir+"; or set arena.dir to "+shm, "%s does not exist", dir)
	case err != nil:
		return fail(fix, "%s: %v", dir, err)
	case !fsys.Memory:
		return fail(fix, "%s is on %s, not in memory", dir, fsys.Type)
	case fsys.ReadOnly:
		return fail("mount -o remount,rw "+dir+"; or "+fix, "%s is mounted read-only", dir)
	}
	if err := writable(dir); err != nil {
		return fail("chown it to the user of kvferryd, or "+fix, "%s can't be written by uid %d: %v", dir, os.Geteuid(), err)
	}
	return ok("%s is %s", dir, fsys.Type)
}

func (d *doctor) checkArenaSpace(context.Context) Finding {
	fsys, f, seen := d.arenaFS()
	if !seen {
		return f
	}
	a := d.Config.Arena
	if !fsys.Memory {
		return unknown("not looked at: see arena.dir")
	}
	if fsys.Free < 0 {
		return ok("%s has no limit", a.Dir)
	}
	var used int64
	if d.Daemon != nil {
		used = d.Daemon.ArenaBytes
	}
	used = max(used, d.arenaBytes()) // those that a daemon left count, too: it takes them over, or they make way
	room := fsys.Free + used
	fix := func(bytes int64) string {
		return fmt.Sprintf("mount -o remount,size=%dM %s (in a container --shm-size, or an emptyDir with medium Memory); or set a smaller arena.bytes", (bytes+1<<20-1)>>20, a.Dir)
	}
	holds := ""
	if used > 0 {
		holds = fmt.Sprintf(" and %s in arenas", size(used))
	}
	switch {
	case room < a.Bytes:
		return fail(fix(a.Bytes), "%s has %s free%s; an arena has %s (arena.bytes)", a.Dir, size(fsys.Free), holds, size(a.Bytes))
	case d.maxBytesSet && room < a.MaxBytes:
		return warn(fmt.Sprintf("mount -o remount,size=%dM %s, or set a smaller arena.max_bytes", (a.MaxBytes+1<<20-1)>>20, a.Dir),
			"%s has %s free%s; engines may ask for %s (arena.max_bytes)", a.Dir, size(fsys.Free), holds, size(a.MaxBytes))
	}
	return ok("%s has %s free%s; an arena has %s", a.Dir, size(fsys.Free), holds, size(a.Bytes))
}

const (
	// stateLeast is what a hand-over may need: its record, and the pages of the tree above it, several times over.
	stateLeast = 1 << 20
	// stateSpare is below what a day of sessions may take: plans alone have up to 16 MiB, twice while they are written.
	stateSpare = 64 << 20
)

func (d *doctor) checkStateDir(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	dir := d.Config.StateDir
	const fix = "set state_dir to a directory on a disk that the user of kvferryd may write, such as /var/lib/kvferry"
	at, err := existing(dir)
	if err != nil {
		return fail(fix, "%s: %v", dir, err)
	}
	if err := writable(at); err != nil {
		return fail("install -d -o USER -m 700 "+dir+", USER being that of kvferryd; or "+fix, "%s can't be written by uid %d: %v", at, os.Geteuid(), err)
	}
	fsys, err := d.Host.Filesystem(at)
	if err != nil {
		return unknown("%s can be written; its filesystem: %v", at, err)
	}
	makeRoom := "make room (df -h " + at + "; df -i " + at + "), or set state_dir to another disk"
	const consequence = "hand-overs are refused, and plans and measurements are not kept"
	if err := d.Host.Room(at, stateLeast); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fail(makeRoom, "%s (%s) can't take %s more: %v. Then %s", dir, fsys.Type, size(stateLeast), err, consequence)
	}
	switch {
	case fsys.Free >= 0 && fsys.Free < stateLeast:
		return fail(makeRoom, "%s (%s) has %s left, less than %s. Then %s", dir, fsys.Type, size(fsys.Free), size(stateLeast), consequence)
	case fsys.Free >= 0 && fsys.Free < stateSpare:
		return warn(makeRoom, "%s (%s) is nearly full, %s are left. When it is full %s", dir, fsys.Type, size(fsys.Free), consequence)
	case fsys.Memory:
		return warn(fix, "%s is on %s: who owns which session is forgotten when the host restarts", dir, fsys.Type)
	}
	if at != dir {
		return ok("%s will be made; %s is on %s", dir, at, fsys.Type)
	}
	return ok("%s is on %s", dir, fsys.Type)
}

// existing returns dir, or the nearest folder above it that exists, in which it would be made.
func existing(dir string) (string, error) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		st, err := os.Stat(at)
		switch {
		case err == nil && !st.IsDir():
			return "", &os.PathError{Op: "open", Path: at, Err: syscall.ENOTDIR}
		case err == nil:
			return at, nil
		case !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at):
			return "", err
		}
	}
}
