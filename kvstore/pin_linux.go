package kvstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// mapping is a file mapped shared and writable. The process holds the file's lock while it lives; the lock covers the index, too.
type mapping struct {
	path       string
	file       *os.File
	mem        []byte
	size       int64
	indexFile  *os.File // nil: there is no index, and the arena is not kept
	index      []byte   // mapped
	generation uint64   // of the index that was there
	reopened   bool     // the files are those of an earlier process
	alone      bool     // when they were opened, nobody else had the arena's file open or mapped
	why        string   // why an arena that was there was not reopened, or why this one is not kept
}

const allocateChunk = 64 << 20 // fallocate on tmpfs starts over when a signal comes: keep each call short

// openMapping maps the arena's file: with reuse one that is there and was made for an arena as head says, else a new one of head.bytes
// bytes. A new one begins with an index of zeros.
func openMapping(cfg ArenaConfig, head tableHead, reuse bool) (*mapping, error) {
	size := head.bytes
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: cfg.Dir, Err: err}
	}
	if !cfg.AllowDisk && !isMemoryFS(fs) {
		return nil, &ArenaDirError{Dir: cfg.Dir, FSType: fsType(fs)}
	}
	notKept, keep := "", cfg.Keep != ""
	if fsType(fs) == unix.HUGETLBFS_MAGIC { // whole huge pages only
		size = (size + int64(fs.Bsize) - 1) / int64(fs.Bsize) * int64(fs.Bsize)
		if keep {
			keep, notKept = false, "arenas on hugetlbfs are not kept"
		}
	}
	path := filepath.Join(cfg.Dir, cfg.Name)
	if keep && reuse {
		m, err := reopen(path, cfg.GroupID, head)
		if m != nil || errors.Is(err, ErrArenaInUse) {
			return m, err
		}
		notKept = why(err)
	}
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
	m := &mapping{path: path, file: file, size: size, why: notKept}
	if err := m.set(cfg); err != nil {
		_ = m.close(false) // the first error says more
		return nil, err
	}
	if keep {
		if err := m.createIndex(head.size()); err != nil {
			m.dropIndex()
			m.why = why(fmt.Errorf("it will not be kept: %w", err))
		}
	}
	return m, nil
}

// set locks, shares, allocates and maps a file just created. On error the caller closes m.
func (m *mapping) set(cfg ArenaConfig) error {
	if err := lockFile(m.file, lookTime); err != nil {
		return fmt.Errorf("%s: %w", m.path, ErrArenaInUse)
	}
	// Before it was locked, somebody who removes stale files may have taken it for one.
	if there, err := os.Lstat(m.path); err != nil || !m.same(there) {
		return fmt.Errorf("%s was removed as it was created: %w", m.path, ErrArenaInUse)
	}
	if err := share(m.file, cfg.GroupID); err != nil {
		return err
	}
	if err := allocate(m.file, m.size, cfg.Dir); err != nil {
		return err
	}
	var err error
	m.mem, err = mapFile(m.file, m.size)
	return err
}

func mapFile(file *os.File, size int64) ([]byte, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: file.Name(), Err: err}
	}
	return mem, nil
}

// reopen maps an arena of an earlier process and its index. Nil without an error means that there is none; an error says what is wrong with
// one that is there. The arena's lock is taken before the index is looked at.
func reopen(path string, group int, want tableHead) (_ *mapping, err error) {
	file, err := openStale(path, lookTime)
	if file == nil {
		return nil, err
	}
	m := &mapping{path: path, file: file, size: want.bytes, reopened: true}
	defer func() {
		if err != nil {
			m.unmap() // what is there is for the caller to remove
		}
	}()
	index, head, err := openIndex(path)
	if err != nil {
		return nil, err
	}
	m.indexFile, m.generation = index, head.generation
	if err := head.fits(want); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		file *os.File
		size int64
	}{{file, want.bytes}, {index, want.size()}} {
		if err := checkOwned(f.file, f.size); err != nil {
			return nil, err
		}
		if err := allocate(f.file, f.size, filepath.Dir(path)); err != nil { // holes would be faults where the filesystem is full
			return nil, err
		}
	}
	if err := share(file, group); err != nil {
		return nil, err
	}
	m.alone = nobodyElse(file)
	if m.mem, err = mapFile(file, want.bytes); err != nil {
		return nil, err
	}
	m.index, err = mapFile(index, want.size())
	m.noteAlive()
	return m, err
}

// checkOwned holds a file to be this user's, of one name and size.
func checkOwned(file *os.File, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return fmt.Errorf("%s is of user %d and has %d names", file.Name(), st.Uid, st.Nlink)
	}
	if st.Size != size {
		return fmt.Errorf("%s has %d bytes, not %d", file.Name(), st.Size, size)
	}
	return nil
}

// nobodyElse reports whether no other process has file open or mapped: the kernel grants a write lease only then.
func nobodyElse(file *os.File) bool {
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false
	}
	_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // it is ours: it can be given back
	return true
}

// openIndex opens the index of the arena at path and reads its header.
func openIndex(path string) (*os.File, tableHead, error) {
	file, err := os.OpenFile(path+indexSuffix, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, tableHead{}, fmt.Errorf("open its index: %w", err)
	}
	head, err := readHead(file)
	if err != nil {
		_ = file.Close()
		return nil, tableHead{}, err
	}
	return file, head, nil
}

// readHead reads an index's header.
func readHead(file *os.File) (tableHead, error) {
	b := make([]byte, tableHeadSize)
	n, err := file.ReadAt(b, 0)
	if errors.Is(err, io.EOF) { // decoding says it better
		b, err = b[:n], nil
	}
	if err != nil {
		return tableHead{}, err
	}
	return decodeTableHead(b)
}

// createIndex makes the index's file, all zeros, and maps it.
func (m *mapping) createIndex(size int64) error {
	_ = os.Remove(m.path + indexSuffix) // of an arena that is gone: the arena's lock is held
	file, err := os.OpenFile(m.path+indexSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	m.indexFile = file
	if err := allocate(file, size, filepath.Dir(m.path)); err != nil {
		return err
	}
	m.index, err = mapFile(file, size)
	return err
}

func (m *mapping) readIndex(b []byte, off int64) error {
	_, err := m.indexFile.ReadAt(b, off)
	return err
}

// dropIndex unmaps, closes and removes the index.
func (m *mapping) dropIndex() {
	if m.index != nil {
		_ = unix.Munmap(m.index)
		m.index = nil
	}
	if m.indexFile != nil {
		_ = removeIfSame(m.path+indexSuffix, m.indexFile) // a file that stays is found by nobody: its arena goes
		_ = m.indexFile.Close()
		m.indexFile = nil
	}
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

// openStale opens and locks the file at path, which no live process may hold. Nil without an error means that there is none. Who looks whether a
// file is held (ListArenas) holds it for a moment: that is waited out for patience.
func openStale(path string, patience time.Duration) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented: nothing is there
	}
	if err != nil {
		return nil, fmt.Errorf("open stale arena: %w", err)
	}
	if st, serr := file.Stat(); serr != nil || !st.Mode().IsRegular() {
		err = &FieldError{Field: "Name", Value: path, Allowed: "a regular file or nothing at that path", Fix: "use another name or remove what is there"}
	} else if lockFile(file, patience) != nil {
		err = fmt.Errorf("%s: %w", path, ErrArenaInUse)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// lookTime is longer than a look at whether a file is held takes, on a busy machine, too.
const lookTime = 250 * time.Millisecond

// lockFile locks a file for this process alone.
func lockFile(file *os.File, patience time.Duration) error {
	const step = 5 * time.Millisecond
	for ; ; patience -= step {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || patience <= 0 {
			return err
		}
		time.Sleep(step)
	}
}

// removeStale removes the arena at path, and its index, unless a live process has locked it.
func removeStale(path string) error {
	file, err := openStale(path, lookTime)
	if file == nil {
		return err
	}
	defer file.Close()
	return removeBoth(path, file)
}

// removeBoth removes an arena's file, locked, and its index.
func removeBoth(path string, file *os.File) error {
	ierr := os.Remove(path + indexSuffix)
	if errors.Is(ierr, os.ErrNotExist) {
		ierr = nil
	}
	return errors.Join(removeIfSame(path, file), ierr)
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
func share(file *os.File, group int) error {
	if group != 0 {
		if err := file.Chown(-1, group); err != nil {
			return fmt.Errorf("give arena to group %d: %w", group, err)
		}
	}
	return file.Chmod(0o660)
}

// allocate reserves every byte of the file, so that a full filesystem is an error here and not a SIGBUS later. On an error of room
// nothing is left of a file.
func allocate(file *os.File, size int64, dir string) error {
	space := func(cause error) error {
		e := &ArenaSpaceError{Dir: dir, Wanted: size, Available: -1, Err: cause}
		var fs unix.Statfs_t
		if unix.Fstatfs(int(file.Fd()), &fs) == nil {
			e.Available = int64(fs.Bavail) * int64(fs.Bsize)
		}
		return e
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	had := st.Blocks * 512
	if st.Size == size && had >= size {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return &os.PathError{Op: "fstatfs", Path: file.Name(), Err: err}
	}
	if fs.Blocks > 0 && size-had > int64(fs.Bavail)*int64(fs.Bsize) { // Blocks is 0 where there is no limit
		return space(nil)
	}
	for off := int64(0); off < size; off += allocateChunk {
		err := allocateRange(int(file.Fd()), off, min(allocateChunk, size-off))
		switch {
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EDQUOT):
			_ = file.Truncate(0) // what was had so far goes back, and Available counts it
			return space(err)
		case errors.Is(err, unix.EOPNOTSUPP) && fsType(fs) == unix.RAMFS_MAGIC:
			return file.Truncate(size) // ramfs has no limit to run into
		case err != nil:
			return &os.PathError{Op: "fallocate", Path: file.Name(), Err: err}
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

// close unmaps and closes, and unless keep is set unlinks. It is safe on a mapping that was opened half.
func (m *mapping) close(keep bool) error {
	if keep {
		m.noteAlive()
		return m.unmap()
	}
	m.dropIndex()
	return errors.Join(removeIfSame(m.path, m.file), m.unmap())
}

// noteAlive has the file's time of change say that a process has it now.
func (m *mapping) noteAlive() {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, m.path, now, unix.AT_SYMLINK_NOFOLLOW) // it is for people
}

// unmap unmaps and closes the files, and leaves them.
func (m *mapping) unmap() error {
	var errs []error
	for _, mem := range []*[]byte{&m.mem, &m.index} {
		if *mem != nil {
			errs = append(errs, unix.Munmap(*mem))
			*mem = nil
		}
	}
	if m.indexFile != nil {
		errs = append(errs, m.indexFile.Close())
	}
	return errors.Join(append(errs, m.file.Close())...)
}

func lockMemory(mem []byte) error { return unix.Mlock(mem) }

// populateMemory faults pages in without writing them; kernels before 5.14 return EINVAL.
func populateMemory(mem []byte) error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) }
