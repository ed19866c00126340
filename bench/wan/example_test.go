package wan_test

import (
	"fmt"
	"net/netip"

	"github.com/kvferry/kvferry/bench/wan"
)

func Example() {
	m, err := wan.Parse("rtt=2ms,rate=1Gbps,loss=0")
	if err != nil {
		fmt.Println(err)
		return
	}
	n := wan.NewNetwork(m)
	defer n.Close()
	east, _ := n.Listen(netip.MustParseAddrPort("10.0.0.1:4433"))
	west, _ := n.Listen(netip.MustParseAddrPort("10.0.0.2:4433"))
	_, _ = east.WriteTo([]byte("page"), west.LocalAddr())

	buf := make([]byte, 1500)
	size, from, _ := west.ReadFrom(buf)
	fmt.Printf("%s from %s over %s\n", buf[:size], from, m)
	// Output: page from 10.0.0.1:4433 over rtt=2ms,rate=1Gbps,loss=0
}
