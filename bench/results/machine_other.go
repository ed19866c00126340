//go:build !linux

package results

// readSystem has nothing to read on systems without procfs.
func (m *Machine) readSystem(string) {}
