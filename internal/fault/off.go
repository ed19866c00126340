//go:build !chaos

package fault

// Enabled says that this build can inject faults and plant bugs.
const Enabled = false

// At is a crossing of b at the named node or arena: nil, unless a fault makes it fail.
func At(Boundary, string) error { return nil }

// Page is At with the bytes that cross, of which a fault may flip a bit.
func Page(Boundary, string, []byte) error { return nil }

// Planted reports whether bug is planted.
func Planted(Bug) bool { return false }

// FromEnv installs what the environment asks for, once. Errors: a text that can't be read, the log's file.
func FromEnv() error { return nil }
