//go:build !linux

package goodput

// daemonProcess is not known here.
type daemonProcess int

func findDaemon(string) daemonProcess { return 0 }

func (daemonProcess) cpu() float64 { return -1 }
