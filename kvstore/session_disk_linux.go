package kvstore

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// checkRoom returns an error when the filesystem of path is read-only, or has less than want bytes for this user.
func checkRoom(path string, want int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return unix.EROFS
	}
	if free := int64(st.Bavail) * st.Bsize; st.Blocks > 0 && free < want {
		return fmt.Errorf("%d bytes are free where it lies, %d may be needed: %w", free, want, unix.ENOSPC)
	}
	return nil
}

func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
