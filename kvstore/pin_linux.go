package kvstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a file mapped shared and writable. The process holds the file's lock while it lives.
type mapping struct {
	path string
	file *os.File
	mem  []byte
	size int64
}

const allocateChunk = 64 << 20 // fallocate on tmpfs starts over when a signal comes: keep each call short

// openMapping creates the arena's file with size bytes and maps it.
func openMapping(cfg ArenaConfig, size int64) (*mapping, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: cfg.Dir, Err: err}
	}
	if !cfg.AllowDisk && !isMemoryFS(fs) {
		return nil, &ArenaDirError{Dir: cfg.Dir, FSType: fsType(fs)}
	}
	if fsType(fs) == unix.HUGETLBFS_MAGIC { // whole huge pages only
		size = (size + int64(fs.Bsize) - 1) / int64(fs.Bsize) * int64(fs.Bsize)
	}
	path := filepath.Join(cfg.Dir, cfg.Name)
	if err := removeStale(path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s: %w", path, ErrArenaInUse) // somebody was faster
	}
	if err != nil {
		return nil, err
	}
	m := &mapping{path: path, file: file, size: size}
	if err := m.set(cfg); err != nil {
		_ = m.close() // the first error says more
		return nil, err
	}
	return m, nil
}

// set locks, shares, allocates and maps a file just created. On error the caller closes m.
func (m *mapping) set(cfg ArenaConfig) error {
	if err := unix.Flock(int(m.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s: %w", m.path, ErrArenaInUse)
	}
	// Before it was locked, somebody who removes stale files may have taken it for one.
	if there, err := os.Lstat(m.path); err != nil || !m.same(there) {
		return fmt.Errorf("%s was removed as it was created: %w", m.path, ErrArenaInUse)
	}
	if err := m.share(cfg.GroupID); err != nil {
		return err
	}
	if err := m.allocate(cfg.Dir); err != nil {
		return err
	}
	mem, err := unix.Mmap(int(m.file.Fd()), 0, int(m.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "mmap", Path: m.path, Err: err}
	}
	m.mem = mem
	return nil
}

func fsType(fs unix.Statfs_t) int64 { return int64(uint32(fs.Type)) }

func isMemoryFS(fs unix.Statfs_t) bool {
	switch fsType(fs) {
	case unix.TMPFS_MAGIC, unix.HUGETLBFS_MAGIC, unix.RAMFS_MAGIC:
		return true
	default:
		return false
	}
}

// removeStale removes a file at path that no live process has locked.
func removeStale(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove stale arena: %w", err)
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return &FieldError{Field: "Name", Value: path, Allowed: "a regular file or nothing at that path", Fix: "use another name or remove what is there"}
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s: %w", path, ErrArenaInUse)
	}
	return removeIfSame(path, file)
}

// RemoveStaleArenas removes the arena files in dir whose names begin with prefix and that no live process has open as
// its arena, and returns their paths. For a process that starts: one that was killed could not remove its own. An empty dir
// means DefaultArenaDir. Files that it may not touch, and what is not a regular file, stay; the errors are joined.
func RemoveStaleArenas(dir, prefix string) (removed []string, err error) {
	if dir == "" {
		dir = DefaultArenaDir
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("remove stale arenas: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), prefix) || !entry.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		switch err := removeStale(path); {
		case err == nil:
			removed = append(removed, path)
		case !errors.Is(err, ErrArenaInUse):
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// removeIfSame unlinks path when it still names file.
func removeIfSame(path string, file *os.File) error {
	ours, err := file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(ours, there) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// whole says what is wrong with the file that engines map: nil when it has its size and its name.
func (m *mapping) whole() error {
	st, err := m.file.Stat()
	if err != nil {
		return err
	}
	if st.Size() < m.size {
		return fmt.Errorf("%s has %d bytes of %d: %w", m.path, st.Size(), m.size, ErrArenaFault)
	}
	if there, err := os.Lstat(m.path); err != nil || !m.same(there) {
		return fmt.Errorf("%s was removed: %w", m.path, ErrArenaFault)
	}
	return nil
}

func (m *mapping) same(there os.FileInfo) bool {
	ours, err := m.file.Stat()
	return err == nil && os.SameFile(ours, there)
}

// share gives the file its group and mode, whatever the umask.
func (m *mapping) share(group int) error {
	if group != 0 {
		if err := m.file.Chown(-1, group); err != nil {
			return fmt.Errorf("give arena to group %d: %w", group, err)
		}
	}
	return m.file.Chmod(0o660)
}

// allocate reserves every byte of the file, so that a full filesystem is an error here and not a SIGBUS later.
func (m *mapping) allocate(dir string) error {
	space := func(cause error) error {
		e := &ArenaSpaceError{Dir: dir, Wanted: m.size, Available: -1, Err: cause}
		var fs unix.Statfs_t
		if unix.Fstatfs(int(m.file.Fd()), &fs) == nil {
			e.Available = int64(fs.Bavail) * int64(fs.Bsize)
		}
		return e
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(m.file.Fd()), &fs); err != nil {
		return &os.PathError{Op: "fstatfs", Path: m.path, Err: err}
	}
	if fs.Blocks > 0 && m.size > int64(fs.Bavail)*int64(fs.Bsize) { // Blocks is 0 where there is no limit
		return space(nil)
	}
	for off := int64(0); off < m.size; off += allocateChunk {
		err := allocateRange(int(m.file.Fd()), off, min(allocateChunk, m.size-off))
		switch {
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EDQUOT):
			_ = m.file.Truncate(0) // what was had so far goes back, and Available counts it
			return space(err)
		case errors.Is(err, unix.EOPNOTSUPP) && fsType(fs) == unix.RAMFS_MAGIC:
			return m.file.Truncate(m.size) // ramfs has no limit to run into
		case err != nil:
			return &os.PathError{Op: "fallocate", Path: m.path, Err: err}
		}
	}
	return nil
}

func allocateRange(fd int, off, n int64) error {
	for {
		if err := unix.Fallocate(fd, 0, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// close unmaps, unlinks and closes. It is safe on a mapping that was opened half.
func (m *mapping) close() error {
	var errs []error
	if m.mem != nil {
		errs = append(errs, unix.Munmap(m.mem))
		m.mem = nil
	}
	errs = append(errs, removeIfSame(m.path, m.file), m.file.Close())
	return errors.Join(errs...)
}

func lockMemory(mem []byte) error { return unix.Mlock(mem) }

// populateMemory faults pages in without writing them; kernels before 5.14 return EINVAL.
func populateMemory(mem []byte) error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) }
