//go:build invariants

package kvstore

import "fmt"

// invariants says that what can't happen is looked for, and panics.
const invariants = true

// assertf panics unless ok.
func assertf(ok bool, format string, args ...any) {
	if !ok {
		panic("BUG: " + fmt.Sprintf(format, args...))
	}
}
