//go:build !linux

package kvstore

// checkRoom finds nothing wrong: a change that fails shows it.
func checkRoom(string, int64) error { return nil }

func isReadOnly(error) bool { return false }

func isFull(error) bool { return false }
