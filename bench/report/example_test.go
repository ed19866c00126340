package report_test

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/bench/report"
	"github.com/kvferry/kvferry/bench/results"
)

func Example() {
	f := results.New(results.KindCodec, []string{"kvferry", "bench", "codec"}, nil)
	f.Add(results.Metric{Name: "split4.ratio", Unit: "1", Better: results.Higher, Median: 1.33, Low: 1.33, High: 1.33})
	r, err := report.Build([]report.Input{{Name: "codec.json", File: f}})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(r.Conclusions()), "conclusions for a link from a codec alone")
	_, err = report.Build(nil)
	fmt.Println(errors.Is(err, report.ErrNothing))
	// Output:
	// 0 conclusions for a link from a codec alone
	// true
}
