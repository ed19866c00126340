package daemon

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvferry/kvferry/internal/fault"
)

// readState reads a file of what the daemon remembers, up to one byte more than limit, so that a decoder sees that there is more. ok is false
// where there is none: no name, or no such file.
func readState(name string, limit int64) (b []byte, ok bool, err error) {
	if name == "" {
		return nil, false, nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	b, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, false, err
	}
	return b, true, nil
}

// writeWhole replaces a file by another that is whole, whenever the machine stops.
func writeWhole(name string, b []byte) error {
	if err := fault.At(fault.Persist, name); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return nil
}
