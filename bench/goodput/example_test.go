package goodput_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/wan"
)

// Two daemons that run: the source's is on this host, the destination's socket is forwarded here. Not run, since it needs both.
func ExampleRunDaemons() {
	res, err := goodput.RunDaemons(context.Background(), goodput.DaemonsConfig{
		SourceSocket: "/run/kvferry/kvferry.sock", DestinationSocket: "/tmp/destination.sock", Bytes: 1 << 30, MaxRate: 1e9,
	})
	if res == nil {
		log.Fatal(err) // before anything was measured
	}
	f, ferr := res.File(os.Args)
	if ferr != nil {
		log.Fatal(ferr)
	}
	if serr := f.Save("goodput.json"); serr != nil || err != nil {
		log.Fatal(serr, err) // err: what is saved was cut short
	}
	fmt.Println(res.Best().GoodputBps, "bit/s")
}

// Two agents in this process, joined by a model of the link.
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
