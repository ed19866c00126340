package chaosreal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// smallState is the size of a filesystem for one node's state: enough for what a run writes.
const smallState = "size=4m"

// mountSmall puts a small filesystem on a folder. It takes root.
func mountSmall(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, smallState); err != nil {
		return fmt.Errorf("mount a small tmpfs on %s: %w", dir, err)
	}
	return nil
}

func unmountSmall(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// canMount says why there can be no small filesystem, or nil.
func canMount() error {
	dir, err := os.MkdirTemp("", "kvferry-mount-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dir) }()
	if err := mountSmall(dir); err != nil {
		return err
	}
	return unmountSmall(dir)
}

// filler takes the space of a folder.
const filler = "filler"

// fill takes all space that is left in a folder.
func fill(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, filler), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for size := 1 << 16; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		default:
			return err
		}
	}
	return nil
}

// unfill gives it back.
func unfill(dir string) error {
	if err := os.Remove(filepath.Join(dir, filler)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
