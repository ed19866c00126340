package steady_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/bench/steady"
	"github.com/kvferry/kvferry/bench/wan"
)

func Example() {
	model, err := wan.Parse("rtt=5ms,rate=50Mbps,loss=0")
	if err != nil {
		panic(err)
	}
	m, err := steady.Run(context.Background(), steady.Cell{WAN: model, Warm: 200 * time.Millisecond, Measure: 300 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	fmt.Println(m.Bytes > 0)
	// Output: true
}
