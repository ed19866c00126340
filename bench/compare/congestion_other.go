//go:build !linux

package compare

import (
	"errors"
	"syscall"
)

// congestionControl is Linux's.
func congestionControl(string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, _ syscall.RawConn) error {
		return errors.New("a socket's congestion control can be chosen on Linux only")
	}
}
