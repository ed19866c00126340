//go:build !linux

package kvstore

import (
	"errors"
	"fmt"
	"runtime"
)

type mapping struct {
	path       string
	mem        []byte
	index      []byte
	size       int64
	generation uint64
	reopened   bool
	alone      bool
	why        string
}

func openMapping(ArenaConfig, tableHead, bool) (*mapping, error) {
	return nil, fmt.Errorf("shared memory arenas on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// RemoveStaleArenas finds nothing: there are no arenas on this system.
func RemoveStaleArenas(string, string, func(KeptArena) bool) (removed []string, kept []KeptArena, err error) {
	return nil, nil, nil
}

// ListArenas finds nothing: there are no arenas on this system.
func ListArenas(string, string) ([]ArenaFile, error) { return nil, nil }

// RenameArena finds nothing: there are no arenas on this system.
func RenameArena(_, _, _, _ string) (renamed bool, err error) { return false, nil }

func (m *mapping) noteAlive() {}

func (m *mapping) whole() error { return errors.ErrUnsupported }

func (m *mapping) readIndex([]byte, int64) error { return errors.ErrUnsupported }

func (m *mapping) close(bool) error { return nil }

func lockMemory([]byte) error { return errors.ErrUnsupported }

func populateMemory([]byte) error { return errors.ErrUnsupported }
