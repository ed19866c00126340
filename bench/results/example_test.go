package results_test

import (
	"fmt"
	"os"

	"github.com/kvferry/kvferry/bench/results"
)

func Example() {
	measure := func(samples ...float64) *results.File {
		f := results.New(results.KindGoodput, os.Args, map[string]any{"wan": "rtt=70ms,rate=500Mbps"})
		f.Add(results.Metric{Name: "goodput", Unit: "bps", Better: results.Higher, Samples: samples})
		f.Finish(false)
		return f
	}
	before := measure(401e6, 404e6, 400e6, 399e6, 403e6)
	after := measure(481e6, 478e6, 485e6, 480e6, 483e6)
	c, err := results.Diff(before, after)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Table(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// metric        old       new                 ratio  verdict  why
	// -------  --------  --------  --------------------  -------  -----------------------------------
	// goodput  401 Mbps  481 Mbps  1.200 [1.188, 1.211]  better   the intervals are apart, p = 0.0079
}
