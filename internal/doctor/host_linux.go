package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fsNames are filesystems by the magic number of statfs(2).
var fsNames = map[int64]string{
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.HUGETLBFS_MAGIC: "hugetlbfs", unix.EXT4_SUPER_MAGIC: "ext4",
	unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs",
}

// filesystem asks the kernel.
func filesystem(path string) (Filesystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Filesystem{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	magic := int64(uint32(st.Type))
	f := Filesystem{Type: fsNames[magic], Free: int64(st.Bavail) * int64(st.Bsize), ReadOnly: st.Flags&unix.ST_RDONLY != 0}
	if f.Type == "" {
		f.Type = fmt.Sprintf("filesystem %#x", magic)
	}
	f.Memory = magic == unix.TMPFS_MAGIC || magic == unix.RAMFS_MAGIC || magic == unix.HUGETLBFS_MAGIC
	if f.Memory && st.Blocks == 0 {
		f.Free = -1
	}
	return f, nil
}

// writable asks the kernel whether files can be made in dir, without making one.
func writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// takeRoom makes a file without a name in dir, has bytes allocated for it, and lets go of both.
func takeRoom(dir string, bytes int64) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR): // the filesystem, or the kernel, has none
		return errors.ErrUnsupported
	case err != nil:
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	for {
		err := unix.Fallocate(fd, 0, 0, bytes)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			return err
		case err != nil: // not here
			return errors.ErrUnsupported
		}
		return nil
	}
}

// SocketOwner returns the process that listens on a unix socket, as the kernel noted it (SO_PEERCRED, unix(7)). It
// connects, sends nothing, and waits 2 s at most. It returns the system's errors, or [errors.ErrUnsupported].
func SocketOwner(path string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", path, 2*time.Second)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
