//go:build !linux || !cgo

package nvml

// newDriver says why this build has none.
func newDriver(string) (driver, *failure) {
	return nil, &failure{CauseNoBinding, "built without a driver binding: it needs Linux and cgo (CGO_ENABLED=1 and a C compiler)"}
}
