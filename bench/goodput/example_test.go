package goodput_test

import (
	"context"
	"fmt"

	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/wan"
)

func Example() {
	m, err := wan.Parse("rtt=5ms,rate=200Mbps,loss=0")
	if err != nil {
		panic(err)
	}
	res, err := goodput.Run(context.Background(), goodput.Config{WAN: m, Bytes: 1 << 20, PagesPerBlock: 4, Stripes: []int{2}, Repeats: 1})
	if err != nil {
		panic(err)
	}
	o := res.Best()
	fmt.Println(o.Blocks, "blocks of", o.BlockBytes, "bytes; a share of the link:", *o.LinkShare > 0 && *o.LinkShare < 1)
	// Output: 4 blocks of 262144 bytes; a share of the link: true
}
