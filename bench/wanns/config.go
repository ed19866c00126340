package wanns

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/kvferry/kvferry/bench/wan"
)

// Device is the name of the device in each namespace.
const Device = "wan0"

// Config describes a path.
type Config struct {
	// A and B name the two namespaces, which must not exist: 1 to 64 of [a-zA-Z0-9._-], not beginning with a dot.
	A, B string
	// Net is the IPv4 network of the path, /8 to /30. A has its first address, B its second. Zero is 10.77.0.0/24.
	Net netip.Prefix
	// Model shapes each direction. Zero is a perfect link. Its MTU is the devices' too.
	Model wan.Model
}

// defaultNet is Config.Net's default.
var defaultNet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, 0}), 24)

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$`)

// Validate reports every field that is out of range, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("wanns: %s %v: want %s", field, value, want))
	}
	for _, n := range []struct{ field, name string }{{"A", c.A}, {"B", c.B}} {
		if !namePattern.MatchString(n.name) {
			bad("namespace "+n.field, fmt.Sprintf("%.80q", n.name), "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', not beginning with a dot")
		}
	}
	if c.A == c.B {
		bad("namespace B", fmt.Sprintf("%.80q", c.B), "another name than A")
	}
	if n := c.withDefaults().Net; !n.IsValid() || !n.Addr().Is4() || n.Bits() < 8 || n.Bits() > 30 {
		bad("network", c.Net, "an IPv4 network from /8 to /30, such as 10.77.0.0/24")
	} else if n != n.Masked() {
		bad("network", n, fmt.Sprintf("a network without host bits: %v", n.Masked()))
	}
	if mtu := c.Model.MTU; mtu > 0 && (mtu < 68 || mtu > maxMTU) {
		bad("mtu", mtu, fmt.Sprintf("68 to %d: what IPv4 asks for and a TUN device can carry", maxMTU))
	}
	return errors.Join(append(errs, c.Model.Validate())...)
}

// maxMTU is what a TUN device can have.
const maxMTU = 65535

func (c Config) withDefaults() Config {
	if c.Net == (netip.Prefix{}) {
		c.Net = defaultNet
	}
	return c
}

// mtu is that of the devices.
func (c Config) mtu() int {
	switch {
	case c.Model.MTU < 0:
		return maxMTU
	case c.Model.MTU == 0:
		return wan.DefaultMTU
	}
	return c.Model.MTU
}

// addrs are the two ends' addresses.
func (c Config) addrs() (a, b netip.Addr) {
	a = c.withDefaults().Net.Addr().Next()
	return a, a.Next()
}

// Side is one end of a path.
type Side int

// The sides.
const (
	A Side = iota
	B
)

// String is "a" or "b".
func (s Side) String() string {
	switch s {
	case A:
		return "a"
	case B:
		return "b"
	}
	return fmt.Sprintf("side(%d)", int(s))
}

// Stats counts what a path has carried.
type Stats struct {
	// AToB and BToA are the links.
	AToB, BToA wan.LinkStats
	// DeviceDropsA and DeviceDropsB are packets that a device dropped before they reached their link, because this process
	// did not read them in time.
	DeviceDropsA, DeviceDropsB int64
}

// Sentinels for the branches that callers take.
var (
	// ErrNotPermitted: the process may not make namespaces or devices.
	ErrNotPermitted = errors.New("network namespaces need root: run as root (sudo), in a container with --privileged, or with CAP_SYS_ADMIN and CAP_NET_ADMIN")
	// ErrNoTUN: the system has no TUN devices.
	ErrNoTUN = errors.New("no /dev/net/tun: load the module (modprobe tun), or start the container with --device /dev/net/tun")
	// ErrExists: a namespace of that name is there already.
	ErrExists = errors.New("the network namespace exists: choose another name, or remove it with 'ip netns del'")
	// ErrUnsupported: the system is not Linux.
	ErrUnsupported = errors.New("network namespaces exist on Linux only; the UDP relay (--listen and --target) works everywhere")
)
