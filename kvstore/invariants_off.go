//go:build !invariants

package kvstore

// invariants says that what can't happen is not looked for.
const invariants = false

// assertf does nothing.
func assertf(bool, string, ...any) {}
