//go:build !linux

package kvstore

import (
	"errors"
	"fmt"
	"runtime"
)

type mapping struct {
	path string
	mem  []byte
	size int64
}

func openMapping(ArenaConfig, int64) (*mapping, error) {
	return nil, fmt.Errorf("shared memory arenas on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// RemoveStaleArenas finds nothing: there are no arenas on this system.
func RemoveStaleArenas(string, string) ([]string, error) { return nil, nil }

func (m *mapping) whole() error { return errors.ErrUnsupported }

func (m *mapping) close() error { return nil }

func lockMemory([]byte) error { return errors.ErrUnsupported }

func populateMemory([]byte) error { return errors.ErrUnsupported }
