package planner_test

import (
	"fmt"
	"time"

	"github.com/kvferry/kvferry/planner"
)

// A session of 8,000 tokens is wanted in a region 70 ms away over a link whose 25 Gbps were measured.
func Example() {
	d, err := planner.Decide(
		planner.Request{PrefixTokens: 8000},
		planner.Model{
			BytesPerToken: 327_680, BlockTokens: 16, ParamsActive: 68.45e9, Layers: 80, QueryHeads: 64, AttnHeadDim: 128,
		},
		planner.Compute{PeakFLOPS: 989e12, MFU: 0.4, QueueSeconds: 0.2},
		planner.Link{RTT: 70 * time.Millisecond, Goodput: 25e9, Age: 3 * time.Second, Stripes: 16},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, _ := d.Plan(d.Winner)
	for _, t := range plan.Terms {
		fmt.Printf("%-13s%.3f s  %s\n", t.Name, t.Seconds, t.Note)
	}
	fmt.Printf("%s; link %s\n", d.Reason, d.LinkSource)
	// Output:
	// egress_queue 0.000 s  backlog unknown, not counted
	// fetch_queue  0.000 s  no queue modelled
	// rtt          0.210 s  3 x 70ms
	// fixed        0.000 s  constant cost of a migration unknown, not counted
	// ramp         0.000 s  warm
	// bytes        0.896 s  2.441 GiB at 23.41 Gbps, window cap of 16 connection(s)
	// fetch takes 1.106 s, recompute 3.181 s; link measured 3s ago
}

// The published numbers of the base model.
func ExampleEvaluateBase() {
	r, err := planner.EvaluateBase(planner.CrossoverPreset(), planner.BaseInput{PrefixTokens: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	r = r.Rounded()
	fmt.Println(r.RecomputeUsPerToken, r.FetchUsPerToken, *r.CrossoverTokens, r.RecomputeSeconds, r.FetchSeconds)
	// Output: 353.89 26.21 214 0.35389 0.09621
}
