package kvstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveStaleArenas looks at the arena files in dir whose names begin with prefix and that no live process has open as its arena. Those
// that keep, unless nil, wants stay and are returned as kept; the others are removed, with their indexes, and their paths returned. A process that was
// killed could not remove its own. An empty dir means DefaultArenaDir. Files that it may not touch, and what is not a regular
// file, stay; the errors are joined.
func RemoveStaleArenas(dir, prefix string, keep func(KeptArena) bool) (removed []string, kept []KeptArena, err error) {
	paths, err := arenaPaths(dir, prefix)
	if err != nil {
		return nil, nil, fmt.Errorf("remove stale arenas: %w", err)
	}
	var errs []error
	for _, path := range paths {
		info, gone, err := lookAtStale(path, keep)
		switch {
		case gone:
			removed = append(removed, path)
		case err == nil && info.Path != "":
			kept = append(kept, info)
		case err != nil && !errors.Is(err, ErrArenaInUse):
			errs = append(errs, err)
		}
	}
	return removed, kept, errors.Join(errs...)
}

// arenaPaths are the regular files in dir, DefaultArenaDir if empty, whose names begin with prefix: arenas, and indexes that have lost theirs. An
// index beside its arena goes or stays with it, and is told of with it.
func arenaPaths(dir, prefix string) ([]string, error) {
	if dir == "" {
		dir = DefaultArenaDir
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), prefix) || !entry.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		if arena, ok := strings.CutSuffix(path, indexSuffix); ok {
			if _, err := os.Lstat(arena); !errors.Is(err, os.ErrNotExist) {
				continue
			}
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// lookAtStale removes one arena unless keep wants it. One that is wanted and was not looked at before is marked with the time.
func lookAtStale(path string, keep func(KeptArena) bool) (info KeptArena, gone bool, err error) {
	file, err := openStale(path, 0)
	if file == nil {
		return info, false, err
	}
	defer file.Close()
	info = KeptArena{Path: path, Since: time.Now()}
	if st, err := file.Stat(); err == nil {
		info.Bytes = st.Size()
	}
	if keep == nil {
		keep = func(KeptArena) bool { return false }
	}
	index, head, ierr := openIndex(path)
	if ierr == nil {
		defer index.Close()
		info.Identity = head.identity
		if head.unclaimed > 0 {
			info.Since = time.Unix(head.unclaimed, 0)
		}
	}
	if !keep(info) {
		err := removeBoth(path, file)
		return info, err == nil, err
	}
	if ierr == nil && head.unclaimed == 0 {
		head.unclaimed = max(1, time.Now().Unix())
		_, err = index.WriteAt(head.encode()[:tableHeadUsed], 0)
	}
	return info, false, err
}

// ListArenas looks at the arena files in dir whose names begin with prefix, and changes nothing: an arena's file, or an index that has lost its
// own. Those that processes have open are among them. An empty dir means DefaultArenaDir. Files that it may not read are among them, Unread; what is
// not a regular file is not. Errors: the system's, of the folder.
func ListArenas(dir, prefix string) ([]ArenaFile, error) {
	paths, err := arenaPaths(dir, prefix)
	if err != nil {
		return nil, fmt.Errorf("list arenas: %w", err)
	}
	var out []ArenaFile
	for _, path := range paths {
		if a, there := lookAtArena(path); there {
			out = append(out, a)
		}
	}
	return out, nil
}

// lookAtArena says what the file at path is.
func lookAtArena(path string) (a ArenaFile, there bool) {
	st, err := os.Lstat(path)
	if err != nil {
		return a, !errors.Is(err, os.ErrNotExist)
	}
	a = ArenaFile{Path: path, Bytes: st.Size(), Used: st.ModTime()}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		a.InUse, a.Unread = true, err
		return a, !errors.Is(err, os.ErrNotExist)
	}
	defer file.Close()
	if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		a.InUse = true
	} else {
		_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // at once: an opener waits no longer than lookTime
	}
	index, err := os.OpenFile(path+indexSuffix, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		if !a.InUse {
			a.Damage = "it has no index"
		}
		return a, true
	}
	if err != nil {
		a.Unread = err
		return a, true
	}
	defer index.Close()
	ist, err := index.Stat()
	var head tableHead
	if err == nil {
		head, err = readHead(index)
	}
	switch {
	case err != nil:
		a.Damage = why(fmt.Errorf("its index: %w", err))
		return a, true
	case st.Size() < head.bytes:
		a.Damage = fmt.Sprintf("it has %d bytes of %d", st.Size(), head.bytes)
	case ist.Size() < head.size():
		a.Damage = fmt.Sprintf("its index has %d bytes of %d", ist.Size(), head.size())
	}
	a.Identity = head.identity
	a.Bytes += ist.Size()
	return a, true
}

// RenameArena gives the arena that no process has open, and that was kept as identity says, another name in its folder, with its index. It reports
// false and changes nothing where there is no such arena, or something has the name already. Errors: the system's; what is half renamed is an arena
// without its index.
func RenameArena(dir, from, to, identity string) (renamed bool, err error) {
	if dir == "" {
		dir = DefaultArenaDir
	}
	from, to = filepath.Join(dir, from), filepath.Join(dir, to)
	if _, err := os.Lstat(to); err == nil || !errors.Is(err, os.ErrNotExist) {
		return false, nil //nolint:nilerr // whoever opens it finds out what is wrong
	}
	file, err := openStale(from, lookTime)
	if file == nil || err != nil {
		return false, nil //nolint:nilerr // in use, or no arena
	}
	defer file.Close()
	index, head, err := openIndex(from)
	if err != nil || head.identity != identity {
		if err == nil {
			_ = index.Close()
		}
		return false, nil //nolint:nilerr // another's, or nobody's
	}
	defer index.Close()
	if err := os.Rename(from+indexSuffix, to+indexSuffix); err != nil {
		return false, fmt.Errorf("rename arena: %w", err)
	}
	if err := os.Rename(from, to); err != nil {
		return false, fmt.Errorf("rename arena: %w", err)
	}
	return true, nil
}
