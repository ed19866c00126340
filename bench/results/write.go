package results

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks bounds the symbolic links that WriteFile follows, as Linux does.
const maxLinks = 40

// WriteFile writes b to path. A file there is replaced: either the old or the new one stands at path at any time, never a
// part, so that a full disk leaves the old one; its permissions stay, a new file's are 0644. What path names otherwise stays what
// it is: behind a symbolic link its target is written, whether or not it is there, and a device, a pipe or an open file under
// /proc (as /dev/stdout) is written to. Errors are those of the file system; a folder is one. b is not retained.
func WriteFile(path string, b []byte) error {
	target, err := behindLinks(path)
	if err != nil {
		return err
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replaceFile(target, b, 0o644)
	case err != nil:
		return err
	case fi.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("is a folder")}
	case !fi.Mode().IsRegular() || target == "":
		return writeInto(path, b)
	}
	return replaceFile(target, b, fi.Mode().Perm())
}

// behindLinks returns the name that path's symbolic links lead to, whose folder is there; nothing when one of them is an open file's
// under /proc, whose text need not be a name.
func behindLinks(path string) (string, error) {
	for range maxLinks {
		dir, base := filepath.Split(path)
		if dir == "" {
			dir = "."
		}
		dir, err := filepath.EvalSymlinks(dir) // also what ".." after a link means
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, base)
		fi, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path, nil
		case err != nil:
			return "", err
		case fi.Mode()&fs.ModeSymlink == 0:
			return path, nil
		case strings.HasPrefix(dir, "/proc/"):
			return "", nil
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = dir + string(filepath.Separator) + to
		}
		path = to
	}
	return "", &fs.PathError{Op: "write", Path: path, Err: fmt.Errorf("more than %d symbolic links", maxLinks)}
}

// writeInto writes b to what is no plain file, or is open already: after what is in it.
func writeInto(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// replaceFile replaces path, no link, by way of a file beside it.
func replaceFile(path string, b []byte, mode fs.FileMode) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".kvferry-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreClosed(tmp.Close()), os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(b); err != nil {
		return err
	}
	if err := tmp.Chmod(mode); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
