package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A run's folders are called folderPrefix, its process id, a dash and what makes the name new. Each holds lockName, which the run
	// keeps locked.
	folderPrefix = "kvferry-bed-"
	lockName     = "lock"
	// youngFolder is the age up to which a folder whose lock is free may be one that is being made.
	youngFolder = time.Minute
)

// folder is a temporary folder that later runs remove should this one be killed.
type folder struct {
	path string
	lock *os.File
}

// makeFolder makes one in dir, after removing what killed runs left there.
func makeFolder(dir string) (f folder, err error) {
	sweepFolders(dir, time.Now())
	if f.path, err = os.MkdirTemp(dir, fmt.Sprintf("%s%d-", folderPrefix, os.Getpid())); err != nil {
		return folder{}, err
	}
	if f.lock, err = os.OpenFile(filepath.Join(f.path, lockName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(f.path))
	}
	if err := unix.Flock(int(f.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return folder{}, errors.Join(fmt.Errorf("lock %s: %w", f.lock.Name(), err), f.remove())
	}
	return f, nil
}

// remove removes it; the zero folder is none.
func (f folder) remove() error {
	if f.path == "" {
		return nil
	}
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// sweepFolders removes folders of runs that were killed: those of this user whose lock is free, which no process can have that is not seen
// from here, and whose process is no more, or which are not young: another process may have got its number, or nobody has asked
// how it ended. What can't be removed stays: it hinders nothing.
func sweepFolders(dir string, now time.Time) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return // makeFolder says so
	}
	for _, e := range all {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() && abandoned(path, now) {
			_ = os.RemoveAll(path)
		}
	}
}

// abandoned reports whether the folder at path is one that a killed run of this user left.
func abandoned(path string, now time.Time) bool {
	rest, ok := strings.CutPrefix(filepath.Base(path), folderPrefix)
	digits, _, dashed := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(digits)
	if !ok || !dashed || err != nil || pid <= 0 {
		return false
	}
	fi, err := os.Lstat(path)
	if err != nil || !fi.IsDir() {
		return false
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
		return false
	}
	dead, young := errors.Is(unix.Kill(pid, 0), unix.ESRCH), now.Sub(fi.ModTime()) <= youngFolder
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return dead && !young
	}
	if err != nil || !dead && young {
		return false
	}
	defer func() { _ = lock.Close() }() // gives the lock back
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
