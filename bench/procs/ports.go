package procs

import (
	"fmt"
	"net"
)

// FreePorts finds n loopback addresses, network "udp" or "tcp", that nobody uses now. Somebody else may take one before the caller
// does.
func FreePorts(network string, n int) ([]string, error) {
	out := make([]string, n)
	for i := range out {
		addr, done, err := freePort(network)
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer done() // all are held until all are found: no two are the same
		out[i] = addr
	}
	return out, nil
}

func freePort(network string) (addr string, done func(), err error) {
	if network == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		return l.Addr().String(), func() { _ = l.Close() }, nil
	}
	c, err := net.ListenPacket(network, "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return c.LocalAddr().String(), func() { _ = c.Close() }, nil
}
