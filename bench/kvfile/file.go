package kvfile

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a file in the making. It has another name, in the same folder, until Commit: at its own name stands what stood there before, or
// nothing, but never a part. Commit or Abort is owed.
type File struct {
	*Writer
	path  string
	tmp   *os.File
	buf   *bufio.Writer
	force bool
	done  bool
}

// bufferBytes is what a File gathers before a write.
const bufferBytes = 1 << 20

// CheckPlace says whether Create may make path: fs.ErrExist without force when something is there, an error for what is no plain file, errors
// of the system.
func CheckPlace(path string, force bool) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return &fs.PathError{Op: "replace", Path: path, Err: errors.New("is no plain file")}
	case !force:
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	return nil
}

// Create begins a file, readable by its owner alone, and writes the header. With force a plain file at path is replaced at Commit; behind
// a symbolic link its target is. Errors: those of CheckPlace, of the header, of the system; nothing is left behind then.
func Create(path string, h Header, force bool) (_ *File, err error) {
	if err := CheckPlace(path, force); err != nil {
		return nil, err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".kvferry-*.tmp") // 0600
	if err != nil {
		return nil, err
	}
	f := &File{path: path, tmp: tmp, buf: bufio.NewWriterSize(tmp, bufferBytes), force: force}
	if f.Writer, err = NewWriter(f.buf, h); err != nil {
		return nil, errors.Join(err, f.Abort())
	}
	return f, nil
}

// Commit gives the file its name, once all pages are written and on disk. Errors: ErrPages, fs.ErrExist when something has taken the name since
// Create and force is not set, errors of the system; the file is aborted then.
func (f *File) Commit() (err error) {
	if f.done {
		return fmt.Errorf("commit %s: it has been committed or aborted", f.path)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Abort())
		}
	}()
	for _, step := range []func() error{f.Finish, f.buf.Flush, f.tmp.Sync, f.tmp.Close} {
		if err := step(); err != nil {
			return err
		}
	}
	if f.force {
		if err := os.Rename(f.tmp.Name(), f.path); err != nil {
			return err
		}
		f.done = true
		return nil
	}
	// A link, where there are any, does not replace what came in between.
	if err := os.Link(f.tmp.Name(), f.path); errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "create", Path: f.path, Err: fs.ErrExist}
	} else if err == nil {
		f.done = true
		return os.Remove(f.tmp.Name())
	}
	if err := CheckPlace(f.path, false); err != nil {
		return err
	}
	if err := os.Rename(f.tmp.Name(), f.path); err != nil {
		return err
	}
	f.done = true
	return nil
}

// Abort takes away what Commit has not made whole. It is idempotent, and nothing after Commit.
func (f *File) Abort() error {
	if f.done {
		return nil
	}
	f.done = true
	err := f.tmp.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, os.Remove(f.tmp.Name()))
}
