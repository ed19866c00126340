package hybrid_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/bench/hybrid"
)

func ExampleRun() {
	res, err := hybrid.Run(context.Background(), hybrid.Config{
		Goodputs: []float64{25e9}, RTTs: []time.Duration{70 * time.Millisecond}, PrefixTokens: []int64{32768}, GPUs: []string{"2xH100-FP8"},
		Sigmas: []float64{.5}, Real: -1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	c := res.Cells[0]
	fmt.Println("hybrid is faster than fetch and recompute:", c.Hybrid.Mean < min(c.Fetch.Mean, c.Recompute.Mean))
	fmt.Println("its worst case is recompute's:", c.Hybrid.P99 < 1.05*c.Recompute.P99+c.RTTSeconds)
	// Output:
	// hybrid is faster than fetch and recompute: true
	// its worst case is recompute's: true
}
