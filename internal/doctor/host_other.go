//go:build !linux

package doctor

import (
	"errors"
	"os"
)

// filesystem is not known here.
func filesystem(string) (Filesystem, error) { return Filesystem{}, errors.ErrUnsupported }

// writable tries.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".kvferry-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// takeRoom can't be tried here.
func takeRoom(string, int64) error { return errors.ErrUnsupported }

// SocketOwner returns the process that listens on a unix socket. It returns [errors.ErrUnsupported] here.
func SocketOwner(string) (pid int, err error) { return 0, errors.ErrUnsupported }
