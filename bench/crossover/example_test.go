package crossover_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/wan"
)

// From which prefix length on is it faster to fetch over 1 Gbps at 70 ms than to prefill at 3 ms a token?
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	m, err := wan.Parse("rtt=70ms,rate=1Gbps")
	if err != nil {
		panic(err)
	}
	res, err := crossover.Run(ctx, crossover.Config{WAN: m, Model: "llama-3.1-8b", PrefillSecondsPerToken: 3e-3})
	if err != nil {
		panic(err)
	}
	fmt.Println(res.Conclusion)
}
