package wanns

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// netnsDir is where ip-netns(8) keeps names of namespaces.
	netnsDir  = "/run/netns"
	tunDevice = "/dev/net/tun"
	// queuePackets is the devices' own queue: this process may be late by so many packets without a loss that is not the
	// link's. At 1 Gbit/s and 1,500 bytes that is 120 ms.
	queuePackets = 10_000
)

// namespace is a network namespace with a name.
type namespace struct {
	name string
	file *os.File // holds it
}

// newNamespace makes a namespace and gives it a name. Its only device, the loopback, is up.
func newNamespace(name string) (*namespace, error) {
	if err := prepareDir(); err != nil {
		return nil, err
	}
	path := filepath.Join(netnsDir, name)
	mark, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrExist) {
		return nil, ErrExists
	}
	if err != nil {
		return nil, permission(err)
	}
	_ = mark.Close() // only its name is of use
	ns := &namespace{name: name}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
		return up("lo")
	})
	if err == nil {
		ns.file, err = os.Open(path)
	}
	if err != nil {
		return nil, errors.Join(permission(err), ns.remove())
	}
	return ns, nil
}

// prepareDir makes /run/netns what ip-netns(8) makes of it: a mount that other mount namespaces see.
func prepareDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return permission(err)
	}
	err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return permission(fmt.Errorf("mount %s: %w", netnsDir, err))
	}
	return nil
}

// permission names the cause of a refusal.
func permission(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w (%w)", ErrNotPermitted, err)
	}
	return err
}

// remove takes the name away; the namespace goes when nothing is in it.
func (ns *namespace) remove() error {
	path := filepath.Join(netnsDir, ns.name)
	var errs []error
	if ns.file != nil {
		errs = append(errs, ns.file.Close())
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: not mounted
		errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
	}
	return errors.Join(append(errs, os.Remove(path))...)
}

// onThread calls fn on a thread of its own, which ends with it: a thread that has been in another namespace must not serve
// other goroutines.
func onThread(fn func() error) error {
	done := make(chan error, 1) // capacity 1: the thread ends at once
	go func() {                 // ends with fn, which the caller waits for
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}

// do calls fn on a thread in the namespace.
func (ns *namespace) do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return permission(fmt.Errorf("enter: %w", err))
		}
		return fn()
	})
}

// drops are packets that the device dropped on their way to us; -1 when that can't be read.
func (ns *namespace) drops() int64 {
	n := int64(-1)
	_ = ns.do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		if err == nil {
			n = sentDrops(data)
		}
		return err
	})
	return n
}

// sentDrops finds the device's column "drop" of "Transmit" in /proc/net/dev (proc_net(5)).
func sentDrops(data []byte) int64 {
	const receiveColumns, dropColumn = 8, 3
	for scan := bufio.NewScanner(bytes.NewReader(data)); scan.Scan(); {
		name, rest, found := strings.Cut(strings.TrimSpace(scan.Text()), ":")
		if !found || name != Device {
			continue
		}
		if f := strings.Fields(rest); len(f) > receiveColumns+dropColumn {
			if n, err := strconv.ParseInt(f[receiveColumns+dropColumn], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// openDevice makes the TUN device in the namespace of this thread.
func openDevice(addr netip.Addr, bits, mtu int) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			return nil, ErrNoTUN
		}
		return nil, permission(&os.PathError{Op: "open", Path: tunDevice, Err: err})
	}
	ifr, err := unix.NewIfreq(Device)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		_ = unix.Close(fd) // the first error says more
		return nil, permission(fmt.Errorf("make device %s: %w", Device, err))
	}
	// Made a file only now: the runtime's poller can watch a TUN descriptor once it has its device.
	device := os.NewFile(uintptr(fd), tunDevice)
	if err := configure(addr, bits, mtu); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// configure gives the device its address and brings it up, and prepares the namespace of this thread.
func configure(addr netip.Addr, bits, mtu int) error {
	// Without an address of its own IPv6 sends nothing, which would take room on the link. A kernel without IPv6 has no
	// such file.
	if err := sysctl("ipv6/conf/"+Device+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// A window of one bandwidth-delay product: 6 MiB, the default, ends at 700 Mbit/s and 70 ms.
	if err := errors.Join(sysctl("ipv4/tcp_rmem", "4096 131072 67108864"), sysctl("ipv4/tcp_wmem", "4096 262144 67108864")); err != nil {
		return err
	}
	mask := netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), bits).Masked().Addr()
	for _, s := range []struct {
		what string
		op   uint
		set  func(*unix.Ifreq) error
	}{
		{"MTU", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(mtu)); return nil }},
		{"queue", unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) error { r.SetUint32(queuePackets); return nil }},
		{"address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(addr.AsSlice()) }},
		{"netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask.AsSlice()) }},
	} {
		if err := interfaceRequest(Device, s.op, s.set); err != nil {
			return fmt.Errorf("set %s of %s: %w", s.what, Device, err)
		}
	}
	return up(Device)
}

func sysctl(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}

// up brings an interface up in the namespace of this thread.
func up(name string) error {
	err := interfaceRequest(name, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil })
	if err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

// interfaceRequest makes one request of netdevice(7).
func interfaceRequest(name string, op uint, set func(*unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was sent
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := set(r); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, op, r)
}
