package wanns_test

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/bench/wanns"
)

func Example() {
	m, err := wan.Parse("rtt=70ms,rate=100Mbps,loss=0")
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := wanns.Open(wanns.Config{A: "east", B: "../west", Model: m})
	switch {
	case errors.Is(err, wanns.ErrNotPermitted), errors.Is(err, wanns.ErrNoTUN), errors.Is(err, wanns.ErrUnsupported):
		fmt.Println("not on this machine:", err)
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	defer p.Close()
	fmt.Println("ip netns exec east ping", p.Addr(wanns.B))
	// Output:
	// wanns: namespace B "../west": want 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', not beginning with a dot
}
