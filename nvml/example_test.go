package nvml_test

import (
	"context"
	"fmt"

	"github.com/kvferry/kvferry/nvml"
)

func Example() {
	sampler, err := nvml.OpenWith(nvml.Config{Library: "libkvferry-no-such-library.so"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sampler.Close()
	snapshot, err := sampler.Sample(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, gpu := range snapshot.GPUs {
		if busy, ok := gpu.Utilization.GPU.Get(); ok {
			fmt.Printf("GPU %d: %.0f %%\n", gpu.Index, 100*busy)
		}
	}
	fmt.Println(snapshot.State)
	// Output: unavailable
}
